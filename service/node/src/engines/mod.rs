//! Which engine is active, and the switch from one to another.
//!
//! A node has one store or a pair. The records in the stores say which is active ([`crate::store::engine_record`]), and the stores
//! enforce that, so a node only has to find out: it reads the records each second, and at once when a store refuses its epoch.
//! [`decide`] says what the records ask for; any node does it.

mod agreed;
mod copy;
mod copying;
pub mod decide;
mod events;
mod locks;
pub mod open;
mod order;
mod pair;
mod rows;
mod slot;

pub use self::events::EventPage;
pub use self::order::{EnginesOf, OrderFailure, SwitchOrder};
pub use self::pair::{EngineInUse, EngineSet, EngineView, Other, View};
pub use self::slot::{EngineSpec, Opener};
