//! The network of an environment: as the API spells it, as it is kept, and as hands get it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tailstep_core::{
    egress::{EgressRule, EgressSecret, Networking},
    limits::egress::RULES_MAX,
};

use crate::{HandsFeatures, error::ApiError, fields::Fields};

const PATH: &str = "config.networking";

/// What was asked for, in its own words, so that it is shown as it was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Network {
    /// What an environment has that says nothing.
    #[default]
    Unrestricted,
    Limited {
        #[serde(default)]
        allowed_hosts: Vec<String>,
        #[serde(default)]
        allow_package_managers: bool,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        x_rules: Vec<EgressRule>,
    },
}

impl Network {
    pub(crate) fn is_unrestricted(&self) -> bool {
        *self == Self::Unrestricted
    }

    pub(super) fn allows_package_managers(&self) -> bool {
        match self {
            Self::Unrestricted => true,
            Self::Limited { allow_package_managers, .. } => *allow_package_managers,
        }
    }

    /// # Errors
    /// What is wrong with the value, or that the deployment's hands cannot hold limits.
    pub(super) fn read(value: Value, hands: HandsFeatures) -> Result<Self, ApiError> {
        let mut fields = Fields::of(value, PATH)?;
        match fields.required_text("type")?.as_str() {
            "unrestricted" => {
                fields.finish()?;
                Ok(Self::Unrestricted)
            }
            "limited" if hands.networking => limited(fields),
            "limited" => Err(ApiError::unsupported(&format!("{PATH}.type"), "limited is")),
            _ => Err(fields.error("type", "must be unrestricted or limited")),
        }
    }

    pub(super) fn shown(&self) -> Value {
        match self {
            Self::Unrestricted => json!({"type": "unrestricted"}),
            Self::Limited { allowed_hosts, allow_package_managers, x_rules } => {
                let mut shown = json!({
                    "type": "limited",
                    "allowed_hosts": allowed_hosts,
                    "allow_mcp_servers": false,
                    "allow_package_managers": allow_package_managers,
                });
                if !x_rules.is_empty() {
                    shown["x_rules"] = x_rules.iter().map(shown_rule).collect();
                }
                shown
            }
        }
    }

    /// As a session keeps it.
    pub(crate) fn rules(&self) -> Networking {
        match self {
            Self::Unrestricted => Networking::Unrestricted,
            Self::Limited { allowed_hosts, allow_package_managers, x_rules } => {
                // They were checked when they were taken; one that does not read any more allows
                // nothing.
                let hosts = allowed_hosts.iter().filter_map(|host| host_rule(host).ok());
                let rules = hosts.chain(x_rules.iter().cloned()).collect();
                Networking::Limited { rules, package_managers: *allow_package_managers }
            }
        }
    }
}

fn limited(mut fields: Fields) -> Result<Network, ApiError> {
    let mut allowed_hosts = Vec::new();
    for (at, host) in fields.list("allowed_hosts")?.unwrap_or_default().into_iter().enumerate() {
        let wrong =
            |why: &str| Err(ApiError::invalid(format!("{PATH}.allowed_hosts[{at}]: {why}")));
        let Value::String(host) = host else { return wrong("must be a string") };
        if let Err(why) = host_rule(&host) {
            return wrong(&why);
        }
        allowed_hosts.push(host);
    }
    if fields.flag("allow_mcp_servers")? == Some(true) {
        let field = format!("{PATH}.allow_mcp_servers");
        return Err(ApiError::unsupported(&field, "MCP servers are"));
    }
    let allow_package_managers = fields.flag("allow_package_managers")?.unwrap_or(false);
    let mut x_rules = Vec::new();
    for (at, rule) in fields.list("x_rules")?.unwrap_or_default().into_iter().enumerate() {
        x_rules.push(rule_of(Fields::of(rule, format!("{PATH}.x_rules[{at}]"))?)?);
    }
    fields.finish()?;
    let count = allowed_hosts.len() + x_rules.len();
    if count > RULES_MAX {
        return Err(ApiError::invalid(format!(
            "{PATH}: has {count} hosts and rules, at most {RULES_MAX} are allowed"
        )));
    }
    Ok(Network::Limited { allowed_hosts, allow_package_managers, x_rules })
}

/// `host`, `host:port` or `*.host`, in any case.
fn host_rule(host: &str) -> Result<EgressRule, String> {
    let lower = host.to_ascii_lowercase();
    let (name, ports) = match lower.split_once(':') {
        Some((name, port)) if !port.contains(':') => {
            let port = port.parse().ok().filter(|port| *port > 0);
            (name, vec![port.ok_or("must have a port from 1 to 65535 behind its colon")?])
        }
        Some(_) | None => (lower.as_str(), Vec::new()),
    };
    let rule = EgressRule { ports, ..EgressRule::for_host(name) };
    rule.check().map_err(|fault| fault.why)?;
    Ok(rule)
}

fn rule_of(mut fields: Fields) -> Result<EgressRule, ApiError> {
    let host = fields.required_text("host")?;
    let mut ports = Vec::new();
    for port in fields.list("ports")?.unwrap_or_default() {
        let port = port.as_u64().and_then(|port| u16::try_from(port).ok());
        ports.push(port.ok_or_else(|| fields.error("ports", "must be numbers from 1 to 65535"))?);
    }
    let methods = texts(&mut fields, "methods")?;
    let paths = texts(&mut fields, "paths")?;
    let mut secrets = Vec::new();
    for (at, secret) in fields.list("secrets")?.unwrap_or_default().into_iter().enumerate() {
        let mut secret = Fields::of(secret, format!("{}[{at}]", fields.name("secrets")))?;
        secrets.push(EgressSecret {
            variable: secret.required_text("variable")?,
            secret: secret.required_text("secret")?,
        });
        secret.finish()?;
    }
    let rule = EgressRule { host, ports, methods, paths, secrets };
    rule.check().map_err(|fault| fields.error(&fault.field, &fault.why))?;
    fields.finish()?;
    Ok(rule)
}

fn texts(fields: &mut Fields, field: &'static str) -> Result<Vec<String>, ApiError> {
    let mut texts = Vec::new();
    for text in fields.list(field)?.unwrap_or_default() {
        match text {
            Value::String(text) => texts.push(text),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => {
                return Err(fields.error(field, "must be strings"));
            }
        }
    }
    Ok(texts)
}

fn shown_rule(rule: &EgressRule) -> Value {
    let EgressRule { host, ports, methods, paths, secrets } = rule;
    let secrets: Vec<Value> = secrets
        .iter()
        .map(|EgressSecret { variable, secret }| json!({"variable": variable, "secret": secret}))
        .collect();
    json!({"host": host, "ports": ports, "methods": methods, "paths": paths, "secrets": secrets})
}
