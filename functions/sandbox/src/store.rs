//! Workspaces that are too large for a message: fetched from, and put to, the URLs that an order
//! brings. A URL is the right to one object for one call; no text shows it.

use std::{sync::OnceLock, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tailstep_core::ids::BlobRef;
use tailstep_sandbox::workspace::Caps;
use thiserror::Error;
use tokio::time::{sleep, timeout};

/// What AWS endpoints chain to.
const AMAZON_ROOTS: &[u8] = include_bytes!("../../../shared/aws/src/amazon-roots.pem");
/// Inside a region a connection takes a few milliseconds. Where a network has no way to S3, its
/// packets vanish.
const CONNECT: Duration = Duration::from_secs(3);
/// One transfer with all its attempts. Two of them, unpacking and packing fit into what the step
/// waits for beyond a tool's own time.
const TRANSFER: Duration = Duration::from_secs(20);
/// Longest answer to a put that is read: an error's XML.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Built at its first use: most workspaces travel in the messages.
#[derive(Default)]
pub(crate) struct Store {
    client: OnceLock<Client<HttpsConnector<HttpConnector>, Full<Bytes>>>,
}

#[derive(Debug, Error)]
pub(crate) enum StoreError {
    #[error("{bytes} bytes are more than the {max} that a workspace may have")]
    TooLarge { bytes: u64, max: u64 },
    #[error("the store answers {0}")]
    Refused(StatusCode),
    #[error(
        "the store cannot be reached; a sandbox function in a network of yours needs an S3 gateway \
         endpoint there"
    )]
    Unreached,
    #[error("the transfer broke off")]
    Broken,
    #[error("the transfer was not done within {} s", TRANSFER.as_secs())]
    Slow,
    #[error("what the store holds is not what was stored")]
    Corrupt,
    #[error("the address cannot be used")]
    Address,
}

impl StoreError {
    /// First try included: what may pass is tried again.
    fn attempts_max(&self) -> u32 {
        match self {
            Self::Refused(StatusCode::TOO_MANY_REQUESTS) | Self::Broken => 4,
            Self::Refused(status) if status.is_server_error() => 4,
            // Where there is no way, none opens up within seconds.
            Self::Unreached => 2,
            Self::Refused(_)
            | Self::TooLarge { .. }
            | Self::Slow
            | Self::Corrupt
            | Self::Address => 1,
        }
    }
}

impl Store {
    /// The bytes of `blob`.
    ///
    /// # Errors
    /// [`StoreError`]; whatever may pass has been tried again.
    pub(crate) async fn get(&self, url: &str, blob: &BlobRef) -> Result<Vec<u8>, StoreError> {
        let max = Caps::default().packed_bytes_max;
        if blob.bytes > max {
            return Err(StoreError::TooLarge { bytes: blob.bytes, max });
        }
        let content = self.transfer(Method::GET, url, Bytes::new(), blob.bytes).await?;
        if BlobRef::of(&content) != *blob {
            return Err(StoreError::Corrupt);
        }
        Ok(content.into())
    }

    /// Stores `content`.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) async fn put(&self, url: &str, content: Vec<u8>) -> Result<(), StoreError> {
        self.transfer(Method::PUT, url, content.into(), ANSWER_BYTES_MAX).await.map(drop)
    }

    /// Either way a repeat does no harm.
    async fn transfer(
        &self,
        method: Method,
        url: &str,
        body: Bytes,
        answer_bytes_max: u64,
    ) -> Result<Bytes, StoreError> {
        let all = async {
            let mut attempt = 1;
            loop {
                match self.exchange(&method, url, body.clone(), answer_bytes_max).await {
                    Err(error) if attempt < error.attempts_max() => {
                        sleep(Duration::from_millis(100 << (2 * attempt))).await;
                        attempt += 1;
                    }
                    ended => return ended,
                }
            }
        };
        timeout(TRANSFER, all).await.unwrap_or(Err(StoreError::Slow))
    }

    async fn exchange(
        &self,
        method: &Method,
        url: &str,
        body: Bytes,
        answer_bytes_max: u64,
    ) -> Result<Bytes, StoreError> {
        let request = Request::builder().method(method).uri(url).body(Full::new(body));
        let request = request.map_err(|_| StoreError::Address)?;
        let client = self.client.get_or_init(client);
        let response = client.request(request).await.map_err(|error| {
            if error.is_connect() { StoreError::Unreached } else { StoreError::Broken }
        })?;
        let status = response.status();
        if !status.is_success() {
            return Err(StoreError::Refused(status));
        }
        let max = usize::try_from(answer_bytes_max).unwrap_or(usize::MAX);
        let body = Limited::new(response.into_body(), max).collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|error| {
            let long = error.is::<http_body_util::LengthLimitError>();
            if long { StoreError::Corrupt } else { StoreError::Broken }
        })
    }
}

fn client() -> Client<HttpsConnector<HttpConnector>, Full<Bytes>> {
    // One that is there already serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_slice_iter(AMAZON_ROOTS).filter_map(Result::ok);
    roots.add_parsable_certificates(certificates);
    let mut tcp = HttpConnector::new();
    tcp.set_connect_timeout(Some(CONNECT));
    // Emulators have plain URLs. Which it is, the step says, not a command.
    tcp.enforce_http(false);
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(
            ClientConfig::builder().with_root_certificates(roots).with_no_client_auth(),
        )
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    // An environment is frozen between calls: no connection is worth keeping.
    Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(https)
}
