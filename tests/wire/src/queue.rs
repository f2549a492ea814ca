//! The laws of the queue.

use std::{any::Any, collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use tailstep_core::ids::SessionKey;
use tailstep_runtime::ports::{Delivery, Observed, Queue, Wake};
use tokio::time::{Instant, sleep};

use crate::{
    law::{Timing, laws},
    sample,
};

/// A queue under test. It must be empty, and nobody else may receive from it.
pub struct Subject {
    pub queue: Arc<dyn Queue>,
    pub timing: Timing,
    /// What has to live as long as the adapter, such as a scratch directory.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// Runs every law of the queue.
pub async fn all<F>(make: impl Fn() -> F)
where
    F: Future<Output = Subject>,
{
    laws!(
        "queue",
        make,
        [
            laws::a_wake_up_comes_as_it_was_sent,
            laws::an_acknowledged_wake_up_does_not_come_back,
            laws::a_wake_up_without_acknowledgement_comes_back,
            laws::a_received_wake_up_is_hidden,
            laws::a_delay_is_kept,
            laws::a_delayed_wake_up_does_not_hold_up_others,
            laws::hiding_lengthens,
            laws::hiding_shortens,
            laws::a_hidden_wake_up_can_be_acknowledged,
            laws::a_newer_format_is_left_and_blocks_nobody,
            laws::no_more_come_than_were_asked_for,
            laws::many_wake_ups_reach_many_receivers,
            laws::a_waiting_receiver_is_served,
            laws::an_empty_queue_answers_in_time,
            laws::a_long_delay_is_taken,
        ]
    );
}

impl Subject {
    async fn send(&self, name: &str, delay_ms: u64) -> Wake {
        let wake = Wake::new(SessionKey::new("tenant", name));
        self.queue.send(&wake, delay_ms).await.unwrap();
        wake
    }

    /// The next wake-up that is not acknowledged, which has to come.
    async fn next(&self) -> Delivery {
        let until = Instant::now() + self.timing.patience();
        loop {
            let mut got = self.queue.receive(1, 1_000).await.unwrap();
            if let Some(delivery) = got.pop() {
                return delivery;
            }
            assert!(Instant::now() < until, "no wake-up came");
        }
    }

    /// Nothing comes for this long.
    async fn nothing_for(&self, span_ms: u64) {
        let until = Instant::now() + Duration::from_millis(span_ms);
        while Instant::now() < until {
            let left = until - Instant::now();
            let wait_ms = u64::try_from(left.as_millis()).unwrap();
            let got = self.queue.receive(10, wait_ms).await.unwrap();
            assert_eq!(got, [], "nothing may come");
            // A queue that cannot wait in small steps is not asked in a busy loop.
            sleep(Duration::from_millis(wait_ms.min(20))).await;
        }
    }
}

mod laws {
    use super::*;

    pub(super) async fn a_wake_up_comes_as_it_was_sent(s: Subject) {
        let plain = s.send("sesn_ä/#%", 0).await;
        let got = s.next().await;
        assert_eq!((&got.wake, got.receives), (&plain, 1));
        s.queue.ack(&got).await.unwrap();

        let observed = Some(Observed { intent: (1 << 53) + 1, version: 7 });
        let wake = Wake { observed, ..plain };
        s.queue.send(&wake, 0).await.unwrap();
        let got = s.next().await;
        assert_eq!(got.wake, wake);
        s.queue.ack(&got).await.unwrap();
    }

    pub(super) async fn an_acknowledged_wake_up_does_not_come_back(s: Subject) {
        s.send("one", 0).await;
        let got = s.next().await;
        s.queue.ack(&got).await.unwrap();
        // Twice is no error: the first answer may have been lost.
        s.queue.ack(&got).await.unwrap();
        s.nothing_for(s.timing.visibility_ms * 2).await;
    }

    pub(super) async fn a_wake_up_without_acknowledgement_comes_back(s: Subject) {
        let wake = s.send("one", 0).await;
        let start = Instant::now();
        let first = s.next().await;
        let mut last = first.clone();
        for receives in 2..=3 {
            last = s.next().await;
            assert_eq!((&last.wake, last.receives), (&wake, receives));
            assert!(last.waited_ms >= first.waited_ms, "waiting is counted from the sending");
        }
        let least = 2 * s.timing.visibility_ms;
        let passed = start.elapsed() + Duration::from_millis(2 * s.timing.slack_ms);
        assert!(passed >= Duration::from_millis(least), "came back early: {passed:?}");
        s.queue.ack(&last).await.unwrap();
        s.nothing_for(s.timing.visibility_ms * 2).await;
    }

    pub(super) async fn a_received_wake_up_is_hidden(s: Subject) {
        s.send("one", 0).await;
        let got = s.next().await;
        s.nothing_for((s.timing.visibility_ms / 2).saturating_sub(s.timing.slack_ms)).await;
        s.queue.ack(&got).await.unwrap();
    }

    pub(super) async fn a_delay_is_kept(s: Subject) {
        let (delay_ms, start) = (2 * s.timing.step_ms, Instant::now());
        s.send("later", delay_ms).await;
        let got = s.next().await;
        let passed = start.elapsed() + Duration::from_millis(s.timing.slack_ms);
        assert!(passed >= Duration::from_millis(delay_ms), "came early: {passed:?}");
        assert!(got.waited_ms + s.timing.slack_ms >= delay_ms, "waited {} ms", got.waited_ms);
        s.queue.ack(&got).await.unwrap();
    }

    pub(super) async fn a_delayed_wake_up_does_not_hold_up_others(s: Subject) {
        s.send("later", 600_000).await;
        let soon = s.send("soon", 0).await;
        let got = s.next().await;
        assert_eq!(got.wake, soon);
        s.queue.ack(&got).await.unwrap();
        s.nothing_for(s.timing.step_ms).await;
    }

    pub(super) async fn hiding_lengthens(s: Subject) {
        s.send("one", 0).await;
        let got = s.next().await;
        let start = Instant::now();
        let hidden_ms = 3 * s.timing.visibility_ms;
        s.queue.hide(&got, hidden_ms).await.unwrap();
        let again = s.next().await;
        assert_eq!(again.wake, got.wake);
        let passed = start.elapsed() + Duration::from_millis(s.timing.slack_ms);
        assert!(passed >= Duration::from_millis(hidden_ms), "came back early: {passed:?}");
        s.queue.ack(&again).await.unwrap();
    }

    pub(super) async fn hiding_shortens(s: Subject) {
        s.send("one", 0).await;
        let got = s.next().await;
        // From a long time down to none: that it comes back at all within our patience shows it.
        s.queue.hide(&got, 3_600_000).await.unwrap();
        s.queue.hide(&got, 0).await.unwrap();
        let again = s.next().await;
        assert_eq!((again.wake.clone(), again.receives), (got.wake, 2));
        s.queue.ack(&again).await.unwrap();
    }

    pub(super) async fn a_hidden_wake_up_can_be_acknowledged(s: Subject) {
        s.send("one", 0).await;
        let got = s.next().await;
        s.queue.hide(&got, s.timing.visibility_ms).await.unwrap();
        s.queue.ack(&got).await.unwrap();
        s.nothing_for(s.timing.visibility_ms * 2).await;
    }

    /// An adapter delivers no wake-up that it cannot read. It leaves it where it is, for newer code.
    pub(super) async fn a_newer_format_is_left_and_blocks_nobody(s: Subject) {
        let newer = Wake { v: Wake::FORMAT + 1, ..Wake::new(SessionKey::new("tenant", "newer")) };
        s.queue.send(&newer, 0).await.unwrap();
        for round in 0..3 {
            let plain = s.send(&format!("plain {round}"), 0).await;
            let got = s.next().await;
            assert_eq!(got.wake, plain);
            s.queue.ack(&got).await.unwrap();
            s.nothing_for(s.timing.visibility_ms * 3 / 2).await;
        }
    }

    pub(super) async fn no_more_come_than_were_asked_for(s: Subject) {
        for n in 0..6 {
            s.send(&format!("s{n}"), 0).await;
        }
        let mut seen = BTreeMap::new();
        let until = Instant::now() + s.timing.patience();
        while seen.len() < 6 {
            assert!(Instant::now() < until, "only these came: {seen:?}");
            let got = s.queue.receive(2, 1_000).await.unwrap();
            assert!(got.len() <= 2);
            for delivery in got {
                s.queue.ack(&delivery).await.unwrap();
                *seen.entry(delivery.wake.key.session).or_insert(0) += 1;
            }
        }
    }

    pub(super) async fn many_wake_ups_reach_many_receivers(s: Subject) {
        const COUNT: usize = 100;
        let s = Arc::new(s);
        let seen = Arc::new(std::sync::Mutex::new(BTreeMap::new()));
        let receivers: Vec<_> = (0..8)
            .map(|_| {
                let (s, seen) = (s.clone(), seen.clone());
                tokio::spawn(async move {
                    let until = Instant::now() + s.timing.patience();
                    while seen.lock().unwrap().len() < COUNT && Instant::now() < until {
                        for delivery in s.queue.receive(10, 100).await.unwrap() {
                            s.queue.ack(&delivery).await.unwrap();
                            let session = delivery.wake.key.session;
                            *seen.lock().unwrap().entry(session).or_insert(0) += 1;
                        }
                    }
                })
            })
            .collect();
        for n in 0..COUNT {
            s.send(&format!("s{n}"), 0).await;
        }
        for receiver in receivers {
            receiver.await.unwrap();
        }
        // At least once each; a queue may double one.
        assert_eq!(seen.lock().unwrap().len(), COUNT);
    }

    pub(super) async fn a_waiting_receiver_is_served(s: Subject) {
        let s = Arc::new(s);
        let receiver = {
            let s = s.clone();
            tokio::spawn(async move { s.next().await })
        };
        sleep(Duration::from_millis(50)).await;
        let wake = s.send("one", 0).await;
        assert_eq!(receiver.await.unwrap().wake, wake);
    }

    pub(super) async fn an_empty_queue_answers_in_time(s: Subject) {
        for wait_ms in [0, 300] {
            let start = Instant::now();
            assert_eq!(s.queue.receive(10, wait_ms).await.unwrap(), []);
            let most = s.timing.patience() + Duration::from_millis(wait_ms);
            assert!(start.elapsed() < most, "waited {:?} of {wait_ms} ms", start.elapsed());
        }
    }

    /// Days, which no queue can wait by itself.
    pub(super) async fn a_long_delay_is_taken(s: Subject) {
        s.send(&format!("far-{}", sample::random()), 3 * 86_400_000).await;
        s.nothing_for(s.timing.step_ms).await;
    }
}
