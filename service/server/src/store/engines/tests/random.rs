//! Random runs: clients take locks at nodes that lose their engines and find them again, while somebody keeps switching. No
//! two hold a lock at a time, tokens rise, and no lease is lost but with its engine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_core::lock::Outcome;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use super::super::EngineSetConfig;
use super::world::{LONG, Line, Node, Wire, World, config};
use crate::store::LockStore;

const TTL_MS: u64 = 9_000;
const LENGTH: Duration = Duration::from_secs(90);
const PATIENCE: Duration = Duration::from_secs(1);
const KEYS: [&str; 3] = ["k", "l", "m"];

/// A lease as its client knows it.
#[derive(Clone, Debug)]
struct Held {
    lease: String,
    token: u64,
    from: Instant,
    until: Instant,
}

struct Run {
    nodes: Vec<Node>,
    random: Mutex<StdRng>,
    over: Instant,
    leases: AtomicU64,
    held: Mutex<HashMap<&'static str, Vec<Held>>>,
}

impl Run {
    fn below(&self, bound: u64) -> u64 {
        self.random.lock().unwrap().random_range(0..bound)
    }

    fn one<'a, T>(&self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    async fn pause(&self, ms_max: u64) {
        sleep(Duration::from_millis(1 + self.below(ms_max))).await;
    }

    async fn client(&self) {
        while Instant::now() < self.over {
            let key = *self.one(&KEYS);
            let lease = format!("lease-{}", self.leases.fetch_add(1, Ordering::SeqCst));
            let asked = Instant::now();
            let answer = timeout(PATIENCE, self.one(&self.nodes).acquire_for(key, &lease, TTL_MS)).await;
            let until = asked + Duration::from_millis(TTL_MS);
            let Ok(Ok(Outcome::Granted(grant))) = answer else {
                self.pause(200).await;
                continue;
            };
            let held = Held { lease, token: grant.lease.token, from: Instant::now(), until };
            if held.from < held.until {
                self.hold(key, held).await;
            }
        }
    }

    async fn hold(&self, key: &'static str, mut held: Held) {
        for _ in 0..self.below(4) {
            self.pause(4_000).await;
            let asked = Instant::now();
            if asked >= held.until {
                break;
            }
            match timeout(PATIENCE, self.one(&self.nodes).renew(key, &held.lease)).await {
                Ok(Ok(Outcome::Renewed(_))) => held.until = asked + Duration::from_millis(TTL_MS),
                Ok(Ok(Outcome::LeaseLost(lost))) if Instant::now() < held.until => {
                    assert!(self.has_lost_an_engine(), "{held:?} was lost: {lost:?}");
                    // It was told so: it does not go on.
                    held.until = asked;
                }
                _ => {}
            }
        }
        held.until = held.until.min(Instant::now());
        self.held.lock().unwrap().entry(key).or_default().push(held.clone());
        for _ in 0..self.below(3) {
            let _ = timeout(PATIENCE, self.one(&self.nodes).release(key, &held.lease)).await;
        }
    }

    async fn operator(&self, engines: &[&'static str]) {
        while Instant::now() < self.over {
            let _ = timeout(
                PATIENCE,
                self.one(&self.nodes).set.switch(self.one::<&'static str>(engines), false, false, PATIENCE),
            )
            .await;
            self.pause(12_000).await;
        }
    }

    async fn breaker(&self, engines: &[&'static str], faults_ms_max: u64) {
        while Instant::now() < self.over {
            let faults = self.faults(engines);
            for (wire, line) in &faults {
                wire.set(*line);
            }
            self.pause(faults_ms_max).await;
            for (wire, _) in &faults {
                wire.set(Line::Open);
            }
            self.pause(1_500).await;
        }
    }

    /// What breaks at once.
    fn faults(&self, engines: &[&'static str]) -> Vec<(&Wire, Line)> {
        const CALLS: &[&str] = &["load", "commit", "board", "write_board", "dump", "ping", "begin_term"];
        const BOARDS: &[&str] = &["board", "write_board"];
        let (node, engine) = (self.one(&self.nodes), *self.one(engines));
        let call = self.one(CALLS);
        let gone = *self.one(&[Line::Cut, Line::Hung]);
        match self.below(5) {
            // It goes on with what it has seen.
            0 => engines.iter().map(|engine| (node.wire(engine), Line::HungAt(BOARDS))).collect(),
            // It is gone for all, and comes back with what it had.
            1 => self.nodes.iter().map(|node| (node.wire(engine), gone)).collect(),
            // It has this engine for itself.
            2 => {
                let others = engines.iter().filter(|other| **other != engine);
                let cut = others.map(|other| (node.wire(other), gone));
                let elsewhere = self.nodes.iter().filter(|other| !std::ptr::eq(*other, node));
                cut.chain(elsewhere.map(|other| (other.wire(engine), gone))).collect()
            }
            _ => {
                let lines = [gone, Line::HungAt(std::slice::from_ref(call)), Line::Mute(call)];
                vec![(node.wire(engine), *self.one(&lines))]
            }
        }
    }

    /// Whether an engine was given up, with the leases that it knew: there is a hold-off in the record since.
    fn has_lost_an_engine(&self) -> bool {
        let is_set = |until: Timestamp| until > Timestamp::from_ms(TTL_MS * 1_000);
        self.nodes.iter().any(|node| is_set(node.record().hold_off_until))
    }

    fn judge(&self) -> usize {
        let mut held = self.held.lock().unwrap();
        for (key, held) in held.iter_mut() {
            held.sort_by_key(|held| held.from);
            for pair in held.windows(2) {
                assert!(pair[0].token < pair[1].token, "the tokens of {key} fall: {pair:?}");
                assert!(pair[0].until <= pair[1].from, "two hold {key}: {pair:?}");
            }
        }
        held.values().map(Vec::len).sum()
    }
}

async fn run(seed: u64, engines: &[&'static str], faults_ms_max: u64, config: EngineSetConfig) -> (usize, u64) {
    let mut world = World::default();
    let mut random = StdRng::seed_from_u64(seed);
    for engine in engines {
        world.engine(engine).offset_ms.store(random.random_range(-2_000..2_000), Ordering::SeqCst);
    }
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let node = Node::open(world.wires(engines), config.clone()).await.unwrap();
        timeout(LONG, node.set.expect_leases_of(TTL_MS)).await.unwrap().unwrap();
        nodes.push(node);
    }
    let run = Arc::new(Run {
        nodes,
        random: Mutex::new(random),
        over: Instant::now() + LENGTH,
        leases: AtomicU64::default(),
        held: Mutex::default(),
    });
    let clients = futures::future::join_all((0..5).map(|_| run.client()));
    let breaker = run.breaker(engines, faults_ms_max);
    tokio::join!(clients, breaker, run.operator(engines));
    // Whatever has happened, there is a way on.
    for node in &run.nodes {
        for engine in engines {
            node.wire(engine).set(Line::Open);
        }
    }
    for node in &run.nodes {
        let mut serving = node.set.serving.clone();
        let served = timeout(LONG, serving.wait_for(Option::is_some)).await;
        assert!(served.is_ok(), "seed {seed}: {:?}", node.set.status());
    }
    (run.judge(), run.nodes[0].record().epoch)
}

async fn runs(engines: &[&'static str], faults_ms_max: u64, config: &EngineSetConfig) {
    let (mut held, mut epochs) = (0, 0);
    for seed in 0..25 {
        let (more, epoch) = run(seed, engines, faults_ms_max, config.clone()).await;
        (held, epochs) = (held + more, epochs + epoch);
    }
    assert!(held > 25 * 10 && epochs > 25 * 4, "hardly anything happened: {held} leases, {epochs} decisions");
}

#[tokio::test(start_paused = true)]
async fn two_engines_that_fail_at_random_never_show_two_holders() {
    runs(&["a", "b"], 5_000, &config()).await;
}

#[tokio::test(start_paused = true)]
async fn three_engines_that_fail_at_random_never_show_two_holders() {
    let by_themselves = EngineSetConfig { switch_after: Some(Duration::from_secs(2)), ..config() };
    runs(&["a", "b", "c"], 12_000, &by_themselves).await;
}
