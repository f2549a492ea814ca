//! The JSON of an agent, in both directions.

use serde_json::{Value, json};
use tailstep_core::{
    agent::{AgentSpec, ModelSpec},
    limits::input::{NAME_CHARS_MAX, SYSTEM_CHARS_MAX},
    toolset,
};

use super::{Agent, tools};
use crate::{
    Api,
    auth::Caller,
    error::ApiError,
    fields::{Fields, check_length, check_name},
    metadata::{EmptyValue, Metadata, patched},
    skills::{self, Wish},
    stamp::stamp,
    store::Stored,
};

/// Chosen so that a description stays one: it goes into every list.
const DESCRIPTION_CHARS_MAX: usize = 4_096;

const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// What a client can set of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draft {
    /// Its id and version are not the client's.
    pub(super) spec: AgentSpec,
    pub(super) metadata: Metadata,
    /// Skills to be resolved; `None` keeps those of `spec`.
    pub(super) skills: Option<Vec<Wish>>,
}

/// Reads the body of a create request.
pub(super) fn created(api: &Api, mut fields: Fields) -> Result<Draft, ApiError> {
    let name = fields.required_text("name")?;
    check_name(&name, "name", NAME_CHARS_MAX)?;
    let model = fields
        .take("model")
        .ok_or_else(|| fields.error("model", "is required; name a model id"))?;
    let blank = Draft {
        spec: AgentSpec {
            id: String::new(),
            version: 1,
            name,
            description: None,
            model: self::model(api, model)?,
            system: None,
            tools: Vec::new(),
            skills: Vec::new(),
        },
        metadata: Metadata::new(),
        skills: None,
    };
    with_rest(blank, fields)
}

/// What an update asks for.
pub(super) struct Update {
    /// The version that the client believes is the present one.
    pub(super) expected: Option<u64>,
    pub(super) draft: Draft,
}

/// Reads the body of an update of `old`: absent fields keep what they are.
pub(super) fn updated(api: &Api, old: &Agent, mut fields: Fields) -> Result<Update, ApiError> {
    let mut draft = Draft { spec: old.spec.clone(), metadata: old.metadata.clone(), skills: None };
    let expected = fields.count("version")?;
    if let Some(name) = fields.take_raw("name") {
        let Value::String(name) = name else {
            return Err(fields.error("name", "must be a string and cannot be cleared"));
        };
        check_name(&name, "name", NAME_CHARS_MAX)?;
        draft.spec.name = name;
    }
    match fields.take_raw("model") {
        None => {}
        Some(Value::Null) => {
            return Err(fields
                .error("model", "cannot be cleared; leave it out to keep it")
                .with_code("agent_model_required"));
        }
        Some(value) => draft.spec.model = model(api, value)?,
    }
    Ok(Update { expected, draft: with_rest(draft, fields)? })
}

/// The fields that mean the same in a create and an update.
fn with_rest(mut draft: Draft, mut fields: Fields) -> Result<Draft, ApiError> {
    if let Some(text) = clearable(&mut fields, "description", DESCRIPTION_CHARS_MAX)? {
        draft.spec.description = text;
    }
    if let Some(text) = clearable(&mut fields, "system", SYSTEM_CHARS_MAX)? {
        draft.spec.system = text;
    }
    match fields.take_raw("tools") {
        None => {}
        Some(Value::Null) => draft.spec.tools = Vec::new(),
        Some(Value::Array(entries)) => draft.spec.tools = tools::read(entries)?,
        Some(_) => return Err(fields.error("tools", "must be an array")),
    }
    draft.metadata = patched(&draft.metadata, &mut fields, EmptyValue::Keeps)?;
    fields.unsupported("mcp_servers", "MCP servers are")?;
    match fields.take_raw("skills") {
        None => {}
        Some(Value::Null) => draft.skills = Some(Vec::new()),
        Some(Value::Array(entries)) => draft.skills = Some(skills::read_wishes(entries)?),
        Some(_) => return Err(fields.error("skills", "must be an array")),
    }
    fields.unsupported("multiagent", "sub-agents are")?;
    if let Some(identity) = fields.take("execution_identity") {
        identity_is_default(identity)?;
    }
    fields.finish()?;
    Ok(draft)
}

/// The draft with its skills at concrete versions.
pub(super) async fn with_skills(
    api: &Api,
    caller: &Caller,
    mut draft: Draft,
) -> Result<Draft, ApiError> {
    if let Some(wishes) = draft.skills.take() {
        draft.spec.skills = skills::resolve(api, caller, wishes).await?;
    }
    if !draft.spec.skills.is_empty() && toolset::enabled(&draft.spec.tools).next().is_none() {
        return Err(ApiError::invalid(
            "skills: an agent reads its skills with its tools; enable some, or leave skills out",
        ));
    }
    Ok(draft)
}

fn identity_is_default(value: Value) -> Result<(), ApiError> {
    let mut fields = Fields::of(value, "execution_identity")?;
    match fields.required_text("type")?.as_str() {
        "service_account" => fields.finish(),
        "aws_role" => Err(ApiError::unsupported("execution_identity.type", "aws_role is")),
        _ => Err(fields.error("type", "must be service_account")),
    }
}

/// `Some(None)` clears.
fn clearable(
    fields: &mut Fields,
    field: &'static str,
    chars_max: usize,
) -> Result<Option<Option<String>>, ApiError> {
    match fields.take_raw(field) {
        None => Ok(None),
        Some(Value::Null) => Ok(Some(None)),
        Some(Value::String(text)) => {
            check_length(&text, field, chars_max)?;
            Ok(Some(Some(text).filter(|text| !text.is_empty())))
        }
        Some(_) => Err(fields.error(field, "must be a string")),
    }
}

/// A model id, or an object with one; refused when no provider here serves it.
fn model(api: &Api, value: Value) -> Result<ModelSpec, ApiError> {
    let spec = match value {
        Value::String(id) => ModelSpec { id, speed: None, effort: None },
        Value::Object(_) => {
            let mut fields = Fields::of(value, "model")?;
            let id = fields.required_text("id")?;
            let speed = speed(&mut fields)?;
            let effort = effort(&mut fields)?;
            fields.unsupported("inference_geo", "a choice of region is")?;
            fields.finish()?;
            ModelSpec { id, speed, effort }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            return Err(ApiError::invalid("model: must be a model id or an object with one"));
        }
    };
    check_name(&spec.id, "model", NAME_CHARS_MAX)?;
    let known = api.app.runtime.model.check(&spec.id);
    known.map_err(|what| ApiError::invalid(format!("model: {what}")))?;
    Ok(spec)
}

fn speed(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    match fields.text("speed")?.as_deref() {
        None => Ok(None),
        Some("standard") => Ok(Some("standard".to_owned())),
        Some("fast") => Err(ApiError::unsupported("model.speed", "fast is")),
        Some(_) => Err(fields.error("speed", "must be standard")),
    }
}

fn effort(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let wrong =
        || ApiError::invalid(format!("model.effort: must be one of {}", EFFORTS.join(", ")));
    let level = match fields.take("effort") {
        None => return Ok(None),
        Some(Value::String(level)) => level,
        Some(value @ Value::Object(_)) => {
            let mut inner = Fields::of(value, "model.effort")?;
            let level = inner.required_text("type")?;
            inner.finish()?;
            level
        }
        Some(_) => return Err(wrong()),
    };
    if EFFORTS.contains(&level.as_str()) { Ok(Some(level)) } else { Err(wrong()) }
}

/// An agent as the API shows it.
pub(super) fn agent(stored: &Stored<Agent>) -> Value {
    let Agent { spec, metadata, updated_at_ms, archived_at_ms } = &stored.value;
    let mut shown = snapshot(spec);
    shown["metadata"] = json!(metadata);
    shown["created_at"] = json!(stamp(stored.created_at_ms));
    shown["updated_at"] = json!(stamp(*updated_at_ms));
    shown["archived_at"] = json!(archived_at_ms.map(stamp));
    shown
}

/// An agent as a session shows the copy it keeps.
pub(crate) fn snapshot(spec: &AgentSpec) -> Value {
    let mut model = json!({"id": spec.model.id});
    if let Some(speed) = &spec.model.speed {
        model["speed"] = json!(speed);
    }
    if let Some(effort) = &spec.model.effort {
        model["effort"] = json!({"type": effort});
    }
    json!({
        "id": spec.id,
        "type": "agent",
        "version": spec.version,
        "name": spec.name,
        "description": spec.description,
        "system": spec.system,
        "model": model,
        "tools": tools::shown(&spec.tools),
        "mcp_servers": [],
        "skills": spec.skills.iter().map(|skill| json!({
            "type": "custom",
            "skill_id": skill.skill_id,
            "version": skill.version,
        })).collect::<Vec<_>>(),
        "multiagent": null,
        "execution_identity": {"type": "service_account"},
    })
}
