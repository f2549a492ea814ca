//! What happened in a run, besides the logs: who did what when. The actors write, the checkers read.

use std::collections::BTreeMap;

use tailstep_core::{
    ids::{BlobRef, Position, Seq, SessionKey},
    model::{Part, Role},
};

use crate::fault::Fault;

/// Number of an actor; each life of a worker is an actor of its own.
pub type ActorId = usize;

#[derive(Debug, Default)]
pub struct Notes {
    pub faults: BTreeMap<Fault, u64>,
    /// Kinds of events, results and steps that were reached.
    pub reached: BTreeMap<String, u64>,
    /// By actor: when it died.
    pub died_ms: BTreeMap<ActorId, u64>,
    /// By actor: how often it stood still, or a store did not do what it asked for.
    pub troubled: BTreeMap<ActorId, u64>,
    /// Attempts by the record of their intent.
    pub lives: BTreeMap<(SessionKey, Seq), Life>,
    pub model_calls: Vec<ModelCall>,
    pub tool_runs: Vec<ToolRun>,
    pub sent: Vec<Sent>,
    pub crashes: Vec<Crash>,
    /// The longest request of each session, as blocks.
    pub shown: BTreeMap<SessionKey, Vec<(Role, Part)>>,
    /// What the provider asked for in answer to an attempt.
    pub asked_until_ms: BTreeMap<(SessionKey, Seq), u64>,
    /// The provider asked not to be called before then, and the log says so.
    pub not_before_ms: BTreeMap<SessionKey, u64>,
    pub worker_deaths: u64,
    /// Steps that ended in an error.
    pub step_errors: u64,
    pub leases_lost: u64,
    pub deliveries: u64,
    /// Deliveries of a message that had been delivered before.
    pub redeliveries: u64,
    /// Messages that were not sent by a step in exchange for one that it took.
    pub message_sources: u64,
    pub messages_live_max: u64,
    pub users_done: usize,
}

/// One attempt, as its owner lives it.
#[derive(Debug, Clone)]
pub struct Life {
    pub owner: ActorId,
    /// The last sign of life that reached the log: the intent, or a beat.
    pub sign_ms: u64,
    /// What had happened to its owner before.
    pub troubles: u64,
    /// The longest time between two of them.
    pub gap_ms_max: u64,
    /// The owner's step has ended.
    pub over: bool,
    /// Somebody else took the session from it.
    pub fenced_ms: Option<u64>,
    /// The session's workspace when it began.
    pub workspace: Option<BlobRef>,
}

#[derive(Debug)]
pub struct ModelCall {
    pub key: SessionKey,
    pub intent: Seq,
    pub actor: ActorId,
}

#[derive(Debug)]
pub struct ToolRun {
    pub key: SessionKey,
    pub call: Position,
    pub actor: ActorId,
    /// It reached the point of no return.
    pub effective: bool,
}

/// A request that was answered with success.
#[derive(Debug)]
pub struct Sent {
    pub key: SessionKey,
    pub sender: String,
    pub request: String,
    pub messages: Vec<String>,
    pub at_ms: u64,
}

/// A worker's death with a message in hand.
#[derive(Debug)]
pub struct Crash {
    pub key: SessionKey,
    pub at_ms: u64,
    /// It had neither shortened the time until the message comes back, nor done anything yet.
    pub early: bool,
}

impl Notes {
    pub fn fault(&mut self, fault: Fault) {
        *self.faults.entry(fault).or_default() += 1;
    }

    pub fn reach(&mut self, what: impl Into<String>) {
        *self.reached.entry(what.into()).or_default() += 1;
    }

    pub fn is_dead(&self, actor: ActorId) -> bool {
        self.died_ms.contains_key(&actor)
    }

    pub fn trouble(&mut self, actor: ActorId) {
        *self.troubled.entry(actor).or_default() += 1;
    }

    pub fn troubles(&self, actor: ActorId) -> u64 {
        self.troubled.get(&actor).copied().unwrap_or(0)
    }

    /// The log took a beat of this attempt.
    pub fn sign(&mut self, key: &SessionKey, intent: Seq, now_ms: u64) {
        if let Some(life) = self.lives.get_mut(&(key.clone(), intent)) {
            life.gap_ms_max = life.gap_ms_max.max(now_ms - life.sign_ms);
            life.sign_ms = now_ms;
        }
    }

    /// The actor's step has ended, one way or another.
    pub fn step_over(&mut self, actor: ActorId) {
        for life in self.lives.values_mut().filter(|life| life.owner == actor) {
            life.over = true;
        }
    }
}
