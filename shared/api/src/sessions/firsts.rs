//! First records, which hold a session's agent and metadata and never change.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use tailstep_core::{
    event::{Created, Event},
    ids::SessionKey,
};
use tailstep_runtime::load::read_one;

use crate::{Api, error::ApiError};

/// Remembered at once. A system prompt may have 100,000 characters, so these are few; they serve
/// clients that poll one session or page through their newest ones.
const REMEMBERED_MAX: usize = 64;

/// What sessions were created with: a cache.
#[derive(Default)]
pub(crate) struct Firsts {
    entries: Mutex<VecDeque<(SessionKey, Arc<Created>)>>,
}

impl Firsts {
    /// What `key` was created with. The caller has made sure that the session is there to be seen.
    pub(crate) async fn created(
        &self,
        api: &Api,
        key: &SessionKey,
    ) -> Result<Arc<Created>, ApiError> {
        if let Some(created) = self.remembered(key) {
            return Ok(created);
        }
        let record = read_one(api.app.runtime.log.as_ref(), key, 1).await?;
        let Some(Event::Created(created)) = record.events.into_iter().next() else {
            tracing::error!(session = %key, "a log does not begin with the session's creation");
            return Err(ApiError::internal());
        };
        let created = Arc::new(*created);
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= REMEMBERED_MAX {
            entries.pop_front();
        }
        entries.push_back((key.clone(), Arc::clone(&created)));
        Ok(created)
    }

    fn remembered(&self, key: &SessionKey) -> Option<Arc<Created>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().find(|(entry, _)| entry == key).map(|(_, created)| Arc::clone(created))
    }
}
