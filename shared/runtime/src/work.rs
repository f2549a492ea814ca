//! The work queue of self-hosted environments: which session waits for a worker, and who has it.
//!
//! A session has at most one live item, in the document `Work`; every item that there was keeps one
//! in `WorkPast`. Nothing is lost, whatever dies when, because of three rules:
//!
//! 1. A step makes sure that there is an item before each model call ([`call_for`]), and fails
//!    without it, so its wake-up comes back. Whatever starts or goes on with a turn is such a step.
//! 2. An item that ends is first written down as stopped and only then is the session looked at: if
//!    it is busy, a new item takes the place, if not, the place is emptied ([`settle`]). Whoever saw
//!    the item alive did so before it was stopped, and had made the session busy before that.
//! 3. Who dies between the two leaves a stopped item in its place, and every poll settles those.
//!
//! All writes are compare-and-set on the document's revision. The worst that a race can do is an
//! item for a session that rests, which the next poll takes away.

mod places;

use tailstep_core::{
    ids::{SessionKey, UnixMs},
    work::{WorkItem, WorkRefused, WorkState},
};
use thiserror::Error;

use self::places::{Live, Past, all, get, place, put, put_past, read};
use crate::{
    Runtime,
    error::RuntimeError,
    ids::new_id,
    load::{Loaded, load},
    ports::{DocumentKind, DocumentsError, ListDocuments, Page},
};

pub const ID_PREFIX: &str = "work_";

/// Lost races in one change. Each means that somebody else's change went through.
const RACES_MAX: usize = 16;

#[derive(Debug, Error)]
pub enum WorkError {
    #[error("work item {id} does not exist")]
    NotFound { id: String },
    /// `item` is as it was.
    #[error("work item {} refuses", item.id)]
    Refused { item: Box<WorkItem>, source: WorkRefused },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl From<DocumentsError> for WorkError {
    fn from(error: DocumentsError) -> Self {
        Self::Runtime(error.into())
    }
}

/// How many wait, and since when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkStats {
    pub waiting: u64,
    /// Given to a worker that has not acknowledged it.
    pub pending: u64,
    pub oldest_queued_at_ms: Option<UnixMs>,
}

/// Makes sure that a worker is called for to the session, which is busy.
///
/// # Errors
/// When the documents are out of reach.
pub async fn call_for(runtime: &Runtime, loaded: &Loaded) -> Result<(), RuntimeError> {
    let Some(origin) = &loaded.session.origin else { return Ok(()) };
    let (tenant, environment) = (&loaded.key.tenant, &origin.environment.id);
    for _ in 0..RACES_MAX {
        let live = get(runtime, tenant, environment, &loaded.key.session).await?;
        let done = match live {
            Some(live) if live.item.state == WorkState::Stopped => renew(runtime, &live).await?,
            Some(_) => true,
            None => {
                let now_ms = runtime.clock.now_ms();
                let id = new_id(ID_PREFIX, now_ms);
                let session = loaded.key.session.clone();
                let item = WorkItem::new(id, environment.clone(), session, now_ms);
                announce(runtime, tenant, &item).await?;
                put(runtime, tenant, &item, 0).await?
            }
        };
        if done {
            return Ok(());
        }
    }
    Err(RuntimeError::Contended { session: loaded.key.session.clone() })
}

/// The item that has waited longest among those that are free, given to whoever holds the secret with
/// this hash; and what earlier deaths left undone is done.
///
/// # Errors
/// When a store is out of reach.
pub async fn poll(
    runtime: &Runtime,
    tenant: &str,
    environment: &str,
    reclaim_ms: u64,
    token_sha256: &str,
) -> Result<Option<WorkItem>, RuntimeError> {
    let now_ms = runtime.clock.now_ms();
    let (ended, mut free): (Vec<Live>, Vec<Live>) = all(runtime, tenant, environment)
        .await?
        .into_iter()
        .filter(|live| {
            live.item.state == WorkState::Stopped || live.item.is_free(now_ms, reclaim_ms)
        })
        .partition(|live| live.item.state == WorkState::Stopped);
    for live in &ended {
        end(runtime, live).await?;
    }
    free.sort_by(|a, b| (a.item.queued_at_ms, &a.item.id).cmp(&(b.item.queued_at_ms, &b.item.id)));
    for mut live in free {
        // A session that rests needs nobody.
        if !is_busy(runtime, &live).await? {
            let Ok(stopped) = live.item.clone().stopped(now_ms) else { continue };
            live.item = stopped;
            end(runtime, &live).await?;
            continue;
        }
        let item = live.item.clone().polled(now_ms, token_sha256.to_owned());
        if put(runtime, tenant, &item, live.revision).await? {
            return Ok(Some(item));
        }
    }
    Ok(None)
}

/// The item with this id, live or over.
///
/// # Errors
/// [`WorkError::NotFound`], or when a store is out of reach.
pub async fn find(
    runtime: &Runtime,
    tenant: &str,
    environment: &str,
    id: &str,
) -> Result<WorkItem, WorkError> {
    match locate(runtime, tenant, environment, id).await? {
        Located::Live(live) => Ok(live.item),
        Located::Over(item, _) => Ok(item),
    }
}

/// The live item of a session, whatever its id.
///
/// # Errors
/// When the documents are out of reach.
pub async fn of_session(
    runtime: &Runtime,
    tenant: &str,
    environment: &str,
    session: &str,
) -> Result<Option<WorkItem>, RuntimeError> {
    Ok(get(runtime, tenant, environment, session).await?.map(|live| live.item))
}

/// Takes the item from one state to the next. `step` may be called again when somebody else was
/// faster.
///
/// # Errors
/// [`WorkError::NotFound`]; what `step` refuses; or when a store is out of reach.
pub async fn change(
    runtime: &Runtime,
    tenant: &str,
    environment: &str,
    id: &str,
    step: impl Fn(WorkItem, UnixMs) -> Result<WorkItem, WorkRefused>,
) -> Result<WorkItem, WorkError> {
    for _ in 0..RACES_MAX {
        let now_ms = runtime.clock.now_ms();
        let located = locate(runtime, tenant, environment, id).await?;
        let old = match &located {
            Located::Live(live) => live.item.clone(),
            Located::Over(item, _) => item.clone(),
        };
        let next = match step(old.clone(), now_ms) {
            Ok(next) => next,
            Err(source) => return Err(WorkError::Refused { item: Box::new(old), source }),
        };
        match located {
            Located::Over(_, _) if next == old => return Ok(next),
            Located::Over(_, revision) => {
                if put_past(runtime, tenant, &next, Some(next.clone()), revision).await? {
                    return Ok(next);
                }
            }
            Located::Live(mut live) => {
                live.item = next.clone();
                if next.state == WorkState::Stopped {
                    if end(runtime, &live).await? {
                        return Ok(next);
                    }
                } else if put(runtime, tenant, &next, live.revision).await? {
                    return Ok(next);
                }
            }
        }
    }
    Err(RuntimeError::Contended { session: id.to_owned() }.into())
}

/// Items of an environment, newest first, behind the item with id `after`.
///
/// # Errors
/// When the documents are out of reach.
pub async fn list(
    runtime: &Runtime,
    tenant: &str,
    environment: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Page<WorkItem>, RuntimeError> {
    let query = ListDocuments {
        prefix: place(environment, ""),
        after: after.map(|id| place(environment, id)),
        limit,
        descending: true,
    };
    let page = runtime.documents.list(tenant, DocumentKind::WorkPast, &query).await?;
    let mut items = Vec::with_capacity(page.items.len());
    for document in &page.items {
        let past: Past = read(document)?;
        let id = document.id.split_once('#').map_or("", |(_, id)| id);
        match past.ended {
            Some(item) => items.push(item),
            // One that never came to be is left out.
            None => items.extend(
                of_session(runtime, tenant, environment, &past.session)
                    .await?
                    .filter(|item| item.id == id),
            ),
        }
    }
    Ok(Page { items, more: page.more })
}

/// What the queue holds now.
///
/// # Errors
/// When the documents are out of reach.
pub async fn stats(
    runtime: &Runtime,
    tenant: &str,
    environment: &str,
) -> Result<WorkStats, RuntimeError> {
    let mut stats = WorkStats::default();
    for live in all(runtime, tenant, environment).await? {
        if live.item.state != WorkState::Queued {
            continue;
        }
        match live.item.polled_at_ms {
            Some(_) => stats.pending += 1,
            None => stats.waiting += 1,
        }
        let oldest_ms = stats.oldest_queued_at_ms.unwrap_or(u64::MAX);
        stats.oldest_queued_at_ms = Some(oldest_ms.min(live.item.queued_at_ms));
    }
    Ok(stats)
}

enum Located {
    Live(Live),
    /// With the revision of its document.
    Over(WorkItem, u64),
}

async fn locate(
    runtime: &Runtime,
    tenant: &str,
    environment: &str,
    id: &str,
) -> Result<Located, WorkError> {
    let missing = || WorkError::NotFound { id: id.to_owned() };
    let place = place(environment, id);
    let document = runtime.documents.get(tenant, DocumentKind::WorkPast, &place).await?;
    let document = document.ok_or_else(missing)?;
    let past: Past = read(&document)?;
    if let Some(item) = past.ended {
        return Ok(Located::Over(item, document.revision));
    }
    let live = get(runtime, tenant, environment, &past.session).await?;
    live.filter(|live| live.item.id == id).map(Located::Live).ok_or_else(missing)
}

/// Writes that an item has stopped, and then settles its place; `false` when somebody else changed it.
async fn end(runtime: &Runtime, live: &Live) -> Result<bool, RuntimeError> {
    let mut revision = live.revision;
    if live.stored != WorkState::Stopped {
        if !put(runtime, &live.tenant, &live.item, revision).await? {
            return Ok(false);
        }
        revision += 1;
    }
    settle(
        runtime,
        &Live {
            stored: WorkState::Stopped,
            revision,
            item: live.item.clone(),
            tenant: live.tenant.clone(),
        },
    )
    .await?;
    Ok(true)
}

/// What follows a stopped item, which is stored as such: a new one when the session is busy, or an
/// empty place. A lost race means that somebody else has seen to it.
async fn settle(runtime: &Runtime, live: &Live) -> Result<(), RuntimeError> {
    if is_busy(runtime, live).await? {
        renew(runtime, live).await?;
        return Ok(());
    }
    bury(runtime, live).await?;
    let place = place(&live.item.environment, &live.item.session);
    let kind = DocumentKind::Work;
    match runtime.documents.delete_at(&live.tenant, kind, &place, live.revision).await {
        Ok(()) | Err(DocumentsError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Puts a new item in the place of one that has stopped; `false` when somebody else did something.
async fn renew(runtime: &Runtime, live: &Live) -> Result<bool, RuntimeError> {
    bury(runtime, live).await?;
    let now_ms = runtime.clock.now_ms();
    let next = live.item.returned(new_id(ID_PREFIX, now_ms), now_ms);
    announce(runtime, &live.tenant, &next).await?;
    put(runtime, &live.tenant, &next, live.revision).await
}

async fn is_busy(runtime: &Runtime, live: &Live) -> Result<bool, RuntimeError> {
    let key = SessionKey::new(live.tenant.as_str(), live.item.session.as_str());
    match load(runtime.log.as_ref(), &key).await {
        Ok(loaded) => Ok(loaded.session.is_busy()),
        Err(RuntimeError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes the item's id known, before the item is.
async fn announce(runtime: &Runtime, tenant: &str, item: &WorkItem) -> Result<(), RuntimeError> {
    put_past(runtime, tenant, item, None, 0).await?;
    Ok(())
}

/// Keeps how the item ended, before its place is given away.
async fn bury(runtime: &Runtime, live: &Live) -> Result<(), RuntimeError> {
    let place = place(&live.item.environment, &live.item.id);
    let found = runtime.documents.get(&live.tenant, DocumentKind::WorkPast, &place).await?;
    let Some(found) = found else { return Ok(()) };
    let past: Past = read(&found)?;
    if past.ended.is_none() {
        let ended = Some(live.item.clone());
        // A lost race was somebody who did the same.
        put_past(runtime, &live.tenant, &live.item, ended, found.revision).await?;
    }
    Ok(())
}
