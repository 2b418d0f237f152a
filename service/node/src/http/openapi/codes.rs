//! Which problems each operation may answer, beside those that come from what all handlers share.

use crate::http::endpoint::Endpoint;
use crate::http::problem::Code;

/// Any request may get these, so the description names them once.
pub const OF_ALL: [Code; 14] = [
    Code::InvalidRequest,
    Code::ForeignOrigin,
    Code::ForeignHost,
    Code::BodyTooLarge,
    Code::UnsupportedEncoding,
    Code::BodyTimeout,
    Code::Unauthorized,
    Code::Forbidden,
    Code::QuotaReached,
    Code::Overloaded,
    Code::StoreUnavailable,
    Code::StateUnreadable,
    Code::OutcomeUnknown,
    Code::InternalError,
];

/// The codes of an operation beside these, in the order of their table.
pub fn of(&Endpoint { id, path, .. }: &Endpoint) -> Vec<Code> {
    let is_own = |code: &Code| own(id).contains(code) || (*code == Code::InvalidKey && path.contains("{key}"));
    Code::ALL.iter().copied().filter(is_own).collect()
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
            C::LockClosed,
            C::WaitTimeout,
            C::ShuttingDown,
        ],
        "renewLock" => &[C::KeyFull, C::LeaseLost],
        "releaseLock" => &[C::LeaseLost],
        "renewLeases" | "releaseLeases" => &[C::InvalidKey, C::LeaseLost],
        "revokeLock" => &[C::KeyFull, C::StaleToken],
        "forceLock" => &[C::StaleToken],
        "checkLockToken" => &[C::StaleToken],
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
        "resolveOperation" => &[C::OperationNotFound, C::OperationInProgress, C::OutcomeConflict],
        "forgetOperation" => &[C::OperationNotFound, C::OperationInProgress, C::OperationUnknown],
        "createApp" => &[C::AccessFull],
        "changeApp" => &[C::UnknownApp],
        "deleteApp" => &[C::UnknownApp, C::AppNotEmpty],
        "createApiKey" => &[C::UnknownApp, C::AccessFull],
        "revokeApiKey" => &[C::UnknownApiKey],
        "switchEngine" => {
            &[C::UnknownEngine, C::EngineUnreachable, C::EngineInDoubt, C::EngineNotStopped, C::EnginesUndecided]
        }
        "setHoldOff" => &[C::EngineUnreachable],
        _ => &[],
    }
}
