//! The error codes: one table. Each has a section in docs/ERRORS.md. No other module of `http` knows the status of a refusal.

use axum::http::StatusCode;

/// One row of the table.
pub struct CodeInfo {
    pub name: &'static str,
    pub status: StatusCode,
    pub title: &'static str,
}

macro_rules! codes {
    ($($code:ident: $name:literal, $status:ident, $title:literal;)+) => {
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
                    },)+
                }
            }
        }
    };
}

codes! {
    // Requests
    InvalidRequest: "invalid-request", BAD_REQUEST, "The request is not valid";
    InvalidKey: "invalid-key", BAD_REQUEST, "The key is not valid";
    InvalidTicket: "invalid-ticket", BAD_REQUEST, "The ticket is not valid";
    ForeignOrigin: "foreign-origin", FORBIDDEN, "The request comes from a web page of another origin";
    ForeignHost: "foreign-host", FORBIDDEN, "The node does not have this host name";
    BodyTooLarge: "body-too-large", PAYLOAD_TOO_LARGE, "The body is too large";
    UnsupportedEncoding: "unsupported-encoding", UNSUPPORTED_MEDIA_TYPE, "The body is encoded";
    BodyTimeout: "body-timeout", BAD_REQUEST, "The body did not arrive in time";
    Unauthorized: "unauthorized", UNAUTHORIZED, "The request has no valid API key";
    Forbidden: "forbidden", FORBIDDEN, "The API key does not permit this";
    NotFound: "not-found", NOT_FOUND, "The path does not exist";
    MethodNotAllowed: "method-not-allowed", METHOD_NOT_ALLOWED, "The path does not have this method";
    // Locks
    LockHeld: "lock-held", LOCKED, "The lock is held";
    LockReserved: "lock-reserved", LOCKED, "The lock is free, but reserved for the queue";
    LockDelayed: "lock-delayed", LOCKED, "The lock is not granted for some time";
    LockClosed: "lock-closed", LOCKED, "The key is closed";
    WaitTimeout: "wait-timeout", LOCKED, "The wait ended without the lock";
    LeaseIdReused: "lease-id-reused", CONFLICT, "The lease id belongs to another lease";
    LimitMismatch: "limit-mismatch", CONFLICT, "The key has another limit of permits";
    KeyFull: "key-full", CONFLICT, "The key has no space for another lease";
    UpgradeBlocked: "upgrade-blocked", CONFLICT, "Other leases share the lock";
    LeaseLost: "lease-lost", GONE, "The lease has ended";
    StaleToken: "stale-token", PRECONDITION_FAILED, "The token is out of date";
    HistoryOff: "history-off", NOT_FOUND, "No history is kept";
    // Operations
    OperationInProgress: "operation-in-progress", CONFLICT, "Another attempt runs";
    OperationDuplicate: "operation-duplicate", CONFLICT, "The operation has been done";
    OperationUnknown: "operation-unknown", CONFLICT, "The operation may have been done";
    IdCollision: "id-collision", UNPROCESSABLE_ENTITY, "Other contents have this id";
    ContentsMismatch: "contents-mismatch", UNPROCESSABLE_ENTITY, "The operation has another `checked`";
    OutcomeConflict: "outcome-conflict", CONFLICT, "The attempt has another outcome";
    OperationSuperseded: "operation-superseded", CONFLICT, "The attempt has lost the operation";
    OperationEnded: "operation-ended", CONFLICT, "The attempt has ended";
    StampMismatch: "stamp-mismatch", FORBIDDEN, "The stamp does not belong to this operation";
    OperationNotFound: "operation-not-found", NOT_FOUND, "The operation does not exist";
    OperationNotClaimed: "operation-not-claimed", CONFLICT, "The operation is free but was not claimed";
    BatchRefused: "batch-refused", CONFLICT, "Some operations of the batch may not proceed";
    // Engines
    UnknownEngine: "unknown-engine", NOT_FOUND, "The engine does not exist";
    EngineUnreachable: "engine-unreachable", CONFLICT, "The engine does not answer";
    EngineInDoubt: "engine-in-doubt", CONFLICT, "The active engine may still be in use";
    EngineNotStopped: "engine-not-stopped", CONFLICT, "The active engine answers";
    EnginesUndecided: "engines-undecided", SERVICE_UNAVAILABLE, "The switch is not decided";
    // Apps and API keys
    UnknownApp: "unknown-app", NOT_FOUND, "The app does not exist";
    UnknownApiKey: "unknown-api-key", NOT_FOUND, "The API key does not exist";
    AppNotEmpty: "app-not-empty", CONFLICT, "The app is not empty";
    AccessFull: "access-full", CONFLICT, "There are too many apps or API keys";
    // The service
    QuotaReached: "quota-reached", TOO_MANY_REQUESTS, "The app has reached a quota";
    Overloaded: "overloaded", SERVICE_UNAVAILABLE, "The node is overloaded";
    StoreUnavailable: "store-unavailable", SERVICE_UNAVAILABLE, "The store is not available";
    StateUnreadable: "state-unreadable", INTERNAL_SERVER_ERROR, "The state in the store cannot be read";
    OutcomeUnknown: "outcome-unknown", SERVICE_UNAVAILABLE, "The request may or may not have been carried out";
    ShuttingDown: "shutting-down", SERVICE_UNAVAILABLE, "The node is shutting down";
    InternalError: "internal-error", INTERNAL_SERVER_ERROR, "Internal error";
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
