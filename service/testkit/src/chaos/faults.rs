//! The faults. Each returns when its cause is gone. A part that has ended is started again by the supervisor, unless it is kept down.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures::future::join_all;
use nix::sys::signal::Signal;
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::json;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::table::{Action, Hit, Primary, Switch};
use super::tier::{OTHER_CLIENTS, SOON, Tier};
use super::watch::{KEYS, now_us};
use crate::cluster::ask::{self, post};
use crate::cluster::parts::{send, with_children};
use crate::cluster::stores::{postgres_program, redis};

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

/// Sleeps for so long, and up to so much longer.
async fn some_seconds(random: &mut StdRng, least: u64, more: u64) {
    sleep(Duration::from_secs(least + random.random_range(0..=more))).await;
}

impl Tier {
    fn hit(&self, hit: Hit, random: &mut StdRng) -> Vec<&'static str> {
        match hit {
            Hit::Node => vec![self.nodes[random.random_range(0..self.nodes.len())]],
            Hit::Clients => OTHER_CLIENTS.to_vec(),
            Hit::Part(name) => vec![name],
        }
    }

    fn processes(&self, names: &[&str]) -> Vec<u32> {
        names.iter().flat_map(|name| self.parts.processes(name)).collect()
    }

    pub async fn cause(&self, action: Action, random: &mut StdRng) -> anyhow::Result<()> {
        match action {
            Action::Crash(hit) => self.crash(&self.hit(hit, random)).await,
            Action::CrashPoint(point) => self.crash_point(point, random).await,
            Action::Freeze(hit) => {
                let _stopped = stop(self.processes(&self.hit(hit, random)));
                some_seconds(random, 4, 4).await;
                Ok(())
            }
            Action::RestartNodes => {
                for node in self.nodes {
                    self.restart(node).await?;
                    some_seconds(random, 1, 0).await;
                }
                Ok(())
            }
            Action::Upgrade => {
                for node in self.nodes {
                    some_seconds(random, 2, 3).await;
                    self.use_binary(node, &self.binary)?;
                    self.restart(node).await?;
                }
                Ok(())
            }
            Action::Link(words) => self.break_links(words, random).await,
            Action::Clock(hit, seconds) => self.set_clocks(hit, seconds, random).await,
            Action::Drift(hit) => self.drift(hit, random).await,
            Action::DiskFull => self.fill_disk(random).await,
            Action::Postgres(name, value, before) => {
                self.set_postgres(name, value).await;
                some_seconds(random, 2, 3).await;
                self.set_postgres(name, before).await;
                Ok(())
            }
            Action::Redis(name, value, before) => {
                self.set_redis(&["config", "set", name, value]).await;
                some_seconds(random, 2, 3).await;
                self.set_redis(&["config", "set", name, before]).await;
                Ok(())
            }
            Action::NoSnapshots => self.no_snapshots(random).await,
            Action::AsynchronousCommits => self.asynchronous_commits(random).await,
            Action::NoAppendOnly => self.no_append_only(random).await,
            Action::Back(store) => self.back(store, random).await,
            Action::Recover => self.recover(random).await,
            Action::Terminate => {
                let statement = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                    where application_name = 'latchgate' and random() < 0.7";
                // Another fault may end the server, and the session with it.
                let _ = self.query(statement).await;
                Ok(())
            }
            Action::LockRow => {
                let offset = random.random_range(0..KEYS);
                let statement = format!(
                    "begin; select key from latchgate.locks where key like 'recorded-%' limit 1 offset {offset} for update;
                     select pg_sleep(5)"
                );
                let _ = self.query(&statement).await;
                Ok(())
            }
            Action::Guard => self.guard(random).await,
            Action::Vanish => self.vanish(random).await,
            Action::Switch(how) => self.switch(how, random).await,
            Action::Primary(how) => self.lose_primary(how).await,
            Action::Standby => self.lose_standby(random).await,
            Action::Master => self.lose_master().await,
        }
    }

    async fn crash(&self, names: &[&str]) -> anyhow::Result<()> {
        send(self.processes(names), Signal::SIGKILL);
        self.watch().note_operations();
        for name in names {
            self.until_up(name).await?;
        }
        Ok(())
    }

    async fn crash_point(&self, point: &str, random: &mut StdRng) -> anyhow::Result<()> {
        let node = self.hit(Hit::Node, random)[0];
        let pid = self.parts.pid(node);
        std::fs::write(self.crash_file(node), point)?;
        while pid.is_some() && self.parts.pid(node) == pid {
            sleep(SOON).await;
        }
        std::fs::remove_file(self.crash_file(node))?;
        self.watch().note_operations();
        self.until_up(node).await
    }

    async fn break_links(&self, words: &str, random: &mut StdRng) -> anyhow::Result<()> {
        let store = self.stores[random.random_range(0..self.stores.len())];
        // One node, or all of them.
        let one = random.random_range(0..=self.nodes.len());
        let nodes = if one == self.nodes.len() { self.nodes } else { &self.nodes[one..=one] };
        for text in [words, ""] {
            for node in nodes {
                std::fs::write(self.link(node, store), text)?;
            }
            if !text.is_empty() {
                some_seconds(random, 3, 4).await;
            }
        }
        Ok(())
    }

    async fn set_clocks(&self, hit: Hit, seconds: i64, random: &mut StdRng) -> anyhow::Result<()> {
        let name = self.hit(hit, random)[0];
        if hit == Hit::Node {
            self.set_clock(name, seconds * 1_000)?;
            some_seconds(random, 2, 2).await;
            return self.set_clock(name, 0);
        }
        // The gate promises nothing when its store's clock jumps ahead (docs/GATE.md), and an abandoned lease would last as long as the step.
        self.without_other_clients().await;
        self.watch().clocks_differ();
        let from = now_us();
        if seconds.abs() == 3_600 {
            self.clocks_jumped.set(true);
        }
        self.set_clock(name, seconds * 1_000)?;
        self.end_hold_off().await;
        some_seconds(random, 2, 2).await;
        self.set_clock(name, 0)?;
        self.end_hold_off().await;
        self.watch().lose_leases(from);
        self.with_other_clients();
        Ok(())
    }

    /// A node's clock a tenth too fast or too slow, and then the other way round. That of a server 3 in 100, which the longest lease can bear
    /// (docs/GUARANTEES.md, "Time").
    async fn drift(&self, hit: Hit, random: &mut StdRng) -> anyhow::Result<()> {
        let name = self.hit(hit, random)[0];
        let (step, every) = if hit == Hit::Node { (5, 50) } else { (3, 100) };
        if hit != Hit::Node {
            self.watch().clocks_differ();
        }
        let step = if random.random() { step } else { -step };
        for ahead in (1..=60).chain((0..60).rev()) {
            self.set_clock(name, ahead * step)?;
            sleep(Duration::from_millis(every)).await;
        }
        Ok(())
    }

    async fn fill_disk(&self, random: &mut StdRng) -> anyhow::Result<()> {
        // Twice, for what was freed in between.
        let files = [("full", "1M"), ("rest", "4k")].map(|(name, size)| (self.data.join(name), format!("bs={size}")));
        for (file, size) in &files {
            // It ends with an error.
            let _ = ask::output("dd", ["if=/dev/zero", &format!("of={}", file.display()), size]).await;
        }
        some_seconds(random, 2, 3).await;
        files.iter().try_for_each(|(file, _)| std::fs::remove_file(file))?;
        Ok(())
    }

    /// Repeated while Postgres is down.
    async fn set_postgres(&self, name: &str, value: &str) {
        while self.query(&format!("alter system set {name} = {value}")).await.is_err()
            || self.query("select pg_reload_conf()").await.is_err()
        {
            sleep(SOON).await;
        }
    }

    /// Repeated while Redis is down.
    async fn set_redis(&self, command: &[&str]) {
        while redis(self.parts.port("redis"), command).await.is_err() {
            sleep(SOON).await;
        }
    }

    async fn no_snapshots(&self, random: &mut StdRng) -> anyhow::Result<()> {
        let in_the_way = self.data.join("redis/dump.rdb");
        std::fs::create_dir_all(&in_the_way)?;
        self.set_redis(&["config", "set", "save", "3600 1"]).await;
        self.set_redis(&["bgsave"]).await;
        some_seconds(random, 2, 3).await;
        self.set_redis(&["config", "set", "save", ""]).await;
        Ok(std::fs::remove_dir(in_the_way)?)
    }

    /// Sessions of nodes set synchronous_commit themselves, so that a crash loses nothing.
    async fn asynchronous_commits(&self, random: &mut StdRng) -> anyhow::Result<()> {
        self.set_postgres("synchronous_commit", "off").await;
        // Without its walwriter, what was not committed synchronously is lost in the crash.
        let is_walwriter = |pid: &u32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("walwriter")
        };
        let stopped = stop(self.processes(&["postgres"]).into_iter().filter(is_walwriter).collect());
        some_seconds(random, 2, 3).await;
        self.crash(&["postgres"]).await?;
        drop(stopped);
        self.set_postgres("synchronous_commit", "on").await;
        Ok(())
    }

    async fn no_append_only(&self, random: &mut StdRng) -> anyhow::Result<()> {
        let from = now_us();
        self.set_redis(&["config", "set", "appendonly", "no"]).await;
        some_seconds(random, 2, 3).await;
        self.crash(&["redis"]).await?;
        // It has started from an old file.
        self.set_redis(&["config", "set", "appendonly", "yes"]).await;
        self.watch().declare_loss(from);
        Ok(())
    }

    /// Puts a store back to a snapshot of its files. The operator ends the hold-off when no lost lease can be live, which another fault beside
    /// it could make too early.
    async fn back(&self, store: &str, random: &mut StdRng) -> anyhow::Result<()> {
        let (files, server) = if store == "sqlite" { ("latchgate.db*", self.nodes[0]) } else { (store, store) };
        let from = now_us();
        let snapshot = self.parts.file("snapshot");
        std::fs::create_dir(&snapshot)?;
        // As a snapshot of a file system is: all files at one moment.
        let stopped = stop(self.processes(&[server]));
        self.shell("cp -a \"$1\"/$3 \"$2\"", &snapshot, files).await?;
        drop(stopped);
        some_seconds(random, 2, 3).await;
        // A Redis that is started again is known by its run id. The others are like before, so the nodes are stopped (docs/OPERATIONS.md).
        let nodes = if store == "redis" { &[] } else { self.nodes };
        let others = [server].into_iter().filter(|server| !nodes.contains(server));
        for name in nodes.iter().copied().chain(others) {
            self.keep_down(name).await;
        }
        self.shell("rm -rf \"$1\"/$3 && cp -a \"$2\"/* \"$1\" && rm -rf \"$2\"", &snapshot, files).await?;
        self.watch().declare_loss(from);
        if store != "sqlite" {
            self.let_up(server).await?;
        }
        if store != "redis" {
            self.order_hold_offs().await?;
        }
        for node in nodes {
            self.let_up(node).await?;
        }
        Ok(())
    }

    /// `$1` is the directory of the data, `$2` and `$3` are the arguments.
    async fn shell(&self, script: &str, path: &Path, word: &str) -> anyhow::Result<()> {
        let mut bash = Command::new("bash");
        ask::run(bash.args(["-euc", script, "-"]).args([&self.data, path]).arg(word)).await.map(drop)
    }

    /// Point-in-time recovery: the server begins a new timeline, by which the nodes know it.
    async fn recover(&self, random: &mut StdRng) -> anyhow::Result<()> {
        let from = now_us();
        let backup = self.parts.file("backup");
        let mut take = Command::new(postgres_program("pg_basebackup"));
        ask::run(take.args(["-d", &self.parts.postgres_url(), "-c", "fast", "-N", "-D"]).arg(&backup)).await?;
        let script = r#"
            printf '%s\n' "restore_command = 'false'" "recovery_target = 'immediate'" "recovery_target_action = 'promote'" \
                >>"$2/postgresql.auto.conf"
            touch "$2/recovery.signal"
            [[ $(id -u) != 0 ]] || chown -R postgres: "$2""#;
        self.shell(script, &backup, "").await?;
        some_seconds(random, 2, 3).await;
        self.keep_down("postgres").await;
        self.shell("rm -rf \"$1/postgres/data\" && cp -a \"$2\" \"$1/postgres/data\" && rm -rf \"$2\"", &backup, "")
            .await?;
        self.watch().declare_loss(from);
        self.let_up("postgres").await?;
        while self.query("select pg_is_in_recovery()").await.ok().as_deref() != Some("f") {
            sleep(SOON).await;
        }
        self.query("alter system reset all").await.map(drop)
    }

    /// A guard keeps its key closed even beyond the lease, and no other key.
    async fn guard(&self, random: &mut StdRng) -> anyhow::Result<()> {
        let path = "/v1/locks/guarded/acquire";
        let reply = self.call(path, &json!({ "ttl_ms": 1_000, "wait_ms": 20_000 }), 25).await;
        let Some(lease) = reply.body["lease_id"].as_str() else { return Ok(()) };
        let now = "select (extract(epoch from clock_timestamp()) * 1000)::bigint";
        let statement =
            format!("begin; select latchgate.guard('guarded', '{lease}'); {now}; select pg_sleep(4); {now}; commit");
        let acquire = async {
            some_seconds(random, 1, 1).await;
            self.call(path, &json!({ "ttl_ms": 1_000 }), 10).await
        };
        let (guarded, reply) = tokio::join!(self.query(&statement), acquire);
        let (Ok(guarded), Some(expires_at)) = (guarded, reply.body["expires_at"].as_str()) else { return Ok(()) };
        // The guard was committed, so it was open between these times of Postgres.
        let times: Vec<u128> =
            guarded.lines().filter(|line| line.len() == 13).filter_map(|line| line.parse().ok()).collect();
        let [from, to] = times[..] else { bail!("the guard says {guarded}") };
        let at = humantime::parse_rfc3339(expires_at)?.duration_since(std::time::UNIX_EPOCH)?.as_millis() - 1_000;
        ensure!(at < from || to < at, "granted at {at} behind a guard that was open from {from} to {to}");
        Ok(())
    }

    /// Holders vanish with the lock, and waiters in mid-poll; the key is granted when the last lease has ended.
    async fn vanish(&self, random: &mut StdRng) -> anyhow::Result<()> {
        let path = "/v1/locks/vanished/acquire";
        let request = json!({ "ttl_ms": 1_000, "wait_ms": 20_000 });
        let calls = join_all((0..12).map(|_| post(&self.url, path, &request, Duration::from_secs(25))));
        let _ = timeout(Duration::from_secs(random.random_range(2..=4)), calls).await;
        self.call(path, &json!({ "ttl_ms": 100, "wait_ms": 25_000 }), 30).await;
        Ok(())
    }

    async fn switch(&self, how: Switch, random: &mut StdRng) -> anyhow::Result<()> {
        if how == Switch::Operations {
            for engine in ["postgres", "redis"] {
                while !self.order_switch("gate", engine, false).await? {
                    sleep(SOON).await;
                }
                some_seconds(random, 1, 1).await;
            }
            return Ok(());
        }
        let Some(active) = self.active_engine().await else { return Ok(()) };
        let (active, other) = if active == "redis" { ("redis", "postgres") } else { ("postgres", "redis") };
        match how {
            Switch::Planned => self.switch_to(other, false).await?,
            Switch::Guarded => {
                // Behind an open guard it is refused after five seconds, and nothing has changed.
                let hold = "begin; select pg_advisory_xact_lock_shared(1279742547, latchgate.callers_lock('locks')); select pg_sleep(8)";
                let order = async {
                    sleep(Duration::from_secs(1)).await;
                    self.order_switch("locks", other, false).await
                };
                let (_, passed) = tokio::join!(self.query(hold), order);
                ensure!(!passed? || active != "postgres", "a switch has passed an open guard");
            }
            Switch::GivenUp => {
                // The other engine does not answer during the copy.
                let order = self.order_switch("locks", other, false);
                let (_, _stopped) = tokio::join!(order, async { stop(self.processes(&[other])) });
            }
            Switch::Forced => {
                let from = now_us();
                self.keep_down(active).await;
                self.switch_to(other, true).await?;
                self.let_up(active).await?;
                // Nodes that have not seen the switch grant leases in the engine that is back, for a moment. The other engine holds off, so these
                // are lost, but no lock has two holders.
                some_seconds(random, 3, 0).await;
                self.watch().lose_leases(from);
                if active == "postgres" {
                    self.watch().lose_operations(from);
                }
            }
            Switch::Operations => {}
        }
        Ok(())
    }

    async fn switch_to(&self, engine: &str, is_stopped: bool) -> anyhow::Result<()> {
        while !self.order_switch("locks", engine, is_stopped).await?
            && self.active_engine().await.as_deref() != Some(engine)
        {
            sleep(SOON).await;
        }
        Ok(())
    }

    async fn lose_primary(&self, how: Primary) -> anyhow::Result<()> {
        let ha = self.ha();
        // Without a synchronous standby none may take the primary's place.
        while ha.with_role("synchronous").await.is_none() {
            sleep(SOON).await;
        }
        let n = ha.with_role("primary").await.context("there is no primary")?;
        let (patroni, postmaster) = (format!("patroni-{n}"), ha.postmaster(n));
        let mut stopped = None;
        match how {
            Primary::PostgresKilled => send(postmaster, Signal::SIGKILL),
            Primary::PatroniKilled => self.keep_down(&patroni).await,
            Primary::MachineKilled => {
                self.keep_down(&patroni).await;
                send(postmaster, Signal::SIGKILL);
            }
            Primary::Frozen => {
                let pids = self.parts.pid(&patroni).into_iter().chain(postmaster.into_iter().flat_map(with_children));
                stopped = Some(stop(pids.collect()));
            }
            Primary::SwitchedOver => {
                let url = self.parts.url(&patroni);
                post(&url, "/switchover", &json!({ "leader": patroni }), Duration::from_secs(60)).await;
            }
        }
        while ha.with_role("primary").await.is_none_or(|now| now == n) {
            sleep(SOON).await;
        }
        drop(stopped);
        self.parts.allow(&patroni);
        Ok(())
    }

    /// Commits wait until Patroni has chosen the other one.
    async fn lose_standby(&self, random: &mut StdRng) -> anyhow::Result<()> {
        let n = self.ha().with_role("synchronous").await.unwrap_or(3);
        let patroni = format!("patroni-{n}");
        send(self.ha().postmaster(n), Signal::SIGKILL);
        self.keep_down(&patroni).await;
        some_seconds(random, 8, 4).await;
        self.let_up(&patroni).await
    }

    async fn lose_master(&self) -> anyhow::Result<()> {
        let ha = self.ha();
        let (before, from) = (ha.redis_master().await, now_us());
        let names = ["redis-1", "redis-2", "redis-3"];
        let name = *names.iter().find(|name| Some(self.parts.port(name)) == before).context("there is no master")?;
        self.keep_down(name).await;
        while ha.redis_master().await == before {
            sleep(SOON).await;
        }
        // Of fast operations it may have lost the last. (The other clients do none: with `lose_leases`, locks could be lost, too.)
        self.watch().lose_operations(from);
        self.let_up(name).await
    }
}
