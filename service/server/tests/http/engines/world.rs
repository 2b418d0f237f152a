//! Several engines, and nodes that each reach them over wires of their own.

use std::path::PathBuf;
use std::time::Duration;

use latchgate_bench::record;
use latchgate_testkit::eventually;
use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::Postgres;
use latchgate_testkit::proxy::Proxy;
use latchgate_testkit::recorded::{self, Report};
use latchgate_testkit::redis::Redis;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::client::{Answer, BIN, ask, get, granted, release};

pub const LONG: Duration = Duration::from_secs(30);
/// So that the nodes' rights, and with them the tests, are short.
const TIMES: [&str; 4] = ["--store-timeout-ms", "500", "--engine-right-ms", "1500"];
pub const RIGHT: Duration = Duration::from_millis(1_500);
/// The longest lease: as long, nothing is granted after an engine was lost.
pub const TTL_MS_MAX: u64 = 4_000;

/// A Postgres, `pg`; and one or two Redis, `one` and `two`.
pub struct World {
    pub postgres: Postgres,
    pub redis: Vec<Redis>,
    database: String,
}

/// A node, and what it reaches the engines through, in the order of its `--locks`.
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
            // What it has acknowledged is on its disk, as far as a crash of the process goes.
            all.push(Redis::start_with(&[("appendonly", "yes"), ("appendfsync", "always")]).await);
        }
        Self { postgres, redis: all, database }
    }

    /// Where an engine is, through `port`.
    fn url(&self, engine: &str, port: u16) -> String {
        if engine == "pg" {
            let name = self.database.rsplit_once('/').unwrap().1;
            format!("pg=postgres://postgres@127.0.0.1:{port}/{name}")
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
        let ttl_ms_max = TTL_MS_MAX.to_string();
        let mut all = vec!["--ttl-ms-default", "3000"];
        all.extend(TIMES);
        if !args.contains(&"--ttl-ms-max") {
            all.extend(["--ttl-ms-max", &ttl_ms_max]);
        }
        all.extend(args);
        for url in &locks {
            all.extend(["--locks", url]);
        }
        Wired { node: Node::start(BIN, &all).await, wires }
    }

    /// What `latchgate switch-engine` says.
    pub async fn switch_engine(&self, engines: &[&'static str], args: &[&str]) -> String {
        let locks: Vec<String> = engines.iter().map(|engine| self.url(engine, self.port(engine))).collect();
        let mut command = tokio::process::Command::new(BIN);
        command.arg("switch-engine").args(TIMES).args(args);
        for url in &locks {
            command.args(["--locks", url]);
        }
        let ended = tokio::time::timeout(LONG, command.output()).await.expect("no hang").unwrap();
        String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned()
    }

    pub async fn nodes(&self, count: usize, engines: &[&'static str], args: &[&str]) -> Vec<Wired> {
        let mut nodes = Vec::new();
        for _ in 0..count {
            nodes.push(self.node(engines, args).await);
        }
        nodes
    }
}

/// Clients that take locks at all of the nodes, and what they see.
pub struct Load {
    dir: TempDir,
    running: JoinHandle<anyhow::Result<()>>,
}

impl Load {
    pub fn start(nodes: &[Wired], seconds: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let args = record::Args {
            urls: nodes.iter().map(|wired| wired.node.base_url()).collect(),
            keys: 6,
            clients: 18,
            seconds,
            ttl_ms: 2_000,
            abandon_one_in: 100,
            out: dir.path().join("history"),
        };
        let running = tokio::spawn(async move { record::run(&args).await });
        Self { dir, running }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("history")
    }

    /// What was seen from beginning to end: nothing that a lock may not do.
    pub async fn judged(self) -> Report {
        let file = self.file();
        self.running.await.unwrap().unwrap();
        let lines = std::io::BufReader::new(std::fs::File::open(file).unwrap());
        let report = recorded::check(&recorded::read(lines).unwrap());
        assert!(report.violations.is_empty(), "{}", report.violations[0]);
        assert!(report.handovers > 20, "too little was seen: {report:?}");
        report
    }
}

pub async fn switch(wired: &Wired, body: Value) -> Answer {
    ask(&wired.node, reqwest::Method::POST, "/v1/admin/engines/locks", body).await
}

/// Switches, and expects that to be done.
pub async fn switched(wired: &Wired, engine: &str) {
    let answer = switch(wired, json!({ "engine": engine })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    until_serving(wired, engine).await;
}

pub async fn status(wired: &Wired) -> Value {
    get(&wired.node, "/v1/admin/engines").await.body["locks"].clone()
}

/// Until the node uses the engine.
pub async fn until_serving(wired: &Wired, engine: &str) {
    let is_there = || async {
        let status = status(wired).await;
        status["active"] == engine && status["phase"] == "serving"
    };
    assert!(eventually(LONG, is_there).await, "{}\n{}", status(wired).await, wired.node.log());
}

/// Until a lock that nobody has is granted here.
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
