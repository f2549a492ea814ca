//! Who acts in a run: workers, the people and the servers they talk to, the sweeper, and noise.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tailstep_core::{
    agent::{AgentSpec, EnvironmentSpec, ModelSpec, ToolEntry},
    content::Content,
    event::{Created, Input},
    ids::SessionKey,
};
use tailstep_runtime::{
    error::RuntimeError,
    ingress::{self, IngressError},
    ports::{Observed, Queue, Wake},
    step::{Report, StepOutcome, step},
    sweep::sweep,
};
use tokio::time::{Instant, timeout};

use crate::{
    actor::{Actor, Role},
    fault::Fault,
    notes::{ActorId, Notes, Sent},
    plan::{Act, Script, Step, When},
    ports,
    world::{World, pass_ms},
};

/// Workers ask for work for this long at a time.
const RECEIVE_WAIT_MS: u64 = 600_000;

/// How often the sweeper's schedule fires, in leases; 60 s with the default lease.
const SWEEP_LEASES: u64 = 4;

/// A place for workers: when one dies, another starts a while later.
pub async fn workers(world: Arc<World>) {
    loop {
        let actor = world.enter(Role::Worker);
        tokio::select! {
            biased;
            () = actor.death() => {}
            () = work(&actor) => {}
        }
        pass_ms(world.between(10, world.plan.restart_ms_max)).await;
    }
}

/// Takes messages until the process is killed at its time limit.
async fn work(actor: &Arc<Actor>) {
    let world = &actor.world;
    let runtime = ports::runtime(actor);
    loop {
        let Ok(deliveries) = runtime.queue.receive(1, RECEIVE_WAIT_MS).await else {
            pass_ms(500).await;
            continue;
        };
        for delivery in deliveries {
            let limit = world.plan.deadline_ms.map(Duration::from_millis);
            let deadline = limit.map(|limit| (Instant::now() + limit).into_std());
            let work = step(&runtime, &delivery, deadline);
            let done = match limit {
                None => work.await,
                Some(limit) => match timeout(limit, work).await {
                    Ok(done) => done,
                    Err(_) => {
                        world.note(Fault::WorkerTimeout);
                        actor.bury();
                        return;
                    }
                },
            };
            world.with(|state| note_step(&mut state.notes, actor.id, &done));
            match done {
                Ok(report) => {
                    world.trace(actor.name(), || {
                        format!("{:?} {:?} at #{}", report.action, report.outcome, report.seq)
                    });
                    let _ = runtime.queue.ack(&delivery).await;
                }
                // Not acknowledged: the queue delivers it again.
                Err(error) => world.trace(actor.name(), || format!("step failed: {error}")),
            }
            actor.hold(None);
        }
    }
}

fn note_step(notes: &mut Notes, actor: ActorId, done: &Result<Report, RuntimeError>) {
    notes.step_over(actor);
    match done {
        Ok(report) => {
            let (action, outcome) = (report.action, report.outcome);
            notes.reach(format!("step {action:?} {outcome:?}").to_lowercase());
            if outcome == StepOutcome::LeaseLost {
                notes.leases_lost += 1;
            }
        }
        Err(_) => notes.step_errors += 1,
    }
}

/// Everybody who talks to one session.
pub async fn session(world: Arc<World>, script: Script) {
    create(&world, &script.key).await;
    for (number, steps) in script.senders.into_iter().enumerate() {
        let sender = format!("{}/{number}", script.key);
        tokio::spawn(person(world.clone(), script.key.clone(), sender, steps));
    }
}

async fn create(world: &Arc<World>, key: &SessionKey) {
    let created = Created {
        agent: AgentSpec {
            id: "agent_1".to_owned(),
            version: 1,
            name: "sim".to_owned(),
            description: None,
            model: ModelSpec { id: format!("sim/{}", key.session), speed: None, effort: None },
            system: Some("You are a simulation.".to_owned()),
            tools: vec![ToolEntry::Toolset { default_enabled: true, enabled: [].into() }],
            skills: Vec::new(),
        },
        environment: EnvironmentSpec::cloud("env_1"),
        title: None,
        metadata: [].into(),
        resources: Vec::new(),
    };
    loop {
        let actor = world.enter(Role::Api);
        let runtime = ports::runtime(&actor);
        let done = tokio::select! {
            biased;
            () = actor.death() => false,
            done = ingress::create(&runtime, key, created.clone()) => done.is_ok(),
        };
        if done {
            return;
        }
        pass_ms(world.between(100, 1_000)).await;
    }
}

async fn person(world: Arc<World>, key: SessionKey, sender: String, steps: Vec<Step>) {
    for (number, step) in steps.into_iter().enumerate() {
        wait(&world, &key, step.when).await;
        let request = format!("{sender}/{number}");
        match step.act {
            Act::Say { messages } => {
                if matches!(step.when, When::After { .. } | When::Busy { .. }) {
                    world.note(Fault::UserInterjects);
                }
                let inputs =
                    messages.iter().enumerate().map(|(n, text)| message(n, text)).collect();
                if send(&world, &key, &request, inputs).await {
                    let at_ms = world.now_ms();
                    let sent =
                        Sent { key: key.clone(), sender: sender.clone(), request, messages, at_ms };
                    world.state().notes.sent.push(sent);
                }
            }
            Act::Interrupt => {
                world.note(Fault::UserInterrupts);
                send(&world, &key, &request, vec![Input::Interrupt]).await;
            }
            Act::Archive => {
                world.note(Fault::UserArchives);
                archive(&world, &key, step.when).await;
            }
        }
    }
    world.state().notes.users_done += 1;
}

/// Some messages come with a blank block, which no provider takes.
fn message(number: usize, text: &str) -> Input {
    let mut content = vec![Content::text(text)];
    if (number + text.len()).is_multiple_of(3) {
        content.insert(0, Content::text(" \n"));
    }
    Input::Message { content }
}

async fn wait(world: &World, key: &SessionKey, when: When) {
    let ms = match when {
        When::After { ms } => ms,
        When::Resting { ms } => {
            until(world, key, true, u64::MAX).await;
            ms
        }
        When::Busy { ms } => {
            until(world, key, false, 10_000).await;
            ms
        }
    };
    pass_ms(ms).await;
}

/// Waits until the session rests, or works, as `resting` says.
async fn until(world: &World, key: &SessionKey, resting: bool, wait_ms_max: u64) {
    let started_ms = world.now_ms();
    loop {
        let seen = world.with(|state| {
            let truth = state.truths.get(key)?;
            Some((truth.grown.clone(), truth.is_resting() == resting))
        });
        let Some((grown, is_so)) = seen else { return };
        if is_so || world.now_ms().saturating_sub(started_ms) > wait_ms_max {
            return;
        }
        let _ = timeout(Duration::from_millis(5_000), grown.notified()).await;
    }
}

/// One request, sent again until somebody answers it; whether it was accepted.
async fn send(world: &Arc<World>, key: &SessionKey, request: &str, inputs: Vec<Input>) -> bool {
    let mut repeated = false;
    loop {
        let actor = world.enter(Role::Api);
        actor.repeated.store(repeated, Ordering::Relaxed);
        repeated = true;
        let call = {
            let (actor, key) = (actor.clone(), key.clone());
            let (request, inputs) = (request.to_owned(), inputs.clone());
            async move {
                let runtime = ports::runtime(&actor);
                ingress::send(&runtime, &key, &inputs, Some(&request)).await
            }
        };
        // The server goes on when its client has given up.
        let mut call = tokio::spawn(call);
        let patience_ms = match world.hit(Fault::ClientTimeout) {
            true => world.between(0, 300),
            false => 600_000,
        };
        tokio::select! {
            biased;
            () = actor.death() => call.abort(),
            done = &mut call => match done {
                Ok(Ok(_)) => return true,
                Ok(Err(IngressError::Ended { .. })) => return false,
                Ok(Err(error)) => world.trace("client", || format!("{request}: {error}")),
                Err(_) => {}
            },
            () = pass_ms(patience_ms) => {
                world.trace("client", || format!("{request}: gives up waiting"));
            }
        }
        pass_ms(world.between(0, 1_500)).await;
    }
}

async fn archive(world: &Arc<World>, key: &SessionKey, when: When) {
    loop {
        let actor = world.enter(Role::Api);
        let runtime = ports::runtime(&actor);
        let done = tokio::select! {
            biased;
            () = actor.death() => None,
            done = ingress::archive(&runtime, key) => Some(done),
        };
        match (done, when) {
            (Some(Ok(_)), _) => return,
            (Some(Err(IngressError::Running { .. })), When::Resting { .. }) => {
                until(world, key, true, u64::MAX).await;
            }
            (Some(Err(IngressError::Running { .. })), _) => return,
            (Some(Err(_)) | None, _) => {}
        }
        pass_ms(world.between(100, 1_500)).await;
    }
}

pub async fn sweeper(world: Arc<World>) {
    loop {
        pass_ms(world.plan.limits.lease_ms * SWEEP_LEASES).await;
        if world.hit(Fault::SweeperDead) {
            continue;
        }
        let actor = world.enter(Role::Sweeper);
        let runtime = ports::runtime(&actor);
        tokio::select! {
            biased;
            () = actor.death() => {}
            swept = sweep(&runtime) => {
                if let Ok(woken @ 1..) = swept {
                    world.state().notes.reach("swept");
                    world.trace("sweeper", || format!("wakes {woken}"));
                }
            }
        }
    }
}

/// What happens to the deployment as a whole.
pub async fn noise(world: Arc<World>) {
    loop {
        pass_ms(world.between(300, 4_000)).await;
        if world.state().calm {
            return;
        }
        if world.hit(Fault::LogOutage) {
            let until_ms = world.now_ms() + world.between(500, 25_000);
            world.state().outage_until_ms = until_ms;
        }
        if world.hit(Fault::MessageSpurious) {
            spurious(&world).await;
        }
        if world.hit(Fault::ClockStep) {
            let max = i64::try_from(world.plan.skew_ms_max).unwrap_or(0);
            let to_ms =
                i64::try_from(world.between(0, world.plan.skew_ms_max * 2)).unwrap_or(0) - max;
            let actors = world.actors();
            let which = usize::try_from(world.between(0, actors.len() as u64)).unwrap_or(0);
            if let Some(actor) = actors.get(which) {
                actor.skew_ms.store(to_ms, Ordering::Relaxed);
            }
        }
    }
}

/// A message that nobody sent: plain, or with an observation that is true or out of date (one of the
/// future would be a lie, which no queue tells).
async fn spurious(world: &World) {
    let keys: Vec<(SessionKey, u64)> = world.with(|state| {
        state.truths.iter().map(|(key, truth)| (key.clone(), truth.session.seq)).collect()
    });
    let which = usize::try_from(world.between(0, keys.len() as u64)).unwrap_or(0);
    let Some((key, seq)) = keys.get(which) else { return };
    let observed = match world.between(0, 1) {
        0 => None,
        _ => Some(Observed { intent: world.between(1, *seq), version: 0 }),
    };
    let wake = Wake { observed, ..Wake::new(key.clone()) };
    world.with(|state| state.notes.message_sources += 1);
    let _ = world.queue.send(&wake, world.between(0, 20_000)).await;
}
