//! What can be wrong with a broker's settings. What it refuses while it runs is no error: see
//! [`crate::refusal`].

/// Why a policy or a broker cannot be made. The caller must change what it gave; trying again does not
/// help, except for `Random`.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    #[error("networking rule {at} ({host}): {field} {why}")]
    Rule { at: usize, host: String, field: String, why: String },
    #[error("there is no secret named {secret}, which {variable} needs for {host}")]
    SecretMissing { secret: String, variable: String, host: String },
    #[error("the secret {secret} is bound to other hosts than {host}")]
    SecretBound { secret: String, host: String },
    #[error("the secret {secret} cannot be sent in a header: it {why}")]
    SecretUnusable { secret: String, why: &'static str },
    #[error("{text:?} is not an address, a range or an address with a port")]
    Net { text: String },
    #[error("a root certificate cannot be read")]
    Root { source: rustls::Error },
    #[error("the broker's own certificate authority cannot be made")]
    Authority { source: rcgen::Error },
    #[error("TLS cannot be set up")]
    Tls { source: rustls::Error },
    #[error("the system gave no random bytes: {why}")]
    Random { why: String },
}
