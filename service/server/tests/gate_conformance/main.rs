//! One suite for every store of the gate: what a store promises, and what the rules make of it through the driver.
//! `make test` starts the servers it needs.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod contention;
mod fencing;
mod outages;
mod sharing;
mod table;
mod unreadable;
mod verbs;
mod world;

/// Makes each promise a test of each store.
#[macro_export]
macro_rules! on_every_store {
    ($($promise:ident),* $(,)?) => {
        $crate::on_every_store!(@ memory $($promise)*);
        $crate::on_every_store!(@ sqlite $($promise)*);
        $crate::on_every_store!(@ postgres $($promise)*);
        $crate::on_every_store!(@ redis $($promise)*);
    };
    (@ $store:ident $($promise:ident)*) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    super::$promise($crate::world::World::$store().await).await;
                }
            )*
        }
    };
}
