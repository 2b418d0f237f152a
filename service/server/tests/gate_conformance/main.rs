//! The promises of `latchgate::gate::Operations`, tested with two nodes on each store. What is promised of the stores alone is in
//! `store_conformance`. `make test` starts the servers it needs.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod calls;
mod contention;
mod listing;
mod outages;
mod sharing;
mod table;
mod unreadable;
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
