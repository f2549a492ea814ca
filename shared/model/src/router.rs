//! The `Model` port: one provider a model id.

use std::sync::Arc;

use async_trait::async_trait;
use tailstep_core::model::{ModelAnswer, ModelFailure, ModelRequest};
use tailstep_runtime::ports::{Model, Secrets};

use crate::{
    anthropic,
    config::{Config, ConfigError},
    exchange::Line,
    failure::rejected,
    http::Http,
    openai,
    scripted::{self, Scripted},
};

/// Sends each request to the provider that its model id names: bare ids to Anthropic, `openai/NAME`
/// to the configured OpenAI-compatible server, `scripted/NAME` to a script.
pub struct Router {
    anthropic: Line,
    openai: Option<Line>,
    scripted: Scripted,
    scripted_aliases: Vec<String>,
}

/// Where one model id leads.
enum Route<'a> {
    Anthropic,
    OpenAi { name: &'a str },
    Scripted { name: &'a str },
}

impl Router {
    /// # Errors
    /// A setting that cannot be used, by name.
    pub fn new(config: &Config, secrets: Arc<dyn Secrets>) -> Result<Self, ConfigError> {
        let http = Arc::new(Http::new(config));
        let line =
            |provider| Line { http: Arc::clone(&http), secrets: Arc::clone(&secrets), provider };
        Ok(Self {
            anthropic: line(anthropic::provider(config.anthropic_url()?)),
            openai: config.openai_url()?.map(|url| line(openai::provider(url))),
            scripted: Scripted::new(config.script_root.clone()),
            scripted_aliases: config.scripted_aliases.clone(),
        })
    }

    fn openai(&self, model: &str) -> Result<&Line, String> {
        self.openai.as_ref().ok_or_else(|| {
            format!(
                "model id `{model}` needs the address of an openai-compatible server: set \
                 TAILSTEP_OPENAI_BASE_URL (`https://host/v1`)"
            )
        })
    }

    fn route<'a>(&self, model: &'a str) -> Result<Route<'a>, String> {
        if self.scripted_aliases.iter().any(|alias| alias == model) {
            return Ok(Route::Scripted { name: scripted::ECHO });
        }
        let (prefix, name) = match model.split_once('/') {
            None if model.trim().is_empty() => {
                return Err(
                    "the model id is empty; name one, `scripted/echo` for a trial".to_owned()
                );
            }
            None => return Ok(Route::Anthropic),
            Some(parts) => parts,
        };
        if name.is_empty() {
            return Err(format!("model id `{model}` names no model after `{prefix}/`"));
        }
        match prefix {
            "openai" => Ok(Route::OpenAi { name }),
            "scripted" => Ok(Route::Scripted { name }),
            _ => Err(format!(
                "model id `{model}` has the unknown prefix `{prefix}/`; use a bare id for Anthropic, \
                 `openai/NAME` or `scripted/NAME`"
            )),
        }
    }
}

#[async_trait]
impl Model for Router {
    async fn call(&self, request: &ModelRequest) -> Result<ModelAnswer, ModelFailure> {
        match self.route(&request.model).map_err(rejected)? {
            Route::Scripted { name } => self.scripted.call(name, request).await,
            Route::Anthropic => anthropic::call(&self.anthropic, request).await,
            Route::OpenAi { name } => {
                let line = self.openai(&request.model).map_err(rejected)?;
                openai::call(line, name, request).await
            }
        }
    }

    fn check(&self, model: &str) -> Result<(), String> {
        match self.route(model)? {
            Route::Scripted { name } => self.scripted.check(name),
            Route::Anthropic => Ok(()),
            Route::OpenAi { .. } => self.openai(model).map(|_| ()),
        }
    }
}
