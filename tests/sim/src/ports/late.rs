//! Writes that reach their store although whoever sent them is gone: a request on the wire does not
//! know that the process behind it has died, or that its future was dropped.

use std::{future::Future, pin::Pin, sync::Arc};

use tokio::runtime::Handle;

use crate::{
    fault::Fault,
    world::{World, pass_ms},
};

type Write = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends `write` when it is dropped before [`Self::done`], if the fault strikes.
pub(super) struct InFlight {
    world: Arc<World>,
    write: Option<Write>,
}

impl InFlight {
    pub(super) fn new(world: &Arc<World>, write: impl FnOnce() -> Write) -> Self {
        // Not made at all where it cannot be needed: it is a third of the cost of a run.
        let write = world.plan.on(Fault::LateWrite).then(write);
        Self { world: world.clone(), write }
    }

    /// The write is on its normal way.
    pub(super) fn done(&mut self) {
        self.write = None;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Some(write) = self.write.take() else { return };
        if !self.world.hit(Fault::LateWrite) {
            return;
        }
        let delay_ms = self.world.between(0, 3_000);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                pass_ms(delay_ms).await;
                write.await;
            });
        }
    }
}
