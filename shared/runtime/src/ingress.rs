//! What comes in from outside: sessions and what people say to them. Nothing here runs a model.

use tailstep_core::{
    event::{Created, EndReason, Ended, Event, Input, Received},
    ids::{Position, Seq, SessionKey},
    limits::input::QUEUED_MESSAGES_MAX,
    record::Record,
    session::Session,
};
use thiserror::Error;

use crate::{
    Runtime,
    error::RuntimeError,
    load::{Loaded, load, read_one},
    ports::{LogError, Projection},
    record::record,
    step::wake_next,
};

#[derive(Debug, Error)]
pub enum IngressError {
    #[error("session {session} has ended and takes no more events")]
    Ended { session: String },
    /// It must be interrupted, or end its turn, first.
    #[error("session {session} is running")]
    Running { session: String },
    #[error(
        "session {session} has {QUEUED_MESSAGES_MAX} messages waiting; wait until it takes them up"
    )]
    Full { session: String },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// Creates the session `key`, or finds that this very request created it before (then the session as
/// it is now is returned, whatever `created` says).
///
/// # Errors
/// When the log is out of reach.
pub async fn create(
    runtime: &Runtime,
    key: &SessionKey,
    created: Created,
) -> Result<Session, IngressError> {
    let mut loaded = Loaded { key: key.clone(), head: None, session: Session::default() };
    let events = [Event::Created(Box::new(created))];
    match record(runtime, &mut loaded, &events, Projection::Atomic).await {
        Ok(_) | Err(RuntimeError::Refused { .. }) => Ok(loaded.session),
        Err(error) => Err(error.into()),
    }
}

/// What became of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The record that holds the inputs.
    pub record: Record,
    /// The session after it.
    pub session: Session,
}

impl Sent {
    /// The places of the inputs, in the order in which they were sent.
    pub fn places(&self) -> Vec<Position> {
        let places = self
            .record
            .events
            .iter()
            .enumerate()
            .filter(|(_, event)| matches!(event, Event::Received(_)));
        places
            .filter_map(|(index, _)| u16::try_from(index).ok())
            .map(|index| Position::event(self.record.seq, index))
            .collect()
    }
}

/// Stores `inputs` as one record and wakes the session. The same `request` again stores nothing, but
/// wakes again: the first wake-up may be what got lost.
///
/// # Errors
/// When the session has ended, is unknown, or has too many messages waiting; or when the log or the
/// queue is out of reach (the client sends the same request again).
pub async fn send(
    runtime: &Runtime,
    key: &SessionKey,
    inputs: &[Input],
    request: Option<&str>,
) -> Result<Sent, IngressError> {
    let mut loaded = load(runtime.log.as_ref(), key).await?;
    let record = match accepted(&loaded, request) {
        Some(seq) => read_one(runtime.log.as_ref(), key, seq).await?,
        None => store(runtime, &mut loaded, inputs, request).await?,
    };
    wake_next(runtime, &loaded).await?;
    Ok(Sent { record, session: loaded.session })
}

/// The record that holds what this request sent, if it was accepted before.
fn accepted(loaded: &Loaded, request: Option<&str>) -> Option<Seq> {
    request.and_then(|id| loaded.session.request(id)).map(|request| request.seq)
}

async fn store(
    runtime: &Runtime,
    loaded: &mut Loaded,
    inputs: &[Input],
    request: Option<&str>,
) -> Result<Record, IngressError> {
    let session = loaded.key.session.clone();
    let messages = inputs.iter().filter(|input| matches!(input, Input::Message { .. })).count();
    if loaded.session.queued.len() + messages > QUEUED_MESSAGES_MAX {
        return Err(IngressError::Full { session });
    }
    #[cfg(feature = "planted-bugs")]
    let request = crate::planted::request(request);
    let events: Vec<Event> = inputs
        .iter()
        .map(|input| {
            Event::Received(Received { input: input.clone(), request: request.map(str::to_owned) })
        })
        .collect();
    match record(runtime, loaded, &events, Projection::Atomic).await {
        Ok(record) => Ok(record),
        Err(RuntimeError::Refused { .. }) => match accepted(loaded, request) {
            // The same request by way of another server was faster.
            Some(seq) => Ok(read_one(runtime.log.as_ref(), &loaded.key, seq).await?),
            None => Err(IngressError::Ended { session }),
        },
        Err(error) => Err(error.into()),
    }
}

/// Ends the session for good; its log stays readable.
///
/// # Errors
/// [`IngressError::Running`] while a turn is on; archiving twice is not an error.
pub async fn archive(runtime: &Runtime, key: &SessionKey) -> Result<Session, IngressError> {
    let mut loaded = load(runtime.log.as_ref(), key).await?;
    if !loaded.session.is_ended() {
        end(runtime, &mut loaded, EndReason::Archived).await?;
    }
    runtime.hands.release(key).await.map_err(RuntimeError::from)?;
    Ok(loaded.session)
}

/// Removes the session, its log and its sandbox.
///
/// # Errors
/// [`IngressError::Running`] while a turn is on.
pub async fn delete(runtime: &Runtime, key: &SessionKey) -> Result<(), IngressError> {
    let mut loaded = load(runtime.log.as_ref(), key).await?;
    // Whoever follows the log sees that it ended before it is gone.
    end(runtime, &mut loaded, EndReason::Deleted).await?;
    runtime.hands.release(key).await.map_err(RuntimeError::from)?;
    match runtime.log.purge(key).await {
        Ok(()) | Err(LogError::Conflict { .. }) => Ok(()),
        Err(error) => Err(RuntimeError::from(error).into()),
    }
}

async fn end(
    runtime: &Runtime,
    loaded: &mut Loaded,
    reason: EndReason,
) -> Result<(), IngressError> {
    let events = [Event::Ended(Ended { reason })];
    match record(runtime, loaded, &events, Projection::Atomic).await {
        Ok(_) => Ok(()),
        // Whoever ended it meanwhile did what was asked.
        Err(RuntimeError::Refused { .. }) if loaded.session.is_ended() => Ok(()),
        Err(RuntimeError::Refused { .. }) => {
            Err(IngressError::Running { session: loaded.key.session.clone() })
        }
        Err(error) => Err(error.into()),
    }
}
