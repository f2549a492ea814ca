//! The session log over the store.

use std::sync::Arc;

use async_trait::async_trait;
use tailstep_core::ids::{Seq, SessionKey, UnixMs};
use tailstep_runtime::ports::{
    Appended, Entry, Head, ListSessions, Log, LogError, Page, Projection,
};

use crate::store::{Answer, Beat, Op, Refusal, Store};

pub(crate) struct LocalLog {
    pub(crate) store: Arc<Store>,
}

#[async_trait]
impl Log for LocalLog {
    async fn head(&self, key: &SessionKey) -> Result<Option<Head>, LogError> {
        self.store.head(key).map_err(|refusal| log_error(key, refusal))
    }

    async fn read(
        &self,
        key: &SessionKey,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Entry>, LogError> {
        let entries =
            self.store.read(key, after, limit).map_err(|refusal| log_error(key, refusal))?;
        for (place, entry) in entries.iter().enumerate() {
            let expected = after.saturating_add(1).saturating_add(place as u64);
            if entry.seq != expected {
                return Err(log_error(key, Refusal::Missing(expected)));
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
        let op = Op::Append {
            key: Arc::new(key.clone()),
            entry: entry.clone(),
            head: Arc::new(head.clone()),
            projection,
        };
        match self.store.ask(op).await.map_err(|refusal| log_error(key, refusal))? {
            Answer::Appended(appended) => Ok(appended),
            Answer::Done | Answer::HeadSeq(_) => Ok(Appended::Now),
        }
    }

    async fn project(&self, key: &SessionKey, head: &Head) -> Result<(), LogError> {
        let op = Op::Project { key: Arc::new(key.clone()), head: Arc::new(head.clone()) };
        self.store.ask(op).await.map_err(|refusal| log_error(key, refusal))?;
        Ok(())
    }

    async fn beat(
        &self,
        key: &SessionKey,
        intent: Seq,
        due_at_ms: UnixMs,
    ) -> Result<Seq, LogError> {
        let beat = Beat { intent, due_at_ms };
        self.store.beat(key, beat).await.map_err(|refusal| log_error(key, refusal))
    }

    async fn changed(&self, key: &SessionKey, after: Seq, wait_ms: u64) -> Result<(), LogError> {
        self.store.changed(key, after, wait_ms).await;
        Ok(())
    }

    async fn due(&self, until_ms: UnixMs, limit: usize) -> Result<Vec<SessionKey>, LogError> {
        Ok(self.store.due(until_ms, limit))
    }

    async fn list(&self, tenant: &str, query: &ListSessions) -> Result<Page<Head>, LogError> {
        let key = SessionKey::new(tenant, "");
        self.store.list(tenant, query).map_err(|refusal| log_error(&key, refusal))
    }

    async fn purge(&self, key: &SessionKey) -> Result<(), LogError> {
        let op = Op::Purge { key: Arc::new(key.clone()) };
        self.store.ask(op).await.map_err(|refusal| log_error(key, refusal))?;
        Ok(())
    }
}

fn log_error(key: &SessionKey, refusal: Refusal) -> LogError {
    let session = key.session.clone();
    match refusal {
        Refusal::Conflict(seq) => LogError::Conflict { session, seq },
        Refusal::Missing(seq) => {
            LogError::Corrupt { session, seq, what: "record is missing".to_owned() }
        }
        Refusal::Unavailable(what) => LogError::Unavailable { what },
        Refusal::Refused(what) => LogError::Refused { what },
    }
}
