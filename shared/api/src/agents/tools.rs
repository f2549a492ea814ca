//! The JSON of an agent's tool list, in both directions.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tailstep_core::{agent::ToolEntry, limits::input::TOOL_ENTRIES_MAX, toolset};

use crate::{error::ApiError, fields::Fields};

/// Tools of the toolset that this version lacks. An agent may say that it does not want them.
const LACKING: [&str; 2] = ["web_fetch", "web_search"];

/// Settings of the tools that this version lacks.
const LACKING_SETTINGS: [&str; 5] =
    ["allowed_domains", "blocked_domains", "max_content_tokens", "url_sources", "user_location"];

/// Reads `tools`.
pub(super) fn read(entries: Vec<Value>) -> Result<Vec<ToolEntry>, ApiError> {
    if entries.len() > TOOL_ENTRIES_MAX {
        return Err(ApiError::invalid(format!(
            "tools: has {} entries, at most {TOOL_ENTRIES_MAX} are allowed",
            entries.len()
        )));
    }
    let mut tools = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        let entry = self::entry(Fields::of(entry, format!("tools[{index}]"))?)?;
        if !tools.is_empty() {
            return Err(ApiError::invalid(format!(
                "tools[{index}]: the toolset is listed already; merge the two entries"
            )));
        }
        tools.push(entry);
    }
    Ok(tools)
}

fn entry(mut fields: Fields) -> Result<ToolEntry, ApiError> {
    let name = fields.name("type");
    match fields.required_text("type")?.as_str() {
        toolset::NAME => {}
        "custom" => return Err(ApiError::unsupported(&name, "custom tools are")),
        "mcp_toolset" => return Err(ApiError::unsupported(&name, "MCP toolsets are")),
        _ => {
            return Err(fields.error("type", &format!("unknown tool type; use {}", toolset::NAME)));
        }
    }
    let mut default_enabled = true;
    if let Some(default) = fields.take("default_config") {
        let mut default = Fields::of(default, fields.name("default_config"))?;
        default_enabled = default.flag("enabled")?.unwrap_or(true);
        policy(&mut default)?;
        default.finish()?;
    }
    let mut enabled = BTreeMap::new();
    let path = fields.name("configs");
    for (index, config) in fields.list("configs")?.unwrap_or_default().into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (name, on) = config_of(Fields::of(config, path.as_str())?)?;
        if enabled.insert(name, on).is_some() {
            return Err(ApiError::invalid(format!("{path}.name: the tool is listed already")));
        }
    }
    fields.finish()?;
    Ok(ToolEntry::Toolset { default_enabled, enabled })
}

fn config_of(mut fields: Fields) -> Result<(String, bool), ApiError> {
    let name = fields.required_text("name")?;
    let lacking = LACKING.contains(&name.as_str());
    if !lacking && !toolset::names().any(|known| known == name) {
        let known: Vec<&str> = toolset::names().collect();
        return Err(fields.error("name", &format!("unknown tool; known: {}", known.join(", "))));
    }
    if fields.text("type")?.is_some_and(|kind| kind != name) {
        return Err(fields.error("type", "must equal name"));
    }
    let on = fields.flag("enabled")?.unwrap_or(true);
    if lacking && on {
        return Err(ApiError::unsupported(&fields.name("name"), &format!("{name} is")));
    }
    policy(&mut fields)?;
    for setting in LACKING_SETTINGS {
        fields.unsupported(setting, "this setting is")?;
    }
    fields.finish()?;
    Ok((name, on))
}

/// Every tool may be used without asking; another policy must not be ignored.
fn policy(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(policy) = fields.take("permission_policy") else { return Ok(()) };
    let mut policy = Fields::of(policy, fields.name("permission_policy"))?;
    let name = policy.name("type");
    match policy.required_text("type")?.as_str() {
        "always_allow" => policy.finish(),
        kind @ ("always_ask" | "auto") => Err(ApiError::unsupported(&name, &format!("{kind} is"))),
        _ => Err(policy.error("type", "must be always_allow")),
    }
}

/// `tools` with every default filled in.
pub(super) fn shown(tools: &[ToolEntry]) -> Vec<Value> {
    let allow = json!({"type": "always_allow"});
    let entry = |entry: &ToolEntry| match entry {
        ToolEntry::Toolset { default_enabled, enabled } => {
            let config = |name: &str| {
                let enabled = enabled.get(name)?;
                Some(json!({
                    "name": name,
                    "type": name,
                    "enabled": enabled,
                    "permission_policy": allow,
                }))
            };
            let configs: Vec<Value> = toolset::names().chain(LACKING).filter_map(config).collect();
            json!({
                "type": toolset::NAME,
                "default_config": {"enabled": default_enabled, "permission_policy": allow},
                "configs": configs,
            })
        }
    };
    tools.iter().map(entry).collect()
}
