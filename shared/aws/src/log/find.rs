//! Sessions by due time and by tenant. Both indexes hold keys only and lag a little behind.

use aws_sdk_dynamodb::types::KeysAndAttributes;
use tailstep_core::ids::{SessionKey, UnixMs};
use tailstep_runtime::ports::{Head, ListSessions, LogError, Page};

use super::{DynamoLog, head, page_limit, pause_between_rounds, unreadable};
use crate::{
    item::{Item, get_number, get_text, number, split_key, text},
    log::head::{DUE_INDEX, DUE_SHARDS, TENANT_INDEX, due_partition},
    trouble::sort,
};

/// Keys in one `BatchGetItem` (service limit).
const BATCH_GET_MAX: usize = 100;

impl DynamoLog {
    pub(super) async fn find_due(
        &self,
        until_ms: UnixMs,
        limit: usize,
    ) -> Result<Vec<SessionKey>, LogError> {
        let mut found = Vec::new();
        for shard in 0..DUE_SHARDS {
            found.extend(self.find_due_in(shard, until_ms, limit).await?);
        }
        found.sort();
        found.truncate(limit);
        Ok(found.into_iter().map(|(_, key)| key).collect())
    }

    async fn find_due_in(
        &self,
        shard: u8,
        until_ms: UnixMs,
        limit: usize,
    ) -> Result<Vec<(UnixMs, SessionKey)>, LogError> {
        let mut found = Vec::new();
        let mut resume = None;
        while found.len() < limit {
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
            if resume.is_none() {
                break;
            }
        }
        Ok(found)
    }

    pub(super) async fn list_heads(
        &self,
        tenant: &str,
        query: &ListSessions,
    ) -> Result<Page<Head>, LogError> {
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

    /// Keys of the wanted heads and of one more, if there is one.
    async fn list_keys(&self, tenant: &str, query: &ListSessions) -> Result<Vec<Item>, LogError> {
        let wanted = query.limit.saturating_add(1);
        let condition = match (&query.after, query.descending) {
            (None, _) => "list_pk = :tenant",
            (Some(_), false) => "list_pk = :tenant AND list_sk > :after",
            (Some(_), true) => "list_pk = :tenant AND list_sk < :after",
        };
        let mut values = Item::from([(":tenant".to_owned(), text(head::list_partition(tenant)))]);
        if let Some(after) = &query.after {
            values.insert(":after".to_owned(), text(after));
        }
        let mut keys: Vec<Item> = Vec::new();
        let mut resume = None;
        while keys.len() < wanted {
            let page = self
                .client
                .query()
                .table_name(&self.table)
                .index_name(TENANT_INDEX)
                .key_condition_expression(condition)
                .set_expression_attribute_values(Some(values.clone()))
                .scan_index_forward(!query.descending)
                .limit(page_limit(wanted - keys.len()))
                .set_exclusive_start_key(resume)
                .send()
                .await
                .map_err(|error| sort("list sessions", &error))?;
            resume = page.last_evaluated_key;
            for mut item in page.items.unwrap_or_default() {
                // What is left is the table's own key.
                item.retain(|name, _| name == "pk" || name == "sk");
                keys.push(item);
            }
            if resume.is_none() {
                break;
            }
        }
        Ok(keys)
    }

    /// The heads of up to 100 keys, in no order. One that was removed meanwhile is left out.
    async fn get_heads(&self, keys: &[Item]) -> Result<Vec<Head>, LogError> {
        let mut heads = Vec::with_capacity(keys.len());
        let mut left = keys.to_vec();
        let mut round = 0;
        while !left.is_empty() {
            pause_between_rounds(&mut round, "read heads").await?;
            let request = KeysAndAttributes::builder()
                .set_keys(Some(left))
                .build()
                .map_err(|error| LogError::Refused { what: error.to_string() })?;
            let answer = self
                .client
                .batch_get_item()
                .request_items(&self.table, request)
                .send()
                .await
                .map_err(|error| sort("read heads", &error))?;
            let found = answer.responses().and_then(|tables| tables.get(&self.table));
            for item in found.into_iter().flatten() {
                let key = session_key(item).map_err(|what| LogError::Refused { what })?;
                heads.push(head::decode(item).map_err(|what| unreadable(&key, what))?);
            }
            let rest = answer.unprocessed_keys.and_then(|mut tables| tables.remove(&self.table));
            left = rest.map(|rest| rest.keys).unwrap_or_default();
        }
        Ok(heads)
    }
}

fn session_key(item: &Item) -> Result<SessionKey, String> {
    let pk = get_text(item, "pk")?;
    match split_key(pk).as_slice() {
        [tenant, session] => Ok(SessionKey::new(tenant, session)),
        _ => Err(format!("partition key {pk} does not name a session")),
    }
}
