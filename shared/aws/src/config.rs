//! Names of the stack's resources, from the environment that the template sets.

use thiserror::Error;

/// Everything that a function may need to know. Parts are absent where the template gives a
/// function no right to them.
#[derive(Debug, Clone)]
pub struct Config {
    pub store: StoreConfig,
    pub wake: WakeConfig,
    model_keys_arn: Option<String>,
    sandbox_function: Option<String>,
    api_key_sha256: Option<String>,
}

#[derive(Debug, Clone)]
pub struct StoreConfig {
    pub log_table: String,
    pub config_table: String,
    pub blobs_bucket: String,
}

#[derive(Debug, Clone)]
pub struct WakeConfig {
    pub queue_url: String,
    pub queue_arn: String,
    /// The EventBridge Scheduler group for wake-ups that SQS cannot delay long enough.
    pub schedule_group: String,
    /// The role that a schedule uses to write to the queue.
    pub schedule_role_arn: String,
}

#[derive(Debug, Clone)]
pub struct HandsConfig {
    /// Name or ARN of the sandbox function.
    pub function: String,
    /// What an invocation may take beyond its tool's own limit: a cold start, unpacking and packing.
    pub overhead_ms: u64,
}

impl HandsConfig {
    pub fn new(function: impl Into<String>) -> Self {
        Self { function: function.into(), overhead_ms: 30_000 }
    }
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error(
        "environment variable {name} is not set; template.yaml sets it on each function that needs it"
    )]
    Missing { name: &'static str },
}

impl Config {
    /// Reads the `TAILSTEP_…` variables that `template.yaml` sets.
    ///
    /// # Errors
    /// [`ConfigError::Missing`] names the first compulsory variable that is not set or empty.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Same, from any source of variables.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let find = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let need = |name: &'static str| find(name).ok_or(ConfigError::Missing { name });
        Ok(Self {
            store: StoreConfig {
                log_table: need("TAILSTEP_LOG_TABLE")?,
                config_table: need("TAILSTEP_CONFIG_TABLE")?,
                blobs_bucket: need("TAILSTEP_BLOBS_BUCKET")?,
            },
            wake: WakeConfig {
                queue_url: need("TAILSTEP_QUEUE_URL")?,
                queue_arn: need("TAILSTEP_QUEUE_ARN")?,
                schedule_group: need("TAILSTEP_SCHEDULE_GROUP")?,
                schedule_role_arn: need("TAILSTEP_SCHEDULE_ROLE_ARN")?,
            },
            model_keys_arn: find("TAILSTEP_MODEL_KEYS_ARN"),
            sandbox_function: find("TAILSTEP_SANDBOX_FUNCTION"),
            api_key_sha256: find("TAILSTEP_API_KEY_SHA256"),
        })
    }

    /// SHA-256, in hexadecimal, of the key that the deployment was given; only the API function has it.
    pub fn api_key_sha256(&self) -> Option<&str> {
        self.api_key_sha256.as_deref()
    }

    /// The secret that holds the model keys; only the step function has it.
    ///
    /// # Errors
    /// [`ConfigError::Missing`].
    pub fn model_keys_arn(&self) -> Result<&str, ConfigError> {
        let missing = ConfigError::Missing { name: "TAILSTEP_MODEL_KEYS_ARN" };
        self.model_keys_arn.as_deref().ok_or(missing)
    }

    /// The function that runs tools; only the step function has it.
    ///
    /// # Errors
    /// [`ConfigError::Missing`].
    pub fn hands(&self) -> Result<HandsConfig, ConfigError> {
        let missing = ConfigError::Missing { name: "TAILSTEP_SANDBOX_FUNCTION" };
        self.sandbox_function.as_deref().map(HandsConfig::new).ok_or(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_variable_is_named_and_an_empty_one_counts_as_missing() {
        let all = |name: &str| Some(format!("value of {name}"));
        assert!(Config::from_lookup(all).is_ok());
        let without = |gone: &'static str| {
            Config::from_lookup(move |name| {
                Some(if name == gone { String::new() } else { "x".into() })
            })
        };
        assert_eq!(
            without("TAILSTEP_QUEUE_ARN").unwrap_err(),
            ConfigError::Missing { name: "TAILSTEP_QUEUE_ARN" }
        );
        let without = without("TAILSTEP_SANDBOX_FUNCTION").unwrap();
        assert!(without.hands().is_err() && without.model_keys_arn().is_ok());
    }
}
