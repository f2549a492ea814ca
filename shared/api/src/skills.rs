//! Skills: directories with a SKILL.md, uploaded as forms. A version never changes once it is
//! written; which one is the latest is read from the versions that are there.

mod archive;
mod form;
mod front;
mod versions;
mod wish;

use std::sync::Arc;

use axum::{
    Extension,
    extract::{RawQuery, Request, State},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tailstep_runtime::{ids::new_id, ports::DocumentKind};

use self::{
    form::Form,
    versions::{VERSION_PREFIX, Version, latest},
};
pub(crate) use self::{
    versions::{
        create as create_version, delete as delete_version, download, list as list_versions,
        retrieve as retrieve_version,
    },
    wish::{Wish, read as read_wishes, resolve},
};
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, Id, json as answer},
    error::ApiError,
    page::PageBody,
    query::Query,
    repeat::Creation,
    stamp::stamp,
    store::{self, Listed, Stored},
};

const ID_PREFIX: &str = "skill_";
const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Skill {
    display_name: String,
}

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer {
    let (parts, body) = request.into_parts();
    let form = Form::read(&api, &caller, &parts.headers, body).await?;
    let said = form.fingerprint();
    let route = "/v1/skills";
    let mut creation =
        Creation::begin(&api, &caller, &parts.headers, route, said.as_bytes(), ID_PREFIX).await?;
    if creation.repeated
        && let Some(made) = get(&api, &caller, &creation.id).await?
    {
        return show(&api, &caller, &made).await;
    }
    creation.reserve(&api, &caller).await?;
    let now_ms = api.now_ms();
    let display_name = form.display_name.clone().unwrap_or_else(|| form.version.name.clone());
    let version = new_id(VERSION_PREFIX, now_ms);
    // The version first: a skill that can be seen has one.
    versions::put(&api, &caller, &creation.id, &version, form.version).await?;
    let value = Skill { display_name };
    let made = Stored { id: creation.id, revision: 0, created_at_ms: now_ms, value };
    let documents = api.app.documents.as_ref();
    // Somebody who was faster has made the same.
    store::put(documents, &caller.tenant, DocumentKind::Skill, &made).await?;
    show(&api, &caller, &made).await
}

async fn get(api: &Api, caller: &Caller, id: &str) -> Result<Option<Stored<Skill>>, ApiError> {
    if !store::is_id(id, ID_PREFIX) {
        return Ok(None);
    }
    store::get(api.app.documents.as_ref(), &caller.tenant, DocumentKind::Skill, id).await
}

async fn existing(api: &Api, caller: &Caller, id: &str) -> Result<Stored<Skill>, ApiError> {
    get(api, caller, id).await?.ok_or_else(|| ApiError::not_found("skill", id))
}

pub(crate) async fn retrieve(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    Query::of(query.as_deref()).finish()?;
    let found = existing(&api, &caller, &id).await?;
    show(&api, &caller, &found).await
}

async fn show(api: &Api, caller: &Caller, skill: &Stored<Skill>) -> Answer {
    let latest = latest(api, caller, &skill.id).await?;
    answer(&shown(skill, latest.as_ref()))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    // Everything here is made by clients.
    let source = query.one("source")?;
    let limit = query.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let page = query.one("page")?;
    query.finish()?;
    let wanted = source.is_none_or(|source| source == "custom");
    let listed = Listed { kind: DocumentKind::Skill, prefix: "", name: "skills" };
    let documents = api.app.documents.as_ref();
    let (found, next_page) =
        store::list(documents, &caller.tenant, listed, limit, page, |_| wanted).await?;
    let mut data = Vec::new();
    for skill in &found {
        data.push(shown(skill, latest(&api, &caller, &skill.id).await?.as_ref()));
    }
    answer(&PageBody { data, next_page })
}

/// Agents keep the versions that they were made with: what they hold is found by its hash.
pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
) -> Answer {
    existing(&api, &caller, &id).await?;
    let documents = api.app.documents.as_ref();
    documents.delete(&caller.tenant, DocumentKind::Skill, &id).await?;
    versions::delete_all(&api, &caller, &id).await?;
    answer(&json!({"id": id, "type": "skill_deleted"}))
}

/// Under the names of the present protocol and of the one before.
fn shown(skill: &Stored<Skill>, latest: Option<&Stored<Version>>) -> Value {
    let version = latest.map(|latest| latest.id.as_str());
    let updated_at_ms = latest.map_or(skill.created_at_ms, |latest| latest.created_at_ms);
    json!({
        "id": skill.id,
        "type": "skill",
        "display_name": skill.value.display_name,
        "display_title": skill.value.display_name,
        "latest_version_id": version,
        "latest_version": version,
        "source": {"type": "custom"},
        "created_at": stamp(skill.created_at_ms),
        "updated_at": stamp(updated_at_ms),
    })
}
