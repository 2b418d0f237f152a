//! Which problems each operation may answer, beside those that come from what all handlers share.

use crate::http::endpoint::{Endpoint, Needs};
use crate::http::problem::Code;

/// Any request may get these, so the description names them once.
pub const OF_ALL: [Code; 4] = [Code::InvalidRequest, Code::ForeignOrigin, Code::ForeignHost, Code::InternalError];

/// The codes of an operation, in the order of their table.
pub fn of(&Endpoint { id, method, path, needs, is_of_any_app, .. }: &Endpoint, has_body: bool) -> Vec<Code> {
    let mut codes = own(id).to_vec();
    if path.contains("{key}") {
        codes.push(Code::InvalidKey);
    }
    if has_body {
        codes.extend([Code::BodyTooLarge, Code::BodyTimeout]);
    }
    if needs != Needs::Nothing {
        codes.extend([Code::Unauthorized, Code::Forbidden, Code::StoreUnavailable]);
    }
    if is_of_any_app {
        codes.push(Code::UnknownApp);
    }
    if matches!(needs, Needs::Scope(_)) {
        codes.extend([Code::QuotaReached, Code::Overloaded, Code::StateUnreadable]);
        if method != "GET" {
            codes.push(Code::OutcomeUnknown);
        }
    }
    Code::ALL.iter().copied().filter(|code| codes.contains(code)).collect()
}

fn own(id: &str) -> &'static [Code] {
    use Code as C;
    match id {
        "acquireLock" | "acquireMultilock" => &[
            C::InvalidKey,
            C::InvalidTicket,
            C::LeaseIdReused,
            C::LimitMismatch,
            C::KeyFull,
            C::UpgradeBlocked,
            C::LeaseLost,
            C::LockHeld,
            C::LockReserved,
            C::LockDelayed,
            C::WaitTimeout,
            C::ShuttingDown,
        ],
        "lockTerraformState" => {
            &[C::LeaseIdReused, C::KeyFull, C::LeaseLost, C::LockHeld, C::LockReserved, C::LockDelayed]
        }
        "renewLock" => &[C::KeyFull, C::LeaseLost],
        "releaseLock" | "unlockTerraformState" => &[C::LeaseLost],
        "renewLeases" | "releaseLeases" => &[C::InvalidKey, C::LeaseLost],
        "revokeLock" | "revokeLeases" => &[C::KeyFull],
        "checkLockToken" => &[C::StaleToken],
        "getLock" => &[C::LockHeld, C::LockDelayed, C::WaitTimeout],
        "getLockHistory" => &[C::HistoryOff],
        "watchLock" | "watchLocks" => &[C::HistoryOff, C::ShuttingDown],
        "startOperation" => &[
            C::OperationInProgress,
            C::OperationDuplicate,
            C::OperationUnknown,
            C::IdCollision,
            C::ContentsMismatch,
            C::ShuttingDown,
        ],
        "startOperations" => &[C::BatchRefused, C::ShuttingDown],
        "finishOperation" => &[C::StampMismatch, C::OperationNotFound, C::OperationSuperseded, C::OutcomeConflict],
        "heartbeatOperation" => &[C::StampMismatch, C::OperationNotFound, C::OperationSuperseded, C::OperationEnded],
        "getOperation" => &[C::OperationNotFound],
        "forgetOperation" => &[C::OperationNotFound, C::OperationInProgress, C::OperationUnknown],
        "createApp" => &[C::AccessFull, C::OutcomeUnknown],
        "changeApp" => &[C::UnknownApp, C::OutcomeUnknown],
        "deleteApp" => &[C::UnknownApp, C::AppNotEmpty, C::OutcomeUnknown],
        "createApiKey" => &[C::UnknownApp, C::AccessFull, C::OutcomeUnknown],
        "revokeApiKey" => &[C::UnknownApiKey, C::OutcomeUnknown],
        "switchLocksEngine" | "switchGateEngine" => {
            &[C::UnknownEngine, C::EngineUnreachable, C::EngineInDoubt, C::EngineNotStopped, C::EnginesUndecided]
        }
        "setHoldOff" => &[C::EngineUnreachable],
        "checkReadiness" => &[C::StoreUnavailable],
        _ => &[],
    }
}
