//! Each target on a fixed set of inputs: its valid one, and many mutations of it.

use std::panic::catch_unwind;

use latchgate_fuzz::TARGETS;

const MUTATIONS: u64 = 50_000;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

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

fn mutated(valid: &[u8], random: &mut Random) -> Vec<u8> {
    let mut input = valid.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(input.len() + 1);
        match random.below(5) {
            0 if at < input.len() => input[at] = random.byte(),
            1 if at < input.len() => drop(input.remove(at)),
            2 => input.truncate(at),
            3 => drop(input.splice(at..at, PIECES[random.below(PIECES.len())].iter().copied())),
            _ => input.extend((0..random.below(40)).map(|_| random.byte())),
        }
    }
    input
}

#[test]
fn no_input_breaks_a_rule() {
    for (name, run, valid) in TARGETS {
        let mut random = Random(1);
        run(valid.as_bytes());
        for number in 0..MUTATIONS {
            let input = mutated(valid.as_bytes(), &mut random);
            if catch_unwind(|| run(&input)).is_err() {
                panic!("{name}, mutation {number}: {:?}", String::from_utf8_lossy(&input));
            }
        }
    }
}
