//! The faults. Each returns when its cause is gone. A part that has ended is started again by the supervisor, unless it is kept down.

use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use futures::future::join_all;
use nix::sys::signal::Signal;
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::json;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::watch::{KEYS, now_us};
use super::{OTHER_CLIENTS, SOON, Target};
use crate::tier::ask::{self, post};
use crate::tier::parts::{send, with_children};
use crate::tier::stores::{program, redis};

type Done = anyhow::Result<()>;

/// Processes that are stopped until the end of this value. Their connections stay open.
struct Stopped(Vec<u32>);

impl Drop for Stopped {
    fn drop(&mut self) {
        send(self.0.drain(..), Signal::SIGCONT);
    }
}

fn stop(pids: Vec<u32>) -> Stopped {
    send(pids.iter().copied(), Signal::SIGSTOP);
    Stopped(pids)
}

/// Sleeps for so many seconds, and up to so many more.
async fn some_seconds(random: &mut StdRng, least: u64, more: u64) {
    sleep(Duration::from_secs(least + random.random_range(0..=more))).await;
}

fn one_of<T: Copy>(random: &mut StdRng, all: &[T]) -> T {
    all[random.random_range(0..all.len())]
}

/// Processes.
impl Target {
    /// One of the nodes, the other clients, or the part of this name.
    fn hit(&self, random: &mut StdRng, name: &'static str) -> Vec<&'static str> {
        match name {
            "node" => vec![one_of(random, self.tier.nodes)],
            "clients" => OTHER_CLIENTS.to_vec(),
            name => vec![name],
        }
    }

    fn processes(&self, names: &[&str]) -> Vec<u32> {
        names.iter().flat_map(|name| self.tier.parts.processes(name)).collect()
    }

    pub async fn crash(&self, random: &mut StdRng, name: &'static str) -> Done {
        let names = self.hit(random, name);
        send(self.processes(&names), Signal::SIGKILL);
        self.watch.note_operations();
        for name in names {
            self.tier.until_up(name).await?;
        }
        Ok(())
    }

    /// A node ends at this moment of its work.
    pub async fn crash_point(&self, random: &mut StdRng, point: &str) -> Done {
        let node = one_of(random, self.tier.nodes);
        let pid = self.tier.parts.pid(node);
        fs::write(self.tier.crash_file(node), point)?;
        while pid.is_some() && self.tier.parts.pid(node) == pid {
            sleep(SOON).await;
        }
        fs::remove_file(self.tier.crash_file(node))?;
        self.watch.note_operations();
        self.tier.until_up(node).await
    }

    /// For longer than any lease.
    pub async fn freeze(&self, random: &mut StdRng, name: &'static str) -> Done {
        let _stopped = stop(self.processes(&self.hit(random, name)));
        some_seconds(random, 4, 4).await;
        Ok(())
    }

    async fn restart(&self, name: &str) -> Done {
        self.tier.parts.end(name, Signal::SIGTERM).await;
        self.tier.until_up(name).await
    }

    pub async fn restart_nodes(&self, random: &mut StdRng) -> Done {
        for node in self.tier.nodes {
            self.restart(node).await?;
            some_seconds(random, 1, 0).await;
        }
        Ok(())
    }

    /// The target was started with the release before. An old node may not be able to start any more.
    pub async fn upgrade(&self, random: &mut StdRng) -> Done {
        for node in self.tier.nodes {
            some_seconds(random, 2, 3).await;
            self.tier.use_binary(node, &self.binary)?;
            self.restart(node).await?;
        }
        Ok(())
    }

    /// Those of one node or of all to one of the stores.
    pub async fn break_links(&self, random: &mut StdRng, words: &str) -> Done {
        let store = one_of(random, self.tier.stores);
        let nodes = self.tier.nodes;
        let one = random.random_range(0..=nodes.len());
        let nodes = nodes.get(one..=one).unwrap_or(nodes);
        let write = |words: &str| nodes.iter().try_for_each(|node| fs::write(self.tier.link(node, store), words));
        write(words)?;
        some_seconds(random, 3, 4).await;
        Ok(write("")?)
    }
}

/// Clocks, each set for itself while the part runs, and set back.
impl Target {
    pub async fn clock_of_node(&self, random: &mut StdRng, seconds: i64) -> Done {
        let node = one_of(random, self.tier.nodes);
        self.tier.set_clock(node, seconds * 1_000)?;
        some_seconds(random, 2, 2).await;
        self.tier.set_clock(node, 0)
    }

    pub async fn clock_of_store(&self, random: &mut StdRng, store: &str, seconds: i64) -> Done {
        // The gate promises nothing when its store's clock jumps ahead (docs/GATE.md), and an abandoned lease would last as long as the step.
        self.without_other_clients().await;
        self.watch.clocks_differ.set(true);
        let from = now_us();
        if seconds.abs() == 3_600 {
            self.clocks_jumped.set(true);
        }
        self.tier.set_clock(store, seconds * 1_000)?;
        self.end_hold_off().await;
        some_seconds(random, 2, 2).await;
        self.tier.set_clock(store, 0)?;
        self.end_hold_off().await;
        self.watch.lose_leases(from);
        OTHER_CLIENTS.iter().for_each(|name| self.tier.parts.set_down(name, false));
        Ok(())
    }

    /// A node's clock a tenth too fast or too slow, and then the other way round. That of a server 3 in 100, which the longest lease can bear
    /// (docs/GUARANTEES.md, "Time").
    pub async fn drift(&self, random: &mut StdRng, name: &'static str) -> Done {
        let (part, is_node) = (self.hit(random, name)[0], name == "node");
        let (step, every) = if is_node { (5, 50) } else { (3, 100) };
        if !is_node {
            self.watch.clocks_differ.set(true);
        }
        let step = one_of(random, &[step, -step]);
        for ahead in (1..=60).chain((0..60).rev()) {
            self.tier.set_clock(part, ahead * step)?;
            sleep(Duration::from_millis(every)).await;
        }
        Ok(())
    }
}

/// Stores that cannot or do not write, and settings that change under way. A change is repeated while the server is down.
impl Target {
    pub async fn fill_disk(&self, random: &mut StdRng) -> Done {
        // Twice, for what was freed in between. Each ends with an error.
        let files = [("full", "bs=1M"), ("rest", "bs=4k")].map(|(name, size)| (self.tier.data.join(name), size));
        for (file, size) in &files {
            let _ = ask::output("dd", ["if=/dev/zero", &format!("of={}", file.display()), size]).await;
        }
        some_seconds(random, 2, 3).await;
        Ok(files.iter().try_for_each(|(file, _)| fs::remove_file(file))?)
    }

    async fn set_postgres(&self, name: &str, value: &str) {
        while self.tier.query(&format!("alter system set {name} = {value}")).await.is_err()
            || self.tier.query("select pg_reload_conf()").await.is_err()
        {
            sleep(SOON).await;
        }
    }

    async fn redis(&self, command: &[&str]) {
        while redis(self.tier.parts.port("redis"), command).await.is_err() {
            sleep(SOON).await;
        }
    }

    pub async fn setting_of_postgres(&self, random: &mut StdRng, name: &str, value: &str, before: &str) -> Done {
        self.set_postgres(name, value).await;
        some_seconds(random, 2, 3).await;
        self.set_postgres(name, before).await;
        Ok(())
    }

    pub async fn setting_of_redis(&self, random: &mut StdRng, name: &str, value: &str, before: &str) -> Done {
        self.redis(&["config", "set", name, value]).await;
        some_seconds(random, 2, 3).await;
        self.redis(&["config", "set", name, before]).await;
        Ok(())
    }

    pub async fn no_snapshots(&self, random: &mut StdRng) -> Done {
        let in_the_way = self.tier.data.join("redis/dump.rdb");
        fs::create_dir_all(&in_the_way)?;
        self.redis(&["config", "set", "save", "3600 1"]).await;
        self.redis(&["bgsave"]).await;
        some_seconds(random, 2, 3).await;
        self.redis(&["config", "set", "save", ""]).await;
        Ok(fs::remove_dir(in_the_way)?)
    }

    /// Sessions of nodes set synchronous_commit themselves, so that a crash loses nothing.
    pub async fn asynchronous_commits(&self, random: &mut StdRng) -> Done {
        self.set_postgres("synchronous_commit", "off").await;
        // Without its walwriter, what was not committed synchronously is lost in the crash.
        let command_of = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut pids = self.processes(&["postgres"]);
        pids.retain(|pid| command_of(pid).contains("walwriter"));
        let stopped = stop(pids);
        some_seconds(random, 2, 3).await;
        self.crash(random, "postgres").await?;
        drop(stopped);
        self.set_postgres("synchronous_commit", "on").await;
        Ok(())
    }

    pub async fn no_append_only(&self, random: &mut StdRng) -> Done {
        let from = now_us();
        self.redis(&["config", "set", "appendonly", "no"]).await;
        some_seconds(random, 2, 3).await;
        self.crash(random, "redis").await?;
        // It has started from an old file.
        self.redis(&["config", "set", "appendonly", "yes"]).await;
        self.watch.declare_loss(from);
        Ok(())
    }
}

/// Stores that go back.
impl Target {
    /// To a snapshot of its files. The operator ends the hold-off when no lost lease can be live, which another fault beside it could make too
    /// early.
    pub async fn put_back(&self, random: &mut StdRng, store: &'static str) -> Done {
        let (files, server) = if store == "sqlite" { ("latchgate.db*", self.tier.nodes[0]) } else { (store, store) };
        let from = now_us();
        let snapshot = self.tier.parts.file("snapshot");
        // As a snapshot of a file system is: all files at one moment.
        let stopped = stop(self.processes(&[server]));
        self.shell(r#"mkdir "$2" && cp -a "$1"/$3 "$2""#, &snapshot, files).await?;
        drop(stopped);
        some_seconds(random, 2, 3).await;
        // A Redis that is started again is known by its run id. The others are like before, so the nodes are stopped (docs/OPERATIONS.md).
        let nodes = if store == "redis" { &[] } else { self.tier.nodes };
        for name in nodes.iter().chain(&[server]) {
            self.keep_down(name).await;
        }
        self.shell(r#"rm -rf "$1"/$3 && cp -a "$2"/* "$1" && rm -rf "$2""#, &snapshot, files).await?;
        self.watch.declare_loss(from);
        if store != "sqlite" {
            self.let_up(server).await?;
        }
        for of in if store == "redis" { [].as_slice() } else { &["locks", "gate"] } {
            let mut order = self.tier.order_of_hold_off(&self.binary, of);
            ask::run(&mut order).await.context("no hold-off can be ordered")?;
        }
        for node in nodes {
            self.let_up(node).await?;
        }
        Ok(())
    }

    /// `$1` is the directory of the data, `$2` and `$3` are the arguments.
    async fn shell(&self, script: &str, path: &Path, word: &str) -> Done {
        let mut bash = Command::new("bash");
        ask::run(bash.args(["-euc", script, "-"]).args([&self.tier.data, path]).arg(word)).await.map(drop)
    }

    /// Point-in-time recovery: the server begins a new timeline, by which the nodes know it.
    pub async fn recover(&self, random: &mut StdRng) -> Done {
        let (from, backup) = (now_us(), self.tier.parts.file("backup"));
        let mut take = Command::new(program("pg_basebackup"));
        ask::run(take.args(["-d", &self.tier.postgres_url(), "-c", "fast", "-N", "-D"]).arg(&backup)).await?;
        let script = r#"
            printf '%s\n' "restore_command = 'false'" "recovery_target = 'immediate'" "recovery_target_action = 'promote'" \
                >>"$2/postgresql.auto.conf"
            touch "$2/recovery.signal"
            [[ $(id -u) != 0 ]] || chown -R postgres: "$2""#;
        self.shell(script, &backup, "").await?;
        some_seconds(random, 2, 3).await;
        self.keep_down("postgres").await;
        self.shell(r#"rm -rf "$1/$3" && cp -a "$2" "$1/$3" && rm -rf "$2""#, &backup, "postgres/data").await?;
        self.watch.declare_loss(from);
        self.let_up("postgres").await?;
        while self.tier.query("select pg_is_in_recovery()").await.ok().as_deref() != Some("f") {
            sleep(SOON).await;
        }
        self.tier.query("alter system reset all").await.map(drop)
    }
}

/// Sessions and clients that are in the way. Another fault may end their server, and them with it.
impl Target {
    pub async fn terminate_sessions(&self, _: &mut StdRng) -> Done {
        let statement = "select count(pg_terminate_backend(pid)) from pg_stat_activity
            where application_name = 'latchgate' and random() < 0.7";
        let _ = self.tier.query(statement).await;
        Ok(())
    }

    pub async fn lock_a_row(&self, random: &mut StdRng) -> Done {
        let offset = random.random_range(0..KEYS);
        let statement = format!(
            "begin; select key from latchgate.locks where key like 'recorded-%' limit 1 offset {offset} for update;
             select pg_sleep(5)"
        );
        let _ = self.tier.query(&statement).await;
        Ok(())
    }

    /// A guard keeps its key closed even beyond the lease, and no other key.
    pub async fn guard(&self, random: &mut StdRng) -> Done {
        let path = "/v1/locks/guarded/acquire";
        let reply = self.tier.call(path, &json!({ "ttl_ms": 1_000, "wait_ms": 20_000 }), 25).await;
        let Some(lease) = reply.body["lease_id"].as_str() else { return Ok(()) };
        let now = "select (extract(epoch from clock_timestamp()) * 1000)::bigint";
        let statement =
            format!("begin; select latchgate.guard('guarded', '{lease}'); {now}; select pg_sleep(4); {now}; commit");
        let acquire = async {
            some_seconds(random, 1, 1).await;
            self.tier.call(path, &json!({ "ttl_ms": 1_000 }), 10).await
        };
        let (guarded, reply) = tokio::join!(self.tier.query(&statement), acquire);
        let (Ok(guarded), Some(expires_at)) = (guarded, reply.body["expires_at"].as_str()) else { return Ok(()) };
        // The guard was committed, so it was open between these times of Postgres.
        let times: Vec<u128> =
            guarded.lines().filter(|line| line.len() == 13).filter_map(|line| line.parse().ok()).collect();
        let [from, to] = times[..] else { bail!("the guard says {guarded}") };
        let at = humantime::parse_rfc3339(expires_at)?.duration_since(UNIX_EPOCH)?.as_millis() - 1_000;
        ensure!(at < from || to < at, "granted at {at} behind a guard that was open from {from} to {to}");
        Ok(())
    }

    /// Holders vanish with the lock, and waiters in mid-poll; the key is granted when the last lease has ended.
    pub async fn vanish(&self, random: &mut StdRng) -> Done {
        let path = "/v1/locks/vanished/acquire";
        let request = json!({ "ttl_ms": 1_000, "wait_ms": 20_000 });
        let calls = join_all((0..12).map(|_| self.tier.call(path, &request, 25)));
        let _ = timeout(Duration::from_secs(random.random_range(2..=4)), calls).await;
        self.tier.call(path, &json!({ "ttl_ms": 100, "wait_ms": 25_000 }), 30).await;
        Ok(())
    }
}

/// Switches from one engine of a pair to the other.
impl Target {
    async fn engines(&self) -> Option<(&'static str, &'static str)> {
        match self.active_engine().await?.as_str() {
            "redis" => Some(("redis", "postgres")),
            _ => Some(("postgres", "redis")),
        }
    }

    async fn switch_to(&self, engine: &str, is_stopped: bool) {
        while !self.order_switch("locks", engine, is_stopped).await
            && self.active_engine().await.as_deref() != Some(engine)
        {
            sleep(SOON).await;
        }
    }

    pub async fn switch_operations(&self, random: &mut StdRng) -> Done {
        for engine in ["postgres", "redis"] {
            while !self.order_switch("gate", engine, false).await {
                sleep(SOON).await;
            }
            some_seconds(random, 1, 1).await;
        }
        Ok(())
    }

    pub async fn switch_as_planned(&self, _: &mut StdRng) -> Done {
        if let Some((_, other)) = self.engines().await {
            self.switch_to(other, false).await;
        }
        Ok(())
    }

    /// Behind an open guard it is refused after five seconds, and nothing has changed.
    pub async fn switch_behind_a_guard(&self, _: &mut StdRng) -> Done {
        let Some((active, other)) = self.engines().await else { return Ok(()) };
        let hold = "begin; select pg_advisory_xact_lock_shared(1279742547, latchgate.callers_lock('locks')); select pg_sleep(8)";
        let order = async {
            sleep(Duration::from_secs(1)).await;
            self.order_switch("locks", other, false).await
        };
        let (_, has_passed) = tokio::join!(self.tier.query(hold), order);
        ensure!(!has_passed || active != "postgres", "a switch has passed an open guard");
        Ok(())
    }

    /// The other engine does not answer during the copy.
    pub async fn switch_to_a_dead_engine(&self, _: &mut StdRng) -> Done {
        let Some((_, other)) = self.engines().await else { return Ok(()) };
        let order = self.order_switch("locks", other, false);
        let (_, _stopped) = tokio::join!(order, async { stop(self.processes(&[other])) });
        Ok(())
    }

    pub async fn switch_by_force(&self, random: &mut StdRng) -> Done {
        let Some((active, other)) = self.engines().await else { return Ok(()) };
        let from = now_us();
        self.keep_down(active).await;
        self.switch_to(other, true).await;
        self.let_up(active).await?;
        // Nodes that have not seen the switch grant leases in the engine that is back, for a moment. The other engine holds off, so these are lost,
        // but no lock has two holders.
        some_seconds(random, 3, 0).await;
        self.watch.lose_leases(from);
        // What the dead engine knew of operations cannot be copied.
        self.watch.lose_operations(0);
        Ok(())
    }
}

/// Stores that fail over by themselves.
impl Target {
    /// Without a synchronous standby none may take the primary's place.
    async fn primary(&self) -> anyhow::Result<(u32, &'static str)> {
        while self.tier.with_role("synchronous").await.is_none() {
            sleep(SOON).await;
        }
        let n = self.tier.with_role("primary").await.context("there is no primary")?;
        Ok((n, ["patroni-1", "patroni-2", "patroni-3"][n as usize - 1]))
    }

    async fn until_another_than(&self, n: u32) {
        while self.tier.with_role("primary").await.is_none_or(|now| now == n) {
            sleep(SOON).await;
        }
    }

    pub async fn lose_primary(&self, _: &mut StdRng, with_patroni: bool, with_postgres: bool) -> Done {
        let (n, patroni) = self.primary().await?;
        let postmaster = self.tier.postmaster(n);
        if with_patroni {
            self.keep_down(patroni).await;
        }
        if with_postgres {
            send(postmaster, Signal::SIGKILL);
        }
        self.until_another_than(n).await;
        self.tier.parts.set_down(patroni, false);
        Ok(())
    }

    pub async fn freeze_primary(&self, _: &mut StdRng) -> Done {
        let (n, patroni) = self.primary().await?;
        let postgres = self.tier.postmaster(n).into_iter().flat_map(with_children);
        let _stopped = stop(self.tier.parts.pid(patroni).into_iter().chain(postgres).collect());
        self.until_another_than(n).await;
        Ok(())
    }

    pub async fn switch_over(&self, _: &mut StdRng) -> Done {
        let (n, patroni) = self.primary().await?;
        let order = json!({ "leader": patroni });
        post(&self.tier.parts.url(patroni), "/switchover", &order, Duration::from_secs(60)).await;
        self.until_another_than(n).await;
        Ok(())
    }

    /// Commits wait until Patroni has chosen the other one.
    pub async fn lose_standby(&self, random: &mut StdRng) -> Done {
        let n = self.tier.with_role("synchronous").await.unwrap_or(3);
        send(self.tier.postmaster(n), Signal::SIGKILL);
        let patroni = format!("patroni-{n}");
        self.keep_down(&patroni).await;
        some_seconds(random, 8, 4).await;
        self.let_up(&patroni).await
    }

    pub async fn lose_master(&self, _: &mut StdRng) -> Done {
        let (before, from) = (self.tier.redis_master().await, now_us());
        let is_master = |name: &&&str| Some(self.tier.parts.port(name)) == before;
        let name = ["redis-1", "redis-2", "redis-3"].iter().find(is_master).context("there is no master")?;
        self.keep_down(name).await;
        while self.tier.redis_master().await == before {
            sleep(SOON).await;
        }
        // Of fast operations it may have lost the last. (The other clients do none: with `lose_leases`, locks could be lost, too.)
        self.watch.lose_operations(from);
        self.let_up(name).await
    }
}
