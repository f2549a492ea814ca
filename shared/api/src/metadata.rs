//! Metadata: short texts by name that the API only keeps.

use std::collections::BTreeMap;

use serde_json::Value;
use tailstep_core::limits::input::{
    METADATA_KEY_CHARS_MAX, METADATA_PAIRS_MAX, METADATA_VALUE_CHARS_MAX,
};

use crate::{
    error::ApiError,
    fields::{Fields, check_length, check_name},
};

pub(crate) type Metadata = BTreeMap<String, String>;

/// What an empty value in a patch means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmptyValue {
    Keeps,
    Deletes,
}

/// `old` with the patch `fields.metadata`, if one was sent: null deletes a name, text sets it.
pub(crate) fn patched(
    old: &Metadata,
    fields: &mut Fields,
    empty: EmptyValue,
) -> Result<Metadata, ApiError> {
    let mut all = old.clone();
    let patch = match fields.take("metadata") {
        None => return Ok(all),
        Some(Value::Object(patch)) => patch,
        Some(_) => return Err(fields.error("metadata", "must be an object of strings")),
    };
    let path = fields.name("metadata");
    for (key, value) in patch {
        match value {
            Value::Null => {
                all.remove(&key);
            }
            Value::String(text) if text.is_empty() && empty == EmptyValue::Deletes => {
                all.remove(&key);
            }
            Value::String(text) => {
                check_name(&key, &format!("{path}: a name"), METADATA_KEY_CHARS_MAX)?;
                check_length(&text, &format!("{path}.{key}"), METADATA_VALUE_CHARS_MAX)?;
                all.insert(key, text);
            }
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                check_name(&key, &format!("{path}: a name"), METADATA_KEY_CHARS_MAX)?;
                return Err(ApiError::invalid(format!("{path}.{key}: must be a string"))
                    .with_code("invalid_metadata"));
            }
        }
    }
    if all.len() > METADATA_PAIRS_MAX {
        return Err(ApiError::invalid(format!(
            "{path}: has {} entries, at most {METADATA_PAIRS_MAX} are allowed",
            all.len()
        ))
        .with_code("invalid_metadata"));
    }
    Ok(all)
}
