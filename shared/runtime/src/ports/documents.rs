//! Configuration: agents and their versions, environments, keys. Small documents, read often.

use async_trait::async_trait;
use bytes::Bytes;
use tailstep_core::ids::UnixMs;
use thiserror::Error;

use super::log::Page;

#[async_trait]
pub trait Documents: Send + Sync {
    /// Strongly consistent.
    async fn get(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
    ) -> Result<Option<Document>, DocumentsError>;

    /// Writes `document` if `expect` holds; durable when it returns.
    async fn put(&self, document: &Document, expect: Expect) -> Result<(), DocumentsError>;

    /// In order of id. Ids sort by creation time.
    async fn list(
        &self,
        tenant: &str,
        kind: DocumentKind,
        query: &ListDocuments,
    ) -> Result<Page<Document>, DocumentsError>;

    /// Idempotent.
    async fn delete(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
    ) -> Result<(), DocumentsError>;

    /// Removes the document if it still has this revision; idempotent.
    /// [`DocumentsError::Conflict`] when it has another one.
    async fn delete_at(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
        revision: u64,
    ) -> Result<(), DocumentsError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub tenant: String,
    pub kind: DocumentKind,
    pub id: String,
    /// 1 when it is created, one more with each write.
    pub revision: u64,
    pub created_at_ms: UnixMs,
    /// JSON of the owner's choosing, at most 300 KB.
    pub body: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentKind {
    Agent,
    /// Id: the agent's id, `#`, and the version as ten digits.
    AgentVersion,
    Environment,
    /// Tenant: empty. Id: SHA-256 of the key.
    ApiKey,
    /// What a client's idempotency key made. Id: SHA-256 of route and key.
    Request,
    /// An uploaded file; its bytes are blobs.
    File,
    /// A session's output that a client has deleted. Id: the output's file id.
    HiddenOutput,
    /// The work item that is there for a session now. Id: the environment's id, `#`, and the
    /// session's.
    Work,
    /// Every work item there ever was. Id: the environment's id, `#`, and the item's.
    WorkPast,
    /// Tenant: empty. Id: SHA-256 of an environment key.
    EnvironmentKey,
    /// The environment keys of a tenant. Id: the environment's id, `#`, and the key's.
    EnvironmentKeyName,
    Skill,
    /// Id: the skill's id, `#`, and the version's id, which sort by time.
    SkillVersion,
    /// The machine that a session's calls run on. Tenant: empty. Id: the sandbox's name.
    Sandbox,
}

impl DocumentKind {
    /// The name used in storage keys.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::AgentVersion => "agent_version",
            Self::Environment => "environment",
            Self::ApiKey => "api_key",
            Self::Request => "request",
            Self::File => "file",
            Self::HiddenOutput => "hidden_output",
            Self::Work => "work",
            Self::WorkPast => "work_past",
            Self::EnvironmentKey => "environment_key",
            Self::EnvironmentKeyName => "environment_key_name",
            Self::Skill => "skill",
            Self::SkillVersion => "skill_version",
            Self::Sandbox => "sandbox",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// No document has this id.
    Absent,
    /// The stored document has this revision; the new one has the next.
    Revision(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListDocuments {
    /// Only ids that begin so (may be empty).
    pub prefix: String,
    /// Continue behind this id.
    pub after: Option<String>,
    pub limit: usize,
    pub descending: bool,
}

#[derive(Debug, Error)]
pub enum DocumentsError {
    /// `expect` did not hold.
    #[error("document {id} was changed or exists already")]
    Conflict { id: String },
    #[error("document store is unavailable: {what}")]
    Unavailable { what: String },
    #[error("document store refuses: {what}")]
    Refused { what: String },
}
