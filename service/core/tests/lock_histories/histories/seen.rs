//! How often the interesting things happened: promises about what never happens prove nothing.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct Seen {
    counts: BTreeMap<&'static str, u32>,
}

impl Seen {
    const ALL: [&'static str; 49] = [
        "granted at once",
        "granted after a wait",
        "granted as the wait ends",
        "a wait ends without the lock",
        "granted to a node before which another stood",
        "granted while others wait at another node",
        "granted again to a repetition",
        "granted again at another node",
        "granted after it had moved to another node",
        "granted at a position that another node's turn still has",
        "nested",
        "nested while revoked",
        "upgrade",
        "upgrade blocked",
        "upgrade blocked by a delay",
        "downgrade",
        "readers together",
        "readers admitted together",
        "permits shared",
        "a limit below what is held",
        "a number above the limit",
        "permits kept",
        "delayed by permits that are kept",
        "refused while closed",
        "refused by the limit of its group",
        "granted ahead of an earlier request of another group",
        "groups took turns",
        "limit mismatch",
        "limit mismatch after a wait",
        "delayed",
        "barge",
        "renewed",
        "granted",
        "released",
        "given_back",
        "expired",
        "revoking",
        "revoked",
        "forced",
        "closed",
        "opened",
        "held_too_long",
        "given back too late",
        "fence passed",
        "fence refused",
        "lost",
        "lease id reused",
        "stale commit",
        "clock off",
    ];

    pub fn note(&mut self, what: &'static str) {
        assert!(Self::ALL.contains(&what), "{what}");
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn note_if(&mut self, is_so: bool, what: &'static str) {
        if is_so {
            self.note(what);
        }
    }

    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    pub fn never(&self) -> Vec<&'static str> {
        Self::ALL.into_iter().filter(|what| !self.counts.contains_key(what)).collect()
    }
}
