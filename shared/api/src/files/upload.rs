//! A file's bytes on their way in: a multipart form, read piece by piece.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    http::header,
};
use multer::{Constraints, Field, Multipart, SizeLimit, parse_boundary};
use tailstep_core::{files::FileContent, ids::UnixMs};
use tailstep_runtime::{content::ContentWriter, ports::DocumentKind};

use super::{File, ID_PREFIX, Upload, existing, kinds, shown};
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, json as answer},
    error::ApiError,
    fields,
    repeat::Creation,
    store::{self, Stored},
};

const FILENAME_CHARS_MAX: usize = 255;

/// The other part of the form, and the form's own words around the parts.
const REST_BYTES_MAX: u64 = 16 << 10;

/// The protocol's own bounds: an hour and ninety days.
const EXPIRES_S: std::ops::RangeInclusive<u64> = 3_600..=7_776_000;

pub(crate) async fn upload(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer {
    let (parts, body) = request.into_parts();
    let bytes_max = api.app.upload_bytes_max;
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let boundary = kind.and_then(|kind| parse_boundary(kind).ok()).ok_or_else(|| {
        ApiError::invalid("content-type: must be multipart/form-data with a boundary")
    })?;
    let announced = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced = announced.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    if announced > bytes_max.saturating_add(REST_BYTES_MAX) {
        return Err(too_large(bytes_max));
    }
    let whole = SizeLimit::new()
        .whole_stream(bytes_max.saturating_add(REST_BYTES_MAX))
        .for_field("expires_in_seconds", 32);
    let constraints = Constraints::new().size_limit(whole);
    let form = Multipart::with_constraints(body.into_data_stream(), boundary, constraints);
    let form = Form::read(&api, &caller, form, bytes_max).await?;
    let said = form.fingerprint();
    let route = "/v1/files";
    let mut creation =
        Creation::begin(&api, &caller, &parts.headers, route, said.as_bytes(), ID_PREFIX).await?;
    creation.reserve(&api, &caller).await?;
    let now_ms = api.now_ms();
    let value = form.into_upload(now_ms);
    let made = Stored { id: creation.id, revision: 0, created_at_ms: now_ms, value };
    let documents = api.app.documents.as_ref();
    if !store::put(documents, &caller.tenant, DocumentKind::File, &made).await? {
        return answer(&shown(&existing(&api, &caller, &made.id).await?));
    }
    answer(&shown(&File::of_upload(made)))
}

fn too_large(bytes_max: u64) -> ApiError {
    ApiError::too_large(format!("file: is longer than the limit of {bytes_max} bytes"))
}

struct Form {
    filename: String,
    mime_type: String,
    content: FileContent,
    expires_in_s: Option<u64>,
}

impl Form {
    async fn read(
        api: &Api,
        caller: &Caller,
        mut form: Multipart<'_>,
        bytes_max: u64,
    ) -> Result<Self, ApiError> {
        let (mut file, mut expires_in_s) = (None, None);
        while let Some(part) = form.next_field().await.map_err(|e| malformed(e, bytes_max))? {
            match part.name() {
                Some("file") if file.is_none() => {
                    file = Some(read_file(api, caller, part, bytes_max).await?);
                }
                Some("expires_in_seconds") if expires_in_s.is_none() => {
                    let text = part.text().await.map_err(|e| malformed(e, bytes_max))?;
                    expires_in_s = Some(seconds(&text)?);
                }
                Some(name @ ("file" | "expires_in_seconds")) => {
                    return Err(ApiError::invalid(format!("{name}: is given more than once")));
                }
                Some(_) | None => {
                    return Err(ApiError::invalid(
                        "a part of the form has an unknown name; allowed: file, expires_in_seconds",
                    ));
                }
            }
        }
        let missing = || ApiError::invalid("file: is required; send it as a part of the form");
        let (filename, mime_type, content) = file.ok_or_else(missing)?;
        Ok(Self { filename, mime_type, content, expires_in_s })
    }

    /// What makes two uploads the same request.
    fn fingerprint(&self) -> String {
        let Self { filename, mime_type, content, expires_in_s } = self;
        format!("{}\n{filename}\n{mime_type}\n{expires_in_s:?}", content.sha256)
    }

    fn into_upload(self, now_ms: UnixMs) -> Upload {
        let Self { filename, mime_type, content, expires_in_s } = self;
        let expires_at_ms = expires_in_s.map(|s| now_ms.saturating_add(s.saturating_mul(1_000)));
        Upload { filename, mime_type, content, expires_at_ms }
    }
}

async fn read_file(
    api: &Api,
    caller: &Caller,
    mut part: Field<'_>,
    bytes_max: u64,
) -> Result<(String, String, FileContent), ApiError> {
    let filename = fields::filename(&part, "file: its filename", FILENAME_CHARS_MAX)?;
    let is_path = |c: char| c.is_control() || c == '/' || c == '\\';
    if [".", ".."].contains(&filename.as_str()) || filename.chars().any(is_path) {
        return Err(ApiError::invalid(
            "file: its filename must not be . or .., or hold /, \\ or control characters",
        ));
    }
    let named = part.content_type().map(|kind| kind.essence_str().to_owned());
    let named = named.filter(|kind| kinds::is_plain(kind) && kind != kinds::BYTES);
    let mime_type = named.unwrap_or_else(|| kinds::of_name(&filename).to_owned());
    let mut writer = ContentWriter::new(api.app.blobs.as_ref(), &caller.tenant);
    while let Some(bytes) = part.chunk().await.map_err(|error| malformed(error, bytes_max))? {
        if writer.size_bytes().saturating_add(bytes.len() as u64) > bytes_max {
            return Err(too_large(bytes_max));
        }
        writer.write(&bytes).await?;
    }
    Ok((filename, mime_type, writer.finish().await?))
}

fn seconds(text: &str) -> Result<u64, ApiError> {
    let seconds = text.trim().parse().ok().filter(|seconds| EXPIRES_S.contains(seconds));
    let (first, last) = EXPIRES_S.into_inner();
    seconds.ok_or_else(|| {
        ApiError::invalid(format!(
            "expires_in_seconds: must be a whole number from {first} to {last}"
        ))
    })
}

/// The details are not repeated: they can hold what the client sent.
fn malformed(error: multer::Error, bytes_max: u64) -> ApiError {
    if matches!(error, multer::Error::StreamSizeExceeded { .. }) {
        return too_large(bytes_max);
    }
    ApiError::invalid("the request body is no whole multipart form, or a part of it is too long")
}
