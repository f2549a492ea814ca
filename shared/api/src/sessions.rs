//! Sessions: made, shown, listed, archived and deleted. What happens inside one is in
//! [`crate::events`].

mod body;
mod firsts;
mod list;
mod resources;

use std::sync::Arc;

use axum::{
    Extension,
    extract::{RawQuery, Request, State},
};
use serde_json::json;
use tailstep_core::{
    agent::{EnvironmentKind, EnvironmentSpec},
    egress::Networking,
    event::{Created, EndReason},
    ids::SessionKey,
    session::Phase,
};
use tailstep_runtime::{
    error::RuntimeError,
    ingress,
    load::{Loaded, load},
};

use self::body::{Shape, shown};
pub(crate) use self::{body::usage, firsts::Firsts, list::list};
use crate::{
    Api, agents,
    auth::Caller,
    edge::{Answer, Id, NoFields, json as answer, read_body},
    environments,
    error::ApiError,
    fields::Fields,
    query::Query,
    repeat::Creation,
    store,
};
pub(crate) use resources::{list as list_resources, retrieve as retrieve_resource};

const ID_PREFIX: &str = "sesn_";

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer {
    let (parts, body) = request.into_parts();
    let body = read_body(body).await?;
    let route = "/v1/sessions";
    let mut creation =
        Creation::begin(&api, &caller, &parts.headers, route, &body, ID_PREFIX).await?;
    if creation.repeated {
        match visible(&api, &caller, &creation.id).await {
            Ok(loaded) => return show(&api, &loaded).await,
            Err(error) if error.status.is_client_error() => {}
            Err(error) => return Err(error),
        }
    }
    let wanted = body::Wanted::read(&api, Fields::of_body(&body)?)?;
    let created = pinned(&api, &caller, wanted).await?;
    creation.reserve(&api, &caller).await?;
    let key = SessionKey::new(caller.tenant, creation.id);
    let session = ingress::create(&api.app.runtime, &key, created).await?;
    show(&api, &Loaded { key, head: None, session }).await
}

/// The agent as it is now, and the environment: what the session keeps whatever becomes of them.
async fn pinned(api: &Api, caller: &Caller, wanted: body::Wanted) -> Result<Created, ApiError> {
    let body::Wanted { agent_id, agent_version, environment_id, title, metadata, resources } =
        wanted;
    let agent = agents::at_version(api, caller, &agent_id, agent_version).await?;
    if agent.value.archived_at_ms.is_some() {
        return Err(ApiError::invalid(format!(
            "agent: {agent_id} is archived and takes no new sessions; use another agent"
        )));
    }
    let environment = environments::existing(api, caller, &environment_id).await?;
    if environment.value.archived_at_ms.is_some() {
        return Err(environments::archived(&environment_id));
    }
    let agent = agent.value.spec;
    let known = api.app.runtime.model.check(&agent.model.id);
    known.map_err(|what| ApiError::invalid(format!("agent: its model cannot be used: {what}")))?;
    let kind = environment.value.kind;
    if kind == EnvironmentKind::SelfHosted && !resources.is_empty() {
        return Err(ApiError::invalid(
            "resources: files cannot be given to a session in a self_hosted environment",
        ));
    }
    if kind == EnvironmentKind::Cloud && !agent.skills.is_empty() && !api.app.hands.skills {
        return Err(ApiError::unsupported("agent", "an agent's skills are"));
    }
    let resources = resources::resolve(api, caller, resources).await?;
    let packages = environment.value.packages;
    let networking = match kind {
        EnvironmentKind::Cloud => environment.value.network.rules(),
        EnvironmentKind::SelfHosted => Networking::None,
    };
    let environment =
        EnvironmentSpec { kind, networking, packages, ..EnvironmentSpec::cloud(environment_id) };
    Ok(Created { agent, environment, title, metadata, resources })
}

pub(crate) async fn retrieve(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    Query::of(query.as_deref()).finish()?;
    show(&api, &visible(&api, &caller, &id).await?).await
}

/// Whether `id` can be a session's id.
pub(crate) fn is_id(id: &str) -> bool {
    store::is_id(id, ID_PREFIX)
}

/// The session, if it is the caller's and not deleted.
pub(crate) async fn visible(api: &Api, caller: &Caller, id: &str) -> Result<Loaded, ApiError> {
    let missing = || ApiError::not_found("session", id);
    if !is_id(id) {
        return Err(missing());
    }
    let key = SessionKey::new(caller.tenant.as_str(), id);
    let loaded = match load(api.app.runtime.log.as_ref(), &key).await {
        Ok(loaded) => loaded,
        Err(RuntimeError::NotFound { .. }) => return Err(missing()),
        Err(error) => return Err(error.into()),
    };
    if !caller.scope.sees(id, &loaded.session) {
        return Err(missing());
    }
    match loaded.session.phase {
        Phase::Ended { reason: EndReason::Deleted, .. } => Err(missing()),
        Phase::Ended { reason: EndReason::Archived, .. } | Phase::Idle | Phase::Turn(_) => {
            Ok(loaded)
        }
    }
}

async fn show(api: &Api, loaded: &Loaded) -> Answer {
    let created = api.firsts.created(api, &loaded.key).await?;
    let shape = Shape::of_session(&loaded.session, api.now_ms());
    answer(&shown(&loaded.key.session, &created, &shape))
}

pub(crate) async fn archive(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    _: NoFields,
) -> Answer {
    let loaded = visible(&api, &caller, &id).await?;
    let session = ingress::archive(&api.app.runtime, &loaded.key).await?;
    show(&api, &Loaded { session, ..loaded }).await
}

pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
) -> Answer {
    let loaded = visible(&api, &caller, &id).await?;
    ingress::delete(&api.app.runtime, &loaded.key).await?;
    answer(&json!({"id": id, "type": "session_deleted"}))
}
