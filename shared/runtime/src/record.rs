//! The one way to write: every append asks [`Session::apply`] first, and asks again when somebody
//! else was faster.

use bytes::Bytes;
use tailstep_core::{
    decide::{conclude, due_at_ms},
    event::{EndReason, Event},
    ids::{SessionKey, UnixMs},
    limits::Limits,
    record::Record,
    session::{Phase, Session},
};

use crate::{
    Runtime,
    error::RuntimeError,
    ids::nonce,
    load::{Loaded, catch_up},
    ports::{Entry, Head, LogError, Projection, SessionStatus},
};

/// Lost races in one append. Each means that somebody else wrote, so the session moves all the same.
const RACES_MAX: usize = 32;

/// Tries of one write whose answer was lost.
const SENDS_MAX: usize = 3;

/// Appends `events`, and what follows from them, to the session that `loaded` holds; on return it
/// holds the session as it is after the append.
///
/// # Errors
/// [`RuntimeError::Refused`] when the events do not fit (any more): nothing was written, and `loaded`
/// is the session that refused.
pub async fn record(
    runtime: &Runtime,
    loaded: &mut Loaded,
    events: &[Event],
    projection: Projection,
) -> Result<Record, RuntimeError> {
    for _ in 0..RACES_MAX {
        match once(runtime, loaded, events, projection).await {
            Err(RuntimeError::Log(LogError::Conflict { .. })) => {
                catch_up(runtime.log.as_ref(), loaded).await?;
            }
            done => return done,
        }
    }
    Err(RuntimeError::Contended { session: loaded.key.session.clone() })
}

/// Appends what was decided for the session that `loaded` holds, and for no other: `None` when
/// somebody else wrote first, and then `loaded` is the session to decide for anew. A decision that
/// meets another state may fit it all the same and be wrong there: to take over attempt 1 of one model
/// call must not take over attempt 1 of the next.
///
/// # Errors
/// As [`record`].
pub async fn record_decision(
    runtime: &Runtime,
    loaded: &mut Loaded,
    events: &[Event],
    projection: Projection,
) -> Result<Option<Record>, RuntimeError> {
    #[cfg(feature = "planted-bugs")]
    if crate::planted::keeps_decisions() {
        return record(runtime, loaded, events, projection).await.map(Some);
    }
    match once(runtime, loaded, events, projection).await {
        Ok(record) => Ok(Some(record)),
        Err(RuntimeError::Log(LogError::Conflict { .. })) => {
            catch_up(runtime.log.as_ref(), loaded).await?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn once(
    runtime: &Runtime,
    loaded: &mut Loaded,
    events: &[Event],
    projection: Projection,
) -> Result<Record, RuntimeError> {
    let now_ms = runtime.clock.now_ms();
    let (record, next) = conclude(&loaded.session, events.to_vec(), now_ms, &runtime.limits)
        .map_err(|source| RuntimeError::Refused { session: loaded.key.session.clone(), source })?;
    let head = append(runtime, &loaded.key, &record, &next, projection).await?;
    loaded.session = next;
    match projection {
        // The stored head stays behind.
        Projection::Lag => {}
        Projection::Follow | Projection::Atomic => loaded.head = Some(head),
    }
    Ok(record)
}

async fn append(
    runtime: &Runtime,
    key: &SessionKey,
    record: &Record,
    next: &Session,
    projection: Projection,
) -> Result<Head, RuntimeError> {
    let body = record.encode().map_err(|source| RuntimeError::Unreadable {
        session: key.session.clone(),
        seq: record.seq,
        source,
    })?;
    let entry = Entry { seq: record.seq, nonce: nonce(), body: Bytes::from(body) };
    let head = head_of(key, next, record.at_ms, &runtime.limits);
    let mut sends = 1;
    loop {
        match runtime.log.append(key, &entry, &head, projection).await {
            Ok(_) => return Ok(head),
            // The same entry again: if it was applied, its nonce says that it is ours.
            Err(LogError::Unavailable { .. }) if sends < SENDS_MAX => sends += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// The projection of `session`.
pub fn head_of(key: &SessionKey, session: &Session, now_ms: UnixMs, limits: &Limits) -> Head {
    let origin = session.origin.as_ref();
    let (status, archived_at_ms) = status_of(session);
    Head {
        tenant: key.tenant.clone(),
        session: key.session.clone(),
        last_seq: session.seq,
        status,
        agent_id: origin.map(|origin| origin.agent_id.clone()).unwrap_or_default(),
        agent_version: origin.map(|origin| origin.agent_version).unwrap_or_default(),
        environment_id: origin.map(|origin| origin.environment.id.clone()).unwrap_or_default(),
        title: origin.and_then(|origin| origin.title.clone()),
        created_at_ms: origin.map(|origin| origin.created_at_ms).unwrap_or_default(),
        updated_at_ms: session.at_ms,
        archived_at_ms,
        due_at_ms: due_at_ms(session, now_ms, limits),
        usage: session.usage,
        snapshot: Bytes::from(serde_json::to_vec(session).unwrap_or_default()),
        lease: None,
    }
}

fn status_of(session: &Session) -> (SessionStatus, Option<UnixMs>) {
    match &session.phase {
        Phase::Idle => (SessionStatus::Idle, None),
        Phase::Turn(turn) if turn.retry_at_ms.is_some() && turn.open.is_none() => {
            (SessionStatus::Rescheduling, None)
        }
        // Nothing of ours is under way.
        Phase::Turn(_) if !session.awaits().is_empty() => (SessionStatus::Idle, None),
        Phase::Turn(_) => (SessionStatus::Running, None),
        Phase::Ended { reason: EndReason::Archived, at_ms } => {
            (SessionStatus::Terminated, Some(*at_ms))
        }
        Phase::Ended { reason: EndReason::Deleted, at_ms } => {
            (SessionStatus::Deleted, Some(*at_ms))
        }
    }
}
