//! The endpoints of locks.

pub mod acquire;
pub mod closing;
pub mod fields;
pub mod history;
pub mod interventions;
pub mod json;
pub mod leases;
pub mod reading;
pub mod search;
