//! Listings of operations. They read no payload: neither results nor contents that were kept.

use latchgate_core::gate::{OperationName, OperationRecord, State};
use latchgate_core::key::APP_MAX_BYTES;
use latchgate_core::{Address, App, CLOCK_BOUND_MS, Timestamp};

use super::{StoreError, dump};

/// How many rows a store looks at for one page, matching or not.
pub const EXAMINED_MAX: usize = 2_000;

/// Which operations a listing shows. Vacant ones count as forgotten, unless a double run is suspected.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub operation: Option<OperationName>,
    pub state: Option<State>,
    /// Only those of which a double run is suspected.
    pub suspect: bool,
    /// Only those whose state began at least so long ago. Not a store, but the caller looks at it: no store has a column for it.
    pub older_than_ms: u64,
}

impl Filter {
    /// Whether a record is shown at `now`, for stores that cannot filter.
    pub fn admits(&self, record: &OperationRecord, now: Timestamp) -> bool {
        record.is_visible()
            && !record.is_gone(now)
            && (!self.suspect || record.is_suspect())
            && self.state.is_none_or(|state| record.state() == state)
            && self.operation.as_ref().is_none_or(|operation| record.operation == *operation)
    }
}

/// A page of a listing, in the order of the addresses.
#[derive(Clone, Debug)]
pub struct Listing {
    /// `None`: of all apps.
    pub app: Option<App>,
    pub filter: Filter,
    /// The `next` of the page before; `None` for the first.
    pub cursor: Option<String>,
    /// Most records.
    pub limit: usize,
}

/// One page. It may be short, even empty, and still have a `next`: a store looks at a bounded number of rows at a time.
#[derive(Clone, Debug, Default)]
pub struct OperationPage {
    /// Without a record if it cannot be decoded.
    pub records: Vec<(Address, Option<OperationRecord>)>,
    pub next: Option<String>,
}

/// Where a page begins, and its last app.
pub struct Bounds {
    pub app: String,
    pub key: String,
    pub last_app: String,
}

impl Listing {
    /// # Errors
    /// When the cursor is none, or one of another app.
    pub fn bounds(&self) -> Result<Bounds, StoreError> {
        let named = self.app.as_ref().map(|app| app.as_str().to_owned());
        let last_app = named.clone().unwrap_or_else(|| char::MAX.to_string().repeat(APP_MAX_BYTES));
        let Some(cursor) = &self.cursor else {
            return Ok(Bounds { app: named.unwrap_or_default(), key: String::new(), last_app });
        };
        let (app, key) = dump::read_position(Some(cursor))?;
        if named.as_ref().is_some_and(|named| *named != app) {
            return Err(dump::no_position());
        }
        Ok(Bounds { app, key, last_app })
    }

    /// Whether there is such a page.
    pub fn is_valid(&self) -> bool {
        self.bounds().is_ok()
    }
}

/// The latest time from which a record whose end is `keep_until` is gone, seen from `now`: the bound of `OperationRecord::is_gone`.
pub fn gone_before(now: Timestamp) -> Timestamp {
    Timestamp::from_ms(now.as_ms().saturating_sub(CLOCK_BOUND_MS))
}
