//! The HTTP client: JSON calls and event streams, each with its own credential.

use std::{error::Error, path::Path, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use tokio::time::timeout;

use crate::{events::Events, key::Key};

/// One call, its answer included. A poll waits for a second on purpose.
const CALL_MS: u64 = 60_000;
const CONNECT_MS: u64 = 10_000;
/// Idle connections are dropped before load balancers do it.
const POOL_IDLE_MS: u64 = 15_000;
/// Longest answer: a page of events has about 4.5 MB.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A server, reached over HTTP or HTTPS.
pub struct Client {
    pool: Pool<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    worker_id: String,
}

#[derive(Debug, Error)]
pub enum ClientError {
    #[error("base URL `{url}` is not one; give it as http://HOST:PORT or https://HOST")]
    BaseUrl { url: String },
    #[error("cannot use the certificates in {path}: {what}")]
    Roots { path: String, what: String },
}

/// Why a call came to nothing. No text holds a credential.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    #[error("the server cannot be reached: {what}")]
    Unreachable { what: String },
    #[error("the server answered {status}: {message}")]
    Status { status: u16, message: String },
    #[error("the server's answer cannot be read: {what}")]
    Malformed { what: String },
}

impl CallError {
    /// The same call may work later.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => *status >= 500 || matches!(status, 408 | 409 | 429),
            Self::Malformed { .. } => false,
        }
    }

    pub(crate) fn is_status(&self, expected: u16) -> bool {
        matches!(self, Self::Status { status, .. } if *status == expected)
    }
}

impl Client {
    /// `base_url` may have a path. `extra_roots` is a PEM file of certificates to trust beside the
    /// public ones. `worker_id` names this worker in the server's statistics.
    ///
    /// # Errors
    /// When either cannot be used.
    pub fn new(
        base_url: &str,
        extra_roots: Option<&Path>,
        worker_id: String,
    ) -> Result<Self, ClientError> {
        let wrong = || ClientError::BaseUrl { url: base_url.to_owned() };
        let uri: Uri = base_url.parse().map_err(|_| wrong())?;
        let scheme = uri.scheme_str().is_some_and(|scheme| scheme == "http" || scheme == "https");
        if !scheme || uri.host().is_none() || uri.query().is_some() {
            return Err(wrong());
        }
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(Duration::from_millis(CONNECT_MS)));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls(extra_roots)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_millis(POOL_IDLE_MS))
            .build(https);
        Ok(Self { pool, base: base_url.trim_end_matches('/').to_owned(), worker_id })
    }

    /// A JSON answer.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        key: &Key,
        body: Option<&Value>,
    ) -> Result<T, CallError> {
        let work = async {
            let answer = self.send(method, path, key, body).await?;
            let bytes = whole(answer).await?;
            serde_json::from_slice(&bytes)
                .map_err(|error| CallError::Malformed { what: error.to_string() })
        };
        within(work).await
    }

    /// Bytes.
    pub(crate) async fn bytes(&self, path: &str, key: &Key) -> Result<Bytes, CallError> {
        within(async { whole(self.send(Method::GET, path, key, None).await?).await }).await
    }

    /// An event stream; its headers have come when this returns.
    pub(crate) async fn events(&self, path: &str, key: &Key) -> Result<Events, CallError> {
        within(self.send(Method::GET, path, key, None)).await.map(Events::new)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        key: &Key,
        body: Option<&Value>,
    ) -> Result<Incoming, CallError> {
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::AUTHORIZATION, format!("Bearer {}", key.text()))
            .header(header::CONTENT_TYPE, "application/json")
            .header("anthropic-version", "2023-06-01")
            .header("anthropic-beta", "managed-agents-2026-04-01")
            .header("anthropic-worker-id", &self.worker_id)
            .body(Full::new(bytes))
            // A credential that is no header value is the likely cause, and is not repeated.
            .map_err(|_| CallError::Malformed { what: "the request has no valid form".into() })?;
        let answer = self.pool.request(request).await;
        let answer = answer.map_err(|error| CallError::Unreachable { what: innermost(&error) })?;
        let status = answer.status();
        if status == StatusCode::OK {
            return Ok(answer.into_body());
        }
        let envelope: Value =
            serde_json::from_slice(&whole(answer.into_body()).await?).unwrap_or_default();
        let message = envelope["error"]["message"].as_str().unwrap_or("no message");
        let message = message.chars().filter(|c| !c.is_control()).take(500).collect();
        Err(CallError::Status { status: status.as_u16(), message })
    }
}

async fn within<T>(work: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
    let late = || CallError::Unreachable { what: format!("no answer within {CALL_MS} ms") };
    timeout(Duration::from_millis(CALL_MS), work).await.map_err(|_| late())?
}

async fn whole(body: Incoming) -> Result<Bytes, CallError> {
    let collected = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    collected
        .map(|body| body.to_bytes())
        .map_err(|error| CallError::Unreachable { what: innermost(error.as_ref()) })
}

fn tls(extra_roots: Option<&Path>) -> Result<ClientConfig, ClientError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = extra_roots {
        let wrong = |what: String| ClientError::Roots { path: path.display().to_string(), what };
        let found = CertificateDer::pem_file_iter(path).map_err(|e| wrong(e.to_string()))?;
        let (added, _) = roots.add_parsable_certificates(found.flatten());
        if added == 0 {
            return Err(wrong("it holds none".to_owned()));
        }
    }
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(|error| ClientError::Roots { path: String::new(), what: error.to_string() })?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn innermost(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string().to_lowercase()
}
