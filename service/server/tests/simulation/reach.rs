//! What the rules have answered, and what nodes have made of engine records, by name: each must occur in the default runs.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Once};

use latchgate_core::gate;
use latchgate_core::lock::{Command, Outcome, Refusal, Revoke};
use latchgate_node::locks::{Acquired, Refused};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::log::Log;

/// A name for each value, and all names. A new variant has no name, and does not compile.
macro_rules! names {
    ($function:ident, $all:ident, $type:ty; $($pattern:pat => $name:literal,)*) => {
        pub const $all: &[&str] = &[$($name),*];
        pub fn $function(value: &$type) -> &'static str {
            match value { $($pattern => $name,)* }
        }
    };
}

names! { acquired, ACQUIRED, Acquired;
    Acquired::Outcome(Outcome::Granted(_), _) => "acquire: granted",
    Acquired::Refused(Refused { why: Refusal::Held, .. }) => "acquire: held",
    Acquired::Refused(Refused { why: Refusal::GroupAtLimit, .. }) => "acquire: group at its limit",
    Acquired::Refused(Refused { why: Refusal::Reserved, .. }) => "acquire: reserved",
    Acquired::Refused(Refused { why: Refusal::Delayed(_), .. }) => "acquire: delayed",
    Acquired::Refused(Refused { why: Refusal::HeldOff(_), .. }) => "acquire: held off",
    Acquired::Refused(Refused { why: Refusal::Closed, .. }) => "acquire: closed",
    Acquired::Refused(Refused { why: Refusal::WaitTimeout, .. }) => "acquire: wait has ended",
    Acquired::Outcome(Outcome::LimitMismatch(_), _) => "acquire: limit mismatch",
    Acquired::Outcome(Outcome::UpgradeBlocked, _) => "acquire: upgrade blocked",
    Acquired::Outcome(Outcome::LeaseLost(_), _) => "acquire: lease lost",
    Acquired::WaitFailed { .. } => "acquire: wait failed",
    // Only probes of multilocks; a key that has no space left, which takes very many leases; and outcomes of other commands.
    Acquired::Notified | Acquired::Outcome(..) => "multilock granted",
}

names! { renewed, RENEWED, Outcome;
    Outcome::Renewed(_) => "renew: renewed",
    Outcome::LeaseLost(_) => "renew: lease lost",
    // Not of a renewal.
    _ => "renew: renewed",
}

names! { released, RELEASED, Outcome;
    Outcome::Released { .. } => "release: released",
    Outcome::AlreadyReleased => "release: released before",
    Outcome::LeaseLost(_) => "release: lease lost",
    // Not of a release.
    _ => "release: released",
}

names! { commanded, COMMANDED, (&Command, &Outcome);
    (_, Outcome::LimitSet { .. }) => "set limit: set",
    (Command::Revoke(Revoke { grace_ms: 1.., .. }), Outcome::Revoking { leases: 1.., .. }) => "revoke: with grace",
    (_, Outcome::Revoking { leases: 1.., .. }) => "revoke: at once",
    (_, Outcome::Revoking { .. }) => "revoke: no lease",
    (_, Outcome::Forced { leases: 1.. }) => "force: forced",
    (_, Outcome::Forced { .. }) => "force: no lease",
    (_, Outcome::Closed(_)) => "close: closed",
    (_, Outcome::Opened { was_closed: true }) => "open: opened",
    (_, Outcome::Opened { was_closed: false }) => "open: was open",
    (_, Outcome::Fenced) => "fence: passed",
    (_, Outcome::StaleToken { .. }) => "fence: stale token",
    (Command::Fence(_), Outcome::Refused(Refusal::HeldOff(_))) => "fence: held off",
    // Not by `Locks::command`.
    (_, Outcome::Granted(_) | Outcome::Refused(_) | Outcome::LeaseIdReused | Outcome::KeyFull(_) | Outcome::LimitMismatch(_)
        | Outcome::UpgradeBlocked | Outcome::Renewed(_) | Outcome::Released { .. } | Outcome::AlreadyReleased | Outcome::LeaseLost(_) | Outcome::Noted)
        => "acquire: granted",
}

names! { pre, PRE, gate::Outcome;
    gate::Outcome::Go(gate::Go { repeated: true, .. }) => "pre: repeated go",
    gate::Outcome::Go(gate::Go { reentry: true, .. }) => "pre: re-entry",
    gate::Outcome::Go(gate::Go { possibly_repeated: true, .. }) => "pre: possibly repeated go",
    gate::Outcome::Go(_) => "pre: go",
    gate::Outcome::InProgress { .. } => "pre: in progress",
    gate::Outcome::Duplicate(_) => "pre: duplicate",
    gate::Outcome::Unknown { cause: gate::UnknownCause::LeasePassed { .. }, .. } => "pre: lease passed",
    gate::Outcome::Unknown { cause: gate::UnknownCause::MayBeLost { .. }, .. } => "pre: may be lost",
    gate::Outcome::Unknown { cause: gate::UnknownCause::Reported { .. }, .. } => "pre: reported unknown",
    gate::Outcome::ContentsMismatch => "pre: contents mismatch",
    // Two texts with one MD5 are not to be had; the other outcomes are not those of a pre.
    _ => "pre: go",
}

names! { reported, REPORTED, gate::Outcome;
    gate::Outcome::Posted(gate::Posted { replayed: true, .. }) => "post: replayed",
    gate::Outcome::Posted(gate::Posted { late: true, .. }) => "post: late",
    gate::Outcome::Posted(_) => "post: posted",
    gate::Outcome::OutcomeConflict { .. } => "post: conflict",
    gate::Outcome::Superseded { counted: true, .. } => "post: superseded and counted",
    gate::Outcome::Superseded { .. } => "post, heartbeat: superseded",
    gate::Outcome::StampMismatch => "post, heartbeat: stamp mismatch",
    gate::Outcome::NotFound => "post, heartbeat: not found",
    gate::Outcome::Beating { late: true, .. } => "heartbeat: late",
    gate::Outcome::Beating { .. } => "heartbeat: beating",
    gate::Outcome::Ended { .. } => "heartbeat: ended",
    // Not those of a post or a heartbeat.
    _ => "post: posted",
}

thread_local!(static LOG: RefCell<Option<Arc<Log>>> = const { RefCell::new(None) });

/// From now on, what nodes of this thread make of engine records is counted in this log, by the reason.
pub fn count_in(log: &Arc<Log>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Decisions).unwrap());
    LOG.set(Some(Arc::clone(log)));
}

struct Decisions;

struct Why;

impl Visit for Why {
    fn record_str(&mut self, field: &Field, value: &str) {
        static NAMES: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
        if field.name() == "why" {
            let mut names = NAMES.lock().unwrap();
            if !names.contains(value) {
                names.insert(value.to_owned().leak());
            }
            let name = *names.get(value).unwrap();
            LOG.with_borrow(|log| log.iter().for_each(|log| log.saw(name)));
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for Decisions {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target() == "latchgate_node::engines::pair"
            && metadata.fields().field("why").is_some()
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Why);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
