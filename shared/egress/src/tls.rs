//! Both ends of TLS: the sandbox's, with certificates of an authority that only this sandbox trusts, and
//! the origin's, with Mozilla's roots.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
};
use time::{Duration, OffsetDateTime};

use crate::{authority::Host, error::EgressError};

/// Hosts whose certificates are kept; beyond that they are made anew.
const LEAVES_MAX: usize = 256;
/// Longer than any sandbox lives, and within what clients accept (825 days).
const LIFE: Duration = Duration::days(365);

pub(crate) struct Tls {
    issuer: Issuer<'static, KeyPair>,
    ca_pem: String,
    /// One key for all hosts: they are all this process.
    leaf_key: KeyPair,
    leaves: Mutex<BTreeMap<Host, Arc<ServerConfig>>>,
    client: Arc<ClientConfig>,
    provider: Arc<CryptoProvider>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// A new authority, whose key never leaves this process.
    pub(crate) fn new(extra_roots: &[CertificateDer<'static>]) -> Result<Self, EgressError> {
        let authority = |source| EgressError::Authority { source };
        let provider = Arc::new(ring::default_provider());
        let key = KeyPair::generate().map_err(authority)?;
        let mut params = dated(CertificateParams::default());
        params.distinguished_name = named("Tailstep sandbox egress");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_pem = params.self_signed(&key).map_err(authority)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            ca_pem,
            leaf_key: KeyPair::generate().map_err(authority)?,
            leaves: Mutex::default(),
            client: Arc::new(client(&provider, extra_roots)?),
            provider,
        })
    }

    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    /// The sandbox's end of TLS for `host`.
    pub(crate) fn server(&self, host: &Host) -> Result<Arc<ServerConfig>, EgressError> {
        let leaves = || self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = leaves().get(host) {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(self.make(host)?);
        let mut leaves = leaves();
        if leaves.len() >= LEAVES_MAX {
            leaves.clear();
        }
        leaves.insert(host.clone(), Arc::clone(&made));
        Ok(made)
    }

    fn make(&self, host: &Host) -> Result<ServerConfig, EgressError> {
        let authority = |source| EgressError::Authority { source };
        let subject = match host {
            Host::Name(name) => name.clone(),
            Host::Ip(ip) => ip.to_string(),
        };
        let mut params = dated(CertificateParams::new([subject]).map_err(authority)?);
        // A common name has at most 64 characters; the alternative name is the one that counts.
        params.distinguished_name = named("tailstep egress");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // Strict clients (Python from 3.13) want it.
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&self.leaf_key, &self.issuer).map_err(authority)?;
        let key = PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der());
        let tls = |source| EgressError::Tls { source };
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(tls)?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.into()], key.into())
            .map_err(tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn client(
    provider: &Arc<CryptoProvider>,
    extra_roots: &[CertificateDer<'static>],
) -> Result<ClientConfig, EgressError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for root in extra_roots {
        roots.add(root.clone()).map_err(|source| EgressError::Root { source })?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(|source| EgressError::Tls { source })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn dated(mut params: CertificateParams) -> CertificateParams {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::days(1);
    params.not_after = now + LIFE;
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// Mozilla's roots, for programs inside that take one file of roots instead of one more root.
pub(crate) fn public_roots_pem() -> String {
    let mut text = String::new();
    for root in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let spelt = STANDARD.encode(root);
        for (at, character) in spelt.chars().enumerate() {
            if at > 0 && at % 64 == 0 {
                text.push('\n');
            }
            text.push(character);
        }
        text.push_str("\n-----END CERTIFICATE-----\n");
    }
    text
}
