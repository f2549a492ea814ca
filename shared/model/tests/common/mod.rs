//! A router over a stub, and requests to send through it.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use tailstep_core::{
    content::Content,
    model::{Block, Message, ModelAnswer, ModelRequest, Part, Role, ToolDefinition},
    raw::RawJson,
};
use tailstep_model::{Config, Router, strict::Stub};
use tailstep_runtime::ports::{Secrets, SecretsError};

pub(crate) const KEY: &str = "key-CANARY-0123456789";

/// Both secrets, as one value that a refresh may change.
pub(crate) struct Keys {
    now: Mutex<Option<String>>,
    after_refresh: Option<String>,
    pub(crate) refreshed: AtomicU32,
    pub(crate) broken: bool,
}

impl Keys {
    pub(crate) fn fixed(key: Option<&str>) -> Arc<Self> {
        Self::rotating(key, key)
    }

    pub(crate) fn rotating(now: Option<&str>, after_refresh: Option<&str>) -> Arc<Self> {
        Arc::new(Self {
            now: Mutex::new(now.map(str::to_owned)),
            after_refresh: after_refresh.map(str::to_owned),
            refreshed: AtomicU32::new(0),
            broken: false,
        })
    }
}

#[async_trait]
impl Secrets for Keys {
    async fn get(&self, name: &str) -> Result<Option<String>, SecretsError> {
        assert!(matches!(name, "anthropic_api_key" | "openai_api_key"), "{name}");
        if self.broken {
            return Err(SecretsError::Unavailable { what: format!("{KEY} at 10.0.0.1") });
        }
        Ok(self.now.lock().unwrap().clone())
    }

    async fn refresh(&self, _name: &str) {
        self.refreshed.fetch_add(1, Ordering::SeqCst);
        *self.now.lock().unwrap() = self.after_refresh.clone();
    }
}

pub(crate) fn config(stub: &Stub) -> Config {
    Config {
        anthropic_base_url: stub.anthropic_url(),
        openai_base_url: Some(stub.openai_url()),
        ..Config::default()
    }
}

pub(crate) fn router(stub: &Stub) -> Router {
    Router::new(&config(stub), Keys::fixed(Some(KEY))).unwrap()
}

pub(crate) fn request(model: &str, messages: Vec<Message>) -> ModelRequest {
    let schema = r#"{"type":"object","properties":{"command":{"type":"string"}}}"#;
    let tool = |name: &str| ToolDefinition {
        name: name.to_owned(),
        description: format!("the {name} tool"),
        input_schema: RawJson::parse(schema).unwrap(),
    };
    ModelRequest {
        model: model.to_owned(),
        effort: None,
        system: Some("Answer briefly.".to_owned()),
        tools: vec![tool("bash"), tool("get_weather")],
        messages: messages.into(),
        output_tokens_max: 1_000,
    }
}

pub(crate) fn user(text: &str) -> Message {
    Message { role: Role::User, parts: vec![Part::Content(Content::text(text))] }
}

pub(crate) fn results(results: &[(&str, &str)]) -> Message {
    let parts = results.iter().map(|(id, text)| Part::ToolResult {
        id: (*id).to_owned(),
        content: vec![Content::text(*text)],
        is_error: false,
    });
    Message { role: Role::User, parts: parts.collect() }
}

/// The assistant's message for an answer, as `core::context` makes it.
pub(crate) fn said(answer: &ModelAnswer) -> Message {
    let parts = answer.blocks.iter().filter_map(|block| match block {
        Block::Text { text } if text.trim().is_empty() => None,
        Block::Text { text } => Some(Part::Content(Content::text(text.clone()))),
        Block::ToolUse { id, name, input } => {
            Some(Part::ToolUse { id: id.clone(), name: name.clone(), input: input.clone() })
        }
        Block::BrokenToolUse { id, name, .. } => Some(Part::ToolUse {
            id: id.clone(),
            name: name.clone(),
            input: RawJson::empty_object(),
        }),
        Block::Opaque { dialect, raw } => {
            Some(Part::Opaque { dialect: dialect.clone(), raw: raw.clone() })
        }
    });
    Message { role: Role::Assistant, parts: parts.collect() }
}

pub(crate) fn text(text: &str) -> Block {
    Block::Text { text: text.to_owned() }
}

pub(crate) fn used(id: &str, name: &str, input: &str) -> Block {
    Block::ToolUse {
        id: id.to_owned(),
        name: name.to_owned(),
        input: RawJson::parse(input).unwrap(),
    }
}

pub(crate) fn opaque(raw: &str) -> Block {
    Block::Opaque { dialect: "anthropic".to_owned(), raw: RawJson::parse(raw).unwrap() }
}
