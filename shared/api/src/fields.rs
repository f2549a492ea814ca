//! Strict reading of JSON objects: every field is asked for by name, and what nobody asked for is
//! refused by name, so that a client never believes in a setting that was ignored.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// An object from a request, being read.
pub(crate) struct Fields {
    /// Where the object stands in the body; empty for the body itself.
    path: String,
    map: Map<String, Value>,
    asked: Vec<&'static str>,
}

impl Fields {
    /// The body of a request.
    pub(crate) fn of_body(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { path: String::new(), map, asked: Vec::new() }),
            Ok(_) => Err(ApiError::invalid("the request body must be a JSON object")),
            Err(error) => Err(ApiError::invalid(format!(
                "the request body is not valid JSON (line {}, column {})",
                error.line(),
                error.column()
            ))),
        }
    }

    /// The body of a request that may do without one.
    pub(crate) fn of_optional_body(body: &[u8]) -> Result<Self, ApiError> {
        Self::of_body(if body.is_empty() { b"{}" } else { body })
    }

    /// A value inside the body, which stands at `path`.
    pub(crate) fn of(value: Value, path: impl Into<String>) -> Result<Self, ApiError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { path, map, asked: Vec::new() }),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Err(ApiError::invalid(format!("{path}: must be an object"))),
        }
    }

    /// The name of `field` as errors give it.
    pub(crate) fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    pub(crate) fn error(&self, field: &str, what: &str) -> ApiError {
        ApiError::invalid(format!("{}: {what}", self.name(field)))
    }

    /// The field as it was sent; `Some(Value::Null)` is an explicit null.
    pub(crate) fn take_raw(&mut self, field: &'static str) -> Option<Value> {
        self.asked.push(field);
        self.map.remove(field)
    }

    /// The field; null counts as absent.
    pub(crate) fn take(&mut self, field: &'static str) -> Option<Value> {
        self.take_raw(field).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&mut self, field: &'static str) -> Result<Option<String>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.error(field, "must be a string")),
        }
    }

    pub(crate) fn required_text(&mut self, field: &'static str) -> Result<String, ApiError> {
        self.text(field)?.ok_or_else(|| self.error(field, "is required"))
    }

    pub(crate) fn flag(&mut self, field: &'static str) -> Result<Option<bool>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.error(field, "must be true or false")),
        }
    }

    /// A whole number from 1.
    pub(crate) fn count(&mut self, field: &'static str) -> Result<Option<u64>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(count) if count > 0 => Ok(Some(count)),
                Some(_) | None => Err(self.error(field, "must be a whole number from 1")),
            },
        }
    }

    pub(crate) fn list(&mut self, field: &'static str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(self.error(field, "must be an array")),
        }
    }

    /// A field of the protocol that this version does not have: its empty value is accepted.
    pub(crate) fn unsupported(&mut self, field: &'static str, what: &str) -> Result<(), ApiError> {
        let empty = match self.take(field) {
            None => true,
            Some(Value::Array(items)) => items.is_empty(),
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Bool(_) | Value::Number(_) | Value::Null) => false,
        };
        if empty { Ok(()) } else { Err(ApiError::unsupported(&self.name(field), what)) }
    }

    /// Refuses what was not asked for.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        let Some(field) = self.map.keys().next() else { return Ok(()) };
        let allowed = if self.asked.is_empty() { "none".into() } else { self.asked.join(", ") };
        // A field name is the client's text: only a short one is repeated.
        let shown: String = field.chars().filter(|c| !c.is_control()).take(64).collect();
        Err(ApiError::invalid(format!(
            "{}: unknown field; allowed here: {allowed}",
            self.name(&shown)
        )))
    }
}

/// The filename of a form's part; `field` is what errors call it.
pub(crate) fn filename(
    part: &multer::Field<'_>,
    field: &str,
    chars_max: usize,
) -> Result<String, ApiError> {
    let Some(name) = part.file_name() else {
        return Err(ApiError::invalid(format!("{field} is missing, or is not UTF-8")));
    };
    check_name(name, field, chars_max)?;
    Ok(name.to_owned())
}

/// At least one visible character and at most `chars_max`.
pub(crate) fn check_name(name: &str, field: &str, chars_max: usize) -> Result<(), ApiError> {
    if name.trim().is_empty() {
        return Err(ApiError::invalid(format!("{field}: must not be blank")));
    }
    check_length(name, field, chars_max)
}

pub(crate) fn check_length(text: &str, field: &str, chars_max: usize) -> Result<(), ApiError> {
    let chars = text.chars().count();
    if chars > chars_max {
        return Err(ApiError::invalid(format!(
            "{field}: has {chars} characters, at most {chars_max} are allowed"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(error: ApiError) -> String {
        error.body("req_1")["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn what_nobody_asked_for_is_refused_by_its_full_name() {
        let mut fields = Fields::of(json!({"a": 1, "b": null, "zz": 2}), "tools[3]").unwrap();
        assert_eq!(fields.count("a").unwrap(), Some(1));
        assert_eq!(fields.text("b").unwrap(), None);
        let error = message(fields.finish().unwrap_err());
        assert_eq!(error, "tools[3].zz: unknown field; allowed here: a, b");
    }

    #[test]
    fn an_unsupported_field_may_be_empty() {
        for empty in [json!(null), json!([]), json!({}), json!("")] {
            let mut fields = Fields::of(json!({"skills": empty}), "").unwrap();
            fields.unsupported("skills", "skills are").unwrap();
            fields.finish().unwrap();
        }
        for set in [json!([1]), json!({"a": 1}), json!("x"), json!(true), json!(0)] {
            let mut fields = Fields::of(json!({"skills": set}), "").unwrap();
            let error = message(fields.unsupported("skills", "skills are").unwrap_err());
            assert_eq!(error, "skills: skills are not supported by this version");
        }
    }
}
