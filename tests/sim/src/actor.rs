//! One process of the simulated deployment: a life of a worker, of an API server, or of the sweeper.
//! It dies or stands still at its yield points, which are its port calls.

use std::{
    fmt,
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use tailstep_core::ids::{Seq, SessionKey};
use tailstep_runtime::ports::{Delivery, Entry, Head};
use tokio::sync::Notify;

use crate::{
    fault::Fault,
    notes::{ActorId, Crash},
    world::{World, pass_ms},
};

#[derive(Debug, Clone, Copy)]
pub struct Name(ActorId);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Padded as a whole.
        f.pad(&format!("a{}", self.0))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Worker,
    Api,
    Sweeper,
}

pub struct Actor {
    pub id: ActorId,
    pub role: Role,
    pub world: Arc<World>,
    /// Its clock minus true time.
    pub skew_ms: AtomicI64,
    frozen_until_ms: AtomicU64,
    crashed: Notify,
    /// The message that it works on.
    holding: Mutex<Holding>,
    /// The record of the last intent that it wrote.
    pub intent: AtomicU64,
    /// It has an effect under way.
    pub in_effect: AtomicBool,
    /// It serves a request that was sent before.
    pub repeated: AtomicBool,
    /// It has appended something.
    pub has_appended: AtomicBool,
    postponed: Mutex<Option<Postponed>>,
}

/// An append that a planted bug holds back.
pub type Postponed = (SessionKey, Entry, Head);

#[derive(Default)]
struct Holding {
    delivery: Option<Delivery>,
    /// It will come back after a lease at most.
    hidden: bool,
    /// The step has written or sent something.
    acted: bool,
}

impl Actor {
    pub fn new(world: &Arc<World>, id: ActorId, role: Role) -> Arc<Self> {
        let skew_ms = match world.plan.skew_ms_max {
            max if world.plan.on(Fault::ClockSkew) => {
                world.note(Fault::ClockSkew);
                i64::try_from(world.between(0, 2 * max)).unwrap_or(0)
                    - i64::try_from(max).unwrap_or(0)
            }
            _ => 0,
        };
        Arc::new(Self {
            id,
            role,
            world: world.clone(),
            skew_ms: AtomicI64::new(skew_ms),
            frozen_until_ms: AtomicU64::new(0),
            crashed: Notify::new(),
            holding: Mutex::default(),
            intent: AtomicU64::new(0),
            in_effect: AtomicBool::new(false),
            repeated: AtomicBool::new(false),
            has_appended: AtomicBool::new(false),
            postponed: Mutex::default(),
        })
    }

    /// What it is called in the trace.
    pub fn name(&self) -> Name {
        Name(self.id)
    }

    /// A yield point: time passes, and the process may die or stand still here.
    pub async fn pause(&self, what: &'static str) {
        let latency_ms = self.world.latency_ms();
        if latency_ms >= 1_000 {
            self.world.state().notes.trouble(self.id);
        }
        pass_ms(latency_ms).await;
        self.thaw().await;
        match self.role {
            Role::Worker => {
                if self.world.hit(Fault::WorkerStall) {
                    self.freeze().await;
                }
                if self.may_crash() && self.world.hit(Fault::WorkerCrash) {
                    self.die(what).await;
                }
            }
            Role::Api | Role::Sweeper => {
                if self.world.hit(Fault::ApiCrash) {
                    self.die(what).await;
                }
            }
        }
    }

    /// Stands still for longer than others may wait for it.
    pub async fn freeze(&self) {
        let lease_ms = self.world.plan.limits.lease_ms;
        let ms = self.world.between(lease_ms / 2, lease_ms * 4);
        self.world.state().notes.trouble(self.id);
        self.frozen_until_ms.store(self.world.now_ms() + ms, Ordering::Relaxed);
        self.thaw().await;
    }

    /// Goes on only when the process is not standing still.
    pub async fn thaw(&self) {
        loop {
            let until_ms = self.frozen_until_ms.load(Ordering::Relaxed);
            if until_ms == 0 {
                return;
            }
            let now_ms = self.world.now_ms();
            if until_ms <= now_ms || self.world.state().calm {
                return;
            }
            pass_ms((until_ms - now_ms).min(1_000)).await;
        }
    }

    fn may_crash(&self) -> bool {
        let state = self.world.state();
        let crashes = state.notes.faults.get(&Fault::WorkerCrash).copied().unwrap_or(0);
        crashes < self.world.plan.crashes_max
    }

    /// Never returns: whoever runs this process drops it.
    async fn die(&self, what: &'static str) {
        self.world.trace(self.name(), || format!("dies at {what}"));
        self.bury();
        self.crashed.notify_one();
        pending::<()>().await;
    }

    /// Takes note of its death.
    pub fn bury(&self) {
        let now_ms = self.world.now_ms();
        let holding = self.holding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.world.state();
        state.notes.died_ms.insert(self.id, now_ms);
        state.notes.worker_deaths += u64::from(self.role == Role::Worker);
        if let Some(delivery) = &holding.delivery {
            let key = delivery.wake.key.clone();
            let early = !holding.hidden && !holding.acted;
            state.notes.crashes.push(Crash { key, at_ms: now_ms, early });
        }
    }

    /// Ends when the process dies.
    pub async fn death(&self) {
        self.crashed.notified().await;
    }

    pub fn hold(&self, delivery: Option<Delivery>) {
        let mut holding = self.holding.lock().unwrap_or_else(PoisonError::into_inner);
        *holding = Holding { delivery, hidden: false, acted: false };
    }

    pub fn held(&self) -> Option<Delivery> {
        self.holding.lock().unwrap_or_else(PoisonError::into_inner).delivery.clone()
    }

    pub fn has_hidden(&self) {
        self.holding.lock().unwrap_or_else(PoisonError::into_inner).hidden = true;
    }

    pub fn postponed(&self) -> MutexGuard<'_, Option<Postponed>> {
        self.postponed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn has_acted(&self) {
        self.holding.lock().unwrap_or_else(PoisonError::into_inner).acted = true;
    }

    pub fn intent(&self) -> Seq {
        self.intent.load(Ordering::Relaxed)
    }
}
