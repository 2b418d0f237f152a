//! Several engines, and nodes that each connect to them through their own proxies.

use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::{Node, command};
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::proxy::Proxy;
use latchgate_testkit::recorded::Options;
use latchgate_testkit::recorder;
use latchgate_testkit::redis::Redis;
use serde_json::{Value, json};

use crate::client::{Answer, BIN, get, granted, release, request};
use crate::recorded::Recording;

pub const LONG: Duration = Duration::from_secs(30);
const TIMES: [&str; 2] = ["--store-timeout", "2s"];
/// The longest lease. After the loss of an engine, nothing is granted for this time.
pub const TTL_MS_MAX: u64 = 4_000;

/// The engines: a Postgres, `pg`, and one or two Redis, `one` and `two`.
pub struct World {
    pub postgres: Postgres,
    pub redis: Vec<Redis>,
    database: String,
}

/// A node, and its proxies to the engines, in the order of its `--locks`.
pub struct Wired {
    pub node: Node,
    pub wires: Vec<(&'static str, Proxy)>,
}

impl Wired {
    pub fn cut(&self, engine: &str) {
        self.wire(engine).cut();
    }

    fn wire(&self, engine: &str) -> &Proxy {
        &self.wires.iter().find(|(name, _)| *name == engine).unwrap().1
    }
}

impl World {
    pub async fn start(redis: usize) -> Self {
        let postgres = Postgres::start().await;
        let database = postgres.create_database().await;
        let mut all = Vec::new();
        for _ in 0..redis {
            // Acknowledged commits survive a crash of the process.
            all.push(Redis::start_with(&[("appendonly", "yes"), ("appendfsync", "always")]).await);
        }
        Self { postgres, redis: all, database }
    }

    pub fn database(&self) -> String {
        self.database.clone()
    }

    pub fn database_name(&self) -> &str {
        self.database.rsplit_once('/').unwrap().1
    }

    /// The URL of an engine at `port`.
    fn url(&self, engine: &str, port: u16) -> String {
        if engine == "pg" {
            format!("pg=postgres://postgres@127.0.0.1:{port}/{}", self.database_name())
        } else {
            format!("{engine}=redis://127.0.0.1:{port}")
        }
    }

    fn port(&self, engine: &str) -> u16 {
        match engine {
            "pg" => self.postgres.port(),
            "one" => self.redis[0].port(),
            "two" => self.redis[1].port(),
            other => panic!("no engine is called {other}"),
        }
    }

    pub async fn node(&self, engines: &[&'static str], args: &[&str]) -> Wired {
        let mut wires = Vec::new();
        let mut locks = Vec::new();
        for engine in engines {
            let wire = Proxy::start(self.port(engine)).await;
            locks.push(self.url(engine, wire.port()));
            wires.push((*engine, wire));
        }
        let ttl_max = format!("{TTL_MS_MAX}ms");
        let mut all = vec!["--ttl-default", "3s"];
        all.extend(TIMES);
        if !args.contains(&"--ttl-max") {
            all.extend(["--ttl-max", &ttl_max]);
        }
        all.extend(args);
        for url in &locks {
            all.extend(["--locks", url]);
        }
        Wired { node: Node::start(BIN, &all).await, wires }
    }

    /// The output of `latchgate engines switch`.
    pub async fn switch_engine(&self, engines: &[&'static str], args: &[&str]) -> String {
        let locks: Vec<String> = engines.iter().map(|engine| self.url(engine, self.port(engine))).collect();
        let mut command = tokio::process::Command::from(command(BIN));
        let ttl_max = format!("{TTL_MS_MAX}ms");
        command
            .args(["engines", "switch", "locks", "--beside-store"])
            .args(TIMES)
            .args(["--ttl-max", &ttl_max])
            .args(args);
        for url in &locks {
            command.args(["--locks", url]);
        }
        let ended = tokio::time::timeout(LONG, command.output()).await.expect("no hang").unwrap();
        String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned()
    }

    /// What a node says that does not start.
    pub async fn refused(&self, engines: &[&'static str], args: &[&str]) -> String {
        let mut command = tokio::process::Command::from(command(BIN));
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(TIMES).args(args).kill_on_drop(true);
        for engine in engines {
            command.args(["--locks", &self.url(engine, self.port(engine))]);
        }
        let ended = tokio::time::timeout(LONG, command.output()).await.expect("it ends").unwrap();
        assert!(!ended.status.success());
        String::from_utf8_lossy(&ended.stderr).into_owned()
    }

    pub async fn nodes(&self, count: usize, engines: &[&'static str], args: &[&str]) -> Vec<Wired> {
        let mut nodes = Vec::new();
        for _ in 0..count {
            nodes.push(self.node(engines, args).await);
        }
        nodes
    }
}

/// Clients that take locks at all nodes.
pub fn load(nodes: &[Wired]) -> Recording {
    let choose = |args| recorder::Args { keys: 6, clients: 18, ttl_ms: 2_000, abandon_one_in: 100, ..args };
    Recording::start(nodes.iter().map(|wired| &wired.node), choose)
}

/// Stops the clients after some more grants: no lock may have broken a promise.
pub async fn check(load: Recording) {
    load.goes_on(50).await;
    // An engine that is left by force has leases that the next one does not have, and each has its own clock.
    let options = Options { may_lose: true, clocks_differ: true, ..Options::default() };
    let (_, report) = load.checked(&options).await;
    assert!(report.handovers > 20, "too little was seen: {report:?}");
}

pub async fn switch(wired: &Wired, body: Value) -> Answer {
    request(&wired.node, reqwest::Method::POST, "/v1/admin/engines/locks", body).await
}

/// Switches the engine, and fails unless that succeeds.
pub async fn switched(wired: &Wired, engine: &str) {
    let answer = switch(wired, json!({ "engine": engine })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    until_serving(wired, engine).await;
}

pub async fn hold_off(wired: &Wired, body: Value) -> Answer {
    request(&wired.node, reqwest::Method::POST, "/v1/admin/hold-off", body).await
}

pub async fn status(wired: &Wired) -> Value {
    get(&wired.node, "/v1/admin/engines").await.body["locks"].clone()
}

/// Waits until the node uses the engine.
pub async fn until_serving(wired: &Wired, engine: &str) {
    let is_there = || async {
        let status = status(wired).await;
        status["active"] == engine
    };
    assert!(eventually(LONG, is_there).await, "{}\n{}", status(wired).await, wired.node.log());
}

/// Waits until the node grants a free lock.
pub async fn until_granting(wired: &Wired) {
    let key = format!("probe-{:016x}", rand::random::<u64>());
    let grants = || async { crate::client::acquire(&wired.node, &key, json!({ "ttl_ms": 1000 })).await.status == 200 };
    assert!(eventually(LONG, grants).await, "{}\n{}", status(wired).await, wired.node.log());
}

/// Takes and releases a lock; returns the token.
pub async fn token(wired: &Wired, key: &str) -> u64 {
    let grant = granted(&wired.node, key, json!({})).await;
    assert_eq!(release(&wired.node, key, &grant.text("lease_id")).await.status, 200);
    grant.token()
}
