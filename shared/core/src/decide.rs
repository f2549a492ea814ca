//! What happens next. Three questions: what a session needs ([`decide`]), what to do when the worker
//! of an attempt is known to be dead ([`given_up`]), and what else belongs into the record of an
//! outcome ([`conclude`]).

use crate::{
    content::Content,
    event::{
        ActionRequired, Event, HandsReport, LimitName, ModelStarted, Origin, ToolFinished,
        ToolResult, ToolStarted, TurnEnd, TurnEnded,
    },
    ids::{Position, Seq, UnixMs},
    limits::Limits,
    model::Broken,
    record::Record,
    session::{Effect, Open, PendingCall, Phase, Refused, Session, Turn},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing, until somebody says something or answers the calls of [`Session::awaits`].
    Rest,
    /// Nothing before that time.
    Wait { until_ms: UnixMs },
    /// Somebody is at work; see whether that worker lives.
    Watch(Open),
    /// Only write this down.
    Record(Vec<Event>),
    /// Record the intent, then have the effect.
    Start { intent: Event, effect: Effect },
}

/// What the session needs at `now_ms`.
pub fn decide(session: &Session, now_ms: UnixMs, limits: &Limits) -> Action {
    match &session.phase {
        Phase::Ended { .. } => Action::Rest,
        Phase::Idle if session.queued.is_empty() => Action::Rest,
        Phase::Idle => call_model(session, 1),
        Phase::Turn(turn) => in_turn(session, turn, now_ms, limits),
    }
}

fn in_turn(session: &Session, turn: &Turn, now_ms: UnixMs, limits: &Limits) -> Action {
    if let Some(input) = turn.interrupt {
        return Action::Record(stop_turn(turn, TurnEnd::Interrupted { input }));
    }
    if let Some(open) = &turn.open {
        return Action::Watch(open.clone());
    }
    match turn.calls.first() {
        Some(_) if session.is_self_hosted() => return on_outside_calls(session, turn),
        Some(call) => return on_call(session, call, turn.attempts),
        None => {}
    }
    match &turn.finish {
        Some(TurnEnd::Completed) if !session.queued.is_empty() => {}
        Some(reason) => return end_turn(reason.clone()),
        None => {}
    }
    if let Some(limit) = limit_reached(turn, limits) {
        return end_turn(TurnEnd::Limit { limit });
    }
    match turn.retry_at_ms {
        Some(until_ms) if until_ms > now_ms => Action::Wait { until_ms },
        Some(_) | None => call_model(session, turn.attempts.saturating_add(1)),
    }
}

fn call_model(session: &Session, attempt: u32) -> Action {
    Action::Start {
        intent: Event::ModelStarted(ModelStarted { attempt, inputs: session.queued.clone() }),
        effect: Effect::Model,
    }
}

fn end_turn(reason: TurnEnd) -> Action {
    Action::Record(vec![Event::TurnEnded(TurnEnded { reason })])
}

/// Every pending call gets its result, so that the conversation stays one that a provider accepts.
fn stop_turn(turn: &Turn, reason: TurnEnd) -> Vec<Event> {
    let mut events: Vec<Event> = turn
        .calls
        .iter()
        .map(|call| answered(call, Origin::Cancelled, "stopped by the user".to_owned()))
        .collect();
    events.push(Event::TurnEnded(TurnEnded { reason }));
    events
}

fn on_call(session: &Session, call: &PendingCall, attempts: u32) -> Action {
    if let Some(why) = refusal(session, call) {
        return Action::Record(vec![answered(call, Origin::Refused, why)]);
    }
    let attempt = attempts.saturating_add(1);
    Action::Start {
        intent: Event::ToolStarted(ToolStarted { call: call.call, attempt }),
        effect: Effect::Tool { call: call.call },
    }
}

/// Calls that others run: what cannot run is refused here, and the rest is asked for once. Waiting
/// for the answers costs nothing, so it is rest.
fn on_outside_calls(session: &Session, turn: &Turn) -> Action {
    for call in &turn.calls {
        if let Some(why) = refusal(session, call) {
            return Action::Record(vec![answered(call, Origin::Refused, why)]);
        }
    }
    let calls: Vec<Position> = turn.calls.iter().map(|pending| pending.call).collect();
    if turn.waiting == calls {
        Action::Rest
    } else {
        Action::Record(vec![Event::ActionRequired(ActionRequired { calls })])
    }
}

/// Why a call is answered without running; `None` when it can run.
fn refusal(session: &Session, call: &PendingCall) -> Option<String> {
    let tools = session.origin.as_ref().map(|origin| origin.tools.as_slice()).unwrap_or_default();
    Some(match call.broken {
        Some(Broken::Cut) => {
            "the arguments were cut off by the output limit and the tool did not run; \
             send the call again with shorter arguments"
                .to_owned()
        }
        Some(Broken::Malformed) => "the arguments are not a JSON object and the tool did not run; \
             send the call again with valid JSON"
            .to_owned(),
        None if !tools.contains(&call.tool) => {
            let available = if tools.is_empty() { "none".to_owned() } else { tools.join(", ") };
            format!("there is no tool of this name; available tools: {available}")
        }
        None => return None,
    })
}

fn answered(call: &PendingCall, origin: Origin, text: String) -> Event {
    Event::ToolFinished(ToolFinished {
        call: call.call,
        intent: None,
        result: ToolResult {
            content: vec![Content::text(text)],
            is_error: true,
            origin,
            workspace: None,
            report: HandsReport::default(),
        },
    })
}

fn limit_reached(turn: &Turn, limits: &Limits) -> Option<LimitName> {
    if turn.refused_answers >= limits.refused_answers_max {
        Some(LimitName::RefusedCalls)
    } else if turn.pauses >= limits.pauses_max {
        Some(LimitName::Pauses)
    } else if turn.model_calls >= limits.model_calls_max {
        Some(LimitName::ModelCalls)
    } else {
        None
    }
}

/// What to do about attempt `intent`, whose worker is dead. Anything but that attempt being open
/// means that the news is old, and [`decide`] answers instead.
pub fn given_up(session: &Session, intent: Seq, now_ms: UnixMs, limits: &Limits) -> Action {
    let Some(turn) = session.turn().filter(|turn| turn.interrupt.is_none()) else {
        return decide(session, now_ms, limits);
    };
    let Some(open) = turn.open.as_ref().filter(|open| open.intent == intent) else {
        return decide(session, now_ms, limits);
    };
    let lost = turn.attempts.saturating_sub(turn.failures);
    match (open.effect, turn.calls.first()) {
        (Effect::Tool { .. }, Some(call)) if lost >= limits.lost_attempts_max => {
            Action::Record(vec![answered(
                call,
                Origin::Unknown,
                format!(
                    "the workers that ran this call died {lost} times; it may have run in part"
                ),
            )])
        }
        (Effect::Tool { call }, _) => Action::Start {
            intent: Event::ToolStarted(ToolStarted {
                call,
                attempt: turn.attempts.saturating_add(1),
            }),
            effect: open.effect,
        },
        (Effect::Model, _) if lost >= limits.lost_attempts_max => {
            end_turn(TurnEnd::Limit { limit: LimitName::LostAttempts })
        }
        (Effect::Model, _) => call_model(session, turn.attempts.saturating_add(1)),
    }
}

/// The events of one record: `outcome`, and whatever follows from it without another effect (the
/// turn's end, refusals of calls that cannot run). Computed against the session as it is now, so that
/// a message that came in meanwhile keeps the turn going.
///
/// # Errors
/// When `outcome` does not fit: its attempt was fenced.
pub fn conclude(
    session: &Session,
    outcome: Vec<Event>,
    now_ms: UnixMs,
    limits: &Limits,
) -> Result<(Record, Session), Refused> {
    let mut record = Record::new(session.seq.saturating_add(1), now_ms.max(session.at_ms), outcome);
    loop {
        let next = session.after(&record)?;
        match decide(&next, now_ms, limits) {
            Action::Record(more) => record.events.extend(more),
            Action::Rest | Action::Wait { .. } | Action::Watch(_) | Action::Start { .. } => {
                return Ok((record, next));
            }
        }
    }
}

/// Since or from when the session has something to do; `None` while it waits for people. A session
/// that is past this for long has lost its wake-up.
pub fn due_at_ms(session: &Session, now_ms: UnixMs, limits: &Limits) -> Option<UnixMs> {
    match decide(session, now_ms, limits) {
        Action::Rest => None,
        Action::Wait { until_ms } => Some(until_ms),
        Action::Watch(_) | Action::Record(_) | Action::Start { .. } => Some(now_ms),
    }
}

#[cfg(test)]
mod tests;
