//! Where the rules meet the stores.

pub mod clock;
pub mod gate;
