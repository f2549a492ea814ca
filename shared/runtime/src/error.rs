//! What can go wrong while the ports are used, and what the caller must do about it.

use tailstep_core::{record::RecordError, session::Refused};
use thiserror::Error;

use crate::ports::{DocumentsError, HandsError, LogError, QueueError};

#[derive(Debug, Error)]
pub enum RuntimeError {
    #[error("session {session} does not exist")]
    NotFound { session: String },
    /// The request does not fit the session as it is.
    #[error("session {session} refuses")]
    Refused { session: String, source: Refused },
    /// Other writers were faster, again and again.
    #[error("session {session} is written by too many at once")]
    Contended { session: String },
    #[error("log of session {session} does not fold")]
    Inconsistent { session: String, source: Refused },
    #[error("record {seq} of session {session} is unreadable")]
    Unreadable { session: String, seq: u64, source: RecordError },
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Hands(#[from] HandsError),
    #[error(transparent)]
    Documents(#[from] DocumentsError),
}

/// What the caller of a failed operation must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The same call may succeed later.
    Later,
    /// It will not; say so to whoever asked.
    Never,
}

impl RuntimeError {
    pub fn retry(&self) -> Retry {
        match self {
            Self::NotFound { .. } | Self::Refused { .. } | Self::Inconsistent { .. } => {
                Retry::Never
            }
            Self::Contended { .. } | Self::Hands(_) => Retry::Later,
            Self::Documents(error) => match error {
                DocumentsError::Conflict { .. } | DocumentsError::Unavailable { .. } => {
                    Retry::Later
                }
                DocumentsError::Refused { .. } => Retry::Never,
            },
            // A newer format is for newer code, which may be on its way.
            Self::Unreadable { .. } => Retry::Later,
            Self::Log(error) => match error {
                LogError::Conflict { .. } | LogError::Unavailable { .. } => Retry::Later,
                LogError::Corrupt { .. } | LogError::Refused { .. } => Retry::Never,
            },
            Self::Queue(error) => match error {
                QueueError::Unavailable { .. } | QueueError::Newer { .. } => Retry::Later,
                QueueError::Refused { .. } | QueueError::Malformed { .. } => Retry::Never,
            },
        }
    }
}

/// An error and its causes, in one line, for an operator's log.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
