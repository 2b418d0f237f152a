//! Every fault, with its bounds: the longest time in s without a grant of one of the keys, and without an operation done. That is the time that
//! the fault itself takes at most, the time that the product may need, and two seconds for a busy machine.

use super::tier::Target::{self, Cluster, Ha, Pair, Sqlite};

pub struct Fault {
    pub name: &'static str,
    pub locks_s: u64,
    pub operations_s: u64,
    pub on: &'static [Target],
    pub action: Action,
    /// Only in runs of ten minutes or more.
    pub is_slow: bool,
    /// Never together with others.
    pub is_single: bool,
}

impl Fault {
    const fn new(name: &'static str, bounds: (u64, u64), on: &'static [Target], action: Action) -> Self {
        Self { name, locks_s: bounds.0, operations_s: bounds.1, on, action, is_slow: false, is_single: false }
    }

    const fn slow(self) -> Self {
        Self { is_slow: true, ..self }
    }

    const fn single(self) -> Self {
        Self { is_single: true, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL.
    Crash(Hit),
    /// A node that ends at such a moment of its work, in a build with the patches of service/testkit/defects/crash.
    CrashPoint(&'static str),
    /// SIGSTOP, for longer than any lease.
    Freeze(Hit),
    RestartNodes,
    /// The target was started with the release before; one node after the other is upgraded. An old one may not be able to start any more.
    Upgrade,
    /// Of one node or of all, as `links` has it.
    Link(&'static str),
    /// Set for itself while the part runs, by so many seconds, and set back.
    Clock(Hit, i64),
    Drift(Hit),
    DiskFull,
    /// A setting, its value for a while, and the one before.
    Postgres(&'static str, &'static str, &'static str),
    Redis(&'static str, &'static str, &'static str),
    NoSnapshots,
    AsynchronousCommits,
    NoAppendOnly,
    Back(&'static str),
    Recover,
    /// Sessions are ended.
    Terminate,
    LockRow,
    Guard,
    Vanish,
    Switch(Switch),
    Primary(Primary),
    Standby,
    Master,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// One of the nodes.
    Node,
    /// The other clients.
    Clients,
    Part(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    Planned,
    Guarded,
    GivenUp,
    Forced,
    Operations,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primary {
    PostgresKilled,
    PatroniKilled,
    MachineKilled,
    Frozen,
    SwitchedOver,
}

const ALL: &[Target] = &[Cluster, Sqlite, Pair, Ha];
const FRONT: &[Target] = &[Cluster, Pair, Ha];
const STORES: &[Target] = &[Cluster, Pair];
const POSTGRES: Hit = Hit::Part("postgres");
const REDIS: Hit = Hit::Part("redis");
const NGINX: Hit = Hit::Part("nginx");

pub const UPGRADE: &str = "old binary";

pub const FAULTS: &[Fault] = &[
    // The longest recovery is that of the node of the first turn: 5.5 s.
    Fault::new("crash node", (9, 9), ALL, Action::Crash(Hit::Node)),
    Fault::new("crash clients", (3, 3), ALL, Action::Crash(Hit::Clients)),
    Fault::new("crash postgres", (9, 9), STORES, Action::Crash(POSTGRES)),
    Fault::new("crash redis", (12, 8), STORES, Action::Crash(REDIS)),
    Fault::new("crash nginx", (6, 6), FRONT, Action::Crash(NGINX)),
    Fault::new("crash haproxy", (12, 12), &[Ha], Action::Crash(Hit::Part("haproxy"))),
    Fault::new("crash etcd-2", (12, 12), &[Ha], Action::Crash(Hit::Part("etcd-2"))),
    Fault::new("crash sentinel-2", (12, 12), &[Ha], Action::Crash(Hit::Part("sentinel-2"))),
    Fault::new("crash-point before-commit", (9, 9), ALL, Action::CrashPoint("before-commit")),
    Fault::new("crash-point after-commit", (9, 9), ALL, Action::CrashPoint("after-commit")),
    Fault::new("crash-point before-notify", (9, 9), ALL, Action::CrashPoint("before-notify")),
    Fault::new("crash-point before-commit-of-many", (9, 9), ALL, Action::CrashPoint("before-commit-of-many")),
    Fault::new("crash-point after-commit-of-many", (9, 9), ALL, Action::CrashPoint("after-commit-of-many")),
    Fault::new("crash-point before-write", (9, 9), ALL, Action::CrashPoint("before-write")),
    Fault::new("crash-point after-write", (9, 9), ALL, Action::CrashPoint("after-write")),
    Fault::new("crash-point before-answer", (9, 9), ALL, Action::CrashPoint("before-answer")),
    // Leases last for 3 s at most.
    Fault::new("freeze node", (14, 14), ALL, Action::Freeze(Hit::Node)),
    Fault::new("freeze clients", (3, 3), ALL, Action::Freeze(Hit::Clients)),
    Fault::new("freeze postgres", (14, 14), STORES, Action::Freeze(POSTGRES)),
    Fault::new("freeze redis", (14, 14), STORES, Action::Freeze(REDIS)),
    Fault::new("freeze nginx", (14, 14), FRONT, Action::Freeze(NGINX)),
    Fault::new("restart nodes", (9, 9), ALL, Action::RestartNodes),
    Fault::new(UPGRADE, (9, 9), &[Cluster, Sqlite, Pair], Action::Upgrade),
    // An undecided call is given up after --store-timeout (0.8 s); a session that the store believes to be open keeps its row locks for 2 s.
    Fault::new("link delay 60", (6, 6), STORES, Action::Link("delay 60")),
    Fault::new("link delay 1500", (12, 12), STORES, Action::Link("delay 1500")),
    Fault::new("link jitter 800", (12, 12), STORES, Action::Link("jitter 800")),
    Fault::new("link hold", (14, 14), STORES, Action::Link("hold")),
    Fault::new("link hold-requests", (14, 14), STORES, Action::Link("hold-requests")),
    Fault::new("link hold-answers", (14, 14), STORES, Action::Link("hold-answers")),
    Fault::new("link half-open", (12, 12), STORES, Action::Link("half-open")),
    Fault::new("link cut", (12, 12), STORES, Action::Link("cut")),
    // The nodes' own clocks count for nothing. (With SQLite, what a node has read of it at the start.)
    Fault::new("clock node +5", (3, 3), ALL, Action::Clock(Hit::Node, 5)),
    Fault::new("clock node -5", (3, 3), ALL, Action::Clock(Hit::Node, -5)),
    Fault::new("clock node +3600", (3, 3), ALL, Action::Clock(Hit::Node, 3_600)),
    Fault::new("clock node -3600", (3, 3), ALL, Action::Clock(Hit::Node, -3_600)),
    // That of a server is everything: when it jumps ahead, nodes hold off for as long as it has jumped; set back, leases last longer.
    Fault::new("clock postgres +5", (14, 14), STORES, Action::Clock(POSTGRES, 5)),
    Fault::new("clock postgres -5", (14, 14), STORES, Action::Clock(POSTGRES, -5)),
    Fault::new("clock redis +5", (14, 14), STORES, Action::Clock(REDIS, 5)),
    Fault::new("clock redis -5", (14, 14), STORES, Action::Clock(REDIS, -5)),
    Fault::new("clock postgres +3600", (16, 16), STORES, Action::Clock(POSTGRES, 3_600)).slow().single(),
    Fault::new("clock postgres -3600", (16, 16), STORES, Action::Clock(POSTGRES, -3_600)).slow().single(),
    Fault::new("clock redis +3600", (16, 16), STORES, Action::Clock(REDIS, 3_600)).slow().single(),
    Fault::new("clock redis -3600", (16, 16), STORES, Action::Clock(REDIS, -3_600)).slow().single(),
    Fault::new("drift postgres", (3, 3), STORES, Action::Drift(POSTGRES)),
    Fault::new("drift redis", (3, 3), STORES, Action::Drift(REDIS)),
    Fault::new("drift node", (3, 3), ALL, Action::Drift(Hit::Node)),
    // Stores that cannot or do not write, and settings that change under way.
    Fault::new("disk full", (14, 14), ALL, Action::DiskFull),
    Fault::new(
        "refuse postgres read-only",
        (9, 9),
        STORES,
        Action::Postgres("default_transaction_read_only", "on", "off"),
    ),
    Fault::new("refuse redis no-replicas", (9, 9), STORES, Action::Redis("min-replicas-to-write", "1", "0")),
    Fault::new("refuse redis no-memory", (9, 9), STORES, Action::Redis("maxmemory", "1", "0")),
    Fault::new("refuse redis no-snapshots", (9, 9), STORES, Action::NoSnapshots),
    // Nodes that find one of these off answer nothing that needs it.
    Fault::new("settings postgres synchronous_commit", (14, 14), STORES, Action::AsynchronousCommits),
    Fault::new("settings postgres fsync", (9, 9), STORES, Action::Postgres("fsync", "off", "on")),
    Fault::new("settings postgres full_page_writes", (9, 9), STORES, Action::Postgres("full_page_writes", "off", "on")),
    Fault::new("settings redis appendonly", (18, 12), STORES, Action::NoAppendOnly).single(),
    // With no memory left, Redis would forget records then; nodes say so (latchgate_may_forget).
    Fault::new(
        "settings redis maxmemory-policy",
        (3, 3),
        STORES,
        Action::Redis("maxmemory-policy", "allkeys-lru", "noeviction"),
    )
    .single(),
    Fault::new("back redis", (18, 12), STORES, Action::Back("redis")).single(),
    Fault::new("back postgres", (24, 24), &[Cluster], Action::Back("postgres")).single(),
    Fault::new("back sqlite", (24, 24), &[Sqlite], Action::Back("sqlite")).single(),
    Fault::new("recover postgres", (24, 24), STORES, Action::Recover).single(),
    // Sessions and clients that are in the way.
    Fault::new("terminate backends", (5, 5), STORES, Action::Terminate),
    // Only the locked key waits.
    Fault::new("lock a row", (9, 3), STORES, Action::LockRow),
    Fault::new("guard", (3, 3), &[Cluster], Action::Guard),
    Fault::new("vanish", (3, 3), ALL, Action::Vanish),
    Fault::new("switch planned", (9, 9), &[Pair], Action::Switch(Switch::Planned)),
    Fault::new("switch guarded", (14, 9), &[Pair], Action::Switch(Switch::Guarded)).single(),
    Fault::new("switch given-up", (24, 24), &[Pair], Action::Switch(Switch::GivenUp)).single(),
    Fault::new("switch forced", (24, 24), &[Pair], Action::Switch(Switch::Forced)).single(),
    // That of fast operations, there and back.
    Fault::new("switch operations", (3, 9), &[Cluster], Action::Switch(Switch::Operations)),
    // Patroni replaces a primary that does not answer after 20 s, the Sentinels a master after five.
    Fault::new("primary postgres-killed", (20, 20), &[Ha], Action::Primary(Primary::PostgresKilled)).single(),
    Fault::new("primary patroni-killed", (50, 50), &[Ha], Action::Primary(Primary::PatroniKilled)).single(),
    Fault::new("primary machine-killed", (50, 50), &[Ha], Action::Primary(Primary::MachineKilled)).single(),
    Fault::new("primary frozen", (50, 50), &[Ha], Action::Primary(Primary::Frozen)).single(),
    Fault::new("primary switch-over", (20, 20), &[Ha], Action::Primary(Primary::SwitchedOver)).single(),
    Fault::new("standby", (20, 20), &[Ha], Action::Standby).single(),
    Fault::new("master", (3, 30), &[Ha], Action::Master).single(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_a_name_of_its_own_and_a_line_in_the_readme() {
        let readme = include_str!("../../README.md");
        for (index, fault) in FAULTS.iter().enumerate() {
            assert!(FAULTS[..index].iter().all(|other| other.name != fault.name), "{}", fault.name);
            let kind = fault.name.split(' ').next().unwrap_or_default();
            assert!(readme.contains(&format!("| `{kind}")), "{}", fault.name);
        }
    }
}
