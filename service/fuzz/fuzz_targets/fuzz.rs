//! One target under libFuzzer: the one that the variable `TARGET` names.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("TARGET").expect("TARGET names a target");
    latchgate_fuzz::target(&name).unwrap_or_else(|| panic!("{name} is no target"))
});

fuzz_target!(|input: &[u8]| (*TARGET)(input));
