//! `GET /v1/locks/{key}/history`, and the event streams of one key and of all keys with a prefix.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{Event as Frame, KeepAlive, Sse};
use futures::{Stream, StreamExt, stream};
use latchgate_core::lock::EventKind;

use super::fields::ModeName;
use super::search::parse_prefix;
use crate::format::{DateTime, answers, queries, rfc3339};
use crate::http::answer;
use crate::http::call::{Answered, Call, ENTRIES_PER_REQUEST, Waiting};
use crate::http::path::PathAddress;
use crate::http::problem::{Code, Problem};
use crate::http::query::{Query, page_limit};
use crate::locks::{Next, Watch, Watched};
use crate::store::{EventCursor, LoggedEvent};

/// Pause after which a stream without events sends a comment, so that proxies keep it open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

answers! {
    /// An event of a lock; of a stream, the `data` of each event.
    pub struct EventAnswer {
        /// Opaque. `Last-Event-ID` of a stream or `cursor` of a history continue from it.
        id: String,
        /// `unreadable` is an event that the node cannot decode.
        kind: EventKind,
        /// Only in a stream of all apps.
        app?: Option<String>,
        /// Absent if it cannot be decoded.
        key?: Option<String>,
        /// By the store's clock.
        at: DateTime,
        owner?: Option<String>,
        /// Absent in an event that is not of a lease.
        #[schema(value_type = ModeName)]
        mode?: Option<&'static str>,
        permits?: Option<u32>,
        token?: Option<u64>,
        /// How long the request waited in the queue, in ms.
        waited_ms: u64,
        /// How long the lock had been held, in ms.
        held_ms?: Option<u64>,
        expires_at?: Option<DateTime>,
        reason?: Option<String>,
        by?: Option<String>,
    }
}

queries! {
    pub struct HistoryQuery {
        /// Most events in the answer: 1 to 1 000; 100 if absent.
        #[param(minimum = 1, maximum = 1_000)]
        limit: Option<usize>,
        /// `next_cursor` of the page before, or the `id` of an event of the lock. If it is of an engine that was left and cannot be read any
        /// more, the call is refused.
        #[param(min_length = 1, max_length = 512)]
        cursor: Option<String>,
    }

    pub struct EventsQuery {
        /// The `id` of the last event received, as in `Last-Event-ID`. If absent, the stream begins now.
        #[param(min_length = 1, max_length = 512)]
        after: Option<String>,
    }

    pub struct AllEventsQuery {
        /// Only keys that begin with this.
        #[param(max_length = 512)]
        prefix: Option<String>,
        /// The `id` of the last event received, as in `Last-Event-ID`. If absent, the stream begins now.
        #[param(min_length = 1, max_length = 512)]
        after: Option<String>,
    }
}

answers! {
    /// One page of events, newest first.
    pub struct HistoryAnswer {
        /// Newest first.
        events: Vec<EventAnswer>,
        /// Send it as `cursor` for the next page; absent on the last.
        next_cursor?: Option<String>,
    }
}

/// Show the history of a lock.
///
/// The holders with their tokens, how long they waited and held the lock, and how each lease ended. Events are kept for a day
/// unless configured otherwise.
#[utoipa::path(
    get, path = "/v1/locks/{key}/history", tag = "events", params(HistoryQuery),
    responses((status = 200, body = HistoryAnswer))
)]
pub async fn history(call: Call, PathAddress(address): PathAddress, Query(query): Query<HistoryQuery>) -> Answered {
    check_kept(&call)?;
    let limit = page_limit(query.limit)?;
    call.count_listed(limit)?;
    let before = parse_cursor("cursor", query.cursor.as_deref())?;
    let events = call.context.locks.history(&address, before, limit).await?;
    let lost =
        "is of an engine, or of a time before a loss of data, that cannot be read any more: begin again without it";
    let events = events.ok_or_else(|| Problem::field("cursor", lost))?;
    let next_cursor = events.last().filter(|_| events.len() == limit).map(|last| last.cursor.to_string());
    Ok(answer::ok(&HistoryAnswer { events: events.iter().map(event_answer).collect(), next_cursor }))
}

/// Watch a lock.
///
/// A stream of server-sent events of all nodes, in the order of their commits. Each event has an `id`: after a broken
/// connection, a client that sends the last `id` as `Last-Event-ID` gets every later event once, over a planned switch of the engine,
/// too. Where that is not possible, because the store has lost data or the engine that has the events was left, the stream has one
/// event `dropped` and goes on. Its `data` is `{id, kind, from, to, reason}`: events behind the id `from` and up to the id `to` may be
/// missing.
#[utoipa::path(
    get, path = "/v1/locks/{key}/events", tag = "events",
    params(EventsQuery),
    responses((status = 200, body = EventAnswer, content_type = "text/event-stream"))
)]
pub async fn events(
    call: Call,
    PathAddress(address): PathAddress,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Answered {
    stream_of(&call, Watched::Key(address.key), query.after.as_deref(), &headers).await
}

/// Watch all locks, or those whose keys have a prefix.
#[utoipa::path(
    get, path = "/v1/events", tag = "events",
    params(AllEventsQuery),
    responses((status = 200, body = EventAnswer, content_type = "text/event-stream"))
)]
pub async fn all_events(call: Call, Query(query): Query<AllEventsQuery>, headers: HeaderMap) -> Answered {
    let prefix = parse_prefix(&call, query.prefix)?;
    stream_of(&call, Watched::Prefix(prefix), query.after.as_deref(), &headers).await
}

async fn stream_of(call: &Call, watched: Watched, after: Option<&str>, headers: &HeaderMap) -> Answered {
    check_kept(call)?;
    let resumed = headers.get("last-event-id").map(|id| id.to_str().unwrap_or("?"));
    let after = match resumed {
        Some(id) => parse_cursor("Last-Event-ID", Some(id))?,
        None => parse_cursor("after", after)?,
    };
    let waits = call.enter_stream()?;
    let app_use = Arc::clone(&call.caller.app_use);
    let watch = call.context.locks.watch(call.apps(), watched, after).await?.counting(move |events| {
        let requests = u32::try_from(events / ENTRIES_PER_REQUEST).unwrap_or(u32::MAX);
        app_use.request(false, 0, requests).map_err(|excess| excess.retry_after)
    });
    let stream =
        Sse::new(frames(watch, waits, call.apps().is_none())).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // nginx would buffer events.
    Ok(([("x-accel-buffering", "no")], stream).into_response())
}

/// The stream begins with an id alone, and sends one after events of other keys: a client that returns with it misses no event
/// and gets none twice.
fn frames(watch: Watch, waits: Waiting, is_of_all: bool) -> impl Stream<Item = Result<Frame, Infallible>> {
    let begun = stream::once(std::future::ready(Ok(id_frame(&watch))));
    let batches = stream::unfold((watch, waits), move |(mut watch, waits)| async move {
        let frames = match watch.next().await? {
            Next::Events(events) if events.is_empty() => vec![id_frame(&watch)],
            Next::Events(events) => events.iter().map(|event| event_frame(event, is_of_all)).collect(),
            Next::Dropped { from, to } => vec![dropped_frame(from, to)],
        };
        Some((frames, (watch, waits)))
    });
    begun.chain(batches.flat_map(|frames| stream::iter(frames.into_iter().map(Ok))))
}

fn id_frame(watch: &Watch) -> Frame {
    Frame::default().id(watch.seen().to_string())
}

fn dropped_frame(from: EventCursor, to: EventCursor) -> Frame {
    let (from, to) = (from.to_string(), to.to_string());
    let reason = "Events after `from` and up to `to` may be missing: the store has lost them, or the engine that has them was left.";
    let data = serde_json::json!({ "id": to, "kind": "dropped", "from": from, "to": to, "reason": reason });
    Frame::default().id(to).event("dropped").data(data.to_string())
}

fn event_frame(event: &LoggedEvent, is_of_all: bool) -> Frame {
    let app = is_of_all.then(|| event.address.app.as_str().to_owned());
    let data = serde_json::to_string(&EventAnswer { app, ..event_answer(event) }).unwrap_or_default();
    Frame::default().id(event.cursor.to_string()).event(event.event.kind.as_str()).data(data)
}

fn check_kept(call: &Call) -> Result<(), Problem> {
    if call.context.locks.keeps_history() {
        return Ok(());
    }
    Err(Problem::new(Code::HistoryOff, "This node keeps no history and streams no events."))
}

fn parse_cursor(field: &str, text: Option<&str>) -> Result<Option<EventCursor>, Problem> {
    text.map(|text| text.parse().map_err(|error| Problem::field(field, error))).transpose()
}

fn event_answer(logged: &LoggedEvent) -> EventAnswer {
    let event = &logged.event;
    let is_of_lease = !matches!(event.kind, EventKind::Closed | EventKind::Opened | EventKind::Unreadable);
    EventAnswer {
        id: logged.cursor.to_string(),
        kind: event.kind,
        app: None,
        key: Some(&logged.address.key).filter(|key| !key.is_placeholder()).map(|key| key.as_str().to_owned()),
        at: rfc3339(event.at),
        owner: event.owner.as_ref().map(|owner| owner.as_str().to_owned()),
        mode: is_of_lease.then(|| event.mode.as_str()),
        permits: Some(event.mode.permits()).filter(|permits| *permits > 0),
        token: Some(event.token).filter(|token| *token > 0),
        waited_ms: event.waited_ms,
        held_ms: event.held_ms,
        expires_at: event.expires_at.map(rfc3339),
        reason: event.note.reason.as_deref().map(str::to_owned),
        by: event.note.by.as_ref().map(|by| by.as_str().to_owned()),
    }
}
