//! Quotas: how much one app may use of each node, so that it leaves the rest to the others.

use serde::{Deserialize, Serialize};

/// The highest limit of a quota.
pub const QUOTA_MAX: u32 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    RequestsPerSecond,
    /// Requests that wait at once.
    Waiters,
    EventStreams,
}

impl Quota {
    pub const ALL: [Self; 3] = [Self::RequestsPerSecond, Self::Waiters, Self::EventStreams];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RequestsPerSecond => "requests_per_second",
            Self::Waiters => "waiters",
            Self::EventStreams => "event_streams",
        }
    }
}

/// The limits of one app at each node; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quotas {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiters: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_streams: Option<u32>,
}

impl Quotas {
    pub const fn limit(&self, quota: Quota) -> Option<u32> {
        match quota {
            Quota::RequestsPerSecond => self.requests_per_second,
            Quota::Waiters => self.waiters,
            Quota::EventStreams => self.event_streams,
        }
    }

    pub const fn set(&mut self, quota: Quota, limit: Option<u32>) {
        match quota {
            Quota::RequestsPerSecond => self.requests_per_second = limit,
            Quota::Waiters => self.waiters = limit,
            Quota::EventStreams => self.event_streams = limit,
        }
    }

    /// Whether no quota has a limit.
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }
}
