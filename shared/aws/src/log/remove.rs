//! Removing a session: its records, then its head.

use aws_sdk_dynamodb::types::{DeleteRequest, WriteRequest};
use tailstep_core::ids::{Seq, SessionKey};
use tailstep_runtime::ports::LogError;

use super::{DynamoLog, head_key, page_limit, pause_between_rounds};
use crate::{
    item::{Item, text},
    log::{
        head::partition,
        record::{RECORD_KEY_END, record_key},
    },
    trouble::sort,
};

/// Deletions in one `BatchWriteItem` (service limit).
const BATCH_WRITE_MAX: usize = 25;

impl DynamoLog {
    pub(super) async fn remove_all(&self, key: &SessionKey) -> Result<(), LogError> {
        loop {
            let page = self
                .client
                .query()
                .table_name(&self.table)
                .key_condition_expression("pk = :pk AND sk BETWEEN :first AND :end")
                .expression_attribute_values(":pk", text(partition(key)))
                .expression_attribute_values(":first", text(record_key(0)))
                .expression_attribute_values(":end", text(RECORD_KEY_END))
                .projection_expression("pk, sk")
                // From the end, so that a reader in between sees a shorter log and never a hole.
                .scan_index_forward(false)
                .consistent_read(true)
                .limit(page_limit(BATCH_WRITE_MAX))
                .send()
                .await
                .map_err(|error| sort("list records to remove", &error))?;
            let last_page = page.last_evaluated_key.is_none();
            self.delete(page.items.unwrap_or_default()).await?;
            if last_page {
                break;
            }
        }
        self.delete(vec![head_key(key)]).await
    }

    pub(super) async fn remove_record(&self, key: &SessionKey, seq: Seq) -> Result<(), LogError> {
        let place = Item::from([
            ("pk".to_owned(), text(partition(key))),
            ("sk".to_owned(), text(record_key(seq))),
        ]);
        self.delete(vec![place]).await
    }

    /// Deletes up to 25 items.
    async fn delete(&self, keys: Vec<Item>) -> Result<(), LogError> {
        let mut left = Vec::with_capacity(keys.len());
        for key in keys {
            let delete = DeleteRequest::builder()
                .set_key(Some(key))
                .build()
                .map_err(|error| LogError::Refused { what: error.to_string() })?;
            left.push(WriteRequest::builder().delete_request(delete).build());
        }
        let mut round = 0;
        while !left.is_empty() {
            pause_between_rounds(&mut round, "remove records").await?;
            let answer = self
                .client
                .batch_write_item()
                .request_items(&self.table, left)
                .send()
                .await
                .map_err(|error| sort("remove records", &error))?;
            let rest = answer.unprocessed_items.and_then(|mut tables| tables.remove(&self.table));
            left = rest.unwrap_or_default();
        }
        Ok(())
    }
}
