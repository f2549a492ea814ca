//! The poll loop: as many items at one time as the worker may have.

use std::{sync::Arc, time::Duration};

use http::Method;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::sleep,
};

use crate::{
    Until, Worker,
    client::CallError,
    item::{self, Item},
    pause::{Backoff, spread, told},
};

/// How long the server waits for work in one poll.
const BLOCK_MS: u64 = 999;

/// Between two polls that found nothing.
const REST_MS: u64 = 1_000;

/// Longest wait after polls that failed.
const BACKOFF_MS_MAX: u64 = 60_000;

/// What a worker did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    pub items: u64,
}

/// Works until told to stop, or as [`Until`] says. Told to stop, it takes no further item and gives
/// back those that it has.
///
/// # Errors
/// When the server refuses to be polled: a wrong key, or no such environment. Everything that may
/// pass is waited for instead.
pub async fn run(worker: Worker, stop: watch::Receiver<bool>) -> Result<Served, CallError> {
    let worker = Arc::new(worker);
    let room = Arc::new(Semaphore::new(worker.config.sessions_max.max(1)));
    let mut tasks = JoinSet::new();
    let mut served = Served::default();
    let mut backoff = Backoff::new(1_000, BACKOFF_MS_MAX);
    let ended = loop {
        let permit = tokio::select! {
            permit = room.clone().acquire_owned() => permit,
            () = told(&stop) => break Ok(()),
        };
        // The room is never closed.
        let Ok(permit) = permit else { break Ok(()) };
        let polled = tokio::select! {
            polled = poll(&worker) => polled,
            () = told(&stop) => break Ok(()),
        };
        let wait = async {
            match polled {
                Ok(Some(item)) => {
                    backoff.reset();
                    Next::Serve(item)
                }
                Ok(None) if worker.config.until == Until::Drained => Next::End(Ok(())),
                Ok(None) => {
                    backoff.reset();
                    sleep(Duration::from_millis(spread(REST_MS))).await;
                    Next::Poll
                }
                Err(error) if error.may_pass() => {
                    tracing::warn!(%error, "a poll failed");
                    backoff.wait().await;
                    Next::Poll
                }
                Err(error) => Next::End(Err(error)),
            }
        };
        let next = tokio::select! {
            biased;
            next = wait => next,
            () = told(&stop) => break Ok(()),
        };
        match next {
            Next::Poll => {}
            Next::End(ended) => break ended,
            Next::Serve(item) => {
                served.items += 1;
                let (worker, stop) = (worker.clone(), stop.clone());
                let once = worker.config.until == Until::Once;
                tasks.spawn(async move {
                    item::serve(&worker, &item, &stop).await;
                    drop(permit);
                });
                if once {
                    break Ok(());
                }
            }
        }
        while tasks.try_join_next().is_some() {}
    };
    while let Some(done) = tasks.join_next().await {
        if let Err(error) = done {
            tracing::error!(%error, "serving an item ended by a bug");
        }
    }
    ended.map(|()| served)
}

enum Next {
    Poll,
    Serve(Item),
    End(Result<(), CallError>),
}

async fn poll(worker: &Worker) -> Result<Option<Item>, CallError> {
    let environment = &worker.config.environment;
    let path = format!("/v1/environments/{environment}/work/poll?block_ms={BLOCK_MS}");
    let found: Option<Item> =
        worker.client.call(Method::GET, &path, &worker.config.key, None).await?;
    found.map(Item::checked).transpose()
}
