//! One item of a self-hosted environment's work queue: "serve this session for a while". The state
//! machine alone; where items are kept and how they are found is the runtime's.
//!
//! ```text
//! queued ─poll→ queued, hidden ─ack→ starting ─first heartbeat→ active
//!    ▲                                   └── the lease runs out ───┤
//!    └──────────────────────────────────────────────────────────────┘
//! any ─stop→ stopping ─the worker goes, or the lease runs out→ stopped      any ─forced stop→ stopped
//! ```
//!
//! Times are the server's. A lease that is judged too early costs a call that runs twice; its second
//! result is never taken ([`crate::session::Session::apply`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::UnixMs;

/// A lease when its worker names no time, and that of an item between its acknowledgement and its
/// first heartbeat. Official workers beat every 30 s at the latest.
pub const LEASE_S_DEFAULT: u32 = 60;
/// A worker that is gone must not hold a session for longer.
pub const LEASE_S_MAX: u32 = 300;
/// Shorter ones run out between two beats, which are at least a second apart.
pub const LEASE_S_MIN: u32 = 2;

/// An item that comes back to the queue again and again, because its workers stop before the session
/// rests, waits this long the second time, then twice as long each time.
const RETURN_FIRST_MS: u64 = 2_000;
const RETURN_MAX_MS: u64 = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkState {
    /// Waits for a worker.
    Queued,
    /// A worker has taken it and not beaten yet.
    Starting,
    Active,
    /// Its worker is to go.
    Stopping,
    Stopped,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkItem {
    pub id: String,
    pub environment: String,
    pub session: String,
    pub state: WorkState,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    pub created_at_ms: UnixMs,
    /// Since then it waits for a worker.
    pub queued_at_ms: UnixMs,
    /// Nobody gets it before.
    #[serde(default)]
    pub not_before_ms: UnixMs,
    /// A worker was given it then and has not acknowledged it yet.
    #[serde(default)]
    pub polled_at_ms: Option<UnixMs>,
    #[serde(default)]
    pub acknowledged_at_ms: Option<UnixMs>,
    /// The first heartbeat.
    #[serde(default)]
    pub started_at_ms: Option<UnixMs>,
    #[serde(default)]
    pub beat_at_ms: Option<UnixMs>,
    #[serde(default)]
    pub stop_requested_at_ms: Option<UnixMs>,
    #[serde(default)]
    pub stopped_at_ms: Option<UnixMs>,
    /// Holds while the item is starting, active or stopping.
    #[serde(default)]
    pub lease_until_ms: UnixMs,
    #[serde(default)]
    pub lease_s: u32,
    /// SHA-256 of the secret that its worker was given.
    #[serde(default)]
    pub token_sha256: Option<String>,
    /// How many items of this session in a row ended before the session rested.
    #[serde(default)]
    pub returns: u32,
}

/// What a heartbeat says about the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// It does not say.
    Any,
    /// There was none.
    None,
    /// That was its time.
    At(UnixMs),
    /// Something that no heartbeat was ever answered with.
    Unknown,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    pub item: WorkItem,
    pub extended: bool,
}

/// Why a transition is refused. The item stays as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WorkRefused {
    /// The item ended, or is about to.
    #[error("the work item is {0:?}")]
    Over(WorkState),
    /// Another worker may hold the lease.
    #[error("the heartbeat does not follow the last one")]
    NotHolder,
}

impl WorkItem {
    pub fn new(id: String, environment: String, session: String, now_ms: UnixMs) -> Self {
        Self {
            id,
            environment,
            session,
            state: WorkState::Queued,
            metadata: BTreeMap::new(),
            created_at_ms: now_ms,
            queued_at_ms: now_ms,
            not_before_ms: 0,
            polled_at_ms: None,
            acknowledged_at_ms: None,
            started_at_ms: None,
            beat_at_ms: None,
            stop_requested_at_ms: None,
            stopped_at_ms: None,
            lease_until_ms: 0,
            lease_s: LEASE_S_DEFAULT,
            token_sha256: None,
            returns: 0,
        }
    }

    /// The item as it is at `now_ms`: a lease that has run out puts it back into the queue, or ends
    /// it when it was to stop.
    pub fn at(self, now_ms: UnixMs) -> Self {
        if self.lease_until_ms > now_ms {
            return self;
        }
        match self.state {
            WorkState::Queued | WorkState::Stopped => self,
            WorkState::Starting | WorkState::Active => Self {
                state: WorkState::Queued,
                queued_at_ms: self.lease_until_ms,
                polled_at_ms: None,
                acknowledged_at_ms: None,
                started_at_ms: None,
                beat_at_ms: None,
                token_sha256: None,
                ..self
            },
            WorkState::Stopping => {
                let stopped_at_ms = Some(self.lease_until_ms);
                Self { state: WorkState::Stopped, stopped_at_ms, token_sha256: None, ..self }
            }
        }
    }

    /// Whether a worker may be given it; one that was given out and not acknowledged for
    /// `reclaim_ms` may be given out again.
    pub fn is_free(&self, now_ms: UnixMs, reclaim_ms: u64) -> bool {
        self.state == WorkState::Queued
            && now_ms >= self.not_before_ms
            && self.polled_at_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= reclaim_ms)
    }

    /// Whether a holder of the secret with this hash may act for it.
    pub fn is_held_with(&self, token_sha256: &str) -> bool {
        let holds = match self.state {
            WorkState::Queued => self.polled_at_ms.is_some(),
            WorkState::Starting | WorkState::Active | WorkState::Stopping => true,
            WorkState::Stopped => false,
        };
        holds && self.token_sha256.as_deref() == Some(token_sha256)
    }

    /// Given to a worker, whose secret has this hash; earlier secrets are void from now on.
    #[must_use]
    pub fn polled(self, now_ms: UnixMs, token_sha256: String) -> Self {
        Self { polled_at_ms: Some(now_ms), token_sha256: Some(token_sha256), ..self }
    }

    /// Its worker has begun. Doing it again changes nothing.
    ///
    /// # Errors
    /// [`WorkRefused::Over`].
    pub fn acknowledged(self, now_ms: UnixMs) -> Result<Self, WorkRefused> {
        match self.state {
            WorkState::Queued => Ok(Self {
                state: WorkState::Starting,
                acknowledged_at_ms: Some(now_ms),
                lease_until_ms: until(now_ms, LEASE_S_DEFAULT),
                lease_s: LEASE_S_DEFAULT,
                ..self
            }),
            WorkState::Starting | WorkState::Active => Ok(self),
            state @ (WorkState::Stopping | WorkState::Stopped) => Err(WorkRefused::Over(state)),
        }
    }

    /// Its worker lives. Beats have times that differ, so that each names the one before it.
    ///
    /// # Errors
    /// [`WorkRefused::NotHolder`]. An item that ends is not compared: its worker is to see that.
    pub fn beaten(
        self,
        expected: Expected,
        lease_s: Option<u32>,
        now_ms: UnixMs,
    ) -> Result<Beat, WorkRefused> {
        match self.state {
            WorkState::Stopping | WorkState::Stopped => {
                return Ok(Beat { item: self, extended: false });
            }
            WorkState::Queued => return Err(WorkRefused::NotHolder),
            WorkState::Starting | WorkState::Active => {}
        }
        let follows = match expected {
            Expected::Any => true,
            Expected::None => self.beat_at_ms.is_none(),
            Expected::At(at_ms) => self.beat_at_ms == Some(at_ms),
            Expected::Unknown => false,
        };
        if !follows {
            return Err(WorkRefused::NotHolder);
        }
        let lease_s = lease_s.unwrap_or(LEASE_S_DEFAULT).clamp(LEASE_S_MIN, LEASE_S_MAX);
        let beat_at_ms = self.beat_at_ms.map_or(now_ms, |last| now_ms.max(last.saturating_add(1)));
        let item = Self {
            state: WorkState::Active,
            started_at_ms: self.started_at_ms.or(Some(now_ms)),
            beat_at_ms: Some(beat_at_ms),
            lease_until_ms: until(now_ms, lease_s),
            lease_s,
            ..self
        };
        Ok(Beat { item, extended: true })
    }

    /// Asks its worker to go, and gives it the time of a lease for that.
    ///
    /// # Errors
    /// [`WorkRefused::Over`] when it has stopped already.
    pub fn stopping(self, now_ms: UnixMs) -> Result<Self, WorkRefused> {
        match self.state {
            WorkState::Stopped => Err(WorkRefused::Over(self.state)),
            WorkState::Stopping => Ok(self),
            WorkState::Queued | WorkState::Starting | WorkState::Active => Ok(Self {
                state: WorkState::Stopping,
                stop_requested_at_ms: Some(now_ms),
                lease_until_ms: until(now_ms, self.lease_s),
                ..self
            }),
        }
    }

    /// Ends it now.
    ///
    /// # Errors
    /// [`WorkRefused::Over`] when it has stopped already.
    pub fn stopped(self, now_ms: UnixMs) -> Result<Self, WorkRefused> {
        if self.state == WorkState::Stopped {
            return Err(WorkRefused::Over(self.state));
        }
        Ok(Self {
            state: WorkState::Stopped,
            stop_requested_at_ms: self.stop_requested_at_ms.or(Some(now_ms)),
            stopped_at_ms: Some(now_ms),
            token_sha256: None,
            ..self
        })
    }

    /// The item that follows this one, for a session that still needs hands. The first comes at
    /// once, so that another worker goes on; a session that every worker gives back comes ever later.
    #[must_use]
    pub fn returned(&self, id: String, now_ms: UnixMs) -> Self {
        let wait_ms = match self.returns {
            0 => 0,
            n => RETURN_FIRST_MS.saturating_mul(1 << (n - 1).min(10)).min(RETURN_MAX_MS),
        };
        let next = Self::new(id, self.environment.clone(), self.session.clone(), now_ms);
        Self {
            not_before_ms: now_ms.saturating_add(wait_ms),
            returns: self.returns.saturating_add(1),
            ..next
        }
    }
}

fn until(now_ms: UnixMs, lease_s: u32) -> UnixMs {
    now_ms.saturating_add(u64::from(lease_s) * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "hash";

    fn item() -> WorkItem {
        WorkItem::new("work_1".to_owned(), "env_1".to_owned(), "sesn_1".to_owned(), 1_000)
    }

    /// Polled at 2,000, acknowledged at 3,000, beaten at 4,000 for ten seconds.
    fn active() -> WorkItem {
        let started = item().polled(2_000, TOKEN.to_owned()).acknowledged(3_000).unwrap();
        started.beaten(Expected::None, Some(10), 4_000).unwrap().item
    }

    #[test]
    fn an_item_is_given_to_one_worker_at_a_time() {
        assert!(item().is_free(1_000, 5_000));
        let polled = item().polled(2_000, TOKEN.to_owned());
        assert!(!polled.is_free(6_999, 5_000));
        assert!(polled.is_free(7_000, 5_000));
        assert!(polled.is_held_with(TOKEN) && !polled.is_held_with("other"));
        let again = polled.clone().polled(7_000, "other".to_owned());
        assert!(!again.is_held_with(TOKEN), "the first worker's secret is void");
        let starting = polled.acknowledged(3_000).unwrap();
        assert!(!starting.is_free(u64::MAX, 0));
        assert_eq!(starting.clone().acknowledged(9_000).unwrap(), starting);
    }

    #[test]
    fn heartbeats_follow_one_another() {
        let active = active();
        assert_eq!((active.state, active.beat_at_ms), (WorkState::Active, Some(4_000)));
        let beat = |expected, now_ms| active.clone().beaten(expected, Some(10), now_ms);
        assert!(beat(Expected::At(4_000), 5_000).unwrap().extended);
        assert!(beat(Expected::Any, 5_000).unwrap().extended);
        for wrong in [Expected::None, Expected::At(3_999), Expected::Unknown] {
            assert_eq!(beat(wrong, 5_000), Err(WorkRefused::NotHolder));
        }
        // Within one millisecond, or with a clock that went back.
        let next = beat(Expected::At(4_000), 4_000).unwrap().item;
        assert_eq!(next.beat_at_ms, Some(4_001));
        let not_taken = item().beaten(Expected::None, None, 2_000);
        assert_eq!(not_taken, Err(WorkRefused::NotHolder));
        let long = active.clone().beaten(Expected::Any, Some(9_999), 5_000).unwrap().item;
        assert_eq!(long.lease_s, LEASE_S_MAX);
        let stopping = active.stopping(5_000).unwrap();
        let told = stopping.beaten(Expected::Unknown, None, 6_000).unwrap();
        assert!(!told.extended);
    }

    #[test]
    fn a_lease_that_runs_out_puts_the_item_back() {
        assert_eq!(active().at(13_999), active());
        let back = active().at(14_000);
        assert_eq!((back.state, back.queued_at_ms), (WorkState::Queued, 14_000));
        assert!(back.is_free(14_000, 5_000) && !back.is_held_with(TOKEN));
        assert_eq!((back.acknowledged_at_ms, back.beat_at_ms), (None, None));
        let starting = item().polled(2_000, TOKEN.to_owned()).acknowledged(3_000).unwrap();
        assert_eq!(starting.at(63_000).state, WorkState::Queued);
        let stopping = active().stopping(5_000).unwrap();
        let stopped = stopping.at(15_000);
        assert_eq!((stopped.state, stopped.stopped_at_ms), (WorkState::Stopped, Some(15_000)));
    }

    #[test]
    fn stopping_is_asked_for_and_forced_once() {
        let stopping = active().stopping(5_000).unwrap();
        assert_eq!(stopping.clone().stopping(6_000).unwrap(), stopping);
        assert!(stopping.is_held_with(TOKEN), "the worker still posts what it has");
        let over = WorkRefused::Over(WorkState::Stopping);
        assert_eq!(stopping.clone().acknowledged(6_000), Err(over));
        let stopped = stopping.stopped(7_000).unwrap();
        assert_eq!(stopped.stop_requested_at_ms, Some(5_000));
        assert!(!stopped.is_held_with(TOKEN));
        let over = WorkRefused::Over(WorkState::Stopped);
        assert_eq!(stopped.clone().stopped(8_000), Err(over));
        assert_eq!(stopped.clone().stopping(8_000), Err(over));
        assert_eq!(stopped.clone().acknowledged(8_000), Err(over));
        assert_eq!(stopped.clone().at(u64::MAX), stopped);
    }

    #[test]
    fn what_comes_back_again_and_again_comes_ever_later() {
        let mut last = item();
        let mut waits = Vec::new();
        for n in 0..8 {
            let next = last.returned(format!("work_{n}"), 0);
            waits.push(next.not_before_ms);
            last = next;
        }
        assert_eq!(waits, [0, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        assert!(!last.is_free(59_999, 0) && last.is_free(60_000, 0));
    }

    #[test]
    fn a_stored_item_is_read_without_later_fields() {
        let text = r#"{"id":"w","environment":"e","session":"s","state":"queued",
            "created_at_ms":1,"queued_at_ms":1}"#;
        let read: WorkItem = serde_json::from_str(text).unwrap();
        assert!(read.is_free(1, 0));
    }
}
