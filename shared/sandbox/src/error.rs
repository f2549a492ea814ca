//! Failures of a sandbox, as its supervisor sees them. What a tool says is never one of these.

use std::path::PathBuf;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum SandboxError {
    /// The specification cannot be met by any host.
    #[error("sandbox specification: {what}")]
    Spec { what: String },
    /// The helper executable is not where it was looked for.
    #[error(
        "no sandbox helper `tailstep-hands` in {looked_in}: build it with `cargo build -p tailstep-sandbox`, or name its path"
    )]
    NoHelper { looked_in: String },
    #[error("cannot start the sandbox helper {path}")]
    Start { path: PathBuf, source: std::io::Error },
    /// A promised layer is missing; nothing ran.
    #[error("refused to run without isolation: {why}")]
    Refused { why: String },
    /// The sandbox ended, and with it all that ran in it; the workspace directory is still there.
    #[error("the sandbox is gone: {why}")]
    Gone { why: String },
    /// The helper did not answer within the call's time and the grace, and was killed.
    #[error("the sandbox did not answer within {waited_ms} ms and was killed")]
    Unresponsive { waited_ms: u64 },
    /// The call cannot be sent.
    #[error("call is too large: its encoded form passes {bytes_max} bytes")]
    CallTooLarge { bytes_max: usize },
}

/// What a caller can do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The same request fails again until somebody changes the host or the request.
    Never,
    /// A fresh sandbox may do better; the call that failed may have run in part.
    FreshSandbox,
}

impl SandboxError {
    /// What to do next.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Spec { .. }
            | Self::NoHelper { .. }
            | Self::Start { .. }
            | Self::Refused { .. }
            | Self::CallTooLarge { .. } => Retry::Never,
            Self::Gone { .. } | Self::Unresponsive { .. } => Retry::FreshSandbox,
        }
    }
}
