//! [`Secrets`] in memory.

use std::{collections::BTreeMap, fmt, sync::Mutex};

use async_trait::async_trait;

use super::lock;
use crate::ports::{Secrets, SecretsError};

/// Values are never shown: its `Debug` gives the names only.
#[derive(Default)]
pub struct MemorySecrets {
    values: Mutex<BTreeMap<String, String>>,
}

impl MemorySecrets {
    pub fn set(&self, name: impl Into<String>, value: impl Into<String>) {
        lock(&self.values).insert(name.into(), value.into());
    }
}

#[async_trait]
impl Secrets for MemorySecrets {
    async fn get(&self, name: &str) -> Result<Option<String>, SecretsError> {
        Ok(lock(&self.values).get(name).cloned())
    }

    async fn refresh(&self, _name: &str) {}
}

impl fmt::Debug for MemorySecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(lock(&self.values).keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_names_and_no_values() {
        let secrets = MemorySecrets::default();
        secrets.set("anthropic_api_key", "sk-hidden");
        let shown = format!("{secrets:?}");
        assert!(shown.contains("anthropic_api_key") && !shown.contains("sk-hidden"), "{shown}");
    }
}
