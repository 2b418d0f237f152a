//! Nodes notify each other of ends of operations by LISTEN and NOTIFY. A notification serialises commits, so one is sent only for
//! a record that says that a pre waits.

use latchgate_core::App;
use latchgate_core::gate::OperationAddress;

use crate::store::gate::WakeUp;

pub(super) const CHANNEL: &str = "latchgate_operations";

pub(super) fn payload(address: &OperationAddress) -> String {
    serde_json::json!([address.app, address.id]).to_string()
}

/// What is not ours to read: look at everything rather than at nothing.
pub(super) fn read(payload: &str) -> Vec<WakeUp> {
    let parsed = serde_json::from_str::<(App, _)>(payload);
    vec![parsed.map_or(WakeUp::All, |(app, id)| WakeUp::Operation(OperationAddress { app, id }))]
}
