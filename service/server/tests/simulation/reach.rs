//! What nodes have made of engine records, by name: each must occur in the default runs of a pair.

use std::cell::RefCell;
use std::sync::{Arc, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::log::Log;

thread_local!(static LOG: RefCell<Option<Arc<Log>>> = const { RefCell::new(None) });

/// From now on, what nodes of this thread make of engine records is counted in this log, by the reason.
pub fn count_in(log: &Arc<Log>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Decisions).unwrap());
    LOG.set(Some(Arc::clone(log)));
}

struct Decisions;

struct Why;

impl Visit for Why {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "why" {
            LOG.with_borrow(|log| log.iter().for_each(|log| log.saw(value.to_owned())));
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for Decisions {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target() == "latchgate_node::engines::pair"
            && metadata.fields().field("why").is_some()
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Why);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
