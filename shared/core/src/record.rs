//! The unit of writing: one step's events, appended together or not at all.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    event::Event,
    ids::{Seq, UnixMs},
};

/// The format that this version writes. It reads this one and every older one.
pub const FORMAT: u32 = 1;

/// One record of a log. `events` is never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    #[serde(rename = "v")]
    pub format: u32,
    pub seq: Seq,
    pub at_ms: UnixMs,
    pub events: Vec<Event>,
}

#[derive(Debug, Error)]
pub enum RecordError {
    #[error("record has format {found}, this version reads up to {FORMAT}; upgrade to read it")]
    Newer { found: u32 },
    #[error("record cannot be read")]
    Malformed(#[source] serde_json::Error),
}

impl Record {
    pub fn new(seq: Seq, at_ms: UnixMs, events: Vec<Event>) -> Self {
        Self { format: FORMAT, seq, at_ms, events }
    }

    /// JSON bytes for storage.
    ///
    /// # Errors
    /// Never for a record made of this crate's types; the caller may treat an error as a bug.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        serde_json::to_vec(self).map_err(RecordError::Malformed)
    }

    /// Reads what [`Self::encode`] wrote, in this version or an older one.
    ///
    /// # Errors
    /// A newer format, or bytes that are not a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        match serde_json::from_slice::<Self>(bytes) {
            Ok(record) if record.format <= FORMAT => Ok(record),
            Ok(record) => Err(RecordError::Newer { found: record.format }),
            // A newer format may not even parse as ours: its version still tells which it is.
            Err(error) => match serde_json::from_slice::<Version>(bytes) {
                Ok(Version { v }) if v > FORMAT => Err(RecordError::Newer { found: v }),
                Ok(_) | Err(_) => Err(RecordError::Malformed(error)),
            },
        }
    }
}
