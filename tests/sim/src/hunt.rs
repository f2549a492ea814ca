//! Many seeds, and the hunt for the planted bugs.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use crate::{bug::Bug, check::Checker, fault::Fault, run::run};

/// Within so many seeds every planted bug must be caught.
pub const HUNT_SEEDS_MAX: u64 = 2_000;

/// Kinds of events and steps that enough runs reach; one that is missing is a hole in the simulation.
pub const REACHED: &[&str] = &[
    "created",
    "received",
    "model_started",
    "model_started again",
    "model_answered",
    "model_failed",
    "model_failed for good",
    "tool_started",
    "tool_started again",
    "tool_finished ran",
    "tool_finished refused",
    "tool_finished cancelled",
    "tool_finished unknown",
    "turn_ended completed",
    "turn_ended interrupted",
    "turn_ended refused",
    "turn_ended failed",
    "turn_ended modelcalls",
    "turn_ended refusedcalls",
    "turn_ended pauses",
    "turn_ended lostattempts",
    "fenced",
    "ended",
    "step rest done",
    "step wait done",
    "step watch done",
    "step model done",
    "step model fenced",
    "step model leaselost",
    "step tool done",
    "step tool fenced",
    "step tool leaselost",
    "swept",
];

/// What many runs have reached together.
#[derive(Debug, Default)]
pub struct Coverage {
    pub seeds: u64,
    pub faults: BTreeMap<Fault, u64>,
    pub reached: BTreeMap<String, u64>,
    pub virtual_ms: u64,
}

impl Coverage {
    /// Faults that never struck, and kinds of events that were never reached.
    pub fn holes(&self) -> Vec<&'static str> {
        let faults = Fault::ALL.iter().filter(|fault| !self.faults.contains_key(fault));
        let reached = REACHED.iter().filter(|what| !self.reached.contains_key(**what));
        faults.map(|fault| fault.name()).chain(reached.copied()).collect()
    }

    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.virtual_ms += other.virtual_ms;
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        for (what, count) in other.reached {
            *self.reached.entry(what).or_default() += count;
        }
    }
}

/// A seed that failed, and what its first violation was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub seed: u64,
    pub checker: Checker,
    pub what: String,
}

/// Runs `seeds` seeds from `start` on, on all processors; the failures are in order of seed.
pub fn survey(start: u64, seeds: u64) -> (Coverage, Vec<Failure>) {
    let next = AtomicU64::new(start);
    let result = Mutex::new((Coverage::default(), Vec::new()));
    thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                let (mut coverage, mut failures) = (Coverage::default(), Vec::new());
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= start + seeds {
                        break;
                    }
                    let outcome = run(seed, None, false);
                    coverage.add(Coverage {
                        seeds: 1,
                        faults: outcome.notes.faults,
                        reached: outcome.notes.reached,
                        virtual_ms: outcome.took_ms,
                    });
                    let first = outcome.violations.into_iter().next();
                    failures.extend(first.map(|violation| Failure {
                        seed,
                        checker: violation.checker,
                        what: violation.what,
                    }));
                }
                let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
                result.0.add(coverage);
                result.1.extend(failures);
            });
        }
    });
    let (coverage, mut failures) = result.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.sort_by_key(|failure| failure.seed);
    (coverage, failures)
}

/// For each planted bug the first seed from 1 on that catches it, and who saw it.
pub fn hunt_all() -> Vec<(Bug, Option<Failure>)> {
    let next = AtomicU64::new(0);
    let found = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                loop {
                    let at = usize::try_from(next.fetch_add(1, Ordering::Relaxed));
                    let Some(&bug) = at.ok().and_then(|at| Bug::ALL.get(at)) else { break };
                    let caught = hunt(bug);
                    found.lock().unwrap_or_else(PoisonError::into_inner).insert(bug, caught);
                }
            });
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
}

fn hunt(bug: Bug) -> Option<Failure> {
    (1..=HUNT_SEEDS_MAX).find_map(|seed| {
        let first = run(seed, Some(bug), false).violations.into_iter().next()?;
        Some(Failure { seed, checker: first.checker, what: first.what })
    })
}

/// Each run lives on one thread.
fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
