//! Tickets: a position in a queue, to which its waiter can return at any node.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use latchgate_core::lock::{Demand, LeaseId, Mode, Position, Share};
use latchgate_core::{Address, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::problem::{Code, Problem};
use crate::seal::Sealer;

const PURPOSE: &str = "latchgate ticket";
/// Longest ticket, in bytes.
pub const TICKET_MAX_BYTES: usize = 1_024;

/// Issues and redeems tickets. All nodes of a cluster sign them with the same secret.
pub struct Tickets {
    sealer: Sealer,
    /// How long a ticket is valid, in ms.
    valid_ms: u64,
}

/// The content of a ticket. `about` ties it to its app and keys.
#[derive(Debug, Serialize, Deserialize)]
struct Ticket {
    /// A digest of the app and the keys.
    #[serde(rename = "a")]
    about: String,
    #[serde(rename = "l")]
    lease_id: LeaseId,
    /// The request for one key; `None` for several.
    #[serde(rename = "w")]
    requested: Option<(Mode, Option<u32>)>,
    /// Its group.
    #[serde(rename = "g", default, skip_serializing_if = "Option::is_none")]
    share: Option<Share>,
    #[serde(rename = "p")]
    position: Position,
    #[serde(rename = "t")]
    at: Timestamp,
}

/// A wait that continues.
#[derive(Clone, Debug)]
pub struct Resumed {
    pub lease_id: LeaseId,
    /// `None` for several keys.
    pub requested: Option<Demand>,
    pub position: Position,
}

impl Tickets {
    pub fn new(secret: &[u8], valid_ms: u64) -> Self {
        Self { sealer: Sealer::new(secret), valid_ms }
    }

    /// For a wait for these keys that has ended at `now`.
    pub fn issue(
        &self,
        keys: &[(&Address, Option<Demand>)],
        lease_id: &LeaseId,
        position: Position,
        now: Timestamp,
    ) -> String {
        let one = if let [(_, requested)] = keys { requested.as_ref() } else { None };
        let requested = one.map(|one| (one.mode, one.limit));
        let share = one.and_then(|one| one.share.clone());
        let ticket = Ticket { about: about(keys), lease_id: lease_id.clone(), requested, share, position, at: now };
        self.sealer.seal(PURPOSE, &serde_json::to_vec(&ticket).unwrap_or_default())
    }

    /// # Errors
    /// `invalid-ticket`: the ticket was not issued by this cluster, or for another request, or is too old.
    pub fn redeem(&self, text: &str, keys: &[(&Address, Option<Demand>)], now: Timestamp) -> Result<Resumed, Problem> {
        let invalid = |detail: &str| Problem::new(Code::InvalidTicket, detail).with("field", "ticket");
        let opened = if text.len() > TICKET_MAX_BYTES { None } else { self.sealer.open(PURPOSE, text) };
        let ticket: Option<Ticket> = opened.and_then(|opened| serde_json::from_slice(&opened).ok());
        let ticket = ticket.ok_or_else(|| invalid("This is not a ticket of this cluster."))?;
        if ticket.about != about(keys) {
            return Err(invalid("This ticket is for another key, or for several with other modes or permits."));
        }
        if now > ticket.at.plus_ms(self.valid_ms) {
            return Err(invalid("This ticket has expired: repeat the request without it."));
        }
        let Ticket { lease_id, share, position, .. } = ticket;
        let requested = ticket.requested.map(|(mode, limit)| Demand { mode, limit, share });
        let is_other = |now: &Demand| requested.as_ref().is_some_and(|requested| requested != now);
        if keys.iter().any(|(_, now)| now.as_ref().is_some_and(is_other)) {
            return Err(invalid("This ticket is for another mode, other permits or another group."));
        }
        Ok(Resumed { lease_id, requested, position })
    }
}

/// Of several keys, the requests are a part of it.
fn about(keys: &[(&Address, Option<Demand>)]) -> String {
    let mut digest = Sha256::new();
    digest.update((keys.len() as u64).to_be_bytes());
    for (address, requested) in keys {
        for part in [address.app.as_str(), address.key.as_str()] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        if keys.len() > 1 {
            let Demand { mode, limit, share } = requested.clone().unwrap_or_default();
            digest.update(serde_json::to_vec(&(mode, limit)).unwrap_or_default());
            digest.update(share.as_ref().and_then(|share| serde_json::to_vec(share).ok()).unwrap_or_default());
        }
    }
    URL_SAFE_NO_PAD.encode(&digest.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use latchgate_core::lock::Group;
    use latchgate_core::{App, Key};

    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

    fn address(app: &str, key: &str) -> Address {
        Address { app: App::parse(app).unwrap(), key: Key::parse(key).unwrap() }
    }

    /// The group is as long as it may be, and each byte of it is escaped.
    fn requested(permits: u32) -> Demand {
        let group = Group::parse(&"\\".repeat(256)).unwrap();
        Demand { mode: Mode::Permits(permits), limit: Some(5), share: Some(Share { group, limit: Some(1) }) }
    }

    fn ticket(tickets: &Tickets, address: &Address) -> String {
        let position = Position { priority: 3, arrival: NOW, serial: 7 };
        let lease_id = LeaseId::parse(&"l".repeat(64)).unwrap();
        tickets.issue(&[(address, Some(requested(2)))], &lease_id, position, NOW)
    }

    #[test]
    fn a_ticket_returns_to_its_position_with_its_request() {
        let tickets = Tickets::new(b"a secret of all nodes", 60_000);
        let address = address("app", "key");
        let text = ticket(&tickets, &address);
        assert!(text.len() <= TICKET_MAX_BYTES);
        let resumed = tickets.redeem(&text, &[(&address, None)], NOW.plus_ms(60_000)).unwrap();
        assert_eq!(resumed.position, Position { priority: 3, arrival: NOW, serial: 7 });
        assert_eq!(resumed.requested, Some(requested(2)));
        assert_eq!(resumed.lease_id.as_str(), "l".repeat(64));
        assert!(tickets.redeem(&text, &[(&address, Some(requested(2)))], NOW).is_ok());
    }

    #[test]
    fn a_forged_foreign_other_or_old_ticket_is_refused() {
        let tickets = Tickets::new(b"a secret of all nodes", 60_000);
        let mine = address("app", "key");
        let text = ticket(&tickets, &mine);
        let refused = |text: &str, address: &Address, requested, at| {
            let problem = tickets.redeem(text, &[(address, requested)], at).expect_err("redeemed");
            serde_json::to_value(&problem).unwrap()["code"] == "invalid-ticket"
        };
        assert!(refused(&text, &address("other", "key"), None, NOW), "foreign app");
        assert!(refused(&text, &address("app", "other"), None, NOW), "foreign key");
        assert!(refused(&text, &mine, Some(requested(1)), NOW), "other permits");
        let ungrouped = Demand { share: None, ..requested(2) };
        assert!(refused(&text, &mine, Some(ungrouped), NOW), "no group");
        assert!(refused(&text, &mine, Some(Demand::of(Mode::Exclusive)), NOW), "other mode");
        assert!(refused(&text, &mine, None, NOW.plus_ms(60_001)), "old");
        let other = Tickets::new(b"another secret entirely", 60_000);
        assert!(refused(&ticket(&other, &mine), &mine, None, NOW), "another cluster's");
        for index in 0..text.len() {
            let mut forged = text.clone().into_bytes();
            forged[index] = if forged[index] == b'A' { b'B' } else { b'A' };
            assert!(refused(std::str::from_utf8(&forged).unwrap(), &mine, None, NOW), "forged at {index}");
        }
        for text in ["", ".", "x.y", &"A".repeat(5_000)] {
            assert!(refused(text, &mine, None, NOW), "{text}");
        }
    }
}
