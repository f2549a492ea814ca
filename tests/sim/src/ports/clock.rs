//! Wall time as one machine believes it to be.

use std::sync::{Arc, atomic::Ordering};

use tailstep_core::ids::UnixMs;
use tailstep_runtime::ports::Clock;

use crate::{actor::Actor, world::START_MS};

pub(super) struct SimClock {
    pub(super) actor: Arc<Actor>,
}

impl Clock for SimClock {
    fn now_ms(&self) -> UnixMs {
        let skew_ms = self.actor.skew_ms.load(Ordering::Relaxed);
        (START_MS + self.actor.world.now_ms()).saturating_add_signed(skew_ms)
    }
}
