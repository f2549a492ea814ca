//! Who polled lately, for statistics only: this process's own view, lost with it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use tailstep_core::ids::{UnixMs, sha256_hex};

/// A worker counts for this long after its last poll.
const SEEN_MS: u64 = 30_000;

/// Workers remembered at once.
const SEEN_MAX: usize = 4_096;

#[derive(Default)]
pub(crate) struct Polling {
    /// By tenant, environment and the hash of the worker's id.
    seen: Mutex<BTreeMap<(String, String, String), UnixMs>>,
}

impl Polling {
    pub(super) fn seen(&self, tenant: &str, environment: &str, worker: &[u8], now_ms: UnixMs) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= SEEN_MAX {
            seen.retain(|_, at_ms| at_ms.saturating_add(SEEN_MS) > now_ms);
        }
        let who = (tenant.to_owned(), environment.to_owned(), sha256_hex(worker));
        if seen.len() < SEEN_MAX || seen.contains_key(&who) {
            seen.insert(who, now_ms);
        }
    }

    pub(super) fn count(&self, tenant: &str, environment: &str, now_ms: UnixMs) -> usize {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter()
            .filter(|((t, e, _), at_ms)| {
                t == tenant && e == environment && at_ms.saturating_add(SEEN_MS) > now_ms
            })
            .count()
    }
}
