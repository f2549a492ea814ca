//! The work queue under random scripts: users, steps and workers at the same time, over a store that
//! fails before or after a write. Whatever happens, a session that waits for a worker gets one, and one that rests leaves
//! nothing behind.
//!
//! `TAILSTEP_WORK_SEEDS` sets how many scripts are played.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tailstep_core::{
    agent::{AgentSpec, EnvironmentKind, EnvironmentSpec, ModelSpec, ToolEntry},
    content::Content,
    event::{Created, Event, Input},
    ids::SessionKey,
    limits::Limits,
    model::{Block, ModelAnswer, ModelFailure, ModelRequest, Stop, Usage},
    raw::RawJson,
    work::{Expected, WorkItem},
};
use tailstep_runtime::{
    Runtime, ingress,
    load::{load, read},
    memory::{MemoryDocuments, MemoryLog, MemoryQueue, TokioClock},
    ports::{
        Document, DocumentKind, Documents, DocumentsError, Expect, Hands, HandsError,
        ListDocuments, Model, Page, ToolOrder, ToolReply,
    },
    prefix::Prefixes,
    step::step,
    sweep::sweep,
    work::{self, WorkError},
};

const TENANT: &str = "t";
const ENVIRONMENT: &str = "env_1";

/// xorshift64*, so that a seed plays the same script for ever.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }
}

/// Documents that fail: before a write, or after it, when the answer is lost.
struct Shaky {
    inner: MemoryDocuments,
    dice: Mutex<Dice>,
    /// Of a hundred calls.
    failures: AtomicU64,
    /// What happens just before the next live item is removed.
    meanwhile: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Shaky {
    async fn meanwhile(&self, kind: DocumentKind) {
        let meanwhile = self.meanwhile.lock().unwrap().take_if(|_| kind == DocumentKind::Work);
        if let Some(meanwhile) = meanwhile {
            meanwhile.await;
        }
    }

    /// Takes a while, in which others act.
    async fn fails(&self) -> Result<(), DocumentsError> {
        let ms = self.dice.lock().unwrap().roll(20);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        if self.dice.lock().unwrap().roll(100) < self.failures.load(Ordering::SeqCst) {
            return Err(DocumentsError::Unavailable { what: "by the script".to_owned() });
        }
        Ok(())
    }
}

#[async_trait]
impl Documents for Shaky {
    async fn get(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
    ) -> Result<Option<Document>, DocumentsError> {
        self.fails().await?;
        self.inner.get(tenant, kind, id).await
    }

    async fn put(&self, document: &Document, expect: Expect) -> Result<(), DocumentsError> {
        self.fails().await?;
        self.inner.put(document, expect).await?;
        self.fails().await
    }

    async fn list(
        &self,
        tenant: &str,
        kind: DocumentKind,
        query: &ListDocuments,
    ) -> Result<Page<Document>, DocumentsError> {
        self.fails().await?;
        self.inner.list(tenant, kind, query).await
    }

    async fn delete(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
    ) -> Result<(), DocumentsError> {
        self.meanwhile(kind).await;
        self.inner.delete(tenant, kind, id).await
    }

    async fn delete_at(
        &self,
        tenant: &str,
        kind: DocumentKind,
        id: &str,
        revision: u64,
    ) -> Result<(), DocumentsError> {
        self.meanwhile(kind).await;
        self.fails().await?;
        self.inner.delete_at(tenant, kind, id, revision).await?;
        self.fails().await
    }
}

/// Calls bash two times of three.
struct Caller(Mutex<Dice>);

#[async_trait]
impl Model for Caller {
    async fn call(&self, _request: &ModelRequest) -> Result<ModelAnswer, ModelFailure> {
        let block = match self.0.lock().unwrap().roll(3) {
            0 => Block::Text { text: "done".to_owned() },
            _ => Block::ToolUse {
                id: "toolu_1".to_owned(),
                name: "bash".to_owned(),
                input: RawJson::empty_object(),
            },
        };
        Ok(ModelAnswer { blocks: vec![block], stop: Stop::EndTurn, usage: Usage::default() })
    }

    fn check(&self, _model: &str) -> Result<(), String> {
        Ok(())
    }
}

/// Nothing runs here.
struct NoHands;

#[async_trait]
impl Hands for NoHands {
    async fn execute(&self, order: &ToolOrder) -> Result<ToolReply, HandsError> {
        panic!("the deployment's own hands were asked for {}", order.tool);
    }

    async fn release(&self, _key: &SessionKey) -> Result<(), HandsError> {
        Ok(())
    }
}

struct Stage {
    runtime: Runtime,
    documents: Arc<Shaky>,
    key: SessionKey,
    dice: Mutex<Dice>,
    /// Items that some worker believes to have.
    held: Mutex<Vec<String>>,
}

impl Stage {
    async fn new(seed: u64) -> Self {
        let documents = Arc::new(Shaky {
            inner: MemoryDocuments::default(),
            dice: Mutex::new(Dice(seed ^ 0x9e37_79b9_7f4a_7c15)),
            failures: AtomicU64::new(0),
            meanwhile: Mutex::default(),
        });
        let clock = Arc::new(TokioClock::starting_at(1_800_000_000_000));
        let runtime = Runtime {
            log: Arc::new(MemoryLog::default()),
            queue: Arc::new(MemoryQueue::new(clock.clone(), 30_000)),
            model: Arc::new(Caller(Mutex::new(Dice(seed | 1)))),
            hands: Arc::new(NoHands),
            documents: documents.clone(),
            clock,
            limits: Limits::default(),
            prefixes: Arc::new(Prefixes::new(0)),
        };
        let key = SessionKey::new(TENANT, "sesn_1");
        ingress::create(&runtime, &key, created()).await.unwrap();
        documents.failures.store(25, Ordering::SeqCst);
        let dice = Mutex::new(Dice(seed.wrapping_mul(0x5851_f42d_4c95_7f2d) | 1));
        Self { runtime, documents, key, dice, held: Mutex::default() }
    }

    fn roll(&self, sides: u64) -> u64 {
        self.dice.lock().unwrap().roll(sides)
    }

    async fn act(&self) {
        match self.roll(14) {
            0..=2 => self.say().await,
            3..=5 => self.step(0).await,
            6 | 7 => drop(self.poll().await),
            8 => self.answer().await,
            9 => self.on_item(|item, now_ms| item.at(now_ms).acknowledged(now_ms)).await,
            10 => {
                let beat = |item: WorkItem, now_ms| {
                    item.at(now_ms).beaten(Expected::Any, None, now_ms).map(|beat| beat.item)
                };
                self.on_item(beat).await;
            }
            11 => self.on_item(|item, now_ms| item.at(now_ms).stopped(now_ms)).await,
            12 => self.on_item(|item, now_ms| item.at(now_ms).stopping(now_ms)).await,
            _ => {
                let ms = self.roll(40_000);
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
        }
    }

    async fn say(&self) {
        let input = Input::Message { content: vec![Content::text("go on")] };
        ingress::send(&self.runtime, &self.key, &[input], None).await.unwrap();
    }

    /// One wake-up, if there is one; a step that fails leaves its message for later.
    async fn step(&self, wait_ms: u64) {
        for delivery in self.runtime.queue.receive(1, wait_ms).await.unwrap() {
            if step(&self.runtime, &delivery, None).await.is_ok() {
                self.runtime.queue.ack(&delivery).await.unwrap();
            }
        }
    }

    async fn poll(&self) -> Option<WorkItem> {
        let polled = work::poll(&self.runtime, TENANT, ENVIRONMENT, 5_000, "hash").await;
        let item = polled.ok().flatten();
        self.held.lock().unwrap().extend(item.iter().map(|item| item.id.clone()));
        item
    }

    async fn answer(&self) {
        let loaded = load(self.runtime.log.as_ref(), &self.key).await.unwrap();
        let Some(call) = loaded.session.awaits().first().copied() else { return };
        let input = Input::ToolResult { call, content: vec![], is_error: false };
        // Said twice, as workers do.
        for _ in 0..2 {
            let inputs = std::slice::from_ref(&input);
            ingress::send(&self.runtime, &self.key, inputs, None).await.unwrap();
        }
    }

    async fn on_item(
        &self,
        change: impl Fn(WorkItem, u64) -> Result<WorkItem, tailstep_core::work::WorkRefused>,
    ) {
        let held = self.held.lock().unwrap().clone();
        if held.is_empty() {
            return;
        }
        let id = held[usize::try_from(self.roll(held.len() as u64)).unwrap()].clone();
        match work::change(&self.runtime, TENANT, ENVIRONMENT, &id, change).await {
            Ok(item) => assert_eq!(item.id, id),
            Err(WorkError::Refused { .. } | WorkError::Runtime(_)) => {}
            Err(WorkError::NotFound { id }) => panic!("{id} was given out and is gone"),
        }
    }

    async fn is_busy(&self) -> bool {
        load(self.runtime.log.as_ref(), &self.key).await.unwrap().session.is_busy()
    }

    async fn live(&self) -> usize {
        let all = ListDocuments { prefix: String::new(), after: None, limit: 9, descending: false };
        self.documents.list(TENANT, DocumentKind::Work, &all).await.unwrap().items.len()
    }

    /// Nothing fails any more: a worker that does its work must bring the session to rest, and sees
    /// it only through the queue.
    async fn heal(&self, seed: u64) {
        self.documents.failures.store(0, Ordering::SeqCst);
        for _ in 0..200 {
            while !self.runtime.queue_is_quiet().await {
                self.step(120_000).await;
            }
            if !self.is_busy().await {
                break;
            }
            sweep(&self.runtime).await.unwrap();
            // Longer than any lease and any wait of an item.
            tokio::time::sleep(Duration::from_secs(301)).await;
            let first = self.poll().await;
            let item = match first {
                Some(item) => Some(item),
                // This poll may have put a stopped item back.
                None => {
                    tokio::time::sleep(Duration::from_secs(61)).await;
                    self.poll().await
                }
            };
            assert!(item.is_some(), "seed {seed}: the session waits and nobody is called for");
            self.answer().await;
        }
        assert!(!self.is_busy().await, "seed {seed}: the session does not come to rest");
        tokio::time::sleep(Duration::from_secs(301)).await;
        assert!(self.poll().await.is_none(), "seed {seed}: somebody is called for in vain");
        assert_eq!(self.live().await, 0, "seed {seed}: a live item is left");
    }
}

trait Quiet {
    async fn queue_is_quiet(&self) -> bool;
}

impl Quiet for Runtime {
    /// No wake-up comes within the longest time that one is hidden for.
    async fn queue_is_quiet(&self) -> bool {
        let deliveries = self.queue.receive(1, 40_000).await.unwrap();
        for delivery in &deliveries {
            if step(self, delivery, None).await.is_ok() {
                self.queue.ack(delivery).await.unwrap();
            }
        }
        deliveries.is_empty()
    }
}

fn created() -> Created {
    Created {
        agent: AgentSpec {
            id: "agent_1".to_owned(),
            version: 1,
            name: "tester".to_owned(),
            description: None,
            model: ModelSpec { id: "m".to_owned(), speed: None, effort: None },
            system: None,
            tools: vec![ToolEntry::Toolset { default_enabled: true, enabled: BTreeMap::new() }],
            skills: Vec::new(),
        },
        environment: EnvironmentSpec {
            kind: EnvironmentKind::SelfHosted,
            ..EnvironmentSpec::cloud(ENVIRONMENT)
        },
        title: None,
        metadata: BTreeMap::new(),
        resources: Vec::new(),
    }
}

/// A worker gives its item back in the very moment in which the session is spoken to.
#[tokio::test(start_paused = true)]
async fn who_speaks_while_an_item_ends_gets_a_worker() {
    for seed in 1..=20 {
        let stage = Stage::new(seed).await;
        stage.documents.failures.store(0, Ordering::SeqCst);
        let item = loop {
            stage.say().await;
            stage.step(0).await;
            if let Some(item) = stage.poll().await {
                break item;
            }
        };
        while stage.is_busy().await {
            stage.answer().await;
            stage.step(0).await;
        }
        let (runtime, key) = (stage.runtime.clone(), stage.key.clone());
        let spoken_to = async move {
            while load(runtime.log.as_ref(), &key).await.unwrap().session.awaits().is_empty() {
                let input = Input::Message { content: vec![Content::text("go on")] };
                ingress::send(&runtime, &key, &[input], None).await.unwrap();
                for delivery in runtime.queue.receive(1, 0).await.unwrap() {
                    step(&runtime, &delivery, None).await.unwrap();
                    runtime.queue.ack(&delivery).await.unwrap();
                }
            }
        };
        *stage.documents.meanwhile.lock().unwrap() = Some(Box::pin(spoken_to));
        let stop = |item: WorkItem, now_ms| item.at(now_ms).stopped(now_ms);
        work::change(&stage.runtime, TENANT, ENVIRONMENT, &item.id, stop).await.unwrap();
        assert!(stage.is_busy().await, "seed {seed}: nobody spoke in between");
        let next = stage.poll().await;
        assert!(next.is_some_and(|next| next.id != item.id), "seed {seed}: nobody is called for");
    }
}

#[test]
fn no_session_that_waits_is_forgotten() {
    let seeds = std::env::var("TAILSTEP_WORK_SEEDS").ok().and_then(|n| n.parse().ok());
    let mut waited = 0;
    for seed in 1..=seeds.unwrap_or(300) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        waited += runtime.block_on(async {
            let stage = Stage::new(seed).await;
            for _ in 0..3 + seed % 8 {
                tokio::join!(stage.act(), stage.act(), stage.act());
            }
            stage.heal(seed).await;
            let records = read(stage.runtime.log.as_ref(), &stage.key, 0, 10_000).await.unwrap();
            let events = records.iter().flat_map(|record| &record.events);
            events.filter(|event| matches!(event, Event::ActionRequired(_))).count()
        });
    }
    assert!(waited > 300, "hardly a session waited: {waited}");
}
