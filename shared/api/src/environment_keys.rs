//! Environment keys: what a worker polls with. Made, listed and taken back by the routes under
//! `/v1/x/environments/{id}/keys`, an extension of the protocol, which knows no route for them.
//! Instead of an environment's id the path may say [`ANY`], for a key to every self-hosted
//! environment of the tenant, later ones included.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{RawQuery, Request, State},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tailstep_core::{
    agent::EnvironmentKind,
    ids::{UnixMs, sha256_hex},
    limits::input::NAME_CHARS_MAX,
};
use tailstep_runtime::{
    ids::{new_id, nonce},
    ports::{Document, DocumentKind, Documents, DocumentsError, Expect},
};

use crate::{
    Api,
    auth::Caller,
    edge::{Answer, Id, Ids, json as answer, read_body},
    environments,
    error::ApiError,
    fields::{Fields, check_name},
    page::PageBody,
    query::Query,
    scope::Reach,
    stamp::stamp,
    store::{self, Listed, Stored},
};

/// What every key begins with, so that scanners for leaked secrets find it.
pub(crate) const PREFIX: &str = "tailstep_env_";

/// Stands for every self-hosted environment of the tenant.
const ANY: &str = "any";

const ID_PREFIX: &str = "envkey_";
const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 100;

/// Keys are looked up before their tenant is known.
const NO_TENANT: &str = "";

/// By the key's hash: whose it is.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    tenant: String,
    environment: String,
}

/// By the key's id, for lists.
#[derive(Debug, Serialize, Deserialize)]
struct Name {
    name: String,
    key_sha256: String,
}

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(environment): Id,
    request: Request,
) -> Answer {
    let body = read_body(request.into_body()).await?;
    check_environment(&api, &caller, &environment).await?;
    let mut fields = Fields::of_optional_body(&body)?;
    let name = fields.text("name")?.unwrap_or_else(|| "worker".to_owned());
    check_name(&name, "name", NAME_CHARS_MAX)?;
    fields.finish()?;
    let now_ms = api.now_ms();
    let key = format!("{PREFIX}{}{}", nonce(), nonce());
    let key_sha256 = sha256_hex(key.as_bytes());
    let id = new_id(ID_PREFIX, now_ms);
    let documents = api.app.documents.as_ref();
    // The name first: a name without a key can be seen and removed, a key without a name cannot.
    let listed = Stored {
        id: place(&environment, &id),
        revision: 0,
        created_at_ms: now_ms,
        value: Name { name, key_sha256: key_sha256.clone() },
    };
    store::put(documents, &caller.tenant, DocumentKind::EnvironmentKeyName, &listed).await?;
    let holder = Holder { tenant: caller.tenant.clone(), environment };
    put_holder(documents, &key_sha256, &holder, now_ms).await?;
    let mut shown = shown(&listed);
    shown["key"] = json!(key);
    answer(&shown)
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(environment): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let limit = query.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let page = query.one("page")?;
    query.finish()?;
    check_environment(&api, &caller, &environment).await?;
    let name = format!("environments/{environment}/keys");
    let prefix = place(&environment, "");
    let kind = DocumentKind::EnvironmentKeyName;
    let listed = Listed { kind, prefix: &prefix, name: &name };
    let documents = api.app.documents.as_ref();
    let (keys, next_page): (Vec<Stored<Name>>, _) =
        store::list(documents, &caller.tenant, listed, limit, page, |_| true).await?;
    answer(&PageBody { data: keys.iter().map(shown).collect(), next_page })
}

/// Takes the key back; the next request with it is refused.
pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Ids(environment, id): Ids,
) -> Answer {
    let missing = || ApiError::not_found("environment key", &id);
    if !store::is_id(&id, ID_PREFIX) || !is_name(&environment) {
        return Err(missing());
    }
    let documents = api.app.documents.as_ref();
    let (tenant, place) = (&caller.tenant, place(&environment, &id));
    let kind = DocumentKind::EnvironmentKeyName;
    let found: Stored<Name> =
        store::get(documents, tenant, kind, &place).await?.ok_or_else(missing)?;
    // The key first: what is still listed can be taken back again.
    documents.delete(NO_TENANT, DocumentKind::EnvironmentKey, &found.value.key_sha256).await?;
    documents.delete(tenant, kind, &place).await?;
    answer(&json!({"id": id, "type": "x_environment_key_deleted"}))
}

/// The tenant of the key with this hash, and where it works. Asked of the store each time, so that a
/// key that is taken back is refused at once.
pub(crate) async fn holder(
    documents: &dyn Documents,
    key_hash: &str,
) -> Result<Option<(String, Reach)>, ApiError> {
    let found: Option<Stored<Holder>> =
        store::get(documents, NO_TENANT, DocumentKind::EnvironmentKey, key_hash).await?;
    Ok(found.map(|found| {
        let Holder { tenant, environment } = found.value;
        let reach = if environment == ANY { Reach::All } else { Reach::One(environment) };
        (tenant, reach)
    }))
}

async fn check_environment(api: &Api, caller: &Caller, id: &str) -> Result<(), ApiError> {
    if id == ANY {
        return Ok(());
    }
    let environment = environments::existing(api, caller, id).await?;
    match environment.value.kind {
        EnvironmentKind::SelfHosted => Ok(()),
        EnvironmentKind::Cloud => Err(ApiError::invalid(format!(
            "environment {id} is run by the deployment; keys are for self_hosted ones"
        ))),
    }
}

/// What can stand before `#` in a place.
fn is_name(environment: &str) -> bool {
    environment == ANY || store::is_id(environment, environments::ID_PREFIX)
}

async fn put_holder(
    documents: &dyn Documents,
    key_sha256: &str,
    holder: &Holder,
    now_ms: UnixMs,
) -> Result<(), ApiError> {
    let body = serde_json::to_vec(holder).map_err(|error| {
        tracing::error!(%error, "a document could not be written as JSON");
        ApiError::internal()
    })?;
    let document = Document {
        tenant: NO_TENANT.to_owned(),
        kind: DocumentKind::EnvironmentKey,
        id: key_sha256.to_owned(),
        revision: 1,
        created_at_ms: now_ms,
        body: Bytes::from(body),
    };
    match documents.put(&document, Expect::Absent).await {
        // 256 random bits: whoever was there before is this very request.
        Ok(()) | Err(DocumentsError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn place(environment: &str, id: &str) -> String {
    format!("{environment}#{id}")
}

fn shown(stored: &Stored<Name>) -> Value {
    let (environment, id) = stored.id.split_once('#').unwrap_or_default();
    json!({
        "id": id,
        "type": "x_environment_key",
        "environment_id": environment,
        "name": stored.value.name,
        "created_at": stamp(stored.created_at_ms),
    })
}
