//! Versions of skills. Their ids sort by time, so the last one is the latest.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, RawQuery, Request, State},
    http::{HeaderValue, header},
    response::IntoResponse,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tailstep_core::ids::BlobRef;
use tailstep_runtime::ports::{DocumentKind, ListDocuments, Page};

use super::{PAGE_DEFAULT, PAGE_MAX, archive, existing, form::Form};
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, Id, json as answer},
    error::ApiError,
    page::{PageBody, Scope, fill},
    query::Query,
    repeat::Creation,
    stamp::stamp,
    store::{self, Stored},
};

pub(super) const VERSION_PREFIX: &str = "skillver_";

/// Documents asked for at once.
const BATCH: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) name: String,
    pub(super) description: String,
    /// The top directory of the upload.
    pub(super) directory: String,
    pub(super) manifest: BlobRef,
}

/// The version's document is named by the skill and the version; outside it goes by the latter.
fn document_id(skill: &str, version: &str) -> String {
    format!("{skill}#{version}")
}

fn named(mut stored: Stored<Version>) -> Stored<Version> {
    if let Some((_, version)) = stored.id.split_once('#') {
        stored.id = version.to_owned();
    }
    stored
}

pub(super) async fn put(
    api: &Api,
    caller: &Caller,
    skill: &str,
    version: &str,
    value: Version,
) -> Result<Stored<Version>, ApiError> {
    let id = document_id(skill, version);
    let made = Stored { id, revision: 0, created_at_ms: api.now_ms(), value };
    let documents = api.app.documents.as_ref();
    store::put(documents, &caller.tenant, DocumentKind::SkillVersion, &made).await?;
    Ok(named(made))
}

/// `version` may be `latest`; `None` when there is none.
pub(super) async fn find(
    api: &Api,
    caller: &Caller,
    skill: &str,
    version: &str,
) -> Result<Option<Stored<Version>>, ApiError> {
    if version == "latest" {
        return latest(api, caller, skill).await;
    }
    if !store::is_id(version, VERSION_PREFIX) {
        return Ok(None);
    }
    let documents = api.app.documents.as_ref();
    let id = document_id(skill, version);
    let found = store::get(documents, &caller.tenant, DocumentKind::SkillVersion, &id).await?;
    Ok(found.map(named))
}

pub(super) async fn latest(
    api: &Api,
    caller: &Caller,
    skill: &str,
) -> Result<Option<Stored<Version>>, ApiError> {
    let page = page(api, &caller.tenant, skill, None, 1).await?;
    Ok(page.items.into_iter().next().map(named))
}

/// Newest first, under their documents' ids.
async fn page(
    api: &Api,
    tenant: &str,
    skill: &str,
    after: Option<String>,
    limit: usize,
) -> Result<Page<Stored<Version>>, ApiError> {
    let query = ListDocuments { prefix: document_id(skill, ""), after, limit, descending: true };
    let page = api.app.documents.list(tenant, DocumentKind::SkillVersion, &query).await?;
    let items = page.items.into_iter().map(store::read).collect::<Result<Vec<_>, _>>()?;
    Ok(Page { items, more: page.more })
}

async fn existing_version(
    api: &Api,
    caller: &Caller,
    skill: &str,
    version: &str,
) -> Result<Stored<Version>, ApiError> {
    existing(api, caller, skill).await?;
    let found = find(api, caller, skill, version).await?;
    found.ok_or_else(|| ApiError::not_found("skill version", version))
}

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(skill): Id,
    request: Request,
) -> Answer {
    existing(&api, &caller, &skill).await?;
    let (parts, body) = request.into_parts();
    let form = Form::read(&api, &caller, &parts.headers, body).await?;
    if form.display_name.is_some() {
        return Err(ApiError::invalid("display_name: belongs to the skill, not to a version"));
    }
    let said = form.fingerprint();
    let route = format!("/v1/skills/{skill}/versions");
    let (headers, said) = (&parts.headers, said.as_bytes());
    let mut creation =
        Creation::begin(&api, &caller, headers, &route, said, VERSION_PREFIX).await?;
    creation.reserve(&api, &caller).await?;
    if let Some(made) = find(&api, &caller, &skill, &creation.id).await? {
        return answer(&shown(&skill, &made));
    }
    let made = put(&api, &caller, &skill, &creation.id, form.version).await?;
    answer(&shown(&skill, &made))
}

pub(crate) async fn retrieve(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path((skill, version)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer {
    Query::of(query.as_deref()).finish()?;
    answer(&shown(&skill, &existing_version(&api, &caller, &skill, &version).await?))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(skill): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let limit = query.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let cursor = query.one("page")?;
    query.finish()?;
    existing(&api, &caller, &skill).await?;
    let name = format!("skills/{skill}/versions");
    let scope = Scope { tenant: &caller.tenant, list: &name, order: "desc" };
    let after = cursor.map(|cursor| scope.place(&cursor)).transpose()?;
    let fetch = |after, limit| page(&api, &caller.tenant, &skill, after, limit);
    let (found, more) =
        fill(limit, after, fetch, |version: &Stored<Version>| version.id.as_str(), |_| true)
            .await?;
    let next_page = found.last().filter(|_| more).map(|last| scope.cursor(&last.id));
    let data = found.into_iter().map(|version| shown(&skill, &named(version))).collect();
    answer(&PageBody { data, next_page })
}

pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path((skill, version)): Path<(String, String)>,
) -> Answer {
    let found = existing_version(&api, &caller, &skill, &version).await?;
    let documents = api.app.documents.as_ref();
    let id = document_id(&skill, &found.id);
    documents.delete(&caller.tenant, DocumentKind::SkillVersion, &id).await?;
    answer(&json!({"id": found.id, "type": "skill_version_deleted"}))
}

pub(super) async fn delete_all(api: &Api, caller: &Caller, skill: &str) -> Result<(), ApiError> {
    loop {
        let found = page(api, &caller.tenant, skill, None, BATCH).await?;
        for version in &found.items {
            let documents = api.app.documents.as_ref();
            documents.delete(&caller.tenant, DocumentKind::SkillVersion, &version.id).await?;
        }
        if !found.more {
            return Ok(());
        }
    }
}

pub(crate) async fn download(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path((skill, version)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer {
    Query::of(query.as_deref()).finish()?;
    let found = existing_version(&api, &caller, &skill, &version).await?;
    let zip = archive::zip(&api, &caller.tenant, &found.value).await?;
    let mut response = zip.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/zip"));
    let disposition = HeaderValue::from_static("attachment; filename=\"skill.zip\"");
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

fn shown(skill: &str, stored: &Stored<Version>) -> Value {
    let Version { name, description, directory, .. } = &stored.value;
    json!({
        "id": stored.id,
        "type": "skill_version",
        "skill_id": skill,
        "version": stored.id,
        "name": name,
        "description": description,
        "directory": directory,
        "created_at": stamp(stored.created_at_ms),
    })
}
