//! JSON kept byte for byte: what a model or a tool said is stored and sent back exactly as it came,
//! because providers sign reasoning blocks, and numbers and key order do not survive a parse.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// One syntactically valid JSON value, with its original bytes.
#[derive(Clone)]
pub struct RawJson(Arc<RawValue>);

impl RawJson {
    /// Checks the syntax and keeps the text (outer white space is dropped).
    ///
    /// # Errors
    /// What is wrong with the text, with line and column.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<Box<RawValue>>(text).map(|raw| Self(raw.into()))
    }

    /// Encodes a value of our own.
    ///
    /// # Errors
    /// Only when the value has a map with keys that are not text.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(|raw| Self(raw.into()))
    }

    /// The value `{}`.
    pub fn empty_object() -> Self {
        let raw = RawValue::from_string("{}".to_owned());
        Self(raw.unwrap_or_else(|_| RawValue::NULL.to_owned()).into())
    }

    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Reads the value into a type.
    ///
    /// # Errors
    /// When the value is not of that type.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.0.get())
    }

    pub fn is_object(&self) -> bool {
        self.as_str().starts_with('{')
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RawJson {}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self(raw.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_a_round_trip() {
        let text = r#"{"z":1.00,"a":123456789012345678901234567890,"a":"é"}"#;
        let raw = RawJson::parse(text).unwrap();
        assert_eq!(serde_json::to_string(&raw).unwrap(), text);
        let again: RawJson = serde_json::from_str(&serde_json::to_string(&raw).unwrap()).unwrap();
        assert_eq!(again, raw);
        assert_eq!(RawJson::empty_object().as_str(), "{}");
        assert!(RawJson::parse("{").is_err());
    }
}
