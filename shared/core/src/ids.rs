//! Names of things: tenants, sessions, places in a log, blobs.
//!
//! Owns their text forms. Must not know how they are made (randomness is the runtime's).

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Number of a record in its session's log; the first is 1, and there are no gaps.
pub type Seq = u64;

/// Milliseconds since 1970-01-01 UTC.
pub type UnixMs = u64;

/// A session and the tenant that owns it. Both are part of every storage key, so that one tenant's
/// request can never be answered with another's data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionKey {
    pub tenant: String,
    pub session: String,
}

impl SessionKey {
    pub fn new(tenant: impl Into<String>, session: impl Into<String>) -> Self {
        Self { tenant: tenant.into(), session: session.into() }
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.session)
    }
}

/// A place inside a session's log: an event (`part` 0), or a part of one, such as the n-th block of
/// a model's answer (`part` n + 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    pub seq: Seq,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub event: u16,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: u16,
}

fn is_zero(n: &u16) -> bool {
    *n == 0
}

impl Position {
    pub fn event(seq: Seq, event: u16) -> Self {
        Self { seq, event, part: 0 }
    }

    /// The place just before the whole log.
    pub const START: Self = Self { seq: 0, event: 0, part: 0 };

    /// The public id of the event at this place: `sevt_`, the last eight characters of the session's
    /// id, and the place in hexadecimal. Ids of one session sort like its log.
    pub fn event_id(&self, session: &str) -> String {
        let tail = session.get(session.len().saturating_sub(8)..).unwrap_or(session);
        format!("sevt_{tail}{:010x}{:03x}{:03x}", self.seq, self.event, self.part)
    }

    /// Reads a public event id back; `None` when it is not one of this session's.
    pub fn from_event_id(id: &str, session: &str) -> Option<Self> {
        let tail = session.get(session.len().saturating_sub(8)..)?;
        let hex = id.strip_prefix("sevt_")?.strip_prefix(tail)?;
        if hex.len() != 16 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        Some(Self {
            seq: u64::from_str_radix(&hex[..10], 16).ok()?,
            event: u16::from_str_radix(&hex[10..13], 16).ok()?,
            part: u16::from_str_radix(&hex[13..], 16).ok()?,
        })
    }
}

/// Address of an immutable blob: the SHA-256 of its bytes, as 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlobRef {
    pub sha256: String,
    pub bytes: u64,
}

impl BlobRef {
    pub fn of(content: &[u8]) -> Self {
        Self { sha256: sha256_hex(content), bytes: content.len() as u64 }
    }
}

/// SHA-256 of `content` as 64 lower-case hexadecimal digits.
pub fn sha256_hex(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

/// `bytes` as lower-case hexadecimal digits, as addresses have them.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        use fmt::Write;
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_ids_round_trip_sort_and_belong_to_one_session() {
        let session = "sesn_01JABCDEFGHJKMNPQRSTVWXYZ0";
        let a = Position { seq: 15, event: 1, part: 2 };
        let b = Position { seq: 16, event: 0, part: 0 };
        assert_eq!(Position::from_event_id(&a.event_id(session), session), Some(a));
        assert!(a.event_id(session) < b.event_id(session));
        for bad in ["", "sevt_", "sevt_é", &a.event_id("sesn_01JABCDEFGHJKMNPQRSTVWXYZ1")] {
            assert_eq!(Position::from_event_id(bad, session), None);
        }
    }

    #[test]
    fn blob_address_is_the_known_digest() {
        assert_eq!(
            BlobRef::of(b"abc").sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
