//! This crate's settings, and the only place in it that reads the environment.

use std::path::PathBuf;

use ::http::Uri;
use thiserror::Error;

/// Where the public Anthropic API is.
const ANTHROPIC_BASE_URL: &str = "https://api.anthropic.com";
/// A provider that has not even accepted a connection after this long is not going to.
const CONNECT_MS: u64 = 10_000;
/// Anthropic sends a ping every few seconds, but a self-hosted server reads a long prompt in silence.
const IDLE_MS: u64 = 120_000;
/// `core::limits` allows a model call ten minutes; the step's own deadline usually comes first.
const CALL_MS: u64 = 600_000;

/// How model ids reach their providers. Holds no secret: keys come from the `Secrets` port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Without the `/v1`, as Anthropic's own clients have it.
    pub anthropic_base_url: String,
    /// With the `/v1`, as OpenAI's own clients have it (`http://127.0.0.1:11434/v1`, for example).
    /// Without it, `openai/…` is not available.
    pub openai_base_url: Option<String>,
    /// The folder of `scripted/FILE`. Without it only `scripted/echo` is available.
    pub script_root: Option<PathBuf>,
    /// A test aid, off unless set: these model ids are answered by `scripted/echo`, so that a client
    /// that insists on a real model's id can be run without a key.
    pub scripted_aliases: Vec<String>,
    /// Certificates (PEM) trusted beside the compiled-in roots, for servers with a private CA.
    pub extra_roots: Option<PathBuf>,
    /// Longest time to a connection.
    pub connect_ms: u64,
    /// Longest silence: until the answer's head, and between any two of its bytes.
    pub idle_ms: u64,
    /// Longest call, from the first byte sent to the last one read.
    pub call_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    #[error("{name} is `{value}`; give a whole number of milliseconds above 0")]
    Number { name: &'static str, value: String },
    /// The address itself is not shown: it may hold a password.
    #[error("{name} is not usable: {reason}; give an address like `https://host/v1`")]
    Url { name: &'static str, reason: &'static str },
}

impl Default for Config {
    fn default() -> Self {
        Self {
            anthropic_base_url: ANTHROPIC_BASE_URL.to_owned(),
            openai_base_url: None,
            script_root: None,
            scripted_aliases: Vec::new(),
            extra_roots: None,
            connect_ms: CONNECT_MS,
            idle_ms: IDLE_MS,
            call_ms: CALL_MS,
        }
    }
}

impl Config {
    /// Reads `TAILSTEP_ANTHROPIC_BASE_URL`, `TAILSTEP_OPENAI_BASE_URL`, `TAILSTEP_SCRIPT_ROOT`,
    /// `TAILSTEP_SCRIPTED_MODELS` (ids with commas between), `TAILSTEP_MODEL_CONNECT_MS`,
    /// `TAILSTEP_MODEL_IDLE_MS`, `TAILSTEP_MODEL_CALL_MS` and `SSL_CERT_FILE`. An empty variable is
    /// an absent one.
    ///
    /// # Errors
    /// Names the first variable that cannot be used.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// As [`Self::from_env`], over any source of variables.
    ///
    /// # Errors
    /// Names the first variable that cannot be used.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let get = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let number = |name: &'static str, default: u64| match get(name) {
            None => Ok(default),
            Some(value) => match value.trim().parse::<u64>() {
                Ok(number) if number > 0 => Ok(number),
                Ok(_) | Err(_) => Err(ConfigError::Number { name, value }),
            },
        };
        let config = Self {
            anthropic_base_url: get("TAILSTEP_ANTHROPIC_BASE_URL")
                .unwrap_or_else(|| ANTHROPIC_BASE_URL.to_owned()),
            openai_base_url: get("TAILSTEP_OPENAI_BASE_URL"),
            script_root: get("TAILSTEP_SCRIPT_ROOT").map(PathBuf::from),
            scripted_aliases: get("TAILSTEP_SCRIPTED_MODELS")
                .map(|ids| list(&ids))
                .unwrap_or_default(),
            extra_roots: get("SSL_CERT_FILE").map(PathBuf::from),
            connect_ms: number("TAILSTEP_MODEL_CONNECT_MS", CONNECT_MS)?,
            idle_ms: number("TAILSTEP_MODEL_IDLE_MS", IDLE_MS)?,
            call_ms: number("TAILSTEP_MODEL_CALL_MS", CALL_MS)?,
        };
        config.anthropic_url()?;
        config.openai_url()?;
        Ok(config)
    }

    /// Where messages are posted.
    pub(crate) fn anthropic_url(&self) -> Result<Uri, ConfigError> {
        join("TAILSTEP_ANTHROPIC_BASE_URL", &self.anthropic_base_url, "/v1/messages")
    }

    /// Where chat completions are posted, if anywhere.
    pub(crate) fn openai_url(&self) -> Result<Option<Uri>, ConfigError> {
        let Some(base) = &self.openai_base_url else { return Ok(None) };
        join("TAILSTEP_OPENAI_BASE_URL", base, "/chat/completions").map(Some)
    }
}

fn list(ids: &str) -> Vec<String> {
    ids.split(',').map(str::trim).filter(|id| !id.is_empty()).map(str::to_owned).collect()
}

fn join(name: &'static str, base: &str, path: &str) -> Result<Uri, ConfigError> {
    let fault = |reason| ConfigError::Url { name, reason };
    let base = base.trim();
    if base.contains(['?', '#']) {
        return Err(fault("it has a query or a fragment"));
    }
    let uri: Uri = format!("{}{path}", base.trim_end_matches('/'))
        .parse()
        .map_err(|_| fault("it is not an address"))?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        Some(_) | None => return Err(fault("it does not begin with http:// or https://")),
    }
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        return Err(fault("it holds a user name or password, which belong in the secret store"));
    }
    if uri.host().unwrap_or_default().is_empty() {
        return Err(fault("it names no host"));
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        assert_eq!(read(&[]).unwrap(), Config::default());
        assert_eq!(read(&[("TAILSTEP_OPENAI_BASE_URL", " ")]).unwrap(), Config::default());
    }

    #[test]
    fn variables_are_read() {
        let config = read(&[
            ("TAILSTEP_OPENAI_BASE_URL", "http://127.0.0.1:11434/v1/"),
            ("TAILSTEP_ANTHROPIC_BASE_URL", "http://gateway"),
            ("TAILSTEP_SCRIPTED_MODELS", "claude-haiku-4-5, other,,"),
            ("TAILSTEP_SCRIPT_ROOT", "examples/scripts"),
            ("TAILSTEP_MODEL_IDLE_MS", "5"),
        ])
        .unwrap();
        assert_eq!(
            config.openai_url().unwrap().unwrap(),
            "http://127.0.0.1:11434/v1/chat/completions"
        );
        assert_eq!(config.anthropic_url().unwrap(), "http://gateway/v1/messages");
        assert_eq!(config.scripted_aliases, ["claude-haiku-4-5", "other"]);
        assert_eq!(config.idle_ms, 5);
    }

    #[test]
    fn what_cannot_be_used_is_named_and_passwords_are_not_shown() {
        for (name, value) in [
            ("TAILSTEP_OPENAI_BASE_URL", "localhost:11434/v1"),
            ("TAILSTEP_OPENAI_BASE_URL", "ftp://host/v1"),
            ("TAILSTEP_OPENAI_BASE_URL", "https://me:hunter2@host/v1"),
            ("TAILSTEP_ANTHROPIC_BASE_URL", "https://host/?key=hunter2"),
            ("TAILSTEP_ANTHROPIC_BASE_URL", "https:///v1"),
            ("TAILSTEP_MODEL_CALL_MS", "0"),
            ("TAILSTEP_MODEL_CALL_MS", "10s"),
        ] {
            let error = read(&[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
