//! How waiters join and leave the queues of the committer.

use latchgate_core::Address;
use latchgate_core::lock::{Acquire, Position, QueuePosition, WaiterId};

use super::batch_input::Inputs;
use super::call::{AcquireCall, Delivery, Failure, GiveBackOnDrop};
use super::committer::Committer;
use super::key_queue::{KeyQueue, ReplyHandle, Waiter};

impl Committer {
    pub(super) fn enqueue(&mut self, address: Address, call: AcquireCall, inputs: &mut Inputs) {
        let AcquireCall { id, request, requested_at, is_probe, reply } = call;
        let limits = &self.node.limits;
        let waits = !request.wait.is_zero();
        let is_full = || self.queues.get(&address).is_some_and(|queue| queue.queue.len() >= limits.waiters_per_key);
        let give_back = GiveBackOnDrop::new(self.home.clone(), address.clone());
        if waits && (self.waiters >= limits.waiters_max || is_full()) {
            let failure = Failure::Overloaded("too many callers wait already");
            let _ = reply.send(Delivery::new(Err(failure), give_back));
            return;
        }
        // Without a clock the load fails too, and the arrival orders nothing.
        let arrival = self.node.clock.arrival(requested_at).unwrap_or_default();
        let position = Position { priority: request.priority, arrival, serial: id };
        if let Some(position) = request.position {
            self.ended_waits.resumed(&address, position);
        }
        let waiter = Waiter {
            id,
            request: Acquire {
                lease: request.lease,
                node: self.node.id.clone(),
                position: request.position.unwrap_or(position),
                queue_position: QueuePosition::Unknown,
            },
            deadline: waits.then(|| requested_at + request.wait),
            is_returning: request.position.is_some(),
            is_probe,
            may_be_granted: !request.is_new_lease,
            reply: ReplyHandle { sender: reply, requested_at, give_back },
        };
        let rank = self.queues.entry(address.clone()).or_default().queue.insert(waiter);
        self.waiters += 1;
        inputs.entry(address).or_default().arrived.push(rank);
    }

    /// The client of a waiter has gone.
    pub(super) fn leave(&mut self, address: Address, id: WaiterId, inputs: &mut Inputs) {
        let Some(KeyQueue { queue, .. }) = self.queues.get_mut(&address) else { return };
        let was_waiting = queue.rank_of(id).and_then(|rank| queue.remove(rank)).is_some();
        self.waiters -= usize::from(was_waiting);
        if was_waiting || queue.drop_reserved(id) {
            inputs.entry(address).or_default();
        }
    }

    /// The node shuts down: every wait ends with a ticket.
    pub(super) fn end_waits(&mut self, inputs: &mut Inputs) {
        for (address, queue) in &mut self.queues {
            let ended = queue.queue.all_waiting();
            // A client resumes its wait at another node, so the turn of this node must not block it there.
            let had_reserved = queue.queue.drop_all_reservations();
            if had_reserved || !ended.is_empty() {
                inputs.entry(address.clone()).or_default().ended = ended;
            }
        }
    }
}
