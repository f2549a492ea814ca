//! A broker's settings.

use std::{fmt, sync::Arc};

use rustls::pki_types::CertificateDer;
use tailstep_core::limits::egress as limits;

use crate::{
    address::Net,
    resolve::{Resolver, System},
};

/// Limits are per broker, that is per sandbox. The defaults stand in `tailstep_core::limits::egress`.
#[derive(Clone)]
pub struct Config {
    pub connections_max: usize,
    /// One way over one connection.
    pub connection_bytes_max: u64,
    /// Both ways over all connections.
    pub total_bytes_max: u64,
    pub rate_bytes_per_s: u64,
    pub head_ms: u64,
    pub idle_ms: u64,
    pub connect_ms: u64,
    pub decisions_max: usize,
    /// Addresses that may be reached although they are not public. Only these take secrets over
    /// plain HTTP.
    pub allow_private: Vec<Net>,
    /// Roots that are trusted beside Mozilla's.
    pub extra_roots: Vec<CertificateDer<'static>>,
    pub resolver: Arc<dyn Resolver>,
    /// Where the sandbox finds the broker.
    pub proxy_url: String,
    /// Where, inside, the caller puts [`crate::Broker::ca_bundle_pem`].
    pub ca_file: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connections_max: limits::CONNECTIONS_MAX,
            connection_bytes_max: limits::CONNECTION_BYTES_MAX,
            total_bytes_max: limits::TOTAL_BYTES_MAX,
            rate_bytes_per_s: limits::RATE_BYTES_PER_S,
            head_ms: limits::HEAD_MS,
            idle_ms: limits::IDLE_MS,
            connect_ms: limits::CONNECT_MS,
            decisions_max: limits::DECISIONS_MAX,
            allow_private: Vec::new(),
            extra_roots: Vec::new(),
            resolver: Arc::new(System),
            proxy_url: "http://127.0.0.1:3128".to_owned(),
            ca_file: "/run/tailstep/ca.pem".to_owned(),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("connections_max", &self.connections_max)
            .field("allow_private", &self.allow_private)
            .field("proxy_url", &self.proxy_url)
            .finish_non_exhaustive()
    }
}
