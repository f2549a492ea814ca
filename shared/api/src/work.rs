//! The work queue of a self-hosted environment, as its workers see it: polling for items, keeping
//! them, giving them back.

mod body;
mod polling;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{RawQuery, Request, State},
    http::HeaderMap,
};
use serde_json::{Value, json};
use tailstep_core::{
    agent::EnvironmentKind,
    work::{Beat, Expected, WorkItem, WorkRefused, WorkState},
};
use tailstep_runtime::work::{self, WorkError};
use tokio::time::{Instant, sleep};

use self::body::{beat, shown};
pub(crate) use self::polling::Polling;
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, Id, Ids, NoFields, json as answer, read_body},
    environments,
    error::ApiError,
    fields::Fields,
    metadata::{EmptyValue, patched},
    page::{PageBody, Scope as List},
    query::Query,
    stamp::stamp,
    store, token,
};

/// The longest wait of one poll.
const BLOCK_MS_MAX: u64 = 999;

/// Between two looks at the queue while a poll waits: five in the longest poll.
const LOOK_MS: u64 = 200;

/// An item that was given out and not acknowledged for so long is given out again.
const RECLAIM_MS_DEFAULT: u64 = 5_000;

const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 100;

pub(crate) async fn poll(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(environment): Id,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let block_ms = query.count("block_ms")?;
    if block_ms.is_some_and(|ms| ms > BLOCK_MS_MAX) {
        return Err(ApiError::invalid(format!("block_ms: must be from 1 to {BLOCK_MS_MAX}")));
    }
    let reclaim_ms = query.count("reclaim_older_than_ms")?.unwrap_or(RECLAIM_MS_DEFAULT);
    query.finish()?;
    queue(&api, &caller, &environment).await?;
    if let Some(worker) = headers.get("anthropic-worker-id") {
        api.polling.seen(&caller.tenant, &environment, worker.as_bytes(), api.now_ms());
    }
    let (half, hash) = token::new_half();
    let until = Instant::now() + Duration::from_millis(block_ms.unwrap_or(0));
    loop {
        let runtime = &api.app.runtime;
        let found = work::poll(runtime, &caller.tenant, &environment, reclaim_ms, &hash).await?;
        if let Some(item) = found {
            let mut item_shown = shown(&item);
            item_shown["secret"] = json!(token::secret(&caller.tenant, &item, &half));
            return answer(&item_shown);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return answer(&Value::Null);
        }
        sleep(left.min(Duration::from_millis(LOOK_MS))).await;
    }
}

pub(crate) async fn ack(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Ids(environment, id): Ids,
    _: NoFields,
) -> Answer {
    known(&api, &caller, &environment, &id).await?;
    let runtime = &api.app.runtime;
    let acknowledge = |item: WorkItem, now_ms| item.at(now_ms).acknowledged(now_ms);
    let item = work::change(runtime, &caller.tenant, &environment, &id, acknowledge).await?;
    answer(&shown(&item))
}

pub(crate) async fn heartbeat(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Ids(environment, id): Ids,
    RawQuery(query): RawQuery,
    _: NoFields,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let expected = expected(query.one("expected_last_heartbeat")?.as_deref());
    let lease_s = query.count("desired_ttl_seconds")?;
    query.finish()?;
    let lease_s = lease_s.map(|s| u32::try_from(s).unwrap_or(u32::MAX));
    known(&api, &caller, &environment, &id).await?;
    let beaten = |item: WorkItem, now_ms| {
        item.at(now_ms).beaten(expected, lease_s, now_ms).map(|beat| beat.item)
    };
    let runtime = &api.app.runtime;
    match work::change(runtime, &caller.tenant, &environment, &id, beaten).await {
        Ok(item) => {
            let extended = item.state == WorkState::Active;
            answer(&beat(&Beat { item, extended }))
        }
        Err(WorkError::Refused { item, source: WorkRefused::NotHolder }) => {
            let state = json!({
                "last_heartbeat": item.beat_at_ms.map(stamp),
                "lease_extended": false,
                "state": item.state,
                "ttl_seconds": item.lease_s,
            });
            let what = "expected_last_heartbeat: not the last heartbeat of this work item, so \
                        another worker may hold it";
            let error = ApiError::precondition(what).with_code("heartbeat_precondition_failed");
            Err(error.with_state(state))
        }
        Err(error) => Err(error.into()),
    }
}

/// A time is that of a heartbeat only when it is spelt as it was given.
fn expected(text: Option<&str>) -> Expected {
    match text {
        None => Expected::Any,
        Some("NO_HEARTBEAT") => Expected::None,
        Some(text) => {
            let ms = crate::stamp::parse(text).map(|nanos| nanos / 1_000_000);
            let ms = ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| stamp(*ms) == text);
            ms.map_or(Expected::Unknown, Expected::At)
        }
    }
}

pub(crate) async fn stop(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Ids(environment, id): Ids,
    request: Request,
) -> Answer {
    let body = read_body(request.into_body()).await?;
    let mut fields = Fields::of_optional_body(&body)?;
    let force = fields.flag("force")?.unwrap_or(false);
    fields.finish()?;
    known(&api, &caller, &environment, &id).await?;
    let stop = |item: WorkItem, now_ms| {
        let item = item.at(now_ms);
        if force { item.stopped(now_ms) } else { item.stopping(now_ms) }
    };
    let runtime = &api.app.runtime;
    let item = work::change(runtime, &caller.tenant, &environment, &id, stop).await?;
    answer(&shown(&item))
}

pub(crate) async fn retrieve(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Ids(environment, id): Ids,
    RawQuery(query): RawQuery,
) -> Answer {
    Query::of(query.as_deref()).finish()?;
    known(&api, &caller, &environment, &id).await?;
    let item = work::find(&api.app.runtime, &caller.tenant, &environment, &id).await?;
    answer(&shown(&item))
}

pub(crate) async fn update(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Ids(environment, id): Ids,
    request: Request,
) -> Answer {
    let body = read_body(request.into_body()).await?;
    known(&api, &caller, &environment, &id).await?;
    let runtime = &api.app.runtime;
    let old = work::find(runtime, &caller.tenant, &environment, &id).await?;
    let patch = |old: &_| {
        let mut fields = Fields::of_body(&body)?;
        let metadata = patched(old, &mut fields, EmptyValue::Deletes)?;
        fields.finish()?;
        Ok::<_, ApiError>(metadata)
    };
    patch(&old.metadata)?;
    let change = |mut item: WorkItem, _| {
        // It fits the item that was looked at; whoever changed it since wins when it does not fit.
        if let Ok(metadata) = patch(&item.metadata) {
            item.metadata = metadata;
        }
        Ok(item)
    };
    let item = work::change(runtime, &caller.tenant, &environment, &id, change).await?;
    answer(&shown(&item))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(environment): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let limit = query.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let page = query.one("page")?;
    query.finish()?;
    queue(&api, &caller, &environment).await?;
    let name = format!("environments/{environment}/work");
    let scope = List { tenant: &caller.tenant, list: &name, order: "desc" };
    let after = page.map(|cursor| scope.place(&cursor)).transpose()?;
    let runtime = &api.app.runtime;
    let page = work::list(runtime, &caller.tenant, &environment, after.as_deref(), limit).await?;
    let next_page = page.items.last().filter(|_| page.more).map(|last| scope.cursor(&last.id));
    answer(&PageBody { data: page.items.iter().map(shown).collect(), next_page })
}

pub(crate) async fn stats(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(environment): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    Query::of(query.as_deref()).finish()?;
    queue(&api, &caller, &environment).await?;
    let stats = work::stats(&api.app.runtime, &caller.tenant, &environment).await?;
    answer(&json!({
        "type": "work_queue_stats",
        "depth": stats.waiting,
        "pending": stats.pending,
        "oldest_queued_at": stats.oldest_queued_at_ms.map(stamp),
        "workers_polling": api.polling.count(&caller.tenant, &environment, api.now_ms()),
    }))
}

/// The environment has a queue.
async fn queue(api: &Api, caller: &Caller, environment: &str) -> Result<(), ApiError> {
    let found = environments::existing(api, caller, environment).await?;
    match found.value.kind {
        EnvironmentKind::SelfHosted => Ok(()),
        EnvironmentKind::Cloud => Err(ApiError::invalid(format!(
            "environment {environment} has no work queue; only self_hosted ones have"
        ))),
    }
}

/// The environment has a queue, and the item's id is one.
async fn known(api: &Api, caller: &Caller, environment: &str, id: &str) -> Result<(), ApiError> {
    queue(api, caller, environment).await?;
    if store::is_id(id, work::ID_PREFIX) {
        Ok(())
    } else {
        Err(ApiError::not_found("work item", id))
    }
}
