//! What a seed stands for: which faults are on, which safety nets are off, who says what when. Drawn
//! before the run, so that the undisturbed run of the same seed has the same users.

use std::collections::BTreeSet;

use tailstep_core::{ids::SessionKey, limits::Limits};

use crate::{bug::Bug, fault::Fault, rng::SplitMix64};

#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub profile: Profile,
    pub faults: BTreeSet<Fault>,
    /// Of each fault's rate, in per cent.
    pub intensity: u64,
    pub nets: Nets,
    pub workers: usize,
    /// Faults stop then.
    pub chaos_ms: u64,
    pub visibility_ms: u64,
    pub latency: Latency,
    pub skew_ms_max: u64,
    pub crashes_max: u64,
    pub restart_ms_max: u64,
    /// The workers' time limit for one step.
    pub deadline_ms: Option<u64>,
    pub conversations_cached: usize,
    /// The hands carry the workspace as a blob.
    pub workspace_blobs: bool,
    /// How long a slow tool runs.
    pub slow_ms: u64,
    pub limits: Limits,
    pub scripts: Vec<Script>,
}

/// What kind of run a seed is; it says which checkers may be strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Workers die and nothing else happens: how soon does the session go on?
    CrashOnly,
    /// No fault that may show in the conversation, and users who wait for their turn: the
    /// conversation must be that of an undisturbed run.
    Faithful,
    /// Everything.
    Wild,
}

/// The safety nets; each is off in some runs, in which the others must do.
#[derive(Debug, Clone, Copy)]
pub struct Nets {
    pub sweeper: bool,
    /// A message that is not acknowledged comes back.
    pub redelivery: bool,
    /// Beats count. Without them every effect that is longer than a lease is taken over.
    pub lease: bool,
}

#[derive(Debug, Clone, Copy)]
pub enum Latency {
    /// Most calls take no time at all.
    Instant,
    /// Up to a few milliseconds.
    Near,
    /// Up to 200 ms.
    Far,
}

/// One session and the people who talk to it.
#[derive(Debug, Clone)]
pub struct Script {
    pub key: SessionKey,
    pub senders: Vec<Vec<Step>>,
}

#[derive(Debug, Clone)]
pub struct Step {
    pub when: When,
    pub act: Act,
}

#[derive(Debug, Clone, Copy)]
pub enum When {
    /// This long after the session has come to rest.
    Resting { ms: u64 },
    /// This long after the sender's last act, whatever the session does.
    After { ms: u64 },
    /// This long after the session is next seen at work.
    Busy { ms: u64 },
}

#[derive(Debug, Clone)]
pub enum Act {
    /// Messages in one request.
    Say {
        messages: Vec<String>,
    },
    Interrupt,
    Archive,
}

impl Plan {
    /// The plan of `seed`. A bug that is the absence of a net takes it away here.
    pub fn of(seed: u64, bug: Option<Bug>) -> Self {
        let mut rng = SplitMix64::new(seed);
        let profile = match rng.below(100) {
            0..15 => Profile::CrashOnly,
            15..55 => Profile::Faithful,
            _ => Profile::Wild,
        };
        let nets = nets(profile, &mut rng);
        let faults = faults(profile, nets, &mut rng);
        let limits = limits(profile, &mut rng);
        let slow_ms = match nets.lease {
            true => rng.between(limits.lease_ms / 2, limits.lease_ms * 5 / 2),
            // Longer ones would be taken over again and again.
            false => limits.lease_ms / 3,
        };
        let mut plan = Self {
            seed,
            profile,
            intensity: rng.pick(&[30, 100, 100, 250]),
            workers: usize::try_from(rng.between(2, 4)).unwrap_or(2),
            chaos_ms: rng.between(20_000, 240_000),
            visibility_ms: match profile {
                // What the template sets.
                Profile::CrashOnly => 5_400_000,
                Profile::Faithful | Profile::Wild => rng.pick(&[30_000, 120_000, 5_400_000]),
            },
            latency: rng.pick(&[Latency::Instant, Latency::Near, Latency::Near, Latency::Far]),
            skew_ms_max: rng.pick(&[500, 5_000, 60_000]),
            crashes_max: rng.between(1, 8),
            restart_ms_max: match profile {
                Profile::CrashOnly => 1_000,
                Profile::Faithful | Profile::Wild => rng.pick(&[100, 5_000, 30_000]),
            },
            deadline_ms: None,
            conversations_cached: usize::try_from(rng.pick(&[0, 1, 8])).unwrap_or(0),
            workspace_blobs: rng.percent(50),
            slow_ms,
            limits,
            nets,
            scripts: Vec::new(),
            faults,
        };
        if plan.on(Fault::WorkerTimeout) {
            plan.deadline_ms = Some(plan.limits.deadline_margin_ms + rng.between(2_000, 20_000));
        }
        plan.scripts = scripts(&plan, &mut rng);
        if bug == Some(Bug::NoSweeper) {
            plan.nets.sweeper = false;
        }
        plan
    }

    /// The same users in a world where nothing goes wrong.
    pub fn undisturbed(&self) -> Self {
        Self {
            faults: BTreeSet::new(),
            nets: Nets { sweeper: true, redelivery: true, lease: true },
            deadline_ms: None,
            chaos_ms: 0,
            latency: Latency::Instant,
            ..self.clone()
        }
    }

    pub fn on(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

fn nets(profile: Profile, rng: &mut SplitMix64) -> Nets {
    let all = Nets { sweeper: true, redelivery: true, lease: true };
    match (profile, rng.below(10)) {
        // The lost message of a dead worker has to come back by itself there.
        (_, 0..3) => Nets { sweeper: false, ..all },
        (Profile::CrashOnly, _) => all,
        (_, 3) => Nets { redelivery: false, ..all },
        (_, 4) => Nets { lease: false, ..all },
        (_, _) => all,
    }
}

/// A swarm: each fault is on in about half of the runs that allow it.
fn faults(profile: Profile, nets: Nets, rng: &mut SplitMix64) -> BTreeSet<Fault> {
    let mut on = BTreeSet::new();
    for &fault in Fault::ALL {
        let drawn = rng.percent(45);
        if drawn && allowed(profile, nets, fault) {
            on.insert(fault);
        }
    }
    if profile == Profile::CrashOnly {
        on.insert(Fault::WorkerCrash);
    }
    on
}

fn allowed(profile: Profile, nets: Nets, fault: Fault) -> bool {
    match fault {
        Fault::WorkerCrash | Fault::ToolSlow => true,
        _ if profile == Profile::CrashOnly => false,
        // What only the sweeper heals.
        Fault::MessageLost | Fault::MessageDeadLettered => nets.sweeper,
        // What shows in the conversation.
        Fault::HandsLost
        | Fault::HandsUnavailable
        | Fault::ModelRejected
        | Fault::WorkerTimeout
        | Fault::UserInterrupts
        | Fault::UserInterjects
        | Fault::UserArchives => profile == Profile::Wild,
        Fault::AppendFailsBefore
        | Fault::AppendFailsAfter
        | Fault::LogOutage
        | Fault::ReadFails
        | Fault::HeadStale
        | Fault::FollowLost
        | Fault::ProjectFails
        | Fault::BeatFails
        | Fault::ChangedEarly
        | Fault::ChangedFails
        | Fault::DueLags
        | Fault::LateWrite
        | Fault::MessageDoubled
        | Fault::MessageLate
        | Fault::MessageReordered
        | Fault::MessageRedriven
        | Fault::MessageSpurious
        | Fault::SendFailsBefore
        | Fault::SendFailsAfter
        | Fault::ReceiveFails
        | Fault::AckFails
        | Fault::HideFails
        | Fault::WorkerStall
        | Fault::AgainDelayed
        | Fault::ApiCrash
        | Fault::ClientTimeout
        | Fault::SweeperDead
        | Fault::ClockSkew
        | Fault::ClockStep
        | Fault::LatencySpike
        | Fault::ModelOverloaded
        | Fault::ModelRateLimited
        | Fault::ModelInterrupted
        | Fault::ModelSlow
        | Fault::HandsOutliveWorker => true,
    }
}

fn limits(profile: Profile, rng: &mut SplitMix64) -> Limits {
    let default = Limits::default();
    let short =
        Limits { lease_ms: 3_000, overdue_ms: 12_000, deadline_margin_ms: 1_000, ..default };
    let (pick_short, tight) = (rng.percent(40), rng.percent(30));
    match profile {
        Profile::CrashOnly => Limits::default(),
        // Reaching a limit shows in the conversation.
        Profile::Faithful => Limits {
            lost_attempts_max: 1_000,
            model_failures_max: 1_000,
            ..if pick_short { short } else { Limits::default() }
        },
        Profile::Wild if tight => Limits {
            model_calls_max: 4,
            pauses_max: 2,
            refused_answers_max: 2,
            model_failures_max: 2,
            lost_attempts_max: 1,
            ..short
        },
        Profile::Wild if pick_short => short,
        Profile::Wild => Limits::default(),
    }
}

fn scripts(plan: &Plan, rng: &mut SplitMix64) -> Vec<Script> {
    let sessions = match plan.profile {
        Profile::CrashOnly => 1,
        Profile::Faithful | Profile::Wild => rng.pick(&[1, 1, 1, 2, 3]),
    };
    (0..sessions)
        .map(|number| {
            let key = SessionKey::new("tenant", format!("sesn_{number}"));
            let senders = if plan.on(Fault::UserInterjects) { rng.between(1, 2) } else { 1 };
            let senders = (0..senders)
                .map(|sender| steps(plan, &format!("s{number}u{sender}"), rng))
                .collect();
            Script { key, senders }
        })
        .collect()
}

fn steps(plan: &Plan, sender: &str, rng: &mut SplitMix64) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut count = 0;
    for _ in 0..rng.between(1, 3) {
        let when = match plan.on(Fault::UserInterjects) && rng.percent(70) {
            true if rng.percent(50) => When::Busy { ms: rng.between(0, 4_000) },
            true => When::After { ms: rng.between(0, 12_000) },
            false => When::Resting { ms: rng.between(0, 2_000) },
        };
        let interrupts = plan.on(Fault::UserInterrupts) && rng.percent(50);
        // An interrupt is to meet an effect that is under way for long.
        let first = if interrupts && plan.on(Fault::ToolSlow) { "S" } else { "" };
        let mut messages = Vec::new();
        for _ in 0..rng.pick(&[1, 1, 1, 2]) {
            let script = format!("{sender}m{count} {first}{}", letters(plan, rng));
            messages.push(script.trim().to_owned());
            count += 1;
        }
        steps.push(Step { when, act: Act::Say { messages } });
        if interrupts {
            let when = When::Busy { ms: rng.between(0, 6_000) };
            steps.push(Step { when, act: Act::Interrupt });
        }
    }
    if plan.on(Fault::UserArchives) {
        let when = match rng.percent(60) {
            true => When::Resting { ms: rng.between(0, 2_000) },
            false => When::After { ms: rng.between(0, 5_000) },
        };
        steps.push(Step { when, act: Act::Archive });
    }
    steps
}

/// The rounds of one turn.
fn letters(plan: &Plan, rng: &mut SplitMix64) -> String {
    let mut letters = String::new();
    for _ in 0..rng.between(0, 4) {
        letters.push(match rng.below(16) {
            0..6 => rng.pick(&['1', '1', '2', '3']),
            6..8 if plan.on(Fault::ToolSlow) => 'S',
            6..8 => '1',
            8 => 'B',
            9 => 'C',
            10 => 'U',
            11..13 => 'Z',
            13..15 => 'O',
            _ => 'P',
        });
    }
    match rng.below(40) {
        0 => letters.push('R'),
        1 => letters.push('X'),
        2 => letters.push('Y'),
        3 => letters.push('W'),
        4 => letters.push('L'),
        5 => letters.push('Q'),
        _ => {}
    }
    letters
}
