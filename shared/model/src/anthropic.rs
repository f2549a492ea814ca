//! Anthropic's Messages API, streamed.
//!
//! Source: <https://docs.anthropic.com/en/api/messages> and its page on streaming, version 2023-06-01.

mod opaque;
mod request;
mod stream;

use ::http::{HeaderName, Uri};
use tailstep_core::model::{ModelAnswer, ModelFailure, ModelRequest};

use crate::exchange::{KeyNeed, Line, Provider};
use stream::Answer;

/// The dialect of blocks that only this provider understands.
pub(crate) const DIALECT: &str = "anthropic";

pub(crate) fn provider(url: Uri) -> Provider {
    Provider {
        label: "anthropic",
        url,
        secret: "anthropic_api_key",
        variable: "ANTHROPIC_API_KEY",
        address: "TAILSTEP_ANTHROPIC_BASE_URL",
        key_header: HeaderName::from_static("x-api-key"),
        key_prefix: "",
        key_need: KeyNeed::Always,
        headers: &[("anthropic-version", "2023-06-01")],
    }
}

pub(crate) async fn call(line: &Line, request: &ModelRequest) -> Result<ModelAnswer, ModelFailure> {
    line.call(request::body(request)?, Answer::new(request.output_tokens_max)).await
}
