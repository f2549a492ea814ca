//! Chat completions, streamed, as OpenAI defined them and many servers speak them.
//!
//! Source: <https://platform.openai.com/docs/api-reference/chat>. Where servers differ, what the
//! widest range of them takes is sent, and everything that any of them is known to send is read.
//!
//! **When an answer is whole:** a `finish_reason` has come, and after it either `[DONE]` or the
//! orderly end of the body (some servers omit `[DONE]`). `[DONE]` without a finish reason is a
//! broken answer: proxies send it behind a generation that died.

mod request;
mod stream;

use ::http::{Uri, header};
use tailstep_core::model::{ModelAnswer, ModelFailure, ModelRequest};

use crate::exchange::{KeyNeed, Line, Provider};
use stream::Answer;

pub(crate) fn provider(url: Uri) -> Provider {
    Provider {
        label: "the openai-compatible server",
        url,
        secret: "openai_api_key",
        variable: "OPENAI_API_KEY",
        address: "TAILSTEP_OPENAI_BASE_URL",
        key_header: header::AUTHORIZATION,
        key_prefix: "Bearer ",
        key_need: KeyNeed::IfSet,
        headers: &[],
    }
}

/// `name` is the model's name without our prefix.
pub(crate) async fn call(
    line: &Line,
    name: &str,
    request: &ModelRequest,
) -> Result<ModelAnswer, ModelFailure> {
    let limit = request::LimitField::of(line.provider.url.host().unwrap_or_default());
    line.call(request::body(name, limit, request)?, Answer::new(request)).await
}
