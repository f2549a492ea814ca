//! The queue behind faults.

use std::sync::{Arc, atomic::Ordering};

use async_trait::async_trait;
use tailstep_runtime::ports::{Delivery, Queue, QueueError, Wake};

use super::late::InFlight;
use crate::{
    actor::{Actor, Role},
    bug::Bug,
    fault::Fault,
    world::World,
};

/// Receipts after which a message may be set aside.
const RECEIVES_MAX: u32 = 3;

pub(super) struct SimQueue {
    pub(super) actor: Arc<Actor>,
}

#[async_trait]
impl Queue for SimQueue {
    async fn send(&self, wake: &Wake, delay_ms: u64) -> Result<(), QueueError> {
        let world = self.world();
        self.actor.has_acted();
        if world.has(Bug::AckBeforeWake)
            && let Some(delivery) = self.actor.held()
        {
            world.queue.ack(&delivery).await?;
        }
        self.actor.pause("send").await;
        if world.hit(Fault::SendFailsBefore) {
            return Err(self.trouble());
        }
        let repeated = self.actor.repeated.load(Ordering::Relaxed)
            && !self.actor.has_appended.load(Ordering::Relaxed);
        if world.has(Bug::NoWakeOnRepeat) && repeated {
            return Ok(());
        }
        self.put(wake, delay_ms).await?;
        self.actor.pause("sent").await;
        match world.hit(Fault::SendFailsAfter) {
            true => {
                world.state().notes.message_sources += 1;
                Err(self.trouble())
            }
            false => Ok(()),
        }
    }

    async fn receive(&self, max: usize, wait_ms: u64) -> Result<Vec<Delivery>, QueueError> {
        let world = self.world();
        if world.hit(Fault::ReceiveFails) {
            return Err(self.trouble());
        }
        let mut deliveries = world.queue.receive(max, wait_ms).await?;
        for delivery in &mut deliveries {
            world.with(|state| {
                state.notes.deliveries += 1;
                state.notes.redeliveries += u64::from(delivery.receives > 1);
            });
            self.actor.hold(Some(delivery.clone()));
            if world.has(Bug::TakerDoesNotWait) && delivery.wake.observed.is_some() {
                delivery.waited_ms = world.plan.limits.lease_ms;
            }
            let aside = delivery.receives > RECEIVES_MAX && world.hit(Fault::MessageDeadLettered);
            if aside || !world.plan.nets.redelivery {
                world.queue.ack(delivery).await?;
            }
            if aside {
                self.actor.hold(None);
                return Ok(Vec::new());
            }
            world.trace(self.actor.name(), || {
                format!("receives {:?} after {} ms", delivery.wake.observed, delivery.waited_ms)
            });
            self.actor.pause("received").await;
        }
        Ok(deliveries)
    }

    async fn ack(&self, delivery: &Delivery) -> Result<(), QueueError> {
        self.actor.pause("ack").await;
        if self.world().hit(Fault::AckFails) {
            return Err(self.trouble());
        }
        self.world().queue.ack(delivery).await?;
        self.actor.hold(None);
        Ok(())
    }

    async fn hide(&self, delivery: &Delivery, hidden_ms: u64) -> Result<(), QueueError> {
        let mut late = InFlight::new(&self.actor.world, || {
            let (world, delivery) = (self.actor.world.clone(), delivery.clone());
            Box::pin(async move {
                let _ = world.queue.hide(&delivery, hidden_ms).await;
            })
        });
        self.actor.pause("hide").await;
        if self.world().has(Bug::HiddenTooLate) && !self.actor.in_effect.load(Ordering::Relaxed) {
            late.done();
            return Ok(());
        }
        if self.world().hit(Fault::HideFails) {
            return Err(self.trouble());
        }
        late.done();
        self.world().queue.hide(delivery, hidden_ms).await?;
        self.actor.has_hidden();
        Ok(())
    }
}

impl SimQueue {
    fn world(&self) -> &World {
        &self.actor.world
    }

    fn trouble(&self) -> QueueError {
        QueueError::Unavailable { what: "simulated".to_owned() }
    }

    /// Sends, in the ways in which a message can go astray.
    async fn put(&self, wake: &Wake, mut delay_ms: u64) -> Result<(), QueueError> {
        let world = self.world();
        if self.actor.role != Role::Worker {
            world.state().notes.message_sources += 1;
        }
        let lost = world.hit(Fault::MessageLost);
        if lost {
            world.trace(self.actor.name(), || format!("its message for {} is lost", wake.key));
            return Ok(());
        }
        if world.has(Bug::TakerDoesNotWait) && wake.observed.is_some() {
            delay_ms = 0;
        }
        if world.hit(Fault::MessageReordered) {
            delay_ms += world.between(0, 400);
        }
        if world.hit(Fault::MessageLate) {
            delay_ms += world.between(1_000, 120_000);
        }
        world.trace(self.actor.name(), || {
            format!("sends {:?} to {} in {delay_ms} ms", wake.observed, wake.key)
        });
        world.queue.send(wake, delay_ms).await?;
        if world.has(Bug::MessageStorm) && wake.observed.is_some() {
            world.queue.send(wake, delay_ms).await?;
        }
        if world.hit(Fault::MessageDoubled) {
            self.again(wake, delay_ms + world.between(0, 500)).await?;
        }
        if world.hit(Fault::MessageRedriven) {
            self.again(wake, delay_ms + world.between(60_000, 1_200_000)).await?;
        }
        let live = world.queue.len() as u64;
        let mut state = world.state();
        state.notes.messages_live_max = state.notes.messages_live_max.max(live);
        Ok(())
    }

    async fn again(&self, wake: &Wake, delay_ms: u64) -> Result<(), QueueError> {
        self.world().state().notes.message_sources += 1;
        self.world().queue.send(wake, delay_ms).await
    }
}
