//! The rules of the idempotency gate: a call before an operation, a call after it, and never a silent second run.
//!
//! One [`OperationRecord`] per operation id moves through four phases. [`step()`] is the only thing that moves it.
//!
//! ```text
//!              pre                      post success
//!   (absent) ───────► started ────────────────────────► succeeded ──retention──► (absent)
//!       ▲              │  ▲ │                               ▲
//!       │              │  │ └──post unknown──► unknown ─────┤ post success
//!       │      failure │  │ pre                             │ (the same stamp, or a person)
//!       └──────────── vacant ◄──────────────── post failure ┘
//! ```
//!
//! A passed lease is not a phase but a reading of `started`: the next pre either re-enters it (`on_expiry: retry`) or
//! gets the answer that the outcome is unknown (`block`). A vacant record stops no caller. It is kept for a few minutes after the
//! operation was forgotten, so that late and repeated posts of attempts that have ended still get a true answer.

mod await_end;
mod claim;
mod contents;
mod description;
mod digest;
mod enter;
mod expiry;
mod forget;
mod give_back;
mod go;
mod heartbeat;
mod idempotency_key;
mod names;
mod numbers;
mod outcome;
mod payload;
mod post;
mod pre;
mod record;
mod reenter;
mod resolve;
mod step;

pub use claim::{Claim, Command, HoldOff, Post, Report, Resolve};
pub use contents::{Canonical, ContentsError, NUMBER_BOUND, check_result, says_nothing};
pub use description::{CONTENTS_KEPT_MAX_BYTES, Description};
pub use digest::{Fingerprint, OperationId, Sha256Digest, Stamp};
pub use idempotency_key::{IDEMPOTENCY_KEY_MAX_BYTES, idempotency_key};
pub use names::{
    ATTEMPT_ID_MAX_BYTES, AttemptId, LABEL_MAX_BYTES, Label, OPERATION_MAX_BYTES, OperationAddress, OperationName,
};
pub use outcome::{Duplicate, Go, Outcome, Posted, UnknownCause};
pub use payload::Payload;
pub use record::{
    Durability, EARLIER_MAX, Earlier, Ending, OnExpiry, OperationRecord, Phase, RESULT_MAX_BYTES, RETENTION_MS_DEFAULT,
    Replaced, Resolution, Retention, Started, State, Succeeded,
};
pub use step::{Step, step};

#[cfg(test)]
mod tests;
