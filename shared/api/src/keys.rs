//! API keys: made at random, stored as their SHA-256, each belonging to one tenant.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tailstep_core::ids::{UnixMs, sha256_hex};
use tailstep_runtime::{
    ids::nonce,
    ports::{Document, DocumentKind, Documents, DocumentsError, Expect},
};
use thiserror::Error;

/// What every key made here begins with, so that scanners for leaked secrets find it.
pub const PREFIX: &str = "tailstep_";

/// Keys are looked up before their tenant is known.
const NO_TENANT: &str = "";

#[derive(Debug, Error)]
pub enum KeyError {
    #[error("the key belongs to another tenant already; choose another key")]
    Taken,
    #[error("the tenant's name is empty")]
    NoTenant,
    #[error("the key is empty")]
    NoKey,
    #[error("the key could not be stored")]
    Documents(#[from] DocumentsError),
    #[error("the stored key cannot be read")]
    Unreadable(#[source] serde_json::Error),
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    name: String,
    tenant: String,
    created_at: UnixMs,
}

/// A new key: [`PREFIX`] and 256 random bits in hexadecimal.
pub fn new_key() -> String {
    format!("{PREFIX}{}{}", nonce(), nonce())
}

/// Makes `key` a key of `tenant`. Doing it again changes nothing.
///
/// # Errors
/// When the key is another tenant's, or the store is out of reach.
pub async fn ensure_key(
    documents: &dyn Documents,
    tenant: &str,
    key: &str,
    name: &str,
    now_ms: UnixMs,
) -> Result<(), KeyError> {
    if key.is_empty() {
        return Err(KeyError::NoKey);
    }
    ensure_key_hash(documents, tenant, &sha256_hex(key.as_bytes()), name, now_ms).await
}

/// As [`ensure_key`], for a key of which only the SHA-256 is known (64 lower-case hexadecimal digits).
///
/// # Errors
/// As [`ensure_key`].
pub async fn ensure_key_hash(
    documents: &dyn Documents,
    tenant: &str,
    key_sha256: &str,
    name: &str,
    now_ms: UnixMs,
) -> Result<(), KeyError> {
    if tenant.is_empty() {
        return Err(KeyError::NoTenant);
    }
    let id = key_sha256.to_owned();
    let stored = Stored { name: name.to_owned(), tenant: tenant.to_owned(), created_at: now_ms };
    let document = Document {
        tenant: NO_TENANT.to_owned(),
        kind: DocumentKind::ApiKey,
        id: id.clone(),
        revision: 1,
        created_at_ms: now_ms,
        body: Bytes::from(serde_json::to_vec(&stored).map_err(KeyError::Unreadable)?),
    };
    match documents.put(&document, Expect::Absent).await {
        Ok(()) => Ok(()),
        Err(DocumentsError::Conflict { .. }) => {
            let found = documents.get(NO_TENANT, DocumentKind::ApiKey, &id).await?;
            let owner = found.map(|found| read(&found)).transpose()?;
            if owner.is_some_and(|stored| stored.tenant == tenant) {
                Ok(())
            } else {
                Err(KeyError::Taken)
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether any key is stored: a first start makes one if not.
///
/// # Errors
/// When the store is out of reach.
pub async fn any_key(documents: &dyn Documents) -> Result<bool, KeyError> {
    let query = tailstep_runtime::ports::ListDocuments {
        prefix: String::new(),
        after: None,
        limit: 1,
        descending: false,
    };
    let page = documents.list(NO_TENANT, DocumentKind::ApiKey, &query).await?;
    Ok(!page.items.is_empty())
}

/// The tenant of the key with this hash, if there is one.
pub(crate) async fn tenant_of(
    documents: &dyn Documents,
    key_hash: &str,
) -> Result<Option<String>, DocumentsError> {
    let Some(found) = documents.get(NO_TENANT, DocumentKind::ApiKey, key_hash).await? else {
        return Ok(None);
    };
    match read(&found) {
        Ok(stored) => Ok(Some(stored.tenant)),
        Err(error) => Err(DocumentsError::Refused { what: format!("an API key's entry: {error}") }),
    }
}

fn read(document: &Document) -> Result<Stored, KeyError> {
    serde_json::from_slice(&document.body).map_err(KeyError::Unreadable)
}
