//! How many operations of each app a person must decide: unknown ones, and those whose lease has passed with `on_expiry` `block`. A walk along
//! the records of the stores counts them, a bounded page at a time: no store has an index of them, which each claim would pay for.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Weak;
use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_core::gate::{OnExpiry, OperationRecord, Phase, State};
use tokio::time::{MissedTickBehavior, interval};

use super::context::Context;
use crate::gate::ListFailure;
use crate::store::{Filter, Listing};

/// Between two pages, each of which examines a bounded number of records.
const PAGE_EVERY: Duration = Duration::from_secs(1);
const PAGE: usize = 500;
/// Between two walks.
const WALK_EVERY: Duration = Duration::from_secs(10);

/// Counts as long as the node serves.
pub async fn keep_counting(context: Weak<Context>) {
    let mut pages = interval(PAGE_EVERY);
    pages.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut found = BTreeMap::new();
        for state in [State::Unknown, State::Started] {
            let filter = Filter { state: Some(state), ..Filter::default() };
            let mut listing = Listing { app: None, filter, cursor: None, limit: PAGE };
            loop {
                pages.tick().await;
                let Some(context) = context.upgrade() else { return };
                let page = match context.operations.list(&listing).await {
                    Ok(page) => page,
                    // The next page can be read when the store answers again.
                    Err(ListFailure::Failure(_)) => continue,
                    Err(ListFailure::InvalidCursor) => break,
                };
                for shown in page.records.iter().filter(|shown| is_undecided(&shown.record, shown.now)) {
                    *found.entry(shown.address.app.clone()).or_default() += 1;
                }
                listing.cursor = page.next;
                if listing.cursor.is_none() {
                    break;
                }
            }
        }
        let Some(context) = context.upgrade() else { return };
        *context.undecided.lock() = take(&mut found);
        drop(context);
        tokio::time::sleep(WALK_EVERY).await;
    }
}

fn is_undecided(record: &OperationRecord, now: Timestamp) -> bool {
    match &record.phase {
        Phase::Unknown { .. } => true,
        Phase::Started(started) => record.on_expiry == OnExpiry::Block && started.has_passed(now),
        Phase::Succeeded(_) | Phase::Vacant { .. } => false,
    }
}
