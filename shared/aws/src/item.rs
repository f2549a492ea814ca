//! Reading and writing DynamoDB items: attribute access with errors that name the attribute, and the
//! text form of partition keys.

use std::{borrow::Cow, collections::HashMap};

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use bytes::Bytes;

/// An item as the SDK gives it.
pub(crate) type Item = HashMap<String, AttributeValue>;

pub(crate) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub(crate) fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

pub(crate) fn binary(value: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

/// An attribute of `item` as text; the error says what is wrong with it.
pub(crate) fn get_text<'a>(item: &'a Item, name: &str) -> Result<&'a str, String> {
    find_text(item, name)?.ok_or_else(|| format!("item has no {name}"))
}

pub(crate) fn find_text<'a>(item: &'a Item, name: &str) -> Result<Option<&'a str>, String> {
    item.get(name)
        .map(|value| value.as_s().map(String::as_str).map_err(|_| format!("{name} is not text")))
        .transpose()
}

/// An attribute of `item` as a whole number.
pub(crate) fn get_number(item: &Item, name: &str) -> Result<u64, String> {
    find_number(item, name)?.ok_or_else(|| format!("item has no {name}"))
}

pub(crate) fn find_number(item: &Item, name: &str) -> Result<Option<u64>, String> {
    item.get(name)
        .map(|value| {
            let digits = value.as_n().map_err(|_| format!("{name} is not a number"))?;
            digits.parse().map_err(|_| format!("{name} is not a whole number"))
        })
        .transpose()
}

/// An attribute of `item` as bytes.
pub(crate) fn get_binary(item: &Item, name: &str) -> Result<Bytes, String> {
    find_binary(item, name)?.ok_or_else(|| format!("item has no {name}"))
}

pub(crate) fn find_binary(item: &Item, name: &str) -> Result<Option<Bytes>, String> {
    item.get(name)
        .map(|value| {
            let blob = value.as_b().map_err(|_| format!("{name} is not binary"))?;
            Ok(Bytes::copy_from_slice(blob.as_ref()))
        })
        .transpose()
}

/// Joins the parts of a key with `#`. A `#` inside a part is escaped, so that no two lists of parts
/// give the same key and no tenant can spell another's.
pub(crate) fn join_key(parts: &[&str]) -> String {
    parts.iter().map(|part| escape(part)).collect::<Vec<_>>().join("#")
}

/// The parts that [`join_key`] joined.
pub(crate) fn split_key(key: &str) -> Vec<String> {
    key.split('#').map(|part| part.replace("%23", "#").replace("%25", "%")).collect()
}

fn escape(part: &str) -> Cow<'_, str> {
    if part.contains(['#', '%']) {
        Cow::Owned(part.replace('%', "%25").replace('#', "%23"))
    } else {
        Cow::Borrowed(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unambiguous_and_split_again() {
        for parts in [["a", "b"], ["a#b", "c"], ["a", "b#c"], ["%23", "#"], ["", "x"], ["%", "25"]]
        {
            assert_eq!(split_key(&join_key(&parts)), parts);
        }
        assert_ne!(join_key(&["a#b", "c"]), join_key(&["a", "b#c"]));
    }
}
