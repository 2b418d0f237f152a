//! Fuzz targets. Each takes any bytes, and panics if a rule is broken. `tests/replay.rs` runs them on fixed inputs in every test
//! run; `make fuzz` runs them under libFuzzer.

mod bytes;
mod canonical;
mod contents;
mod names;
mod records;
mod states;

use latchgate_node::http::fuzz_targets;
use latchgate_node::store::redis::fuzz_targets as redis;

/// A name, what takes the bytes, and a valid input that mutations begin with.
pub type Target = (&'static str, fn(&[u8]), &'static str);

pub const TARGETS: [Target; 9] = [
    ("names", names::names, "orders/42 \u{e9}"),
    (
        "contents",
        contents::contents,
        r#"{"b":[1,2.5e-7,null],"a":"\u00e9","A":-0.0,"\ud83d\ude00":{"n":9007199254740991}}"#,
    ),
    ("state", states::state, STATE),
    ("record", records::record, RECORD),
    ("redis-state", redis::redis_state, "7 1700000060000 1700000030000 0: {\"token\":5,\"v\":1}"),
    ("redis-url", redis::redis_url, "redis+sentinel://user:correct-horse@[::1]:1,b:2/service/3"),
    ("request", fuzz_targets::request, "/v1/locks/a%2Fb/acquire?app=x&wait_ms=5\n{\"ttl_ms\":1000,\"metadata\":{}}"),
    ("ticket", fuzz_targets::ticket, "eyJhIjoiIn0.AAAA"),
    ("cursor", fuzz_targets::cursor, "1700000000000.12"),
];

const STATE: &str = concat!(
    r#"{"token":1740800000000000,"v":1,"holders":[{"lease_id":"l1","owner":"o","token":1740800000000000,"ttl_ms":30000,"#,
    r#""granted_at":1700000000000,"expires_at":1700000030000}],"turns":[{"node":"n","position":{"priority":1,"#,
    r#""arrival":1700000000000},"waiting":1,"until":1700000005000}]}"#,
    "\0\u{1}\u{2}\u{3}\u{4}\u{5}\u{6}"
);
const RECORD: &str = concat!(
    r#"{"operation":"charge","sha256":"0000000000000000000000000000000000000000000000000000000000000000","#,
    r#""created_at":1700000000000,"attempt":1,"on_expiry":"block","durability":"fast","phase":"#,
    r#"{"started":{"stamp":"00000000000000000000000000000001","at":1700000000000,"lease_ms":60000,"lease_until":1700000060000}}}"#,
    "\0\u{1}\u{2}\u{3}\u{4}\u{5}\u{6}"
);

/// The target of this name.
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS.iter().find(|(of, ..)| *of == name).map(|(_, run, _)| *run)
}
