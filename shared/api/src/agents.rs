//! Agents: definitions with versions. A version never changes once it is written; an archived agent
//! takes no more changes, and sessions that run on it go on.

mod body;
mod tools;
mod write;

use std::sync::Arc;

use axum::{
    Extension,
    extract::{RawQuery, Request, State},
};
use serde::{Deserialize, Serialize};
use tailstep_core::{agent::AgentSpec, ids::UnixMs};
use tailstep_runtime::ports::DocumentKind;

pub(crate) use self::body::snapshot;
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, Id, NoFields, json, read_body},
    error::ApiError,
    fields::Fields,
    metadata::Metadata,
    page::PageBody,
    query::Query,
    repeat::Creation,
    store::{self, Listed, Stored},
};

const ID_PREFIX: &str = "agent_";
const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 100;

/// An agent at one version, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Agent {
    pub(crate) spec: AgentSpec,
    #[serde(default)]
    metadata: Metadata,
    /// When this version was made.
    updated_at_ms: UnixMs,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) archived_at_ms: Option<UnixMs>,
}

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer {
    let (parts, body) = request.into_parts();
    let body = read_body(body).await?;
    let route = "/v1/agents";
    let mut creation =
        Creation::begin(&api, &caller, &parts.headers, route, &body, ID_PREFIX).await?;
    if creation.repeated
        && let Some(made) = get(&api, &caller, &creation.id).await?
    {
        return json(&body::agent(&made));
    }
    let draft = body::created(&api, Fields::of_body(&body)?)?;
    let draft = body::with_skills(&api, &caller, draft).await?;
    creation.reserve(&api, &caller).await?;
    json(&body::agent(&write::create(&api, &caller, &creation.id, draft).await?))
}

pub(crate) async fn retrieve(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let version = query.count("version")?;
    query.finish()?;
    json(&body::agent(&at_version(&api, &caller, &id, version).await?))
}

/// The agent now, or as it was at `version`.
pub(crate) async fn at_version(
    api: &Api,
    caller: &Caller,
    id: &str,
    version: Option<u64>,
) -> Result<Stored<Agent>, ApiError> {
    let current = existing(api, caller, id).await?;
    let Some(version) = version.filter(|version| *version != current.value.spec.version) else {
        return Ok(current);
    };
    let missing = || ApiError::missing(format!("agent `{id}` has no version {version}"));
    // A version above the present one is an update that has not happened yet.
    if version > current.value.spec.version {
        return Err(missing());
    }
    let documents = api.app.documents.as_ref();
    let name = write::version_id(id, version);
    let found: Option<Stored<Agent>> =
        store::get(documents, &caller.tenant, DocumentKind::AgentVersion, &name).await?;
    let mut found = found.ok_or_else(missing)?;
    found.id = current.id;
    found.created_at_ms = current.created_at_ms;
    found.value.archived_at_ms = current.value.archived_at_ms;
    Ok(found)
}

async fn get(api: &Api, caller: &Caller, id: &str) -> Result<Option<Stored<Agent>>, ApiError> {
    if !store::is_id(id, ID_PREFIX) {
        return Ok(None);
    }
    store::get(api.app.documents.as_ref(), &caller.tenant, DocumentKind::Agent, id).await
}

async fn existing(api: &Api, caller: &Caller, id: &str) -> Result<Stored<Agent>, ApiError> {
    get(api, caller, id).await?.ok_or_else(|| ApiError::not_found("agent", id))
}

pub(crate) async fn update(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    request: Request,
) -> Answer {
    let body = read_body(request.into_body()).await?;
    json(&body::agent(&write::update(&api, &caller, &id, &body).await?))
}

pub(crate) async fn archive(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    _: NoFields,
) -> Answer {
    json(&body::agent(&write::archive(&api, &caller, &id).await?))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let created_at = query.created_at()?;
    let archived = query.flag("include_archived")?;
    let limit = query.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let page = query.one("page")?;
    query.finish()?;
    let keep = |agent: &Stored<Agent>| {
        (archived || agent.value.archived_at_ms.is_none()) && created_at.holds(agent.created_at_ms)
    };
    let kind = DocumentKind::Agent;
    page_of(&api, &caller, Listed { kind, prefix: "", name: "agents" }, limit, page, keep).await
}

pub(crate) async fn versions(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let limit = query.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let page = query.one("page")?;
    query.finish()?;
    let current = existing(&api, &caller, &id).await?.value.spec.version;
    let (prefix, name) = (format!("{id}#"), format!("agents/{id}/versions"));
    let listed = Listed { kind: DocumentKind::AgentVersion, prefix: &prefix, name: &name };
    let keep = |agent: &Stored<Agent>| agent.value.spec.version <= current;
    page_of(&api, &caller, listed, limit, page, keep).await
}

async fn page_of(
    api: &Api,
    caller: &Caller,
    listed: Listed<'_>,
    limit: usize,
    page: Option<String>,
    keep: impl Fn(&Stored<Agent>) -> bool,
) -> Answer {
    let documents = api.app.documents.as_ref();
    let (found, next_page) =
        store::list(documents, &caller.tenant, listed, limit, page, keep).await?;
    json(&PageBody { data: found.iter().map(body::agent).collect(), next_page })
}
