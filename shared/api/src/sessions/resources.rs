//! What a session is given: files that were uploaded, or that another session put out.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, RawQuery, State},
};
use serde_json::{Value, json};
use tailstep_core::{
    files::{FileResource, UPLOADS_DIRECTORY, check_mount_path, is_within},
    limits::files::{RESOURCES_BYTES_MAX, RESOURCES_MAX},
};
use tailstep_runtime::ids::new_id;

use super::visible;
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, Id, json as answer},
    error::ApiError,
    fields::Fields,
    files,
    page::PageBody,
    query::Query,
    stamp::stamp,
};

const ID_PREFIX: &str = "sesrsc_";

/// One file that a create request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    /// Where it stands in the body.
    path: String,
    file_id: String,
    mount_path: String,
}

/// Reads `resources`.
pub(super) fn read(api: &Api, fields: &mut Fields) -> Result<Vec<Wish>, ApiError> {
    let entries = fields.list("resources")?.unwrap_or_default();
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    if !api.app.hands.files {
        return Err(ApiError::unsupported("resources", "session resources are"));
    }
    if entries.len() > RESOURCES_MAX {
        let count = entries.len();
        let what = format!("has {count} entries, at most {RESOURCES_MAX} are allowed");
        return Err(fields.error("resources", &what));
    }
    let mut wishes: Vec<Wish> = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let wish = wish(Fields::of(entry, format!("resources[{index}]"))?)?;
        let covers = |other: &&Wish| {
            is_within(&wish.mount_path, &other.mount_path)
                || is_within(&other.mount_path, &wish.mount_path)
        };
        if let Some(other) = wishes.iter().find(covers) {
            return Err(ApiError::invalid(format!(
                "{}.mount_path: is in the way of {}; choose another place",
                wish.path, other.path
            )));
        }
        wishes.push(wish);
    }
    Ok(wishes)
}

fn wish(mut fields: Fields) -> Result<Wish, ApiError> {
    let path = fields.name("type");
    match fields.required_text("type")?.as_str() {
        "file" => {}
        "github_repository" => return Err(ApiError::unsupported(&path, "repositories are")),
        "memory_store" => return Err(ApiError::unsupported(&path, "memory stores are")),
        _ => return Err(fields.error("type", "must be file")),
    }
    let file_id = fields.required_text("file_id")?;
    let mount_path = fields.text("mount_path")?.filter(|path| !path.is_empty());
    if let Some(given) = &mount_path {
        check_mount_path(given).map_err(|what| fields.error("mount_path", &what))?;
    }
    let mount_path = mount_path.unwrap_or_else(|| format!("{UPLOADS_DIRECTORY}/{file_id}"));
    fields.finish()?;
    let path = path.strip_suffix(".type").unwrap_or(&path).to_owned();
    Ok(Wish { path, file_id, mount_path })
}

/// The files as they are now: the session keeps their bytes whatever becomes of the uploads.
pub(super) async fn resolve(
    api: &Api,
    caller: &Caller,
    wishes: Vec<Wish>,
) -> Result<Vec<FileResource>, ApiError> {
    let now_ms = api.now_ms();
    let (mut found, mut bytes) = (Vec::new(), 0_u64);
    for Wish { path, file_id, mount_path } in wishes {
        let file = match files::existing(api, caller, &file_id).await {
            Ok(file) => file,
            Err(error) if error.status == axum::http::StatusCode::NOT_FOUND => {
                let what = format!("{path}.file_id: there is no such file; upload it first");
                return Err(ApiError::invalid(what));
            }
            Err(error) => return Err(error),
        };
        bytes = bytes.saturating_add(file.content.size_bytes);
        if bytes > RESOURCES_BYTES_MAX {
            return Err(ApiError::invalid(format!(
                "resources: the files together have more than {RESOURCES_BYTES_MAX} bytes"
            )));
        }
        let id = new_id(ID_PREFIX, now_ms);
        // The model is shown it in one line.
        let filename =
            file.filename.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
        let content = file.content;
        let added_at_ms = now_ms;
        found.push(FileResource { id, file_id, filename, mount_path, content, added_at_ms });
    }
    Ok(found)
}

pub(super) fn shown(resource: &FileResource) -> Value {
    let FileResource { id, file_id, mount_path, added_at_ms, .. } = resource;
    json!({
        "id": id,
        "type": "file",
        "file_id": file_id,
        "mount_path": mount_path,
        "created_at": stamp(*added_at_ms),
        "updated_at": stamp(*added_at_ms),
    })
}

/// All of them: there are few.
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    query.limit(RESOURCES_MAX, 1_000)?;
    query.finish()?;
    let data = of_session(&api, &caller, &id).await?.iter().map(shown).collect();
    answer(&PageBody { data, next_page: None })
}

pub(crate) async fn retrieve(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path((session, resource)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer {
    Query::of(query.as_deref()).finish()?;
    let all = of_session(&api, &caller, &session).await?;
    let found = all.iter().find(|found| found.id == resource);
    answer(&shown(found.ok_or_else(|| ApiError::not_found("resource", &resource))?))
}

async fn of_session(
    api: &Api,
    caller: &Caller,
    session: &str,
) -> Result<Vec<FileResource>, ApiError> {
    let loaded = visible(api, caller, session).await?;
    Ok(api.firsts.created(api, &loaded.key).await?.resources.clone())
}
