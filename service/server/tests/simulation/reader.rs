//! A reader of events, who goes from node to node. It must see what commits have written: all of it, once, and in order.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchgate_core::App;
use latchgate_core::lock::{Event, EventKind};
use latchgate_node::locks::{Next, Watch, Watched};
use latchgate_node::store::EventCursor;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::check::Facts;
use crate::random::Random;
use crate::world::World;

/// A reader that hears nothing for so long goes to another node.
const PATIENCE: Duration = Duration::from_secs(3);

/// An event with its key; `None`: here, some may be missing.
type Seen = Option<(String, Event)>;

pub struct Reader {
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Reader {
    /// Begins to read before anything is committed.
    pub async fn start(world: &Arc<World>) -> Self {
        let (world, random, seen) = (Arc::clone(world), world.random.stream(), Arc::default());
        let mut after = None;
        while after.is_none() {
            after = join(&world, &random, None).await.map(|watch| watch.seen());
        }
        let task = tokio::spawn(read(world, random, after, Arc::clone(&seen)));
        Self { seen, task }
    }

    /// In calm: it has seen the events of all commits, but for those that it was told to be missing.
    pub async fn has_seen_all(self, world: &World) {
        let mut compared = Ok(());
        for _ in 0..100 {
            compared = compare(&self.seen.lock().unwrap(), &world.checker.facts());
            if compared.is_ok() {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        self.task.abort();
        if let Err(difference) = compared {
            world.checker.broken(difference);
        }
    }
}

fn compare(seen: &[Seen], Facts { story, has_repeated_events, .. }: &Facts) -> Result<(), String> {
    // How far the reader may have come: several answers, if an event was lost and is written again.
    let (mut ends, mut may_miss) = (BTreeSet::from([0]), false);
    let can_skip = |from: usize, to: usize| story[from..to].iter().all(|written| written.is_lost);
    for (index, seen) in seen.iter().enumerate() {
        let Some(event) = seen else {
            may_miss = true;
            continue;
        };
        let first = if may_miss && *has_repeated_events { 0 } else { *ends.first().unwrap() };
        let is_next = |next: &usize| may_miss || ends.range(..=next).last().is_some_and(|end| can_skip(*end, *next));
        let next = (first..story.len()).filter(|next| story[*next].event == *event).filter(is_next);
        let next: BTreeSet<usize> = next.map(|next| next + 1).collect();
        if next.is_empty() {
            return Err(format!("event {index} was read as {event:?} and written as {:?}", story.get(first)));
        }
        (ends, may_miss) = (next, false);
    }
    let last = *ends.last().unwrap();
    let is_all = may_miss || can_skip(last, story.len());
    if is_all { Ok(()) } else { Err(format!("the reader has not seen {:?}", story[last])) }
}

async fn join(world: &World, random: &Random, after: Option<EventCursor>) -> Option<Watch> {
    let node = world.node(random.below(world.plan.nodes));
    let (app, everything) = (App::default(), Watched::Prefix(String::new()));
    world.log.line(|| format!("reader  {}: after {}", node.name, after.unwrap_or_default()));
    let watch = timeout(PATIENCE, node.locks.watch(Some(&app), everything, after)).await.ok()?.ok();
    if watch.is_none() {
        sleep(Duration::from_millis(50)).await;
    }
    watch
}

/// What a cursor says of the time before or after a switch.
fn era(cursor: EventCursor) -> Option<String> {
    cursor.to_string().split_once('.').map(|(era, _)| era.to_owned())
}

async fn read(world: Arc<World>, random: Random, mut after: Option<EventCursor>, seen: Arc<Mutex<Vec<Seen>>>) {
    // Ends of waits are written apart from commits.
    let is_of_a_commit = |event: &Event| event.kind != EventKind::Waited;
    loop {
        let Some(mut watch) = join(&world, &random, after).await else { continue };
        while let Ok(Some(next)) = timeout(PATIENCE, watch.next()).await {
            match next {
                Next::Events(events) => {
                    world.log.line(|| format!("reader  {} events, up to {}", events.len(), watch.seen()));
                    let events = events.iter().filter(|logged| is_of_a_commit(&logged.event));
                    let events =
                        events.map(|logged| Some((logged.address.key.as_str().to_owned(), logged.event.clone())));
                    seen.lock().unwrap().extend(events);
                }
                Next::Dropped { from, to } => {
                    world.log.line(|| format!("reader  dropped from {from} to {to}"));
                    world.log.saw("events dropped");
                    seen.lock().unwrap().push(None);
                }
            }
            if after.is_some_and(|after| era(after) != era(watch.seen())) {
                world.log.saw("reader followed a switch");
            }
            after = Some(watch.seen());
            if random.percent(10) {
                world.log.saw("reader went on at another node");
                break;
            }
        }
    }
}
