//! Plays one case: users and one worker, in virtual time.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tailstep_core::{
    agent::{AgentSpec, EnvironmentSpec, ModelSpec, ToolEntry},
    content::Content,
    event::{Created, Event, Input},
    ids::{Position, SessionKey},
    limits::Limits,
    model::{FailureKind, ModelAnswer, ModelFailure, ModelRequest, Usage},
    record::Record,
};
use tailstep_runtime::{
    Runtime,
    ingress::{self, IngressError},
    memory::{MemoryDocuments, MemoryLog, MemoryQueue, TokioClock},
    ports::{Hands, HandsError, Log, Model, Queue, ToolOrder, ToolReply},
    prefix::Prefixes,
    step::step,
};

use crate::cases::{Act, Case, Tool};

/// 2026-01-01 in UTC.
pub const START_MS: u64 = 1_767_225_600_000;

pub fn key() -> SessionKey {
    SessionKey::new("tenant_1", "sesn_01GOLDEN0000000000000000000")
}

/// Plays `case` and gives its log, one encoded record an item.
///
/// # Errors
/// What went wrong that no script foresees.
pub async fn play(case: &Case) -> Result<Vec<Bytes>, String> {
    let stage = Arc::new(Stage {
        answers: Mutex::new(case.model.clone().into()),
        tools: case.tools.clone(),
        runtime: Mutex::new(None),
    });
    let clock = Arc::new(TokioClock::starting_at(START_MS));
    let log = Arc::new(MemoryLog::default());
    let queue = Arc::new(MemoryQueue::new(clock.clone(), 60_000));
    let runtime = Runtime {
        log: log.clone(),
        queue: queue.clone(),
        model: stage.clone(),
        hands: stage.clone(),
        documents: Arc::new(MemoryDocuments::default()),
        clock,
        limits: Limits { model_calls_max: case.model_calls_max, ..Limits::default() },
        prefixes: Arc::new(Prefixes::new(1)),
    };
    *lock(&stage.runtime) = Some(runtime.clone());
    let done = act(case, &runtime, &queue).await;
    // The stage holds the runtime, and the runtime the stage.
    *lock(&stage.runtime) = None;
    done?;
    let left = lock(&stage.answers).len();
    if left > 0 {
        return Err(format!("{left} answers of the script were not asked for"));
    }
    let entries = log.read(&key(), 0, usize::MAX).await.map_err(|error| error.to_string())?;
    Ok(entries.into_iter().map(|entry| entry.body).collect())
}

async fn act(case: &Case, runtime: &Runtime, queue: &MemoryQueue) -> Result<(), String> {
    let failed = |error: IngressError| error.to_string();
    ingress::create(runtime, &key(), created(case)).await.map_err(failed)?;
    for (number, act) in case.user.iter().enumerate() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let request = format!("request_{number}");
        match act {
            Act::Say(texts) => {
                let inputs: Vec<Input> = texts.iter().map(|text| message(text)).collect();
                ingress::send(runtime, &key(), &inputs, Some(&request)).await.map_err(failed)?;
            }
            Act::Interrupt => {
                let inputs = [Input::Interrupt];
                ingress::send(runtime, &key(), &inputs, Some(&request)).await.map_err(failed)?;
            }
            Act::Answer(results) => {
                let inputs = answers(runtime, results).await?;
                ingress::send(runtime, &key(), &inputs, Some(&request)).await.map_err(failed)?;
                // The worker did not hear of it, and says it again.
                ingress::send(runtime, &key(), &inputs, None).await.map_err(failed)?;
            }
            Act::Archive => {
                ingress::archive(runtime, &key()).await.map_err(failed)?;
            }
        }
        work(runtime, queue).await?;
    }
    Ok(())
}

/// Takes messages until there are none, however long they wait.
async fn work(runtime: &Runtime, queue: &MemoryQueue) -> Result<(), String> {
    while !queue.is_empty() {
        let deliveries = queue.receive(1, 3_600_000).await.map_err(|error| error.to_string())?;
        for delivery in deliveries {
            step(runtime, &delivery, None).await.map_err(|error| error.to_string())?;
            queue.ack(&delivery).await.map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Results of calls of the last answer, each of them a place in it.
async fn answers(runtime: &Runtime, results: &[(u16, &str)]) -> Result<Vec<Input>, String> {
    let entries = runtime.log.read(&key(), 0, usize::MAX).await.map_err(|e| e.to_string())?;
    let records = entries.iter().filter_map(|entry| Record::decode(&entry.body).ok());
    let is_answer = |event: &Event| matches!(event, Event::ModelAnswered(_));
    let answers: Vec<u64> = records
        .filter(|record| record.events.first().is_some_and(is_answer))
        .map(|record| record.seq)
        .collect();
    let seq = *answers.last().ok_or("the model has not answered")?;
    let result = |(part, text): &(u16, &str)| Input::ToolResult {
        call: Position { part: *part, ..Position::event(seq, 0) },
        content: vec![Content::text(*text)],
        is_error: false,
    };
    Ok(results.iter().map(result).collect())
}

pub fn message(text: &str) -> Input {
    Input::Message { content: vec![Content::text(text)] }
}

fn created(case: &Case) -> Created {
    Created {
        agent: AgentSpec {
            id: "agent_01GOLDEN".to_owned(),
            version: 1,
            name: "golden".to_owned(),
            description: None,
            model: ModelSpec { id: "golden-1".to_owned(), speed: None, effort: None },
            system: Some("You are a test.".to_owned()),
            tools: vec![ToolEntry::Toolset {
                default_enabled: false,
                enabled: BTreeMap::from([("bash".to_owned(), true), ("read".to_owned(), true)]),
            }],
            skills: Vec::new(),
        },
        environment: EnvironmentSpec { kind: case.hands, ..EnvironmentSpec::cloud("env_01GOLDEN") },
        title: Some(case.name.to_owned()),
        metadata: BTreeMap::new(),
        resources: Vec::new(),
    }
}

/// The model and the hands, as the script has them.
struct Stage {
    answers: Mutex<VecDeque<Result<ModelAnswer, ModelFailure>>>,
    tools: BTreeMap<&'static str, Tool>,
    /// For what happens while an effect is under way.
    runtime: Mutex<Option<Runtime>>,
}

#[async_trait]
impl Model for Stage {
    async fn call(&self, _request: &ModelRequest) -> Result<ModelAnswer, ModelFailure> {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let answer = lock(&self.answers).pop_front();
        answer.unwrap_or_else(|| {
            Err(ModelFailure {
                kind: FailureKind::Rejected,
                message: "the script has no more answers".to_owned(),
                retry_after_ms: None,
                usage: Usage::default(),
            })
        })
    }

    fn check(&self, _model: &str) -> Result<(), String> {
        Ok(())
    }
}

#[async_trait]
impl Hands for Stage {
    async fn execute(&self, order: &ToolOrder) -> Result<ToolReply, HandsError> {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let reply = |text: &str| ToolReply {
            text: text.to_owned(),
            is_error: false,
            ..ToolReply::default()
        };
        let tool = self.tools.iter().find(|(input, _)| order.input.as_str().contains(*input));
        match tool.map(|(_, tool)| tool) {
            None => Ok(reply("ok")),
            Some(Tool::Prints(text)) => Ok(reply(text)),
            Some(Tool::Fails(text)) => Ok(ToolReply { is_error: true, ..reply(text) }),
            Some(Tool::IsLost) => Err(HandsError::Lost { what: "by the script".to_owned() }),
            Some(Tool::IsInterrupted) => {
                self.send(Input::Interrupt).await;
                // It would run for an hour; the worker is to stop it.
                tokio::time::sleep(Duration::from_secs(3_600)).await;
                Ok(reply("nobody stopped this"))
            }
            Some(Tool::FinishesTooLate) => {
                // Done in the very moment in which the turn is stopped.
                self.send(Input::Interrupt).await;
                Ok(reply("too late"))
            }
            Some(Tool::Meanwhile(text)) => {
                self.send(message(text)).await;
                Ok(reply("ok"))
            }
        }
    }

    async fn release(&self, _key: &SessionKey) -> Result<(), HandsError> {
        Ok(())
    }
}

impl Stage {
    async fn send(&self, input: Input) {
        let runtime = lock(&self.runtime).clone();
        if let Some(runtime) = runtime {
            let sent = ingress::send(&runtime, &key(), &[input], None).await;
            assert!(sent.is_ok(), "the script's input was refused: {sent:?}");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log of records as JSON lines.
pub fn lines(log: &[Bytes]) -> String {
    log.iter().map(|body| format!("{}\n", String::from_utf8_lossy(body))).collect()
}
