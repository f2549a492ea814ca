//! Which sandboxes live, who uses them, and which one goes when room is needed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tailstep_core::ids::SessionKey;
use tailstep_sandbox::Sandbox;
use tokio::sync::{
    Mutex as AsyncMutex, Notify, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, watch,
};

use super::way_out::WayOut;

type Place = Arc<AsyncMutex<Option<Live>>>;

pub(super) struct Pool {
    slots: Mutex<BTreeMap<SessionKey, Slot>>,
    /// One permit for each sandbox that may live.
    room: Arc<Semaphore>,
    /// Somebody has stopped using a sandbox.
    idle: Notify,
}

/// One session. A place that is locked is being filled or emptied; calls do not hold it.
struct Slot {
    place: Place,
    users: usize,
    used: Instant,
}

#[derive(Clone)]
pub(super) struct Live {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) way_out: Option<Arc<WayOut>>,
    pub(super) born: Instant,
    stop: Arc<watch::Sender<bool>>,
    _room: Arc<OwnedSemaphorePermit>,
}

impl Live {
    pub(super) fn new(
        sandbox: Sandbox,
        way_out: Option<WayOut>,
        room: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            sandbox: Arc::new(sandbox),
            way_out: way_out.map(Arc::new),
            born: Instant::now(),
            stop: Arc::new(watch::Sender::new(false)),
            _room: Arc::new(room),
        }
    }

    /// Waits until somebody ends it.
    pub(super) async fn stopped(&self) {
        // The sender lives as long as this value.
        let _ = self.stop.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// Stops what it is doing, and returns when nothing of it is left.
    pub(super) async fn end(self) {
        self.stop.send_replace(true);
        self.sandbox.destroy().await;
    }
}

/// A session whose sandbox is not taken away while this lives.
pub(super) struct Use<'a> {
    pool: &'a Pool,
    key: SessionKey,
    place: Place,
}

impl Pool {
    pub(super) fn new(live_max: usize) -> Self {
        let room = Arc::new(Semaphore::new(live_max.max(1)));
        Self { slots: Mutex::default(), room, idle: Notify::new() }
    }

    pub(super) fn live(&self, live_max: usize) -> usize {
        live_max.max(1).saturating_sub(self.room.available_permits())
    }

    pub(super) fn enter(&self, key: &SessionKey) -> Use<'_> {
        let mut slots = self.slots();
        let slot = slots.entry(key.clone()).or_insert_with(|| Slot {
            place: Place::default(),
            users: 0,
            used: Instant::now(),
        });
        slot.users += 1;
        Use { pool: self, key: key.clone(), place: slot.place.clone() }
    }

    /// Room for one more sandbox, made by ending the one that has been idle for longest if need be;
    /// waits while all are in use. `None` once the pool is closed.
    pub(super) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            let idle = self.idle.notified();
            if let Ok(room) = self.room.clone().try_acquire_owned() {
                return Some(room);
            }
            if self.room.is_closed() {
                return None;
            }
            if let Some(oldest) = self.take_idle(Duration::ZERO) {
                end(oldest).await;
                continue;
            }
            tokio::select! {
                room = self.room.clone().acquire_owned() => return room.ok(),
                () = idle => {}
            }
        }
    }

    /// Ends what nobody has used for `idle`.
    pub(super) async fn end_idle(&self, idle: Duration) {
        while let Some(place) = self.take_idle(idle) {
            end(place).await;
        }
        let empty = |slot: &Slot| slot.place.try_lock().is_ok_and(|live| live.is_none());
        self.slots().retain(|_, slot| slot.users > 0 || !empty(slot));
    }

    pub(super) async fn close(&self) {
        self.room.close();
        let places: Vec<Place> = self.slots().values().map(|slot| slot.place.clone()).collect();
        for place in places {
            end(place.lock_owned().await).await;
        }
    }

    /// The sandbox that has been idle for longest, and at least for `idle`; its place is locked, so
    /// that the session's next call waits until it has ended.
    fn take_idle(&self, idle: Duration) -> Option<OwnedMutexGuard<Option<Live>>> {
        let slots = self.slots();
        let mut free: Vec<&Slot> =
            slots.values().filter(|s| s.users == 0 && s.used.elapsed() >= idle).collect();
        free.sort_by_key(|slot| slot.used);
        let mut places = free.into_iter().filter_map(|s| s.place.clone().try_lock_owned().ok());
        places.find(|place| place.is_some())
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<SessionKey, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn end(mut place: OwnedMutexGuard<Option<Live>>) {
    if let Some(live) = place.take() {
        live.end().await;
    }
}

impl Use<'_> {
    pub(super) fn slot(&self) -> Place {
        self.place.clone()
    }

    /// The next call gets another sandbox than `dead`.
    pub(super) async fn forget(&self, dead: &Live) {
        let mut held = self.place.lock().await;
        if held.as_ref().is_some_and(|live| Arc::ptr_eq(&live.sandbox, &dead.sandbox)) {
            *held = None;
        }
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.pool.slots().get_mut(&self.key) {
            slot.users -= 1;
            slot.used = Instant::now();
        }
        self.pool.idle.notify_one();
    }
}
