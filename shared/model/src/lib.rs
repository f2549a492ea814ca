//! Model providers: what a neutral request looks like on each provider's wire, and what its answer
//! means.
//!
//! Owns the [`Router`] (one provider a model id), the providers' JSON and streams, the HTTP client
//! and this crate's settings. **Architecture invariant:** it knows no session and tries nothing
//! again; waiting and further tries belong to the loop. The one exception is a refused key, which is
//! fetched anew once in the same call.

mod anthropic;
mod calls;
pub mod config;
mod exchange;
mod failure;
mod http;
mod openai;
mod router;
pub mod scripted;
mod sse;
#[cfg(any(test, feature = "stub"))]
pub mod strict;
pub mod tls;

pub use config::{Config, ConfigError};
pub use router::Router;
