//! Sessions, records and heads to test with.

use bytes::Bytes;
use tailstep_core::{
    ids::{Seq, SessionKey},
    model::Usage,
};
use tailstep_runtime::ports::{Entry, Head, SessionStatus};

/// A time far ahead, so that a session of one law is not due in another one's store.
pub(crate) const FAR_MS: u64 = 4_000_000_000_000;

/// 16 random bytes in hexadecimal.
pub(crate) fn random() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).unwrap();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A tenant that no other law has, even in a shared store.
pub(crate) fn tenant() -> String {
    format!("t{}", random())
}

pub(crate) fn key() -> SessionKey {
    SessionKey::new(tenant(), "sesn_01")
}

pub(crate) fn entry(seq: Seq, body: impl Into<Bytes>) -> Entry {
    Entry { seq, nonce: random(), body: body.into() }
}

/// `count` bytes of text with characters of one to four bytes; cut anywhere, also inside one.
pub(crate) fn text(count: usize) -> Bytes {
    let mut bytes = "{\"text\":\"aß€𝄞\"}".repeat(count / 18 + 1).into_bytes();
    bytes.truncate(count);
    Bytes::from(bytes)
}

/// Every byte there is, and not text.
pub(crate) fn every_byte() -> Bytes {
    (0..=255).chain((0..=255).rev()).collect::<Vec<u8>>().into()
}

pub(crate) fn head(key: &SessionKey, last_seq: Seq) -> Head {
    Head {
        tenant: key.tenant.clone(),
        session: key.session.clone(),
        last_seq,
        status: SessionStatus::Running,
        agent_id: "agent_1".to_owned(),
        agent_version: 3,
        environment_id: "env_1".to_owned(),
        title: Some("Título ✓".to_owned()),
        created_at_ms: 1_700_000_000_000,
        updated_at_ms: 1_700_000_000_000 + last_seq,
        archived_at_ms: None,
        due_at_ms: Some(FAR_MS + last_seq),
        usage: Usage { input_tokens: last_seq, output_tokens: 2 * last_seq, ..Usage::default() },
        snapshot: Bytes::from(format!("snapshot at {last_seq}")),
        lease: None,
    }
}
