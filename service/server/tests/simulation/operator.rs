//! What happens to a pair of engines: an operator switches from one to the other while nodes and engines fail.

use std::sync::Arc;
use std::time::Duration;

use latchgate_node::engines::{OrderFailure, SwitchOrder};
use tokio::time::{Instant, sleep};

use crate::link::Cut;
use crate::random::Random;
use crate::run::settle;
use crate::world::{Node, Plan, World};

/// What faults of links and frozen nodes may add to the time until grants go on.
const RESTLESS: Duration = Duration::from_secs(10);
/// How long a call for a switch waits.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time until all nodes use an engine that they reach.
const FOLLOW_MAX: Duration = Duration::from_secs(15);
/// If neither engine is active for so long, the operator orders one.
const IDLE_MAX: Duration = Duration::from_secs(4);

pub struct Operator {
    world: Arc<World>,
    random: Random,
    deaths: u32,
}

impl Operator {
    pub fn new(world: &Arc<World>) -> Self {
        let deaths = if world.plan.deaths { 4 } else { 0 };
        Self { world: Arc::clone(world), random: world.random.stream(), deaths }
    }

    /// Orders switches until `end`, and leaves both engines running.
    pub async fn run(mut self, end: Instant) {
        self.world.set_faults(self.world.plan.faults);
        loop {
            sleep(self.ms(100, 2_000) * self.world.plan.pace).await;
            if Instant::now() >= end {
                return;
            }
            let Plan { losses, stops, .. } = self.world.plan;
            match self.random.between(0..=99) {
                48..=67 if stops => self.lose_active().await,
                68..=72 => self.refuse_writes(self.random.below(2)).await,
                73..=78 if losses => self.fail_over().await,
                79..=81 if losses => self.step_clock().await,
                82..=85 if stops => self.empty().await,
                86..=88 => self.hold_off().await,
                89..=94 => self.cut_off_one().await,
                95..=99 => self.freeze_one().await,
                _ => self.switch().await,
            }
        }
    }

    fn ms(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.between(from..=to))
    }

    fn any(&self) -> usize {
        self.random.below(self.world.plan.nodes)
    }

    fn any_node(&self) -> Node {
        self.world.node(self.any())
    }

    fn name(&self, engine: usize) -> String {
        self.world.databases[engine].name.to_owned()
    }

    async fn freeze_one(&self) {
        self.world.freeze(self.any(), self.ms(100, 4_000));
    }

    /// One node does not reach one of the engines for a while.
    async fn cut_off_one(&self) {
        let (node, engine) = (self.any_node(), self.random.below(2));
        let (cut, time) = (self.cut(), self.ms(300, 4_000));
        let world = Arc::clone(&self.world);
        world.log.saw("node cut off from an engine");
        world.log.line(|| format!("{}  is cut off from {} for {} ms", node.name, engine, time.as_millis()));
        node.links[engine].set_cut(Some(cut));
        tokio::spawn(async move {
            sleep(time).await;
            node.links[engine].set_cut(world.down(engine));
        });
    }

    fn cut(&self) -> Cut {
        *self.random.one_of(&[Cut::Refusing, Cut::Silent])
    }

    /// A planned switch, and at most one thing that goes wrong with it.
    async fn switch(&mut self) {
        let Some(active) = self.world.active() else { return };
        let index = self.any();
        let node = self.world.node(index);
        let to = Some(self.name(1 - active)).filter(|_| self.random.percent(50));
        let trouble = self.random.between(0..=11);
        match trouble {
            0 => {
                self.freeze_one().await;
                sleep(self.ms(0, 300)).await;
            }
            1 => {
                self.cut_off_one().await;
                sleep(self.ms(0, 1_200)).await;
            }
            _ => {}
        }
        let order = SwitchOrder { to, ..SwitchOrder::default() };
        let ordered = tokio::spawn(give(Arc::clone(&self.world), node, order));
        if self.trouble(trouble, active, index).await {
            let _ = ordered.await;
        }
        self.follow(None).await;
    }

    /// What goes wrong while the node with this index copies. Returns whether that has survived.
    async fn trouble(&mut self, trouble: u64, active: usize, copier: usize) -> bool {
        let stops = self.world.plan.stops;
        sleep(self.ms(0, 30)).await;
        match trouble {
            2 | 3 => {
                self.world.log.saw("copier frozen");
                self.world.freeze(copier, self.ms(1_100, 4_000));
            }
            4 | 5 if self.deaths > 0 => {
                self.deaths -= 1;
                self.world.log.saw("copier killed");
                self.world.replace(copier, self.ms(0, 1_500)).await;
                self.world.set_faults(self.world.plan.faults);
                return false;
            }
            6 => {
                self.world.log.saw("raced orders");
                let to = self.random.one_of(&[None, Some(self.name(0)), Some(self.name(1))]).clone();
                let order = SwitchOrder { to, ..SwitchOrder::default() };
                let _ = give(Arc::clone(&self.world), self.any_node(), order).await;
            }
            7 => {
                self.world.log.saw("target lost during a copy");
                self.world.set_down(1 - active, Some(self.cut()));
                sleep(self.ms(300, 7_000)).await;
                self.world.set_down(1 - active, None);
            }
            8 if stops => {
                self.world.log.saw("source lost during a copy");
                self.lose(active).await;
            }
            9 if stops => {
                self.world.log.saw("engine emptied during a copy");
                self.world.forget(self.random.below(2));
            }
            _ => {}
        }
        true
    }

    /// The active engine stops, and the operator says so.
    async fn lose_active(&mut self) {
        let Some(active) = self.world.active() else { return };
        if self.random.percent(25) {
            self.freeze_one().await;
        }
        self.lose(active).await;
    }

    async fn lose(&mut self, lost: usize) {
        self.world.log.saw("engine stopped");
        self.world.set_down(lost, Some(self.cut()));
        sleep(self.ms(0, 1_500)).await;
        let other = 1 - lost;
        let force = self.random.percent(20);
        let to = Some(self.name(other)).filter(|_| self.random.percent(50));
        let order = SwitchOrder { to, is_stopped: true, force };
        if give(Arc::clone(&self.world), self.any_node(), order.clone()).await.is_err() {
            // It may have been carried out: then the other engine would be this one.
            let to = Some(self.name(other));
            if !self.insist(|| SwitchOrder { to: to.clone(), ..order.clone() }).await {
                self.world.checker.broken(format!("no node leaves {}", self.name(lost)));
            }
        }
        if self.deaths > 0 && self.random.percent(20) {
            self.deaths -= 1;
            self.world.replace(self.any(), self.ms(0, 500)).await;
            self.world.set_faults(self.world.plan.faults);
        }
        if self.random.percent(25) {
            sleep(self.ms(0, 2_500)).await;
            self.world.log.saw("forced later");
            let to = self.name(other);
            self.insist(|| SwitchOrder { to: Some(to.clone()), force: true, ..SwitchOrder::default() }).await;
        }
        self.follow(Some(other)).await;
        // The calls that were sent to the engine before are over, too.
        sleep(self.ms(1_000, 3_000)).await;
        self.world.set_down(lost, None);
        if self.random.percent(25) {
            self.refuse_writes(lost).await;
        }
    }

    /// An engine answers, and refuses to write. If it is not the active one, the other one goes on, whatever is ordered.
    async fn refuse_writes(&mut self, engine: usize) {
        self.world.set_down(engine, Some(Cut::ReadOnly));
        if self.world.active() == Some(1 - engine) {
            self.world.log.saw("engine beside refuses writes");
            if self.random.percent(50) {
                let order = SwitchOrder { is_stopped: self.random.percent(50), ..SwitchOrder::default() };
                let ordered = give(Arc::clone(&self.world), self.any_node(), order).await;
                if ordered.is_ok() {
                    self.world.checker.broken(format!("{} took over and refuses writes", self.name(engine)));
                }
            }
            settle(&self.world, RESTLESS).await;
        } else {
            self.world.log.saw("active engine refuses writes");
            sleep(self.ms(300, 5_000)).await;
        }
        self.world.set_down(engine, None);
        self.follow(None).await;
    }

    /// Orders it at one node after the other until one has carried it out.
    async fn insist(&self, order: impl Fn() -> SwitchOrder) -> bool {
        // At the highest rates of faults, half a minute is too short.
        for _ in 0..100 {
            if give(Arc::clone(&self.world), self.any_node(), order()).await.is_ok() {
                return true;
            }
            sleep(Duration::from_millis(200)).await;
        }
        false
    }

    /// An engine fails over, mostly the active one, and may lose what it wrote last: its record, too, if a switch has begun.
    async fn fail_over(&mut self) {
        let Some(active) = self.world.active() else { return };
        let engine = if self.random.percent(80) { active } else { 1 - active };
        let lost = if self.random.percent(70) { self.ms(1, 1_000) } else { Duration::ZERO };
        let ordered = self
            .random
            .percent(40)
            .then(|| tokio::spawn(give(Arc::clone(&self.world), self.any_node(), SwitchOrder::default())));
        self.world.fail_over(engine, lost, self.ms(0, 1_500)).await;
        if let Some(ordered) = ordered {
            let _ = ordered.await;
        }
        self.follow(None).await;
    }

    async fn step_clock(&self) {
        let Some(active) = self.world.active() else { return };
        let ahead = self.random.between(3_000..=30_000).cast_signed();
        let back = -self.random.between(200..=4_000).cast_signed();
        self.world.step_clock(active, *self.random.one_of(&[ahead, back])).await;
    }

    async fn empty(&self) {
        self.world.log.saw("engine emptied");
        if self.random.percent(30) {
            self.freeze_one().await;
        }
        self.world.forget(self.random.below(2));
    }

    async fn hold_off(&self) {
        let for_ms = *self.random.one_of(&[None, Some(0), Some(2_000)]);
        let node = self.any_node();
        let ordered = node.locks.engines().order_hold_off(for_ms).await;
        self.world.log.saw("hold-off ordered");
        self.world.log.line(|| format!("{}  is ordered a hold-off of {for_ms:?}: {ordered:?}", node.name));
    }

    /// Waits until all nodes use this engine, or any, in its newest epoch.
    async fn follow(&self, engine: Option<usize>) {
        let mut started = Instant::now();
        let mut active_at = started;
        while !self.world.nodes().iter().all(|node| self.is_followed_by(node, engine)) {
            if self.world.active().is_some() {
                active_at = Instant::now();
            } else if active_at.elapsed() > IDLE_MAX {
                // An order ended half-way, and a store has lost its record meanwhile.
                let to = self.name(engine.unwrap_or_else(|| self.random.below(2)));
                self.world.log.saw("ordered again");
                self.insist(|| SwitchOrder { to: Some(to.clone()), ..SwitchOrder::default() }).await;
                (started, active_at) = (Instant::now(), Instant::now());
            }
            if started.elapsed() > FOLLOW_MAX {
                let views = self.world.nodes().into_iter().map(|node| (node.name, node.locks.engines().view().trouble));
                let views: Vec<_> = views.collect();
                return self.world.checker.broken(format!("not all nodes use engine {engine:?}: {views:?}"));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn is_followed_by(&self, node: &Node, engine: Option<usize>) -> bool {
        let (Some(used), Some(epoch)) = (node.locks.engines().in_use().ok(), self.world.epoch()) else { return false };
        used.epoch >= epoch && engine.is_none_or(|engine| used.index == engine)
    }
}

async fn give(world: Arc<World>, node: Node, order: SwitchOrder) -> Result<(), OrderFailure> {
    world.log.line(|| format!("{}  is ordered {order:?}", node.name));
    let ordered = node.locks.engines().switch(&order, PATIENCE).await;
    world.log.line(|| format!("{}  has carried out {order:?}: {ordered:?}", node.name));
    ordered
}
