//! (session, event) → session, or a typed refusal. One function an event.

use super::{
    Effect, Open, Origin, PendingCall, Phase, RECENT_REQUESTS_MAX, Refused, Request, Session, Turn,
};
use crate::{
    event::{
        ActionRequired, Created, EndReason, Ended, Event, Fenced, Input, ModelAnswered,
        ModelFailed, ModelStarted, Origin as ResultOrigin, Received, ToolFinished, ToolStarted,
        TurnEnd, TurnEnded,
    },
    ids::{Position, UnixMs},
    model::{Block, FailureKind, ModelFailure, Stop},
    record::Record,
    toolset,
};

/// Where and when an event stands.
#[derive(Clone, Copy)]
struct At {
    place: Position,
    at_ms: UnixMs,
}

type Why = &'static str;

pub(super) fn record(session: &mut Session, record: &Record) -> Result<(), Refused> {
    let refused = |event, why| Refused { event, seq: record.seq, why };
    if record.seq != session.seq.saturating_add(1) {
        return Err(refused("record", "it is not the next one"));
    }
    if record.events.is_empty() {
        return Err(refused("record", "it is empty"));
    }
    for (index, event) in record.events.iter().enumerate() {
        let index =
            u16::try_from(index).map_err(|_| refused("record", "it has too many events"))?;
        let at = At { place: Position::event(record.seq, index), at_ms: record.at_ms };
        one(session, event, at).map_err(|why| refused(name(event), why))?;
    }
    session.seq = record.seq;
    session.at_ms = record.at_ms;
    Ok(())
}

fn name(event: &Event) -> &'static str {
    match event {
        Event::Created(_) => "created",
        Event::Received(_) => "received",
        Event::ModelStarted(_) => "model_started",
        Event::ModelAnswered(_) => "model_answered",
        Event::ModelFailed(_) => "model_failed",
        Event::ToolStarted(_) => "tool_started",
        Event::ToolFinished(_) => "tool_finished",
        Event::ActionRequired(_) => "action_required",
        Event::TurnEnded(_) => "turn_ended",
        Event::Fenced(_) => "fenced",
        Event::Ended(_) => "ended",
    }
}

fn one(session: &mut Session, event: &Event, at: At) -> Result<(), Why> {
    if let Event::Created(created) = event {
        return on_created(session, created, at);
    }
    if session.origin.is_none() {
        return Err("the session does not exist yet");
    }
    match event {
        Event::Created(_) => Err("the session exists already"),
        Event::Received(received) => on_received(session, received, at),
        Event::ModelStarted(started) => on_model_started(session, started, at),
        Event::ModelAnswered(answered) => on_model_answered(session, answered, at),
        Event::ModelFailed(failed) => on_model_failed(session, failed),
        Event::ToolStarted(started) => on_tool_started(session, started, at),
        Event::ToolFinished(finished) => on_tool_finished(session, finished),
        Event::ActionRequired(required) => on_action_required(session, required),
        Event::TurnEnded(ended) => on_turn_ended(session, ended),
        Event::Fenced(fenced) => on_fenced(session, fenced, at),
        Event::Ended(ended) => on_ended(session, *ended, at),
    }
}

fn on_created(session: &mut Session, created: &Created, at: At) -> Result<(), Why> {
    if session.origin.is_some() || at.place != Position::event(1, 0) {
        return Err("the session exists already");
    }
    session.origin = Some(Origin {
        created_at_ms: at.at_ms,
        agent_id: created.agent.id.clone(),
        agent_version: created.agent.version,
        environment: created.environment.clone(),
        title: created.title.clone(),
        tools: toolset::enabled(&created.agent.tools).map(str::to_owned).collect(),
        has_given: !created.resources.is_empty() || !created.agent.skills.is_empty(),
    });
    Ok(())
}

fn on_received(session: &mut Session, received: &Received, at: At) -> Result<(), Why> {
    if session.is_ended() {
        return Err("the session has ended");
    }
    // The same request may be stored by two servers at once: its client gave up waiting for the first,
    // or the first died with its write under way. Whoever comes second is refused here.
    if let Some(id) = &received.request
        && session.request(id).is_some_and(|request| request.seq != at.place.seq)
    {
        return Err("the request was accepted before");
    }
    match (&received.input, &mut session.phase) {
        (Input::Message { .. }, _) => session.queued.push(at.place),
        (Input::Interrupt, Phase::Turn(turn)) => {
            turn.interrupt.get_or_insert(at.place);
        }
        (Input::Interrupt, Phase::Idle | Phase::Ended { .. }) => {}
        (Input::ToolResult { call, .. }, _) => on_outside_result(session, *call)?,
    }
    if let Some(id) = &received.request
        && session.recent.last().is_none_or(|last| last.id != *id)
    {
        if session.recent.len() >= RECENT_REQUESTS_MAX {
            session.recent.remove(0);
        }
        session.recent.push(Request { id: id.clone(), seq: at.place.seq, at_ms: at.at_ms });
    }
    Ok(())
}

/// A call that somebody outside has run. Answers come in any order, and each call takes one.
fn on_outside_result(session: &mut Session, call: Position) -> Result<(), Why> {
    if !session.is_self_hosted() {
        return Err("its calls are not answered from outside");
    }
    let tools = session.origin.as_ref().map(|origin| origin.tools.as_slice()).unwrap_or_default();
    let Phase::Turn(turn) = &mut session.phase else { return Err("no turn is on") };
    let found = turn.calls.iter().position(|pending| pending.call == call);
    let index = found.ok_or("no such call is pending")?;
    if turn.calls.get(index).is_some_and(|p| p.broken.is_some() || !tools.contains(&p.tool)) {
        return Err("the call cannot be run");
    }
    turn.calls.remove(index);
    Ok(())
}

fn on_action_required(session: &mut Session, required: &ActionRequired) -> Result<(), Why> {
    if !session.is_self_hosted() {
        return Err("its calls are not answered from outside");
    }
    let tools = session.origin.as_ref().map(|origin| origin.tools.as_slice()).unwrap_or_default();
    let Phase::Turn(turn) = &mut session.phase else { return Err("no turn is on") };
    if turn.interrupt.is_some() {
        return Err("the turn is being stopped");
    }
    if turn.calls.is_empty() || !turn.calls.iter().map(|p| &p.call).eq(&required.calls) {
        return Err("it does not name the pending calls");
    }
    if turn.calls.iter().any(|p| p.broken.is_some() || !tools.contains(&p.tool)) {
        return Err("a call cannot be run");
    }
    if turn.waiting == required.calls {
        return Err("it was said before");
    }
    turn.waiting = required.calls.clone();
    Ok(())
}

fn on_model_started(session: &mut Session, started: &ModelStarted, at: At) -> Result<(), Why> {
    if started.inputs != session.queued {
        return Err("it does not take up the queued messages");
    }
    if matches!(session.phase, Phase::Idle) {
        if session.queued.is_empty() {
            return Err("there is nothing to answer");
        }
        session.phase = Phase::Turn(Turn::default());
    }
    let Phase::Turn(turn) = &mut session.phase else { return Err("the session has ended") };
    let goes_on = match &turn.finish {
        None => true,
        Some(TurnEnd::Completed) => !session.queued.is_empty(),
        Some(
            TurnEnd::Interrupted { .. }
            | TurnEnd::Refused { .. }
            | TurnEnd::Failed { .. }
            | TurnEnd::Limit { .. },
        ) => false,
    };
    if !goes_on {
        return Err("the turn is about to end");
    }
    check_start(turn, started.attempt)?;
    if !turn.calls.is_empty() {
        return Err("calls are unanswered");
    }
    match turn.open.as_ref().map(|open| open.effect) {
        None => {}
        Some(Effect::Model) => {
            session.possible_charges = session.possible_charges.saturating_add(1);
        }
        Some(Effect::Tool { .. }) => return Err("a tool is running"),
    }
    turn.finish = None;
    turn.retry_at_ms = None;
    turn.waiting.clear();
    turn.attempts = started.attempt;
    turn.open = Some(Open {
        intent: at.place.seq,
        attempt: started.attempt,
        at_ms: at.at_ms,
        effect: Effect::Model,
    });
    session.queued.clear();
    Ok(())
}

fn check_start(turn: &Turn, attempt: u32) -> Result<(), Why> {
    if turn.interrupt.is_some() {
        return Err("the turn is being stopped");
    }
    if attempt != turn.attempts.saturating_add(1) {
        return Err("it is not the next attempt");
    }
    Ok(())
}

/// Closes the attempt that an outcome belongs to; an outcome of any other attempt is refused, which
/// is what fences a worker that was given up.
fn close(session: &mut Session, intent: u64, effect: Effect) -> Result<&mut Turn, Why> {
    let Phase::Turn(turn) = &mut session.phase else { return Err("no turn is on") };
    match &turn.open {
        Some(open) if open.intent == intent && open.effect == effect => {
            turn.open = None;
            Ok(turn)
        }
        Some(_) => Err("another attempt has taken over"),
        None => Err("no such attempt is open"),
    }
}

fn on_model_answered(session: &mut Session, event: &ModelAnswered, at: At) -> Result<(), Why> {
    let turn = close(session, event.intent, Effect::Model)?;
    turn.attempts = 0;
    turn.failures = 0;
    turn.model_calls = turn.model_calls.saturating_add(1);
    turn.calls = match event.answer.stop {
        // A refused answer is not part of the conversation, and neither are its calls.
        Stop::Refusal { .. } => Vec::new(),
        Stop::EndTurn
        | Stop::ToolUse
        | Stop::MaxTokens
        | Stop::Pause
        | Stop::ContextExceeded
        | Stop::Other { .. } => pending(&event.answer.blocks, at.place)?,
    };
    turn.pauses = match event.answer.stop {
        Stop::Pause => turn.pauses.saturating_add(1),
        Stop::EndTurn
        | Stop::ToolUse
        | Stop::MaxTokens
        | Stop::Refusal { .. }
        | Stop::ContextExceeded
        | Stop::Other { .. } => 0,
    };
    if turn.calls.is_empty() {
        turn.refused_answers = 0;
        turn.finish = finish(&event.answer.stop);
    }
    session.usage.add(&event.answer.usage);
    let tools = session.origin.as_ref().map(|origin| origin.tools.as_slice()).unwrap_or_default();
    if let Phase::Turn(turn) = &mut session.phase
        && !turn.calls.is_empty()
    {
        let runnable =
            turn.calls.iter().any(|call| call.broken.is_none() && tools.contains(&call.tool));
        turn.refused_answers = if runnable { 0 } else { turn.refused_answers.saturating_add(1) };
    }
    Ok(())
}

fn pending(blocks: &[Block], answer: Position) -> Result<Vec<PendingCall>, Why> {
    let mut calls = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let part = u16::try_from(index + 1).map_err(|_| "the answer has too many blocks")?;
        let call = Position { part, ..answer };
        match block {
            Block::ToolUse { name, .. } => {
                calls.push(PendingCall { call, tool: name.clone(), broken: None });
            }
            Block::BrokenToolUse { name, reason, .. } => {
                calls.push(PendingCall { call, tool: name.clone(), broken: Some(*reason) });
            }
            Block::Text { .. } | Block::Opaque { .. } => {}
        }
    }
    Ok(calls)
}

/// How the turn ends after an answer without calls; `None` when the model is to go on.
fn finish(stop: &Stop) -> Option<TurnEnd> {
    match stop {
        Stop::EndTurn | Stop::ToolUse | Stop::MaxTokens | Stop::Other { .. } => {
            Some(TurnEnd::Completed)
        }
        Stop::Refusal { category, explanation } => {
            Some(TurnEnd::Refused { category: category.clone(), explanation: explanation.clone() })
        }
        Stop::Pause => None,
        Stop::ContextExceeded => Some(TurnEnd::Failed {
            failure: ModelFailure {
                kind: FailureKind::Rejected,
                message: "the conversation is longer than the model's context window".to_owned(),
                retry_after_ms: None,
                usage: crate::model::Usage::default(),
            },
        }),
    }
}

fn on_model_failed(session: &mut Session, event: &ModelFailed) -> Result<(), Why> {
    let turn = close(session, event.intent, Effect::Model)?;
    turn.failures = turn.failures.saturating_add(1);
    turn.retry_at_ms = event.retry_at_ms;
    if event.retry_at_ms.is_none() {
        turn.finish = Some(TurnEnd::Failed { failure: event.failure.clone() });
    }
    session.usage.add(&event.failure.usage);
    Ok(())
}

fn on_tool_started(session: &mut Session, started: &ToolStarted, at: At) -> Result<(), Why> {
    if session.is_self_hosted() {
        return Err("its calls are run outside");
    }
    let tools = session.origin.as_ref().map(|origin| origin.tools.as_slice()).unwrap_or_default();
    let Phase::Turn(turn) = &mut session.phase else { return Err("no turn is on") };
    check_start(turn, started.attempt)?;
    match turn.calls.first() {
        Some(next) if next.call != started.call => return Err("another call is next"),
        Some(next) if next.broken.is_some() => return Err("its arguments are broken"),
        Some(next) if !tools.contains(&next.tool) => return Err("the agent has no such tool"),
        Some(_) => {}
        None => return Err("no call is pending"),
    }
    turn.attempts = started.attempt;
    turn.open = Some(Open {
        intent: at.place.seq,
        attempt: started.attempt,
        at_ms: at.at_ms,
        effect: Effect::Tool { call: started.call },
    });
    Ok(())
}

fn on_tool_finished(session: &mut Session, event: &ToolFinished) -> Result<(), Why> {
    // Calls that others run are answered in any order.
    let any_order = session.is_self_hosted();
    let turn = match (event.intent, event.result.origin) {
        (Some(intent), ResultOrigin::Ran | ResultOrigin::Unknown) => {
            close(session, intent, Effect::Tool { call: event.call })?
        }
        (Some(_), ResultOrigin::Refused | ResultOrigin::Cancelled) => {
            return Err("a call that did not run has no intent");
        }
        (None, ResultOrigin::Ran) => return Err("a call that ran has an intent"),
        (None, origin) => {
            let Phase::Turn(turn) = &mut session.phase else { return Err("no turn is on") };
            match origin {
                ResultOrigin::Cancelled if turn.interrupt.is_none() => {
                    return Err("nobody wants the turn stopped");
                }
                ResultOrigin::Refused if turn.open.is_some() => return Err("the call is running"),
                ResultOrigin::Unknown if turn.open.is_none() => {
                    return Err("the call was never started");
                }
                ResultOrigin::Ran
                | ResultOrigin::Refused
                | ResultOrigin::Cancelled
                | ResultOrigin::Unknown => turn.open = None,
            }
            turn
        }
    };
    let found = turn.calls.iter().position(|pending| pending.call == event.call);
    let index = found.filter(|index| *index == 0 || any_order);
    turn.calls.remove(index.ok_or("it is not the next call's result")?);
    turn.attempts = 0;
    turn.failures = 0;
    if let Some(workspace) = &event.result.workspace {
        session.workspace = Some(workspace.clone());
    }
    if let Some(outputs) = &event.result.report.outputs {
        session.outputs = Some(outputs.clone());
    }
    Ok(())
}

fn on_turn_ended(session: &mut Session, event: &TurnEnded) -> Result<(), Why> {
    let Phase::Turn(turn) = &session.phase else { return Err("no turn is on") };
    if !turn.calls.is_empty() {
        return Err("calls are unanswered");
    }
    let lost = matches!(
        event.reason,
        TurnEnd::Interrupted { .. }
            | TurnEnd::Limit { limit: crate::event::LimitName::LostAttempts }
    );
    if turn.open.is_some() && !lost {
        return Err("an attempt is open");
    }
    match &event.reason {
        TurnEnd::Interrupted { input } if turn.interrupt != Some(*input) => {
            return Err("nobody wants the turn stopped");
        }
        TurnEnd::Completed if !session.queued.is_empty() => return Err("messages are waiting"),
        TurnEnd::Completed | TurnEnd::Refused { .. } | TurnEnd::Failed { .. }
            if turn.finish.as_ref() != Some(&event.reason) =>
        {
            return Err("the model did not end it so");
        }
        TurnEnd::Completed
        | TurnEnd::Interrupted { .. }
        | TurnEnd::Refused { .. }
        | TurnEnd::Failed { .. }
        | TurnEnd::Limit { .. } => {}
    }
    if let Some(Open { effect: Effect::Model, .. }) = turn.open {
        session.possible_charges = session.possible_charges.saturating_add(1);
    }
    session.phase = Phase::Idle;
    Ok(())
}

fn on_fenced(session: &mut Session, event: &Fenced, at: At) -> Result<(), Why> {
    if let Phase::Ended { reason: EndReason::Deleted, .. } = session.phase {
        return Err("the session is deleted");
    }
    if event.intent >= at.place.seq {
        return Err("its intent is not in the log");
    }
    if session.open().is_some_and(|open| open.intent == event.intent) {
        return Err("the attempt is not fenced");
    }
    if event.usage != crate::model::Usage::default() {
        session.usage.add(&event.usage);
        session.possible_charges = session.possible_charges.saturating_sub(1);
    }
    Ok(())
}

fn on_ended(session: &mut Session, event: Ended, at: At) -> Result<(), Why> {
    // A turn that waits for somebody outside may wait for ever.
    let waits = !session.awaits().is_empty();
    match (&session.phase, event.reason) {
        (Phase::Turn(_), _) if !waits => Err("the session is running"),
        (Phase::Ended { reason: EndReason::Deleted, .. }, _)
        | (Phase::Ended { reason: EndReason::Archived, .. }, EndReason::Archived) => {
            Err("the session has ended")
        }
        (Phase::Idle | Phase::Turn(_) | Phase::Ended { .. }, reason) => {
            session.phase = Phase::Ended { reason, at_ms: at.at_ms };
            Ok(())
        }
    }
}
