//! The error codes: one table, from which the enum, the status codes, the pages at `/errors/{code}` and `docs/ERRORS.md`
//! are made. Nothing else in Latchgate knows a status code other than 2xx.

use axum::http::StatusCode;

/// One row of the table.
pub struct CodeInfo {
    pub name: &'static str,
    pub status: StatusCode,
    pub title: &'static str,
    /// When the code is sent, and what was or was not done. Text in backticks is code.
    pub happened: &'static str,
    /// What the client should do.
    pub advice: &'static str,
}

macro_rules! codes {
    ($($code:ident: $name:literal, $status:ident, $title:literal, $happened:literal, $advice:literal;)+) => {
        /// Why a request may not proceed. Clients rely on the code's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $($code,)+
        }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$code,)+];

            pub const fn info(self) -> CodeInfo {
                match self {
                    $(Self::$code => CodeInfo {
                        name: $name,
                        status: StatusCode::$status,
                        title: $title,
                        happened: $happened,
                        advice: $advice,
                    },)+
                }
            }
        }
    };
}

codes! {
    // Requests
    InvalidRequest: "invalid-request", BAD_REQUEST,
        "The request is not valid",
        "A field or a query parameter has the wrong type, is out of range or is unknown, the body is not JSON, or the endpoint \
         takes no body. `field` names the field, the parameter, `body` or `path`. Nothing was done.",
        "Correct the request. Unknown fields are refused because a misspelt field would silently mean its default.";
    InvalidKey: "invalid-key", BAD_REQUEST,
        "The key is not valid",
        "A key is 1 to 512 bytes of UTF-8 without control characters, percent-encoded in the path. In the path, a `%` is \
         followed by two hexadecimal digits. Nothing was done.",
        "Correct the key. Slashes, colons, spaces and emoji are allowed once percent-encoded.";
    InvalidTicket: "invalid-ticket", BAD_REQUEST,
        "The ticket is not valid",
        "A ticket is valid for one minute, and only for the wait that it was issued for: the same app, key, mode, permits, \
         priority and `lease_id`. Nothing was done.",
        "Repeat the request that returned the ticket, with the ticket added. Or repeat it without a ticket: the request then \
         joins the end of the queue.";
    ForeignOrigin: "foreign-origin", FORBIDDEN,
        "The request comes from a web page of another origin",
        "A browser has sent the request for a web page that is not this node's: `Sec-Fetch-Site` or `Origin` says so. Such a page \
         may not act on locks and operations. Nothing was done.",
        "Call the node from a program, which sends neither header. If the page is the node's own and a proxy serves it under another \
         name, add that name to `--allowed-hosts`.";
    ForeignHost: "foreign-host", FORBIDDEN,
        "The node does not have this host name",
        "The header `Host` has a name that is not one of the node's, as when the owner of a web page points a name at a node on \
         the reader's machine. IP addresses, names without a dot, `localhost`, and the name in `--listen` are always the node's. \
         Nothing was done.",
        "Call the node by one of those, or add the name to `--allowed-hosts`.";
    BodyTooLarge: "body-too-large", PAYLOAD_TOO_LARGE,
        "The body is too large",
        "The request's body is longer than this server accepts. Nothing was done. The server reads and drops up to 8 MiB of it, so \
         that a client that sends all before it reads gets this answer.",
        "Send a shorter body: a request needs a few hundred bytes. If the `result` of a post is too long, send the post again \
         without it.";
    BodyTimeout: "body-timeout", BAD_REQUEST,
        "The body did not arrive in time",
        "The request's headers arrived, but its body did not. Nothing was done.",
        "Send the whole body at once.";
    Unauthorized: "unauthorized", UNAUTHORIZED,
        "The request has no valid API key",
        "The service needs an API key in the header `Authorization: Bearer …`, and the request has none, or one that is unknown, \
         revoked or expired, or whose app is disabled. A wait or an event stream ends when its API key is revoked. Nothing was \
         done.",
        "Send a valid API key. An operator makes one with `latchgate api-key create`.";
    Forbidden: "forbidden", FORBIDDEN,
        "The API key does not permit this",
        "The API key is valid, but does not have the `scope` that this endpoint needs, or is limited to keys with other \
         `prefixes`. Nothing was done.",
        "Use an API key with this scope and without these limits.";
    NotFound: "not-found", NOT_FOUND,
        "The path does not exist",
        "No endpoint has this path.",
        "See /docs for the endpoints. Send a slash inside a key as %2F.";
    MethodNotAllowed: "method-not-allowed", METHOD_NOT_ALLOWED,
        "The path does not have this method",
        "The path exists, but not with this method. The header `Allow` names those that it has.",
        "See /docs for the endpoints.";
    // Locks
    LockHeld: "lock-held", LOCKED,
        "The lock is held",
        "Another lease holds the lock. `holders` gives each holder's owner, since when it holds the lock, and when its lease \
         expires. You do not hold the lock.",
        "Try again after `retry_after_ms`, or wait in the queue by sending `wait_ms`.";
    LockReserved: "lock-reserved", LOCKED,
        "The lock is free, but reserved for the queue",
        "No lease holds the lock at this moment, but other requests wait for it and come first. You do not hold the lock.",
        "Try again after `retry_after_ms`, or wait in the queue by sending `wait_ms`.";
    LockDelayed: "lock-delayed", LOCKED,
        "The lock is not granted for some time",
        "No known lease holds the lock, but it is not granted yet, for one of three reasons. A lock-delay: the last lease expired \
         and had been acquired with `delay_ms`, so that its holder's work can end before the next holder begins. Or a lease that \
         had been acquired with `min_hold_ms` was released early: the lock stays taken for that long. Or a hold-off: \
         the store may have lost leases, for example in a fail-over, and grants nothing until such leases must have expired. \
         You do not hold the lock.",
        "Try again after `retry_after_ms`, or wait in the queue by sending `wait_ms`.";
    WaitTimeout: "wait-timeout", LOCKED,
        "The wait ended without the lock",
        "The request waited for `waited_ms` and did not get the lock: `wait_ms` has passed, or the node is shutting down. You do \
         not hold the lock and no longer wait for it. A request that only waited until the lock is free (`until=free`) was in no \
         queue and gets no ticket.",
        "Repeat the request with the `ticket` within one minute, at any node: it returns to its position in the queue.";
    LeaseIdReused: "lease-id-reused", CONFLICT,
        "The lease id belongs to another lease",
        "A live lease of this key has this `lease_id`, but another `owner` or another `mode`. Nothing was done.",
        "Send a new random `lease_id` with every acquire. Repeat a `lease_id` only to retry the same acquire.";
    LimitMismatch: "limit-mismatch", CONFLICT,
        "The key has another limit of permits",
        "All requests for permits of a key must agree on its `limit`. The answer's `limit` is the limit in force, null if none \
         is set. The request named another limit, or more permits than the limit. Nothing was done.",
        "Send the limit in force, or none. PUT /v1/locks/{key}/limit changes it.";
    KeyFull: "key-full", CONFLICT,
        "The key has no space for another lease",
        "All leases of a key are kept in one state, which would be `bytes` long with this request: more than `bytes_max`. You do \
         not hold the lock. A revocation is refused in this way if its `reason` and `by` are too long for the leases of the key, \
         and a renewal if its `metadata` are. Nothing was done.",
        "Send less `metadata` and shorter names, release leases that are not needed, or spread the work over several keys. \
         Send a revocation without a `reason`.";
    UpgradeBlocked: "upgrade-blocked", CONFLICT,
        "Other leases share the lock",
        "The owner shares this lock and asked for it exclusively while other leases share it too. The request cannot wait for \
         them: two such requests would wait for each other. The owner still shares the lock.",
        "Release the shared lease and acquire the lock exclusively; the data may change in between. Or acquire it exclusively \
         from the start.";
    LeaseLost: "lease-lost", GONE,
        "The lease has ended",
        "`why` says how: `expired` (it was not renewed in time), `released`, `revoked` (the lock was revoked and the grace \
         period is over), `forced` (an operator ended it), or `unknown` (the key has no record of this lease). `at` is the time \
         of its end. In a call for several leases, `results` says the same for each.",
        "Stop the work that the lock protects: another client may hold the lock, and your work may have overlapped with its \
         work. To continue, acquire the lock again with a new `lease_id`.";
    StaleToken: "stale-token", PRECONDITION_FAILED,
        "The token is out of date",
        "A higher token has been granted or presented for this key, or this token was never granted. `current` is the highest \
         token. The client that sent this token has lost the lock.",
        "Refuse the work that came with this token.";
    HistoryOff: "history-off", NOT_FOUND,
        "No history is kept",
        "The node runs with `--history-retention 0`: it keeps no history of locks and streams no events.",
        "Ask the operator of the service to turn the history on.";
    // Operations
    OperationInProgress: "operation-in-progress", CONFLICT,
        "Another attempt runs",
        "Another attempt has claimed this operation, and its lease runs for `ttl_ms` more. You may not do the operation. \
         Nothing was done. A DELETE of an operation with a started attempt gets this answer, too: the record is still there.",
        "Try again after `retry_after_ms`, or send `wait_ms` with the pre to wait for the end of the attempt. To delete the \
         record of a started attempt, send `force=true`: if that attempt still runs, the operation may be done twice.";
    OperationDuplicate: "operation-duplicate", CONFLICT,
        "The operation has been done",
        "The operation succeeded at `at`, in attempt `attempt`. `result` is the result that its post sent: null if it sent \
         none, or if the result was too long to keep (`result_omitted`). The record is kept until `expires_at`, or forever \
         (`permanent`).",
        "Do not do the operation again. Use `result` as if it were the result of your own work.";
    OperationUnknown: "operation-unknown", CONFLICT,
        "The operation may have been done",
        "An attempt began this operation, and its outcome is unknown. `why` is `lease_passed` (the attempt asked for \
         `on_expiry: block`, and its lease has passed without a post) or `reported` (its post said `unknown`). `at` is when. \
         Or `why` is `record_may_be_lost`: the store may have lost the record, your pre asked for `on_expiry: block`, and \
         `hold_off_ms` is how long the hold-off lasts. You may not do the operation.",
        "Find out whether the work was done. Then post the outcome with the attempt's stamp; or delete the record (DELETE with \
         `force=true`), so that the next pre may proceed.";
    IdCollision: "id-collision", UNPROCESSABLE_ENTITY,
        "Other contents have this id",
        "The id is an MD5, and the record with this id has other contents: their SHA-256 differ. This does not happen by \
         chance: the contents were made to collide. Nothing was done.",
        "Treat the contents as hostile. To proceed, add a field of your own to them.";
    ContentsMismatch: "contents-mismatch", UNPROCESSABLE_ENTITY,
        "The operation has another `checked`",
        "The operation is known with another `checked` value, or without one. Nothing was done.",
        "The two callers disagree about this operation, for example about an amount. Find out which caller is wrong before \
         either proceeds.";
    OutcomeConflict: "outcome-conflict", CONFLICT,
        "The attempt has another outcome",
        "This attempt has already posted another outcome, which is in `recorded` and remains. Nothing was changed.",
        "A client has reported two outcomes of one attempt: look for the defect in that client. To repeat the same outcome is \
         always safe.";
    OperationSuperseded: "operation-superseded", CONFLICT,
        "The attempt has lost the operation",
        "The lease of this attempt passed, or the record was deleted with `force=true`, before the attempt posted its outcome. \
         Another attempt may have the operation now. Nothing was changed; but the first posted success is counted in \
         `suspected_double_runs`, because the operation may have been done twice.",
        "Stop. If the work was done, compare it with the later attempt's: GET /v1/operations?suspect=true lists such \
         operations. To keep attempts from being superseded, send a longer `ttl_ms`, or heartbeats.";
    OperationEnded: "operation-ended", CONFLICT,
        "The attempt has ended",
        "A heartbeat arrived after the attempt had posted its outcome, which is in `recorded`. Nothing was changed.",
        "Stop the heartbeats when the outcome is posted.";
    StampMismatch: "stamp-mismatch", FORBIDDEN,
        "The stamp does not belong to this operation",
        "Only the attempt itself may post its outcome or send heartbeats, and its stamp proves this. The stamp is not of this \
         operation, or of an attempt too old to be on record. Nothing was changed.",
        "Send the `stamp` from the answer to the pre, to the `id` from the same answer.";
    OperationNotFound: "operation-not-found", NOT_FOUND,
        "The operation does not exist",
        "No record has this id: the operation was never claimed, its retention has passed, or its record was deleted. An id \
         is 32 lower-case hexadecimal digits. Nothing was done.",
        "After a post, the outcome is not recorded: if the work was done, the next pre may do it again. To prevent that, claim \
         the operation again and post its success.";
    OperationNotClaimed: "operation-not-claimed", CONFLICT,
        "The operation is free but was not claimed",
        "This operation of a batch could have been claimed, but another operation of the batch could not, and `all_or_nothing` \
         claims all operations or none. The code appears only in the `items` of a refused batch.",
        "Repeat the request without the refused operations, or with `all_or_nothing: false`.";
    BatchRefused: "batch-refused", CONFLICT,
        "Some operations of the batch may not proceed",
        "`items` has the answer to each operation, in the order of the request: a `status` and, if the operation may not \
         proceed, a `code`. With `all_or_nothing` (the default) no new operation is claimed. Items with `status` 200 or 201 \
         are yours and have a `stamp`: do them and post their outcomes.",
        "Read `items`. Duplicates are done; repeat the request for the others.";
    // Engines
    UnknownEngine: "unknown-engine", NOT_FOUND,
        "The engine does not exist",
        "No engine of the locks, or of the gate, has this name, or there is no other engine to switch to. Nothing was done.",
        "GET /v1/admin/engines lists the names.";
    EngineUnreachable: "engine-unreachable", CONFLICT,
        "The engine does not answer",
        "An engine that the request needs does not answer this node, or refuses the change of its engine record: the one to switch to, or the one whose hold-off is to change. If its answer to a write was lost, the change may have been made: see GET /v1/admin/engines.",
        "Start the engine, make it writable, or send the request to a node that reaches it.";
    EngineInDoubt: "engine-in-doubt", CONFLICT,
        "The active engine may still be in use",
        "The active engine does not answer this node. The node cannot tell a dead engine from one that it is cut off from and \
         that other nodes may use. Nothing was done.",
        "If only this node is cut off, send the request to another node. If the engine is dead, make sure that it stays \
         stopped or cut off from all nodes, and repeat the request with `\"stopped\": true`.";
    EngineNotStopped: "engine-not-stopped", CONFLICT,
        "The active engine answers",
        "The request says that the active engine is stopped, but the engine answers. Nothing was done.",
        "Switch without `stopped`: the leases are then copied, and no client has to wait for a hold-off.";
    EnginesUndecided: "engines-undecided", SERVICE_UNAVAILABLE,
        "The switch is not decided",
        "The copy to the other engine was given up, or is not complete after 50 s, or the engine records kept changing. A switch that is not complete may still become so.",
        "See GET /v1/admin/engines, and repeat the request.";
    // Apps and API keys
    UnknownApp: "unknown-app", NOT_FOUND,
        "The app does not exist",
        "No app has this name. Nothing was done.",
        "Create it: POST /v1/admin/apps. GET /v1/admin/apps lists the names.";
    UnknownApiKey: "unknown-api-key", NOT_FOUND,
        "The API key does not exist",
        "No API key of the store has this id. API keys of a node's configuration cannot be revoked by a request. Nothing was done.",
        "GET /v1/admin/api-keys lists the ids.";
    AccessFull: "access-full", CONFLICT,
        "There are too many apps or API keys",
        "The service keeps a bounded number of apps and API keys. Nothing was done.",
        "Revoke API keys that are not used. Revoked ones are counted for 30 days.";
    // The service
    QuotaReached: "quota-reached", TOO_MANY_REQUESTS,
        "The app has reached a quota",
        "The app of the API key uses as much of this node as it may. `quota` is `requests_per_second`, `waiters`, `leases`, \
         `operations` or `event_streams`, `limit` is the app's limit at each node, and `remaining` is less than the request \
         needs. Nothing was done. If the app reaches the quota during a wait, the node gives back the lease that the request got, \
         and the request loses its position. But a request that repeats an earlier one, whose answer was lost, may have been \
         carried out the first time.",
        "Repeat the request after `retry_after_ms`. Release leases and post outcomes: these requests are refused only beyond ten \
         times `requests_per_second`. An operator can change the quotas with `latchgate app quota`.";
    Overloaded: "overloaded", SERVICE_UNAVAILABLE,
        "The node is overloaded",
        "A bounded queue of this node is full; or so many requests wait at this node that the other connections are kept for \
         requests that do not wait; or another session of the store keeps what the request needs locked. Nothing was done.",
        "Try again after `Retry-After`, plus a random time.";
    StoreUnavailable: "store-unavailable", SERVICE_UNAVAILABLE,
        "The store is not available",
        "The node cannot reach its store, or the store refuses to write, for example because its disk is full. \
         `POST …/fence` answers it too during a hold-off, unless a lease with the token is live: the store may have lost a later \
         grant. Nothing was done. Leases stay valid until they expire. If a wait has ended, the answer has a `ticket`.",
        "Try again after `Retry-After`, after a wait with the `ticket`: the request returns to its position in the queue.";
    StateUnreadable: "state-unreadable", INTERNAL_SERVER_ERROR,
        "The state in the store cannot be read",
        "The store has a state for `key`, or a record of this operation, that this version of Latchgate cannot decode: another \
         program or a newer version wrote it, or it is damaged. Nothing was done. Other keys and operations are not affected.",
        "Tell the operator of the service. The operator can restore the state or delete it from the store, once no client relies \
         on it: a record of an operation with `DELETE /v1/operations/{id}?force=true`.";
    OutcomeUnknown: "outcome-unknown", SERVICE_UNAVAILABLE,
        "The request may or may not have been carried out",
        "The node does not know whether the store committed. You may hold the lock, or own the operation, but you may not \
         proceed on that assumption.",
        "Repeat the same request, with the `lease_id` or the `attempt_id` of this answer if it has one: if there was a grant, \
         the answer is the same grant. A post, a heartbeat or a release can simply be repeated.";
    ShuttingDown: "shutting-down", SERVICE_UNAVAILABLE,
        "The node is shutting down",
        "The node completes its running requests and accepts no new waits. Nothing was done.",
        "Repeat the request: a load balancer sends it to another node.";
    InternalError: "internal-error", INTERNAL_SERVER_ERROR,
        "Internal error",
        "The request has hit a defect in Latchgate. It may or may not have been carried out. The log has details under the \
         request id.",
        "Repeat the request with the same `lease_id` or `attempt_id`, and report the defect.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_is_2xx_or_invites_a_blind_retry() {
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
