//! What an operator orders, and the copy: as `order.rs` and `copy.rs` do it, step by step.

use super::*;

impl World {
    /// An operator orders a switch at this node: see `Inner::begin`.
    pub(super) fn order(&mut self, node: usize) -> bool {
        let (readings, known) = (self.readings(), self.nodes[node].epoch);
        let is_active = |reading: &Reading| reading.is(Active) && reading.epoch() >= known;
        let Some(from) = readings.iter().position(is_active) else { return false };
        let target = &readings[1 - from];
        let is_begun = target.is(Filling) && target.epoch() > readings[from].epoch() && target.copied == 0;
        let next = known.max(readings[0].epoch()).max(readings[1].epoch()).next(NOW);
        self.orders_left -= 1;
        let epoch = if is_begun { target.epoch() } else { next };
        self.nodes[node].order = Some((u8::from(is_begun), epoch, readings));
        true
    }

    /// Its steps: the target is to be filled, is emptied, and the source is frozen.
    pub(super) fn go_on(&mut self, node: usize) -> bool {
        let Some((stage, epoch, readings)) = self.nodes[node].order.take() else { return false };
        let from = usize::from(!readings[0].is(Active));
        let to = 1 - from;
        let goes_on = match stage {
            0 => {
                let filling = EngineRecord::new(Filling, epoch, &pair(), 60_000);
                self.stores[to].write(&readings[to], filling)
            }
            1 => {
                let is_emptied = self.stores[to].is(Filling, epoch) && self.stores[to].reading.copied == 0;
                if is_emptied {
                    self.stores[to].grants = 0;
                }
                is_emptied
            }
            _ => {
                let record = readings[from].record.as_ref().map(|record| record.with_state(Moving, epoch));
                record.map(|record| self.stores[from].write(&readings[from], record));
                false
            }
        };
        self.nodes[node].order = goes_on.then_some((stage + 1, epoch, readings));
        true
    }

    /// The copy of the one page, and then the decision.
    pub(super) fn write_page(&mut self, node: usize) -> bool {
        let Some((from, read, grants)) = self.nodes[node].page.take() else { return false };
        let Store { reading, grants: there } = &mut self.stores[1 - from];
        if !(reading.is(Filling) && reading.epoch() == read.epoch()) {
            return true;
        }
        let copied = 1 + u64::from(grants.count_ones());
        (*there, reading.copied) = (*there | grants, reading.copied.max(copied));
        let retired =
            read.record.as_ref().map(|record| EngineRecord { copied, ..record.with_state(Retired, record.epoch) });
        retired.map(|retired| self.stores[from].write(&read, retired));
        true
    }
}
