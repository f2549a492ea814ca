//! Wake-ups. A message says "look at this session", nothing else: losing, doubling, delaying or
//! inventing one changes latency and cost, never the conversation.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tailstep_core::ids::{Seq, SessionKey};
use thiserror::Error;

#[async_trait]
pub trait Queue: Send + Sync {
    /// Delivers `wake` after at least `delay_ms` (any length; adapters use a scheduler where the
    /// queue itself cannot wait that long).
    async fn send(&self, wake: &Wake, delay_ms: u64) -> Result<(), QueueError>;

    /// Up to `max` messages, waiting up to `wait_ms` for the first. Each is hidden from others for
    /// the queue's visibility time and comes back if it is not acknowledged.
    async fn receive(&self, max: usize, wait_ms: u64) -> Result<Vec<Delivery>, QueueError>;

    /// The message is done with. The last act of a step.
    async fn ack(&self, delivery: &Delivery) -> Result<(), QueueError>;

    /// Hides the message for `hidden_ms` from now, so that it comes back then if its holder dies.
    async fn hide(&self, delivery: &Delivery, hidden_ms: u64) -> Result<(), QueueError>;
}

/// The body of a message: ids and versions only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wake {
    /// Format; a newer one is left in the queue for newer code.
    pub v: u32,
    #[serde(flatten)]
    pub key: SessionKey,
    /// The sender saw this lease when it sent the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observed>,
}

impl Wake {
    pub const FORMAT: u32 = 1;

    pub fn new(key: SessionKey) -> Self {
        Self { v: Self::FORMAT, key, observed: None }
    }

    /// JSON text for a message body.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a message body.
    ///
    /// # Errors
    /// [`QueueError::Newer`] for a newer format, [`QueueError::Malformed`] for anything else.
    pub fn decode(body: &str) -> Result<Self, QueueError> {
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        let Version { v } = serde_json::from_str(body)
            .map_err(|error| QueueError::Malformed { what: error.to_string() })?;
        if v > Self::FORMAT {
            return Err(QueueError::Newer { found: v });
        }
        serde_json::from_str(body)
            .map_err(|error| QueueError::Malformed { what: error.to_string() })
    }
}

/// A lease as an observer saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    pub intent: Seq,
    pub version: u64,
}

/// One message as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub wake: Wake,
    /// The queue's handle for this receipt; means nothing elsewhere. Empty when there is none.
    pub receipt: String,
    /// Time from sending to this receipt, both read from the queue's one clock.
    pub waited_ms: u64,
    /// 1 for the first delivery.
    pub receives: u32,
}

#[derive(Debug, Error)]
pub enum QueueError {
    #[error("queue is unavailable: {what}")]
    Unavailable { what: String },
    #[error("queue refuses: {what}")]
    Refused { what: String },
    #[error("message has format {found}; left for newer code")]
    Newer { found: u32 },
    #[error("message cannot be read: {what}")]
    Malformed { what: String },
}
