//! The JSON of a session, in both directions.

use serde_json::{Value, json};
use tailstep_core::{
    event::Created,
    ids::UnixMs,
    model::Usage,
    session::{Phase, Session},
};
use tailstep_runtime::ports::{Head, SessionStatus};

use super::resources;
use crate::{
    Api, agents,
    error::ApiError,
    fields::{Fields, check_length},
    metadata::{EmptyValue, Metadata, patched},
    stamp::stamp,
};

/// A title goes into every list and head.
const TITLE_CHARS_MAX: usize = 512;

/// What a create request asks for.
pub(super) struct Wanted {
    pub(super) agent_id: String,
    pub(super) agent_version: Option<u64>,
    pub(super) environment_id: String,
    pub(super) title: Option<String>,
    pub(super) metadata: Metadata,
    pub(super) resources: Vec<resources::Wish>,
}

impl Wanted {
    pub(super) fn read(api: &Api, mut fields: Fields) -> Result<Self, ApiError> {
        let agent = fields.take("agent");
        let agent = agent.ok_or_else(|| fields.error("agent", "is required; name an agent id"))?;
        let (agent_id, agent_version) = agent_reference(agent)?;
        let environment_id = fields.required_text("environment_id")?;
        let title = fields.text("title")?.filter(|title| !title.is_empty());
        if let Some(title) = &title {
            check_length(title, "title", TITLE_CHARS_MAX)?;
        }
        let metadata = patched(&Metadata::new(), &mut fields, EmptyValue::Keeps)?;
        fields.unsupported("vault_ids", "vaults are")?;
        let resources = resources::read(api, &mut fields)?;
        fields.unsupported("initial_events", "initial events are")?;
        fields.unsupported("budget", "budgets are")?;
        fields.finish()?;
        Ok(Self { agent_id, agent_version, environment_id, title, metadata, resources })
    }
}

fn agent_reference(value: Value) -> Result<(String, Option<u64>), ApiError> {
    if let Value::String(id) = value {
        return Ok((id, None));
    }
    if !value.is_object() {
        return Err(ApiError::invalid("agent: must be an agent id or an object with one"));
    }
    let mut fields = Fields::of(value, "agent")?;
    match fields.required_text("type")?.as_str() {
        "agent" => {}
        "agent_with_overrides" => {
            return Err(ApiError::unsupported("agent.type", "agent_with_overrides is"));
        }
        _ => return Err(fields.error("type", "must be agent")),
    }
    let id = fields.required_text("id")?;
    let version = fields.count("version")?;
    fields.finish()?;
    Ok((id, version))
}

/// What changes about a session.
pub(super) struct Shape {
    pub(super) status: SessionStatus,
    usage: Usage,
    /// Known only where the whole session is.
    possible_charges: Option<u32>,
    created_at_ms: UnixMs,
    updated_at_ms: UnixMs,
    archived_at_ms: Option<UnixMs>,
    now_ms: UnixMs,
}

impl Shape {
    pub(super) fn of_session(session: &Session, now_ms: UnixMs) -> Self {
        let status = match &session.phase {
            // A waiting message is about to be taken up: nobody waits for the user.
            Phase::Idle if !session.queued.is_empty() => SessionStatus::Running,
            Phase::Idle => SessionStatus::Idle,
            Phase::Turn(turn) if turn.retry_at_ms.is_some() && turn.open.is_none() => {
                SessionStatus::Rescheduling
            }
            Phase::Turn(_) if !session.awaits().is_empty() => SessionStatus::Idle,
            Phase::Turn(_) => SessionStatus::Running,
            Phase::Ended { .. } => SessionStatus::Terminated,
        };
        let archived_at_ms = match &session.phase {
            Phase::Ended { at_ms, .. } => Some(*at_ms),
            Phase::Idle | Phase::Turn(_) => None,
        };
        Self {
            status,
            usage: session.usage,
            possible_charges: Some(session.possible_charges),
            created_at_ms: session.origin.as_ref().map_or(0, |origin| origin.created_at_ms),
            updated_at_ms: session.at_ms,
            archived_at_ms,
            now_ms,
        }
    }

    /// The same from the head, which may lag behind the session for a moment.
    pub(super) fn of_head(head: &Head, now_ms: UnixMs) -> Self {
        let status = match head.status {
            SessionStatus::Idle if head.due_at_ms.is_some() => SessionStatus::Running,
            status @ (SessionStatus::Idle
            | SessionStatus::Running
            | SessionStatus::Rescheduling
            | SessionStatus::Terminated
            | SessionStatus::Deleted) => status,
        };
        Self {
            status,
            usage: head.usage,
            possible_charges: None,
            created_at_ms: head.created_at_ms,
            updated_at_ms: head.updated_at_ms,
            archived_at_ms: head.archived_at_ms,
            now_ms,
        }
    }
}

pub(super) fn status_name(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Idle => "idle",
        SessionStatus::Running => "running",
        SessionStatus::Rescheduling => "rescheduling",
        SessionStatus::Terminated | SessionStatus::Deleted => "terminated",
    }
}

pub(super) fn shown(id: &str, created: &Created, shape: &Shape) -> Value {
    let until_ms = shape.archived_at_ms.unwrap_or(shape.now_ms);
    // Milliseconds fit a double exactly for ages.
    let duration_s = until_ms.saturating_sub(shape.created_at_ms) as f64 / 1_000.0;
    let mut usage = usage(&shape.usage);
    if let Some(charges) = shape.possible_charges {
        usage["x_possible_charges"] = json!(charges);
    }
    json!({
        "id": id,
        "type": "session",
        "status": status_name(shape.status),
        "agent": agents::snapshot(&created.agent),
        "environment_id": created.environment.id,
        "title": created.title,
        "metadata": created.metadata,
        "resources": created.resources.iter().map(resources::shown).collect::<Vec<_>>(),
        "vault_ids": [],
        "outcome_evaluations": [],
        "usage": usage,
        "stats": {"duration_seconds": duration_s},
        "budget": null,
        "deployment_id": null,
        "created_at": stamp(shape.created_at_ms),
        "updated_at": stamp(shape.updated_at_ms),
        "archived_at": shape.archived_at_ms.map(stamp),
    })
}

/// Tokens as sessions and `session.usage` events show them. Cache writes are not split by lifetime
/// in the log; the short-lived one is the default everywhere.
pub(crate) fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_input_tokens,
            "ephemeral_1h_input_tokens": 0,
        },
    })
}
