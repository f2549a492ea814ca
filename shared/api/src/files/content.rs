//! A file's bytes on their way out, one piece in memory at a time.

use std::{io, sync::Arc};

use axum::{
    Extension,
    body::Body,
    extract::{RawQuery, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tailstep_core::ids::BlobRef;

use super::{existing, kinds};
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, Id},
    error::ApiError,
    query::Query,
};

pub(crate) async fn download(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    Query::of(query.as_deref()).finish()?;
    let file = existing(&api, &caller, &id).await?;
    let size_bytes = file.content.size_bytes;
    let kind = if kinds::is_plain(&file.mime_type) { &file.mime_type } else { kinds::BYTES };
    let kind = HeaderValue::from_str(kind).map_err(|_| ApiError::internal())?;
    let disposition = HeaderValue::from_str(&disposition(&file.filename));
    let disposition = disposition.map_err(|_| ApiError::internal())?;
    let body = stream(&api, &caller.tenant, file.content.chunks).await?;
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size_bytes));
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    // What an agent wrote is never shown as a page of this origin.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    Ok(response)
}

/// The first piece is there before the answer begins, so that lost bytes are an error in the
/// envelope whenever they can be.
pub(crate) async fn stream(
    api: &Arc<Api>,
    tenant: &str,
    chunks: Vec<BlobRef>,
) -> Result<Response, ApiError> {
    let mut chunks = chunks.into_iter();
    let first = match chunks.next() {
        None => return Ok(Body::empty().into_response()),
        Some(first) => api.app.blobs.get(tenant, &first).await?,
    };
    let (api, tenant) = (Arc::clone(api), tenant.to_owned());
    let rest = stream::unfold((api, tenant, chunks), |(api, tenant, mut chunks)| async move {
        let chunk = chunks.next()?;
        let piece = api.app.blobs.get(&tenant, &chunk).await.map_err(|error| {
            tracing::error!(%error, "a download broke off");
            io::Error::other("a piece of the file is out of reach")
        });
        Some((piece, (api, tenant, chunks)))
    });
    let whole = stream::once(async { Ok::<Bytes, io::Error>(first) }).chain(rest);
    Ok(Body::from_stream(whole).into_response())
}

/// The name for a client's file system, twice: in plain ASCII, and as it is (RFC 6266, RFC 8187).
fn disposition(name: &str) -> String {
    let plain: String = name.chars().map(|c| if is_safe(c) { c } else { '_' }).collect();
    let mut exact = String::new();
    for byte in name.bytes() {
        // `attr-char` of RFC 8187, less what no name needs.
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            exact.push(char::from(byte));
        } else {
            exact.push_str(&format!("%{byte:02X}"));
        }
    }
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}")
}

fn is_safe(c: char) -> bool {
    c == ' ' || (c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '/' | '%' | ';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_header() {
        for (name, want) in [
            ("plain.txt", "filename=\"plain.txt\"; filename*=UTF-8''plain.txt"),
            ("a\"; x=\"b", "filename=\"a__ x=_b\"; filename*=UTF-8''a%22%3B%20x%3D%22b"),
            (
                "é\r\nset-cookie: a",
                "filename=\"___set-cookie: a\"; filename*=UTF-8''%C3%A9%0D%0Aset-cookie%3A%20a",
            ),
            ("..\\up", "filename=\".._up\"; filename*=UTF-8''..%5Cup"),
        ] {
            let whole = disposition(name);
            assert_eq!(whole, format!("attachment; {want}"));
            assert!(HeaderValue::from_str(&whole).is_ok());
        }
    }
}
