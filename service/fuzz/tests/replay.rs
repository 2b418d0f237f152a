//! Each target on a fixed set of inputs: its valid one, and many mutations of it.

use std::panic::catch_unwind;

use latchgate_fuzz::TARGETS;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

const MUTATIONS: u64 = 50_000;

/// Pieces that parsers stumble over.
const PIECES: [&[u8]; 16] = [
    b"\0",
    b"\xff",
    b"\xf0\x9f\x98\x80",
    b"%00",
    b"%2F",
    b"/",
    b"\"",
    b"\\u0000",
    b"18446744073709551615",
    b"-1",
    b"1e400",
    b"null",
    b"{}",
    b"[[[[",
    b"9007199254740993",
    b".",
];

fn mutated(valid: &[u8], random: &mut StdRng) -> Vec<u8> {
    let mut input = valid.to_vec();
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(0..=input.len());
        match random.random_range(0..5) {
            0 if at < input.len() => input[at] = random.random(),
            1 if at < input.len() => drop(input.remove(at)),
            2 => input.truncate(at),
            3 => drop(input.splice(at..at, PIECES[random.random_range(0..PIECES.len())].iter().copied())),
            _ => input.extend((0..random.random_range(0..40)).map(|_| random.random::<u8>())),
        }
    }
    input
}

#[test]
fn no_input_breaks_a_rule() {
    for (name, run, valid) in TARGETS {
        let mut random = StdRng::seed_from_u64(1);
        run(valid.as_bytes());
        for number in 0..MUTATIONS {
            let input = mutated(valid.as_bytes(), &mut random);
            if catch_unwind(|| run(&input)).is_err() {
                panic!("{name}, mutation {number}: {:?}", String::from_utf8_lossy(&input));
            }
        }
    }
}
