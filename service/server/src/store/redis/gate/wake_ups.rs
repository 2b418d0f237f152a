//! Ends of operations told from node to node by publish and subscribe.

use latchgate_core::App;
use latchgate_core::gate::OperationAddress;

use crate::store::gate::WakeUp;

pub(super) fn payload(address: &OperationAddress) -> String {
    serde_json::json!([address.app, address.id]).to_string()
}

/// What is not ours to read: look at everything rather than at nothing.
pub(super) fn unpack(payload: &[u8]) -> Vec<WakeUp> {
    let parsed = serde_json::from_slice::<(App, _)>(payload);
    vec![parsed.map_or(WakeUp::All, |(app, id)| WakeUp::Operation(OperationAddress { app, id }))]
}
