//! Blocks that we do not read (signed reasoning, and whatever the API adds), put together so that they
//! can go back exactly as they came.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use tailstep_core::raw::RawJson;

/// A block that we do not read: its fields in order, and the texts that grow.
#[derive(Debug)]
pub(super) struct Grown {
    raw: RawJson,
    fields: Fields,
    changed: bool,
}

/// An object's fields in the order in which they came.
#[derive(Debug, Default)]
struct Fields(Vec<(String, Value)>);

#[derive(Debug)]
enum Value {
    Raw(Box<RawValue>),
    Text(String),
    /// Pieces of JSON that make one value when joined.
    Pieces(String),
    /// Values that a list got one by one.
    Items(Vec<Box<RawValue>>),
}

impl Grown {
    pub(super) fn begin(raw: &RawValue) -> Result<Self, serde_json::Error> {
        Ok(Self {
            raw: RawJson::parse(raw.get())?,
            fields: serde_json::from_str(raw.get())?,
            changed: false,
        })
    }

    /// Adds a piece by the one rule that all of them follow: besides its `type`, a piece has a field
    /// of the block's, and texts are appended. Pieces of JSON grow the `input`, citations their list.
    pub(super) fn add(&mut self, raw: &RawValue) -> Result<(), serde_json::Error> {
        self.changed = true;
        let Fields(pieces) = serde_json::from_str(raw.get())?;
        for (name, piece) in pieces {
            let Value::Raw(piece) = piece else { continue };
            let text: Option<String> = serde_json::from_str(piece.get()).ok().flatten();
            match (name.as_str(), text) {
                ("type", _) => {}
                ("partial_json", Some(text)) => self.fields.append_json("input", &text),
                ("citation", _) => self.fields.push_item("citations", piece),
                (name, Some(text)) => self.fields.append_text(name, &text),
                (name, None) => *self.fields.at(name) = Value::Raw(piece),
            }
        }
        Ok(())
    }

    /// The block as the provider would have sent it in one piece; if it did, exactly that.
    pub(super) fn raw(self) -> Result<RawJson, serde_json::Error> {
        if !self.changed {
            return Ok(self.raw);
        }
        let mut text = String::from("{");
        for (index, (name, value)) in self.fields.0.into_iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push_str(&serde_json::to_string(&name)?);
            text.push(':');
            match value {
                Value::Raw(raw) => text.push_str(raw.get()),
                Value::Text(grown) => text.push_str(&serde_json::to_string(&grown)?),
                Value::Pieces(json) if json.trim().is_empty() => text.push_str("{}"),
                Value::Pieces(json) => text.push_str(&json),
                Value::Items(items) => text.push_str(&serde_json::to_string(&items)?),
            }
        }
        text.push('}');
        RawJson::parse(&text)
    }
}

impl Fields {
    fn at(&mut self, name: &str) -> &mut Value {
        let place = self.0.iter().position(|(field, _)| field == name);
        let place = place.unwrap_or_else(|| {
            self.0.push((name.to_owned(), Value::Raw(RawValue::NULL.to_owned())));
            self.0.len() - 1
        });
        &mut self.0[place].1
    }

    fn append_text(&mut self, name: &str, more: &str) {
        let value = self.at(name);
        if let Value::Text(text) = value {
            text.push_str(more);
            return;
        }
        let mut text = match value {
            Value::Raw(raw) => serde_json::from_str::<String>(raw.get()).unwrap_or_default(),
            Value::Text(_) | Value::Pieces(_) | Value::Items(_) => String::new(),
        };
        text.push_str(more);
        *value = Value::Text(text);
    }

    fn append_json(&mut self, name: &str, more: &str) {
        let value = self.at(name);
        if let Value::Pieces(text) = value {
            text.push_str(more);
        } else {
            // What stood there is the empty object of a block that is still to grow.
            *value = Value::Pieces(more.to_owned());
        }
    }

    fn push_item(&mut self, name: &str, item: Box<RawValue>) {
        let value = self.at(name);
        if let Value::Items(items) = value {
            items.push(item);
            return;
        }
        let mut items = match value {
            Value::Raw(raw) => serde_json::from_str(raw.get()).unwrap_or_default(),
            Value::Text(_) | Value::Pieces(_) | Value::Items(_) => Vec::new(),
        };
        items.push(item);
        *value = Value::Items(items);
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    fields.push((name, Value::Raw(value)));
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

/// Whether `raw` is reasoning without its signature.
pub(super) fn is_unsigned(raw: &RawJson) -> bool {
    #[derive(Deserialize)]
    struct Signed {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        signature: Option<String>,
    }
    raw.read::<Signed>().is_ok_and(|block| {
        block.kind == "thinking" && block.signature.unwrap_or_default().is_empty()
    })
}
