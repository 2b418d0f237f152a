//! Checks the promises of locks and of the gate, from the recorded lines alone. Each file has the rules of one subject.

mod clock;
mod effects;
mod events;
mod exclusion;
mod gate;
mod lease;
mod multilocks;
mod orders;
mod queue;
mod refusals;
mod rule;
mod tokens;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use self::events::Streams;
use self::lease::LeaseHistory;
use self::multilocks::Multilocks;
pub use self::rule::Rule;
use super::{Call, Verb};

/// Most violations that are kept: a broken lock may have very many.
const VIOLATIONS_MAX: usize = 1_000;

/// What the history does not say about the run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// Stores have clocks of their own, or were set during the run: do not compare their expiries, nor arrivals at several nodes
    #[arg(long)]
    pub clocks_differ: bool,
    /// The recorder was killed: what each client did last may have no line
    #[arg(long)]
    pub killed: bool,
}

/// The result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub calls: usize,
    /// Leases with an answer that granted them.
    pub grants: usize,
    /// How often a lock passed from one client to another.
    pub handovers: usize,
    /// Calls that may or may not have been carried out: their client cannot know.
    pub unknown_outcomes: usize,
    /// Grants whose lease had ended, counted from the request, when the answer arrived. They show nothing about holders.
    pub stale_grants: usize,
    /// Leases that a client lost although they had not expired, and neither the client nor an operator had ended them. Only a store
    /// that loses acknowledged commits does that.
    pub lost_early: usize,
    /// Attempts of operations that the gate let proceed.
    pub attempts: usize,
    /// Events that readers of streams received.
    pub events: usize,
    #[serde(skip)]
    pub violations: Vec<Violation>,
}

/// A broken rule, with the calls that show it.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub calls: Vec<Call>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.rule)?;
        let lines = self.calls.iter().map(|call| serde_json::to_string(call).map_err(|_| fmt::Error));
        lines.into_iter().try_for_each(|line| write!(f, "\n  {}", line?))
    }
}

impl Report {
    fn violated<'a>(&mut self, rule: Rule, calls: impl IntoIterator<Item = &'a Call>) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { rule, calls: calls.into_iter().cloned().collect() });
        }
    }
}

/// Looks for broken rules. The calls may be in any order, but those of one stream of events.
pub fn check(calls: &[Call]) -> Report {
    check_with(calls, &Options::default())
}

pub fn check_with(calls: &[Call], options: &Options) -> Report {
    let mut by_key: BTreeMap<&str, Vec<Call>> = BTreeMap::new();
    calls.iter().for_each(|call| by_key.entry(&call.key).or_default().push(call.clone()));
    let mut checker = Checker::new(options.clone());
    by_key.values().for_each(|calls| checker.check(calls));
    checker.report()
}

/// A store has lost data of this time: it went back from its end to its beginning, or its clock was wrong.
#[derive(Clone, Copy)]
struct Loss {
    from_us: u64,
    to_us: u64,
}

impl Loss {
    /// Of what was so at the first moment, some may be gone at the second.
    fn is_between(&self, first_us: u64, second_us: u64) -> bool {
        first_us <= self.to_us && self.from_us <= second_us
    }
}

/// Gets the calls of one key after those of another. Those about all keys come before them.
pub struct Checker {
    options: Options,
    report: Report,
    losses: Vec<Loss>,
    streams: Streams,
    multilocks: Multilocks,
}

impl Checker {
    pub fn new(options: Options) -> Self {
        let (streams, multilocks) = (Streams::default(), Multilocks::default());
        Self { options, report: Report::default(), losses: Vec::new(), streams, multilocks }
    }

    /// The calls of one key.
    pub fn check(&mut self, calls: &[Call]) {
        let of = |verb| calls.iter().filter(move |call| call.verb == verb);
        self.report.calls += calls.iter().filter(|call| !matches!(call.verb, Verb::Event | Verb::Lose)).count();
        self.report.unknown_outcomes +=
            calls.iter().filter(|call| call.verb != Verb::Event && call.is_outcome_unknown()).count();
        if calls.first().is_some_and(|call| call.key.is_empty()) {
            let losses = of(Verb::Lose).map(|call| Loss { from_us: call.sent_us, to_us: call.received_us });
            self.losses.extend(losses);
            return self.streams.open(of(Verb::Event));
        }
        gate::check(calls, &self.losses, &mut self.report);
        let mut leases = LeaseHistory::all(calls, &self.losses);
        if self.options.killed {
            lease::without_last_lines(&mut leases);
        }
        self.count(&leases);
        let (report, options) = (&mut self.report, &self.options);
        effects::check(&leases, calls, &self.losses, report);
        orders::check(&leases, calls, &self.losses, report);
        effects::check_losses(&leases, &self.losses, report);
        exclusion::check(&leases, report);
        tokens::check(&leases, report);
        if !options.clocks_differ && self.losses.is_empty() {
            clock::check(&leases, report);
        }
        // A clock that was set back makes leases last longer than their clients can know.
        if !options.clocks_differ {
            refusals::check(&leases, calls, report);
        }
        queue::check(&leases, calls, &self.losses, options, report);
        self.multilocks.note(&leases);
        self.streams.check(&leases, calls, &self.losses, report);
    }

    fn count(&mut self, leases: &[LeaseHistory<'_>]) {
        let granted = leases.iter().filter(|lease| lease.grant.is_some());
        self.report.grants += granted.clone().count();
        self.report.stale_grants += granted.filter(|lease| !lease.is_held()).count();
        let mut held: Vec<_> = leases.iter().filter(|lease| lease.is_held()).collect();
        held.sort_by_key(|lease| lease.from_us);
        self.report.handovers += held.windows(2).filter(|pair| pair[0].client() != pair[1].client()).count();
    }

    pub fn report(mut self) -> Report {
        self.multilocks.check(&mut self.report);
        self.report
    }
}
