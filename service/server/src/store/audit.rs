//! Audit records as stores keep them: a text with a time. A store does not know what the text says.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use latchgate_core::Timestamp;

use super::StoreError;

/// One record. Two with the same position are the same record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    pub position: AuditPosition,
    pub class: AuditClass,
    /// JSON.
    pub text: String,
}

/// Records are bounded in number for each class, so that those of one class do not displace those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditClass {
    /// What operators do to the service.
    Operator,
    /// What an app does to its own locks and operations.
    App,
    /// Failed authentications, which any client can cause.
    Refused,
}

impl AuditClass {
    pub const ALL: [Self; 3] = [Self::Operator, Self::App, Self::Refused];

    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Operator => 0,
            Self::App => 1,
            Self::Refused => 2,
        }
    }

    pub(super) fn from_number(number: i64) -> Result<Self, UnknownClass> {
        Self::ALL.into_iter().find(|class| i64::from(class.number()) == number).ok_or(UnknownClass)
    }
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("an audit record of a class that this version does not know")]
pub(super) struct UnknownClass;

/// Orders records by their time. Its text is a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditPosition {
    pub at: Timestamp,
    /// The first of a node in a ms is random, the others follow it. Below 2^53.
    pub id: u64,
}

impl AuditPosition {
    /// After every record.
    pub const END: Self = Self { at: Timestamp::from_ms(TIME_MAX), id: 0 };

    /// A new position, behind the last one of this node.
    pub fn after(last: Option<Self>, now: Timestamp) -> Self {
        match last {
            Some(last) if last.at >= now => Self { at: last.at, id: last.id + 1 },
            _ => Self { at: now, id: super::random_number() / 2 },
        }
    }
}

/// The latest time of a position, in ms: it is exact in a score of Redis.
const TIME_MAX: u64 = 1 << 53;

impl fmt::Display for AuditPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.at.as_ms(), self.id)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the next_cursor of a page")]
pub struct InvalidAuditCursor;

impl FromStr for AuditPosition {
    type Err = InvalidAuditCursor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| digits.parse::<u64>().ok().filter(|number| *number <= TIME_MAX);
        let (at, id) = text.split_once('-').ok_or(InvalidAuditCursor)?;
        let position = Self {
            at: Timestamp::from_ms(number(at).ok_or(InvalidAuditCursor)?),
            id: number(id).ok_or(InvalidAuditCursor)?,
        };
        if position.to_string() == text { Ok(position) } else { Err(InvalidAuditCursor) }
    }
}

/// Keeps audit records. They belong to no epoch: any store that answers takes them, and neither a switch nor [`clear`] removes
/// them.
///
/// [`clear`]: super::LockStore::clear
#[async_trait]
pub trait AuditStore: Send + Sync {
    /// Writes records. A record that is there already stays, so a call whose outcome is unknown can be repeated.
    async fn write_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError>;

    /// The newest records before a position, newest first: `limit` of them, unless there are fewer.
    async fn read_audit(&self, before: AuditPosition, limit: usize) -> Result<Vec<AuditRecord>, StoreError>;

    /// Deletes the records that are older, and of each class all but the newest `count_max`.
    async fn trim_audit(&self, older_than: Timestamp, count_max: usize) -> Result<(), StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_back_from_its_text_and_other_texts_are_refused() {
        let position = AuditPosition { at: Timestamp::from_ms(1_700_000_000_000), id: 42 };
        assert_eq!(position.to_string().parse(), Ok(position));
        assert_eq!(AuditPosition::END.to_string().parse(), Ok(AuditPosition::END));
        for text in ["", "-", "1", "1-", "-1", "+1-2", "1-02", "1-2-3", "1-18446744073709551615", "x-1"] {
            assert_eq!(text.parse::<AuditPosition>(), Err(InvalidAuditCursor), "{text:?}");
        }
    }
}
