//! The ports as one actor sees them: the in-memory ones, behind faults.

mod clock;
mod hands;
mod late;
mod log;
mod model;
mod queue;

use std::sync::Arc;

use tailstep_runtime::{Runtime, memory::MemoryDocuments, prefix::Prefixes};

use self::{clock::SimClock, hands::SimHands, log::SimLog, model::SimModel, queue::SimQueue};
use crate::actor::Actor;

/// Everything that a step of `actor` may touch.
pub fn runtime(actor: &Arc<Actor>) -> Runtime {
    Runtime {
        log: Arc::new(SimLog { actor: actor.clone() }),
        queue: Arc::new(SimQueue { actor: actor.clone() }),
        model: Arc::new(SimModel { actor: actor.clone() }),
        hands: Arc::new(SimHands { actor: actor.clone() }),
        documents: Arc::new(MemoryDocuments::default()),
        clock: Arc::new(SimClock { actor: actor.clone() }),
        limits: actor.world.plan.limits.clone(),
        prefixes: Arc::new(Prefixes::new(actor.world.plan.conversations_cached)),
    }
}
