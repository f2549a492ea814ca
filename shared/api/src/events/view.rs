//! The one place where the log's events become the API's.
//!
//! | in the log | in the API, in this order (id's part) |
//! |---|---|
//! | `received`, a message | nothing in the list; in the stream `user.message` with null (0) |
//! | `received`, an interrupt | `user.interrupt` (0); it acts in the record that holds it |
//! | `received`, a call's result | `user.tool_result` (0); it is taken in by the record that holds it |
//! | `model_started` | `span.model_request_end` of an attempt that was lost ([`LOST`]), `session.status_running` when the session was idle or rescheduled ([`RUNNING`]), each `user.message` that is taken up (that message's id), `span.model_request_start` (0) |
//! | `model_answered` | per block n `agent.message`, `agent.thinking`, `agent.tool_use` (n + 1), `span.model_request_end` (0) |
//! | `model_failed` | `span.model_request_end` (0); when it will be tried again, `session.error` ([`ERROR`]) and `session.status_rescheduled` ([`RESCHEDULED`]) |
//! | `tool_finished` | `agent.tool_result` (0) |
//! | `action_required` | `session.usage` ([`USAGE`]), `session.status_idle` (0) |
//! | `turn_ended` | `span.model_request_end` of a call that was stopped ([`LOST`]), `session.error` after a failure or a limit ([`ERROR`]), `session.usage` ([`USAGE`]), `session.status_idle` (0) |
//! | `ended` | `session.status_terminated` or `session.deleted` (0) |
//! | `created`, `tool_started`, `fenced` | nothing |
//!
//! Event ids are made of these places, so the numbers are part of the stored world: never change one.
//!
//! A message is listed where a model call takes it up, because there it enters the conversation;
//! while it waits it is listed behind everything else. Its id is that of the place where it was
//! received, so clients recognise it when the stream shows it for the second time.

use serde_json::{Value, json};
use tailstep_core::{
    content::Content,
    event::{
        ActionRequired, EndReason, Event, HandsReport, Input, LimitName, ModelAnswered,
        ModelFailed, ModelStarted, Origin, ToolFinished, TurnEnd, TurnEnded,
    },
    ids::{Position, UnixMs},
    model::{Block, FailureKind, Stop, Usage},
    raw::RawJson,
    record::Record,
};

use super::{
    body::{Body, Egress, MESSAGE, Place, Shown},
    past::{self, Messages, Past, Stand},
};
use crate::sessions;

/// Parts of ids that are not parts of the log's own events; above any block of an answer that a
/// provider sends, and within the three hexadecimal digits of an id.
const RUNNING: u16 = 0xf01;
const LOST: u16 = 0xf02;
const ERROR: u16 = 0xf03;
const RESCHEDULED: u16 = 0xf04;
const USAGE: u16 = 0xf05;

/// Who looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Each event once, at its lasting place.
    List,
    /// Messages also when they are received.
    Stream,
}

/// Turns records, in the log's order, into the API's events.
pub(super) struct View {
    pub(super) mode: Mode,
    pub(super) session: String,
    /// Names of the tools that the agent may use.
    pub(super) tools: Vec<String>,
    /// What came before the next record.
    pub(super) past: Past,
    pub(super) messages: Messages,
}

/// The API's events that come of one event of the log.
struct Out {
    at: Position,
    at_ms: UnixMs,
    shown: Vec<Shown>,
}

impl Out {
    fn push(&mut self, id: Position, kind: &'static str, body: Body) {
        let nth = u16::try_from(self.shown.len()).unwrap_or(u16::MAX);
        let place = Place { seq: self.at.seq, event: self.at.event, nth };
        self.shown.push(Shown { place, id, processed_at_ms: Some(self.at_ms), kind, body });
    }

    fn part(&self, part: u16) -> Position {
        Position { part, ..self.at }
    }
}

impl View {
    /// The events of the next record.
    pub(super) fn show(&mut self, record: Record) -> Vec<Shown> {
        let mut shown = Vec::new();
        for (index, event) in record.events.into_iter().enumerate() {
            let at = past::place(record.seq, index);
            let before = self.past;
            self.past.pass(at, &event);
            let mut out = Out { at, at_ms: record.at_ms, shown: Vec::new() };
            self.event(event, before, &mut out);
            shown.append(&mut out.shown);
        }
        shown
    }

    fn event(&mut self, event: Event, before: Past, out: &mut Out) {
        match event {
            Event::Created(_) | Event::ToolStarted(_) | Event::Fenced(_) => {}
            Event::Received(received) => self.received(received.input, out),
            Event::ActionRequired(required) => self.action_required(&required, out),
            Event::ModelStarted(started) => self.model_started(&started, before, out),
            Event::ModelAnswered(answered) => self.model_answered(answered, before, out),
            Event::ModelFailed(failed) => self.model_failed(&failed, before, out),
            Event::ToolFinished(finished) => self.tool_finished(finished, out),
            Event::TurnEnded(ended) => self.turn_ended(ended, before, out),
            Event::Ended(ended) => {
                let kind = match ended.reason {
                    EndReason::Archived => "session.status_terminated",
                    EndReason::Deleted => "session.deleted",
                };
                out.push(out.at, kind, Body::Plain {});
            }
        }
    }

    fn received(&mut self, input: Input, out: &mut Out) {
        let shown = received(&self.session, out.at, out.at_ms, input);
        match (shown.body, self.mode) {
            (Body::Said { content }, Mode::List) => self.messages.add(out.at, content),
            (Body::Said { content }, Mode::Stream) => {
                self.messages.add(out.at, content.clone());
                out.shown.push(Shown { body: Body::Said { content }, ..shown });
            }
            (body, Mode::List | Mode::Stream) => out.shown.push(Shown { body, ..shown }),
        }
    }

    fn model_started(&mut self, started: &ModelStarted, before: Past, out: &mut Out) {
        self.close_lost(before, out);
        if matches!(before.stand, Stand::Idle | Stand::Rescheduled) {
            out.push(out.part(RUNNING), "session.status_running", Body::Plain {});
        }
        for input in &started.inputs {
            let content = self.messages.take(*input).unwrap_or_default();
            out.push(*input, MESSAGE, Body::Said { content });
        }
        out.push(out.at, "span.model_request_start", Body::Plain {});
    }

    /// Ends the span of a call whose outcome is not in the log.
    fn close_lost(&self, before: Past, out: &mut Out) {
        if let Stand::Asking(start) = before.stand {
            let end = self.request_end(start, true, &Usage::default());
            out.push(out.part(LOST), "span.model_request_end", end);
        }
    }

    fn request_end(&self, start: Position, is_error: bool, usage: &Usage) -> Body {
        Body::ModelRequestEnd {
            model_request_start_id: start.event_id(&self.session),
            is_error,
            model_usage: json!({
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cache_creation_input_tokens": usage.cache_write_input_tokens,
                "cache_read_input_tokens": usage.cache_read_input_tokens,
            }),
        }
    }

    fn model_answered(&self, answered: ModelAnswered, before: Past, out: &mut Out) {
        // The calls of a refused answer are no part of the conversation: nothing answers them.
        let refused = matches!(answered.answer.stop, Stop::Refusal { .. });
        for (index, block) in answered.answer.blocks.into_iter().enumerate() {
            let id = out.part(u16::try_from(index + 1).unwrap_or(u16::MAX));
            match block {
                Block::Text { text } if text.trim().is_empty() => {}
                Block::Text { text } => {
                    let content = vec![Content::text(text)];
                    out.push(id, "agent.message", Body::Said { content });
                }
                Block::Opaque { .. } => out.push(id, "agent.thinking", Body::Plain {}),
                Block::ToolUse { .. } | Block::BrokenToolUse { .. } if refused => {}
                Block::ToolUse { name, input, .. } => {
                    out.push(id, "agent.tool_use", self.tool_use(name, input, None));
                }
                Block::BrokenToolUse { name, raw, .. } => {
                    let input = RawJson::empty_object();
                    out.push(id, "agent.tool_use", self.tool_use(name, input, Some(raw)));
                }
            }
        }
        let start = start_of(before, answered.intent);
        let end = self.request_end(start, false, &answered.answer.usage);
        out.push(out.at, "span.model_request_end", end);
    }

    fn tool_use(&self, name: String, input: RawJson, x_broken_input: Option<String>) -> Body {
        let allowed = self.tools.contains(&name);
        Body::ToolUse {
            name,
            input,
            evaluated_permission: if allowed { "allow" } else { "deny" },
            evaluation: allowed.then(|| json!({"type": "always_allow"})),
            x_broken_input,
        }
    }

    fn model_failed(&self, failed: &ModelFailed, before: Past, out: &mut Out) {
        let start = start_of(before, failed.intent);
        let end = self.request_end(start, true, &failed.failure.usage);
        out.push(out.at, "span.model_request_end", end);
        // The failure of the last try is told by the end of the turn.
        if failed.retry_at_ms.is_some() {
            let kind = error_kind(failed.failure.kind);
            let error = error(kind, &failed.failure.message, "retrying");
            out.push(out.part(ERROR), "session.error", Body::Error { error });
            out.push(out.part(RESCHEDULED), "session.status_rescheduled", Body::Plain {});
        }
    }

    fn tool_finished(&self, finished: ToolFinished, out: &mut Out) {
        let HandsReport { egress, egress_dropped, walls_missing, outputs: _ } =
            finished.result.report;
        let body = Body::ToolResult {
            tool_use_id: finished.call.event_id(&self.session),
            content: finished.result.content,
            is_error: finished.result.is_error,
            x_origin: match finished.result.origin {
                Origin::Ran => "ran",
                Origin::Refused => "refused",
                Origin::Cancelled => "cancelled",
                Origin::Unknown => "unknown",
            },
            x_egress: egress.into_iter().map(Egress::from).collect(),
            x_egress_dropped: Some(egress_dropped).filter(|dropped| *dropped > 0),
            x_walls_missing: walls_missing,
        };
        out.push(out.at, "agent.tool_result", body);
    }

    fn action_required(&self, required: &ActionRequired, out: &mut Out) {
        let usage = sessions::usage(&self.past.usage);
        out.push(out.part(USAGE), "session.usage", Body::Usage { usage, budget: None });
        let ids = required.calls.iter().map(|call| call.event_id(&self.session));
        let stop_reason = json!({"type": "requires_action", "event_ids": ids.collect::<Vec<_>>()});
        out.push(out.at, "session.status_idle", Body::Idle { stop_reason, stop_details: None });
    }

    fn turn_ended(&self, ended: TurnEnded, before: Past, out: &mut Out) {
        self.close_lost(before, out);
        let (failure, reason, stop_details) = match ended.reason {
            TurnEnd::Completed | TurnEnd::Interrupted { .. } => (None, "end_turn", None),
            TurnEnd::Refused { category, explanation } => {
                let details =
                    json!({"type": "refusal", "category": category, "explanation": explanation});
                (None, "refusal", Some(details))
            }
            TurnEnd::Failed { failure } => {
                let error = error(error_kind(failure.kind), &failure.message, "exhausted");
                (Some(error), "retries_exhausted", None)
            }
            TurnEnd::Limit { limit } => (Some(limit_error(limit)), "retries_exhausted", None),
        };
        if let Some(error) = failure {
            out.push(out.part(ERROR), "session.error", Body::Error { error });
        }
        let usage = sessions::usage(&self.past.usage);
        out.push(out.part(USAGE), "session.usage", Body::Usage { usage, budget: None });
        let stop_reason = json!({"type": reason});
        out.push(out.at, "session.status_idle", Body::Idle { stop_reason, stop_details });
    }
}

/// What somebody sent, as it is shown at once. Messages wait; an interrupt and a call's result have
/// had their effect by the time their record is written.
pub(super) fn received(session: &str, at: Position, at_ms: UnixMs, input: Input) -> Shown {
    let place = Place { seq: at.seq, event: at.event, nth: 0 };
    let (kind, body, processed_at_ms) = match input {
        Input::Message { content } => (MESSAGE, Body::Said { content }, None),
        Input::Interrupt => ("user.interrupt", Body::Plain {}, Some(at_ms)),
        Input::ToolResult { call, content, is_error } => {
            let tool_use_id = call.event_id(session);
            let body = Body::UserToolResult { tool_use_id, content, is_error };
            ("user.tool_result", body, Some(at_ms))
        }
    };
    Shown { place, id: at, processed_at_ms, kind, body }
}

/// The place of the intent in record `intent`.
fn start_of(before: Past, intent: u64) -> Position {
    match before.stand {
        Stand::Asking(start) if start.seq == intent => start,
        // An intent is the only event of its record.
        Stand::Asking(_) | Stand::Idle | Stand::Busy | Stand::Rescheduled => {
            Position::event(intent, 0)
        }
    }
}

fn error(kind: &str, message: &str, retry: &str) -> Value {
    json!({"type": kind, "message": message, "retry_status": {"type": retry}})
}

fn error_kind(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Overloaded => "model_overloaded_error",
        FailureKind::RateLimited => "model_rate_limited_error",
        FailureKind::Interrupted | FailureKind::Rejected | FailureKind::Credentials => {
            "model_request_failed_error"
        }
    }
}

/// The session lives on, so the status is `exhausted` and never `terminal`.
fn limit_error(limit: LimitName) -> Value {
    let (name, kind, message) = match limit {
        LimitName::ModelCalls => (
            "model_calls",
            "tool_use_limit_reached_error",
            "the turn reached its limit of model calls (model_calls)",
        ),
        LimitName::RefusedCalls => (
            "refused_calls",
            "unknown_error",
            "the model made too many calls in a row that could not be run (refused_calls)",
        ),
        LimitName::Pauses => (
            "pauses",
            "unknown_error",
            "the model's provider paused the turn too often in a row (pauses)",
        ),
        LimitName::LostAttempts => (
            "lost_attempts",
            "unknown_error",
            "too many workers died in the same step (lost_attempts)",
        ),
    };
    let mut error = error(kind, message, "exhausted");
    error["x_limit"] = json!(name);
    error
}
