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
//!
//! That a record's predecessor exists is not checked on each write, which would need a transaction:
//! the caller has read it, and records go away only with their whole session. What a worker writes
//! into a session that was removed meanwhile is noticed when its head cannot follow, and removed.

mod append;
mod find;
mod head;
mod record;
mod remove;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use tailstep_core::ids::{Seq, SessionKey, UnixMs};
use tailstep_runtime::ports::{
    Appended, Blobs, Entry, Head, ListSessions, Log, LogError, Page, Projection,
};

use crate::{
    item::{Item, text},
    log::{
        head::{HEAD, partition},
        record::{RECORD_KEY_END, record_key},
    },
    trouble::{from_trouble, sort},
};

/// How often [`Log::changed`] looks; the port asks for no more than about twice a second.
const POLL: Duration = Duration::from_millis(500);
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
            .set_key(Some(head_key(key)))
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| sort("read head", &error))?;
        answer
            .item
            .map(|item| head::decode(&item).map_err(|what| unreadable(key, what)))
            .transpose()
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
                let expected = after.saturating_add(1).saturating_add(entries.len() as Seq);
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
                self.follow(key, entry, head).await?;
                Ok(appended)
            }
            Projection::Atomic => self.put_record_and_head(key, entry, item, head).await,
        }
    }

    async fn project(&self, key: &SessionKey, head: &Head) -> Result<(), LogError> {
        self.project_existing(key, head).await
    }

    async fn beat(
        &self,
        key: &SessionKey,
        intent: Seq,
        due_at_ms: UnixMs,
    ) -> Result<Seq, LogError> {
        self.move_lease(key, intent, due_at_ms).await
    }

    async fn changed(&self, key: &SessionKey, after: Seq, wait_ms: u64) -> Result<(), LogError> {
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        loop {
            // Records are dense, so the next one's place tells; the head might lag.
            if self.has_record(key, after.saturating_add(1)).await? {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(POLL.min(left)).await;
        }
    }

    async fn due(&self, until_ms: UnixMs, limit: usize) -> Result<Vec<SessionKey>, LogError> {
        self.find_due(until_ms, limit).await
    }

    async fn list(&self, tenant: &str, query: &ListSessions) -> Result<Page<Head>, LogError> {
        self.list_heads(tenant, query).await
    }

    async fn purge(&self, key: &SessionKey) -> Result<(), LogError> {
        self.remove_all(key).await
    }
}

impl DynamoLog {
    async fn has_record(&self, key: &SessionKey, seq: Seq) -> Result<bool, LogError> {
        let answer = self
            .client
            .get_item()
            .table_name(&self.table)
            .key("pk", text(partition(key)))
            .key("sk", text(record_key(seq)))
            .projection_expression("sk")
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| sort("look for a record", &error))?;
        Ok(answer.item.is_some())
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

fn conflict(key: &SessionKey, seq: Seq) -> LogError {
    LogError::Conflict { session: key.session.clone(), seq }
}

fn unreadable(key: &SessionKey, what: String) -> LogError {
    LogError::Corrupt { session: key.session.clone(), seq: 0, what: format!("head: {what}") }
}
