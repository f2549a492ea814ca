//! The model, whichever provider it is behind.

use async_trait::async_trait;
use tailstep_core::model::{ModelAnswer, ModelFailure, ModelRequest};

#[async_trait]
pub trait Model: Send + Sync {
    /// One call, tried once: waiting and trying again belong to the loop. An answer is returned only
    /// when the provider's protocol said that it is complete. Dropping the future ends the call.
    async fn call(&self, request: &ModelRequest) -> Result<ModelAnswer, ModelFailure>;

    /// Whether `model` names a provider that is configured here; the error says what to do.
    fn check(&self, model: &str) -> Result<(), String>;
}
