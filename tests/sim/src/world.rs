//! What all actors of a run share: time, chance, the stores behind the ports, and the notes that the
//! checkers read afterwards.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tailstep_core::ids::SessionKey;
use tailstep_runtime::memory::{MemoryLog, MemoryQueue, TokioClock};
use tokio::time::Instant;

use crate::{
    actor::{Actor, Role},
    bug::Bug,
    check::{Checker, Violation},
    fault::Fault,
    notes::Notes,
    plan::{Latency, Plan},
    rng::SplitMix64,
    truth::Truth,
};

/// Wall time at the start of every run.
pub const START_MS: u64 = 1_800_000_000_000;

/// Violations kept; the first ones say what happened.
const VIOLATIONS_MAX: usize = 20;

pub struct World {
    pub plan: Plan,
    pub bug: Option<Bug>,
    pub log: MemoryLog,
    pub queue: MemoryQueue,
    start: Instant,
    traced: bool,
    state: Mutex<State>,
}

pub struct State {
    pub rng: SplitMix64,
    /// Faults have stopped.
    pub calm: bool,
    /// The log store answers nobody until then.
    pub outage_until_ms: u64,
    pub truths: BTreeMap<SessionKey, Truth>,
    pub notes: Notes,
    pub violations: Vec<Violation>,
    pub trace: Vec<String>,
    /// Sessions that a planted bug has put on the sweeper's list.
    pub due_for_ever: BTreeSet<SessionKey>,
    pub actors_count: usize,
    workers: Vec<Weak<Actor>>,
}

impl World {
    /// A fresh world; must be made inside the runtime whose paused time it lives in.
    pub fn new(plan: Plan, bug: Option<Bug>, traced: bool) -> Arc<Self> {
        let clock = Arc::new(TokioClock::starting_at(START_MS));
        let state = State {
            // Another stream than the plan's.
            rng: SplitMix64::new(plan.seed ^ 0x005e_ed0f_fa17),
            calm: plan.faults.is_empty(),
            outage_until_ms: 0,
            truths: BTreeMap::new(),
            notes: Notes::default(),
            violations: Vec::new(),
            trace: Vec::new(),
            due_for_ever: BTreeSet::new(),
            actors_count: 0,
            workers: Vec::new(),
        };
        Arc::new(Self {
            queue: MemoryQueue::new(clock, plan.visibility_ms),
            log: MemoryLog::default(),
            start: Instant::now(),
            traced,
            state: Mutex::new(state),
            plan,
            bug,
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the shared state, or changes it, without holding it across a wait.
    pub fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state())
    }

    /// A new process starts.
    pub fn enter(self: &Arc<Self>, role: Role) -> Arc<Actor> {
        let mut state = self.state();
        let id = state.actors_count;
        state.actors_count += 1;
        drop(state);
        let actor = Actor::new(self, id, role);
        if role == Role::Worker {
            self.state().workers.push(Arc::downgrade(&actor));
        }
        actor
    }

    /// The workers that live.
    pub fn actors(&self) -> Vec<Arc<Actor>> {
        let mut state = self.state();
        state.workers.retain(|worker| worker.strong_count() > 0);
        state.workers.iter().filter_map(Weak::upgrade).collect()
    }

    /// True time since the start, which no actor can read.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether `fault` strikes now; counted if it does.
    pub fn hit(&self, fault: Fault) -> bool {
        if !self.plan.on(fault) {
            return false;
        }
        let mut state = self.state();
        if state.calm || state.rng.below(10_000) >= fault.rate() * self.plan.intensity / 100 {
            return false;
        }
        state.notes.fault(fault);
        drop(state);
        self.trace("fault", || fault.name().to_owned());
        true
    }

    /// Counts a fault that was drawn with the plan, when it happens.
    pub fn note(&self, fault: Fault) {
        self.state().notes.fault(fault);
        self.trace("fault", || fault.name().to_owned());
    }

    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub fn between(&self, low: u64, high: u64) -> u64 {
        self.state().rng.between(low, high)
    }

    /// How long one half of a port call takes.
    pub fn latency_ms(&self) -> u64 {
        if self.hit(Fault::LatencySpike) {
            return self.between(1_000, 8_000);
        }
        let mut state = self.state();
        match self.plan.latency {
            Latency::Instant if state.rng.percent(90) => 0,
            Latency::Instant => state.rng.between(1, 2),
            Latency::Near if state.rng.percent(50) => 0,
            Latency::Near => state.rng.between(1, 8),
            Latency::Far => state.rng.between(5, 200),
        }
    }

    pub fn violate(&self, checker: Checker, what: impl FnOnce() -> String) {
        let at_ms = self.now_ms();
        let mut state = self.state();
        if state.violations.len() < VIOLATIONS_MAX {
            state
                .violations
                .push(Violation { checker, what: format!("{} (at {at_ms} ms)", what()) });
        }
        if let (true, Some(last)) = (self.traced, state.violations.last()) {
            let line = format!("{at_ms:>9}  !!!!  {checker:?}: {}", last.what);
            state.trace.push(line);
        }
    }

    pub fn trace(&self, who: impl fmt::Display, what: impl FnOnce() -> String) {
        if self.traced {
            let line = format!("{:>9}  {who:<9} {}", self.now_ms(), what());
            self.state().trace.push(line);
        }
    }

    /// Ends all faults; only the nets that the plan took away stay away.
    pub fn calm_down(&self) {
        let mut state = self.state();
        state.calm = true;
        state.outage_until_ms = 0;
        drop(state);
        self.trace("world", || "faults stop".to_owned());
    }
}

/// Lets time pass; no time at all still lets the others run first.
pub async fn pass_ms(ms: u64) {
    if ms == 0 {
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}
