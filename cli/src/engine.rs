//! What turns wake-ups into steps: the workers and the sweeper of this process.

use std::time::Duration;

use tailstep_local::run_workers;
use tailstep_runtime::{
    Runtime,
    error::{Retry, RuntimeError},
    ports::Delivery,
    step::{Report, StepAction, step},
    sweep::sweep,
};
use tokio::{sync::watch, task::JoinHandle, time};

/// As often as the deployed sweeper's schedule at most; a lost wake-up costs this and
/// `limits.overdue_ms`.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// A step that failed for a passing reason is tried again this soon, then twice as late each time.
const RETRY_FIRST_MS: u64 = 500;
const RETRY_MAX_MS: u64 = 60_000;

/// The running workers. Dropping it abandons their steps.
pub(crate) struct Engine {
    stop: watch::Sender<bool>,
    workers: JoinHandle<()>,
    sweeper: JoinHandle<()>,
}

impl Engine {
    /// Starts `count` workers over `runtime`.
    pub(crate) fn start(runtime: &Runtime, count: usize) -> Self {
        let (stop, stopped) = watch::channel(false);
        let shared = runtime.clone();
        let workers = run_workers(runtime.queue.clone(), count, stopped, move |delivery| {
            let runtime = shared.clone();
            async move { work(&runtime, &delivery).await }
        });
        let workers = tokio::spawn(workers);
        let sweeper = tokio::spawn(sweep_for_ever(runtime.clone()));
        Self { stop, workers, sweeper }
    }

    /// Lets the steps under way end, for at most `grace`; abandons the rest. Whoever opens the data
    /// directory next takes those up again.
    pub(crate) async fn stop(mut self, grace: Duration) {
        self.sweeper.abort();
        // Nobody listens any more when all workers have ended already.
        let _ = self.stop.send(true);
        if time::timeout(grace, &mut self.workers).await.is_err() {
            tracing::warn!("steps under way are abandoned; the next start takes them up");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.workers.abort();
        self.sweeper.abort();
    }
}

/// One step and its acknowledgement, which is the last act.
async fn work(runtime: &Runtime, delivery: &Delivery) {
    let handled = match step(runtime, delivery, None).await {
        Ok(report) => {
            log(&report);
            runtime.queue.ack(delivery).await
        }
        Err(error) => return put_back(runtime, delivery, &error).await,
    };
    if let Err(error) = handled {
        // It comes back and finds nothing to do.
        tracing::warn!(%error, session = %delivery.wake.key, "a wake-up was not acknowledged");
    }
}

async fn put_back(runtime: &Runtime, delivery: &Delivery, error: &RuntimeError) {
    let session = &delivery.wake.key.session;
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let put_back = match error.retry() {
        Retry::Later => {
            tracing::warn!(%error, cause, session, "a step failed and is tried again");
            let doublings = delivery.receives.saturating_sub(1).min(10);
            let delay_ms = RETRY_FIRST_MS.saturating_mul(1 << doublings).min(RETRY_MAX_MS);
            runtime.queue.hide(delivery, delay_ms).await
        }
        Retry::Never => {
            // The sweeper keeps looking at it, in case somebody mends the log.
            tracing::error!(%error, cause, session, "a session cannot go on");
            runtime.queue.ack(delivery).await
        }
    };
    if let Err(error) = put_back {
        tracing::warn!(%error, session, "a wake-up was left to its visibility time");
    }
}

/// One line a step, without a word of its content.
fn log(report: &Report) {
    let Report { key, seq, action, attempt, outcome, effect_ms } = report;
    let session = &key.session;
    match action {
        StepAction::Model | StepAction::Tool => {
            let action = if *action == StepAction::Model { "model" } else { "tool" };
            tracing::info!(session, seq, action, attempt, ?outcome, effect_ms, "step");
        }
        StepAction::Rest | StepAction::Wait | StepAction::Watch => {
            tracing::debug!(session, seq, ?action, ?outcome, "step without an effect");
        }
    }
}

async fn sweep_for_ever(runtime: Runtime) {
    let mut ticks = time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    // The first tick is at once, and opening the data directory has just woken everybody.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        match sweep(&runtime).await {
            Ok(0) => {}
            Ok(woken) => tracing::info!(woken, "overdue sessions were woken"),
            Err(error) => tracing::warn!(%error, "a sweep failed; the next one tries again"),
        }
    }
}
