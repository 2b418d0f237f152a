//! Every fault, with its bounds: the longest time in s without a grant of one of the keys, and without an operation done. That is the time that
//! the fault itself takes at most, the time that the product may need, and two seconds for a busy machine.

use futures::future::LocalBoxFuture;
use rand::rngs::StdRng;

use super::Target;
use crate::tier::Kind::{self, Cluster, Ha, Pair, Sqlite};

pub struct Fault {
    pub name: &'static str,
    pub locks_s: u64,
    pub operations_s: u64,
    pub on: &'static [Kind],
    pub when: When,
    /// Returns when the cause is gone.
    pub cause: for<'a> fn(&'a Target, &'a mut StdRng) -> LocalBoxFuture<'a, anyhow::Result<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    /// Never together with others.
    Alone,
    /// The same, and only in runs of ten minutes or more.
    AloneInLongRuns,
}
use When::{Alone, AloneInLongRuns, Always};

const ALL: &[Kind] = &[Cluster, Sqlite, Pair, Ha];
const FRONT: &[Kind] = &[Cluster, Pair, Ha];
const STORES: &[Kind] = &[Cluster, Pair];
const NOT_HA: &[Kind] = &[Cluster, Sqlite, Pair];
const CLUSTER: &[Kind] = &[Cluster];
const SQLITE: &[Kind] = &[Sqlite];
const PAIR: &[Kind] = &[Pair];
const HA: &[Kind] = &[Ha];

pub const UPGRADE: &str = "old binary";
pub const DISK_FULL: &str = "disk full";

/// Each line: name, bounds, targets, when, and the function of faults.rs with its arguments.
macro_rules! faults {
    ($($name:tt $locks:literal $operations:literal $on:ident $when:ident $cause:ident($($argument:expr),*);)*) => {
        pub const FAULTS: &[Fault] = &[$(Fault {
            name: $name,
            locks_s: $locks,
            operations_s: $operations,
            on: $on,
            when: $when,
            cause: |target, random| Box::pin(target.$cause(random, $($argument),*)),
        }),*];
    };
}

faults! {
    // The longest recovery is that of the node of the first turn: 5.5 s.
    "crash node" 9 9 ALL Always crash("node");
    "crash clients" 3 3 ALL Always crash("clients");
    "crash postgres" 9 9 STORES Always crash("postgres");
    "crash redis" 12 8 STORES Always crash("redis");
    "crash nginx" 6 6 FRONT Always crash("nginx");
    "crash haproxy" 12 12 HA Always crash("haproxy");
    "crash etcd-2" 12 12 HA Always crash("etcd-2");
    "crash sentinel-2" 12 12 HA Always crash("sentinel-2");
    // In a build with the patches of service/testkit/defects/crash.
    "crash-point before-commit" 9 9 ALL Always crash_point("before-commit");
    "crash-point after-commit" 9 9 ALL Always crash_point("after-commit");
    "crash-point before-notify" 9 9 ALL Always crash_point("before-notify");
    "crash-point before-commit-of-many" 9 9 ALL Always crash_point("before-commit-of-many");
    "crash-point after-commit-of-many" 9 9 ALL Always crash_point("after-commit-of-many");
    "crash-point before-write" 9 9 ALL Always crash_point("before-write");
    "crash-point after-write" 9 9 ALL Always crash_point("after-write");
    "crash-point before-answer" 9 9 ALL Always crash_point("before-answer");
    // Leases last for 3 s at most.
    "freeze node" 14 14 ALL Always freeze("node");
    "freeze clients" 3 3 ALL Always freeze("clients");
    "freeze postgres" 14 14 STORES Always freeze("postgres");
    "freeze redis" 14 14 STORES Always freeze("redis");
    "freeze nginx" 14 14 FRONT Always freeze("nginx");
    "restart nodes" 9 9 ALL Always restart_nodes();
    "old binary" 9 9 NOT_HA Always upgrade();
    // An undecided call is given up after --store-timeout (0.8 s); a session that the store believes to be open keeps its row locks for 2 s.
    "link delay 60" 6 6 STORES Always break_links("delay 60");
    "link delay 1500" 12 12 STORES Always break_links("delay 1500");
    "link jitter 800" 12 12 STORES Always break_links("jitter 800");
    "link hold" 14 14 STORES Always break_links("hold");
    "link hold-requests" 14 14 STORES Always break_links("hold-requests");
    "link hold-answers" 14 14 STORES Always break_links("hold-answers");
    "link half-open" 12 12 STORES Always break_links("half-open");
    "link cut" 12 12 STORES Always break_links("cut");
    // The nodes' own clocks count for nothing. (With SQLite, what a node has read of it at the start.)
    "clock node +5" 3 3 ALL Always clock_of_node(5);
    "clock node -5" 3 3 ALL Always clock_of_node(-5);
    "clock node +3600" 3 3 ALL Always clock_of_node(3_600);
    "clock node -3600" 3 3 ALL Always clock_of_node(-3_600);
    // That of a server is everything: when it jumps ahead, nodes hold off for as long as it has jumped; set back, leases last longer.
    "clock postgres +5" 14 14 STORES Always clock_of_store("postgres", 5);
    "clock postgres -5" 14 14 STORES Always clock_of_store("postgres", -5);
    "clock redis +5" 14 14 STORES Always clock_of_store("redis", 5);
    "clock redis -5" 14 14 STORES Always clock_of_store("redis", -5);
    "clock postgres +3600" 16 16 STORES AloneInLongRuns clock_of_store("postgres", 3_600);
    "clock postgres -3600" 16 16 STORES AloneInLongRuns clock_of_store("postgres", -3_600);
    "clock redis +3600" 16 16 STORES AloneInLongRuns clock_of_store("redis", 3_600);
    "clock redis -3600" 16 16 STORES AloneInLongRuns clock_of_store("redis", -3_600);
    "drift postgres" 3 3 STORES Always drift("postgres");
    "drift redis" 3 3 STORES Always drift("redis");
    "drift node" 3 3 ALL Always drift("node");
    // Stores that cannot or do not write, and settings that change under way.
    "disk full" 14 14 ALL Always fill_disk();
    "refuse postgres read-only" 9 9 STORES Always setting_of_postgres("default_transaction_read_only", "on", "off");
    "refuse redis no-replicas" 9 9 STORES Always setting_of_redis("min-replicas-to-write", "1", "0");
    "refuse redis no-memory" 9 9 STORES Always setting_of_redis("maxmemory", "1", "0");
    "refuse redis no-snapshots" 9 9 STORES Always no_snapshots();
    "settings postgres synchronous_commit" 14 14 STORES Always asynchronous_commits();
    "settings postgres fsync" 9 9 STORES Always setting_of_postgres("fsync", "off", "on");
    "settings postgres full_page_writes" 9 9 STORES Always setting_of_postgres("full_page_writes", "off", "on");
    "settings redis appendonly" 18 12 STORES Alone no_append_only();
    // With no memory left, Redis would forget records then; nodes say so (latchgate_may_forget).
    "settings redis maxmemory-policy" 3 3 STORES Alone setting_of_redis("maxmemory-policy", "allkeys-lru", "noeviction");
    "back redis" 18 12 STORES Alone put_back("redis");
    "back postgres" 24 24 CLUSTER Alone put_back("postgres");
    "back sqlite" 24 24 SQLITE Alone put_back("sqlite");
    "recover postgres" 24 24 STORES Alone recover();
    // Sessions and clients that are in the way.
    "terminate backends" 5 5 STORES Always terminate_sessions();
    // Only the locked key waits.
    "lock a row" 9 3 STORES Always lock_a_row();
    "guard" 3 3 CLUSTER Always guard();
    "vanish" 3 3 ALL Always vanish();
    "switch planned" 9 9 PAIR Always switch_as_planned();
    "switch guarded" 14 9 PAIR Alone switch_behind_a_guard();
    "switch given-up" 24 24 PAIR Alone switch_to_a_dead_engine();
    "switch forced" 24 24 PAIR Alone switch_by_force();
    // That of fast operations, there and back.
    "switch operations" 3 9 CLUSTER Always switch_operations();
    // Patroni replaces a primary that does not answer after 20 s, the Sentinels a master after five.
    "primary postgres-killed" 20 20 HA Alone lose_primary(false, true);
    "primary patroni-killed" 50 50 HA Alone lose_primary(true, false);
    "primary machine-killed" 50 50 HA Alone lose_primary(true, true);
    "primary frozen" 50 50 HA Alone freeze_primary();
    "primary switch-over" 20 20 HA Alone switch_over();
    "standby" 20 20 HA Alone lose_standby();
    "master" 3 30 HA Alone lose_master();
}

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
