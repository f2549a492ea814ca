//! Skills as agents name them, and the concrete versions that they get.

use serde_json::Value;
use tailstep_core::agent::SkillSpec;

use super::versions;
use crate::{Api, auth::Caller, error::ApiError, fields::Fields};

/// The protocol's own limit: each is told to the model.
const SKILLS_MAX: usize = 20;

/// One entry of an agent's `skills`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wish {
    skill_id: String,
    version: Option<String>,
}

/// Reads `skills`.
pub(crate) fn read(entries: Vec<Value>) -> Result<Vec<Wish>, ApiError> {
    if entries.len() > SKILLS_MAX {
        let count = entries.len();
        let what = format!("skills: has {count} entries, at most {SKILLS_MAX} are allowed");
        return Err(ApiError::invalid(what));
    }
    let entries = entries.into_iter().enumerate();
    entries.map(|(index, entry)| wish(Fields::of(entry, format!("skills[{index}]"))?)).collect()
}

fn wish(mut fields: Fields) -> Result<Wish, ApiError> {
    match fields.required_text("type")?.as_str() {
        "custom" => {}
        "anthropic" => {
            return Err(ApiError::unsupported(&fields.name("type"), "Anthropic's own skills are"));
        }
        _ => return Err(fields.error("type", "must be custom")),
    }
    let skill_id = fields.required_text("skill_id")?;
    let version = fields.text("version")?.filter(|version| !version.is_empty());
    fields.finish()?;
    Ok(Wish { skill_id, version })
}

/// The versions as they are now: the agent keeps them whatever becomes of the skills.
pub(crate) async fn resolve(
    api: &Api,
    caller: &Caller,
    wishes: Vec<Wish>,
) -> Result<Vec<SkillSpec>, ApiError> {
    let mut found: Vec<SkillSpec> = Vec::new();
    for (index, Wish { skill_id, version }) in wishes.into_iter().enumerate() {
        if super::get(api, caller, &skill_id).await?.is_none() {
            let what = format!("skills[{index}].skill_id: there is no such skill");
            return Err(ApiError::invalid(what));
        }
        let wanted = version.as_deref().unwrap_or("latest");
        let stored = versions::find(api, caller, &skill_id, wanted).await?.ok_or_else(|| {
            ApiError::invalid(format!("skills[{index}].version: the skill has no such version"))
        })?;
        let versions::Version { name, description, manifest, .. } = stored.value;
        if found.iter().any(|other| other.name == name) {
            return Err(ApiError::invalid(format!(
                "skills[{index}]: another entry has the same name `{name}`; leave one out"
            )));
        }
        found.push(SkillSpec { skill_id, version: stored.id, name, description, manifest });
    }
    Ok(found)
}
