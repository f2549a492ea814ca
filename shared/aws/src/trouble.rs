//! What a failed service call means for the caller: worth another try later, or not.

use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::{display::DisplayErrorContext, metadata::ProvideErrorMetadata};

/// A failed call, without its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Busy or out of reach; whether a write was applied is unknown.
    Unavailable(String),
    /// Refused for a reason that time does not heal.
    Refused(String),
}

/// Error codes that time does not heal: access, configuration, and requests that break a rule of the
/// service. Everything else counts as worth another try, since giving up on a passing fault is the
/// worse mistake: a session would stop.
const REFUSALS: [&str; 16] = [
    "AccessDenied",
    "AccessDeniedException",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidParameterException",
    "InvalidRequestException",
    "ItemCollectionSizeLimitExceededException",
    "MissingAuthenticationToken",
    "NoSuchBucket",
    "QueueDoesNotExist",
    "AWS.SimpleQueueService.NonExistentQueue",
    "ResourceNotFoundException",
    "SerializationException",
    "UnrecognizedClientException",
    "ValidationException",
];

/// Sorts a failed call. `what` names the call, in the words of an error message ("write record 7").
pub(crate) fn sort<E, R>(what: &str, error: &SdkError<E, R>) -> Trouble
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: std::fmt::Debug,
{
    match error.as_service_error() {
        Some(service) => {
            let code = service.code().unwrap_or("no error code");
            let message = service.message().unwrap_or("no message");
            let text = format!("{what}: {code}: {message}");
            if REFUSALS.contains(&code) {
                Trouble::Refused(text)
            } else {
                Trouble::Unavailable(text)
            }
        }
        // A request that could not even be built will not fare better next time.
        None if matches!(error, SdkError::ConstructionFailure(_)) => {
            Trouble::Refused(format!("{what}: {}", DisplayErrorContext(error)))
        }
        None => Trouble::Unavailable(format!("{what}: {}", DisplayErrorContext(error))),
    }
}

/// Gives an adapter's error type its two constructors for [`Trouble`].
macro_rules! from_trouble {
    ($error:ident) => {
        impl From<crate::trouble::Trouble> for $error {
            fn from(trouble: crate::trouble::Trouble) -> Self {
                match trouble {
                    crate::trouble::Trouble::Unavailable(what) => Self::Unavailable { what },
                    crate::trouble::Trouble::Refused(what) => Self::Refused { what },
                }
            }
        }
    };
}
pub(crate) use from_trouble;
