//! Calls that gave no whole answer: what the caller must do, and what the user is told.

use tailstep_core::model::{FailureKind, ModelFailure, Usage};

pub(crate) fn failure(kind: FailureKind, message: impl Into<String>) -> ModelFailure {
    ModelFailure { kind, message: message.into(), retry_after_ms: None, usage: Usage::default() }
}

pub(crate) fn rejected(message: impl Into<String>) -> ModelFailure {
    failure(FailureKind::Rejected, message)
}
