//! The system under measurement: SQLite store, workers, scripted model, a tool of 200 bytes.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use async_trait::async_trait;
use tailstep_core::{
    agent::{AgentSpec, EnvironmentSpec, ModelSpec, ToolEntry},
    content::Content,
    event::{Created, Input},
    ids::SessionKey,
    limits::Limits,
    session::Phase,
};
use tailstep_local::{Config, Local, run_workers};
use tailstep_model::Router;
use tailstep_runtime::{
    Runtime,
    ids::new_id,
    ingress,
    load::load,
    ports::{Clock, Hands, HandsError, SystemClock, ToolOrder, ToolReply},
    prefix::Prefixes,
    step::{StepAction, step},
};
use tokio::{sync::watch, task::JoinHandle};

/// Steps under way at once.
const WORKERS: usize = 64;

/// A tool that does nothing.
struct Fixed;

#[async_trait]
impl Hands for Fixed {
    async fn execute(&self, _: &ToolOrder) -> Result<ToolReply, HandsError> {
        Ok(ToolReply { text: "x".repeat(200), is_error: false, ..ToolReply::default() })
    }

    async fn release(&self, _: &SessionKey) -> Result<(), HandsError> {
        Ok(())
    }
}

pub(crate) struct Bench {
    pub(crate) runtime: Runtime,
    local: Local,
    data: PathBuf,
    steps: Arc<AtomicU32>,
    stop: watch::Sender<bool>,
    workers: JoinHandle<()>,
}

impl Bench {
    pub(crate) async fn open(data: &Path) -> Result<Self> {
        if data.exists() {
            std::fs::remove_dir_all(data)?;
        }
        std::fs::create_dir_all(data)?;
        let local = Local::open(&Config::new(data)).await?;
        let model = Router::new(&tailstep_model::Config::default(), local.secrets.clone())?;
        let runtime = Runtime {
            log: local.log.clone(),
            queue: local.queue.clone(),
            model: Arc::new(model),
            hands: Arc::new(Fixed),
            documents: local.documents.clone(),
            clock: Arc::new(SystemClock),
            limits: Limits::default(),
            prefixes: Arc::new(Prefixes::new(64)),
        };
        let steps = Arc::new(AtomicU32::new(0));
        let (stop, stopped) = watch::channel(false);
        let workers = tokio::spawn(work(runtime.clone(), steps.clone(), stopped));
        Ok(Self { runtime, local, data: data.to_owned(), steps, stop, workers })
    }

    pub(crate) async fn create(&self) -> Result<SessionKey> {
        let session = new_id("sesn_", SystemClock.now_ms());
        let key = SessionKey::new("bench", session);
        ingress::create(&self.runtime, &key, created()).await?;
        Ok(key)
    }

    /// Effects so far.
    pub(crate) fn steps(&self) -> u32 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Waits until the session's turn is over.
    pub(crate) async fn idle(&self, key: &SessionKey) -> Result<()> {
        loop {
            let session = load(self.runtime.log.as_ref(), key).await?.session;
            if matches!(session.phase, Phase::Idle) && session.queued.is_empty() {
                return Ok(());
            }
            // Not at every record: waking this task would be part of the measurement.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until `steps` effects are done.
    pub(crate) async fn reached(&self, steps: u32) {
        while self.steps() < steps {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Bytes of all records of a session.
    pub(crate) async fn log_bytes(&self, key: &SessionKey) -> Result<u64> {
        let entries = self.runtime.log.read(key, 0, usize::MAX).await?;
        Ok(entries.iter().map(|entry| entry.body.len() as u64).sum())
    }

    pub(crate) async fn close(self) -> Result<()> {
        let _ = self.stop.send(true);
        self.workers.await?;
        self.local.close();
        std::fs::remove_dir_all(&self.data)?;
        Ok(())
    }
}

/// What a worker of the local form does, and a count.
async fn work(runtime: Runtime, steps: Arc<AtomicU32>, stopped: watch::Receiver<bool>) {
    let queue = runtime.queue.clone();
    run_workers(queue, WORKERS, stopped, move |delivery| {
        let (runtime, steps) = (runtime.clone(), steps.clone());
        async move {
            match step(&runtime, &delivery, None).await {
                Ok(report) => {
                    if matches!(report.action, StepAction::Model | StepAction::Tool) {
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                    // A message that is not acknowledged comes back; the session is done by then.
                    let _ = runtime.queue.ack(&delivery).await;
                }
                Err(error) => panic!("a step failed: {error}"),
            }
        }
    })
    .await;
}

pub(crate) async fn say(runtime: &Runtime, key: &SessionKey, text: &str) -> Result<()> {
    let input = Input::Message { content: vec![Content::text(text)] };
    ingress::send(runtime, key, &[input], None).await?;
    Ok(())
}

fn created() -> Created {
    Created {
        agent: AgentSpec {
            id: "agent_bench".to_owned(),
            version: 1,
            name: "bench".to_owned(),
            description: None,
            model: ModelSpec { id: "scripted/echo".to_owned(), speed: None, effort: None },
            system: None,
            tools: vec![ToolEntry::Toolset { default_enabled: true, enabled: [].into() }],
            skills: Vec::new(),
        },
        environment: EnvironmentSpec::cloud("env_bench"),
        title: None,
        metadata: [].into(),
        resources: Vec::new(),
    }
}
