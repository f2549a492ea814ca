//! What is allowed, and by which rule.

use std::{collections::BTreeMap, net::IpAddr};

use tailstep_core::egress::{
    EgressRule, Networking, REGISTRY_HOSTS, WEB_PORTS, is_below, path_fault,
};

use crate::{authority::Host, error::EgressError, refusal::Refusal, secret::Secret};

/// Compiled from an environment's networking, with the values of its secrets. Its default allows
/// nothing.
///
/// Rules add up: a request is allowed when any rule allows it, and it may carry the secrets of the
/// rules that allow it.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    scope: Scope,
}

#[derive(Debug, Clone, Default)]
enum Scope {
    #[default]
    Nothing,
    AnyPublic,
    Rules(Vec<Rule>),
}

#[derive(Debug, Clone)]
struct Rule {
    pattern: Pattern,
    /// As decisions name it.
    name: String,
    ports: Vec<u16>,
    methods: Vec<String>,
    paths: Vec<String>,
    secrets: Vec<RuleSecret>,
}

#[derive(Debug, Clone)]
enum Pattern {
    Name(String),
    /// With its leading dot: `.example.com`.
    Below(String),
    Ip(IpAddr),
}

/// A secret that a rule names.
#[derive(Debug, Clone)]
pub(crate) struct RuleSecret {
    pub(crate) variable: String,
    pub(crate) value: Secret,
}

/// How a `CONNECT` is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// Bytes are passed on; the broker sees the beginning of the TLS greeting only.
    Blind { by: String },
    /// The broker is the other end of TLS, and reads each request.
    Read,
}

/// A request that is allowed.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) by: String,
    /// True when it is allowed for its method or its path, so that headers which change what a server
    /// takes for them must not pass.
    pub(crate) narrowed: bool,
    /// What it may carry.
    pub(crate) secrets: Vec<RuleSecret>,
    /// True when any rule gives this host a secret: then its answers are searched.
    pub(crate) searched: bool,
}

/// A request as rules see it; `path` is without its query.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) host: &'a Host,
    pub(crate) port: u16,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
}

impl Policy {
    /// No way out.
    pub fn deny_all() -> Self {
        Self::default()
    }

    /// Compiles `networking`; `secrets` holds the values by the names that its rules use. Rules come
    /// from whoever may make an environment, so `secrets` must hold what these may use and nothing
    /// else: none of the deployment's own keys.
    ///
    /// # Errors
    /// A rule that makes no sense, a secret that is missing, or one that cannot be sent.
    pub fn new(
        networking: &Networking,
        secrets: &BTreeMap<String, Secret>,
    ) -> Result<Self, EgressError> {
        let (rules, package_managers) = match networking {
            Networking::None => return Ok(Self::deny_all()),
            Networking::Unrestricted => return Ok(Self { scope: Scope::AnyPublic }),
            Networking::Limited { rules, package_managers } => (rules, *package_managers),
        };
        let mut compiled = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            rule.check().map_err(|fault| EgressError::Rule {
                at,
                host: rule.host.clone(),
                field: fault.field,
                why: fault.why,
            })?;
            compiled.push(Rule::compile(rule, secrets)?);
        }
        if package_managers {
            for host in REGISTRY_HOSTS {
                let rule = Rule::compile(&EgressRule::for_host(*host), secrets)?;
                compiled.push(Rule { name: format!("package registry {host}"), ..rule });
            }
        }
        Ok(Self { scope: Scope::Rules(compiled) })
    }

    pub(crate) fn tunnel(&self, host: &Host, port: u16) -> Result<Way, Refusal> {
        let rules = match &self.scope {
            Scope::Nothing => return Err(no_network(host)),
            Scope::AnyPublic => {
                web_port(port)?;
                return Ok(Way::Blind { by: ANY_PUBLIC.to_owned() });
            }
            Scope::Rules(rules) => at_port(rules, host, port)?,
        };
        let open = rules.iter().find(|rule| rule.is_open());
        match open {
            Some(rule) if rules.iter().all(|rule| rule.secrets.is_empty()) => {
                Ok(Way::Blind { by: rule.name.clone() })
            }
            Some(_) | None => Ok(Way::Read),
        }
    }

    pub(crate) fn request(&self, asked: &Asked<'_>) -> Result<Grant, Refusal> {
        let Asked { host, port, method, path } = *asked;
        let rules = match &self.scope {
            Scope::Nothing => return Err(no_network(host)),
            Scope::AnyPublic => {
                web_port(port)?;
                return Ok(Grant {
                    by: ANY_PUBLIC.to_owned(),
                    narrowed: false,
                    secrets: Vec::new(),
                    searched: false,
                });
            }
            Scope::Rules(rules) => at_port(rules, host, port)?,
        };
        let fault = path_fault(path);
        let allowing: Vec<&Rule> = rules
            .iter()
            .copied()
            .filter(|rule| rule.allows_method(method) && rule.allows_path(path, fault))
            .collect();
        let open = allowing.iter().find(|rule| rule.is_open());
        let Some(by) = open.or(allowing.first()) else {
            return Err(refused_request(&rules, asked, fault));
        };
        Ok(Grant {
            by: by.name.clone(),
            narrowed: !(by.methods.is_empty() && by.paths.is_empty()),
            secrets: allowing.iter().flat_map(|rule| rule.secrets.iter().cloned()).collect(),
            searched: rules.iter().any(|rule| !rule.secrets.is_empty()),
        })
    }

    /// Whether any rule makes the broker the other end of TLS.
    pub(crate) fn reads_requests(&self) -> bool {
        self.rules().iter().any(|rule| !rule.is_open() || !rule.secrets.is_empty())
    }

    pub(crate) fn secrets(&self) -> impl Iterator<Item = &RuleSecret> {
        self.rules().iter().flat_map(|rule| rule.secrets.iter())
    }

    fn rules(&self) -> &[Rule] {
        match &self.scope {
            Scope::Nothing | Scope::AnyPublic => &[],
            Scope::Rules(rules) => rules,
        }
    }
}

const ANY_PUBLIC: &str = "unrestricted networking";

fn no_network(host: &Host) -> Refusal {
    Refusal::policy(format!("{host} cannot be reached, this environment has no network"))
}

fn web_port(port: u16) -> Result<(), Refusal> {
    if WEB_PORTS.contains(&port) {
        return Ok(());
    }
    Err(Refusal::policy(format!(
        "port {port} is not open in this environment, only 80 and 443 are"
    )))
}

/// The rules for this host and port.
fn at_port<'a>(rules: &'a [Rule], host: &Host, port: u16) -> Result<Vec<&'a Rule>, Refusal> {
    let named: Vec<&Rule> = rules.iter().filter(|rule| rule.pattern.matches(host)).collect();
    if named.is_empty() {
        return Err(Refusal::policy(format!(
            "{host} is not on the allow-list of this environment"
        )));
    }
    let found: Vec<&Rule> =
        named.iter().copied().filter(|rule| rule.ports.contains(&port)).collect();
    if found.is_empty() {
        let mut ports: Vec<u16> = named.iter().flat_map(|rule| rule.ports.clone()).collect();
        ports.sort_unstable();
        ports.dedup();
        let open: Vec<String> = ports.iter().map(u16::to_string).collect();
        let open = open.join(", ");
        return Err(Refusal::policy(format!(
            "port {port} of {host} is not on the allow-list of this environment, allowed: {open}"
        )));
    }
    Ok(found)
}

fn refused_request(rules: &[&Rule], asked: &Asked<'_>, fault: Option<&str>) -> Refusal {
    let Asked { host, method, path, .. } = asked;
    if !rules.iter().any(|rule| rule.allows_method(method)) {
        return Refusal::policy(format!(
            "the method {method} for {host} is not on the allow-list of this environment"
        ));
    }
    match fault {
        Some(fault) => Refusal::policy(format!(
            "the path for {host} {fault}, so it cannot be compared with the allow-list of this \
             environment"
        )),
        None => Refusal::policy(format!(
            "{method} {path} at {host} is not on the allow-list of this environment"
        )),
    }
}

impl Rule {
    fn compile(rule: &EgressRule, secrets: &BTreeMap<String, Secret>) -> Result<Self, EgressError> {
        let EgressRule { host, ports, methods, paths, secrets: wanted } = rule;
        let pattern = match (host.parse::<IpAddr>(), host.strip_prefix('*')) {
            (Ok(ip), _) => Pattern::Ip(ip),
            (Err(_), Some(below)) => Pattern::Below(below.to_owned()),
            (Err(_), None) => Pattern::Name(host.clone()),
        };
        let mut found = Vec::new();
        for wanted in wanted {
            let value = secrets.get(&wanted.secret).ok_or_else(|| EgressError::SecretMissing {
                secret: wanted.secret.clone(),
                variable: wanted.variable.clone(),
                host: host.clone(),
            })?;
            if !value.is_for(host) {
                let (secret, host) = (wanted.secret.clone(), host.clone());
                return Err(EgressError::SecretBound { secret, host });
            }
            let value = value.checked(&wanted.secret)?;
            found.push(RuleSecret { variable: wanted.variable.clone(), value });
        }
        Ok(Self {
            pattern,
            name: format!("rule {host}"),
            ports: if ports.is_empty() { WEB_PORTS.to_vec() } else { ports.clone() },
            methods: methods.clone(),
            paths: paths.clone(),
            secrets: found,
        })
    }

    /// Whether it allows every method and path.
    fn is_open(&self) -> bool {
        self.methods.is_empty() && self.paths.is_empty()
    }

    fn allows_method(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|allowed| allowed == method)
    }

    fn allows_path(&self, path: &str, fault: Option<&str>) -> bool {
        self.paths.is_empty()
            || (fault.is_none() && self.paths.iter().any(|allowed| is_below(path, allowed)))
    }
}

impl Pattern {
    fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Name(name), Host::Name(asked)) => name == asked,
            (Self::Below(below), Host::Name(asked)) => {
                asked.len() > below.len() && asked.ends_with(below.as_str())
            }
            (Self::Ip(ip), Host::Ip(asked)) => ip == asked,
            (Self::Name(_) | Self::Below(_), Host::Ip(_)) | (Self::Ip(_), Host::Name(_)) => false,
        }
    }
}

#[cfg(test)]
#[path = "policy/tests.rs"]
mod tests;
