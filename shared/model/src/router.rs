//! The `Model` port: one provider a model id.

use std::sync::Arc;

use async_trait::async_trait;
use tailstep_core::model::{ModelAnswer, ModelFailure, ModelRequest};
use tailstep_runtime::ports::{Model, Secrets};

use crate::{
    config::{Config, ConfigError},
    failure::rejected,
    scripted::{self, Scripted},
};

/// Sends each request to the provider that its model id names: bare ids to Anthropic, `openai/NAME`
/// to the configured OpenAI-compatible server, `scripted/NAME` to a script.
pub struct Router {
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
        let _ = secrets;
        Ok(Self {
            scripted: Scripted::new(config.script_root.clone()),
            scripted_aliases: config.scripted_aliases.clone(),
        })
    }

    fn route<'a>(&self, model: &'a str) -> Result<Route<'a>, String> {
        if self.scripted_aliases.iter().any(|alias| alias == model) {
            return Ok(Route::Scripted { name: scripted::ECHO });
        }
        let (prefix, name) = match model.split_once('/') {
            None if model.trim().is_empty() => {
                return Err("the model id is empty; name one, `scripted/echo` for a trial".to_owned());
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
            Route::Anthropic | Route::OpenAi { .. } => Err(rejected("not yet")),
        }
    }

    fn check(&self, model: &str) -> Result<(), String> {
        match self.route(model)? {
            Route::Scripted { name } => self.scripted.check(name),
            Route::Anthropic => Ok(()),
            Route::OpenAi { name: _ } => Ok(()),
        }
    }
}
