//! Which machine a session has: written down before the machine is asked for, so that a lost answer
//! cannot orphan one.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tailstep_core::ids::UnixMs;
use tailstep_runtime::ports::{
    Document, DocumentKind, Documents, DocumentsError, Expect, HandsError, ListDocuments,
};

const FORMAT: u32 = 1;
/// Records read at once.
const PAGE: usize = 100;

/// The machine of one session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    v: u32,
    /// From 1; one more with each machine that the session gets.
    pub(super) generation: u64,
    /// The provider's idempotency token: the same one never makes a second machine.
    pub(super) client_token: String,
    /// Opens this machine's daemon and nothing else.
    pub(super) secret: String,
    pub(super) asked_at_ms: UnixMs,
    /// Absent until the provider has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) machine: Option<Machine>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) id: String,
    pub(super) endpoint: String,
}

/// A record with its revision in the store.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) record: Record,
    document: Document,
}

impl Record {
    fn new(name: &str, generation: u64) -> Result<Self, HandsError> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)
            .map_err(|error| unavailable(&format!("no randomness: {error}")))?;
        let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let (salt, secret) = hex.split_at(16);
        Ok(Self {
            v: FORMAT,
            generation,
            // 64 + 1 + 20 + 1 + 16 characters at most, of the 128 that the provider takes. The salt
            // is for a session that was released and comes again.
            client_token: format!("{name}-{generation}-{salt}"),
            secret: secret.to_owned(),
            asked_at_ms: now_ms(),
            machine: None,
        })
    }

    pub(super) fn age_ms(&self) -> u64 {
        now_ms().saturating_sub(self.asked_at_ms)
    }
}

pub(super) async fn get(
    documents: &dyn Documents,
    name: &str,
) -> Result<Option<Stored>, HandsError> {
    let found = documents.get("", DocumentKind::Sandbox, name).await.map_err(failed)?;
    found.map(Stored::read).transpose()
}

/// Every session that has a machine, or is getting one.
pub(super) async fn all(documents: &dyn Documents) -> Result<Vec<Record>, HandsError> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let query = ListDocuments { prefix: String::new(), after, limit: PAGE, descending: false };
        let page = documents.list("", DocumentKind::Sandbox, &query).await.map_err(failed)?;
        after = page.items.last().map(|document| document.id.clone());
        let more = page.more;
        for document in page.items {
            found.push(Stored::read(document)?.record);
        }
        if !more || after.is_none() {
            return Ok(found);
        }
    }
}

/// Writes down that session `name` gets a machine, behind the one of `before`.
pub(super) async fn begin(
    documents: &dyn Documents,
    name: &str,
    before: Option<&Stored>,
) -> Result<Stored, HandsError> {
    let generation = before.map_or(1, |stored| stored.record.generation + 1);
    let record = Record::new(name, generation)?;
    match before {
        Some(stored) => stored.replace(documents, record).await,
        None => {
            let document = Document {
                tenant: String::new(),
                kind: DocumentKind::Sandbox,
                id: name.to_owned(),
                revision: 1,
                created_at_ms: record.asked_at_ms,
                body: encode(&record)?,
            };
            documents.put(&document, Expect::Absent).await.map_err(failed)?;
            Ok(Stored { record, document })
        }
    }
}

impl Stored {
    fn read(document: Document) -> Result<Self, HandsError> {
        let record: Record = serde_json::from_slice(&document.body)
            .map_err(|error| unavailable(&format!("record of a machine is broken: {error}")))?;
        if record.v > FORMAT {
            return Err(unavailable("record of a machine was written by a newer version"));
        }
        Ok(Self { record, document })
    }

    /// The sandbox that it is of.
    pub(super) fn name(&self) -> &str {
        &self.document.id
    }

    /// Writes down which machine it got.
    pub(super) async fn found(
        &self,
        documents: &dyn Documents,
        machine: Machine,
    ) -> Result<Self, HandsError> {
        let record = Record { machine: Some(machine), ..self.record.clone() };
        self.replace(documents, record).await
    }

    async fn replace(&self, documents: &dyn Documents, record: Record) -> Result<Self, HandsError> {
        let revision = self.document.revision;
        let body = encode(&record)?;
        let document = Document { revision: revision + 1, body, ..self.document.clone() };
        documents.put(&document, Expect::Revision(revision)).await.map_err(failed)?;
        Ok(Self { record, document })
    }

    pub(super) async fn remove(&self, documents: &dyn Documents) -> Result<(), HandsError> {
        let Document { kind, id, revision, .. } = &self.document;
        documents.delete_at("", *kind, id, *revision).await.map_err(failed)
    }
}

fn encode(record: &Record) -> Result<Bytes, HandsError> {
    serde_json::to_vec(record).map(Bytes::from).map_err(|error| unavailable(&error.to_string()))
}

/// A conflict means that another worker serves the session: this one has lost it.
fn failed(error: DocumentsError) -> HandsError {
    unavailable(&error.to_string())
}

fn unavailable(what: &str) -> HandsError {
    HandsError::Unavailable { what: what.to_owned() }
}

fn now_ms() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
