//! Secrets from the environment, or from `<data>/secrets.json`, a JSON object of names and texts
//! that only its owner may read. The environment wins.

use std::{
    collections::BTreeMap,
    env, fmt, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use tailstep_runtime::ports::{Secrets, SecretsError};

use crate::error::{LocalError, io_error};

/// Values are never shown: its `Debug` gives the file only.
pub struct LocalSecrets {
    file: PathBuf,
    stored: Mutex<BTreeMap<String, String>>,
}

impl LocalSecrets {
    /// Reads `<data_dir>/secrets.json` if there is one.
    ///
    /// # Errors
    /// [`LocalError::SecretsExposed`] when others may read the file,
    /// [`LocalError::SecretsMalformed`] when it is not an object of texts.
    pub fn open(data_dir: &Path) -> Result<Self, LocalError> {
        let file = data_dir.join("secrets.json");
        let stored = Mutex::new(read(&file)?);
        Ok(Self { file, stored })
    }
}

#[async_trait]
impl Secrets for LocalSecrets {
    async fn get(&self, name: &str) -> Result<Option<String>, SecretsError> {
        // `anthropic_api_key` is ANTHROPIC_API_KEY. An empty variable is one that is not set.
        let variable = env::var(name.to_ascii_uppercase()).ok().filter(|value| !value.is_empty());
        if variable.is_some() {
            return Ok(variable);
        }
        Ok(self.stored.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned())
    }

    /// Reads the file again: the key may have been changed meanwhile.
    async fn refresh(&self, _name: &str) {
        match read(&self.file) {
            Ok(stored) => *self.stored.lock().unwrap_or_else(PoisonError::into_inner) = stored,
            Err(error) => tracing::warn!(%error, "secrets are kept as they were"),
        }
    }
}

impl fmt::Debug for LocalSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSecrets").field("file", &self.file).finish_non_exhaustive()
    }
}

fn read(file: &Path) -> Result<BTreeMap<String, String>, LocalError> {
    let metadata = match fs::metadata(file) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(io_error("read", file)(error)),
    };
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(LocalError::SecretsExposed { file: file.to_owned() });
    }
    let text = fs::read(file).map_err(io_error("read", file))?;
    // The parser's own message could show a piece of a value.
    serde_json::from_slice(&text).map_err(|error| LocalError::SecretsMalformed {
        file: file.to_owned(),
        what: format!("line {}, column {}", error.line(), error.column()),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    fn with_file(text: &str, mode: u32) -> (tempfile::TempDir, Result<LocalSecrets, LocalError>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secrets.json");
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let secrets = LocalSecrets::open(dir.path());
        (dir, secrets)
    }

    #[tokio::test]
    async fn a_private_file_is_read_and_read_again() {
        let (dir, secrets) = with_file(r#"{"test_only_key": "one"}"#, 0o600);
        let secrets = secrets.unwrap();
        assert_eq!(secrets.get("test_only_key").await.unwrap().as_deref(), Some("one"));
        assert_eq!(secrets.get("test_other_key").await.unwrap(), None);
        fs::write(dir.path().join("secrets.json"), r#"{"test_only_key": "two"}"#).unwrap();
        secrets.refresh("test_only_key").await;
        assert_eq!(secrets.get("test_only_key").await.unwrap().as_deref(), Some("two"));
        assert!(!format!("{secrets:?}").contains("two"));
    }

    #[tokio::test]
    async fn the_environment_wins() {
        // PATH is set wherever tests run.
        let (_dir, secrets) = with_file(r#"{"path": "from the file"}"#, 0o600);
        let value = secrets.unwrap().get("path").await.unwrap();
        assert_eq!(value, env::var("PATH").ok());
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let (_dir, secrets) = with_file("{}", 0o644);
        let error = secrets.unwrap_err().to_string();
        assert!(error.contains("chmod 600") && error.contains("secrets.json"), "{error}");
    }

    #[test]
    fn a_malformed_file_is_refused_without_showing_it() {
        let (_dir, secrets) = with_file(r#"{"a": ["sk-hidden"]}"#, 0o600);
        let error = secrets.unwrap_err().to_string();
        assert!(error.contains("line 1") && !error.contains("sk-hidden"), "{error}");
    }
}
