//! What a session is made of: the agent and the environment, as they were when it was created.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{egress::Networking, ids::BlobRef};

/// An agent's definition at one version. A session keeps its own copy, so later versions, deploys
/// and roll-backs do not change a running session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSpec {
    pub id: String,
    pub version: u64,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub model: ModelSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    #[serde(default)]
    pub tools: Vec<ToolEntry>,
    /// In the order in which the model is told of them; no two have the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SkillSpec>,
}

/// A skill at one version: a directory of instructions and files that the sandbox sees, read-only,
/// below [`SKILLS_DIRECTORY`](crate::files::SKILLS_DIRECTORY).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillSpec {
    pub skill_id: String,
    pub version: String,
    /// The directory's name: lower-case letters, digits and `-`.
    pub name: String,
    /// One line that says when to use it.
    pub description: String,
    /// The [`Manifest`](crate::files::Manifest) of its files.
    pub manifest: BlobRef,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The prefix chooses the provider: `openai/…`, `scripted/…`; bare ids are Anthropic's.
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
}

/// One entry of an agent's tool list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolEntry {
    /// The built-in toolset; tools without an entry of their own follow `default_enabled`.
    Toolset { default_enabled: bool, enabled: BTreeMap<String, bool> },
}

/// Where a session's tools run, and what they may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentSpec {
    pub id: String,
    #[serde(default, skip_serializing_if = "EnvironmentKind::is_cloud")]
    pub kind: EnvironmentKind,
    #[serde(default, skip_serializing_if = "Networking::is_none")]
    pub networking: Networking,
    #[serde(default, skip_serializing_if = "Packages::is_empty")]
    pub packages: Packages,
}

impl EnvironmentSpec {
    /// Sandboxes of the deployment's own, without a network and without further packages.
    pub fn cloud(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            kind: EnvironmentKind::Cloud,
            networking: Networking::None,
            packages: Packages::default(),
        }
    }
}

/// Whose hands run the tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentKind {
    /// The deployment's.
    #[default]
    Cloud,
    /// Somebody else's: workers that fetch work over the API.
    SelfHosted,
}

impl EnvironmentKind {
    fn is_cloud(&self) -> bool {
        *self == Self::Cloud
    }
}

/// What is installed before the first call, by the package manager that installs it. A package is
/// spelt as its manager takes it, a version included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Packages {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub apt: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cargo: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gem: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub go: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub npm: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pip: Vec<String>,
}

impl Packages {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
