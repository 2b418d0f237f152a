//! Random runs: clients take locks at nodes that lose their engines and find them again, while somebody keeps switching. No
//! two hold a lock at a time, tokens rise, and no lease is lost but with its engine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchgate_core::lock::Outcome;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use super::super::EngineSetConfig;
use super::super::record::Phase;
use super::world::{LONG, Line, Node, World, config};
use crate::store::LockStore;

const TTL_MS: u64 = 3_000;
const LENGTH: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(1);
const KEYS: [&str; 2] = ["k", "l"];

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
    /// An engine was given up.
    has_lost: AtomicBool,
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
            self.pause(1_500).await;
            let asked = Instant::now();
            if asked >= held.until {
                break;
            }
            match timeout(PATIENCE, self.one(&self.nodes).renew(key, &held.lease)).await {
                Ok(Ok(Outcome::Renewed(_))) => held.until = asked + Duration::from_millis(TTL_MS),
                Ok(Ok(Outcome::LeaseLost(lost))) if Instant::now() < held.until => {
                    assert!(self.has_lost.load(Ordering::SeqCst), "{held:?} was lost: {lost:?}");
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
                self.one(&self.nodes).set.switch(*self.one::<&'static str>(engines), false, false, PATIENCE),
            )
            .await;
            self.pause(12_000).await;
        }
    }

    async fn breaker(&self, engines: &[&'static str], faults_ms_max: u64) {
        const CALLS: &[&str] = &["load", "commit", "board", "write_board", "dump", "ping", "begin_term"];
        while Instant::now() < self.over {
            let wire = self.one(&self.nodes).wire(*self.one::<&'static str>(engines));
            let call = self.one(CALLS);
            let lines = [Line::Cut, Line::Hung, Line::HungAt(std::slice::from_ref(call)), Line::Mute(call)];
            wire.set(*self.one(&lines));
            self.pause(faults_ms_max).await;
            wire.set(Line::Open);
            self.pause(500).await;
        }
    }

    /// Tells when the leases of an engine are given up.
    async fn watch(&self, node: &Node) {
        let mut view = node.set.view.clone();
        while Instant::now() < self.over {
            let is_lost =
                matches!(&view.borrow_and_update().record.phase, Phase::Moving(moving) if moving.from.is_none());
            self.has_lost.fetch_or(is_lost, Ordering::SeqCst);
            let _ = timeout(PATIENCE, view.changed()).await;
        }
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
        has_lost: AtomicBool::default(),
    });
    let clients = futures::future::join_all((0..5).map(|_| run.client()));
    let watches = futures::future::join_all(run.nodes.iter().map(|node| run.watch(node)));
    let breakers = futures::future::join(run.breaker(engines, faults_ms_max), run.breaker(engines, faults_ms_max));
    tokio::join!(clients, watches, breakers, run.operator(engines));
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
    runs(&["a", "b"], 1_500, &config()).await;
}

#[tokio::test(start_paused = true)]
async fn three_engines_that_fail_at_random_never_show_two_holders() {
    let by_themselves = EngineSetConfig { switch_after: Some(Duration::from_secs(2)), ..config() };
    runs(&["a", "b", "c"], 8_000, &by_themselves).await;
}
