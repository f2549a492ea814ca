//! Environments: where sessions' tools run. In a `cloud` environment those are the
//! deployment's own sandboxes; the calls of a `self_hosted` one are run by workers that fetch them
//! ([`crate::work`]).

mod networking;
mod packages;

use std::sync::Arc;

use axum::{
    Extension,
    extract::{RawQuery, Request, State},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tailstep_core::{
    agent::{EnvironmentKind, Packages},
    ids::UnixMs,
    limits::input::NAME_CHARS_MAX,
};
use tailstep_runtime::ports::DocumentKind;

use self::networking::Network;
use crate::{
    Api, HandsFeatures,
    auth::Caller,
    edge::{Answer, Id, NoFields, json as answer, read_body},
    error::ApiError,
    fields::{Fields, check_length, check_name},
    metadata::{EmptyValue, Metadata, patched},
    page::PageBody,
    query::Query,
    repeat::Creation,
    stamp::stamp,
    store::{self, Listed, Stored},
};

pub(crate) const ID_PREFIX: &str = "env_";
const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 100;
const DESCRIPTION_CHARS_MAX: usize = 4_096;

/// Lost races in one write. Each means that somebody else's write went through.
const RACES_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Environment {
    name: String,
    #[serde(default)]
    pub(crate) kind: EnvironmentKind,
    #[serde(default, skip_serializing_if = "Network::is_unrestricted")]
    pub(crate) network: Network,
    #[serde(default, skip_serializing_if = "Packages::is_empty")]
    pub(crate) packages: Packages,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default)]
    metadata: Metadata,
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
    let route = "/v1/environments";
    let mut creation =
        Creation::begin(&api, &caller, &parts.headers, route, &body, ID_PREFIX).await?;
    if creation.repeated
        && let Some(made) = get(&api, &caller, &creation.id).await?
    {
        return answer(&shown(&made));
    }
    let mut fields = Fields::of_body(&body)?;
    let name = fields.required_text("name")?;
    check_name(&name, "name", NAME_CHARS_MAX)?;
    let now_ms = api.now_ms();
    let blank = Environment {
        name,
        kind: EnvironmentKind::default(),
        network: Network::default(),
        packages: Packages::default(),
        description: None,
        metadata: Metadata::new(),
        updated_at_ms: now_ms,
        archived_at_ms: None,
    };
    let value = with_rest(blank, fields, api.app.hands)?;
    creation.reserve(&api, &caller).await?;
    let mut made = Stored { id: creation.id, revision: 0, created_at_ms: now_ms, value };
    let documents = api.app.documents.as_ref();
    if !store::put(documents, &caller.tenant, DocumentKind::Environment, &made).await? {
        made = existing(&api, &caller, &made.id).await?;
    }
    answer(&shown(&made))
}

pub(crate) async fn retrieve(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    Query::of(query.as_deref()).finish()?;
    answer(&shown(&existing(&api, &caller, &id).await?))
}

async fn get(
    api: &Api,
    caller: &Caller,
    id: &str,
) -> Result<Option<Stored<Environment>>, ApiError> {
    if !store::is_id(id, ID_PREFIX) {
        return Ok(None);
    }
    let documents = api.app.documents.as_ref();
    store::get(documents, &caller.tenant, DocumentKind::Environment, id).await
}

pub(crate) async fn existing(
    api: &Api,
    caller: &Caller,
    id: &str,
) -> Result<Stored<Environment>, ApiError> {
    get(api, caller, id).await?.ok_or_else(|| ApiError::not_found("environment", id))
}

pub(crate) async fn update(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    request: Request,
) -> Answer {
    let body = read_body(request.into_body()).await?;
    let change = |environment: &Environment| {
        let mut fields = Fields::of_body(&body)?;
        let mut next = environment.clone();
        if let Some(name) = fields.text("name")? {
            check_name(&name, "name", NAME_CHARS_MAX)?;
            next.name = name;
        }
        let next = with_rest(next, fields, api.app.hands)?;
        if environment.archived_at_ms.is_some() {
            return Err(archived(&id));
        }
        if next.kind != environment.kind {
            let what = "config.type: cannot be changed; make another environment";
            return Err(ApiError::invalid(what).with_code("invalid_config_type_change"));
        }
        Ok(next)
    };
    answer(&shown(&rewrite(&api, &caller, &id, change).await?))
}

/// Why an archived environment does not do.
pub(crate) fn archived(id: &str) -> ApiError {
    ApiError::invalid(format!("environment {id} is archived; use another one"))
        .with_code("environment_archived")
}

pub(crate) async fn archive(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    _: NoFields,
) -> Answer {
    let now_ms = api.now_ms();
    let change = |environment: &Environment| {
        let archived_at_ms = environment.archived_at_ms.or(Some(now_ms));
        Ok(Environment { archived_at_ms, ..environment.clone() })
    };
    answer(&shown(&rewrite(&api, &caller, &id, change).await?))
}

/// Changes the environment; a change that gives the same again writes nothing.
async fn rewrite(
    api: &Api,
    caller: &Caller,
    id: &str,
    change: impl Fn(&Environment) -> Result<Environment, ApiError>,
) -> Result<Stored<Environment>, ApiError> {
    let documents = api.app.documents.as_ref();
    for _ in 0..RACES_MAX {
        let mut stored = existing(api, caller, id).await?;
        let mut next = change(&stored.value)?;
        if next == stored.value {
            return Ok(stored);
        }
        next.updated_at_ms = api.now_ms();
        stored.value = next;
        if store::put(documents, &caller.tenant, DocumentKind::Environment, &stored).await? {
            stored.revision += 1;
            return Ok(stored);
        }
    }
    Err(ApiError::unavailable())
}

/// Sessions keep what they need, so an environment can go while they run.
pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
) -> Answer {
    existing(&api, &caller, &id).await?;
    let documents = api.app.documents.as_ref();
    documents.delete(&caller.tenant, DocumentKind::Environment, &id).await?;
    answer(&json!({"id": id, "type": "environment_deleted"}))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let archived = query.flag("include_archived")?;
    let limit = query.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let page = query.one("page")?;
    query.finish()?;
    let keep = |stored: &Stored<Environment>| archived || stored.value.archived_at_ms.is_none();
    let listed = Listed { kind: DocumentKind::Environment, prefix: "", name: "environments" };
    let documents = api.app.documents.as_ref();
    let (found, next_page) =
        store::list(documents, &caller.tenant, listed, limit, page, keep).await?;
    answer(&PageBody { data: found.iter().map(shown).collect(), next_page })
}

/// The fields that mean the same in a create and an update.
fn with_rest(
    mut environment: Environment,
    mut fields: Fields,
    hands: HandsFeatures,
) -> Result<Environment, ApiError> {
    match fields.take_raw("description") {
        None => {}
        Some(Value::Null) => environment.description = None,
        Some(Value::String(text)) => {
            check_length(&text, "description", DESCRIPTION_CHARS_MAX)?;
            environment.description = Some(text).filter(|text| !text.is_empty());
        }
        Some(_) => return Err(fields.error("description", "must be a string")),
    }
    environment.metadata = patched(&environment.metadata, &mut fields, EmptyValue::Deletes)?;
    if let Some(config) = fields.take("config") {
        configure(&mut environment, Fields::of(config, "config")?, hands)?;
    }
    if let Some(scope) = fields.text("scope")?
        && scope != "organization"
    {
        return Err(ApiError::unsupported("scope", "scopes other than organization are"));
    }
    fields.finish()?;
    Ok(environment)
}

/// Whose hands run the tools. What the deployment's own hands may do is said for those only.
fn configure(
    environment: &mut Environment,
    mut fields: Fields,
    hands: HandsFeatures,
) -> Result<(), ApiError> {
    match fields.required_text("type")?.as_str() {
        "cloud" => environment.kind = EnvironmentKind::Cloud,
        "self_hosted" => {
            environment.kind = EnvironmentKind::SelfHosted;
            environment.packages = Packages::default();
            return fields.finish();
        }
        _ => return Err(fields.error("type", "must be cloud or self_hosted")),
    }
    environment.kind = EnvironmentKind::Cloud;
    // An update that does not speak of the network leaves its limits as they are.
    if let Some(networking) = fields.take("networking") {
        environment.network = Network::read(networking, hands)?;
    }
    match fields.take_raw("packages") {
        None => {}
        Some(Value::Null) => environment.packages = Packages::default(),
        Some(packages) => {
            let fields = Fields::of(packages, "config.packages")?;
            environment.packages = packages::read(hands, fields)?;
        }
    }
    if !environment.packages.is_empty() && !environment.network.allows_package_managers() {
        return Err(ApiError::invalid(
            "config.networking.allow_package_managers: must be true in an environment that has \
             packages and limited networking",
        ));
    }
    fields.finish()
}

fn shown(stored: &Stored<Environment>) -> Value {
    let Environment {
        name,
        kind,
        network,
        packages,
        description,
        metadata,
        updated_at_ms,
        archived_at_ms,
    } = &stored.value;
    let config = match kind {
        EnvironmentKind::SelfHosted => json!({"type": "self_hosted"}),
        EnvironmentKind::Cloud => json!({
            "type": "cloud",
            "networking": network.shown(),
            "packages": packages::shown(packages),
        }),
    };
    json!({
        "id": stored.id,
        "type": "environment",
        "name": name,
        "description": description,
        "scope": "organization",
        "config": config,
        "metadata": metadata,
        "created_at": stamp(stored.created_at_ms),
        "updated_at": stamp(*updated_at_ms),
        "archived_at": archived_at_ms.map(stamp),
    })
}
