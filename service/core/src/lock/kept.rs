//! Permits that stay taken for a while: see [`super::min_hold`].

use serde::{Deserialize, Serialize};

use super::group::Group;
use super::slots::Slots;
use crate::time::Timestamp;

/// The permits of one lease that has ended, with their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub permits: u32,
    #[serde(default, skip_serializing_if = "Slots::is_empty")]
    pub slots: Slots,
    /// They count as permits of the group still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// When a node may grant them again, by its own estimate of the store's clock.
    pub until: Timestamp,
}
