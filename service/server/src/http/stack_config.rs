//! What the layers of a node have in common.

use super::context::Shared;
use super::cors::Cors;
use super::hosts::Hosts;
use super::request_ids::RequestIds;

pub struct StackConfig {
    pub context: Shared,
    pub hosts: Hosts,
    pub cors: Cors,
    pub ids: RequestIds,
    /// Log every request, not only failed ones.
    pub access_log: bool,
}
