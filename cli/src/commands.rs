//! One module a command: its arguments, and what it does with them.

pub(crate) mod dev;
pub(crate) mod logs;
pub(crate) mod run;
pub(crate) mod sandbox;
pub(crate) mod sessions;
pub(crate) mod worker;

use std::path::PathBuf;

/// What every command that opens a data directory takes.
#[derive(Debug, clap::Args)]
pub(crate) struct DataArgs {
    /// Where sessions are kept
    #[arg(long, value_name = "DIR", default_value = ".tailstep", env = "TAILSTEP_DATA")]
    pub(crate) data: PathBuf,

    /// Which log lines are shown, as in RUST_LOG
    #[arg(long, value_name = "FILTER", global = true)]
    pub(crate) log: Option<String>,
}
