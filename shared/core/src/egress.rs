//! What a sandbox may reach over the network, and what was decided about what it tried. Deny is the
//! default: nothing here means no network at all.

mod rule;

use serde::{Deserialize, Serialize};

pub use self::rule::{RuleFault, is_below, normal_name, path_fault};
use crate::ids::UnixMs;

/// The ports of a rule that names none.
pub const WEB_PORTS: [u16; 2] = [80, 443];

/// What `package_managers` opens, on the ports of the web: the public registries of pip, npm, cargo,
/// gem, go and apt, and nothing that also serves other people's pages.
pub const REGISTRY_HOSTS: &[&str] = &[
    "pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "crates.io",
    "index.crates.io",
    "static.crates.io",
    "rubygems.org",
    "*.rubygems.org",
    "proxy.golang.org",
    "sum.golang.org",
    "deb.debian.org",
    "security.debian.org",
    "archive.ubuntu.com",
    "security.ubuntu.com",
    "ports.ubuntu.com",
];

/// The network of an environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Networking {
    /// No way out.
    #[default]
    None,
    /// Any public address, on the ports of the web. Private, loopback, link-local and metadata
    /// addresses stay closed.
    Unrestricted,
    /// What a rule allows, and nothing else.
    Limited {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        rules: Vec<EgressRule>,
        /// Also the public registries of the package managers.
        #[serde(default)]
        package_managers: bool,
    },
}

impl Networking {
    /// True when there is no way out.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Allows requests to one host, or to all hosts below a name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRule {
    /// A lower-case name; `*.example.com` means every name below `example.com`, not itself.
    pub host: String,
    /// Empty for the ports of the web (80 and 443).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// Upper-case; empty for every method. With methods or paths the broker reads the requests, TLS
    /// included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Beginnings of paths, at whole segments; empty for every path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Secrets that requests to this host may carry: inside there are placeholders only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<EgressSecret>,
}

/// A secret that the broker puts in, outside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressSecret {
    /// The environment variable that holds the placeholder inside.
    pub variable: String,
    /// The secret's name among those that the deployment gives to sandboxes, which are none of its own
    /// keys: whoever may make an environment may name any of them. Its value never stands in a log.
    pub secret: String,
}

/// One decision of the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressDecision {
    pub at_ms: UnixMs,
    pub allowed: bool,
    /// As asked for, cut at 255 characters.
    pub host: String,
    pub port: u16,
    /// Where the broker read the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Without its query; cut at 255 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The rule that allowed it, or the reason of the refusal.
    pub why: String,
}
