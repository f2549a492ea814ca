//! [`Queue`] in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tailstep_core::ids::UnixMs;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::lock;
use crate::ports::{Clock, Delivery, Queue, QueueError, Wake};

/// Messages in the order in which they become visible. Receiving one hides it for the visibility
/// time; acknowledging removes it.
///
/// A message of a newer format is never delivered: each time it would be, it is hidden again for the
/// visibility time, so that it stays for newer code and blocks nobody.
///
/// A receipt is good until the message is delivered again; after that, `ack` and `hide` with it
/// change nothing, because the message has a new holder.
pub struct MemoryQueue {
    clock: Arc<dyn Clock>,
    visibility_ms: u64,
    state: Mutex<State>,
    /// Somebody may have something to receive, or to wait for, sooner than before.
    sooner: Notify,
}

#[derive(Default)]
struct State {
    next_id: u64,
    messages: BTreeMap<u64, Message>,
    /// (visible from, id): the order of delivery.
    order: BTreeSet<(UnixMs, u64)>,
}

struct Message {
    wake: Wake,
    sent_ms: UnixMs,
    visible_ms: UnixMs,
    receives: u32,
}

impl MemoryQueue {
    /// A received message comes back after `visibility_ms` if nobody acknowledges it.
    pub fn new(clock: Arc<dyn Clock>, visibility_ms: u64) -> Self {
        Self { clock, visibility_ms, state: Mutex::default(), sooner: Notify::new() }
    }

    /// Messages that were sent and are not acknowledged, visible or not.
    pub fn len(&self) -> usize {
        lock(&self.state).messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is visible now, at most `max`, and when the next message will be.
    fn take(&self, max: usize) -> (Vec<Delivery>, Option<UnixMs>) {
        let now_ms = self.clock.now_ms();
        let mut state = lock(&self.state);
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some(&(visible_ms, id)) = state.order.first()
            && visible_ms <= now_ms
        {
            let hidden_until_ms = now_ms.saturating_add(self.visibility_ms.max(1));
            state.move_to(id, hidden_until_ms);
            if let Some(message) = state.messages.get_mut(&id)
                && message.wake.v <= Wake::FORMAT
            {
                message.receives = message.receives.saturating_add(1);
                taken.push(message.delivery(id, now_ms));
            }
        }
        (taken, state.order.first().map(|&(visible_ms, _)| visible_ms))
    }
}

#[async_trait]
impl Queue for MemoryQueue {
    async fn send(&self, wake: &Wake, delay_ms: u64) -> Result<(), QueueError> {
        let sent_ms = self.clock.now_ms();
        let visible_ms = sent_ms.saturating_add(delay_ms);
        let mut state = lock(&self.state);
        let id = state.next_id;
        state.next_id += 1;
        state.order.insert((visible_ms, id));
        state.messages.insert(id, Message { wake: wake.clone(), sent_ms, visible_ms, receives: 0 });
        let first = state.order.first() == Some(&(visible_ms, id));
        drop(state);
        if visible_ms <= sent_ms || first {
            self.sooner.notify_one();
        }
        Ok(())
    }

    async fn receive(&self, max: usize, wait_ms: u64) -> Result<Vec<Delivery>, QueueError> {
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        loop {
            let (taken, next_ms) = self.take(max);
            if !taken.is_empty() || max == 0 || Instant::now() >= deadline {
                // A notification wakes one receiver, which takes at most `max`: it passes the word
                // on when it leaves something behind.
                if next_ms.is_some_and(|next_ms| next_ms <= self.clock.now_ms()) {
                    self.sooner.notify_one();
                }
                return Ok(taken);
            }
            let until = match next_ms {
                None => deadline,
                Some(next_ms) => {
                    let wait_ms = next_ms.saturating_sub(self.clock.now_ms()).max(1);
                    deadline.min(Instant::now() + Duration::from_millis(wait_ms.min(86_400_000)))
                }
            };
            // Elapsed or notified: look again either way.
            let _ = timeout_at(until, self.sooner.notified()).await;
        }
    }

    async fn ack(&self, delivery: &Delivery) -> Result<(), QueueError> {
        let mut state = lock(&self.state);
        if let Some(id) = state.holds(delivery)
            && let Some(message) = state.messages.remove(&id)
        {
            state.order.remove(&(message.visible_ms, id));
        }
        Ok(())
    }

    async fn hide(&self, delivery: &Delivery, hidden_ms: u64) -> Result<(), QueueError> {
        let visible_ms = self.clock.now_ms().saturating_add(hidden_ms);
        let mut state = lock(&self.state);
        if let Some(id) = state.holds(delivery) {
            state.move_to(id, visible_ms);
        }
        drop(state);
        self.sooner.notify_one();
        Ok(())
    }
}

impl State {
    /// The message that `delivery` is the latest receipt of.
    fn holds(&self, delivery: &Delivery) -> Option<u64> {
        let (id, receives) = delivery.receipt.split_once('.')?;
        let (id, receives) = (id.parse().ok()?, receives.parse::<u32>().ok()?);
        (self.messages.get(&id)?.receives == receives).then_some(id)
    }

    fn move_to(&mut self, id: u64, visible_ms: UnixMs) {
        if let Some(message) = self.messages.get_mut(&id) {
            self.order.remove(&(message.visible_ms, id));
            message.visible_ms = visible_ms;
            self.order.insert((visible_ms, id));
        }
    }
}

impl Message {
    fn delivery(&self, id: u64, now_ms: UnixMs) -> Delivery {
        Delivery {
            wake: self.wake.clone(),
            receipt: format!("{id}.{}", self.receives),
            waited_ms: now_ms.saturating_sub(self.sent_ms),
            receives: self.receives,
        }
    }
}

#[cfg(test)]
mod tests {
    use tailstep_core::ids::SessionKey;

    use super::*;
    use crate::memory::TokioClock;

    fn queue(visibility_ms: u64) -> MemoryQueue {
        MemoryQueue::new(Arc::new(TokioClock::starting_at(1_000)), visibility_ms)
    }

    fn wake(session: &str) -> Wake {
        Wake::new(SessionKey::new("t", session))
    }

    #[tokio::test(start_paused = true)]
    async fn paused_time_decides_when_a_wake_up_comes() {
        let queue = queue(30_000);
        queue.send(&wake("late"), 3_600_000).await.unwrap();
        queue.send(&wake("soon"), 10).await.unwrap();
        assert_eq!(queue.receive(10, 9).await.unwrap(), []);
        let got = queue.receive(10, 20_000).await.unwrap();
        assert_eq!((got.len(), got[0].wake.clone(), got[0].waited_ms), (1, wake("soon"), 10));
        queue.ack(&got[0]).await.unwrap();
        let got = queue.receive(10, 4_000_000).await.unwrap();
        assert_eq!((got[0].wake.clone(), got[0].waited_ms), (wake("late"), 3_600_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_newer_format_stays_and_blocks_nobody() {
        let queue = queue(1_000);
        queue.send(&Wake { v: Wake::FORMAT + 1, ..wake("newer") }, 0).await.unwrap();
        queue.send(&wake("plain"), 0).await.unwrap();
        for _ in 0..3 {
            let got = queue.receive(1, 500).await.unwrap();
            for delivery in &got {
                assert_eq!(delivery.wake, wake("plain"));
                queue.ack(delivery).await.unwrap();
            }
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        assert_eq!(queue.len(), 1, "the newer message is left");
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_receipt_does_not_take_the_message_from_its_new_holder() {
        let queue = queue(1_000);
        queue.send(&wake("s"), 0).await.unwrap();
        let first = queue.receive(1, 0).await.unwrap();
        tokio::time::advance(Duration::from_secs(2)).await;
        let second = queue.receive(1, 0).await.unwrap();
        assert_eq!((first[0].receives, second[0].receives), (1, 2));
        queue.ack(&first[0]).await.unwrap();
        assert_eq!(queue.len(), 1);
        queue.ack(&second[0]).await.unwrap();
        assert!(queue.is_empty());
    }

    #[tokio::test]
    async fn waiting_receivers_share_a_burst() {
        let queue = Arc::new(queue(60_000));
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.receive(1, 20_000).await.unwrap().len() })
            })
            .collect();
        tokio::task::yield_now().await;
        for n in 0..4 {
            queue.send(&wake(&format!("s{n}")), 0).await.unwrap();
        }
        for receiver in receivers {
            assert_eq!(receiver.await.unwrap(), 1);
        }
    }
}
