//! The state in the store, and what the nodes and their clients know.

mod calm;

use latchgate_core::Timestamp;
use latchgate_core::lock::{
    Acquire, Batch, Command, Lease, LeaseId, LeaseTerms, LockState, NodeId, Outcome, Position, Precedence, Rank,
    Release, ReplyHandle, TURN_REFRESH_BEFORE_MS, Terms, WaitQueue, Waiter, can_only_wait, evaluate,
};

const NOW: u64 = 1_700_000_000_000;
const TTL_MS: u64 = 1_000;
/// Time passes in these steps: within a lease, and beyond the refresh of a turn.
const PAUSES: [u64; 2] = [400, 2_100];
const TIME_MAX: u64 = 9_000;
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A client asks this node for the lock.
    Arrive(usize),
    /// The node evaluates its queue on the state in the store, because of a call, a notification or a timer.
    Serve(usize),
    /// The node's notification is lost.
    Lose(usize),
    /// The holder releases its lease at this node.
    Release(usize),
    /// The last client of this node hangs up.
    Leave(usize),
    Die(usize),
    Pause(u64),
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Self::Arrive(_) => "arrive",
            Self::Serve(_) => "serve",
            Self::Lose(_) => "lose",
            Self::Release(_) => "release",
            Self::Leave(_) => "leave",
            Self::Die(_) => "die",
            Self::Pause(_) => "pause",
        }
    }
}

#[derive(Clone, Debug)]
struct Node {
    id: NodeId,
    /// The numbers of its waiters, with their arrivals.
    waiters: Vec<(u64, u64)>,
    /// Waiters that no evaluation has seen.
    arrived: Vec<u64>,
    arrivals_left: u64,
    is_notified: bool,
    is_up: bool,
    /// What it has written or read last.
    cache: LockState,
}

/// What is known of the present holder: its client's lease, while it relies on it.
type Claim = Option<(u64, Lease)>;

#[derive(Clone, Debug)]
pub struct World {
    state: LockState,
    nodes: [Node; 2],
    now: u64,
    claim: Claim,
    token: u64,
    /// How many notifications may be lost still, how many clients may hang up, and how many nodes may die.
    faults_left: [u8; 3],
    story: Vec<Step>,
}

struct Client;

impl ReplyHandle for Client {
    fn is_closed(&self) -> bool {
        false
    }
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_ms(NOW + ms)
}

fn lease_id(number: u64) -> LeaseId {
    LeaseId::parse(&number.to_string()).unwrap()
}

impl Node {
    fn new(name: &str) -> Self {
        let (waiters, arrived, cache) = (Vec::new(), Vec::new(), LockState::default());
        Self { id: NodeId::new(name), waiters, arrived, arrivals_left: 2, is_notified: false, is_up: true, cache }
    }

    fn queue(&self) -> (WaitQueue<Client, u64>, Vec<(u64, Rank)>) {
        let (mut queue, mut ranks) = (WaitQueue::default(), Vec::new());
        for (number, arrival) in &self.waiters {
            let position = position(*arrival, *number);
            let lease = LeaseTerms::new(lease_id(*number), TTL_MS);
            let request = Acquire { lease, node: self.id.clone(), position, precedence: Precedence::ByTurns };
            let deadline = Some(u64::MAX);
            let (is_returning, is_probe, may_be_granted, reply) = (true, false, false, Client);
            let waiter = Waiter { id: *number, request, deadline, is_returning, is_probe, may_be_granted, reply };
            ranks.push((*number, queue.insert(waiter)));
        }
        (queue, ranks)
    }

    /// When a timer makes the node evaluate its queue again, as in `locks/schedule.rs`.
    fn due(&self, now: u64) -> Option<u64> {
        let (number, arrival) = *self.waiters.first()?;
        let position = position(arrival, number);
        let own = self.cache.turns().iter().filter(|turn| turn.node == self.id).map(|turn| turn.until.as_ms());
        let refresh = own.map(|until| until - TURN_REFRESH_BEFORE_MS);
        let change = self.cache.next_change(&self.id, position, at(now)).map(Timestamp::as_ms);
        Some(refresh.chain(change).min().map_or(now, |due| due + 1 - NOW))
    }
}

impl World {
    pub fn new() -> Self {
        let (state, nodes) = (LockState::default(), [Node::new("a"), Node::new("b")]);
        Self { state, nodes, now: 0, claim: None, token: 0, faults_left: [2, 1, 1], story: Vec::new() }
    }

    pub fn story(&self) -> &[Step] {
        &self.story
    }

    /// What tells it from other states.
    pub fn identity(&self) -> String {
        let Self { state, nodes, now, claim, faults_left, .. } = self;
        format!("{state:?} {nodes:?} {now} {:?} {faults_left:?}", claim.as_ref().map(|(number, _)| number))
    }

    /// What can happen next.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_up) {
            let is_due = node.due(self.now).is_some_and(|due| due <= self.now);
            let possible = [
                (node.arrivals_left > 0, Step::Arrive(index)),
                (node.is_notified || !node.arrived.is_empty() || is_due, Step::Serve(index)),
                (node.is_notified && self.faults_left[0] > 0, Step::Lose(index)),
                (self.claim.is_some(), Step::Release(index)),
                (!node.waiters.is_empty() && self.faults_left[1] > 0, Step::Leave(index)),
                (self.faults_left[2] > 0, Step::Die(index)),
            ];
            steps.extend(possible.into_iter().filter(|(is_possible, _)| *is_possible).map(|(_, step)| step));
        }
        steps.extend(PAUSES.into_iter().filter(|ms| self.now + ms <= TIME_MAX).map(Step::Pause));
        steps
    }

    pub fn take(&mut self, step: Step) -> Result<(), String> {
        self.story.push(step);
        match step {
            Step::Arrive(index) => {
                let node = &mut self.nodes[index];
                node.arrivals_left -= 1;
                let number = 1 + 2 * (1 - node.arrivals_left) + index as u64;
                node.waiters.push((number, self.now));
                let (queue, ranks) = node.queue();
                let rank = ranks.iter().find(|(known, _)| *known == number).unwrap().1;
                // As in `locks/committer.rs`: it only joins the queue.
                if !can_only_wait(&node.cache, &[rank], &queue, &node.id, at(self.now)) {
                    node.arrived.push(number);
                }
            }
            Step::Serve(index) => {
                self.nodes[index].is_notified = false;
                self.evaluate(index, &[])?;
            }
            Step::Lose(index) => {
                self.nodes[index].is_notified = false;
                self.faults_left[0] -= 1;
            }
            Step::Release(index) => {
                let (number, _) = self.claim.take().unwrap();
                self.evaluate(index, &[Command::Release(Release { lease_id: lease_id(number) })])?;
            }
            Step::Leave(index) => {
                self.faults_left[1] -= 1;
                let (number, _) = self.nodes[index].waiters.pop().unwrap();
                self.nodes[index].arrived.retain(|other| *other != number);
                self.evaluate(index, &[])?;
            }
            Step::Die(index) => {
                self.faults_left[2] -= 1;
                let node = &mut self.nodes[index];
                (node.is_up, node.is_notified) = (false, false);
                node.waiters.clear();
                node.arrived.clear();
            }
            Step::Pause(ms) => self.pass(ms),
        }
        Ok(())
    }

    fn pass(&mut self, ms: u64) {
        self.now += ms;
        let now = at(self.now);
        self.claim.take_if(|(_, lease)| lease.expires_at <= now);
    }

    /// A batch of one node, from the load to the commit: another commit in between makes it begin again, so there is none.
    fn evaluate(&mut self, index: usize, commands: &[Command]) -> Result<(), String> {
        let now = at(self.now);
        let node = &mut self.nodes[index];
        let (queue, ranks) = node.queue();
        let arrived: Vec<Rank> =
            ranks.iter().filter(|(number, _)| node.arrived.contains(number)).map(|(_, rank)| *rank).collect();
        let batch = Batch { commands, arrived: &arrived, ..Batch::default() };
        let done = evaluate(&self.state, batch, &queue, &node.id, now, Terms::FREE);
        node.arrived.clear();
        let before = std::mem::replace(&mut self.state, done.state);
        node.cache = self.state.clone();
        for (rank, outcome) in done.answered {
            let number = queue.get(rank).unwrap().id;
            let (_, arrival) = *node.waiters.iter().find(|(waiter, _)| *waiter == number).unwrap();
            node.waiters.retain(|(waiter, _)| *waiter != number);
            let Outcome::Granted(grant) = outcome else { return Err(format!("{number} is answered {outcome:?}")) };
            let is_passed = |turn: &&latchgate_core::lock::Turn| {
                turn.node != node.id && turn.until > now && turn.position.rank() < position(arrival, number).rank()
            };
            if let Some(turn) = before.turns().iter().find(is_passed) {
                return Err(format!("{number} passes {turn:?}"));
            }
            if let Some((holder, lease)) = &self.claim {
                return Err(format!("{number} is granted while {holder} holds {lease:?}"));
            }
            if grant.lease.token <= self.token {
                return Err(format!("the token fell from {} to {}", self.token, grant.lease.token));
            }
            self.token = grant.lease.token;
            self.claim = Some((number, grant.lease));
        }
        // As in `locks/node.rs`.
        let next = self.state.admissible_turn(now).filter(|_| done.changed).map(|turn| turn.node.clone());
        let other = &mut self.nodes[1 - index];
        other.is_notified |= other.is_up && next.as_ref() == Some(&other.id);
        Ok(())
    }
}

fn position(arrival: u64, number: u64) -> Position {
    Position { priority: 1, arrival: at(arrival), serial: number }
}
