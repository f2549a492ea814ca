//! Workers of one process: each receives a wake-up, does a step, and receives the next.

use std::{future::Future, sync::Arc, time::Duration};

use tailstep_runtime::ports::{Delivery, Queue};
use tokio::{sync::watch, task::JoinSet, time::sleep};

/// How long one receive waits; workers look for the end between receives too, so that it is no
/// delay for anybody.
const RECEIVE_WAIT_MS: u64 = 20_000;

/// Pause after a receive that failed, so that a broken queue is not asked in a busy loop.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(500);

/// Runs `count` workers until `shutdown` says true (or its sender is gone). A step that has begun is
/// finished; `step` acknowledges for itself, so a wake-up it does not acknowledge comes back.
pub async fn run_workers<S, F>(
    queue: Arc<dyn Queue>,
    count: usize,
    shutdown: watch::Receiver<bool>,
    step: S,
) where
    S: Fn(Delivery) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let mut workers = JoinSet::new();
    for _ in 0..count {
        workers.spawn(work(queue.clone(), shutdown.clone(), step.clone()));
    }
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
            && !*shutdown.borrow()
        {
            // The wake-up it held comes back after the visibility time. The pool stays whole.
            tracing::error!("a worker panicked and is replaced");
            workers.spawn(work(queue.clone(), shutdown.clone(), step.clone()));
        }
    }
}

async fn work<S, F>(queue: Arc<dyn Queue>, mut shutdown: watch::Receiver<bool>, step: S)
where
    S: Fn(Delivery) -> F,
    F: Future<Output = ()>,
{
    while !*shutdown.borrow() {
        let received = tokio::select! {
            received = queue.receive(1, RECEIVE_WAIT_MS) => received,
            ended = shutdown.wait_for(|ended| *ended) => {
                drop(ended);
                return;
            }
        };
        match received {
            Ok(deliveries) => {
                for delivery in deliveries {
                    step(delivery).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot receive wake-ups");
                sleep(PAUSE_AFTER_FAILURE).await;
            }
        }
    }
}
