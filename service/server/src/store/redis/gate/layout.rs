//! How keys and values look. A key has the app behind its length, so that no two apps share one, and ends with the id.

use latchgate_core::App;
use latchgate_core::gate::OperationAddress;

use crate::store::gate::Stored;
use crate::store::{StoreError, Version};

/// A version in front of a value: so many hex digits.
const VERSION_DIGITS: usize = 16;

pub(super) struct Layout {
    prefix: String,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(super) fn record(&self, address: &OperationAddress) -> String {
        format!("{}{}", self.records(&address.app), address.id)
    }

    /// What the keys of an app's records begin with.
    pub(super) fn records(&self, app: &App) -> String {
        format!("{}:g:{}:{}:", self.prefix, app.as_str().len(), app.as_str())
    }

    /// A sorted set of the ids of an app's suspects, all with one score, so that it is sorted by id.
    pub(super) fn suspects(&self, app: &App) -> String {
        format!("{}:gs:{}:{}", self.prefix, app.as_str().len(), app.as_str())
    }

    /// What the keys of all records begin with, and those of all suspects.
    pub(super) fn all(&self) -> [String; 2] {
        [format!("{}:g:", self.prefix), format!("{}:gs:", self.prefix)]
    }

    /// Whose record a key holds.
    pub(super) fn address_of(&self, key: &str) -> Option<OperationAddress> {
        let (length, rest) = key.strip_prefix(&self.prefix)?.strip_prefix(":g:")?.split_once(':')?;
        let (app, id) = rest.split_at_checked(length.parse().ok()?)?;
        Some(OperationAddress { app: App::parse(app).ok()?, id: id.strip_prefix(':')?.parse().ok()? })
    }

    pub(super) fn engine(&self) -> String {
        format!("{}:gate-engine", self.prefix)
    }

    /// The channel for ends of operations.
    pub(super) fn wake_ups(&self) -> String {
        format!("{}:gw", self.prefix)
    }
}

pub(super) fn encode_version(version: Version) -> String {
    format!("{:0VERSION_DIGITS$x}", version.number())
}

/// The version, then the record in JSON.
pub(super) fn encode(version: Version, record: &latchgate_core::gate::OperationRecord) -> Result<String, StoreError> {
    let record = serde_json::to_string(record).map_err(|error| StoreError::Unavailable(error.to_string()))?;
    Ok(encode_version(version) + &record)
}

/// # Errors
/// When another program has written to the key.
pub(in crate::store::redis) fn decode(value: &[u8]) -> Result<Stored, StoreError> {
    let foreign = || StoreError::Unreadable { keys: Vec::new(), reason: "it is not a record".to_owned() };
    let (version, record) = value.split_at_checked(VERSION_DIGITS).ok_or_else(foreign)?;
    let version = std::str::from_utf8(version).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let version = Version::from_number(version.ok_or_else(foreign)?);
    Ok(Stored { version, record: serde_json::from_slice(record).map_err(|_| foreign())? })
}
