//! The model behind faults, as strict as a provider.

use std::sync::{Arc, atomic::Ordering};

use async_trait::async_trait;
use tailstep_core::{
    event::Event,
    ids::SessionKey,
    model::{FailureKind, ModelAnswer, ModelFailure, ModelRequest, Usage},
};
use tailstep_runtime::ports::Model;

use super::hands::Busy;
use crate::{
    actor::Actor,
    brain,
    check::Checker,
    fault::Fault,
    notes::ModelCall,
    request::{blocks, refuse},
    world::{World, pass_ms},
};

pub(super) struct SimModel {
    pub(super) actor: Arc<Actor>,
}

#[async_trait]
impl Model for SimModel {
    async fn call(&self, request: &ModelRequest) -> Result<ModelAnswer, ModelFailure> {
        let world = &self.actor.world;
        // Every session's agent names a model of its own.
        let session = request.model.strip_prefix("sim/").unwrap_or_default();
        let key = SessionKey::new("tenant", session);
        let serial = self.begin(world, &key);
        self.check(world, &key, request);
        let busy = Busy::new(&self.actor, &key);
        self.actor.pause("model call").await;
        let thinks_ms = match world.hit(Fault::ModelSlow) {
            true => world.between(world.plan.limits.lease_ms, world.plan.slow_ms.max(1) * 2),
            // Some answers take a second or two: long enough for others to come by.
            false if world.between(0, 2) == 0 => world.between(0, 2_000),
            false => world.between(0, 60),
        };
        pass_ms(thinks_ms).await;
        self.actor.pause("model answer").await;
        busy.over();
        let usage = Usage { input_tokens: serial as u64, output_tokens: 1, ..Usage::default() };
        if let Some(failure) = self.failure(world, &key) {
            return Err(failure);
        }
        Ok(ModelAnswer { usage, ..brain::answer(request) })
    }

    fn check(&self, _model: &str) -> Result<(), String> {
        Ok(())
    }
}

impl SimModel {
    /// Takes note of the call; there must be an intent for it in the log.
    fn begin(&self, world: &World, key: &SessionKey) -> usize {
        let mut state = world.state();
        let started = |event: &Event| matches!(event, Event::ModelStarted(_));
        let intents = state.truths.get(key).map_or(0, |truth| truth.count(started));
        let calls = &mut state.notes.model_calls;
        let serial = calls.len();
        let intent = self.actor.intent.load(Ordering::Relaxed);
        calls.push(ModelCall { key: key.clone(), intent, actor: self.actor.id });
        let made = calls.iter().filter(|call| call.key == *key).count();
        drop(state);
        world.trace(self.actor.name(), || format!("calls the model for {key} (call {serial})"));
        if made > intents {
            world.violate(Checker::Safety, || {
                format!("{key}: model call {made} is made, {intents} intents are in the log")
            });
        }
        serial
    }

    fn check(&self, world: &World, key: &SessionKey, request: &ModelRequest) {
        if let Some(wrong) = refuse(&request.messages) {
            world.violate(Checker::Request, || format!("{key}: {wrong}"));
        }
        // A worker that stood still may show an older state than its successor did before it.
        let now = blocks(&request.messages);
        let mut state = world.state();
        let longest = state.notes.shown.entry(key.clone()).or_default();
        let fits = now.starts_with(longest) || longest.starts_with(&now);
        if now.len() > longest.len() {
            *longest = now;
        }
        drop(state);
        if !fits {
            world.violate(Checker::Request, || {
                format!("{key}: a request does not begin with the one before")
            });
        }
    }

    fn failure(&self, world: &World, key: &SessionKey) -> Option<ModelFailure> {
        let failed = |kind, retry_after_ms| {
            Some(ModelFailure {
                kind,
                message: "simulated".to_owned(),
                retry_after_ms,
                usage: Usage::default(),
            })
        };
        if world.hit(Fault::ModelRateLimited) {
            let retry_after_ms = world.between(500, 90_000);
            let until_ms = world.now_ms() + retry_after_ms;
            world.with(|state| {
                let asked = &mut state.notes.asked_until_ms;
                asked.insert((key.clone(), self.actor.intent()), until_ms);
            });
            return failed(FailureKind::RateLimited, Some(retry_after_ms));
        }
        if world.hit(Fault::ModelOverloaded) {
            return failed(FailureKind::Overloaded, None);
        }
        if world.hit(Fault::ModelInterrupted) {
            return failed(FailureKind::Interrupted, None);
        }
        if world.hit(Fault::ModelRejected) {
            return failed(FailureKind::Rejected, None);
        }
        None
    }
}
