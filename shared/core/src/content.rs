//! What people and tools say: blocks of text, pictures and documents.

use serde::{Deserialize, Serialize};

/// One block of a message or of a tool's result, in the public API's own shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Content {
    Text {
        text: String,
    },
    Image {
        source: Source,
    },
    Document {
        source: Source,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context: Option<String>,
    },
}

/// Where a picture's or document's bytes are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// The bytes themselves, in standard base64.
    Base64 { media_type: String, data: String },
    /// An address that the model's provider fetches.
    Url { url: String },
    /// Plain text (documents only).
    Text { media_type: String, data: String },
}

impl Content {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// A text block without a visible character. Providers refuse such blocks, so they are never
    /// sent to one.
    pub fn is_blank(&self) -> bool {
        match self {
            Self::Text { text } => text.trim().is_empty(),
            Self::Image { .. } | Self::Document { .. } => false,
        }
    }
}

/// The text blocks of `content`, joined.
pub fn text_of(content: &[Content]) -> String {
    let mut all = String::new();
    for block in content {
        if let Content::Text { text } = block {
            all.push_str(text);
        }
    }
    all
}
