//! `GET /v1/locks/{key}/history`, and the event streams of a key and of all keys with a prefix.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};
use latchgate_core::Key;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answers::json;
use crate::http::format::rfc3339;
use crate::http::problem::{Code, Problem, ProblemBody};
use crate::http::{Context, Shared, path, query};
use crate::runtime::{Watch, Watched};
use crate::store::{EventCursor, LoggedEvent};

const HISTORY_LIMIT_DEFAULT: usize = 100;
const HISTORY_LIMIT_MAX: usize = 1_000;
/// How often a stream without news shows that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Something that happened to a lock.
#[derive(Serialize, ToSchema)]
pub struct EventAnswer {
    /// Where to go on from: `Last-Event-ID` of a stream, `before` of a history. Opaque.
    id: String,
    /// `granted`, `renewed` (in streams only), `released`, `expired`, `revoking`, `revoked`, `forced`, `given_back`,
    /// `waited` or `held_too_long`.
    kind: &'static str,
    key: String,
    /// By the store's clock.
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    /// How long the holder stood in the queue, in ms.
    waited_ms: u64,
    /// How long the lock had been held, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct HistoryQuery {
    /// Most events in the answer: 1 to 1 000; 100 if absent.
    limit: Option<usize>,
    /// `next_before` of the page before.
    before: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct HistoryAnswer {
    /// The newest first.
    events: Vec<EventAnswer>,
    /// Send it as `before` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_before: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// The `id` of the last event seen, as `Last-Event-ID` would say; from now on if absent.
    after: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct AllEventsQuery {
    /// Only keys that begin with this.
    prefix: Option<String>,
    /// The `id` of the last event seen, as `Last-Event-ID` would say; from now on if absent.
    after: Option<String>,
}

/// What has happened to a lock.
///
/// Who held it, under which token, how long they waited and held it, and how each lease ended; for as long as the service
/// keeps it (a day unless configured otherwise).
#[utoipa::path(
    get, path = "/v1/locks/{key}/history", tag = "events",
    params(("key" = String, Path, description = "1 to 512 bytes of UTF-8, percent-encoded", example = "orders"), HistoryQuery),
    responses(
        (status = 200, description = "One page, the newest first.", body = HistoryAnswer),
        (status = 400, description = "`invalid-request`, `invalid-key`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`history-off`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn history(context: &Context, key: &str, uri: &Uri) -> Result<Response, Problem> {
    let address = path::address(&context.app, key)?;
    let query: HistoryQuery = query::parse(uri)?;
    check_kept(context)?;
    let limit = query::page_limit(query.limit, HISTORY_LIMIT_DEFAULT, HISTORY_LIMIT_MAX)?;
    let before = parse_cursor("before", query.before.as_deref())?;
    let events = context.locks.history(&address, before, limit).await;
    let events = events.map_err(|failure| Problem::of_failure(&failure))?;
    let next_before = events.last().filter(|_| events.len() == limit).map(|last| last.cursor.to_string());
    Ok(json(&HistoryAnswer { events: events.iter().map(answer).collect(), next_before }))
}

/// Watch a lock.
///
/// A stream of server-sent events, from all nodes, in the order in which they were committed. Each has an `id`: send the
/// last one as `Last-Event-ID` to go on after a broken connection without missing any.
#[utoipa::path(
    get, path = "/v1/locks/{key}/events", tag = "events",
    params(("key" = String, Path, description = "1 to 512 bytes of UTF-8, percent-encoded", example = "orders"), EventsQuery),
    responses(
        (status = 200, description = "Events as they happen; `data` of each is as here.", body = EventAnswer, content_type = "text/event-stream"),
        (status = 400, description = "`invalid-request`, `invalid-key`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`history-off`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `shutting-down`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn events(context: &Context, key: &str, uri: &Uri, headers: &HeaderMap) -> Result<Response, Problem> {
    let address = path::address(&context.app, key)?;
    let query: EventsQuery = query::parse(uri)?;
    stream_of(context, Watched::Key(address.key), query.after.as_deref(), headers).await
}

/// Watch all locks, or those whose keys have a prefix.
#[utoipa::path(
    get, path = "/v1/events", tag = "events", params(AllEventsQuery),
    responses(
        (status = 200, description = "Events as they happen; `data` of each is as here.", body = EventAnswer, content_type = "text/event-stream"),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`history-off`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 501, description = "`only-keys-are-watched`: the locks live in a Redis Cluster", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`overloaded`, `store-unavailable`, `shutting-down`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn all_events(State(context): State<Shared>, uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    let query: AllEventsQuery = query::parse(&uri)?;
    let prefix = query.prefix.unwrap_or_default();
    if !prefix.is_empty() {
        Key::parse(&prefix).map_err(|error| Problem::field("prefix", error))?;
    }
    stream_of(&context, Watched::Prefix(prefix), query.after.as_deref(), &headers).await
}

async fn stream_of(
    context: &Context,
    watched: Watched,
    after: Option<&str>,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    check_kept(context)?;
    let resumed = headers.get("last-event-id").map(|id| id.to_str().unwrap_or("?"));
    let after = match resumed {
        Some(id) => parse_cursor("Last-Event-ID", Some(id))?,
        None => parse_cursor("after", after)?,
    };
    let watch = context.locks.watch(&context.app, watched, after).await;
    let watch = watch.map_err(|failure| Problem::of_failure(&failure))?;
    let stream = Sse::new(sent(watch)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // nginx would hold events back until its buffer is full.
    Ok(([("x-accel-buffering", "no")], stream).into_response())
}

/// Begins with an id alone, and has one wherever only other keys' events have passed by: a client that comes back with it
/// misses nothing and looks at nothing twice.
fn sent(watch: Watch) -> impl Stream<Item = Result<Sent, Infallible>> {
    let begun = stream::once(std::future::ready(Ok(seen(&watch))));
    let batches = stream::unfold(watch, |mut watch| async move {
        let events = watch.next().await?;
        let mut frames: Vec<Sent> = events.iter().map(sent_event).collect();
        if frames.is_empty() {
            frames.push(seen(&watch));
        }
        Some((frames, watch))
    });
    begun.chain(batches.flat_map(|frames| stream::iter(frames.into_iter().map(Ok))))
}

fn seen(watch: &Watch) -> Sent {
    Sent::default().id(watch.seen().to_string())
}

fn sent_event(event: &LoggedEvent) -> Sent {
    let data = serde_json::to_string(&answer(event)).unwrap_or_default();
    Sent::default().id(event.cursor.to_string()).event(event.event.kind.as_str()).data(data)
}

fn check_kept(context: &Context) -> Result<(), Problem> {
    if context.locks.keeps_history() {
        return Ok(());
    }
    Err(Problem::new(Code::HistoryOff, "This node keeps no history and tells no events."))
}

fn parse_cursor(field: &str, text: Option<&str>) -> Result<Option<EventCursor>, Problem> {
    text.map(|text| text.parse().map_err(|error| Problem::field(field, error))).transpose()
}

fn answer(logged: &LoggedEvent) -> EventAnswer {
    let event = &logged.event;
    EventAnswer {
        id: logged.cursor.to_string(),
        kind: event.kind.as_str(),
        key: logged.address.key.as_str().to_owned(),
        at: rfc3339(event.at),
        owner: event.owner.as_ref().map(|owner| owner.as_str().to_owned()),
        mode: event.mode.as_str(),
        permits: Some(event.mode.permits()).filter(|permits| *permits > 0),
        token: Some(event.token).filter(|token| *token > 0),
        waited_ms: event.waited_ms,
        held_ms: event.held_ms,
        expires_at: event.expires_at.map(rfc3339),
        reason: event.note.reason.as_deref().map(str::to_owned),
        by: event.note.by.as_ref().map(|by| by.as_str().to_owned()),
    }
}
