//! The worker pool, over the in-memory queue.
#![allow(clippy::unwrap_used, reason = "tests and what they share")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tailstep_core::ids::SessionKey;
use tailstep_local::run_workers;
use tailstep_runtime::{
    memory::{MemoryQueue, TokioClock},
    ports::{Delivery, Queue, Wake},
};
use tokio::{sync::watch, time::sleep};

fn queue() -> Arc<MemoryQueue> {
    Arc::new(MemoryQueue::new(Arc::new(TokioClock::starting_at(0)), 60_000))
}

async fn send(queue: &MemoryQueue, count: usize) {
    for n in 0..count {
        queue.send(&Wake::new(SessionKey::new("t", format!("s{n}"))), 0).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn workers_work_side_by_side_and_finish_what_they_began() {
    let (queue, done) = (queue(), Arc::new(AtomicUsize::new(0)));
    let (stop, stopped) = watch::channel(false);
    send(&queue, 8).await;
    let step = {
        let (queue, done) = (queue.clone(), done.clone());
        move |delivery: Delivery| {
            let (queue, done) = (queue.clone(), done.clone());
            async move {
                sleep(Duration::from_secs(10)).await;
                queue.ack(&delivery).await.unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let pool = tokio::spawn(run_workers(queue.clone(), 4, stopped, step));
    sleep(Duration::from_secs(15)).await;
    assert_eq!(done.load(Ordering::Relaxed), 4, "four at a time");
    stop.send(true).unwrap();
    pool.await.unwrap();
    assert_eq!(done.load(Ordering::Relaxed), 8, "what had begun was finished");
    assert!(queue.is_empty());
    // An idle pool ends at once.
    let (stop, stopped) = watch::channel(false);
    let start = tokio::time::Instant::now();
    let pool = tokio::spawn(run_workers(queue, 4, stopped, |_| async {}));
    sleep(Duration::from_millis(10)).await;
    stop.send(true).unwrap();
    pool.await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_panicking_step_costs_one_delivery_and_no_worker() {
    let (queue, calls) = (queue(), Arc::new(AtomicUsize::new(0)));
    let (stop, stopped) = watch::channel(false);
    send(&queue, 1).await;
    let step = {
        let (queue, calls) = (queue.clone(), calls.clone());
        move |delivery: Delivery| {
            let (queue, calls) = (queue.clone(), calls.clone());
            async move {
                assert!(calls.fetch_add(1, Ordering::Relaxed) > 0, "the first one panics");
                queue.ack(&delivery).await.unwrap();
            }
        }
    };
    let pool = tokio::spawn(run_workers(queue.clone(), 1, stopped, step));
    sleep(Duration::from_secs(61)).await;
    assert_eq!(calls.load(Ordering::Relaxed), 2, "it came back after the visibility time");
    assert!(queue.is_empty());
    stop.send(true).unwrap();
    pool.await.unwrap();
}
