//! What a Redis answers, for the fuzz targets: each reader takes any bytes, and either reads them or refuses them.

use super::{Target, gate, layout};

pub fn redis_state(input: &[u8]) {
    let _ = layout::decode(Some(input));
    let _ = std::str::from_utf8(input).ok().and_then(layout::read_indexed);
}

pub fn redis_record(input: &[u8]) {
    let _ = gate::decode(input);
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
