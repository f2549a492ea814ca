//! Everything that can happen to a session. A session's log is a list of these and nothing else.
//!
//! Stored formats are forever: fields may be added with a default, never renamed or reused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    agent::{AgentSpec, EnvironmentSpec},
    content::Content,
    egress::EgressDecision,
    files::{FileResource, Given},
    ids::{BlobRef, Position, Seq, UnixMs},
    model::{ModelAnswer, ModelFailure},
};

// Tagged from outside: an inner tag would make serde buffer the value, and raw JSON does not survive
// that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The session exists; always and only the first event.
    Created(Box<Created>),
    /// Somebody outside said something.
    Received(Received),
    /// Intent: a model call is about to be made.
    ModelStarted(ModelStarted),
    /// Outcome: a whole answer.
    ModelAnswered(ModelAnswered),
    /// Outcome: no answer.
    ModelFailed(ModelFailed),
    /// Intent: a tool is about to run.
    ToolStarted(ToolStarted),
    /// Outcome: the one result of a tool call, whether it ran or not.
    ToolFinished(ToolFinished),
    /// The turn waits for people or workers outside to answer calls.
    ActionRequired(ActionRequired),
    /// The agent has stopped and waits for the user.
    TurnEnded(TurnEnded),
    /// An outcome that came after its attempt had lost the session. Kept for audit and for what it
    /// cost; never part of the conversation.
    Fenced(Fenced),
    /// The session is over; always the last event.
    Ended(Ended),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    pub agent: AgentSpec,
    pub environment: EnvironmentSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<FileResource>,
}

impl Created {
    /// What the session's sandboxes are given.
    pub fn given(&self) -> Given {
        Given { files: self.resources.clone(), skills: self.agent.skills.clone() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    pub input: Input,
    /// Names the request, so that a client's retry is recognised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Input {
    /// A user's message. It waits until the next model call takes it up.
    Message { content: Vec<Content> },
    /// Stop what is going on. Without effect on a session that is idle.
    Interrupt,
    /// The one result of a call that somebody outside ran, in an environment of that kind.
    ToolResult {
        /// The place of the call.
        call: Position,
        content: Vec<Content>,
        #[serde(default)]
        is_error: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelStarted {
    /// 1 for the first try of this call, one more for each further try.
    pub attempt: u32,
    /// Messages that this call is the first to show to the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Position>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelAnswered {
    /// The record that holds the intent.
    pub intent: Seq,
    pub answer: ModelAnswer,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFailed {
    pub intent: Seq,
    pub failure: ModelFailure,
    /// When to try again; absent when this was the last try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at_ms: Option<UnixMs>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolStarted {
    /// The place of the call: a part of the answer that made it.
    pub call: Position,
    /// 1 for the first try of this call, one more for each further try.
    pub attempt: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolFinished {
    pub call: Position,
    /// The record that holds the intent; absent when the call was answered without running it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<Seq>,
    pub result: ToolResult,
}

/// What the model is told about a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    pub content: Vec<Content>,
    #[serde(default)]
    pub is_error: bool,
    pub origin: Origin,
    /// The workspace after the call, where the hands carry it as a blob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<BlobRef>,
    /// What the hands saw beside the reply.
    #[serde(default, skip_serializing_if = "HandsReport::is_empty")]
    pub report: HandsReport,
}

/// What the hands saw during a call; for people, never shown to the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HandsReport {
    /// Decisions about the network, oldest first, bounded by the hands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<EgressDecision>,
    /// Further decisions that are not listed.
    #[serde(skip_serializing_if = "is_zero")]
    pub egress_dropped: u64,
    /// Walls of the sandbox that did not stand during this call, by name; empty when all did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub walls_missing: Vec<String>,
    /// The manifest of all outputs as they are after this call; absent when they did not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<BlobRef>,
}

impl HandsReport {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Where a result comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The tool ran.
    Ran,
    /// The call was refused before it ran: no such tool, broken arguments.
    Refused,
    /// The turn was stopped first.
    Cancelled,
    /// The hands failed, or every worker that ran the call died: it may have run in part.
    Unknown,
}

/// Written when a turn begins to wait for answers, and again whenever some of them have come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionRequired {
    /// All calls of the answer that have no result yet, in the model's order; never empty.
    pub calls: Vec<Position>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEnded {
    pub reason: TurnEnd,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TurnEnd {
    /// The model had nothing more to do.
    Completed,
    /// A user's interrupt, at that place.
    Interrupted { input: Position },
    /// The model or its provider declined.
    Refused { category: Option<String>, explanation: Option<String> },
    /// A model call failed for good.
    Failed { failure: ModelFailure },
    /// A limit was reached.
    Limit { limit: LimitName },
}

/// Each limit that can end a turn, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitName {
    /// Too many model calls in one turn.
    ModelCalls,
    /// Too many answers in a row of which no call could be run.
    RefusedCalls,
    /// Too many answers in a row that the provider paused.
    Pauses,
    /// Too many workers died in the same step.
    LostAttempts,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fenced {
    /// The record that holds the intent of the attempt that lost.
    pub intent: Seq,
    /// What that attempt was charged for, if it was a model call.
    #[serde(default)]
    pub usage: crate::model::Usage,
    /// SHA-256 of the outcome that was not used.
    pub outcome_sha256: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub reason: EndReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    Archived,
    Deleted,
}
