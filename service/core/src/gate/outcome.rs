//! The outcomes of commands. Contention is an outcome like any other; `http` decides what status it has.

use std::sync::Arc;

use super::{Report, Resolution, Stamp, State};
use crate::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Pre: the caller may do it.
    Go(Go),
    /// Pre: another attempt is doing it. `remaining_ms`: after that its lease has surely passed.
    InProgress { attempt: u32, started_at: Timestamp, lease_until: Timestamp, remaining_ms: u64 },
    /// Pre: it has been done.
    Duplicate(Duplicate),
    /// Pre: it may have been done, and no attempt may go until that is known. Forget: only `force` forgets that.
    Unknown { attempt: u32, cause: UnknownCause },
    /// Pre: the id belongs to other contents: two texts with one MD5.
    IdCollision,
    /// Pre: the id is the same but `checked` is not.
    ContentsMismatch,

    /// Post, resolve: the end is recorded, now or by an earlier call.
    Posted(Posted),
    /// Post, resolve: another end of this attempt is recorded already.
    OutcomeConflict { recorded: Report },
    /// Post, heartbeat: the lease passed and the record is no longer this attempt's. Nothing was changed, except that
    /// a success was counted in `double_runs` the first time (`counted`).
    Superseded { attempt: u32, double_runs: u32, counted: bool },
    /// Post, heartbeat: no attempt of this operation has that stamp.
    StampMismatch,
    /// Post, heartbeat, forget: there is no such operation.
    NotFound,

    /// Heartbeat: the lease now lasts until `lease_until`. `late`: it had passed, but no other attempt had begun.
    Beating { attempt: u32, lease_until: Timestamp, remaining_ms: u64, late: bool },
    /// Heartbeat: this attempt has reported its end.
    Ended { recorded: Report },

    /// Give back: the claim no longer counts, unless a caller relies on it.
    GivenBack,

    /// Forget: done.
    Forgotten { was: State },
    /// Forget: an attempt is running, or its lease has passed and its outcome is unknown; only `force` forgets that.
    StillStarted { attempt: u32, lease_until: Timestamp, remaining_ms: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Go {
    pub stamp: Stamp,
    pub attempt: u32,
    pub lease_until: Timestamp,
    /// How much of the lease is left.
    pub remaining_ms: u64,
    /// An earlier attempt's lease passed: it may have done part of the work.
    pub reentry: bool,
    /// The same attempt has made another claim before, and has this stamp already.
    pub repeated: bool,
    /// The operation had no record, but that of an earlier attempt may have been lost.
    pub possibly_repeated: bool,
    /// For how long records may be missing although an operator lets operations go, in ms.
    pub forced_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    pub attempt: u32,
    pub at: Timestamp,
    /// JSON text, as posted.
    pub result: Option<Arc<str>>,
    pub result_omitted: bool,
    /// None: permanent.
    pub keep_until: Option<Timestamp>,
    /// Not the attempt, but a person has said so.
    pub resolved: Option<Arc<Resolution>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    pub report: Report,
    pub attempt: u32,
    /// The same end had been recorded by an earlier call.
    pub replayed: bool,
    /// The lease had passed, but no other attempt had begun.
    pub late: bool,
    pub result_omitted: bool,
    /// For a success: until when it is kept. None: permanent, or not a success.
    pub keep_until: Option<Timestamp>,
    /// How many superseded attempts have reported a success too.
    pub double_runs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownCause {
    /// The attempt has requested to block when its lease passes, and the lease has passed.
    LeasePassed { at: Timestamp },
    /// There is no record, but the store may have lost it, and the caller requests to block. After `until` the store counts as
    /// complete again.
    MayBeLost { until: Timestamp },
    /// The attempt reported that it does not know.
    Reported { at: Timestamp },
}
