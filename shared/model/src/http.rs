//! The one HTTP client: a POST, its head, its body piece by piece, each within its time.
//!
//! Knows no provider. HTTP/1.1 over hyper, which the AWS SDK brings anyway.

use std::{error::Error, path::PathBuf, sync::OnceLock, time::Duration};

use ::http::{HeaderMap, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{config::Config, tls};

/// Idle connections are dropped before load balancers do it (the shortest in use is 20 s), so that a
/// request is not written to a connection that is closing.
const POOL_IDLE_MS: u64 = 15_000;
/// Longest answer, in bytes, all its overhead included.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest body of an error that is read.
const COMPLAINT_BYTES_MAX: usize = 64 * 1024;
/// How long the end of a body may take once its content is complete. Reading it to the end lets the
/// connection be used again.
const DRAIN_MS: u64 = 50;

type Connector = HttpsConnector<HttpConnector>;

/// Built at its first use, so that a process that never calls a provider pays nothing for it.
pub(crate) struct Http {
    client: OnceLock<Client<Connector, Full<Bytes>>>,
    extra_roots: Option<PathBuf>,
    connect_ms: u64,
    idle_ms: u64,
    call_ms: u64,
}

/// Why an exchange broke off. The texts name no host: they are shown to users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Broken {
    Connect { cause: String },
    Cut { cause: String },
    Idle { idle_ms: u64 },
    Deadline { call_ms: u64 },
    TooLong,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect { cause } => write!(f, "cannot be reached: {cause}"),
            Self::Cut { cause } => write!(f, "broke off: {cause}"),
            Self::Idle { idle_ms } => write!(f, "was silent for {idle_ms} ms"),
            Self::Deadline { call_ms } => write!(f, "was not done within {call_ms} ms"),
            Self::TooLong => write!(f, "sent more than {ANSWER_BYTES_MAX} bytes"),
        }
    }
}

/// The time that one call has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    at: Instant,
    idle_ms: u64,
    call_ms: u64,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

pub(crate) struct Body {
    incoming: Incoming,
    deadline: Deadline,
    read_bytes: usize,
}

impl Http {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            client: OnceLock::new(),
            extra_roots: config.extra_roots.clone(),
            connect_ms: config.connect_ms,
            idle_ms: config.idle_ms,
            call_ms: config.call_ms,
        }
    }

    /// Starts the clock of one call.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline {
            at: Instant::now() + Duration::from_millis(self.call_ms),
            idle_ms: self.idle_ms,
            call_ms: self.call_ms,
        }
    }

    /// Sends `request` once, and waits for the answer's head. The pool sends again by itself only
    /// what was never written to a connection.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        deadline: Deadline,
    ) -> Result<Answer, Broken> {
        let client = self.client.get_or_init(|| self.connect());
        let answer = deadline.within(client.request(request)).await?.map_err(|error| {
            let cause = cause(&error);
            if error.is_connect() { Broken::Connect { cause } } else { Broken::Cut { cause } }
        })?;
        let (head, incoming) = answer.into_parts();
        let body = Body { incoming, deadline, read_bytes: 0 };
        Ok(Answer { status: head.status, headers: head.headers, body })
    }

    fn connect(&self) -> Client<Connector, Full<Bytes>> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(Duration::from_millis(self.connect_ms)));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(self.tls())
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_millis(POOL_IDLE_MS))
            .build(https)
    }

    /// Trusts Mozilla's roots as compiled in (reading and parsing the system's costs milliseconds of
    /// every cold start, and a bare container has none), and beside them the file of
    /// `SSL_CERT_FILE`, for model servers behind a private CA.
    fn tls(&self) -> ClientConfig {
        tls::install();
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        if let Some(path) = &self.extra_roots {
            match CertificateDer::pem_file_iter(path) {
                Ok(found) => {
                    let (added, left_out) = roots.add_parsable_certificates(found.flatten());
                    tracing::debug!(added, left_out, "certificates of SSL_CERT_FILE");
                }
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "SSL_CERT_FILE is not used");
                }
            }
        }
        ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
    }
}

impl Deadline {
    /// Waits for `work`, but not past the deadline, nor through a longer silence than is allowed.
    async fn within<T>(self, work: impl Future<Output = T>) -> Result<T, Broken> {
        let quiet = Instant::now() + Duration::from_millis(self.idle_ms);
        let limit = quiet.min(self.at);
        timeout_at(limit, work).await.map_err(|_| {
            if limit == self.at {
                Broken::Deadline { call_ms: self.call_ms }
            } else {
                Broken::Idle { idle_ms: self.idle_ms }
            }
        })
    }
}

impl Body {
    /// The next piece; `None` at the orderly end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        loop {
            let Some(frame) = self.deadline.within(self.incoming.frame()).await? else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| Broken::Cut { cause: cause(&error) })?;
            // Trailers say nothing that is wanted here.
            let Ok(data) = frame.into_data() else { continue };
            self.read_bytes = self.read_bytes.saturating_add(data.len());
            if self.read_bytes > ANSWER_BYTES_MAX {
                return Err(Broken::TooLong);
            }
            return Ok(Some(data));
        }
    }

    /// The beginning of an error's body, as far as it comes.
    pub(crate) async fn complaint(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Ok(Some(piece)) = self.next().await {
            all.extend_from_slice(&piece);
            if all.len() > COMPLAINT_BYTES_MAX {
                all.truncate(COMPLAINT_BYTES_MAX);
                break;
            }
        }
        all
    }

    /// Reads what is left of a body whose content is complete.
    pub(crate) async fn drain(mut self) {
        let rest = async { while let Ok(Some(_)) = self.next().await {} };
        // Whether the end came only decides if the connection is used again.
        let _ = timeout(Duration::from_millis(DRAIN_MS), rest).await;
    }
}

/// The innermost cause, in lower case and without the system's number for it.
fn cause(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = innermost.to_string().to_lowercase();
    match text.split_once(" (os error") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}
