//! The writes: a record into a free place, the head after it, and the lease.

use aws_sdk_dynamodb::{
    error::BuildError,
    operation::{
        put_item::PutItemError, transact_write_items::TransactWriteItemsError,
        update_item::UpdateItemError,
    },
    types::{Put, ReturnValue, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update},
};
use tailstep_core::ids::{Seq, SessionKey, UnixMs};
use tailstep_runtime::ports::{Appended, Entry, Head, LogError};

use super::{DynamoLog, conflict, head, head_key, record, unreadable};
use crate::{
    item::{Item, find_number, get_number},
    trouble::sort,
};

/// The place of a record must be free.
const IS_FREE: &str = "attribute_not_exists(pk)";

impl DynamoLog {
    pub(super) async fn put_record(
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
            .condition_expression(IS_FREE)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        let Err(error) = sent else { return Ok(Appended::Now) };
        if let Some(PutItemError::ConditionalCheckFailedException(failed)) =
            error.as_service_error()
        {
            return record::taken(key, entry, failed.item());
        }
        Err(sort(&format!("write record {}", entry.seq), &error).into())
    }

    pub(super) async fn put_record_and_head(
        &self,
        key: &SessionKey,
        entry: &Entry,
        item: Item,
        head: &Head,
    ) -> Result<Appended, LogError> {
        let what = format!("write record {} with its head", entry.seq);
        let bug = |error: BuildError| LogError::Refused { what: format!("{what}: {error}") };
        let put = Put::builder()
            .table_name(&self.table)
            .set_item(Some(item))
            .condition_expression(IS_FREE)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build()
            .map_err(bug)?;
        let update = head::update(key, head);
        let follow = Update::builder()
            .table_name(&self.table)
            .set_key(Some(head_key(key)))
            .update_expression(update.expression)
            .condition_expression(head::may_write(entry.seq))
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
            // The place is free, but the head is ahead of it or gone: the session was removed.
            if failed(1).is_some() {
                return Err(conflict(key, entry.seq));
            }
        }
        Err(sort(&what, &error).into())
    }

    /// Writes the head after `entry`, which is stored.
    ///
    /// # Errors
    /// [`LogError::Corrupt`] when the session turns out to be removed: then so is the record again.
    /// No other failure counts, since the record is durable and the next step repairs its head.
    pub(super) async fn follow(
        &self,
        key: &SessionKey,
        entry: &Entry,
        head: &Head,
    ) -> Result<(), LogError> {
        let condition = head::may_write(entry.seq);
        let written = match self.write_head(key, head, condition).await {
            Ok(Written::NoHead) => self.follow_without_head(key, entry, head).await,
            Ok(Written::Yes | Written::NotNewer) => Ok(()),
            Err(error) => Err(error),
        };
        match written {
            Err(error @ LogError::Corrupt { .. }) => Err(error),
            Err(error) => {
                tracing::warn!(session = %key, %error, "head does not follow its record");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// The head is lost, or the whole session was removed while its worker was busy; the record
    /// before this one tells.
    async fn follow_without_head(
        &self,
        key: &SessionKey,
        entry: &Entry,
        head: &Head,
    ) -> Result<(), LogError> {
        if self.has_record(key, entry.seq - 1).await? {
            return self.write_head(key, head, head::NEW_OR_NEWER).await.map(|_| ());
        }
        self.remove_record(key, entry.seq).await?;
        Err(LogError::Corrupt {
            session: key.session.clone(),
            seq: entry.seq - 1,
            what: "record is missing, as after a removal".to_owned(),
        })
    }

    /// Writes the head unless the stored one is as new. A lost head is made again from what the
    /// caller read; a removed session's is not.
    pub(super) async fn project_existing(
        &self,
        key: &SessionKey,
        head: &Head,
    ) -> Result<(), LogError> {
        match self.write_head(key, head, head::NEWER).await? {
            Written::Yes | Written::NotNewer => Ok(()),
            Written::NoHead if self.has_record(key, head.last_seq).await? => {
                self.write_head(key, head, head::NEW_OR_NEWER).await.map(|_| ())
            }
            Written::NoHead => Ok(()),
        }
    }

    async fn write_head(
        &self,
        key: &SessionKey,
        head: &Head,
        condition: &str,
    ) -> Result<Written, LogError> {
        let update = head::update(key, head);
        let sent = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(head_key(key)))
            .update_expression(update.expression)
            .condition_expression(condition)
            .set_expression_attribute_names(Some(update.names))
            .set_expression_attribute_values(Some(update.values))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        let Err(error) = sent else { return Ok(Written::Yes) };
        if let Some(UpdateItemError::ConditionalCheckFailedException(failed)) =
            error.as_service_error()
        {
            return Ok(if failed.item().is_some() { Written::NotNewer } else { Written::NoHead });
        }
        Err(sort("write head", &error).into())
    }

    pub(super) async fn move_lease(
        &self,
        key: &SessionKey,
        intent: Seq,
        due_at_ms: UnixMs,
    ) -> Result<Seq, LogError> {
        let last_seq =
            |item: Item| get_number(&item, "last_seq").map_err(|what| unreadable(key, what));
        let holder = match self.beat_once(key, intent, due_at_ms).await? {
            Beat::Counted(item) => return last_seq(item),
            Beat::Held(holder) => holder,
        };
        // Another beat of this attempt was the first one meanwhile: now there is one to count on.
        if holder == Some(intent) {
            match self.beat_once(key, intent, due_at_ms).await? {
                Beat::Counted(item) => return last_seq(item),
                Beat::Held(holder) => return Err(conflict(key, holder.unwrap_or(intent))),
            }
        }
        Err(conflict(key, holder.unwrap_or(intent)))
    }

    /// One more beat of the same attempt, which is the common case; or else its first.
    async fn beat_once(
        &self,
        key: &SessionKey,
        intent: Seq,
        due_at_ms: UnixMs,
    ) -> Result<Beat, LogError> {
        match self.update_lease(key, head::beat_again(key, intent, due_at_ms)).await? {
            Moved::Now(item) => return Ok(Beat::Counted(item)),
            Moved::Refused(None) => return Ok(Beat::Held(None)),
            Moved::Refused(Some(_)) => {}
        }
        match self.update_lease(key, head::first_beat(key, intent, due_at_ms)).await? {
            Moved::Now(item) => Ok(Beat::Counted(item)),
            Moved::Refused(None) => Ok(Beat::Held(None)),
            Moved::Refused(Some(item)) => {
                let holder = find_number(&item, "lease_intent");
                Ok(Beat::Held(holder.map_err(|what| unreadable(key, what))?))
            }
        }
    }

    async fn update_lease(
        &self,
        key: &SessionKey,
        update: head::LeaseUpdate,
    ) -> Result<Moved, LogError> {
        let sent = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(head_key(key)))
            .update_expression(update.expression)
            .condition_expression(update.condition)
            .set_expression_attribute_values(Some(update.values))
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        match sent {
            Ok(answer) => Ok(Moved::Now(answer.attributes.unwrap_or_default())),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                    Ok(Moved::Refused(failed.item().cloned()))
                }
                _ => Err(sort("move the lease", &error).into()),
            },
        }
    }
}

/// What became of a write of the head.
enum Written {
    Yes,
    /// The stored head covers as much or more.
    NotNewer,
    NoHead,
}

/// What became of a write of the lease.
enum Moved {
    /// The head after it.
    Now(Item),
    /// The head that did not meet the condition, if there is one.
    Refused(Option<Item>),
}

/// What became of a beat.
enum Beat {
    /// The head after it.
    Counted(Item),
    /// The intent that holds the lease instead; `None` when nobody does.
    Held(Option<Seq>),
}
