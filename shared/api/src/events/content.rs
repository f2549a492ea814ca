//! The content of a user's message, checked as strictly as a model's provider checks it: what a
//! provider refuses would be refused again at every later step of the session.

use serde_json::Value;
use tailstep_core::content::{Content, Source};

use crate::{error::ApiError, fields::Fields};

const IMAGE_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];
const DOCUMENT_TYPES: [&str; 1] = ["application/pdf"];
const TEXT_TYPES: [&str; 1] = ["text/plain"];

/// Reads `content` of the event in `event`.
pub(super) fn read(event: &mut Fields) -> Result<Vec<Content>, ApiError> {
    let blocks = event.list("content")?;
    let content =
        self::blocks(blocks.ok_or_else(|| event.error("content", "is required"))?, event)?;
    if content.iter().all(Content::is_blank) {
        return Err(
            event.error("content", "says nothing; give at least one block that is not blank")
        );
    }
    Ok(content)
}

/// Reads `content` of the result in `event`: a call may have nothing to say.
pub(super) fn read_result(event: &mut Fields) -> Result<Vec<Content>, ApiError> {
    let blocks = event.list("content")?.unwrap_or_default();
    self::blocks(blocks, event)
}

fn blocks(blocks: Vec<Value>, event: &Fields) -> Result<Vec<Content>, ApiError> {
    let path = event.name("content");
    let read = |(index, block)| block_of(Fields::of(block, format!("{path}[{index}]"))?);
    blocks.into_iter().enumerate().map(read).collect()
}

fn block_of(mut fields: Fields) -> Result<Content, ApiError> {
    let kind = fields.required_text("type")?;
    let content = match kind.as_str() {
        "text" => Content::Text { text: fields.required_text("text")? },
        "image" => Content::Image { source: source(&mut fields, &IMAGE_TYPES, &[])? },
        "document" => Content::Document {
            source: source(&mut fields, &DOCUMENT_TYPES, &TEXT_TYPES)?,
            title: fields.text("title")?,
            context: fields.text("context")?,
        },
        "search_result" => {
            return Err(ApiError::unsupported(&fields.name("type"), "search results are"));
        }
        _ => return Err(fields.error("type", "must be text, image or document")),
    };
    fields.finish()?;
    Ok(content)
}

/// `text_types` is empty where plain text is no source.
fn source(
    block: &mut Fields,
    base64_types: &[&str],
    text_types: &[&str],
) -> Result<Source, ApiError> {
    let value: Option<Value> = block.take("source");
    let value = value.ok_or_else(|| block.error("source", "is required"))?;
    let mut fields = Fields::of(value, block.name("source"))?;
    let kind = fields.required_text("type")?;
    let source = match kind.as_str() {
        "base64" => {
            let media_type = media_type(&mut fields, base64_types)?;
            let data = fields.required_text("data")?;
            if !is_base64(&data) {
                return Err(fields.error("data", "is not standard base64, or is empty"));
            }
            Source::Base64 { media_type, data }
        }
        "url" => {
            let url = fields.required_text("url")?;
            if !(url.starts_with("https://") || url.starts_with("http://")) {
                return Err(fields.error("url", "must begin with https:// or http://"));
            }
            Source::Url { url }
        }
        "text" if !text_types.is_empty() => {
            let media_type = media_type(&mut fields, text_types)?;
            let data = fields.required_text("data")?;
            if data.trim().is_empty() {
                return Err(fields.error("data", "must not be blank"));
            }
            Source::Text { media_type, data }
        }
        "file" => return Err(ApiError::unsupported(&fields.name("type"), "file sources are")),
        _ if text_types.is_empty() => return Err(fields.error("type", "must be base64 or url")),
        _ => return Err(fields.error("type", "must be base64, url or text")),
    };
    fields.finish()?;
    Ok(source)
}

fn media_type(fields: &mut Fields, allowed: &[&str]) -> Result<String, ApiError> {
    let media_type = fields.required_text("media_type")?;
    if allowed.contains(&media_type.as_str()) {
        return Ok(media_type);
    }
    Err(fields.error("media_type", &format!("must be {}", allowed.join(" or "))))
}

/// The alphabet, the length and the padding of RFC 4648 §4; something must be encoded.
fn is_base64(text: &str) -> bool {
    let data = text.trim_end_matches('=');
    !data.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - data.len() <= 2
        && data.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_told_from_what_looks_like_it() {
        for good in ["QQ==", "QUI=", "QUJD", "+/+/"] {
            assert!(is_base64(good), "{good}");
        }
        for bad in ["", "=", "====", "QQ=", "Q===", "QQ", "Q Q=", "QQ==\n", "Q-Q=", "Q=QQ"] {
            assert!(!is_base64(bad), "{bad}");
        }
    }
}
