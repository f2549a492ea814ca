//! The JSON of the API's events.

use serde::Serialize;
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};
use tailstep_core::{
    content::Content,
    egress::EgressDecision,
    ids::{Position, Seq, UnixMs},
    raw::RawJson,
};

use crate::{error::ApiError, stamp::stamp};

/// Where an event stands in the list: the n-th that one event of the log gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) seq: Seq,
    pub(super) event: u16,
    pub(super) nth: u16,
}

/// One event as the API shows it.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) place: Place,
    pub(super) id: Position,
    /// `None` while a message waits.
    pub(super) processed_at_ms: Option<UnixMs>,
    pub(super) kind: &'static str,
    pub(super) body: Body,
}

/// The kind that is shown where it was taken up instead of where it was received.
pub(super) const MESSAGE: &str = "user.message";

/// What an event of its kind has beyond id, type and time.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Body {
    Plain {},
    Said {
        content: Vec<Content>,
    },
    ToolUse {
        name: String,
        /// As the model wrote it, byte for byte.
        input: RawJson,
        evaluated_permission: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        evaluation: Option<Value>,
        /// Arguments that are not a JSON object, as the model wrote them.
        #[serde(skip_serializing_if = "Option::is_none")]
        x_broken_input: Option<String>,
    },
    ToolResult {
        tool_use_id: String,
        content: Vec<Content>,
        is_error: bool,
        x_origin: &'static str,
        /// What the sandbox tried to reach meanwhile.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        x_egress: Vec<Egress>,
        #[serde(skip_serializing_if = "Option::is_none")]
        x_egress_dropped: Option<u64>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        x_walls_missing: Vec<String>,
    },
    UserToolResult {
        tool_use_id: String,
        content: Vec<Content>,
        is_error: bool,
    },
    ModelRequestEnd {
        model_request_start_id: String,
        is_error: bool,
        model_usage: Value,
    },
    Usage {
        usage: Value,
        budget: Option<Value>,
    },
    Error {
        error: Value,
    },
    Idle {
        stop_reason: Value,
        stop_details: Option<Value>,
    },
}

#[derive(Serialize)]
struct Wire<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    processed_at: Option<String>,
    #[serde(flatten)]
    body: &'a Body,
}

impl Shown {
    pub(super) fn is_message(&self) -> bool {
        self.kind == MESSAGE
    }

    pub(super) fn render(&self, session: &str) -> Result<Box<RawValue>, ApiError> {
        let wire = Wire {
            id: self.id.event_id(session),
            kind: self.kind,
            processed_at: self.processed_at_ms.map(stamp),
            body: &self.body,
        };
        to_raw_value(&wire).map_err(|error| {
            tracing::error!(%error, "an event could not be written as JSON");
            ApiError::internal()
        })
    }
}

/// Whether `kind` is an event type of the protocol, in any stage. A filter may name them all; this
/// version's sessions hold some.
pub(super) fn is_kind(kind: &str) -> bool {
    KINDS.contains(&kind)
}

const KINDS: [&str; 41] = [
    MESSAGE,
    "user.interrupt",
    "user.tool_confirmation",
    "user.custom_tool_result",
    "user.tool_result",
    "user.define_outcome",
    "system.message",
    "session.status_running",
    "session.status_idle",
    "session.status_rescheduled",
    "session.status_terminated",
    "session.error",
    "session.usage",
    "session.updated",
    "agent.message",
    "agent.thinking",
    "agent.tool_use",
    "agent.tool_result",
    "agent.custom_tool_use",
    "agent.mcp_tool_use",
    "agent.mcp_tool_result",
    "agent.thread_context_compacted",
    "agent.thread_message_sent",
    "agent.thread_message_received",
    "span.model_request_start",
    "span.model_request_end",
    "span.outcome_evaluation_start",
    "span.outcome_evaluation_ongoing",
    "span.outcome_evaluation_end",
    "session.thread_created",
    "session.thread_status_running",
    "session.thread_status_rescheduled",
    "session.thread_status_terminated",
    "session.thread_status_idle",
    "workflow_run.created",
    "workflow_run.status_running",
    "workflow_run.status_idle",
    "workflow_run.status_ended",
    "workflow_run.error",
    "workflow_run.phase_started",
    "workflow_run.phase_ended",
];

/// One decision about the network.
#[derive(Debug, Serialize)]
pub(super) struct Egress {
    at: String,
    allowed: bool,
    host: String,
    port: u16,
    method: Option<String>,
    path: Option<String>,
    why: String,
}

impl From<EgressDecision> for Egress {
    fn from(decision: EgressDecision) -> Self {
        let EgressDecision { at_ms, allowed, host, port, method, path, why } = decision;
        Self { at: stamp(at_ms), allowed, host, port, method, path, why }
    }
}
