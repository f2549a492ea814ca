//! Secrets by name. Values never reach logs, transcripts, sandboxes or error texts.

use async_trait::async_trait;
use thiserror::Error;

#[async_trait]
pub trait Secrets: Send + Sync {
    /// The value of secret `name` (`anthropic_api_key`, for example), or `None` when it is not set.
    /// May be cached.
    async fn get(&self, name: &str) -> Result<Option<String>, SecretsError>;

    /// Forgets a cached value, after a provider refused it.
    async fn refresh(&self, name: &str);
}

#[derive(Debug, Error)]
pub enum SecretsError {
    #[error("secret store is unavailable: {what}")]
    Unavailable { what: String },
    #[error("secret store refuses: {what}")]
    Refused { what: String },
}
