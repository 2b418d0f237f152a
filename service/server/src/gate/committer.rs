//! The committer of operations: as that of locks, without queues.

use std::collections::BTreeMap;
use std::sync::Arc;

use latchgate_core::Address;
use latchgate_core::gate::{Command, Outcome, Phase};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::kind::{Context, Gating, State};
use super::waits::Waits;
use crate::failure::{Answer, Failure};
use crate::node::{Apart, ApartKeys, BATCH_MAX, Cache, Done, Failed, Node, Returned, Work, gather, run, run_locked};
use crate::store::Epoch;

/// How many claims a node remembers: a post or a heartbeat begins with one, without a load.
const CLAIMS_MAX: usize = 8_192;
const CLAIMS_BYTES_MAX: usize = 32 << 20;

/// What a command came to, and the record then.
pub(super) type Applied = (Outcome, State);
type Reply = oneshot::Sender<Answer<Applied>>;

pub(super) struct Call {
    pub address: Address,
    pub command: Command,
    pub reply: Reply,
}

pub(super) struct Committer {
    node: Arc<Node>,
    waits: Arc<Waits>,
    calls: mpsc::Receiver<Call>,
    cache: Cache<State>,
    apart: ApartKeys<Call, Gating, Vec<Reply>>,
}

/// What one batch brings to one operation.
#[derive(Default)]
struct Input {
    commands: Vec<Command>,
    /// One for each command, in order.
    replies: Vec<Reply>,
}

type Inputs = BTreeMap<Address, Input>;

impl Committer {
    pub(super) fn new(node: Arc<Node>, waits: Arc<Waits>, calls: mpsc::Receiver<Call>) -> Self {
        let cache = Cache::new(CLAIMS_MAX, CLAIMS_BYTES_MAX);
        Self { node, waits, calls, cache, apart: ApartKeys::default() }
    }

    /// Serves until every handle has been dropped.
    pub(super) async fn run(mut self) {
        let mut calls = Vec::with_capacity(BATCH_MAX);
        loop {
            let mut inputs = Inputs::new();
            let mut returned = Vec::new();
            tokio::select! {
                biased;
                count = self.calls.recv_many(&mut calls, BATCH_MAX) => {
                    if count == 0 {
                        return;
                    }
                }
                Some(one) = self.apart.next(), if !self.apart.is_empty() => returned.push(one),
            }
            // However many calls come.
            while let Some(one) = self.apart.try_next() {
                returned.push(one);
            }
            for (one, arrived) in returned {
                let Returned { done, luggage, is_busy } = one;
                let address = done.work.address.clone();
                if is_busy {
                    self.apart.set_busy(&address, "its state in the store could not be locked in time");
                }
                self.answer(done, luggage);
                arrived.calls.into_iter().for_each(|call| self.take(call, &mut inputs));
            }
            gather(&mut self.calls, &mut calls).await;
            calls.drain(..).for_each(|call| self.take(call, &mut inputs));
            if !inputs.is_empty() {
                self.serve(inputs).await;
            }
        }
    }

    fn take(&mut self, call: Call, inputs: &mut Inputs) {
        if let Some(arrived) = self.apart.arrived(&call.address) {
            if arrived.calls.len() < self.node.limits.calls_max {
                arrived.calls.push(call);
            } else {
                let _ = call.reply.send(Err(Failure::Overloaded("too many calls wait for this operation")));
            }
            return;
        }
        let input = inputs.entry(call.address).or_default();
        input.commands.push(call.command);
        input.replies.push(call.reply);
    }

    /// Evaluates, commits and answers one batch.
    async fn serve(&mut self, mut inputs: Inputs) {
        if !self.node.health.is_up() {
            for input in inputs.into_values() {
                fail(input.replies, &Failure::StoreUnavailable("the store does not answer".to_owned()));
            }
            return;
        }
        let epoch = self.node.store.epoch();
        let (mut works, mut apart) = (Vec::with_capacity(inputs.len()), Vec::new());
        for (address, input) in &mut inputs {
            let work = self.work(address, input, epoch);
            match self.apart.is_busy(address) {
                true => apart.push(Apart { work, is_busy: true }),
                false => works.push(work),
            }
        }
        let context = Context { node: &self.node, waits: &self.waits };
        let served = run::<Gating>(&self.node, context, works).await;
        if served.has_guessed_wrong {
            self.cache.guessed_wrong();
        }
        for done in served.done {
            if let Some(input) = inputs.remove(&done.work.address) {
                self.answer(done, input.replies);
            }
        }
        for one in apart.into_iter().chain(served.apart) {
            if let Some(input) = inputs.remove(&one.work.address) {
                self.set_apart(one, input.replies);
            }
        }
    }

    fn work(&mut self, address: &Address, input: &mut Input, epoch: Epoch) -> Box<Work<Gating>> {
        let base = self.cache.base(address, epoch);
        // A pre is mostly the first of its operation: it claims without looking.
        let is_new = matches!(input.commands.first(), Some(Command::Pre(_)));
        let base = base.or_else(|| (is_new && self.cache.may_guess_absent(address)).then(Arc::default));
        let input = std::mem::take(&mut input.commands);
        Box::new(Work { address: address.clone(), input, base, epoch, is_fresh: false, losses: 0 })
    }

    fn set_apart(&mut self, apart: Apart<Gating>, replies: Vec<Reply>) {
        let address = apart.work.address.clone();
        if apart.is_busy {
            self.apart.set_busy(&address, "another session keeps its row locked");
        }
        self.cache.remove(&address);
        let (node, waits) = (Arc::clone(&self.node), Arc::clone(&self.waits));
        self.apart.begin(Arc::clone(&self.node), apart, replies, async move |work, replies, deadline: Instant| {
            let context = Context { node: &node, waits: &waits };
            (run_locked::<Gating>(&node, context, work, deadline).await, replies)
        });
    }

    fn answer(&mut self, Done { work, result }: Done<Gating>, replies: Vec<Reply>) {
        match result {
            Ok((stored, evaluation)) => {
                // Most others are read once more, if at all, and for an answer they are loaded.
                let is_claim = stored.state.as_ref().is_some_and(|record| matches!(record.phase, Phase::Started(_)));
                match is_claim {
                    true => self.cache.put(work.address, stored, work.epoch),
                    false => self.cache.remove(&work.address),
                }
                for (reply, applied) in replies.into_iter().zip(evaluation.applied) {
                    // A caller that has gone needs no reply.
                    let _ = reply.send(Ok(applied));
                }
            }
            Err(Failed { failure, .. }) => {
                self.cache.remove(&work.address);
                if matches!(failure, Failure::Unreadable { .. }) {
                    self.apart.set_busy(&work.address, &failure.to_string());
                }
                fail(replies, &failure);
            }
        }
    }
}

fn fail(replies: Vec<Reply>, failure: &Failure) {
    for reply in replies {
        let _ = reply.send(Err(failure.clone()));
    }
}
