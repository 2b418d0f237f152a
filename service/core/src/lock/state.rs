//! The whole state of one key.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::closing::Closing;
use super::event::Event;
use super::kept::Kept;
use super::lease::{EndReason, Lease, LeaseId, Lost};
use super::position::Turn;
use super::recent::Recent;
use crate::json::Object;
use crate::time::Timestamp;

/// The whole state of one key. A key without a row has the default state.
///
/// Only [`super::step()`] changes it. A store keeps it as a value with a version, in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct LockState {
    /// The highest token granted so far; 0 before the first grant.
    pub(super) token: u64,
    #[serde(default, rename = "v")]
    pub(super) format: Format,
    /// How many permits there are; see [`LockState::limit_in_force`].
    #[serde(default)]
    pub(super) limit: Option<Limit>,
    #[serde(default)]
    pub(super) holders: Vec<Lease>,
    /// Permits that stay taken after their leases have ended.
    #[serde(default)]
    pub(super) kept: Vec<Kept>,
    #[serde(default)]
    pub(super) closed: Option<Closing>,
    #[serde(default)]
    pub(super) turns: Vec<Turn>,
    /// The lock-delay: no lease is granted before this.
    #[serde(default)]
    pub(super) delay_until: Option<Timestamp>,
    /// The highest token presented to the fence register.
    #[serde(default)]
    pub(super) fence: u64,
    #[serde(default)]
    pub(super) recent: Recent,
}

/// The version of the JSON. Functions in Postgres read it too (`read_state` in the migrations), and refuse one that they do not know.
/// It rises when a reader of the version before would be wrong about who holds the lock. Absent means version 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Format;

const FORMAT: u8 = 1;

impl<'de> Deserialize<'de> for Format {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u64::deserialize(deserializer)? {
            version if version == u64::from(FORMAT) => Ok(Self),
            version => Err(D::Error::custom(format_args!("version {version} of a state is not known"))),
        }
    }
}

/// How many permits a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limit {
    pub permits: u32,
    /// Set by an operator, and not by the first request for permits: it stays when no permits are used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_set: bool,
}

/// The end of the year 9999: a row with a limit that an operator set, or that is closed until it is opened, is never idle.
const NEVER: Timestamp = Timestamp::from_ms(253_402_300_799_000);

impl LockState {
    /// The state that a store keeps as this JSON.
    ///
    /// # Errors
    /// When it is none. Tokens would not rise after a lease that has a higher one than its key.
    pub fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        let state: Self = serde_json::from_slice(json)?;
        if state.holders.iter().any(|lease| lease.token > state.token) {
            return Err(serde_json::Error::custom("a lease has a higher token than its key"));
        }
        Ok(state)
    }

    /// The state in JSON, as stores keep it: beginning with its token, and without what says nothing.
    ///
    /// # Errors
    /// None that is known.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut text = String::new();
        self.push_json(&mut text)?;
        Ok(text)
    }

    /// Appends what [`LockState::to_json`] returns.
    ///
    /// # Errors
    /// None that is known.
    pub fn push_json(&self, text: &mut String) -> Result<(), serde_json::Error> {
        let Self { token, format: Format, limit, holders, kept, closed, turns, delay_until, fence, recent } = self;
        // A text that grows is copied each time.
        text.reserve(self.bytes());
        let mut object = Object::begin(text);
        object.number("token", *token);
        object.number("v", FORMAT.into());
        object.value_if_any("limit", limit.as_ref())?;
        if !holders.is_empty() {
            let text = object.field("holders");
            for (index, lease) in holders.iter().enumerate() {
                text.push(if index == 0 { '[' } else { ',' });
                lease.write(text)?;
            }
            text.push(']');
        }
        object.value_if_any("kept", (!kept.is_empty()).then_some(kept))?;
        object.value_if_any("closed", closed.as_ref())?;
        object.value_if_any("turns", (!turns.is_empty()).then_some(turns))?;
        object.value_if_any("delay_until", delay_until.as_ref())?;
        object.number_if_any("fence", *fence);
        if !recent.is_empty() {
            recent.write(object.field("recent"));
        }
        object.end();
        Ok(())
    }

    pub fn token(&self) -> u64 {
        self.token
    }

    pub fn holders(&self) -> &[Lease] {
        &self.holders
    }

    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Whether it is held, waited for, delayed, closed, or limited by an operator.
    pub fn is_in_use(mut self, now: Timestamp) -> bool {
        let _ = self.settle(now, 0);
        let is_taken = !self.holders.is_empty() || self.delayed_until(now).is_some() || self.closing(now).is_some();
        is_taken || !self.turns.is_empty() || self.limit_in_force().is_some()
    }

    /// The highest token presented to the fence register; 0 if none was.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// When time next causes an event.
    pub fn next_notice(&self) -> Option<Timestamp> {
        let ends = self.holders.iter().map(Lease::live_until);
        let opens = self.closed.as_ref().and_then(Closing::closed_until);
        ends.chain(self.holders.iter().filter_map(Lease::warns_at)).chain(opens).min()
    }

    /// When this state has no live lease, no live turn, no lock-delay, no kept permits, no limit, and is not closed. The delay of a
    /// lease that expires before any node notices is included, and so are the permits that are kept then.
    pub fn idle_from(&self) -> Timestamp {
        let leases = self.holders.iter().map(|lease| lease.live_until().plus_ms(lease.delay_ms));
        let turns = self.turns.iter().map(|turn| turn.until);
        let limit = self.limit.filter(|limit| limit.is_set).map(|_| NEVER);
        let kept = self.kept.iter().map(|kept| kept.until).chain(self.holders.iter().filter_map(Lease::kept_until));
        let closed = self.closed.as_ref().map(|closing| closing.closed_until().unwrap_or(NEVER));
        leases.chain(turns).chain(self.delay_until).chain(kept).chain(closed).chain(limit).max().unwrap_or_default()
    }

    /// Whether this lease id has been granted, as far as the state remembers.
    pub fn knows(&self, lease_id: &LeaseId) -> bool {
        self.holders.iter().any(|lease| lease.lease_id == *lease_id) || self.ended(lease_id).is_some()
    }

    /// Whether a lock-delay lasts beyond `at`.
    pub fn is_delayed_after(&self, at: Timestamp) -> bool {
        self.delay_until.is_some_and(|until| until > at)
    }

    /// When and why the last lease ended, as far as the state remembers.
    pub fn last_end(&self) -> Option<(Timestamp, EndReason)> {
        self.recent.last()
    }

    /// How a lease has ended, if it is among the last.
    pub(super) fn ended(&self, lease_id: &LeaseId) -> Option<Lost> {
        self.recent.find(lease_id)
    }

    /// Removes a lease and remembers why it ended, and when. Its permits may stay taken.
    pub(super) fn end(&mut self, index: usize, why: EndReason, at: Timestamp, now: Timestamp) -> Event {
        let lease = self.holders.remove(index);
        self.keep(&lease, now);
        self.note_served(&lease);
        self.recent.push(&lease.lease_id, why, at);
        Event::of_lease(why.into(), &lease, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_with_a_higher_token_than_its_key_is_no_state() {
        let lease = r#"{"lease_id":"l","owner":"o","token":8,"ttl_ms":30000,"granted_at":1,"expires_at":30001}"#;
        let state = |token: u64| LockState::from_json(format!(r#"{{"token":{token},"holders":[{lease}]}}"#).as_bytes());
        assert!(state(8).is_ok());
        assert!(state(7).unwrap_err().to_string().contains("a higher token"));
    }

    #[test]
    fn a_state_says_its_version_and_one_of_an_unknown_version_is_not_read() {
        assert_eq!(LockState::default().to_json().unwrap(), r#"{"token":0,"v":1}"#);
        for (text, is_read) in [
            (r#"{"token":5}"#, true),
            (r#"{"token":5,"v":1}"#, true),
            (r#"{"token":5,"v":2}"#, false),
            (r#"{"token":5,"v":257}"#, false),
        ] {
            assert_eq!(serde_json::from_str::<LockState>(text).is_ok(), is_read, "{text}");
        }
    }
}
