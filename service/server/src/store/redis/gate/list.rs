//! Listings. An index of all records would cost every claim a second write and room for millions of ids that expire
//! one by one, so plain listings walk the key space with `SCAN`, a bounded number of keys for each page. Suspects, which
//! are few and must be found, have an index for each app.

use latchgate_core::gate::{OperationAddress, OperationId, OperationRecord};
use latchgate_core::{App, Timestamp};

use super::{RedisGateStore, layout};
use crate::store::gate::{EXAMINED_MAX, ListError, Listing, Page};
use crate::store::redis::{Time, begins_with, timestamp};

/// How many keys one `SCAN` looks at.
const SCAN_COUNT: usize = 500;

impl RedisGateStore {
    /// A record that is there from the first page to the last is listed. It is listed on two pages if the server resizes its
    /// table meanwhile: `SCAN` promises no more.
    pub(super) async fn list_all(&self, listing: Listing<'_>) -> Result<Page, ListError> {
        let Listing { app, filter, cursor, limit } = listing;
        let Cursor { mut position, mut cut } = parse_cursor(cursor)?;
        let [all, _] = self.layout.all();
        let prefix = app.map_or(all, |app| self.layout.records(app));
        let mut page = Page::default();
        for _ in 0..EXAMINED_MAX / SCAN_COUNT {
            let mut scan = redis::cmd("SCAN");
            scan.arg(position).arg("MATCH").arg(begins_with(&prefix)).arg("COUNT").arg(SCAN_COUNT);
            let (next_position, keys): (u64, Vec<String>) = self.link.get(&scan).await?;
            // Keys that went or came may have changed what a step from here covers: then all of it is listed.
            let after = cut.take().filter(|cut| cut.next_position == next_position).map(|cut| cut.after);
            // An id is a digest of its app, too: no two apps have the same.
            let found = keys.iter().filter_map(|key| self.layout.address_of(key));
            let mut found: Vec<_> = found.filter(|found| after.is_none_or(|after| found.id > after)).collect();
            // Sorted, so that a step that is cut short can be gone on with; without those that `SCAN` gives twice.
            found.sort_unstable_by_key(|address| address.id);
            found.dedup();
            found.retain(|address| page.records.iter().all(|(listed, _)| listed != address));
            for (address, record) in self.fetch(found).await? {
                let Some((record, now)) = record else { continue };
                if page.records.len() == limit {
                    page.next = page.records.last().map(|(last, _)| format!("{position}:{next_position}:{}", last.id));
                    return Ok(page);
                }
                if record.as_ref().is_none_or(|record| filter.admits(record, now)) {
                    page.records.push((address, record));
                }
            }
            if next_position == 0 {
                return Ok(page);
            }
            position = next_position;
            if page.records.len() == limit {
                break;
            }
        }
        page.next = Some(position.to_string());
        Ok(page)
    }

    /// The cursor is the last id.
    pub(super) async fn list_suspects(&self, app: &App, listing: Listing<'_>) -> Result<Page, ListError> {
        let Listing { filter, cursor, limit, .. } = listing;
        let from = match cursor {
            Some(cursor) => format!("({}", cursor.parse::<OperationId>().map_err(|_| ListError::InvalidCursor)?),
            None => "-".to_owned(),
        };
        let mut range = redis::cmd("ZRANGE");
        range.arg(self.layout.suspects(app)).arg(from).arg("+").arg("BYLEX").arg("LIMIT").arg(0).arg(limit);
        let found: Vec<String> = self.link.get(&range).await?;
        let ids: Vec<OperationId> = found.iter().filter_map(|id| id.parse().ok()).collect();
        let mut page = Page::default();
        let addresses = ids.iter().map(|id| OperationAddress { app: app.clone(), id: *id }).collect();
        for (address, record) in self.fetch(addresses).await? {
            match record {
                Some((record, now)) if record.as_ref().is_none_or(|record| filter.admits(record, now)) => {
                    page.records.push((address, record));
                }
                Some(_) => {}
                // The record's time was over; the index does not notice by itself.
                None => {
                    let (suspects, id) = (self.layout.suspects(app), address.id.to_string());
                    let () = self.link.get(redis::cmd("ZREM").arg(suspects).arg(id)).await?;
                }
            }
        }
        page.next = if ids.len() == limit { ids.last().map(ToString::to_string) } else { None };
        Ok(page)
    }

    async fn fetch(&self, addresses: Vec<OperationAddress>) -> Result<Fetched, ListError> {
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        pipeline.cmd("MGET");
        for address in &addresses {
            pipeline.arg(self.layout.record(address));
        }
        pipeline.cmd("TIME");
        let ((values, time), _): ((Values, Time), _) = self.link.get_all(&pipeline).await?;
        let now = timestamp(time);
        let read = |value: Vec<u8>| (layout::decode(&value).ok().map(|stored| stored.record), now);
        Ok(addresses.into_iter().zip(values).map(|(address, value)| (address, value.map(read))).collect())
    }
}

type Values = Vec<Option<Vec<u8>>>;
/// A record that is there, unless it cannot be decoded.
type Fetched = Vec<(OperationAddress, Option<(Option<OperationRecord>, Timestamp)>)>;

#[derive(Debug, PartialEq)]
struct Cursor {
    /// The cursor of `SCAN`.
    position: u64,
    cut: Option<Cut>,
}

/// Where a step of `SCAN` was cut short that found more than the page holds.
#[derive(Debug, PartialEq)]
struct Cut {
    /// The cursor that the step gave. A step with the same two cursors covers the same part of the server's table.
    next_position: u64,
    after: OperationId,
}

fn parse_cursor(cursor: Option<&str>) -> Result<Cursor, ListError> {
    let Some(cursor) = cursor else { return Ok(Cursor { position: 0, cut: None }) };
    let position = |text: &str| text.parse().map_err(|_| ListError::InvalidCursor);
    let Some((first, rest)) = cursor.split_once(':') else {
        return Ok(Cursor { position: position(cursor)?, cut: None });
    };
    let (next, after) = rest.split_once(':').ok_or(ListError::InvalidCursor)?;
    let after = after.parse().map_err(|_| ListError::InvalidCursor)?;
    Ok(Cursor { position: position(first)?, cut: Some(Cut { next_position: position(next)?, after }) })
}
