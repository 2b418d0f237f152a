//! Problem details (RFC 9457): the only place that knows status codes.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::value::{RawValue, to_raw_value};

use crate::runtime::Failure;

/// What went wrong, as a client may rely on it. Each code has a page at `/errors/{code}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidRequest,
    InvalidKey,
    InvalidTicket,
    BodyTooLarge,
    BodyTimeout,
    NotFound,
    MethodNotAllowed,
    HistoryOff,
    OnlyKeysAreWatched,
    LockHeld,
    LockReserved,
    LockDelayed,
    WaitTimeout,
    LeaseIdReused,
    LimitMismatch,
    UpgradeBlocked,
    KeysInDifferentSlots,
    LeaseLost,
    StaleToken,
    OperationInProgress,
    OperationDuplicate,
    OperationUnknown,
    IdCollision,
    ContentsMismatch,
    OutcomeConflict,
    OperationSuperseded,
    OperationEnded,
    StampMismatch,
    OperationNotFound,
    OperationNotClaimed,
    BatchRefused,
    UnknownEngine,
    EngineUnreachable,
    EngineInDoubt,
    EngineNotStopped,
    EnginesUndecided,
    Overloaded,
    StoreUnavailable,
    OutcomeUnknown,
    ShuttingDown,
    InternalError,
}

/// What is fixed about a code.
pub struct CodeInfo {
    pub name: &'static str,
    pub status: StatusCode,
    pub title: &'static str,
    /// For the code's page: when it happens and what to do.
    pub meaning: &'static str,
    pub advice: &'static str,
}

impl Code {
    pub const ALL: [Self; 41] = [
        Self::InvalidRequest,
        Self::InvalidKey,
        Self::InvalidTicket,
        Self::BodyTooLarge,
        Self::BodyTimeout,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::HistoryOff,
        Self::OnlyKeysAreWatched,
        Self::LockHeld,
        Self::LockReserved,
        Self::LockDelayed,
        Self::WaitTimeout,
        Self::LeaseIdReused,
        Self::LimitMismatch,
        Self::UpgradeBlocked,
        Self::KeysInDifferentSlots,
        Self::LeaseLost,
        Self::StaleToken,
        Self::OperationInProgress,
        Self::OperationDuplicate,
        Self::OperationUnknown,
        Self::IdCollision,
        Self::ContentsMismatch,
        Self::OutcomeConflict,
        Self::OperationSuperseded,
        Self::OperationEnded,
        Self::StampMismatch,
        Self::OperationNotFound,
        Self::OperationNotClaimed,
        Self::BatchRefused,
        Self::UnknownEngine,
        Self::EngineUnreachable,
        Self::EngineInDoubt,
        Self::EngineNotStopped,
        Self::EnginesUndecided,
        Self::Overloaded,
        Self::StoreUnavailable,
        Self::OutcomeUnknown,
        Self::ShuttingDown,
        Self::InternalError,
    ];

    pub const fn info(self) -> CodeInfo {
        let (name, status, title, meaning, advice) = match self {
            Self::InvalidRequest => (
                "invalid-request",
                StatusCode::BAD_REQUEST,
                "The request is not valid",
                "A field or a query parameter has the wrong type, is out of range or is not known, or the body is not \
                 JSON. `field` names the culprit. Nothing was done.",
                "Mend the request. Unknown fields are refused because a misspelt one would silently mean its default.",
            ),
            Self::InvalidKey => (
                "invalid-key",
                StatusCode::BAD_REQUEST,
                "The key is not valid",
                "A key is 1 to 512 bytes of UTF-8 without control characters, percent-encoded in the path. Nothing was \
                 done.",
                "Mend the key. Slashes, colons, spaces and emoji are fine once percent-encoded.",
            ),
            Self::InvalidTicket => (
                "invalid-ticket",
                StatusCode::BAD_REQUEST,
                "The ticket is not valid",
                "A ticket is good for a minute, and for the very wait that it was given for: the same app, key, \
                 mode, permits, priority and `lease_id`. Nothing was done.",
                "Repeat the request that ended with the ticket, with the ticket added; or ask again without it, \
                 from the end of the queue.",
            ),
            Self::BodyTooLarge => (
                "body-too-large",
                StatusCode::PAYLOAD_TOO_LARGE,
                "The body is too large",
                "The request's body is longer than this server takes. Nothing was done.",
                "Send less: a request needs a few hundred bytes. A post whose `result` is too long may be sent again without \
                 it.",
            ),
            Self::BodyTimeout => (
                "body-timeout",
                StatusCode::BAD_REQUEST,
                "The body did not arrive in time",
                "The request's header arrived, its body did not. Nothing was done.",
                "Send the whole body at once.",
            ),
            Self::NotFound => (
                "not-found",
                StatusCode::NOT_FOUND,
                "There is nothing here",
                "No endpoint has this path.",
                "See /docs for the endpoints. A slash inside a key should be sent as %2F.",
            ),
            Self::MethodNotAllowed => (
                "method-not-allowed",
                StatusCode::METHOD_NOT_ALLOWED,
                "This endpoint has another method",
                "The path exists, but not with this method. `Allow` names the right one.",
                "See /docs.",
            ),
            Self::HistoryOff => (
                "history-off",
                StatusCode::NOT_FOUND,
                "No history is kept",
                "This service runs with `--history=off`: it keeps no history of locks and tells no events.",
                "Ask whoever runs it to turn the history on.",
            ),
            Self::OnlyKeysAreWatched => (
                "only-keys-are-watched",
                StatusCode::NOT_IMPLEMENTED,
                "Only the events of one key can be watched",
                "The locks live in a Redis Cluster, which has an order of events for each key but none over keys.",
                "Watch keys one by one: GET /v1/locks/{key}/events.",
            ),
            Self::LockHeld => (
                "lock-held",
                StatusCode::LOCKED,
                "Somebody holds the lock",
                "`holders` names who, since when and until when at the latest. You do not hold the lock.",
                "Try again after `retry_after_ms`, or wait in the queue by sending `wait_ms`.",
            ),
            Self::LockReserved => (
                "lock-reserved",
                StatusCode::LOCKED,
                "The lock is free, but others are before you",
                "Nobody holds the lock at this moment; the first in its queue is about to. You do not hold the lock.",
                "Try again after `retry_after_ms`, or wait in the queue by sending `wait_ms`.",
            ),
            Self::LockDelayed => (
                "lock-delayed",
                StatusCode::LOCKED,
                "Nobody gets the lock for a while",
                "Nobody holds the lock, as far as is known. Either its last holder did not give it back in time and had asked for \
                 a lock-delay (`delay_ms`), so that its work may end before anybody else begins; or the database has failed over \
                 and may have forgotten leases, and nothing new is granted until none of them can be live. You do not hold the \
                 lock.",
                "Try again after `retry_after_ms`, or wait in the queue by sending `wait_ms`.",
            ),
            Self::WaitTimeout => (
                "wait-timeout",
                StatusCode::LOCKED,
                "The wait ended without the lock",
                "You waited in the queue for `waited_ms` and did not get the lock: the time was up, or the node is \
                 shutting down. You do not hold the lock, and you are no longer in the queue.",
                "Ask again with the `ticket`, at any node, within a minute: you stand where you stood.",
            ),
            Self::LeaseIdReused => (
                "lease-id-reused",
                StatusCode::CONFLICT,
                "The lease id belongs to another lease",
                "A lease with this `lease_id` is live on this key, under another `owner` or in another `mode`.",
                "Propose a fresh random `lease_id` for every acquire, and repeat it only to retry that same acquire.",
            ),
            Self::LimitMismatch => (
                "limit-mismatch",
                StatusCode::CONFLICT,
                "Not the key's limit of permits",
                "All who use a key as a semaphore must mean the same number of permits. `limit` is the one in \
                 force, null if nobody has said one; you asked with another, or for more permits than there are. \
                 Nothing was done.",
                "Send the limit that is in force, or none. PUT /v1/locks/{key}/limit changes it.",
            ),
            Self::UpgradeBlocked => (
                "upgrade-blocked",
                StatusCode::CONFLICT,
                "Others share the lock with you",
                "You share this lock and asked to have it alone, but others share it too. Waiting for them is not \
                 possible: if one of them asked for the same, you would wait for each other. You still share the \
                 lock.",
                "Release what you share and ask for the lock alone, expecting that others change things in between; \
                 or ask for it alone from the start.",
            ),
            Self::KeysInDifferentSlots => (
                "keys-in-different-slots",
                StatusCode::UNPROCESSABLE_ENTITY,
                "These keys cannot be taken together",
                "The locks live in a Redis Cluster, which changes keys together only if they are in one of its slots. `index` \
                 is that of the first key that is in another slot than the first. Nothing was done.",
                "Give keys that are taken together a common hash tag, in braces: `accounts/{eu}/1` and `accounts/{eu}/2` \
                 are in one slot.",
            ),
            Self::LeaseLost => (
                "lease-lost",
                StatusCode::GONE,
                "The lease is no more",
                "`why` tells how it ended: `expired` (it was not renewed in time), `released`, `revoked` (somebody asked \
                 for the lock back and the grace is over), `forced` (somebody ended it), or `unknown` (this key does not \
                 remember it, or never had it). Of a multilock, `lost` says so key by key. `at` is when, `token` the highest token granted for the key.",
                "Stop what the lock protects: somebody else may hold it by now, and your work may have overlapped \
                 theirs. To go on, acquire again with a fresh `lease_id`.",
            ),
            Self::StaleToken => (
                "stale-token",
                StatusCode::PRECONDITION_FAILED,
                "The token is out of date",
                "A higher token has been granted or presented for this key, or this one was never granted: `current` is the \
                 highest. Whoever sent it has lost the lock.",
                "Do not carry out what came with this token.",
            ),
            Self::OperationInProgress => (
                "operation-in-progress",
                StatusCode::CONFLICT,
                "Another attempt is doing it",
                "Another attempt has claimed this operation and its lease runs for `remaining_ms` more. You may not do \
                 it. Nothing was done; to a forget, that the record is still there.",
                "Ask again after `retry_after_ms`, or send `wait_ms` with the pre to wait for its end. To forget an \
                 attempt that runs, send `force=true`: if it lives, the work may then be done twice.",
            ),
            Self::OperationDuplicate => (
                "operation-duplicate",
                StatusCode::CONFLICT,
                "It has been done",
                "This operation has succeeded: at `at`, in attempt `attempt`. `result` is what its post left, null if \
                 it left none, or one too large to keep (`result_omitted`). It is remembered until `expires_at`, or \
                 for ever (`permanent`).",
                "Do not do it again. Use `result` as if the work had been yours.",
            ),
            Self::OperationUnknown => (
                "operation-unknown",
                StatusCode::CONFLICT,
                "It may have been done",
                "An attempt began this operation and nobody knows how it ended: `why` is `lease_passed` (it asked to \
                 block when its lease passes, and it has) or `reported` (its post said unknown). `at` is when. You may \
                 not do it.",
                "Find out whether the work was done. Then whoever has the attempt's stamp posts the outcome, or a DELETE \
                 with `force=true` forgets the operation, so that the next pre may go.",
            ),
            Self::IdCollision => (
                "id-collision",
                StatusCode::UNPROCESSABLE_ENTITY,
                "Other contents have this id",
                "The id is an MD5, and a record of other contents has the same one: their SHA-256 differ. By chance \
                 that does not happen; somebody has made two texts that collide. Nothing was done.",
                "Treat the contents as hostile. To go on, change them: put a field of your own making into them.",
            ),
            Self::ContentsMismatch => (
                "contents-mismatch",
                StatusCode::UNPROCESSABLE_ENTITY,
                "The same operation with another `checked`",
                "The operation is known, but with another `checked`, or with none, so that yours cannot be compared. \
                 Nothing was done.",
                "One of the two callers is wrong about what this operation is, an amount say. Find out which before \
                 anybody goes on.",
            ),
            Self::OutcomeConflict => (
                "outcome-conflict",
                StatusCode::CONFLICT,
                "This attempt has ended otherwise",
                "This stamp has already reported another outcome, which is in `recorded`, and it stands. Nothing was \
                 changed.",
                "A client has reported two ends of one attempt: look for the defect there. Repeating the same outcome \
                 is always safe.",
            ),
            Self::OperationSuperseded => (
                "operation-superseded",
                StatusCode::CONFLICT,
                "The attempt has lost the operation",
                "The lease of this attempt passed, or the operation was forgotten by force, before its end was \
                 reported: it is another's now, or nobody's. Nothing was changed, except that a success was counted \
                 once in `suspected_double_runs`: the work may have been done twice.",
                "Stop. If the work was done, compare with the attempt that came after: GET /v1/operations?suspect=true \
                 lists such operations. A longer `lease_ms`, or heartbeats, keep an attempt from being superseded.",
            ),
            Self::OperationEnded => (
                "operation-ended",
                StatusCode::CONFLICT,
                "This attempt has ended",
                "A heartbeat came after the attempt had reported its end, which is in `recorded`. Nothing was changed.",
                "Stop the heartbeats once the outcome is posted.",
            ),
            Self::StampMismatch => (
                "stamp-mismatch",
                StatusCode::FORBIDDEN,
                "The stamp is of no attempt of this operation",
                "Only an attempt may report its end or renew its lease, and the stamp proves it. This one is not of \
                 this operation, or of an attempt so old that it is no longer remembered. Nothing was changed.",
                "Send the `stamp` that the pre gave you, to the `id` that came with it.",
            ),
            Self::OperationNotFound => (
                "operation-not-found",
                StatusCode::NOT_FOUND,
                "There is no such operation",
                "No record has this id: it was never claimed, its time is over, or it was forgotten. An id is 32 \
                 lower-case hexadecimal digits. Nothing was done.",
                "To a post: the outcome is not recorded; if the work was done, the next pre may do it again. Claim it \
                 anew if that must not be.",
            ),
            Self::OperationNotClaimed => (
                "operation-not-claimed",
                StatusCode::CONFLICT,
                "Free, but not claimed",
                "This operation of a batch may have gone, but another of the same batch may not, and `all_or_nothing` \
                 claims none unless all may go. It appears only inside the `items` of a refused batch.",
                "Ask for it without the others, or with `all_or_nothing` false.",
            ),
            Self::BatchRefused => (
                "batch-refused",
                StatusCode::CONFLICT,
                "Not all of the batch may proceed",
                "`items` has the answer to each operation, in the order asked: a `status` and, unless it may proceed, \
                 a `code`. With `all_or_nothing` (the default) nothing new is claimed. Items whose `status` is 200 or \
                 201 are yours and have their `stamp`: do them, and post each one's outcome.",
                "Read `items`. Those that are duplicates are done; ask again for the others.",
            ),
            Self::UnknownEngine => (
                "unknown-engine",
                StatusCode::NOT_FOUND,
                "There is no such engine",
                "No engine of the locks, or of the gate, has this name. Nothing was done.",
                "GET /v1/admin/engines names them: those of the locks are those of `--locks`, those of the gate are called by \
                 their kinds.",
            ),
            Self::EngineUnreachable => (
                "engine-unreachable",
                StatusCode::CONFLICT,
                "The engine does not answer",
                "The engine that is to be switched to does not answer this node. Nothing was done.",
                "Start it, or ask a node that reaches it.",
            ),
            Self::EngineInDoubt => (
                "engine-in-doubt",
                StatusCode::CONFLICT,
                "The active engine may still be in use",
                "The active engine does not answer this node. Of two engines, nobody can tell one that is dead from one that \
                 this node is cut off from, and another node may use it. Nothing was done.",
                "If it is only this node, ask another. If the engine is dead, make sure that it stays so (stop it, or cut it \
                 off from all nodes) and repeat the call: for the locks with `\"stopped\": true`, for the gate with \
                 `\"force\": true`. With three engines of locks the nodes find out by themselves.",
            ),
            Self::EngineNotStopped => (
                "engine-not-stopped",
                StatusCode::CONFLICT,
                "The active engine answers",
                "You said that the active engine is stopped for good, but it answers. Nothing was done.",
                "Switch without `stopped`: its leases are then carried over, and nobody has to wait.",
            ),
            Self::EnginesUndecided => (
                "engines-undecided",
                StatusCode::SERVICE_UNAVAILABLE,
                "The switch is not decided",
                "Too few of the engines answer this node, or somebody else has decided on another engine at the same time. The                  switch may be decided yet.",
                "See GET /v1/admin/engines, and repeat the call.",
            ),
            Self::Overloaded => (
                "overloaded",
                StatusCode::SERVICE_UNAVAILABLE,
                "Too much is asked at once",
                "A bounded queue of this node is full. Nothing was done.",
                "Try again after `Retry-After`, with some randomness.",
            ),
            Self::StoreUnavailable => (
                "store-unavailable",
                StatusCode::SERVICE_UNAVAILABLE,
                "The store does not answer",
                "The node cannot reach its database. Nothing was done. Leases that are held stay held until they \
                 expire.",
                "Try again after `Retry-After`.",
            ),
            Self::OutcomeUnknown => (
                "outcome-unknown",
                StatusCode::SERVICE_UNAVAILABLE,
                "It may have been done, or not",
                "The store did not tell whether it committed. You may hold the lock, or the operation may be yours, but you \
                 may not go on as if it were so.",
                "Repeat the same request, with the `lease_id` or the `attempt_id` in this answer if there is one: you get \
                 the same grant if there was one. A post, a heartbeat or a release may simply be repeated.",
            ),
            Self::ShuttingDown => (
                "shutting-down",
                StatusCode::SERVICE_UNAVAILABLE,
                "This node is shutting down",
                "The node ends its running requests and takes on no new waits. Nothing was done.",
                "Repeat the request; a load balancer sends it to another node.",
            ),
            Self::InternalError => (
                "internal-error",
                StatusCode::INTERNAL_SERVER_ERROR,
                "An internal error",
                "A defect in Latchgate. Whether something was done is not known; the log has more under the request id.",
                "Repeat the request with the same `lease_id` or `attempt_id`, and report the defect.",
            ),
        };
        CodeInfo { name, status, title, meaning, advice }
    }
}

/// An answer other than "you may proceed".
#[derive(Clone, Debug)]
pub struct Problem {
    code: Code,
    detail: String,
    more: Vec<(&'static str, Box<RawValue>)>,
    retry_after_ms: Option<u64>,
    allow: Option<&'static str>,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), more: Vec::new(), retry_after_ms: None, allow: None }
    }

    /// A field of the request is wrong; `rule` says what it must be.
    pub fn field(field: &str, rule: impl std::fmt::Display) -> Self {
        Self::new(Code::InvalidRequest, format!("{field} {rule}")).with("field", field)
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Serialize) -> Self {
        // As raw text, the fields keep their order.
        if let Ok(value) = to_raw_value(&value) {
            self.more.push((name, value));
        }
        self
    }

    #[must_use]
    pub fn retry_after_ms(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }

    #[must_use]
    pub fn allow(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    /// Whether the same request may pass later, for no reason of its own.
    pub fn is_transient(&self) -> bool {
        self.code.info().status == StatusCode::SERVICE_UNAVAILABLE
    }

    /// What a failure of the runtime is to a client.
    pub fn of_failure(failure: &Failure) -> Self {
        let (code, detail) = match failure {
            Failure::Overloaded(what) => (Code::Overloaded, (*what).to_owned()),
            // The reason may name hosts or files: it is for the log.
            Failure::StoreUnavailable(_) => {
                (Code::StoreUnavailable, "The store does not answer; nothing was done.".to_owned())
            }
            Failure::OutcomeUnknown(_) => {
                let detail = "The store did not say whether it committed: repeat the request with the same lease_id.";
                (Code::OutcomeUnknown, detail.to_owned())
            }
            Failure::ShuttingDown => (Code::ShuttingDown, "This node is shutting down.".to_owned()),
            // Not of the kind that goes away.
            Failure::KeysApart { index } => {
                let detail =
                    "A Redis Cluster takes keys together only if they are in one slot: give them a common {hash tag}.";
                return Self::new(Code::KeysInDifferentSlots, detail).with("index", index);
            }
            Failure::OnlyKeysAreWatched => {
                return Self::new(Code::OnlyKeysAreWatched, "Locks in a Redis Cluster can only be watched key by key.");
            }
            Failure::NoDurableStore => {
                return Self::field("durability", "must be fast: this service has no store that commits to disk");
            }
        };
        Self::new(code, detail).retry_after_ms(1_000)
    }
}

impl Serialize for Problem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let CodeInfo { name, status, title, .. } = self.code.info();
        let mut body = serializer.serialize_map(None)?;
        body.serialize_entry("type", &format_args!("/errors/{name}"))?;
        body.serialize_entry("title", title)?;
        body.serialize_entry("status", &status.as_u16())?;
        body.serialize_entry("code", name)?;
        body.serialize_entry("detail", &self.detail)?;
        for (name, value) in &self.more {
            body.serialize_entry(name, value)?;
        }
        if let Some(ms) = self.retry_after_ms {
            body.serialize_entry("retry_after_ms", &ms)?;
        }
        body.end()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.info().status;
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(ms) = self.retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000).max(1)));
        }
        if let Some(methods) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(methods));
        }
        response
    }
}

/// The shape of every answer that is not 2xx, for the API's description.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
#[allow(dead_code, reason = "described, not built: see Problem")]
pub struct ProblemBody {
    /// Where the code is explained, relative to the server.
    #[schema(example = "/errors/lock-held")]
    r#type: String,
    #[schema(example = "Somebody holds the lock")]
    title: String,
    #[schema(example = 423)]
    status: u16,
    /// Stable: rely on this.
    #[schema(example = "lock-held")]
    code: String,
    /// For people.
    detail: String,
    /// The field that is wrong (`invalid-request`).
    field: Option<String>,
    /// How long to wait before trying again, in ms; `Retry-After` has it in whole seconds.
    retry_after_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_proceed_is_2xx_and_no_code_invites_a_blind_retry() {
        for code in Code::ALL {
            let status = code.info().status;
            assert!(!status.is_success(), "{code:?}");
            assert!(status != StatusCode::REQUEST_TIMEOUT && status != StatusCode::GATEWAY_TIMEOUT, "{code:?}");
        }
    }

    #[test]
    fn every_code_has_a_name_of_its_own() {
        let names: std::collections::HashSet<_> = Code::ALL.iter().map(|code| code.info().name).collect();
        assert_eq!(names.len(), Code::ALL.len());
    }
}
