//! Names of the stack's resources, from the environment that the template sets.

use thiserror::Error;

use crate::microvm::MicroVmConfig;

/// Everything that a function may need to know. Parts are absent where the template gives a
/// function no right to them.
#[derive(Debug, Clone)]
pub struct Config {
    pub store: StoreConfig,
    pub wake: WakeConfig,
    model_keys_arn: Option<String>,
    sandbox_function: Option<String>,
    microvms: Option<MicroVmConfig>,
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

/// What runs the tools of a deployment.
#[derive(Debug, Clone)]
pub enum HandsConfig {
    Lambda(LambdaConfig),
    MicroVm(MicroVmConfig),
}

#[derive(Debug, Clone)]
pub struct LambdaConfig {
    /// Name or ARN of the sandbox function.
    pub function: String,
    /// What an invocation may take beyond its tool's own limit: a cold start, fetching and unpacking
    /// the workspace, packing and putting it.
    pub overhead_ms: u64,
}

impl LambdaConfig {
    pub fn new(function: impl Into<String>) -> Self {
        Self { function: function.into(), overhead_ms: 60_000 }
    }
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error(
        "environment variable {name} is not set; template.yaml sets it on each function that needs it"
    )]
    Missing { name: &'static str },
    #[error("environment variable {name} is \"{value}\"; set it to one of: {known}")]
    Unknown { name: &'static str, value: String, known: &'static str },
}

impl Config {
    /// Reads the `TAILSTEP_…` variables that `template.yaml` sets.
    ///
    /// # Errors
    /// [`ConfigError::Missing`] names the first compulsory variable that is not set or empty,
    /// [`ConfigError::Unknown`] the one whose value means nothing.
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
            microvms: microvms(find)?,
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

    /// What runs the tools, for the step function.
    ///
    /// # Errors
    /// [`ConfigError::Missing`].
    pub fn hands(&self) -> Result<HandsConfig, ConfigError> {
        if let Some(microvms) = self.microvms() {
            return Ok(HandsConfig::MicroVm(microvms.clone()));
        }
        let missing = ConfigError::Missing { name: "TAILSTEP_SANDBOX_FUNCTION" };
        let function = self.sandbox_function.as_deref().ok_or(missing)?;
        Ok(HandsConfig::Lambda(LambdaConfig::new(function)))
    }

    /// The machines that sessions may have, where tools run in microVMs. Whoever runs no tools may
    /// still have to end them.
    pub fn microvms(&self) -> Option<&MicroVmConfig> {
        self.microvms.as_ref()
    }
}

/// How machines are made, where the deployment's hands are microVMs.
fn microvms(find: impl Fn(&str) -> Option<String>) -> Result<Option<MicroVmConfig>, ConfigError> {
    const NAME: &str = "TAILSTEP_HANDS";
    match find(NAME).as_deref() {
        None | Some("lambda") => return Ok(None),
        Some("microvm") => {}
        Some(other) => {
            let (value, known) = (other.to_owned(), "lambda, microvm");
            return Err(ConfigError::Unknown { name: NAME, value, known });
        }
    }
    let need = |name: &'static str| find(name).ok_or(ConfigError::Missing { name });
    // ARNs, with commas between. Never none: a machine without connectors is open on both sides.
    let arns = |name: &'static str| {
        let text = need(name)?;
        let arns = text.split(',').map(str::trim).filter(|arn| !arn.is_empty());
        let arns: Vec<String> = arns.map(str::to_owned).collect();
        if arns.is_empty() { Err(ConfigError::Missing { name }) } else { Ok(arns) }
    };
    Ok(Some(MicroVmConfig::new(
        need("TAILSTEP_MICROVM_IMAGE")?,
        arns("TAILSTEP_MICROVM_INGRESS")?,
        arns("TAILSTEP_MICROVM_EGRESS")?,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration in which each variable has the value `x`, but for those in `set`.
    fn config(set: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_lookup(|name| {
            let value = set.iter().find(|(named, _)| *named == name).map(|(_, value)| *value);
            let value = value.or_else(|| (name != "TAILSTEP_HANDS").then_some("x"));
            value.map(str::to_owned)
        })
    }

    #[test]
    fn a_missing_variable_is_named_and_an_empty_one_counts_as_missing() {
        assert!(config(&[]).is_ok());
        let missing = |name| config(&[(name, "")]).unwrap_err();
        let name = "TAILSTEP_QUEUE_ARN";
        assert_eq!(missing(name), ConfigError::Missing { name });
        let without = config(&[("TAILSTEP_SANDBOX_FUNCTION", "")]).unwrap();
        assert!(without.hands().is_err() && without.model_keys_arn().is_ok());
    }

    #[test]
    fn hands_are_a_function_unless_microvms_are_asked_for() {
        for asked in [&[][..], &[("TAILSTEP_HANDS", "")], &[("TAILSTEP_HANDS", "lambda")]] {
            let config = config(asked).unwrap();
            assert!(config.microvms().is_none());
            match config.hands().unwrap() {
                HandsConfig::Lambda(LambdaConfig { function, .. }) => assert_eq!(function, "x"),
                HandsConfig::MicroVm(_) => panic!("{asked:?} means microVMs"),
            }
        }
        let asked = [("TAILSTEP_HANDS", "microvm"), ("TAILSTEP_MICROVM_EGRESS", " arn:a,arn:b,")];
        let HandsConfig::MicroVm(microvms) = config(&asked).unwrap().hands().unwrap() else {
            panic!("{asked:?} means a function");
        };
        assert_eq!((microvms.image.as_str(), microvms.ingress), ("x", vec!["x".to_owned()]));
        assert_eq!(microvms.egress, ["arn:a", "arn:b"]);
    }

    #[test]
    fn unknown_hands_are_refused_and_so_are_microvms_that_lack_something() {
        let error = config(&[("TAILSTEP_HANDS", "firecracker")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "environment variable TAILSTEP_HANDS is \"firecracker\"; set it to one of: lambda, microvm"
        );
        for (name, nothing) in [
            ("TAILSTEP_MICROVM_IMAGE", ""),
            ("TAILSTEP_MICROVM_INGRESS", ""),
            ("TAILSTEP_MICROVM_EGRESS", ""),
            ("TAILSTEP_MICROVM_EGRESS", " ,"),
        ] {
            let error = config(&[("TAILSTEP_HANDS", "microvm"), (name, nothing)]).unwrap_err();
            assert_eq!(error, ConfigError::Missing { name });
        }
    }
}
