//! Requests to a machine's daemon, through the provider's endpoint for it.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tailstep_runtime::error::chain;
use tokio::time::timeout;

use crate::clients::AMAZON_ROOTS;

/// On every answer that is the daemon's own.
const MARK: &str = "x-tailstep-guest";

pub(super) struct Endpoint {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// One request.
pub(super) struct Ask<'a> {
    pub(super) endpoint: &'a str,
    pub(super) port: i32,
    /// The provider's token for this machine.
    pub(super) token: &'a str,
    /// The machine's own secret.
    pub(super) secret: &'a str,
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) sha256: Option<&'a str>,
    pub(super) body: Bytes,
    pub(super) answer_bytes_max: usize,
    pub(super) time: Duration,
}

/// What came back, sorted by who said it.
#[derive(Debug)]
pub(super) enum Said {
    /// The daemon.
    Guest(StatusCode, Bytes),
    /// The provider's proxy: the token is not good, or not any more.
    Token,
    /// The provider's proxy, or nobody: the request did not reach the daemon.
    Unreached(String),
    /// It may have reached the daemon, and the answer is not to be had.
    Broken(String),
}

impl Endpoint {
    pub(super) fn new() -> Self {
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_slice_iter(AMAZON_ROOTS).filter_map(Result::ok);
        roots.add_parsable_certificates(certificates);
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map(|builder| builder.with_root_certificates(roots).with_no_client_auth());
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        connector.enforce_http(false);
        let builder = HttpsConnectorBuilder::new();
        let https = match config {
            Ok(config) => builder.with_tls_config(config),
            // Only protocol versions that the provider lacks could fail, and ring has both.
            Err(_) => builder.with_tls_config(
                ClientConfig::builder()
                    .with_root_certificates(RootCertStore::empty())
                    .with_no_client_auth(),
            ),
        };
        let https = https.https_or_http().enable_http1().wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(15))
            .build(https);
        Self { client }
    }

    pub(super) async fn ask(&self, ask: Ask<'_>) -> Said {
        let time = ask.time;
        match timeout(time, self.exchange(ask)).await {
            Ok(said) => said,
            Err(_) => Said::Broken(format!("no answer within {} ms", time.as_millis())),
        }
    }

    async fn exchange(&self, ask: Ask<'_>) -> Said {
        let base = match base(ask.endpoint) {
            Ok(base) => base,
            Err(why) => return Said::Unreached(why),
        };
        let mut request = Request::builder()
            .method(ask.method)
            .uri(format!("{base}{}", ask.path))
            .header("x-aws-proxy-auth", ask.token)
            .header("x-aws-proxy-port", ask.port)
            .header("x-tailstep-secret", ask.secret);
        if let Some(sha256) = ask.sha256 {
            request = request.header("x-tailstep-sha256", sha256);
        }
        let request = match request.body(Full::new(ask.body)) {
            Ok(request) => request,
            Err(error) => return Said::Unreached(format!("request cannot be made: {error}")),
        };
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Said::Unreached(chain(&error)),
            Err(error) => return Said::Broken(chain(&error)),
        };
        let status = response.status();
        let marked = is_marked(response.headers());
        match Limited::new(response.into_body(), ask.answer_bytes_max).collect().await {
            Ok(body) => sort(status, marked, body.to_bytes()),
            Err(error) => Said::Broken(format!("answer {status}: {error}")),
        }
    }
}

fn is_marked(headers: &HeaderMap) -> bool {
    headers.contains_key(MARK)
}

fn sort(status: StatusCode, marked: bool, body: Bytes) -> Said {
    if marked {
        return Said::Guest(status, body);
    }
    match status.as_u16() {
        401 | 403 => Said::Token,
        // No machine, one that is asleep, one that is not up: nobody took the request.
        404 | 409 | 410 | 429 | 503 => Said::Unreached(format!("endpoint answered {status}")),
        _ => Said::Broken(format!("endpoint answered {status}")),
    }
}

/// The endpoint as the beginning of a URL. A token travels to it, so that plain HTTP is for this very
/// machine only, as in tests.
fn base(endpoint: &str) -> Result<String, String> {
    let endpoint = endpoint.trim_end_matches('/');
    if endpoint.starts_with("https://") || endpoint.starts_with("http://127.0.0.1:") {
        Ok(endpoint.to_owned())
    } else if endpoint.contains("://") {
        Err("endpoint of the machine is not https".to_owned())
    } else {
        Ok(format!("https://{endpoint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_travels_over_tls_only() {
        assert_eq!(base("vm-1.example").unwrap(), "https://vm-1.example");
        assert_eq!(base("https://vm-1.example/").unwrap(), "https://vm-1.example");
        assert!(base("http://vm-1.example").is_err());
        assert!(base("http://127.0.0.1.example").is_err());
        assert!(base("http://127.0.0.1:80").is_ok());
    }
}
