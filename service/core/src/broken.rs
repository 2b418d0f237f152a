//! Defects that a build for tests can have, one at a time: with the feature `broken`, `LATCHGATE_BROKEN=TokenFromMemory` names one.
//! `scripts/sensitivity.sh` shows that tests notice each of them. Without the feature no build has any.

#[cfg(all(feature = "broken", not(debug_assertions)))]
compile_error!("the feature `broken` is for builds of tests: it can switch rules off");

macro_rules! defects {
    ($($(#[$meaning:meta])* $name:ident,)*) => {
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub enum Defect { $($(#[$meaning])* $name,)* }

        #[cfg(feature = "broken")]
        const NAMES: &[(&str, Defect)] = &[$((stringify!($name), Defect::$name),)*];
    };
}

defects! {
    // Stores.
    /// A commit does not compare versions.
    VersionCheck,
    /// Loads and commits do not look at the engine record.
    EpochCheck,
    /// A store in another epoch takes loads and commits, if it is active.
    StaleEpoch,
    /// A commit does not compare the node's clock with the store's.
    ClockGuard,
    /// A frozen engine takes commits while it is copied.
    CopyWithoutFreeze,
    /// A change of the engine record does not compare it with what was read.
    DecisionWithoutCompare,
    /// `latchgate.guard` does not lock the row.
    GuardWithoutRowLock,
    // Leases.
    /// A lease ends 50 ms before its expiry.
    TtlShort,
    /// A node ends a lease at its expiry, by a clock that may be ahead.
    ExpiryWithoutBound,
    /// A release ends the first lease that it finds.
    ReleaseOfAnyLease,
    /// An acquire whose lease id is held is a new request.
    RepetitionIsNew,
    /// An ended lease id is granted again.
    EndedLeaseGranted,
    /// A second owner may nest.
    ReentrancyOfOthers,
    /// A renewal does not stop at the deadline of a revocation.
    RevocationIgnored,
    /// The key's last token does not count.
    TokenFromMemory,
    /// The fence lets all tokens pass.
    FenceOpen,
    /// The fence does not remember the tokens that it lets pass.
    FenceForgets,
    /// A closed key is granted.
    ClosedKeyGrants,
    /// Neither a lock-delay nor a shortest hold keeps the lock.
    LockDelayIgnored,
    // Modes.
    /// One permit more than the limit is granted.
    CapacityOffByOne,
    /// One permit more than the limit of the group is granted.
    GroupLimitOffByOne,
    /// The numbers of the last lease are given again.
    SlotTwice,
    /// A shared lease is granted beside an exclusive one.
    SharedBesideExclusive,
    /// Permits do not stay taken for their shortest hold.
    PermitsNotKept,
    // Queue.
    /// A node publishes no turn.
    TurnForgotten,
    /// A free lock is taken ahead of the turns of other nodes.
    TurnsIgnored,
    /// A returning waiter joins the end of the queue.
    TicketIgnored,
    /// The next node is notified before the commit.
    NotifyBeforeCommit,
    // Nodes.
    /// A cached state decides answers.
    CachedAnswer,
    /// Leases are counted by the node's clock, which is 700 ms ahead.
    NodeTime,
    /// A multilock that is refused keeps the leases that it has got.
    MultilockPartial,
    /// A grant that no client has received is not given back.
    GiveBackDropped,
    /// A give-back ends a later grant of the lease id, too.
    GiveBackOfLaterGrant,
    /// A give-back after a commit of unknown outcome is not written if there is nothing to give back.
    UncertainGiveBackNotWritten,
    /// A commit without an answer counts as refused.
    UnknownIsNo,
    /// An event in ten is not written.
    EventLost,
    // Engines.
    /// During a hold-off, leases are granted.
    HoldOffIgnored,
    /// A hold-off of the engine that is left is not copied.
    HoldOffNotCopied,
    /// A long lease is granted although the engine record does not have its length.
    LeaseMaxNotRaised,
    /// A jump of the store's clock is not noticed.
    JumpIgnored,
    // Gate.
    /// A post or a heartbeat is taken whatever its stamp.
    StampNotCompared,
    /// A claim goes after a success.
    PreAfterSuccess,
    /// A claim goes while another attempt has its lease.
    ClaimIgnoresLease,
    /// A claim that blocks is taken over after its lease.
    BlockIsRetry,
    /// What is carried back replaces what is there.
    CarryBackOverwrites,
    /// Nothing is carried back.
    CarryBackForgotten,
    /// A call that fails begins an outage without a probe.
    OutageWithoutProbe,
}

/// Whether this build has the defect.
#[cfg(not(feature = "broken"))]
#[inline(always)]
pub const fn is(_: Defect) -> bool {
    false
}

/// Whether this process has the defect.
#[cfg(feature = "broken")]
pub fn is(defect: Defect) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<Defect>> = std::sync::LazyLock::new(|| {
        // The binary refuses variables of its own that it does not know.
        let name = std::env::var("LATCHGATE_BROKEN").or_else(|_| std::env::var("TEST_DEFECT")).ok();
        let name = name.filter(|name| !name.is_empty())?;
        let known = NAMES.iter().find(|(known, _)| *known == name);
        Some(known.unwrap_or_else(|| panic!("no defect is called {name}")).1)
    });
    *CHOSEN == Some(defect)
}

/// A moment at which a process can end, as by `kill -9`. Without the feature it never does.
#[cfg(not(feature = "broken"))]
#[inline(always)]
pub const fn crash(_: &'static str) {}

/// Ends the process if the file that `TEST_CRASH` names has the name of this moment, and removes the file.
#[cfg(feature = "broken")]
pub fn crash(moment: &'static str) {
    static FILE: std::sync::LazyLock<Option<std::ffi::OsString>> =
        std::sync::LazyLock::new(|| std::env::var_os("TEST_CRASH"));
    let Some(file) = &*FILE else { return };
    let is_named = std::fs::read_to_string(file).is_ok_and(|named| named.trim_end() == moment);
    if is_named && std::fs::remove_file(file).is_ok() {
        std::process::abort();
    }
}

/// The text of a statement or a script of this build.
#[cfg(not(feature = "broken"))]
#[inline(always)]
pub const fn text(text: &'static str) -> &'static str {
    text
}

/// The text of a statement, a function in Postgres or a script, with the defect of this process.
#[cfg(feature = "broken")]
pub fn text(text: &'static str) -> &'static str {
    let parts = TEXTS.iter().filter(|(defect, part, _)| is(*defect) && text.contains(part));
    parts.fold(text, |text, (_, part, instead)| text.replace(part, instead).leak())
}

/// What stands in place of a part of a text.
#[cfg(any(test, feature = "broken"))]
const TEXTS: &[(Defect, &str, &str)] = &[
    // SQLite.
    (Defect::VersionCheck, "where app = ?1 and key = ?2 and version = ?4", "where app = ?1 and key = ?2"),
    (
        Defect::EpochCheck,
        "where purpose = ?1 and state = ?2 and epoch = ?3",
        "where purpose = ?1 and ?2 > '' and ?3 >= 0",
    ),
    (Defect::StaleEpoch, "and state = ?2 and epoch = ?3)", "and state = ?2 and ?3 >= 0)"),
    // Redis.
    (Defect::VersionCheck, "return version == expected and (", "return version and ("),
    (Defect::EpochCheck, "~= required then", "== nil then"),
    (Defect::ClockGuard, "if ARGV[1] ~= '' and math.abs(now - ARGV[1])", "if false and math.abs(now - ARGV[1])"),
    (Defect::DecisionWithoutCompare, "if revision ~= ARGV[1] then return 0 end", ""),
    // Postgres.
    (Defect::VersionCheck, " and l.version = c.replaces", ""),
    (Defect::EpochCheck, "and r.state = fence.state and r.epoch = fence.epoch", ""),
    (Defect::StaleEpoch, "and r.epoch = fence.epoch", ""),
    (Defect::ClockGuard, "or abs(now - caller_now) > clock_bound", ""),
    (Defect::DecisionWithoutCompare, " and r.revision = $2", ""),
    (Defect::GuardWithoutRowLock, "l.key = key collate \"C\" for share", "l.key = key collate \"C\""),
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn add_texts(dir: &Path, texts: &mut String) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { add_texts(&path, texts) } else { texts.push_str(&fs::read_to_string(path).unwrap()) }
        }
    }

    #[test]
    fn each_part_that_a_defect_replaces_is_in_a_statement_or_a_script() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut texts = String::new();
        for dir in ["migrations", "service/server/src/store"] {
            add_texts(&top.join(dir), &mut texts);
        }
        for (_, part, _) in TEXTS {
            assert!(texts.contains(part), "no text has this part: {part}");
        }
    }
}
