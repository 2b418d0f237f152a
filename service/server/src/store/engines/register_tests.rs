//! Random runs of several nodes and engines that fail in every way they can: each epoch has one successor, and a look that
//! found none began before there was one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use super::*;

type Engines = Arc<Mutex<HashMap<String, (u64, Option<Board>)>>>;

#[derive(Clone)]
struct Simulated {
    engines: Engines,
    /// Of this node: engines that it cannot reach.
    cut_off: Arc<Mutex<Vec<String>>>,
    random: Arc<Mutex<StdRng>>,
}

impl Simulated {
    async fn pass(&self, engine: &str) -> Result<(), StoreError> {
        let (pause, fails) = {
            let mut random = self.random.lock().unwrap();
            (random.random_range(0..20), random.random_bool(0.1))
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if fails || self.cut_off.lock().unwrap().iter().any(|cut_off| cut_off == engine) {
            return Err(StoreError::Unavailable("cut off".to_owned()));
        }
        Ok(())
    }
}

impl Boards for Simulated {
    async fn read(&self, engine: &str) -> Result<ReadBoard, StoreError> {
        self.pass(engine).await?;
        let (version, board) = self.engines.lock().unwrap().get(engine).cloned().unwrap_or_default();
        self.pass(engine).await?;
        Ok(ReadBoard { version, board, now: Timestamp::default() })
    }

    async fn write(&self, engine: &str, expected: u64, board: &Board) -> Result<Option<u64>, StoreError> {
        self.pass(engine).await?;
        let version = {
            let mut engines = self.engines.lock().unwrap();
            let (version, kept) = engines.entry(engine.to_owned()).or_default();
            let holds = *version == expected;
            if holds {
                *version = self.random.lock().unwrap().next_u64() | 1;
                *kept = Some(board.clone());
            }
            holds.then_some(*version)
        };
        // Written, and the answer is lost.
        self.pass(engine).await.map_err(|_| StoreError::OutcomeUnknown("cut off".to_owned()))?;
        Ok(version)
    }
}

#[derive(Default)]
struct Seen {
    successors: HashMap<u64, Record>,
    decided_at: HashMap<u64, Instant>,
    /// When the last look began that found this epoch in force.
    current_at: HashMap<u64, Instant>,
}

async fn node(number: usize, names: Vec<String>, boards: Simulated, seen: Arc<Mutex<Seen>>) {
    let register = Register { boards: boards.clone(), node: format!("node-{number}") };
    // Each names them in an order of its own.
    let mut own = names.clone();
    own.rotate_left(number % names.len());
    let mut known = Record::first(&own);
    for step in 0..30_u64 {
        let (proposes, cut) = {
            let mut random = boards.random.lock().unwrap();
            let cut = random.random_bool(0.2).then(|| names[random.random_range(0..names.len())].clone());
            (random.random_bool(0.4), cut)
        };
        *boards.cut_off.lock().unwrap() = cut.into_iter().collect();
        let looked = register.look(&known, &names).await;
        let next = match looked.look {
            Look::Current => {
                let mut seen = seen.lock().unwrap();
                let before = seen.successors.insert(known.epoch, known.clone());
                assert!(before.is_none_or(|before| before == known), "two records of epoch {}", known.epoch);
                let at = seen.current_at.entry(known.epoch).or_insert(looked.began);
                *at = looked.began.max(*at);
                proposes.then(|| known.next())
            }
            Look::Later(record) => {
                known = *record;
                None
            }
            Look::Undecided => Some(known.next()),
            Look::Unknown => None,
        };
        let Some(mut next) = next else { continue };
        let other = usize::try_from(step).unwrap() % names.len();
        next.active.clone_from(&names[other]);
        next.ttl_ms_max = u64::try_from(number).unwrap() * 1_000 + step;
        if let Ok(record) = register.decide(&known, &next).await {
            let mut seen = seen.lock().unwrap();
            seen.decided_at.entry(record.epoch).or_insert_with(Instant::now);
            known = record;
        }
        let mut seen = seen.lock().unwrap();
        let before = seen.successors.insert(known.epoch, known.clone());
        assert!(before.is_none_or(|before| before == known), "two records of epoch {}", known.epoch);
    }
}

async fn run(seed: u64, engines: usize) -> u64 {
    let names: Vec<String> = (0..engines).map(|engine| format!("engine-{engine}")).collect();
    let all = Engines::default();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let nodes = (0..4).map(|number| {
        let boards = Simulated {
            engines: Arc::clone(&all),
            cut_off: Arc::default(),
            random: Arc::new(Mutex::new(StdRng::seed_from_u64(seed * 10 + number as u64))),
        };
        tokio::spawn(node(number, names.clone(), boards, Arc::clone(&seen)))
    });
    for node in join_all(nodes.collect::<Vec<_>>()).await {
        node.unwrap();
    }
    let seen = seen.lock().unwrap();
    for (epoch, began) in &seen.current_at {
        let over = seen.decided_at.get(&(epoch + 1));
        assert!(
            over.is_none_or(|over| began < over),
            "epoch {epoch} was found in force after its successor was decided"
        );
    }
    seen.successors.keys().max().copied().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn among_three_engines_each_record_has_one_successor_and_none_is_relied_on_after_it() {
    let mut decided = 0;
    for seed in 0..150 {
        decided += run(seed, 3).await;
    }
    assert!(decided > 150 * 3, "hardly anything was decided: {decided}");
}

#[tokio::test(start_paused = true)]
async fn among_two_engines_each_record_has_one_successor_and_none_is_relied_on_after_it() {
    let mut decided = 0;
    for seed in 0..150 {
        decided += run(seed, 2).await;
    }
    assert!(decided > 150 * 3, "hardly anything was decided: {decided}");
}

#[tokio::test(start_paused = true)]
async fn two_of_three_engines_are_enough_and_one_is_not() {
    let names: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
    let boards = Simulated {
        engines: Engines::default(),
        cut_off: Arc::new(Mutex::new(vec!["a".to_owned()])),
        random: Arc::new(Mutex::new(StdRng::seed_from_u64(1))),
    };
    let register = Register { boards: boards.clone(), node: "n".to_owned() };
    let first = Record { epoch: 1, ..Record::first(&names) };
    let next = Record { active: "b".to_owned(), ..first.next() };
    let mut decided = register.decide(&first, &next).await;
    while decided.is_err() {
        decided = register.decide(&first, &next).await;
    }
    assert_eq!(decided, Ok(next.clone()));
    *boards.cut_off.lock().unwrap() = vec!["a".to_owned(), "b".to_owned()];
    let looked = register.look(&next, &names).await;
    assert!(matches!(looked.look, Look::Unknown), "{:?}", looked.look);
    assert_eq!(register.decide(&next, &next.next()).await, Err(NoMajority));
}
