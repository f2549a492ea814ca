//! Where requests come in and answers go out: request ids, the error envelope, body sizes.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{FromRequest, FromRequestParts, Path, Request, State},
    http::{HeaderValue, Method, Uri, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tailstep_core::limits::input::BODY_BYTES_MAX;
use tailstep_runtime::ids::new_id;
use tracing::Instrument;

use crate::{Api, error::ApiError, fields::Fields};

/// What handlers answer.
pub(crate) type Answer = Result<Response, ApiError>;

/// The id in a request's path.
pub(crate) struct Id(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(id)| Self(id))
            .map_err(|_| ApiError::invalid("the id in the path is not UTF-8 text"))
    }
}

/// Both ids in a request's path.
pub(crate) struct Ids(pub(crate) String, pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Ids {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        path.map(|Path((first, second))| Self(first, second))
            .map_err(|_| ApiError::invalid("an id in the path is not UTF-8 text"))
    }
}

/// Gives each request an id, and each error its envelope.
///
/// The work runs as a task of its own: a client that hangs up cannot stop it between two writes, and
/// a panic becomes a 500 in the envelope.
pub(crate) async fn envelope(
    State(api): State<Arc<Api>>,
    request: Request,
    next: Next,
) -> Response {
    let request_id = new_id("req_", api.now_ms());
    let span = tracing::info_span!("request", request_id, method = %request.method());
    let work = tokio::spawn(next.run(request).instrument(span.clone()));
    let mut response = match work.await {
        Ok(response) => response,
        Err(error) => {
            span.in_scope(|| tracing::error!(%error, "a request handler panicked"));
            ApiError::internal().into_response()
        }
    };
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        response = render(response, &error, &request_id);
    }
    if let Ok(id) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert("request-id", id);
    }
    response
}

/// Keeps what the answer's headers say already (`allow`, for example).
fn render(plain: Response, error: &ApiError, request_id: &str) -> Response {
    let (mut parts, _) = plain.into_parts();
    let headers = &mut parts.headers;
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.remove(header::CONTENT_LENGTH);
    if let Some(retry) = error.should_retry {
        let value = if retry { "true" } else { "false" };
        headers.insert("x-should-retry", HeaderValue::from_static(value));
    }
    if let Some(seconds) = error.retry_after_s {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    Response::from_parts(parts, Body::from(error.body(request_id).to_string()))
}

pub(crate) async fn unknown_route() -> ApiError {
    ApiError::unknown_route()
}

pub(crate) async fn wrong_method(_method: Method, _uri: Uri) -> ApiError {
    ApiError::wrong_method()
}

/// The whole body, if it is within the limit.
pub(crate) async fn read_body(body: Body) -> Result<Bytes, ApiError> {
    // A body that breaks off is answered in the same way; nobody is left to read that answer.
    to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| ApiError::body_too_large())
}

/// A request whose route takes no fields: they must not be ignored.
pub(crate) struct NoFields;

impl<S: Send + Sync> FromRequest<S> for NoFields {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let body = read_body(request.into_body()).await?;
        Fields::of_optional_body(&body)?.finish()?;
        Ok(Self)
    }
}

/// A 200 with `value` as JSON.
pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> Answer {
    let text = serde_json::to_string(value).map_err(|error| {
        tracing::error!(%error, "an answer could not be written as JSON");
        ApiError::internal()
    })?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}
