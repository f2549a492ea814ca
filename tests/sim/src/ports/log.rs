//! The log behind faults.

use std::sync::{Arc, atomic::Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tailstep_core::{
    event::Event,
    ids::{Seq, SessionKey, UnixMs},
    record::Record,
};
use tailstep_runtime::ports::{
    Appended, Entry, Head, ListSessions, Log, LogError, Page, Projection,
};

use super::late::InFlight;
use crate::{
    actor::Actor,
    bug::Bug,
    fault::Fault,
    truth::{appended, projecting},
    world::{World, pass_ms},
};

pub(super) struct SimLog {
    pub(super) actor: Arc<Actor>,
}

#[async_trait]
impl Log for SimLog {
    async fn head(&self, key: &SessionKey) -> Result<Option<Head>, LogError> {
        self.actor.pause("head").await;
        self.up(Fault::ReadFails)?;
        let head = self.world().log.head(key).await?;
        let Some(head) = head else { return Ok(None) };
        if !self.world().hit(Fault::HeadStale) {
            return Ok(Some(head));
        }
        let mut state = self.world().state();
        let count = state.truths.get(key).map_or(0, |truth| truth.heads.len());
        let older = usize::try_from(state.rng.below(count as u64)).unwrap_or(0);
        let older = state.truths.get(key).and_then(|truth| truth.heads.get(older)).cloned();
        // The lease is read with the rest of the item, and no adapter may serve an old one.
        Ok(Some(match older {
            Some(older) if older.last_seq < head.last_seq => Head { lease: head.lease, ..older },
            Some(_) | None => head,
        }))
    }

    async fn read(
        &self,
        key: &SessionKey,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Entry>, LogError> {
        self.actor.pause("read").await;
        self.up(Fault::ReadFails)?;
        let world = self.world();
        if world.has(Bug::HolderDoesNotLook) && self.actor.in_effect.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let limit = match world.has(Bug::ShortPageIsTheEnd) {
            true => usize::try_from(world.between(1, 6)).unwrap_or(1).min(limit),
            false => limit,
        };
        world.log.read(key, after, limit).await
    }

    async fn append(
        &self,
        key: &SessionKey,
        entry: &Entry,
        head: &Head,
        projection: Projection,
    ) -> Result<Appended, LogError> {
        let mut late = self.late_append(key, entry, head, projection);
        self.actor.has_acted();
        if self.world().plan.on(Fault::AgainDelayed)
            && is_again(&entry.body)
            && self.world().hit(Fault::AgainDelayed)
        {
            self.actor.freeze().await;
        }
        self.actor.pause("append").await;
        self.up(Fault::AppendFailsBefore)?;
        late.done();
        let done = self.place(key, entry, head, projection).await;
        if done.is_ok() {
            self.actor.has_appended.store(true, Ordering::Relaxed);
            self.actor.pause("appended").await;
            if self.world().hit(Fault::AppendFailsAfter) {
                return Err(self.trouble("the answer was lost"));
            }
        }
        done
    }

    async fn project(&self, key: &SessionKey, head: &Head) -> Result<(), LogError> {
        self.actor.pause("project").await;
        self.up(Fault::ProjectFails)?;
        if self.world().has(Bug::HeadNotRepaired) {
            return Ok(());
        }
        projecting(self.world(), key, head);
        self.world().log.project(key, head).await
    }

    async fn beat(
        &self,
        key: &SessionKey,
        intent: Seq,
        due_at_ms: UnixMs,
    ) -> Result<Seq, LogError> {
        let mut late = InFlight::new(self.actor_world(), || {
            let (world, key) = (self.actor_world().clone(), key.clone());
            Box::pin(async move {
                // Whoever sent it does not hear of it.
                let _ = beat(&world, &key, intent, due_at_ms).await;
            })
        });
        self.actor.pause("beat").await;
        self.up(Fault::BeatFails)?;
        late.done();
        let beaten = beat(self.world(), key, intent, due_at_ms).await;
        self.actor.pause("beaten").await;
        beaten
    }

    async fn changed(&self, key: &SessionKey, after: Seq, wait_ms: u64) -> Result<(), LogError> {
        self.actor.pause("changed").await;
        self.up(Fault::ChangedFails)?;
        if self.world().hit(Fault::ChangedEarly) {
            pass_ms(1).await;
            return Ok(());
        }
        self.world().log.changed(key, after, wait_ms).await?;
        self.actor.thaw().await;
        Ok(())
    }

    async fn due(&self, until_ms: UnixMs, limit: usize) -> Result<Vec<SessionKey>, LogError> {
        self.actor.pause("due").await;
        self.up(Fault::ReadFails)?;
        let mut due = self.world().log.due(until_ms, limit).await?;
        due.retain(|_| !self.world().hit(Fault::DueLags));
        self.world().with(|state| due.extend(state.due_for_ever.iter().cloned()));
        Ok(due)
    }

    async fn list(&self, tenant: &str, query: &ListSessions) -> Result<Page<Head>, LogError> {
        self.world().log.list(tenant, query).await
    }

    async fn purge(&self, key: &SessionKey) -> Result<(), LogError> {
        self.world().log.purge(key).await
    }
}

impl SimLog {
    fn world(&self) -> &World {
        &self.actor.world
    }

    fn actor_world(&self) -> &Arc<World> {
        &self.actor.world
    }

    /// The store answers, unless it is out of reach or `fault` strikes.
    fn up(&self, fault: Fault) -> Result<(), LogError> {
        let until_ms = self.world().state().outage_until_ms;
        if self.world().now_ms() < until_ms {
            return Err(self.trouble("it is out of reach"));
        }
        match self.world().hit(fault) {
            true => Err(self.trouble(fault.name())),
            false => Ok(()),
        }
    }

    fn trouble(&self, what: &str) -> LogError {
        self.world().state().notes.trouble(self.actor.id);
        LogError::Unavailable { what: what.to_owned() }
    }

    fn late_append(
        &self,
        key: &SessionKey,
        entry: &Entry,
        head: &Head,
        projection: Projection,
    ) -> InFlight {
        InFlight::new(self.actor_world(), || {
            let (world, id) = (self.actor_world().clone(), self.actor.id);
            let (key, entry, head) = (key.clone(), entry.clone(), head.clone());
            Box::pin(async move {
                let projection = match projection {
                    // Its second half is sent by nobody.
                    Projection::Follow => Projection::Lag,
                    Projection::Lag | Projection::Atomic => projection,
                };
                let _ = put(&world, id, &key, &entry, &head, projection).await;
                // Whoever sent it has given up or is dead.
                world.with(|state| {
                    if let Some(life) = state.notes.lives.get_mut(&(key, entry.seq)) {
                        life.over = true;
                    }
                });
            })
        })
    }

    /// Appends, and writes the head as the projection says.
    async fn place(
        &self,
        key: &SessionKey,
        entry: &Entry,
        head: &Head,
        projection: Projection,
    ) -> Result<Appended, LogError> {
        let world = self.actor_world();
        // Nothing else is written so.
        if projection == Projection::Lag {
            self.actor.intent.store(entry.seq, Ordering::Relaxed);
            if world.has(Bug::EffectBeforeIntent) && is_tool_intent(&entry.body) {
                // Taken at its word; the record is written when the tool has run.
                *self.actor.postponed() = Some((key.clone(), entry.clone(), head.clone()));
                return Ok(Appended::Now);
            }
        }
        if projection != Projection::Follow {
            return self.put_or_err(key, entry, head, projection).await;
        }
        let done = self.put_or_err(key, entry, head, Projection::Lag).await?;
        if done == Appended::AlreadyMine && world.has(Bug::OutcomeDroppedOnConflict) {
            return Ok(done);
        }
        self.actor.pause("between record and head").await;
        if !world.hit(Fault::FollowLost) {
            projecting(world, key, head);
            world.log.project(key, head).await?;
        }
        world.trace(self.actor.name(), || format!("wrote {key} #{}", entry.seq));
        Ok(done)
    }

    /// Where the bugs of careless appends live.
    async fn put_or_err(
        &self,
        key: &SessionKey,
        entry: &Entry,
        head: &Head,
        projection: Projection,
    ) -> Result<Appended, LogError> {
        let (world, id) = (self.actor_world(), self.actor.id);
        let done = put(world, id, key, entry, head, projection).await;
        match done {
            Ok(Appended::AlreadyMine) if world.has(Bug::NonceIgnored) => {
                Err(LogError::Conflict { session: key.session.clone(), seq: entry.seq })
            }
            Err(LogError::Conflict { .. }) if world.has(Bug::UnconditionalAppend) => {
                world.log.lose(key, entry.seq);
                put(world, id, key, entry, head, projection).await
            }
            Err(LogError::Conflict { .. }) if world.has(Bug::RenumberOnConflict) => {
                let entry =
                    renumbered(entry, world.state().truths.get(key).map_or(0, |t| t.session.seq));
                put(world, id, key, &entry, head, Projection::Lag).await
            }
            Err(LogError::Conflict { .. })
                if world.has(Bug::OutcomeDroppedOnConflict) && is_outcome(&entry.body) =>
            {
                Ok(Appended::AlreadyMine)
            }
            done => done,
        }
    }
}

/// Appends to the store and takes note of what it accepted.
pub(super) async fn put(
    world: &World,
    id: usize,
    key: &SessionKey,
    entry: &Entry,
    head: &Head,
    projection: Projection,
) -> Result<Appended, LogError> {
    let done = world.log.append(key, entry, head, projection).await?;
    if done == Appended::Now {
        appended(world, id, key, entry);
    }
    match projection {
        Projection::Lag => {}
        Projection::Follow | Projection::Atomic => projecting(world, key, head),
    }
    Ok(done)
}

async fn beat(
    world: &World,
    key: &SessionKey,
    intent: Seq,
    due_at_ms: UnixMs,
) -> Result<Seq, LogError> {
    if !world.plan.nets.lease || world.has(Bug::HolderDoesNotBeat) {
        return Ok(intent);
    }
    let now_ms = world.now_ms();
    let beaten = world.log.beat(key, intent, due_at_ms).await;
    match &beaten {
        Ok(_) => world.with(|state| state.notes.sign(key, intent, now_ms)),
        Err(_) if world.has(Bug::BeatMakesIdleDue) => {
            world.with(|state| {
                state.due_for_ever.insert(key.clone());
            });
        }
        Err(_) => {}
    }
    beaten
}

fn events(body: &Bytes) -> Vec<Event> {
    Record::decode(body).map(|record| record.events).unwrap_or_default()
}

/// An intent that is not the first of its effect.
fn is_again(body: &Bytes) -> bool {
    events(body).iter().any(|event| {
        matches!(event, Event::ModelStarted(started) if started.attempt > 1)
            || matches!(event, Event::ToolStarted(started) if started.attempt > 1)
    })
}

fn is_tool_intent(body: &Bytes) -> bool {
    events(body).iter().any(|event| matches!(event, Event::ToolStarted(_)))
}

fn is_outcome(body: &Bytes) -> bool {
    events(body).iter().any(|event| match event {
        Event::ModelAnswered(_) | Event::ModelFailed(_) => true,
        Event::ToolFinished(finished) => finished.intent.is_some(),
        Event::Created(_)
        | Event::Received(_)
        | Event::ModelStarted(_)
        | Event::ToolStarted(_)
        | Event::ActionRequired(_)
        | Event::TurnEnded(_)
        | Event::Fenced(_)
        | Event::Ended(_) => false,
    })
}

fn renumbered(entry: &Entry, last: Seq) -> Entry {
    let Ok(mut record) = Record::decode(&entry.body) else { return entry.clone() };
    record.seq = last + 1;
    let body = record.encode().map(Bytes::from).unwrap_or_else(|_| entry.body.clone());
    Entry { seq: record.seq, nonce: entry.nonce.clone(), body }
}
