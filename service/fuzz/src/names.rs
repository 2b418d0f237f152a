//! Names: what is accepted keeps every rule, and is what was given.

use latchgate_core::lock::{LeaseId, Owner};
use latchgate_core::{App, Key};

pub fn names(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let is_name = |max: usize| (1..=max).contains(&text.len()) && !text.chars().any(char::is_control);
    assert_eq!(Key::parse(text).is_ok(), is_name(512), "{text:?}");
    assert_eq!(App::parse(text).is_ok(), is_name(64), "{text:?}");
    assert_eq!(Owner::parse(text).is_ok(), is_name(256) && !text.starts_with("anonymous-"), "{text:?}");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    assert_eq!(LeaseId::parse(text).is_ok(), (1..=64).contains(&text.len()) && text.chars().all(is_plain), "{text:?}");
    // A client accepts or refuses a base URL; it never panics.
    let _ = latchgate_client::Client::new([text]);
}
