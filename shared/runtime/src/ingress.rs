//! What comes in from outside: sessions and what people say to them. Nothing here runs a model.

use tailstep_core::{
    event::{Created, EndReason, Ended, Event, Input, Received},
    ids::{Position, Seq, SessionKey, UnixMs},
    limits::input::QUEUED_MESSAGES_MAX,
    model::{Block, Stop},
    record::Record,
    session::Session,
};
use thiserror::Error;

use crate::{
    Runtime,
    error::RuntimeError,
    load::{Loaded, load, read, read_one},
    ports::{LogError, Projection},
    record::record,
    step::wake_next,
};

/// Tries to store answers while others answer the same calls.
const ANSWER_RACES_MAX: usize = 16;

/// Records read at once while a call's answer is looked for; it stands soon behind its call.
const ANSWER_RECORDS: usize = 32;

#[derive(Debug, Error)]
pub enum IngressError {
    #[error("session {session} has ended and takes no more events")]
    Ended { session: String },
    /// It must be interrupted, or end its turn, first.
    #[error("session {session} is running")]
    Running { session: String },
    /// Input `index` answers something that is no call of the session, or one that nobody may run.
    #[error("session {session} has no such call")]
    UnknownCall { session: String, index: usize },
    /// Input `index` answers a call that is none of the sender's business.
    #[error("calls of session {session} are run by the deployment")]
    NotSelfHosted { session: String, index: usize },
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
    /// In the order in which they were sent.
    pub inputs: Vec<SentInput>,
    /// The session after it.
    pub session: Session,
}

/// Where an input is in the log. For a second answer to a call that is the first answer: the second
/// is stored nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentInput {
    pub place: Position,
    pub at_ms: UnixMs,
    pub input: Input,
}

/// Stores `inputs` as one record and wakes the session. The same `request` again stores nothing, but
/// wakes again: the first wake-up may be what got lost. An answer to a call that has its answer is
/// accepted and changes nothing, because a worker cannot know whether its first try arrived.
///
/// # Errors
/// When the session has ended, is unknown, or has too many messages waiting; when an answer belongs
/// to no call that somebody outside may answer (then nothing at all is stored); or when the log or the
/// queue is out of reach (the client sends the same request again).
pub async fn send(
    runtime: &Runtime,
    key: &SessionKey,
    inputs: &[Input],
    request: Option<&str>,
) -> Result<Sent, IngressError> {
    let mut loaded = load(runtime.log.as_ref(), key).await?;
    let record = match accepted(&loaded, request) {
        Some(seq) => Some(read_one(runtime.log.as_ref(), key, seq).await?),
        None => store(runtime, &mut loaded, inputs, request).await?,
    };
    wake_next(runtime, &loaded).await?;
    let inputs = places(runtime, key, inputs, record.as_ref()).await?;
    Ok(Sent { inputs, session: loaded.session })
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
) -> Result<Option<Record>, IngressError> {
    let session = loaded.key.session.clone();
    let messages = inputs.iter().filter(|input| matches!(input, Input::Message { .. })).count();
    if loaded.session.queued.len() + messages > QUEUED_MESSAGES_MAX {
        return Err(IngressError::Full { session });
    }
    #[cfg(feature = "planted-bugs")]
    let request = crate::planted::request(request);
    for _ in 0..ANSWER_RACES_MAX {
        if loaded.session.is_ended() {
            return Err(IngressError::Ended { session });
        }
        let fresh = unanswered(runtime, loaded, inputs).await?;
        if fresh.is_empty() {
            return Ok(None);
        }
        let received = |input: &Input| {
            Event::Received(Received { input: input.clone(), request: request.map(str::to_owned) })
        };
        let events: Vec<Event> = fresh.into_iter().map(received).collect();
        match record(runtime, loaded, &events, Projection::Atomic).await {
            Ok(record) => return Ok(Some(record)),
            // Somebody else was faster: with the same request, or with an answer to the same call.
            Err(RuntimeError::Refused { .. }) => {
                if let Some(seq) = accepted(loaded, request) {
                    return Ok(Some(read_one(runtime.log.as_ref(), &loaded.key, seq).await?));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(RuntimeError::Contended { session }.into())
}

/// The inputs without the answers that came before.
async fn unanswered<'a>(
    runtime: &Runtime,
    loaded: &Loaded,
    inputs: &'a [Input],
) -> Result<Vec<&'a Input>, IngressError> {
    let mut fresh: Vec<&Input> = Vec::new();
    let mut calls = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        let Input::ToolResult { call, .. } = input else {
            fresh.push(input);
            continue;
        };
        let session = loaded.key.session.clone();
        if !loaded.session.is_self_hosted() {
            return Err(IngressError::NotSelfHosted { session, index });
        }
        let turn = loaded.session.turn();
        let pending = turn.is_some_and(|turn| turn.calls.iter().any(|p| p.call == *call));
        if pending && !calls.contains(call) {
            calls.push(*call);
            fresh.push(input);
        } else if !pending && !is_call(runtime, loaded, *call).await? {
            return Err(IngressError::UnknownCall { session, index });
        }
    }
    Ok(fresh)
}

/// Whether the session's model made a call at that place, answered or not.
async fn is_call(runtime: &Runtime, loaded: &Loaded, call: Position) -> Result<bool, RuntimeError> {
    if call.seq == 0 || call.seq > loaded.session.seq {
        return Ok(false);
    }
    let record = read_one(runtime.log.as_ref(), &loaded.key, call.seq).await?;
    let Some(Event::ModelAnswered(answered)) = record.events.get(usize::from(call.event)) else {
        return Ok(false);
    };
    let block = usize::from(call.part).checked_sub(1);
    let block = block.and_then(|block| answered.answer.blocks.get(block));
    let refused = matches!(answered.answer.stop, Stop::Refusal { .. });
    let is_call = matches!(block, Some(Block::ToolUse { .. } | Block::BrokenToolUse { .. }));
    Ok(is_call && !refused)
}

/// Where each input is: in `record`, or where its call was answered before.
async fn places(
    runtime: &Runtime,
    key: &SessionKey,
    inputs: &[Input],
    record: Option<&Record>,
) -> Result<Vec<SentInput>, RuntimeError> {
    let mut stored = record.map(received).unwrap_or_default().into_iter().peekable();
    let mut found = Vec::with_capacity(inputs.len());
    for input in inputs {
        match (stored.next_if(|stored| stored.input == *input), input) {
            (Some(stored), _) => found.push(stored),
            (None, Input::ToolResult { call, .. }) => {
                found.extend(answer_to(runtime, key, *call).await?);
            }
            // The same request has the same inputs.
            (None, Input::Message { .. } | Input::Interrupt) => {}
        }
    }
    Ok(found)
}

/// The inputs in a record.
fn received(record: &Record) -> Vec<SentInput> {
    let mut found = Vec::new();
    for (index, event) in record.events.iter().enumerate() {
        if let Event::Received(received) = event {
            // `Session::apply` refuses records with more events than fit.
            let place = Position::event(record.seq, u16::try_from(index).unwrap_or(u16::MAX));
            found.push(SentInput { place, at_ms: record.at_ms, input: received.input.clone() });
        }
    }
    found
}

/// What answered a call, whoever it was.
async fn answer_to(
    runtime: &Runtime,
    key: &SessionKey,
    call: Position,
) -> Result<Option<SentInput>, RuntimeError> {
    let mut after = call.seq.saturating_sub(1);
    loop {
        let records = read(runtime.log.as_ref(), key, after, ANSWER_RECORDS).await?;
        for record in &records {
            for (index, event) in record.events.iter().enumerate() {
                let input = match event {
                    Event::Received(received) => received.input.clone(),
                    Event::ToolFinished(finished) => Input::ToolResult {
                        call: finished.call,
                        content: finished.result.content.clone(),
                        is_error: finished.result.is_error,
                    },
                    Event::Created(_)
                    | Event::ModelStarted(_)
                    | Event::ModelAnswered(_)
                    | Event::ModelFailed(_)
                    | Event::ToolStarted(_)
                    | Event::ActionRequired(_)
                    | Event::TurnEnded(_)
                    | Event::Fenced(_)
                    | Event::Ended(_) => continue,
                };
                if matches!(&input, Input::ToolResult { call: answered, .. } if *answered == call) {
                    let index = u16::try_from(index).unwrap_or(u16::MAX);
                    let place = Position::event(record.seq, index);
                    return Ok(Some(SentInput { place, at_ms: record.at_ms, input }));
                }
            }
        }
        match records.last() {
            Some(last) if records.len() == ANSWER_RECORDS => after = last.seq,
            Some(_) | None => return Ok(None),
        }
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
