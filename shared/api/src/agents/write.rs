//! Writing agents so that a version, once somebody saw it, never changes.
//!
//! A new version is written ahead: its own document first, then the agent's. A writer that finds the
//! next version's document taken finishes that update before it tries its own, so that neither a
//! crash nor a race between the two writes leaves a version that means two things.

use tailstep_runtime::ports::DocumentKind;

use super::{
    Agent,
    body::{self, Draft},
    existing,
};
use crate::{
    Api,
    auth::Caller,
    error::ApiError,
    fields::Fields,
    store::{self, Stored},
};

/// Lost races in one write. Each means that somebody else's write went through.
const RACES_MAX: usize = 16;

/// The id of the document that holds one version; they sort by version.
pub(super) fn version_id(id: &str, version: u64) -> String {
    format!("{id}#{version:010}")
}

/// Makes the agent `id`, or finds that an earlier try of the same request made it.
pub(super) async fn create(
    api: &Api,
    caller: &Caller,
    id: &str,
    draft: Draft,
) -> Result<Stored<Agent>, ApiError> {
    let now_ms = api.now_ms();
    let mut spec = draft.spec;
    spec.id = id.to_owned();
    let value =
        Agent { spec, metadata: draft.metadata, updated_at_ms: now_ms, archived_at_ms: None };
    let mut agent = Stored { id: id.to_owned(), revision: 0, created_at_ms: now_ms, value };
    let version = Stored { id: version_id(id, 1), ..agent.clone() };
    let documents = api.app.documents.as_ref();
    if !store::put(documents, &caller.tenant, DocumentKind::AgentVersion, &version).await? {
        let found: Option<Stored<Agent>> =
            store::get(documents, &caller.tenant, DocumentKind::AgentVersion, &version.id).await?;
        if let Some(found) = found {
            agent.created_at_ms = found.created_at_ms;
            agent.value = found.value;
        }
    }
    if store::put(documents, &caller.tenant, DocumentKind::Agent, &agent).await? {
        agent.revision = 1;
        return Ok(agent);
    }
    existing(api, caller, id).await
}

/// Applies the update in `body`; one that changes nothing makes no version.
pub(super) async fn update(
    api: &Api,
    caller: &Caller,
    id: &str,
    body: &[u8],
) -> Result<Stored<Agent>, ApiError> {
    let documents = api.app.documents.as_ref();
    for _ in 0..RACES_MAX {
        let mut agent = existing(api, caller, id).await?;
        let old = &agent.value;
        let update = body::updated(api, old, Fields::of_body(body)?)?;
        if old.archived_at_ms.is_some() {
            return Err(ApiError::invalid(format!(
                "agent {id} is archived and takes no more changes; create another one"
            )));
        }
        let current = old.spec.version;
        if let Some(expected) = update.expected.filter(|expected| *expected != current) {
            return Err(ApiError::conflict(format!(
                "version: agent {id} is at version {current}, not {expected}; read it again and \
                 repeat the change"
            )));
        }
        let draft = body::with_skills(api, caller, update.draft).await?;
        let Draft { mut spec, metadata, skills: _ } = draft;
        if spec == old.spec && metadata == old.metadata {
            return Ok(agent);
        }
        spec.version = current + 1;
        let updated_at_ms = api.now_ms();
        let value = Agent { spec, metadata, updated_at_ms, archived_at_ms: None };
        let version = Stored {
            id: version_id(id, current + 1),
            revision: 0,
            created_at_ms: updated_at_ms,
            value,
        };
        if !store::put(documents, &caller.tenant, DocumentKind::AgentVersion, &version).await? {
            finish_update(api, caller, &agent).await?;
            continue;
        }
        agent.value = version.value;
        if store::put(documents, &caller.tenant, DocumentKind::Agent, &agent).await? {
            agent.revision += 1;
            return Ok(agent);
        }
        // Somebody finished this update, or archived the agent meanwhile; then it is not made.
        let now = existing(api, caller, id).await?;
        if now.value.spec.version > current {
            return Ok(agent);
        }
    }
    Err(ApiError::unavailable())
}

/// Makes the version that is written ahead of `agent` the present one.
async fn finish_update(api: &Api, caller: &Caller, agent: &Stored<Agent>) -> Result<(), ApiError> {
    let documents = api.app.documents.as_ref();
    let next = version_id(&agent.id, agent.value.spec.version + 1);
    let ahead: Option<Stored<Agent>> =
        store::get(documents, &caller.tenant, DocumentKind::AgentVersion, &next).await?;
    if let Some(ahead) = ahead {
        let agent = Stored { value: ahead.value, ..agent.clone() };
        store::put(documents, &caller.tenant, DocumentKind::Agent, &agent).await?;
    }
    Ok(())
}

/// Archives the agent for good; doing it again changes nothing.
pub(super) async fn archive(
    api: &Api,
    caller: &Caller,
    id: &str,
) -> Result<Stored<Agent>, ApiError> {
    let documents = api.app.documents.as_ref();
    for _ in 0..RACES_MAX {
        let mut agent = existing(api, caller, id).await?;
        if agent.value.archived_at_ms.is_some() {
            return Ok(agent);
        }
        agent.value.archived_at_ms = Some(api.now_ms());
        if store::put(documents, &caller.tenant, DocumentKind::Agent, &agent).await? {
            agent.revision += 1;
            return Ok(agent);
        }
    }
    Err(ApiError::unavailable())
}
