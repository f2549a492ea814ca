//! What a client is told when something does not work, and what only the operator is told.
//!
//! A client's message names its field, its remedy or its limit, and never an internal: stores'
//! errors are logged here, once, and answered in general words.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tailstep_core::limits::input::BODY_BYTES_MAX;
use tailstep_runtime::{
    error::{Retry, RuntimeError},
    ingress::IngressError,
    ports::{BlobsError, DocumentsError},
    work::WorkError,
};

use crate::events::NO_CALL;

/// Seconds after which a client may try again what failed for a passing reason. Stores recover from
/// throttling within about that.
const RETRY_AFTER_S: u32 = 1;

/// An error answer. The request id is added where the answer leaves ([`crate::edge`]).
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    kind: &'static str,
    message: String,
    code: Option<&'static str>,
    /// More about it for programs, beside the code. Rare, and large next to the rest.
    state: Option<Box<Value>>,
    /// Overrides the client's own choice whether to try again.
    pub(crate) should_retry: Option<bool>,
    pub(crate) retry_after_s: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            status,
            kind,
            message,
            code: None,
            state: None,
            should_retry: None,
            retry_after_s: None,
        }
    }

    /// The request is wrong; `message` names the field and the remedy.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// `field` is a part of the protocol that this version does not have.
    pub(crate) fn unsupported(field: &str, what: &str) -> Self {
        Self::invalid(format!("{field}: {what} not supported by this version"))
    }

    /// `state` is shown as `details.current_state`.
    pub(crate) fn with_state(self, state: Value) -> Self {
        Self { state: Some(Box::new(state)), ..self }
    }

    pub(crate) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The same words whether `id` never existed or belongs to somebody else.
    pub(crate) fn not_found(what: &str, id: &str) -> Self {
        // A path can hold anything; only what could be an id is repeated.
        let shown = id.len() <= 64 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let message = if shown {
            format!("{what} `{id}` was not found")
        } else {
            format!("{what} was not found")
        };
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// A part that a resource does not have.
    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    pub(crate) fn unknown_route() -> Self {
        Self::missing("there is no such route")
    }

    pub(crate) fn wrong_method() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid_request_error",
            "this route does not take this method",
        )
    }

    pub(crate) fn unauthenticated() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "authentication_error",
            "the API key is missing or not valid; send it as `Authorization: Bearer KEY` or as \
             `x-api-key: KEY`",
        )
    }

    /// A conflict that the same request meets again, so official clients are told not to repeat it.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::CONFLICT, "conflict_error", message);
        Self { should_retry: Some(false), ..error }
    }

    /// The key is a good one, and not for this.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// What the request takes for granted is not so (any more).
    pub(crate) fn precondition(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, "invalid_request_error", message)
    }

    pub(crate) fn body_too_large() -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            format!("the request body is longer than the limit of {BODY_BYTES_MAX} bytes"),
        )
    }

    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    pub(crate) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "api_error",
            "the server met an error of its own; its log has the details under this request_id",
        )
    }

    pub(crate) fn unavailable() -> Self {
        let error = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "api_error",
            "a store or queue behind the API is out of reach; try again",
        );
        Self { retry_after_s: Some(RETRY_AFTER_S), ..error }
    }

    /// The standard envelope.
    pub(crate) fn body(&self, request_id: &str) -> Value {
        let mut error = json!({"type": self.kind, "message": self.message});
        if let Some(code) = self.code {
            error["details"] = json!({"error_code": code});
            if let Some(state) = &self.state {
                error["details"]["current_state"] = state.as_ref().clone();
            }
        }
        json!({"type": "error", "error": error, "request_id": request_id})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<RuntimeError> for ApiError {
    fn from(error: RuntimeError) -> Self {
        if let RuntimeError::NotFound { session } = &error {
            return Self::not_found("session", session);
        }
        let answer = match error.retry() {
            Retry::Later => Self::unavailable(),
            Retry::Never => Self::internal(),
        };
        tracing::error!(error = &error as &dyn std::error::Error, "a request failed");
        answer
    }
}

impl From<IngressError> for ApiError {
    fn from(error: IngressError) -> Self {
        match error {
            IngressError::Ended { .. } => Self::invalid(error.to_string()),
            IngressError::Running { session } => Self::conflict(format!(
                "session {session} is running; send user.interrupt and wait for \
                 session.status_idle first"
            )),
            IngressError::UnknownCall { index, .. } => {
                Self::invalid(format!("events[{index}].tool_use_id: {NO_CALL}"))
            }
            IngressError::NotSelfHosted { index, .. } => Self::invalid(format!(
                "events[{index}].type: user.tool_result is for sessions in self_hosted \
                 environments; the calls of this one are run by the deployment"
            )),
            IngressError::Full { .. } => {
                let error =
                    Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", error.to_string());
                Self { retry_after_s: Some(RETRY_AFTER_S), ..error }
            }
            IngressError::Runtime(error) => error.into(),
        }
    }
}

impl From<WorkError> for ApiError {
    fn from(error: WorkError) -> Self {
        match error {
            WorkError::NotFound { id } => Self::not_found("work item", &id),
            WorkError::Refused { item, source } => {
                Self::conflict(format!("work item {}: {source}", item.id))
            }
            WorkError::Runtime(error) => error.into(),
        }
    }
}

impl From<DocumentsError> for ApiError {
    fn from(error: DocumentsError) -> Self {
        let answer = match error {
            // Callers handle the conflicts they expect; what is left is a race lost too often.
            DocumentsError::Conflict { .. } | DocumentsError::Unavailable { .. } => {
                Self::unavailable()
            }
            DocumentsError::Refused { .. } => Self::internal(),
        };
        tracing::error!(error = &error as &dyn std::error::Error, "a request failed");
        answer
    }
}

impl From<BlobsError> for ApiError {
    fn from(error: BlobsError) -> Self {
        let answer = match error {
            BlobsError::Unavailable { .. } => Self::unavailable(),
            BlobsError::Missing { .. }
            | BlobsError::Corrupt { .. }
            | BlobsError::Refused { .. } => Self::internal(),
        };
        tracing::error!(error = &error as &dyn std::error::Error, "a request failed");
        answer
    }
}
