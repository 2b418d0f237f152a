//! The committer of operations: as that of locks, without queues.

use std::collections::BTreeMap;
use std::sync::Arc;

use latchgate_core::Address;
use latchgate_core::gate::{Command, Phase};
use tokio::sync::mpsc;

use super::kind::{Context, Gating, Input, Reply, State};
use super::waits::Waits;
use crate::failure::Failure;
use crate::node::{Apart, BATCH_MAX, Cache, Done, Failed, Node, Served, UnderWay, Work, gather, run, run_locked};
use crate::store::Epoch;

/// How many claims a node remembers: a post or a heartbeat begins with one, without a load.
const CLAIMS_MAX: usize = 8_192;
const CLAIMS_BYTES_MAX: usize = 32 << 20;

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
    under_way: UnderWay<Call, Gating>,
}

type Inputs = BTreeMap<Address, Input>;

impl Committer {
    pub(super) fn new(node: Arc<Node>, waits: Arc<Waits>, calls: mpsc::Receiver<Call>) -> Self {
        let cache = Cache::new(CLAIMS_MAX, CLAIMS_BYTES_MAX);
        Self { node, waits, calls, cache, under_way: UnderWay::default() }
    }

    /// Serves until every handle has been dropped.
    pub(super) async fn run(mut self) {
        let mut calls = Vec::with_capacity(BATCH_MAX);
        // How many calls were taken that no batch has begun with.
        let (mut inputs, mut taken, mut is_over) = (Inputs::new(), 0, false);
        while !is_over || !self.under_way.is_empty() {
            let has_room = !is_over && taken < BATCH_MAX;
            tokio::select! {
                biased;
                count = self.calls.recv_many(&mut calls, BATCH_MAX), if has_room => is_over = count == 0,
                Some(served) = self.under_way.next(), if !self.under_way.is_empty() => {
                    self.take_back(served, &mut inputs);
                }
            }
            // However many calls come.
            while let Some(served) = self.under_way.try_next() {
                self.take_back(served, &mut inputs);
            }
            gather(&mut self.calls, &mut calls).await;
            taken += calls.len();
            calls.drain(..).for_each(|call| self.take(call, &mut inputs));
            if self.under_way.may_begin(inputs.len()) {
                taken = 0;
                self.serve(std::mem::take(&mut inputs));
            }
        }
    }

    /// Operations come back: they are answered, and what has arrived meanwhile is served.
    fn take_back(&mut self, served: Served<Gating>, inputs: &mut Inputs) {
        if served.has_guessed_wrong {
            self.cache.guessed_wrong();
        }
        served.apart.into_iter().for_each(|apart| self.set_apart(apart));
        for done in served.done {
            let arrived = self.under_way.leave(&done);
            self.answer(done);
            arrived.calls.into_iter().for_each(|call| self.take(call, inputs));
        }
    }

    fn take(&mut self, call: Call, inputs: &mut Inputs) {
        if let Some(arrived) = self.under_way.arrived(&call.address) {
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

    /// Begins a batch.
    fn serve(&mut self, inputs: Inputs) {
        if !self.node.health.is_up() {
            for input in inputs.into_values() {
                fail(input.replies, &Failure::StoreUnavailable("the store does not answer".to_owned()));
            }
            return;
        }
        let epoch = self.node.store.epoch();
        let mut works = Vec::with_capacity(inputs.len());
        for (address, input) in inputs {
            let work = self.work(address, input, epoch);
            match self.under_way.is_busy(&work.address) {
                true => self.set_apart(Apart { work, is_busy: true }),
                false => works.push(work),
            }
        }
        if works.is_empty() {
            return;
        }
        let (node, waits) = (Arc::clone(&self.node), Arc::clone(&self.waits));
        self.under_way
            .begin(works, async move |works| run::<Gating>(&node, Context { node: &node, waits: &waits }, works).await);
    }

    fn work(&mut self, address: Address, input: Input, epoch: Epoch) -> Box<Work<Gating>> {
        let base = self.cache.base(&address, epoch);
        // A pre is mostly the first of its operation: it claims without looking.
        let is_new = matches!(input.commands.first(), Some(Command::Pre(_)));
        let base = base.or_else(|| (is_new && self.cache.may_guess_absent(&address)).then(Arc::default));
        Box::new(Work { address, input, base, epoch, is_fresh: false, losses: 0 })
    }

    fn set_apart(&mut self, apart: Apart<Gating>) {
        self.cache.remove(&apart.work.address);
        let (node, waits) = (Arc::clone(&self.node), Arc::clone(&self.waits));
        self.under_way.begin_apart(Arc::clone(&self.node), apart, async move |work, deadline| {
            run_locked::<Gating>(&node, Context { node: &node, waits: &waits }, work, deadline).await
        });
    }

    fn answer(&mut self, Done { work, result }: Done<Gating>) {
        let replies = work.input.replies;
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
