//! The session log in DynamoDB: one partition a session, with `HEAD` (a projection) and
//! `R#<sequence number>` (immutable records).
//!
//! Owns the keys, the conditions and the paging. Must not know what is inside a record or a snapshot.
//!
//! **Why plain conditional puts.** A record is one `PutItem` that requires its place to be free:
//! about 8 ms and one unit a kilobyte, against 25 ms and twice the units of a transaction. The head
//! is only a projection, so it may follow in a write of its own. [`Projection::Atomic`] is the one
//! exception: a record that wakes a session which nothing else would wake must not be stored without
//! its due time.

mod head;
mod record;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use aws_sdk_dynamodb::{
    Client,
    error::SdkError,
    operation::{
        put_item::PutItemError, transact_write_items::TransactWriteItemsError,
        update_item::UpdateItemError,
    },
    types::{
        DeleteRequest, KeysAndAttributes, Put, ReturnValue, ReturnValuesOnConditionCheckFailure,
        TransactWriteItem, Update, WriteRequest,
    },
};
use tailstep_core::ids::{Seq, SessionKey, UnixMs};
use tailstep_runtime::ports::{
    Appended, Blobs, Entry, Head, ListSessions, Log, LogError, Page, Projection,
};

use crate::{
    item::{Item, get_number, number, split_key, text},
    log::{
        head::{DUE_INDEX, DUE_SHARDS, HEAD, TENANT_INDEX, due_partition, partition},
        record::{RECORD_KEY_END, record_key},
    },
    trouble::{from_trouble, sort},
};

/// How often [`Log::changed`] looks; the port asks for no more than about twice a second.
const POLL: Duration = Duration::from_millis(500);
/// Keys in one `BatchGetItem` (service limit).
const BATCH_GET_MAX: usize = 100;
/// Deletions in one `BatchWriteItem` (service limit).
const BATCH_WRITE_MAX: usize = 25;
/// Rounds in which a batch may come back unfinished before it counts as unavailable.
const BATCH_ROUNDS_MAX: u32 = 8;

from_trouble!(LogError);

#[derive(Clone)]
pub struct DynamoLog {
    client: Client,
    table: String,
    /// Where records go that are too large for an item.
    blobs: Arc<dyn Blobs>,
}

impl DynamoLog {
    pub fn new(client: Client, table: impl Into<String>, blobs: Arc<dyn Blobs>) -> Self {
        Self { client, table: table.into(), blobs }
    }
}

#[async_trait]
impl Log for DynamoLog {
    async fn head(&self, key: &SessionKey) -> Result<Option<Head>, LogError> {
        let answer = self
            .client
            .get_item()
            .table_name(&self.table)
            .key("pk", text(partition(key)))
            .key("sk", text(HEAD))
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| sort("read head", &error))?;
        answer.item.map(|item| head::decode(&item).map_err(|what| unreadable(key, what))).transpose()
    }

    async fn read(
        &self,
        key: &SessionKey,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Entry>, LogError> {
        let mut entries = Vec::new();
        let mut resume = None;
        while entries.len() < limit {
            let page = self
                .client
                .query()
                .table_name(&self.table)
                .key_condition_expression("pk = :pk AND sk BETWEEN :first AND :end")
                .expression_attribute_values(":pk", text(partition(key)))
                .expression_attribute_values(":first", text(record_key(after.saturating_add(1))))
                .expression_attribute_values(":end", text(RECORD_KEY_END))
                .consistent_read(true)
                .limit(page_limit(limit - entries.len()))
                .set_exclusive_start_key(resume)
                .send()
                .await
                .map_err(|error| sort("read records", &error))?;
            for item in page.items() {
                let expected = after + 1 + entries.len() as Seq;
                entries.push(record::decode(self.blobs.as_ref(), key, expected, item).await?);
            }
            resume = page.last_evaluated_key;
            if resume.is_none() {
                break;
            }
        }
        Ok(entries)
    }

    async fn append(
        &self,
        key: &SessionKey,
        entry: &Entry,
        head: &Head,
        projection: Projection,
    ) -> Result<Appended, LogError> {
        let item = record::encode(self.blobs.as_ref(), key, entry).await?;
        match projection {
            Projection::Lag => self.put_record(key, entry, item).await,
            Projection::Follow => {
                let appended = self.put_record(key, entry, item).await?;
                // The record is durable, and with it the append: a head that could not follow is
                // what the next step repairs.
                if let Err(error) = self.project(key, head).await {
                    tracing::warn!(session = %key, %error, "head does not follow its record");
                }
                Ok(appended)
            }
            Projection::Atomic => self.put_record_and_head(key, entry, item, head).await,
        }
    }

    async fn project(&self, key: &SessionKey, head: &Head) -> Result<(), LogError> {
        let update = head::update(key, head);
        let sent = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(head_key(key)))
            .update_expression(update.expression)
            .condition_expression(head::IS_NEWER)
            .set_expression_attribute_names(Some(update.names))
            .set_expression_attribute_values(Some(update.values))
            .send()
            .await;
        match sent {
            Ok(_) => Ok(()),
            Err(SdkError::ServiceError(error)) if error.err().is_conditional_check_failed_exception() => {
                Ok(())
            }
            Err(error) => Err(sort("write head", &error).into()),
        }
    }

    async fn beat(
        &self,
        key: &SessionKey,
        intent: Seq,
        due_at_ms: UnixMs,
    ) -> Result<Seq, LogError> {
        // The common case first: one more beat of the same attempt.
        match self.update_lease(key, &head::beat_again(key, intent, due_at_ms)).await? {
            Ok(item) => return last_seq(key, &item),
            Err(None) => return Err(no_head(key)),
            Err(Some(_)) => {}
        }
        match self.update_lease(key, &head::first_beat(key, intent, due_at_ms)).await? {
            Ok(item) | Err(Some(item)) => last_seq(key, &item),
            Err(None) => Err(no_head(key)),
        }
    }

    async fn changed(&self, key: &SessionKey, after: Seq, wait_ms: u64) -> Result<(), LogError> {
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        loop {
            // Records are dense, so the next one's place tells; the head might lag.
            let next = self
                .client
                .get_item()
                .table_name(&self.table)
                .key("pk", text(partition(key)))
                .key("sk", text(record_key(after.saturating_add(1))))
                .projection_expression("sk")
                .consistent_read(true)
                .send()
                .await
                .map_err(|error| sort("look for the next record", &error))?;
            let left = deadline.saturating_duration_since(Instant::now());
            if next.item.is_some() || left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(POLL.min(left)).await;
        }
    }

    async fn due(&self, until_ms: UnixMs, limit: usize) -> Result<Vec<SessionKey>, LogError> {
        let mut found = Vec::new();
        for shard in 0..DUE_SHARDS {
            found.extend(self.due_in_shard(shard, until_ms, limit).await?);
        }
        found.sort();
        found.truncate(limit);
        Ok(found.into_iter().map(|(_, key)| key).collect())
    }

    async fn list(&self, tenant: &str, query: &ListSessions) -> Result<Page<Head>, LogError> {
        let mut keys = self.list_keys(tenant, query).await?;
        let more = keys.len() > query.limit;
        keys.truncate(query.limit);
        let mut heads = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(BATCH_GET_MAX) {
            heads.extend(self.get_heads(chunk).await?);
        }
        heads.sort_by(|a, b| a.session.cmp(&b.session));
        if query.descending {
            heads.reverse();
        }
        Ok(Page { items: heads, more })
    }

    async fn purge(&self, key: &SessionKey) -> Result<(), LogError> {
        // From the end, so that a reader in between sees a shorter log and never one with a hole.
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
}

impl DynamoLog {
    async fn put_record(
        &self,
        key: &SessionKey,
        entry: &Entry,
        item: Item,
    ) -> Result<Appended, LogError> {
        let sent = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item))
            .condition_expression("attribute_not_exists(pk)")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        match sent {
            Ok(_) => Ok(Appended::Now),
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                    record::taken(key, entry, failed.item())
                }
                _ => Err(sort(&format!("write record {}", entry.seq), &error).into()),
            },
        }
    }

    async fn put_record_and_head(
        &self,
        key: &SessionKey,
        entry: &Entry,
        item: Item,
        head: &Head,
    ) -> Result<Appended, LogError> {
        let what = format!("write record {} with its head", entry.seq);
        let bug = |error: aws_sdk_dynamodb::error::BuildError| LogError::Refused {
            what: format!("{what}: {error}"),
        };
        let put = Put::builder()
            .table_name(&self.table)
            .set_item(Some(item))
            .condition_expression("attribute_not_exists(pk)")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build()
            .map_err(bug)?;
        let update = head::update(key, head);
        let follow = Update::builder()
            .table_name(&self.table)
            .set_key(Some(head_key(key)))
            .update_expression(update.expression)
            .condition_expression(head::IS_NEWER)
            .set_expression_attribute_names(Some(update.names))
            .set_expression_attribute_values(Some(update.values))
            .build()
            .map_err(bug)?;
        let sent = self
            .client
            .transact_write_items()
            .transact_items(TransactWriteItem::builder().put(put).build())
            .transact_items(TransactWriteItem::builder().update(follow).build())
            .send()
            .await;
        let Err(error) = sent else { return Ok(Appended::Now) };
        if let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
            error.as_service_error()
        {
            let failed = |index: usize| {
                let reason = cancelled.cancellation_reasons().get(index)?;
                (reason.code() == Some("ConditionalCheckFailed")).then_some(reason)
            };
            if let Some(reason) = failed(0) {
                return record::taken(key, entry, reason.item());
            }
            // The place is free but the head is ahead of it: the log has moved, or lost its end.
            if failed(1).is_some() {
                return Err(conflict(key, entry.seq));
            }
        }
        Err(sort(&what, &error).into())
    }

    /// One write to the lease: the head after it, or the head (if any) that did not meet its
    /// condition.
    async fn update_lease(
        &self,
        key: &SessionKey,
        update: &head::LeaseUpdate,
    ) -> Result<Result<Item, Option<Item>>, LogError> {
        let sent = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(head_key(key)))
            .update_expression(update.expression)
            .condition_expression(update.condition)
            .set_expression_attribute_values(Some(update.values.clone()))
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        match sent {
            Ok(answer) => Ok(Ok(answer.attributes.unwrap_or_default())),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                    Ok(Err(failed.item().cloned()))
                }
                _ => Err(sort("move the lease", &error).into()),
            },
        }
    }

    async fn due_in_shard(
        &self,
        shard: u8,
        until_ms: UnixMs,
        limit: usize,
    ) -> Result<Vec<(UnixMs, SessionKey)>, LogError> {
        let mut found = Vec::new();
        let mut resume = None;
        loop {
            let page = self
                .client
                .query()
                .table_name(&self.table)
                .index_name(DUE_INDEX)
                .key_condition_expression("due_pk = :shard AND due_ms <= :until")
                .expression_attribute_values(":shard", text(due_partition(shard)))
                .expression_attribute_values(":until", number(until_ms))
                .limit(page_limit(limit - found.len()))
                .set_exclusive_start_key(resume)
                .send()
                .await
                .map_err(|error| sort("find due sessions", &error))?;
            for item in page.items() {
                // An item of another layout must not hide all the other due sessions.
                match (get_number(item, "due_ms"), session_key(item)) {
                    (Ok(due_ms), Ok(key)) => found.push((due_ms, key)),
                    (Err(what), _) | (_, Err(what)) => {
                        tracing::error!(%what, "due session cannot be read");
                    }
                }
            }
            resume = page.last_evaluated_key;
            if resume.is_none() || found.len() >= limit {
                return Ok(found);
            }
        }
    }

    /// Keys of the wanted sessions and one more, if there is one.
    async fn list_keys(&self, tenant: &str, query: &ListSessions) -> Result<Vec<Item>, LogError> {
        let wanted = query.limit + 1;
        let mut keys: Vec<Item> = Vec::new();
        let mut resume = None;
        loop {
            let mut request = self
                .client
                .query()
                .table_name(&self.table)
                .index_name(TENANT_INDEX)
                .expression_attribute_values(":tenant", text(head::list_partition(tenant)))
                .scan_index_forward(!query.descending)
                .limit(page_limit(wanted - keys.len()))
                .set_exclusive_start_key(resume);
            request = match &query.after {
                None => request.key_condition_expression("list_pk = :tenant"),
                Some(after) => request
                    .key_condition_expression(if query.descending {
                        "list_pk = :tenant AND list_sk < :after"
                    } else {
                        "list_pk = :tenant AND list_sk > :after"
                    })
                    .expression_attribute_values(":after", text(after)),
            };
            let page = request.send().await.map_err(|error| sort("list sessions", &error))?;
            for item in page.items() {
                keys.push(["pk", "sk"].iter().filter_map(|name| item.get_key_value(*name)).map(
                    |(name, value)| (name.clone(), value.clone()),
                ).collect());
            }
            resume = page.last_evaluated_key;
            if resume.is_none() || keys.len() >= wanted {
                return Ok(keys);
            }
        }
    }

    /// The heads of up to 100 keys, in no order. One that was removed meanwhile is left out.
    async fn get_heads(&self, keys: &[Item]) -> Result<Vec<Head>, LogError> {
        let mut heads = Vec::with_capacity(keys.len());
        let mut left = Some(keys.to_vec());
        let mut round = 0;
        while let Some(keys) = left.filter(|keys| !keys.is_empty()) {
            let request = KeysAndAttributes::builder()
                .set_keys(Some(keys))
                .build()
                .map_err(|error| LogError::Refused { what: error.to_string() })?;
            let answer = self
                .client
                .batch_get_item()
                .request_items(&self.table, request)
                .send()
                .await
                .map_err(|error| sort("read heads", &error))?;
            for item in answer.responses().and_then(|tables| tables.get(&self.table)).into_iter().flatten() {
                let key = session_key(item).map_err(|what| LogError::Refused { what })?;
                heads.push(head::decode(item).map_err(|what| unreadable(&key, what))?);
            }
            left = answer
                .unprocessed_keys
                .and_then(|mut tables| tables.remove(&self.table))
                .map(|rest| rest.keys);
            pause_between_rounds(&mut round, "read heads").await?;
        }
        Ok(heads)
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
            let answer = self
                .client
                .batch_write_item()
                .request_items(&self.table, left)
                .send()
                .await
                .map_err(|error| sort("remove records", &error))?;
            left = answer
                .unprocessed_items
                .and_then(|mut tables| tables.remove(&self.table))
                .unwrap_or_default();
            pause_between_rounds(&mut round, "remove records").await?;
        }
        Ok(())
    }
}

/// Waits a little longer before each further round of a batch that came back unfinished (a throttled
/// batch is a success with a rest, which the SDK's retries do not see).
async fn pause_between_rounds(round: &mut u32, what: &str) -> Result<(), LogError> {
    *round += 1;
    if *round > BATCH_ROUNDS_MAX {
        return Err(LogError::Unavailable { what: format!("{what}: batch stays unfinished") });
    }
    if *round > 1 {
        tokio::time::sleep(Duration::from_millis(25 << *round)).await;
    }
    Ok(())
}

fn page_limit(wanted: usize) -> i32 {
    i32::try_from(wanted.max(1)).unwrap_or(i32::MAX)
}

fn head_key(key: &SessionKey) -> Item {
    Item::from([("pk".to_owned(), text(partition(key))), ("sk".to_owned(), text(HEAD))])
}

fn session_key(item: &Item) -> Result<SessionKey, String> {
    let pk = crate::item::get_text(item, "pk")?;
    match split_key(pk).as_slice() {
        [tenant, session] => Ok(SessionKey::new(tenant, session)),
        _ => Err(format!("partition key {pk} does not name a session")),
    }
}

fn last_seq(key: &SessionKey, item: &Item) -> Result<Seq, LogError> {
    get_number(item, "last_seq").map_err(|what| unreadable(key, what))
}

fn conflict(key: &SessionKey, seq: Seq) -> LogError {
    LogError::Conflict { session: key.session.clone(), seq }
}

fn unreadable(key: &SessionKey, what: String) -> LogError {
    LogError::Corrupt { session: key.session.clone(), seq: 0, what: format!("head: {what}") }
}

fn no_head(key: &SessionKey) -> LogError {
    LogError::Refused { what: format!("session {} has no head to beat for", key.session) }
}
