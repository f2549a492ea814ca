//! What a session is made of: the agent and the environment, as they were when it was created.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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

/// Where a session's tools run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentSpec {
    pub id: String,
}
