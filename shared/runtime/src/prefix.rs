//! A warm worker's memory of conversations it has read: purely a cache of immutable prefixes. Losing
//! it costs a read of the whole log, nothing else.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use tailstep_core::{
    context::Context,
    ids::{Seq, SessionKey},
};

use crate::{error::RuntimeError, load::read, ports::Log};

/// Records read in one call; a model call needs them all.
const BATCH: usize = 1_000;

/// Conversations by session, least recently used out first.
#[derive(Debug)]
pub struct Prefixes {
    entries_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    uses: u64,
    entries: BTreeMap<SessionKey, Entry>,
}

#[derive(Debug)]
struct Entry {
    used: u64,
    seq: Seq,
    context: Context,
}

impl Prefixes {
    /// Keeps up to `entries_max` conversations; 0 switches the cache off.
    pub fn new(entries_max: usize) -> Self {
        Self { entries_max, state: Mutex::default() }
    }

    /// The conversation up to and including record `seq`.
    ///
    /// # Errors
    /// When the log is out of reach, or ends before `seq`.
    pub async fn context(
        &self,
        log: &dyn Log,
        key: &SessionKey,
        seq: Seq,
    ) -> Result<Context, RuntimeError> {
        let (mut at, mut context) = self.take(key, seq).unwrap_or_default();
        while at < seq {
            // Never more than `seq`: what came later is not part of this request.
            let wanted = usize::try_from(seq - at).unwrap_or(BATCH).min(BATCH);
            let records = read(log, key, at, wanted).await?;
            if records.is_empty() {
                return Err(RuntimeError::NotFound { session: key.session.clone() });
            }
            for record in &records {
                context.push(record);
                at = record.seq;
            }
        }
        Ok(context)
    }

    /// Gives a conversation back for the next step.
    pub fn keep(&self, key: &SessionKey, seq: Seq, context: Context) {
        if self.entries_max == 0 {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.uses += 1;
        let used = state.uses;
        state.entries.insert(key.clone(), Entry { used, seq, context });
        if state.entries.len() > self.entries_max {
            let oldest = state.entries.iter().min_by_key(|(_, entry)| entry.used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                state.entries.remove(&oldest);
            }
        }
    }

    fn take(&self, key: &SessionKey, seq: Seq) -> Option<(Seq, Context)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = state.entries.remove(key)?;
        (entry.seq <= seq).then_some((entry.seq, entry.context))
    }
}
