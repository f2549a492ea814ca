//! The daemon's requests: the provider's hooks, and the brain's calls behind the machine's secret.

use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, FromRequestParts, Path, State},
    http::{HeaderMap, HeaderValue, StatusCode, header::HeaderName, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use tailstep_core::ids::sha256_hex;
use tailstep_sandbox::workspace::Caps;

use crate::{
    guest::{Failure, Guest},
    message::{FORMAT, Order, Run, Start},
};

/// The path that the provider posts lifecycle hooks under.
const HOOKS: &str = "/aws/lambda-microvms/runtime/v1";
/// The largest order: a `write` of the largest file that a call may carry, escaped.
const ORDER_BYTES_MAX: usize = 8 << 20;
/// Shown by callers.
const SECRET: &str = "x-tailstep-secret";
/// What a workspace that is put has to be.
const SHA256: &str = "x-tailstep-sha256";
/// On every answer of this daemon, which tells them from those of a proxy before it.
const MARK: HeaderName = HeaderName::from_static("x-tailstep-guest");

pub(crate) fn router(guest: Guest) -> Router {
    Router::new()
        .route(&format!("{HOOKS}/run"), post(run))
        .route(&format!("{HOOKS}/{{hook}}"), post(hook))
        .route("/v1/health", get(health))
        .route("/v1/call", post(call))
        .route("/v1/workspace", get(workspace).put(lay))
        .route("/v1/files", put(expect).post(arrived))
        .route("/v1/files/{index}/{offset}", put(write))
        .route("/v1/outputs/{sha256}", get(output))
        .layer(DefaultBodyLimit::max(ORDER_BYTES_MAX))
        .layer(axum::middleware::map_response(async |mut response: Response| {
            response.headers_mut().insert(MARK, HeaderValue::from_static("1"));
            response
        }))
        .with_state(guest)
}

/// Says whose machine this is. The provider holds all other traffic back until it is answered.
async fn run(State(guest): State<Guest>, body: Bytes) -> (StatusCode, &'static str) {
    let body: Result<Run, _> = serde_json::from_slice(&body);
    let payload = body.ok().and_then(|body| body.run_hook_payload).unwrap_or_default();
    match serde_json::from_str::<Start>(&payload) {
        Ok(start) if start.v > FORMAT => (StatusCode::BAD_REQUEST, "start has a newer format"),
        Ok(start) if guest.be(&start) => (StatusCode::OK, ""),
        Ok(_) => (StatusCode::CONFLICT, "this machine is started already"),
        Err(_) => (StatusCode::BAD_REQUEST, "runHookPayload cannot be read"),
    }
}

/// Nothing has to be done before a snapshot, and nothing is lost by one.
async fn hook(Path(hook): Path<String>) -> StatusCode {
    match hook.as_str() {
        "ready" | "validate" | "resume" | "suspend" | "terminate" => StatusCode::OK,
        _ => StatusCode::NOT_FOUND,
    }
}

/// A caller who has shown the secret.
struct Caller;

impl FromRequestParts<Guest> for Caller {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, guest: &Guest) -> Result<Self, Self::Rejection> {
        let Some(start) = guest.started() else {
            return Err((StatusCode::SERVICE_UNAVAILABLE, "this machine is not started"));
        };
        // Hashes are compared, so that how long it takes says nothing about the secret.
        let shown = parts.headers.get(SECRET).map(|secret| sha256_hex(secret.as_bytes()));
        if shown.as_ref() == Some(&start.secret_sha256) {
            Ok(Self)
        } else {
            Err((StatusCode::UNAUTHORIZED, "the secret is not the one of this machine"))
        }
    }
}

async fn health(_caller: Caller, State(guest): State<Guest>) -> Response {
    let sandbox = guest.started().map(|start| start.sandbox.clone());
    json(&serde_json::json!({ "v": FORMAT, "sandbox": sandbox }))
}

async fn call(
    _caller: Caller,
    State(guest): State<Guest>,
    body: Bytes,
) -> Result<Response, Failure> {
    let order: Order = serde_json::from_slice(&body).map_err(|_| Failure::Form)?;
    Ok(json(&guest.call(order).await?))
}

fn json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([("content-type", "application/json")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn workspace(_caller: Caller, State(guest): State<Guest>) -> Result<Bytes, Failure> {
    guest.archive().await
}

async fn lay(
    _caller: Caller,
    State(guest): State<Guest>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Failure> {
    let bytes_max = usize::try_from(Caps::default().packed_bytes_max).unwrap_or(usize::MAX);
    let announced = headers.get(SHA256).and_then(|value| value.to_str().ok());
    let announced = announced.unwrap_or_default().to_owned();
    let Ok(archive) = Limited::new(body, bytes_max).collect().await else {
        return Ok(StatusCode::PAYLOAD_TOO_LARGE);
    };
    guest.lay(archive.to_bytes(), announced).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn expect(
    _caller: Caller,
    State(guest): State<Guest>,
    body: Bytes,
) -> Result<StatusCode, Failure> {
    let coming = serde_json::from_slice(&body).map_err(|_| Failure::Form)?;
    guest.expect(coming).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn write(
    _caller: Caller,
    State(guest): State<Guest>,
    Path((index, offset)): Path<(usize, u64)>,
    body: Bytes,
) -> Result<StatusCode, Failure> {
    guest.write(index, offset, body).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn arrived(_caller: Caller, State(guest): State<Guest>) -> Result<StatusCode, Failure> {
    guest.arrived().await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn output(
    _caller: Caller,
    State(guest): State<Guest>,
    Path(sha256): Path<String>,
) -> Result<Bytes, StatusCode> {
    let piece = guest.output(sha256).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    piece.ok_or(StatusCode::NOT_FOUND)
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Workspace => StatusCode::CONFLICT,
            Self::Unknown => StatusCode::GONE,
            Self::Files => StatusCode::FAILED_DEPENDENCY,
            Self::Newer { .. } | Self::Form | Self::Announced => StatusCode::BAD_REQUEST,
            Self::Archive(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Directory(_) | Self::Ended => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, self.to_string()).into_response()
    }
}
