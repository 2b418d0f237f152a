//! The connection of one node to one database, and what goes wrong on it.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchgate_node::store::StoreError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::log::{Log, STEPS};
use crate::random::Random;

/// How often calls go wrong, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A request or an answer takes long, up to several time-outs.
    pub late: u64,
    pub lost_requests: u64,
    pub lost_answers: u64,
    /// The request is executed twice.
    pub duplicated: u64,
    /// The connection breaks while the request is still on its way.
    pub overtaken: u64,
    /// The store refuses the call and does nothing.
    pub refused: u64,
    /// Notifications.
    pub lost_wake_ups: u64,
    pub late_wake_ups: u64,
}

impl Faults {
    /// Of all intensities, none among them.
    pub fn at_random(random: &Random) -> Self {
        let intensity = *random.one_of(&[0, 1, 1, 2, 4]);
        let some = |at_most: u64| random.between(0..=at_most) * intensity;
        Self {
            late: some(5),
            lost_requests: some(2),
            lost_answers: some(2),
            duplicated: some(2),
            overtaken: some(2),
            refused: some(1),
            lost_wake_ups: some(15).min(100),
            late_wake_ups: some(15).min(100),
        }
    }
}

pub struct Link {
    pub node: String,
    random: Random,
    pub log: Arc<Log>,
    state: Mutex<State>,
    is_dead: watch::Sender<bool>,
}

struct State {
    faults: Faults,
    frozen_until: Instant,
    /// How far the times that the node learns are off, in ms.
    skew_ms: i64,
    cut: Option<Cut>,
}

/// How a database behaves that the node cannot reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A call fails at once.
    Refusing,
    /// A call has no answer.
    Silent,
    /// A call that only reads is answered. One that writes fails at once.
    ReadOnly,
}

/// Whether a call changes anything in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Within the clock bound: a commit that arrives later is refused for its time.
const ON_ITS_WAY_MS_MAX: u64 = 90;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    LostRequest,
    LostAnswer,
    Duplicated,
    Overtaken,
    Unavailable,
    Contended,
}

impl Link {
    pub fn new(node: &str, random: Random, log: Arc<Log>) -> Self {
        let state = State { faults: Faults::default(), frozen_until: Instant::now(), skew_ms: 0, cut: None };
        Self { node: node.to_owned(), random, log, state: Mutex::new(state), is_dead: watch::Sender::new(false) }
    }

    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().unwrap().faults = faults;
    }

    pub fn set_skew(&self, skew_ms: i64) {
        self.state.lock().unwrap().skew_ms = skew_ms;
    }

    pub fn skew_ms(&self) -> i64 {
        self.state.lock().unwrap().skew_ms
    }

    pub fn set_cut(&self, cut: Option<Cut>) {
        self.log.saw(STEPS);
        self.state.lock().unwrap().cut = cut;
    }

    fn cut(&self) -> Option<Cut> {
        self.state.lock().unwrap().cut
    }

    /// Withholds all requests, answers and notifications for so long.
    pub fn freeze(&self, duration: Duration) {
        self.log.saw(STEPS);
        self.state.lock().unwrap().frozen_until = Instant::now() + duration;
    }

    pub fn thaw(&self) {
        self.state.lock().unwrap().frozen_until = Instant::now();
    }

    pub async fn died(&self) {
        let _ = self.is_dead.subscribe().wait_for(|is_dead| *is_dead).await;
    }

    /// Nothing passes the link from now on.
    pub fn kill(&self) {
        self.is_dead.send_replace(true);
    }

    /// Waits until something can pass the link.
    async fn pass(&self) {
        loop {
            if *self.is_dead.borrow() {
                std::future::pending::<()>().await;
            }
            let until = self.state.lock().unwrap().frozen_until;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until.min(Instant::now() + Duration::from_millis(50))).await;
        }
    }

    fn faults(&self) -> Faults {
        self.state.lock().unwrap().faults
    }

    fn delay(&self) -> Duration {
        let late = self.faults().late;
        let ms = match self.random.between(0..=99) {
            roll if roll < late / 3 => self.random.between(800..=3_000),
            roll if roll < late => self.random.between(20..=400),
            _ => self.random.between(0..=2),
        };
        Duration::from_millis(ms)
    }

    fn fate(&self) -> Fate {
        let faults = self.faults();
        let mut roll = self.random.between(0..=99);
        let fates = [
            (faults.lost_requests, Fate::LostRequest),
            (faults.lost_answers, Fate::LostAnswer),
            (faults.duplicated, Fate::Duplicated),
            (faults.overtaken, Fate::Overtaken),
            (faults.refused, if self.random.percent(50) { Fate::Unavailable } else { Fate::Contended }),
        ];
        for (percent, fate) in fates {
            if roll < percent {
                return fate;
            }
            roll -= percent;
        }
        Fate::Fine
    }

    /// Sends a call to a store. It is on its way even if the caller drops this future, and it may be executed twice.
    pub async fn call<S, A, T, F>(
        self: &Arc<Self>,
        what: String,
        access: Access,
        (store, arguments): (Arc<S>, A),
        execute: impl Fn(Arc<S>, A) -> F + Send + Sync + 'static,
    ) -> Result<T, StoreError>
    where
        S: ?Sized + Send + Sync + 'static,
        A: Clone + Send + Sync + 'static,
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let execute = move || execute(Arc::clone(&store), arguments.clone());
        self.log.saw(STEPS);
        let course = (self.fate(), self.delay(), self.delay());
        let (answer, receiver) = oneshot::channel();
        tokio::spawn(Arc::clone(self).carry(what, access, course, execute, answer));
        receiver.await.unwrap_or_else(|_| Err(StoreError::OutcomeUnknown("simulated: the connection broke".to_owned())))
    }

    async fn carry<T: Send, F: Future<Output = Result<T, StoreError>> + Send + 'static>(
        self: Arc<Self>,
        what: String,
        access: Access,
        (fate, before, after): (Fate, Duration, Duration),
        execute: impl Fn() -> F + Send,
        answer: oneshot::Sender<Result<T, StoreError>>,
    ) {
        let refused = |why: &str| Err(StoreError::Unavailable(format!("simulated: {why}")));
        sleep(before).await;
        self.pass().await;
        match self.cut().filter(|cut| *cut != Cut::ReadOnly || access == Access::Write) {
            Some(Cut::Silent) => return self.lose(answer).await,
            Some(Cut::Refusing | Cut::ReadOnly) => return drop(answer.send(refused("cut off"))),
            None => {}
        }
        if fate != Fate::Fine {
            self.log.saw(format!("{fate:?}"));
            self.line(|| format!("{what}: {fate:?}"));
        }
        match fate {
            Fate::Unavailable => return drop(answer.send(refused("unavailable"))),
            Fate::Contended => return drop(answer.send(Err(StoreError::Contended("simulated")))),
            Fate::Overtaken => {
                drop(answer);
                let delay = Duration::from_millis(self.random.between(0..=ON_ITS_WAY_MS_MAX));
                return self.arrive(delay, execute()).await;
            }
            Fate::LostRequest => return self.lose(answer).await,
            Fate::LostAnswer | Fate::Duplicated | Fate::Fine => {}
        }
        if answer.is_closed() {
            self.log.saw("executed after the caller gave up");
            self.line(|| format!("{what}: executed late"));
        }
        let result = execute().await;
        if fate == Fate::LostAnswer {
            return self.lose(answer).await;
        }
        if fate == Fate::Duplicated {
            let (again, delay, link) = (execute(), self.delay(), Arc::clone(&self));
            tokio::spawn(async move { link.arrive(delay, again).await });
        }
        sleep(after).await;
        self.pass().await;
        if self.cut().is_some_and(|cut| cut != Cut::ReadOnly) {
            return self.lose(answer).await;
        }
        let _ = answer.send(result);
    }

    /// A call whose answer no caller receives.
    async fn arrive<T>(&self, delay: Duration, call: impl Future<Output = T>) {
        sleep(delay).await;
        self.pass().await;
        if self.cut().is_none() {
            drop(call.await);
        }
    }

    /// The caller learns at once that the connection broke, or nothing until its time-out.
    async fn lose<T>(&self, answer: oneshot::Sender<Result<T, StoreError>>) {
        if self.random.percent(50) {
            sleep(Duration::from_secs(60)).await;
        }
        drop(answer);
    }

    pub fn line(&self, line: impl FnOnce() -> String) {
        self.log.line(|| format!("{}  {}", self.node, line()));
    }

    /// Passes notifications on: some late, some never.
    pub fn notifications<T: fmt::Debug + Send + 'static>(
        self: &Arc<Self>,
        mut sent: mpsc::Receiver<T>,
    ) -> mpsc::Receiver<T> {
        let (sender, receiver) = mpsc::channel(1_000);
        let link = Arc::clone(self);
        tokio::spawn(async move {
            while let Some(notification) = sent.recv().await {
                link.log.saw(STEPS);
                let Some(delay) = link.notification_delay() else { continue };
                let (link, sender) = (Arc::clone(&link), sender.clone());
                tokio::spawn(async move {
                    sleep(delay).await;
                    link.pass().await;
                    link.line(|| format!("notified: {notification:?}"));
                    let _ = sender.send(notification).await;
                });
            }
        });
        receiver
    }

    /// How long a notification takes; `None` if it is lost.
    fn notification_delay(&self) -> Option<Duration> {
        let faults = self.faults();
        if self.cut().is_some_and(|cut| cut != Cut::ReadOnly) || self.random.percent(faults.lost_wake_ups) {
            self.log.saw("lost notification");
            return None;
        }
        let is_late = self.random.percent(faults.late_wake_ups);
        Some(Duration::from_millis(if is_late { self.random.between(50..=3_000) } else { self.random.between(0..=2) }))
    }
}
