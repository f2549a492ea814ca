//! Where log lines go: to standard error, as JSON unless a person is watching. No line holds what a
//! model, a user or a tool said.

use std::io::{IsTerminal, stderr};

use anyhow::{Context, anyhow};
use tracing_subscriber::{EnvFilter, fmt};

use crate::style::Paint;

/// Starts logging. `filter` comes from `--log`; without it `RUST_LOG` counts, and then `default`.
///
/// # Errors
/// When the filter cannot be read.
pub(crate) fn start(filter: Option<&str>, default: &str) -> anyhow::Result<()> {
    let filter = match filter {
        Some(filter) => EnvFilter::try_new(filter).with_context(|| {
            format!("--log `{filter}` is not a filter; try `info` or `tailstep=debug,warn`")
        })?,
        None => match std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty()) {
            Some(filter) => EnvFilter::try_new(&filter)
                .with_context(|| format!("RUST_LOG `{filter}` is not a filter; try `info`"))?,
            None => EnvFilter::new(default),
        },
    };
    let lines = fmt().with_env_filter(filter).with_writer(stderr);
    let started = if stderr().is_terminal() {
        let colour = Paint::for_stream(&stderr()).is_on();
        lines.with_target(false).with_ansi(colour).compact().try_init()
    } else {
        lines.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
    };
    started.map_err(|error| anyhow!("cannot start logging: {error}"))
}
