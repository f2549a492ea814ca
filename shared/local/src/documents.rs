//! Documents over the store.

use std::sync::Arc;

use async_trait::async_trait;
use tailstep_runtime::{
    memory::check_document,
    ports::{Document, DocumentKind, Documents, DocumentsError, Expect, ListDocuments, Page},
};

use crate::store::{Op, Refusal, Store};

pub(crate) struct LocalDocuments {
    pub(crate) store: Arc<Store>,
}

#[async_trait]
impl Documents for LocalDocuments {
    async fn get(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
    ) -> Result<Option<Document>, DocumentsError> {
        self.store.document(tenant, kind, id).map_err(|refusal| documents_error(id, refusal))
    }

    async fn put(&self, document: &Document, expect: Expect) -> Result<(), DocumentsError> {
        check_document(document, expect)?;
        let op = Op::PutDocument { document: document.clone(), expect };
        self.store.ask(op).await.map_err(|refusal| documents_error(&document.id, refusal))?;
        Ok(())
    }

    async fn list(
        &self,
        tenant: &str,
        kind: DocumentKind,
        query: &ListDocuments,
    ) -> Result<Page<Document>, DocumentsError> {
        self.store
            .documents(tenant, kind, query)
            .map_err(|refusal| documents_error(&query.prefix, refusal))
    }

    async fn delete(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
    ) -> Result<(), DocumentsError> {
        self.remove(tenant, kind, id, None).await
    }

    async fn delete_at(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
        revision: u64,
    ) -> Result<(), DocumentsError> {
        self.remove(tenant, kind, id, Some(revision)).await
    }
}

impl LocalDocuments {
    async fn remove(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
        revision: Option<u64>,
    ) -> Result<(), DocumentsError> {
        let op =
            Op::DeleteDocument { tenant: tenant.to_owned(), kind, id: id.to_owned(), revision };
        self.store.ask(op).await.map_err(|refusal| documents_error(id, refusal))?;
        Ok(())
    }
}

fn documents_error(id: &str, refusal: Refusal) -> DocumentsError {
    match refusal {
        Refusal::Conflict(_) => DocumentsError::Conflict { id: id.to_owned() },
        Refusal::Missing(_) => {
            DocumentsError::Refused { what: format!("document {id} is incomplete") }
        }
        Refusal::Unavailable(what) => DocumentsError::Unavailable { what },
        Refusal::Refused(what) => DocumentsError::Refused { what },
    }
}
