//! Model keys: one JSON object in one Secrets Manager secret, so that a cold start fetches them with
//! one call. Kept for five minutes; never logged.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use aws_sdk_secretsmanager::Client;
use tailstep_runtime::ports::{Secrets, SecretsError};

use crate::trouble::{from_trouble, sort};

/// A changed key is noticed after this at the latest, and at once when a provider refuses the old.
const FRESH: Duration = Duration::from_secs(300);

from_trouble!(SecretsError);

pub struct SecretsManager {
    client: Client,
    secret_arn: String,
    cached: Mutex<Option<(Instant, BTreeMap<String, String>)>>,
}

impl SecretsManager {
    pub fn new(client: Client, secret_arn: impl Into<String>) -> Self {
        Self { client, secret_arn: secret_arn.into(), cached: Mutex::new(None) }
    }

    fn cached(&self, name: &str) -> Option<Option<String>> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let (read_at, values) = cached.as_ref()?;
        (read_at.elapsed() < FRESH).then(|| values.get(name).cloned())
    }
}

#[async_trait]
impl Secrets for SecretsManager {
    async fn get(&self, name: &str) -> Result<Option<String>, SecretsError> {
        if let Some(value) = self.cached(name) {
            return Ok(value);
        }
        let answer = self
            .client
            .get_secret_value()
            .secret_id(&self.secret_arn)
            .send()
            .await
            .map_err(|error| sort("read model keys", &error))?;
        let values = parse(answer.secret_string().unwrap_or_default())?;
        let value = values.get(name).cloned();
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), values));
        Ok(value)
    }

    async fn refresh(&self, _name: &str) {
        // All keys came with one call, so they go together.
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Reads the secret. The error says where it is wrong and shows none of it.
fn parse(text: &str) -> Result<BTreeMap<String, String>, SecretsError> {
    let values: BTreeMap<String, String> =
        serde_json::from_str(text).map_err(|error| SecretsError::Refused {
            what: format!(
                "model keys are not a JSON object of texts (line {}, column {}); \
                 put {{\"anthropic_api_key\": \"…\"}} into the secret",
                error.line(),
                error.column()
            ),
        })?;
    // An empty value is how a template leaves a key to be filled in.
    Ok(values.into_iter().filter(|(_, value)| !value.is_empty()).collect())
}

impl fmt::Debug for SecretsManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretsManager")
            .field("secret_arn", &self.secret_arn)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_secret_is_refused_without_showing_it() {
        assert_eq!(
            parse(r#"{"a":"1","b":""}"#).unwrap(),
            BTreeMap::from([("a".into(), "1".into())])
        );
        for bad in ["sk-hidden", r#"{"a": sk-hidden}"#, r#"{"a": {"sk-hidden": 1}}"#] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.contains("line 1") && !error.contains("hidden"), "{error}");
        }
    }
}
