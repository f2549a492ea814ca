//! Which agent runs: the file's, or a plain one, and which model it has.

use std::{fs, path::Path};

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};

use crate::home::Home;

/// What is used when only a key for Anthropic is there: the middle of their range.
const ANTHROPIC_MODEL: &str = "claude-sonnet-5-5";

/// As much as the API stores of an agent.
const FILE_BYTES_MAX: u64 = 300_000;

const SYSTEM: &str = "You work on your own on the files in /workspace, which is your current \
    directory, in a sandbox without network access. Look before you change anything, check your \
    work by running it, and finish with a short summary of what you did.";

/// The fields of the agent to create.
///
/// # Errors
/// One line that says what to do: no model, no key for it, no such file.
pub(super) async fn fields(
    file: Option<&Path>,
    model: Option<&str>,
    home: &Home,
) -> anyhow::Result<Value> {
    let mut fields = match file {
        Some(file) => read(file)?,
        None => json!({
            "name": "run",
            "system": SYSTEM,
            "tools": [{ "type": "agent_toolset_20260401" }],
        }),
    };
    let id = match (model, &fields["model"]) {
        (Some(model), _) => {
            fields["model"] = Value::from(model);
            model.to_owned()
        }
        (None, Value::Null) => {
            let model = default_model(home).await?;
            fields["model"] = Value::from(model.as_str());
            model
        }
        (None, Value::String(model)) => model.clone(),
        (None, other) => other["id"].as_str().unwrap_or_default().to_owned(),
    };
    home.check_model(&id).await?;
    Ok(fields)
}

fn read(file: &Path) -> anyhow::Result<Value> {
    let cannot = || format!("cannot read {}", file.display());
    let state = fs::metadata(file).with_context(cannot)?;
    if !state.is_file() || state.len() > FILE_BYTES_MAX {
        bail!("{} must be a file of at most {FILE_BYTES_MAX} bytes", file.display());
    }
    let text = fs::read_to_string(file).with_context(cannot)?;
    let fields: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", file.display()))?;
    if !fields.is_object() {
        bail!("{} does not hold a JSON object with an agent's fields", file.display());
    }
    Ok(fields)
}

async fn default_model(home: &Home) -> anyhow::Result<String> {
    if let Some(model) = std::env::var("TAILSTEP_MODEL").ok().filter(|model| !model.is_empty()) {
        return Ok(model);
    }
    if home.has_anthropic_key().await? {
        return Ok(ANTHROPIC_MODEL.to_owned());
    }
    Err(anyhow!(
        "no model is chosen: set ANTHROPIC_API_KEY, or set TAILSTEP_OPENAI_BASE_URL and give \
         --model openai/NAME, or try --model scripted/echo"
    ))
}
