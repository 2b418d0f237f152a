//! Tickets: a place in a queue, for its waiter to come back to at any node.

use latchgate_core::lock::{LeaseId, Mode, Place};
use latchgate_core::{Address, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::http::problem::{Code, Problem};
use crate::runtime::seal::Sealer;

const PURPOSE: &str = "latchgate ticket";
/// Longest ticket, in bytes.
const TICKET_MAX_BYTES: usize = 1_024;

/// Gives tickets and takes them back. All nodes of a cluster do so with the same secret.
pub struct Tickets {
    sealer: Sealer,
    /// How long a ticket is good for, in ms.
    good_ms: u64,
}

/// What one key of a wait wished for.
pub type Wished = (Mode, Option<u32>);

/// What a ticket says. Whom it is for shows by `about`.
#[derive(Debug, Serialize, Deserialize)]
struct Ticket {
    /// A digest of the app and the keys.
    #[serde(rename = "a")]
    about: String,
    #[serde(rename = "l")]
    lease_id: LeaseId,
    #[serde(rename = "w")]
    wishes: Wishes,
    #[serde(rename = "p")]
    place: Place,
    #[serde(rename = "t")]
    at: Timestamp,
}

/// Of one key, as they are; of many, a digest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Wishes {
    One(Mode, Option<u32>),
    Many(String),
}

/// What a wait goes on with.
#[derive(Clone, Debug)]
pub struct Resumed {
    pub lease_id: LeaseId,
    /// `None` for many keys.
    pub wish: Option<Wished>,
    pub place: Place,
}

impl Tickets {
    pub fn new(secret: &[u8], good_ms: u64) -> Self {
        Self { sealer: Sealer::new(secret), good_ms }
    }

    /// For a wait for these keys, each with its wish, that has ended at `now`.
    pub fn give(&self, keys: &[(&Address, Wished)], lease_id: &LeaseId, place: Place, now: Timestamp) -> String {
        let ticket = Ticket { about: about(keys), lease_id: lease_id.clone(), wishes: wishes(keys), place, at: now };
        self.sealer.seal(PURPOSE, &serde_json::to_vec(&ticket).unwrap_or_default())
    }

    /// # Errors
    /// `invalid-ticket`: it is none of ours, for something else, or too old.
    pub fn take(&self, text: &str, keys: &[(&Address, Option<Wished>)], now: Timestamp) -> Result<Resumed, Problem> {
        let invalid = |detail: &str| Problem::new(Code::InvalidTicket, detail).with("field", "ticket");
        let opened = if text.len() > TICKET_MAX_BYTES { None } else { self.sealer.open(PURPOSE, text) };
        let ticket: Option<Ticket> = opened.and_then(|opened| serde_json::from_slice(&opened).ok());
        let ticket = ticket.ok_or_else(|| invalid("This is no ticket of this cluster."))?;
        let asked: Vec<(&Address, Wished)> =
            keys.iter().map(|(address, wish)| (*address, wish.unwrap_or_default())).collect();
        if ticket.about != about(&asked) {
            return Err(invalid("This ticket is for another key."));
        }
        if now > ticket.at.plus_ms(self.good_ms) {
            return Err(invalid("This ticket is too old: its place has lapsed. Ask again without it."));
        }
        let is_other = match (&ticket.wishes, keys) {
            (Wishes::One(mode, limit), [(_, Some(wish))]) => *wish != (*mode, *limit),
            (Wishes::One(..), _) => false,
            (many @ Wishes::Many(_), _) => *many != wishes(&asked),
        };
        if is_other {
            return Err(invalid("This ticket is for another mode, or for other permits."));
        }
        let wish = match ticket.wishes {
            Wishes::One(mode, limit) => Some((mode, limit)),
            Wishes::Many(_) => None,
        };
        Ok(Resumed { lease_id: ticket.lease_id, wish, place: ticket.place })
    }
}

fn about(keys: &[(&Address, Wished)]) -> String {
    let mut digest = Sha256::new();
    digest.update((keys.len() as u64).to_be_bytes());
    for (address, _) in keys {
        for part in [address.app.as_str(), address.key.as_str()] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
    }
    short(digest)
}

fn wishes(keys: &[(&Address, Wished)]) -> Wishes {
    if let [(_, (mode, limit))] = keys {
        return Wishes::One(*mode, *limit);
    }
    let mut digest = Sha256::new();
    for (_, wish) in keys {
        digest.update(serde_json::to_vec(wish).unwrap_or_default());
    }
    Wishes::Many(short(digest))
}

fn short(digest: Sha256) -> String {
    digest.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use latchgate_core::{App, Key};

    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

    fn address(app: &str, key: &str) -> Address {
        Address { app: App::parse(app).unwrap(), key: Key::parse(key).unwrap() }
    }

    fn ticket(tickets: &Tickets, address: &Address) -> String {
        let place = Place { priority: 3, arrival: NOW, serial: 7 };
        let lease_id = LeaseId::parse(&"l".repeat(64)).unwrap();
        tickets.give(&[(address, (Mode::Permits(2), Some(5)))], &lease_id, place, NOW)
    }

    #[test]
    fn a_ticket_leads_back_to_its_place_and_wish() {
        let tickets = Tickets::new(b"a secret of all nodes", 60_000);
        let address = address("app", "key");
        let text = ticket(&tickets, &address);
        assert!(text.len() <= TICKET_MAX_BYTES);
        let resumed = tickets.take(&text, &[(&address, None)], NOW.plus_ms(60_000)).unwrap();
        assert_eq!(resumed.place, Place { priority: 3, arrival: NOW, serial: 7 });
        assert_eq!(resumed.wish, Some((Mode::Permits(2), Some(5))));
        assert_eq!(resumed.lease_id.as_str(), "l".repeat(64));
        assert!(tickets.take(&text, &[(&address, Some((Mode::Permits(2), Some(5))))], NOW).is_ok());
    }

    #[test]
    fn a_forged_foreign_other_or_old_ticket_is_refused() {
        let tickets = Tickets::new(b"a secret of all nodes", 60_000);
        let mine = address("app", "key");
        let text = ticket(&tickets, &mine);
        let refused = |text: &str, address: &Address, wish, at| {
            let problem = tickets.take(text, &[(address, wish)], at).expect_err("taken");
            serde_json::to_value(&problem).unwrap()["code"] == "invalid-ticket"
        };
        assert!(refused(&text, &address("other", "key"), None, NOW), "foreign app");
        assert!(refused(&text, &address("app", "other"), None, NOW), "foreign key");
        assert!(refused(&text, &mine, Some((Mode::Permits(1), Some(5))), NOW), "other permits");
        assert!(refused(&text, &mine, Some((Mode::Exclusive, None)), NOW), "other mode");
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
