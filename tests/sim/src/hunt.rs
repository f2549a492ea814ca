//! Many seeds, and the hunt for the planted bugs.

use std::collections::BTreeMap;

use crate::{bug::Bug, check::Checker, fault::Fault, run::run};

/// Within so many seeds every planted bug must be caught.
pub const HUNT_SEEDS_MAX: u64 = 2_000;

/// What many runs have reached together.
#[derive(Debug, Default)]
pub struct Coverage {
    pub faults: BTreeMap<Fault, u64>,
    pub reached: BTreeMap<String, u64>,
    pub virtual_ms: u64,
}

/// A seed that failed.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub checker: Checker,
    pub what: String,
}

/// Runs the seeds from `start` on; stops at the first failure.
pub fn survey(start: u64, seeds: u64, coverage: &mut Coverage) -> Option<Failure> {
    for seed in start..start + seeds {
        let outcome = run(seed, None, false);
        for (fault, count) in &outcome.notes.faults {
            *coverage.faults.entry(*fault).or_default() += count;
        }
        for (what, count) in outcome.notes.reached {
            *coverage.reached.entry(what).or_default() += count;
        }
        coverage.virtual_ms += outcome.took_ms;
        if let Some(first) = outcome.violations.into_iter().next() {
            return Some(Failure { seed, checker: first.checker, what: first.what });
        }
    }
    None
}

/// The first seed from 1 on that catches `bug`, and who saw it.
pub fn hunt(bug: Bug) -> Option<Failure> {
    (1..=HUNT_SEEDS_MAX).find_map(|seed| {
        let first = run(seed, Some(bug), false).violations.into_iter().next()?;
        Some(Failure { seed, checker: first.checker, what: first.what })
    })
}
