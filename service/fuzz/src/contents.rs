//! Contents: the canonical form is the one that a second implementation writes, and is its own canonical form.

use latchgate_core::gate::{Canonical, check_result};

use crate::canonical::canonical;

pub fn contents(input: &[u8]) {
    let _ = check_result("result", input);
    let Ok(form) = Canonical::parse("contents", input) else { return };
    let value = serde_json::from_slice(input).expect("accepted, so it is JSON");
    let expected = canonical(&value);
    let shown = String::from_utf8_lossy(form.as_bytes()).into_owned();
    assert_eq!(shown, expected, "of {}", String::from_utf8_lossy(input));
    let again = Canonical::parse("contents", form.as_bytes()).expect("a canonical form is JSON");
    assert_eq!(again.as_bytes(), form.as_bytes(), "the form of the form of {}", String::from_utf8_lossy(input));
}
