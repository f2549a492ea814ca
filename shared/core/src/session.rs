//! A session as the fold of its log: small, because the conversation itself stays in the records.
//!
//! [`Session::apply`] is the one gate: every append asks it first, and every read goes through it, so
//! writing and replaying cannot disagree. A snapshot is this type as JSON.

mod apply;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    agent::{EnvironmentKind, EnvironmentSpec},
    event::{EndReason, TurnEnd},
    ids::{BlobRef, Position, Seq, UnixMs},
    model::{Broken, Usage},
    record::Record,
};

/// Format of snapshots; one with another number is ignored and rebuilt from the records.
pub const SNAPSHOT_FORMAT: u32 = 1;

/// How many recent requests are remembered, so that a client's retry is recognised.
pub const RECENT_REQUESTS_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    #[serde(rename = "v")]
    pub format: u32,
    /// The last record folded in.
    pub seq: Seq,
    /// When it was written.
    pub at_ms: UnixMs,
    /// What the first event said; absent only before it.
    pub origin: Option<Origin>,
    pub phase: Phase,
    /// Messages that no model call has shown yet, oldest first.
    #[serde(default)]
    pub queued: Vec<Position>,
    #[serde(default)]
    pub usage: Usage,
    /// Model calls whose worker died before it could say what they cost.
    #[serde(default)]
    pub possible_charges: u32,
    /// The workspace as the last call left it, where the hands carry it as a blob.
    #[serde(default)]
    pub workspace: Option<BlobRef>,
    /// The manifest of the outputs as the last call left them.
    #[serde(default)]
    pub outputs: Option<BlobRef>,
    /// Recent requests, oldest first.
    #[serde(default)]
    pub recent: Vec<Request>,
}

/// The unchanging facts that every step needs; the rest of the first event is read when a model call
/// needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub created_at_ms: UnixMs,
    pub agent_id: String,
    pub agent_version: u64,
    pub environment: EnvironmentSpec,
    pub title: Option<String>,
    /// Names of the tools the agent may use, in the order in which the model sees them.
    pub tools: Vec<String>,
    /// Its sandboxes are given files or skills, which stand in the first event.
    #[serde(default, skip_serializing_if = "is_false")]
    pub has_given: bool,
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "there is one a session, and it is mostly a turn")]
pub enum Phase {
    /// Waits for people; a queued message starts a turn.
    Idle,
    Turn(Turn),
    Ended {
        reason: EndReason,
        at_ms: UnixMs,
    },
}

/// From a user's message until the agent stops.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Calls of the last answer that have no result yet, in the model's order.
    #[serde(default)]
    pub calls: Vec<PendingCall>,
    /// Calls that somebody outside was last asked to answer. Once all are answered they stay here
    /// until the model is asked again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Position>,
    /// The attempt that is in flight, if its outcome is not recorded yet.
    #[serde(default)]
    pub open: Option<Open>,
    /// How often the present effect (model call, or first pending tool call) was started.
    #[serde(default)]
    pub attempts: u32,
    /// How many of these attempts ended in a recorded failure.
    #[serde(default)]
    pub failures: u32,
    /// Not before then is the model called again.
    #[serde(default)]
    pub retry_at_ms: Option<UnixMs>,
    /// The turn is to end so, as soon as nothing else is pending.
    #[serde(default)]
    pub finish: Option<TurnEnd>,
    /// A user wants it stopped.
    #[serde(default)]
    pub interrupt: Option<Position>,
    #[serde(default)]
    pub model_calls: u32,
    #[serde(default)]
    pub refused_answers: u32,
    #[serde(default)]
    pub pauses: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingCall {
    pub call: Position,
    pub tool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<Broken>,
}

/// An attempt whose intent is recorded and whose outcome is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The record that holds the intent: the attempt's identity.
    pub intent: Seq,
    pub attempt: u32,
    pub at_ms: UnixMs,
    pub effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Effect {
    Model,
    Tool { call: Position },
}

/// A request that was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub id: String,
    /// The record that holds what it sent.
    pub seq: Seq,
    pub at_ms: UnixMs,
}

/// Why an event does not fit the session as it stands. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{event} does not fit record {seq}: {why}")]
pub struct Refused {
    pub event: &'static str,
    pub seq: Seq,
    pub why: &'static str,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            format: SNAPSHOT_FORMAT,
            seq: 0,
            at_ms: 0,
            origin: None,
            phase: Phase::Idle,
            queued: Vec::new(),
            usage: Usage::default(),
            possible_charges: 0,
            workspace: None,
            outputs: None,
            recent: Vec::new(),
        }
    }
}

impl Session {
    /// Folds a whole log.
    ///
    /// # Errors
    /// The first event that does not fit: such a log was not written through [`Self::apply`].
    pub fn fold<'a>(records: impl IntoIterator<Item = &'a Record>) -> Result<Self, Refused> {
        let mut session = Self::default();
        for record in records {
            session.apply(record)?;
        }
        Ok(session)
    }

    /// Takes one record in, or refuses it and stays as it was.
    ///
    /// # Errors
    /// The event that does not fit, and why.
    pub fn apply(&mut self, record: &Record) -> Result<(), Refused> {
        *self = self.after(record)?;
        Ok(())
    }

    /// The session after one more record.
    ///
    /// # Errors
    /// The event that does not fit, and why.
    pub fn after(&self, record: &Record) -> Result<Self, Refused> {
        let mut next = self.clone();
        apply::record(&mut next, record)?;
        Ok(next)
    }

    /// The present turn, if one is on.
    pub fn turn(&self) -> Option<&Turn> {
        match &self.phase {
            Phase::Turn(turn) => Some(turn),
            Phase::Idle | Phase::Ended { .. } => None,
        }
    }

    /// The attempt in flight, if any.
    pub fn open(&self) -> Option<&Open> {
        self.turn().and_then(|turn| turn.open.as_ref())
    }

    /// Calls that somebody outside must answer before the turn goes on, in the model's order; empty
    /// when it waits for nobody.
    pub fn awaits(&self) -> &[Position] {
        let named = |turn: &&Turn| turn.calls.iter().map(|pending| &pending.call).eq(&turn.waiting);
        self.turn().filter(named).map(|turn| turn.waiting.as_slice()).unwrap_or_default()
    }

    /// Whether tools run outside, by workers that fetch their work over the API.
    pub fn is_self_hosted(&self) -> bool {
        let kind = self.origin.as_ref().map(|origin| origin.environment.kind);
        kind == Some(EnvironmentKind::SelfHosted)
    }

    /// Whether there is something to do before the session rests: a turn is on, or a message waits.
    pub fn is_busy(&self) -> bool {
        match &self.phase {
            Phase::Turn(_) => true,
            Phase::Idle => !self.queued.is_empty(),
            Phase::Ended { .. } => false,
        }
    }

    /// The accepted request with this id, if it is recent.
    pub fn request(&self, id: &str) -> Option<&Request> {
        self.recent.iter().rev().find(|request| request.id == id)
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended { .. })
    }
}
