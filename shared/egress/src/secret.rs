//! Secrets and their placeholders.

use std::{collections::BTreeMap, fmt};

use tailstep_core::limits::egress::{SECRET_BYTES_MAX, SECRET_BYTES_MIN};

use crate::error::EgressError;

/// A secret's value, and who may get it. It prints as `Secret(…)`, and nothing here writes it anywhere
/// but into a request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Secret {
    value: String,
    /// `None` for every host that a rule names.
    hosts: Option<Vec<String>>,
}

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self { value: value.into(), hosts: None }
    }

    /// Binds the secret to hosts, each `host` or `*.host`. Rules are written by whoever makes an
    /// environment; with this the secret's owner has the last word.
    pub fn bound_to<T: Into<String>>(self, hosts: impl IntoIterator<Item = T>) -> Self {
        let hosts = hosts.into_iter().map(|host| Into::<String>::into(host).to_ascii_lowercase());
        Self { hosts: Some(hosts.collect()), ..self }
    }

    /// Whether a rule for `host` (a name or `*.name`) may use it.
    pub(crate) fn is_for(&self, host: &str) -> bool {
        let covers = |bound: &String| {
            bound == host
                || bound
                    .strip_prefix('*')
                    .is_some_and(|below| host.trim_start_matches('*').ends_with(below))
        };
        self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(covers))
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.value
    }

    /// Files with secrets often end in a line break, which is no part of the secret.
    pub(crate) fn checked(&self, name: &str) -> Result<Self, EgressError> {
        let value = self.value.trim_end_matches(['\r', '\n']);
        let unusable = |why| Err(EgressError::SecretUnusable { secret: name.to_owned(), why });
        if value.len() < SECRET_BYTES_MIN {
            return unusable("is shorter than 8 bytes");
        }
        if value.len() > SECRET_BYTES_MAX {
            return unusable("is longer than 4096 bytes");
        }
        if !value.bytes().all(|b| b.is_ascii_graphic() || b == b' ') || value.trim() != value {
            return unusable("has other characters than printable ASCII, or spaces at its ends");
        }
        Ok(Self::new(value))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self::new(value)
    }
}

/// How every placeholder begins; inside, it says what it is.
pub(crate) const PLACEHOLDER_START: &str = "tailstep-placeholder-";

/// The placeholders of one broker, by variable. They stay the same while policies are replaced, so that
/// what was started earlier goes on working.
#[derive(Debug, Clone, Default)]
pub(crate) struct Placeholders(BTreeMap<String, String>);

impl Placeholders {
    /// The placeholder of `variable`, made at its first use.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub(crate) fn make(&mut self, variable: &str) -> Result<String, EgressError> {
        if let Some(made) = self.0.get(variable) {
            return Ok(made.clone());
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|e| EgressError::Random { why: e.to_string() })?;
        let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let made = format!("{PLACEHOLDER_START}{hex}");
        self.0.insert(variable.to_owned(), made.clone());
        Ok(made)
    }

    pub(crate) fn get(&self, variable: &str) -> Option<&str> {
        self.0.get(variable).map(String::as_str)
    }

    /// Variables and their placeholders.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(variable, placeholder)| (variable.as_str(), placeholder.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_printed() {
        assert_eq!(format!("{:?}", Secret::new("hunter2hunter2")), "Secret(…)");
    }

    #[test]
    fn bound_secrets_go_to_their_hosts_only() {
        let free = Secret::new("0123456789");
        assert!(free.is_for("evil.invalid") && free.is_for("*.invalid"));
        let bound = free.bound_to(["api.test", "*.Example.com"]);
        for host in ["api.test", "a.example.com", "*.example.com", "*.a.example.com"] {
            assert!(bound.is_for(host), "{host}");
        }
        for host in ["evil.invalid", "b.api.test", "*.test", "example.com", "xexample.com", "*.com"]
        {
            assert!(!bound.is_for(host), "{host}");
        }
        assert!(!Secret::new("0123456789").bound_to(Vec::<String>::new()).is_for("api.test"));
    }

    #[test]
    fn values_must_be_fit_for_a_header() {
        assert_eq!(Secret::new("sk-12345678\n").checked("k").unwrap(), Secret::new("sk-12345678"));
        for value in ["", "short", "1234567\n", "12345678\r\nX: y", "1234567\u{e9}", " 12345678"] {
            let error = Secret::new(value).checked("k").unwrap_err().to_string();
            assert!(error.contains("k cannot be sent") && !error.contains("12345"), "{error}");
        }
        assert!(Secret::new("x".repeat(5_000)).checked("k").is_err());
    }

    #[test]
    fn placeholders_are_one_a_variable_and_unguessable() {
        let (mut one, mut other) = (Placeholders::default(), Placeholders::default());
        let made = one.make("TOKEN").unwrap();
        assert_eq!(one.make("TOKEN").unwrap(), made);
        assert_eq!(made.len(), PLACEHOLDER_START.len() + 32);
        assert_ne!(one.make("OTHER").unwrap(), made);
        assert_ne!(other.make("TOKEN").unwrap(), made);
    }
}
