//! The hands behind faults: they count what they run.

use std::sync::{Arc, atomic::Ordering};

use async_trait::async_trait;
use tailstep_core::{
    event::Event,
    ids::{BlobRef, Seq, SessionKey},
};
use tailstep_runtime::ports::{Hands, HandsError, Projection, ToolOrder, ToolReply};

use super::log::put;
use crate::{
    actor::Actor,
    brain::{self, SLOW},
    check::Checker,
    fault::Fault,
    notes::ToolRun,
    world::{World, pass_ms},
};

pub(super) struct SimHands {
    pub(super) actor: Arc<Actor>,
}

#[async_trait]
impl Hands for SimHands {
    async fn execute(&self, order: &ToolOrder) -> Result<ToolReply, HandsError> {
        let world = &self.actor.world;
        let run = self.begin(world, order);
        let mut running = Running { actor: self.actor.clone(), run, over: false };
        let busy = Busy::new(&self.actor, &order.key);
        self.actor.pause("execute").await;
        if world.hit(Fault::HandsUnavailable) {
            running.over = true;
            return Err(HandsError::Unavailable { what: "simulated".to_owned() });
        }
        let takes_ms = match order.input.as_str().contains(SLOW) {
            true => {
                world.note(Fault::ToolSlow);
                world.plan.slow_ms
            }
            false => world.between(0, 300),
        };
        pass_ms(takes_ms).await;
        if world.hit(Fault::HandsLost) {
            running.over = true;
            return Err(HandsError::Lost { what: "simulated".to_owned() });
        }
        running.take_effect();
        self.actor.pause("executed").await;
        busy.over();
        self.catch_up_intent(world).await;
        Ok(ToolReply {
            text: brain::output(&order.input),
            is_error: false,
            workspace: world.plan.workspace_blobs.then(|| workspace(run)),
            ..ToolReply::default()
        })
    }

    async fn release(&self, _key: &SessionKey) -> Result<(), HandsError> {
        self.actor.pause("release").await;
        Ok(())
    }
}

/// The workspace that a run leaves behind has the run's number for a name.
fn workspace(run: usize) -> BlobRef {
    BlobRef { sha256: format!("{run:064x}"), bytes: 1 }
}

impl SimHands {
    /// Takes note of the run; there must be an intent for it in the log, and it must start from what
    /// the run before it left.
    fn begin(&self, world: &World, order: &ToolOrder) -> usize {
        let mut state = world.state();
        let started = |event: &Event| matches!(event, Event::ToolStarted(started) if started.call == order.call);
        let intents = state.truths.get(&order.key).map_or(0, |truth| truth.count(started));
        let runs = &mut state.notes.tool_runs;
        let number = runs.len();
        runs.push(ToolRun {
            key: order.key.clone(),
            call: order.call,
            actor: self.actor.id,
            effective: false,
        });
        let made = runs.iter().filter(|run| run.key == order.key && run.call == order.call).count();
        let life = state.notes.lives.get(&(order.key.clone(), self.actor.intent()));
        let workspace = life.map(|life| life.workspace.clone());
        drop(state);
        world.trace(self.actor.name(), || format!("runs {:?} of {}", order.call, order.key));
        if made > intents {
            world.violate(Checker::Safety, || {
                format!("{}: run {made} of {:?} has no intent in the log", order.key, order.call)
            });
        }
        if workspace.is_some_and(|workspace| workspace != order.workspace) {
            world.violate(Checker::Safety, || {
                format!("{}: {:?} does not start from the last workspace", order.key, order.call)
            });
        }
        number
    }

    /// Writes the intent that [`crate::bug::Bug::EffectBeforeIntent`] held back.
    async fn catch_up_intent(&self, world: &World) {
        let postponed = self.actor.postponed().take();
        if let Some((key, entry, head)) = postponed {
            // Somebody else may have been faster; the bug does not care.
            let _ = put(world, self.actor.id, &key, &entry, &head, Projection::Lag).await;
        }
    }
}

/// A tool at work. What happens to it when its worker is gone is chance.
struct Running {
    actor: Arc<Actor>,
    run: usize,
    over: bool,
}

impl Running {
    fn take_effect(&mut self) {
        self.over = true;
        if let Some(run) = self.actor.world.state().notes.tool_runs.get_mut(self.run) {
            run.effective = true;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.over && self.actor.world.hit(Fault::HandsOutliveWorker) {
            self.take_effect();
        }
    }
}

/// An effect under way. A worker that has lost the session must not go on with it for long.
pub(super) struct Busy {
    actor: Arc<Actor>,
    key: SessionKey,
    intent: Seq,
    troubles: u64,
    since_ms: u64,
}

impl Busy {
    pub(super) fn new(actor: &Arc<Actor>, key: &SessionKey) -> Self {
        actor.in_effect.store(true, Ordering::Relaxed);
        let troubles = actor.world.state().notes.troubles(actor.id);
        Self {
            actor: actor.clone(),
            key: key.clone(),
            intent: actor.intent(),
            troubles,
            since_ms: actor.world.now_ms(),
        }
    }

    /// The effect has come to its end.
    pub(super) fn over(self) {}
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.actor.in_effect.store(false, Ordering::Relaxed);
        let world = &self.actor.world;
        let now_ms = world.now_ms();
        let state = world.state();
        let fenced_ms =
            state.notes.lives.get(&(self.key.clone(), self.intent)).and_then(|life| life.fenced_ms);
        let troubled = state.notes.troubles(self.actor.id) != self.troubles;
        let dead = state.notes.is_dead(self.actor.id);
        drop(state);
        // It looks whenever the log grows, or with each beat where nobody tells it; a few calls more.
        let patience_ms = world.plan.limits.lease_ms / 3 + 2_000;
        if let Some(fenced_ms) = fenced_ms.map(|fenced_ms| fenced_ms.max(self.since_ms))
            && now_ms > fenced_ms + patience_ms
            && !troubled
            && !dead
        {
            world.violate(Checker::Economy, || {
                format!(
                    "{}: a{} worked for {} ms after it had lost attempt #{}",
                    self.key,
                    self.actor.id,
                    now_ms - fenced_ms,
                    self.intent
                )
            });
        }
    }
}
