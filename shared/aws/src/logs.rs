//! The functions' own log: one JSON line an event, to standard output, where Lambda takes it up.

use tracing_subscriber::EnvFilter;

/// Starts logging at the level in `TAILSTEP_LOG` (`info` without it). Calling it twice changes nothing.
pub fn start_logs() {
    let level = std::env::var("TAILSTEP_LOG").unwrap_or_else(|_| "info".to_owned());
    // The SDK's own lines are for people who debug the SDK.
    let filter =
        EnvFilter::try_new(format!("warn,tailstep={level},step={level},sweep={level},api={level}"));
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_target(false)
        .with_current_span(false)
        .with_span_list(false)
        .with_env_filter(filter.unwrap_or_else(|_| EnvFilter::new("info")))
        .try_init();
}
