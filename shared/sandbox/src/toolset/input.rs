//! Reads a tool's input object field by field, so that each complaint names its field.

use serde_json::{Map, Value};

/// The fields of one input that were not asked for yet.
pub(super) struct Fields {
    tool: &'static str,
    left: Map<String, Value>,
    asked: Vec<&'static str>,
}

impl Fields {
    /// Parses the input of `tool`.
    ///
    /// # Errors
    /// A sentence for the model, when the text is not a JSON object.
    pub(super) fn parse(tool: &'static str, input: &str) -> Result<Self, String> {
        // Tools without required fields are sometimes called with nothing at all.
        let text = if input.trim().is_empty() { "{}" } else { input };
        match serde_json::from_str(text) {
            Ok(Value::Object(left)) => Ok(Self { tool, left, asked: Vec::new() }),
            Ok(
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_),
            ) => Err(format!("input of {tool} must be a JSON object")),
            Err(why) => Err(format!("input of {tool} is not valid JSON: {why}")),
        }
    }

    pub(super) fn string(&mut self, field: &'static str) -> Result<String, String> {
        self.optional_string(field)?
            .ok_or_else(|| format!("input of {}: field `{field}` is missing", self.tool))
    }

    pub(super) fn optional_string(
        &mut self,
        field: &'static str,
    ) -> Result<Option<String>, String> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(field, "a string", &other)),
        }
    }

    /// `false` when the field is absent.
    pub(super) fn flag(&mut self, field: &'static str) -> Result<bool, String> {
        match self.take(field) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(self.wrong(field, "true or false", &other)),
        }
    }

    /// A whole number above zero.
    pub(super) fn positive(&mut self, field: &'static str) -> Result<Option<u64>, String> {
        match self.take(field) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number @ 1..) => Ok(Some(number)),
                Some(0) | None => Err(self.wrong(field, "a whole number above 0", &value)),
            },
        }
    }

    /// `[start, end]`, counted from 1; an end of -1 means the last line.
    pub(super) fn range(&mut self, field: &'static str) -> Result<Option<LineRange>, String> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let numbers: Option<Vec<i64>> =
            value.as_array().and_then(|items| items.iter().map(Value::as_i64).collect());
        let range = match numbers.as_deref() {
            Some([start, -1]) if *start > 0 => Some((*start, None)),
            Some([start, end]) if *start > 0 && end >= start => Some((*start, Some(*end))),
            Some(_) | None => None,
        };
        let Some((start, end)) = range else {
            let wanted = "[start, end] with 1 <= start <= end, or end -1 for the last line";
            return Err(self.wrong(field, wanted, &value));
        };
        Ok(Some(LineRange { start: start.unsigned_abs(), end: end.map(i64::unsigned_abs) }))
    }

    /// Refuses what is left: a field that means nothing here was meant to mean something.
    pub(super) fn finish(self) -> Result<(), String> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(unknown) => {
                let unknown: String = unknown.chars().take(100).collect();
                Err(format!(
                    "input of {}: unknown field `{unknown}`; the fields are {}",
                    self.tool,
                    self.asked.join(", ")
                ))
            }
        }
    }

    fn take(&mut self, field: &'static str) -> Option<Value> {
        self.asked.push(field);
        self.left.remove(field).filter(|value| !value.is_null())
    }

    fn wrong(&self, field: &str, wanted: &str, value: &Value) -> String {
        let mut found: String = value.to_string().chars().take(60).collect();
        if found.len() < value.to_string().len() {
            found.push_str("...");
        }
        format!("input of {}: field `{field}` must be {wanted}, not {found}", self.tool)
    }
}

/// Lines from `start` to `end`, both counted from 1 and included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineRange {
    pub(super) start: u64,
    /// `None` is the last line.
    pub(super) end: Option<u64>,
}
