//! A log as text: one line an event, what the session is in the end, and what the model would be shown
//! next.

use std::fmt::Write;

use tailstep_core::{
    content::{Content, text_of},
    context::Context,
    event::{EndReason, Event, Input, TurnEnd},
    ids::Position,
    limits::Limits,
    model::{Block, Message, Part, Role},
    record::Record,
    session::{Phase, Session},
};

use crate::play::START_MS;

/// The transcript of a log.
///
/// # Errors
/// A record that cannot be read, or an event that does not fit.
pub fn transcript(name: &str, log: &[impl AsRef<[u8]>]) -> Result<String, String> {
    let records = decode(log)?;
    let session = Session::fold(&records).map_err(|refused| refused.to_string())?;
    let mut text = format!("# {name}\n\n");
    for record in &records {
        let at = (record.at_ms - START_MS) as f64 / 1_000.0;
        for (index, event) in record.events.iter().enumerate() {
            let place = format!("{}.{index}", record.seq);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{place:>5} {at:>9.3} s  {}", one(event));
        }
    }
    let _ = writeln!(text, "\n{}\n", status(&session));
    for message in messages(&records) {
        show_message(&mut text, &message);
    }
    Ok(text)
}

/// Reads the records of a log.
///
/// # Errors
/// The first that cannot be read.
pub fn decode(log: &[impl AsRef<[u8]>]) -> Result<Vec<Record>, String> {
    let read = |body| Record::decode(body).map_err(|error| error.to_string());
    log.iter().map(|body| read(body.as_ref())).collect()
}

/// What the model would be shown next.
pub fn messages(records: &[Record]) -> Vec<Message> {
    let request = Context::of(records).request(&Limits::default());
    request.map(|request| request.messages.iter().cloned().collect()).unwrap_or_default()
}

/// The session in one line.
pub fn status(session: &Session) -> String {
    let phase = match &session.phase {
        Phase::Idle => "idle".to_owned(),
        Phase::Turn(turn) => format!("in a turn, {} calls pending", turn.calls.len()),
        Phase::Ended { reason: EndReason::Archived, .. } => "archived".to_owned(),
        Phase::Ended { reason: EndReason::Deleted, .. } => "deleted".to_owned(),
    };
    format!(
        "{phase} after record {}; {} queued; {} tokens in, {} out; {} possible charges",
        session.seq,
        session.queued.len(),
        session.usage.input_tokens,
        session.usage.output_tokens,
        session.possible_charges
    )
}

fn one(event: &Event) -> String {
    match event {
        Event::Created(created) => {
            format!("created        agent {} v{}", created.agent.id, created.agent.version)
        }
        Event::Received(received) => match &received.input {
            Input::Message { content } => format!("received       message {}", said(content)),
            Input::Interrupt => "received       interrupt".to_owned(),
            Input::ToolResult { call, content, is_error } => {
                let error = if *is_error { ", error" } else { "" };
                format!("received       result of {}{error}: {}", place(call), said(content))
            }
        },
        Event::ModelStarted(started) => {
            let inputs: Vec<String> = started.inputs.iter().map(place).collect();
            format!("model_started  attempt {}, shows [{}]", started.attempt, inputs.join(" "))
        }
        Event::ModelAnswered(answered) => {
            let blocks: Vec<String> = answered.answer.blocks.iter().map(block).collect();
            format!(
                "model_answered to {}, {:?}: {}",
                answered.intent,
                answered.answer.stop,
                blocks.join(", ")
            )
        }
        Event::ModelFailed(failed) => {
            let again = failed.retry_at_ms.map_or("not again".to_owned(), |at_ms| {
                format!("again at {:.3} s", (at_ms - START_MS) as f64 / 1_000.0)
            });
            let (kind, message) = (failed.failure.kind, &failed.failure.message);
            format!("model_failed   of {}, {kind:?}: {message}; {again}", failed.intent)
        }
        Event::ToolStarted(started) => {
            format!("tool_started   {}, attempt {}", place(&started.call), started.attempt)
        }
        Event::ToolFinished(finished) => {
            let result = &finished.result;
            let error = if result.is_error { ", error" } else { "" };
            let (call, origin) = (place(&finished.call), result.origin);
            format!("tool_finished  {call}, {origin:?}{error}: {}", said(&result.content))
        }
        Event::ActionRequired(required) => {
            let calls: Vec<String> = required.calls.iter().map(place).collect();
            format!("action_required [{}]", calls.join(" "))
        }
        Event::TurnEnded(ended) => match &ended.reason {
            TurnEnd::Interrupted { input } => {
                format!("turn_ended     interrupted by {}", place(input))
            }
            reason @ (TurnEnd::Completed
            | TurnEnd::Refused { .. }
            | TurnEnd::Failed { .. }
            | TurnEnd::Limit { .. }) => format!("turn_ended     {reason:?}"),
        },
        Event::Fenced(fenced) => {
            format!("fenced         outcome of {}, {}", fenced.intent, &fenced.outcome_sha256[..8])
        }
        Event::Ended(ended) => format!("ended          {:?}", ended.reason),
    }
}

fn place(at: &Position) -> String {
    match at.part {
        0 => format!("{}.{}", at.seq, at.event),
        part => format!("{}.{}/{part}", at.seq, at.event),
    }
}

fn said(content: &[Content]) -> String {
    format!("{:?}", text_of(content))
}

fn block(block: &Block) -> String {
    match block {
        Block::Text { text } => format!("{text:?}"),
        Block::ToolUse { id, name, input } => format!("call {id} {name} {}", input.as_str()),
        Block::BrokenToolUse { id, name, raw, reason } => {
            format!("broken call {id} {name} {raw:?} ({reason:?})")
        }
        Block::Opaque { dialect, raw } => format!("{dialect} block {}", raw.as_str()),
    }
}

fn show_message(text: &mut String, message: &Message) {
    let role = match message.role {
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    let _ = writeln!(text, "{role}:");
    for part in &message.parts {
        let line = match part {
            Part::Content(content) => said(std::slice::from_ref(content)),
            Part::ToolUse { id, name, input } => format!("call {id} {name} {}", input.as_str()),
            Part::ToolResult { id, content, is_error } => {
                let error = if *is_error { " (error)" } else { "" };
                format!("result of {id}{error} {}", said(content))
            }
            Part::Opaque { dialect, raw } => format!("{dialect} block {}", raw.as_str()),
        };
        let _ = writeln!(text, "  {line}");
    }
}
