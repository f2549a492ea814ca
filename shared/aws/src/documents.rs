//! Agents, environments and keys in the configuration table: one partition for each kind of a tenant.

use async_trait::async_trait;
use aws_sdk_dynamodb::{
    Client,
    operation::{delete_item::DeleteItemError, put_item::PutItemError},
    types::ReturnValuesOnConditionCheckFailure,
};
use tailstep_runtime::{
    memory::check_document,
    ports::{Document, DocumentKind, Documents, DocumentsError, Expect, ListDocuments, Page},
};

use crate::{
    item::{Item, binary, get_binary, get_number, get_text, join_key, number, text},
    trouble::{from_trouble, sort},
};

/// Item layout that this version writes; it refuses newer ones.
const LAYOUT: u64 = 1;

from_trouble!(DocumentsError);

#[derive(Debug, Clone)]
pub struct DynamoDocuments {
    client: Client,
    table: String,
}

impl DynamoDocuments {
    pub fn new(client: Client, table: impl Into<String>) -> Self {
        Self { client, table: table.into() }
    }
}

#[async_trait]
impl Documents for DynamoDocuments {
    async fn get(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
    ) -> Result<Option<Document>, DocumentsError> {
        let answer = self
            .client
            .get_item()
            .table_name(&self.table)
            .set_key(Some(place(tenant, kind, id)))
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| sort("read document", &error))?;
        answer.item.map(|item| decode(tenant, kind, &item)).transpose()
    }

    async fn put(&self, document: &Document, expect: Expect) -> Result<(), DocumentsError> {
        check_document(document, expect)?;
        let nonce = nonce()?;
        let mut request = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(encode(document, &nonce)))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        request = match expect {
            Expect::Absent => request.condition_expression("attribute_not_exists(pk)"),
            Expect::Revision(revision) => request
                .condition_expression("revision = :revision")
                .expression_attribute_values(":revision", number(revision)),
        };
        let Err(error) = request.send().await else { return Ok(()) };
        if let Some(PutItemError::ConditionalCheckFailedException(failed)) =
            error.as_service_error()
        {
            // The SDK tried again after an answer that was lost: the write it met is ours.
            let mine = failed.item().and_then(|item| get_text(item, "nonce").ok());
            return if mine == Some(&nonce) {
                Ok(())
            } else {
                Err(DocumentsError::Conflict { id: document.id.clone() })
            };
        }
        Err(sort("write document", &error).into())
    }

    async fn list(
        &self,
        tenant: &str,
        kind: DocumentKind,
        query: &ListDocuments,
    ) -> Result<Page<Document>, DocumentsError> {
        let wanted = query.limit.saturating_add(1);
        let mut values = Item::from([(":pk".to_owned(), text(partition(tenant, kind)))]);
        let mut condition = "pk = :pk";
        if !query.prefix.is_empty() {
            condition = "pk = :pk AND begins_with(sk, :prefix)";
            values.insert(":prefix".to_owned(), text(&query.prefix));
        }
        let mut items = Vec::new();
        let mut resume = query.after.as_deref().map(|after| place(tenant, kind, after));
        while items.len() < wanted {
            let page = self
                .client
                .query()
                .table_name(&self.table)
                .key_condition_expression(condition)
                .set_expression_attribute_values(Some(values.clone()))
                .consistent_read(true)
                .scan_index_forward(!query.descending)
                .limit(i32::try_from(wanted - items.len()).unwrap_or(i32::MAX))
                .set_exclusive_start_key(resume)
                .send()
                .await
                .map_err(|error| sort("list documents", &error))?;
            for item in page.items() {
                items.push(decode(tenant, kind, item)?);
            }
            resume = page.last_evaluated_key;
            if resume.is_none() {
                break;
            }
        }
        let more = items.len() > query.limit;
        items.truncate(query.limit);
        Ok(Page { items, more })
    }

    async fn delete(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
    ) -> Result<(), DocumentsError> {
        self.client
            .delete_item()
            .table_name(&self.table)
            .set_key(Some(place(tenant, kind, id)))
            .send()
            .await
            .map_err(|error| sort("delete document", &error))?;
        Ok(())
    }

    async fn delete_at(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
        revision: u64,
    ) -> Result<(), DocumentsError> {
        let request = self
            .client
            .delete_item()
            .table_name(&self.table)
            .set_key(Some(place(tenant, kind, id)))
            .condition_expression("attribute_not_exists(pk) OR revision = :revision")
            .expression_attribute_values(":revision", number(revision));
        let Err(error) = request.send().await else { return Ok(()) };
        if let Some(DeleteItemError::ConditionalCheckFailedException(_)) = error.as_service_error()
        {
            return Err(DocumentsError::Conflict { id: id.to_owned() });
        }
        Err(sort("delete document", &error).into())
    }
}

fn partition(tenant: &str, kind: DocumentKind) -> String {
    join_key(&[kind.as_str(), tenant])
}

fn place(tenant: &str, kind: DocumentKind, id: &str) -> Item {
    Item::from([("pk".to_owned(), text(partition(tenant, kind))), ("sk".to_owned(), text(id))])
}

fn encode(document: &Document, nonce: &str) -> Item {
    let mut item = place(&document.tenant, document.kind, &document.id);
    item.insert("layout".to_owned(), number(LAYOUT));
    item.insert("nonce".to_owned(), text(nonce));
    item.insert("revision".to_owned(), number(document.revision));
    item.insert("created_at_ms".to_owned(), number(document.created_at_ms));
    item.insert("body".to_owned(), binary(&document.body));
    item
}

fn decode(tenant: &str, kind: DocumentKind, item: &Item) -> Result<Document, DocumentsError> {
    let read = || -> Result<Document, String> {
        let layout = get_number(item, "layout")?;
        if layout > LAYOUT {
            return Err(format!("item layout {layout}, this version reads up to {LAYOUT}"));
        }
        Ok(Document {
            tenant: tenant.to_owned(),
            kind,
            id: get_text(item, "sk")?.to_owned(),
            revision: get_number(item, "revision")?,
            created_at_ms: get_number(item, "created_at_ms")?,
            body: get_binary(item, "body")?,
        })
    };
    read().map_err(|what| DocumentsError::Refused { what: format!("document: {what}") })
}

/// Names one call of [`Documents::put`], so that it recognises its own write.
fn nonce() -> Result<String, DocumentsError> {
    let high = getrandom::u64().map_err(no_randomness)?;
    let low = getrandom::u64().map_err(no_randomness)?;
    Ok(format!("{high:016x}{low:016x}"))
}

fn no_randomness(error: getrandom::Error) -> DocumentsError {
    DocumentsError::Unavailable { what: format!("system randomness: {error}") }
}
