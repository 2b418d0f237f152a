//! The independent judge and the check agree.

use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;

#[test]
fn the_judge_accepts_a_correct_history_and_rejects_broken_ones() {
    assert!(judge(&correct()[..7]));
    let (first, next) = (acquired(1, "a", (0, 2), 10), acquired(2, "b", (5, 7), 11));
    let release = released(1, "a", (3, 4));
    assert!(judge(&[first.clone(), release.clone(), next.clone()]));
    assert!(!judge(&[first.clone(), next.clone()]));
    assert!(!judge(&[first.clone(), release.clone(), Call { token: Some(9), ..next }]));
    assert!(!judge(&[call(1, Verb::Acquire, "a", (0, 2), 423), release]));
    assert!(!judge(&[first, lost(1, Verb::Renew, "a", (3, 4))]));
}

/// A history of a lock that admits a second holder now and then, or forgets its token or a lease.
fn history(random: &mut StdRng) -> Vec<Call> {
    let (mut calls, mut at_ms, mut token) = (Vec::new(), 0, 10);
    let mut held: Option<String> = None;
    for number in 0..random.random_range(2..9) {
        at_ms += random.random_range(5..40);
        let (id, long_ms) = (number.to_string(), random.random_range(1..200));
        let is_broken = random.random_range(0..8) == 0;
        match &held {
            Some(holder) if !is_broken => {
                match random.random_range(0..4) {
                    0 => calls.push(renewed(1, holder, (at_ms, at_ms + 1), token)),
                    1 => {
                        at_ms += TTL_MS + 300;
                        calls.push(lost(1, Verb::Renew, holder, (at_ms, at_ms + 1)));
                        held = None;
                    }
                    _ => {
                        calls.push(released(1, holder, (at_ms, at_ms + 1)));
                        held = None;
                    }
                }
                at_ms += 2;
            }
            _ => {
                token = if is_broken && random.random() { token } else { token + 1 };
                calls.push(acquired(1, &id, (at_ms.saturating_sub(long_ms), at_ms), token));
                held = Some(id);
            }
        }
    }
    calls
}

#[test]
fn the_judge_and_the_check_agree_about_random_histories() {
    let mut random = StdRng::seed_from_u64(7);
    let mut verdicts = [0, 0];
    for _ in 0..2_000 {
        let calls = history(&mut random);
        let rules = broken_with(&calls, &Options::default());
        assert_eq!(judge(&calls), rules.is_empty(), "{rules:?}: {calls:#?}");
        verdicts[usize::from(rules.is_empty())] += 1;
    }
    assert!(verdicts.iter().all(|count| *count > 200), "{verdicts:?}");
}
