//! What a Redis answers, for the fuzz targets: each reader takes any bytes, and either reads them or refuses them.

use latchgate_core::gate::OperationRecord;
use latchgate_core::lock::LockState;

use super::{Target, layout};

pub fn redis_state(input: &[u8]) {
    let _ = layout::decode::<LockState>(Some(input));
    let _ = layout::decode::<Option<OperationRecord>>(Some(input));
    let _ = std::str::from_utf8(input).ok().and_then(layout::read_indexed);
}

/// No error shows the password.
pub fn redis_url(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if text.contains("?ca=") {
        return;
    }
    if let Err(error) = Target::parse(text) {
        let shown = format!("{error:#}");
        let password =
            text.split_once(':').and_then(|(_, rest)| rest.split_once(':')).and_then(|(_, rest)| rest.split_once('@'));
        let secret = password.map_or("", |(password, _)| password);
        assert!(secret.len() < 8 || !shown.contains(secret), "{shown}");
    }
}
