//! Hands in Lambda MicroVMs: a machine a session, made when its first call comes, with a life that the
//! provider ends, and asleep between turns. A daemon in it runs the same toolset as everywhere.
//!
//! **Whose machine.** Machines have no names at the provider. A session's record says, before a machine
//! is asked for, by which idempotency token; so a lost answer is asked for again, and a machine that
//! stands in no record is nobody's ([`MicroVmHands::reap`]).
//!
//! **What is saved.** After each call the workspace, if it changed, is fetched and becomes a blob; it
//! is laid out in the session's next machine. The daemon remembers the last call, so that a call whose
//! answer was lost is asked for again and runs once.
//!
//! **Files.** What a session is given is sent once to each machine, with what it has put out before. What
//! a call has put out is fetched piece by piece, and only what is not stored yet.
//!
//! **Limits.** Every call costs a bounded number of requests. Ingress and egress are always named.

mod endpoint;
mod files;
mod machines;
mod record;
mod workspace;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use aws_sdk_lambdamicrovms::Client;
use bytes::Bytes;
use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use tailstep_core::ids::{BlobRef, SessionKey, sha256_hex};
use tailstep_runtime::ports::{Blobs, Documents, Hands, HandsError, ToolOrder, ToolReply};

use self::{
    endpoint::{Ask, Endpoint, Said},
    machines::{Found, Machines},
    record::{Machine, Stored},
};
use crate::{
    clients::{ATTEMPT, OPERATION, retries, timeouts},
    hands::{failed, sandbox_name},
};

/// Format of the daemon's messages, and of an order with which something is given: a daemon of the first
/// version refuses that.
const FORMAT: u32 = 1;
const FORMAT_GIVEN: u32 = 2;
/// The largest answer of a call: a full `read`, every byte escaped as six.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Sendings of one call, whatever comes back: once plainly, and for each remedy (token, wake, workspace,
/// files, another machine) once more.
const SENDINGS_MAX: usize = 7;
/// Told when outputs are there and cannot be stored.
const OUTPUTS_FAILED: &str =
    "\n[outputs: they could not be stored after this call; the next call tries again]";
/// How often a machine is asked something while a call runs, so that the provider does not take it for
/// idle.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// How machines are made.
#[derive(Debug, Clone)]
pub struct MicroVmConfig {
    /// ARN of the image that holds the daemon.
    pub image: String,
    /// The latest active one if absent.
    pub image_version: Option<String>,
    /// ARNs of network connectors. The endpoint that calls travel over is one.
    pub ingress: Vec<String>,
    /// ARNs of network connectors; what they reach, every command in the machine reaches.
    pub egress: Vec<String>,
    /// The provider ends a machine after this time, asleep or not. At most 8 hours.
    pub life_s: i32,
    /// A machine without a request for this long is put to sleep.
    pub idle_s: i32,
    /// A machine that has slept for this long is ended.
    pub suspended_s: i32,
    /// The daemon's.
    pub port: i32,
    /// What a call may take beyond its tool's own limit.
    pub overhead_ms: u64,
}

impl MicroVmConfig {
    /// Machines of `image`, with the design's backstop of ten minutes.
    pub fn new(image: impl Into<String>, ingress: Vec<String>, egress: Vec<String>) -> Self {
        Self {
            image: image.into(),
            image_version: None,
            ingress,
            egress,
            life_s: 600,
            idle_s: 60,
            suspended_s: 540,
            port: 8080,
            overhead_ms: 30_000,
        }
    }
}

/// The settings of the machines' client that do not come from the environment.
pub fn microvm_config() -> aws_sdk_lambdamicrovms::config::Builder {
    aws_sdk_lambdamicrovms::Config::builder()
        .retry_config(retries())
        .timeout_config(timeouts(ATTEMPT, OPERATION))
}

/// What a reaping did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaped {
    /// Machines that the provider listed.
    pub listed: usize,
    /// Those of no session, which were ended.
    pub ended: usize,
}

pub struct MicroVmHands {
    client: Client,
    config: MicroVmConfig,
    blobs: Arc<dyn Blobs>,
    documents: Arc<dyn Documents>,
    endpoint: Endpoint,
    /// By machine. A cache: another worker asks for one of its own.
    tokens: Mutex<HashMap<String, String>>,
}

#[derive(Serialize)]
struct Order<'a> {
    v: u32,
    call: Call<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<&'a BlobRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    given: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outputs: Option<&'a BlobRef>,
    repeated: bool,
}

#[derive(Serialize)]
struct Call<'a> {
    call_id: String,
    tool: &'a str,
    input: &'a str,
    timeout_ms: u64,
}

#[derive(Deserialize)]
struct Answer {
    reply: Reply,
    #[serde(default)]
    workspace: Option<BlobRef>,
    #[serde(default)]
    outputs: Option<BlobRef>,
}

#[derive(Deserialize)]
struct Reply {
    text: String,
    is_error: bool,
}

/// How far one call has come.
#[derive(Default)]
struct Course {
    /// It may have reached a daemon, in this machine.
    sent_to: Option<String>,
    token_renewed: bool,
    laid: bool,
    given: bool,
    looked: usize,
}

#[async_trait]
impl Hands for MicroVmHands {
    async fn execute(&self, order: &ToolOrder) -> Result<ToolReply, HandsError> {
        let name = sandbox_name(&order.key);
        let mut stored = record::get(self.documents.as_ref(), &name).await?;
        if let Some(worn) = stored.take_if(|stored| self.is_worn(stored, order)) {
            self.end(worn.record.machine.as_ref()).await?;
            stored = Some(record::begin(self.documents.as_ref(), &name, Some(&worn)).await?);
        }
        let mut course = Course::default();
        for _ in 0..SENDINGS_MAX {
            let (now, machine) = self.machine(&name, stored).await?;
            stored = Some(now.clone());
            let said = self.send(order, &now, &machine, &course).await?;
            match said {
                Said::Guest(StatusCode::OK, body) => match serde_json::from_slice(&body) {
                    Ok(answer) => return self.finish(order, &now, &machine, answer).await,
                    Err(error) => {
                        let what = format!("answer cannot be read: {error}");
                        stored = self.mend(now, &machine, &mut course, what, Sent::Perhaps).await?;
                    }
                },
                Said::Guest(StatusCode::CONFLICT, _) if !course.laid => {
                    course.laid = true;
                    if let Some(refusal) = self.lay(order, &now, &machine).await? {
                        return Ok(refusal);
                    }
                }
                Said::Guest(StatusCode::FAILED_DEPENDENCY, _) if !course.given => {
                    course.given = true;
                    if let Some(refusal) = self.give(order, &now, &machine).await? {
                        return Ok(refusal);
                    }
                }
                Said::Guest(StatusCode::GONE, _) => {
                    return Err(lost("the machine has started anew, and may have run the call"));
                }
                Said::Guest(status, body) => {
                    let text = String::from_utf8_lossy(&body[..body.len().min(500)]).into_owned();
                    return Ok(failed(format!(
                        "the sandbox did not run the call ({status}): {text}"
                    )));
                }
                Said::Token if !course.token_renewed => {
                    course.token_renewed = true;
                    self.forget_token(&machine.id);
                }
                Said::Token => {
                    return Err(unavailable("the endpoint refuses a fresh token"));
                }
                Said::Unreached(what) => {
                    stored = self.mend(now, &machine, &mut course, what, Sent::No).await?;
                }
                Said::Broken(what) => {
                    stored = self.mend(now, &machine, &mut course, what, Sent::Perhaps).await?;
                }
            }
        }
        Err(match course.sent_to {
            Some(_) => lost("the machine gave no answer, however often it was asked"),
            None => unavailable("no machine took the call"),
        })
    }

    async fn release(&self, key: &SessionKey) -> Result<(), HandsError> {
        let name = sandbox_name(key);
        let Some(stored) = record::get(self.documents.as_ref(), &name).await? else {
            return Ok(());
        };
        // The record first: a machine that stands in none is the reaper's, if ending it fails here or
        // if it is only being made.
        stored.remove(self.documents.as_ref()).await?;
        self.end(stored.record.machine.as_ref()).await
    }
}

/// Bytes to the daemon, or from it.
struct Transfer<'a> {
    method: Method,
    path: &'a str,
    sha256: Option<&'a str>,
    body: Bytes,
    /// Of the answer.
    bytes_max: usize,
}

/// Whether a request reached the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    No,
    Perhaps,
}

impl MicroVmHands {
    pub fn new(
        client: Client,
        config: MicroVmConfig,
        blobs: Arc<dyn Blobs>,
        documents: Arc<dyn Documents>,
    ) -> Self {
        Self {
            client,
            config,
            blobs,
            documents,
            endpoint: Endpoint::new(),
            tokens: Mutex::default(),
        }
    }

    /// Ends the machines of our image that stand in no session's record. A session that has one keeps
    /// it however long it runs: its life is the provider's to end.
    ///
    /// # Errors
    /// When the provider or the records are out of reach; the next one tries again.
    pub async fn reap(&self) -> Result<Reaped, HandsError> {
        // In this order: a machine that is made meanwhile is not in the list, and one in the list was
        // asked for before the records are read.
        let listed = self.machines().list().await?;
        if listed.is_empty() {
            return Ok(Reaped { listed: 0, ended: 0 });
        }
        let records = record::all(self.documents.as_ref()).await?;
        let life_ms = u64::try_from(self.config.life_s).unwrap_or(0) * 1_000;
        let starting =
            |record: &record::Record| record.machine.is_none() && record.age_ms() < life_ms;
        if records.iter().any(starting) {
            // One of those listed may be the one that is about to be written down.
            return Ok(Reaped { listed: listed.len(), ended: 0 });
        }
        let owned: BTreeSet<&str> = records
            .iter()
            .filter_map(|record| record.machine.as_ref())
            .map(|machine| machine.id.as_str())
            .collect();
        let mut reaped = Reaped { listed: listed.len(), ended: 0 };
        for id in listed.iter().filter(|id| !owned.contains(id.as_str())) {
            self.machines().terminate(id).await?;
            reaped.ended += 1;
        }
        Ok(reaped)
    }

    fn machines(&self) -> Machines<'_> {
        Machines { client: &self.client, config: &self.config }
    }

    /// The provider could end it during the call.
    fn is_worn(&self, stored: &Stored, order: &ToolOrder) -> bool {
        let life_ms = u64::try_from(self.config.life_s).unwrap_or(0) * 1_000;
        let need_ms = order.timeout_ms.min(life_ms / 2);
        stored.record.machine.is_some() && stored.record.age_ms() + need_ms >= life_ms
    }

    /// The session's machine, made if it has none.
    async fn machine(
        &self,
        name: &str,
        stored: Option<Stored>,
    ) -> Result<(Stored, Machine), HandsError> {
        let documents = self.documents.as_ref();
        let stored = match stored {
            Some(stored) => stored,
            None => record::begin(documents, name, None).await?,
        };
        if let Some(machine) = stored.record.machine.clone() {
            return Ok((stored, machine));
        }
        let machine = self.start(name, &stored).await?;
        let stored = stored.found(documents, machine.clone()).await?;
        Ok((stored, machine))
    }

    async fn start(&self, name: &str, stored: &Stored) -> Result<Machine, HandsError> {
        let record = &stored.record;
        let payload = serde_json::json!({
            "v": FORMAT,
            "sandbox": name,
            "generation": record.generation,
            "secret_sha256": sha256_hex(record.secret.as_bytes()),
        });
        self.machines().run(&record.client_token, &payload.to_string()).await
    }

    async fn send(
        &self,
        order: &ToolOrder,
        stored: &Stored,
        machine: &Machine,
        course: &Course,
    ) -> Result<Said, HandsError> {
        let call = Call {
            call_id: format!("{}.{}.{}", order.call.seq, order.call.event, order.call.part),
            tool: &order.tool,
            input: order.input.as_str(),
            timeout_ms: order.timeout_ms,
        };
        let repeated = course.sent_to.is_some();
        let workspace = workspace::before(order);
        let given = files::name(&order.given);
        let v = if given.is_some() { FORMAT_GIVEN } else { FORMAT };
        let outputs = order.outputs.as_ref();
        let message = Order { v, call, workspace, given, outputs, repeated };
        let body = serde_json::to_vec(&message).map_err(|error| unavailable(&error.to_string()))?;
        let time = Duration::from_millis(order.timeout_ms.saturating_add(self.config.overhead_ms));
        let token = self.token(&machine.id).await?;
        let ask = |method, path, body, time| Ask {
            endpoint: &machine.endpoint,
            port: self.config.port,
            token: &token,
            secret: &stored.record.secret,
            method,
            path,
            sha256: None,
            body,
            answer_bytes_max: ANSWER_BYTES_MAX,
            time,
        };
        let called = self.endpoint.ask(ask(Method::POST, "/v1/call", body.into(), time));
        tokio::pin!(called);
        loop {
            tokio::select! {
                said = &mut called => return Ok(said),
                () = tokio::time::sleep(KEEP_ALIVE) => {
                    let ping = ask(Method::GET, "/v1/health", Bytes::new(), ATTEMPT);
                    // It is the request that counts, whatever comes back.
                    let _ = self.endpoint.ask(ping).await;
                }
            }
        }
    }

    /// After a call without an answer: asks the provider what has become of the machine, and says what
    /// the next sending is to go to.
    async fn mend(
        &self,
        stored: Stored,
        machine: &Machine,
        course: &mut Course,
        what: String,
        sent: Sent,
    ) -> Result<Option<Stored>, HandsError> {
        if sent == Sent::Perhaps {
            course.sent_to = Some(machine.id.clone());
        }
        course.looked += 1;
        if course.looked > 2 {
            return Err(if course.sent_to.is_some() { lost(&what) } else { unavailable(&what) });
        }
        match self.machines().look(&machine.id).await? {
            Found::Up => Ok(Some(stored)),
            Found::Asleep => {
                self.machines().resume(&machine.id).await?;
                self.machines().look(&machine.id).await?;
                Ok(Some(stored))
            }
            Found::Gone if course.sent_to.is_some() => {
                Err(lost(&format!("microVM {} has ended during the call: {what}", machine.id)))
            }
            Found::Gone => {
                self.forget_token(&machine.id);
                let name = stored.name().to_owned();
                let next = record::begin(self.documents.as_ref(), &name, Some(&stored)).await?;
                Ok(Some(next))
            }
        }
    }

    async fn finish(
        &self,
        order: &ToolOrder,
        stored: &Stored,
        machine: &Machine,
        answer: Answer,
    ) -> Result<ToolReply, HandsError> {
        let Answer { reply: Reply { text, is_error }, workspace: named, outputs } = answer;
        let mut reply = ToolReply { text, is_error, ..ToolReply::default() };
        if let Some(outputs) = outputs {
            match self.take_outputs(order, stored, machine, &outputs).await {
                true => reply.report.outputs = Some(outputs),
                false => reply.text.push_str(OUTPUTS_FAILED),
            }
        }
        if named.as_ref() == workspace::before(order) {
            return Ok(reply);
        }
        let archive = match named {
            None => Bytes::new(),
            Some(named) => match self.fetch(stored, machine, &named).await? {
                Some(archive) => archive,
                None => {
                    reply.text.push_str(
                        "\n[the workspace could not be saved after this call; the next call tries again]",
                    );
                    return Ok(reply);
                }
            },
        };
        let saved = self.blobs.put(&order.key.tenant, archive).await;
        let saved =
            saved.map_err(|error| lost(&format!("workspace could not be saved: {error}")))?;
        reply.workspace = Some(saved);
        Ok(reply)
    }

    async fn transfer(
        &self,
        stored: &Stored,
        machine: &Machine,
        transfer: Transfer<'_>,
    ) -> Result<Said, HandsError> {
        let Transfer { method, path, sha256, body, bytes_max } = transfer;
        let token = self.token(&machine.id).await?;
        let ask = Ask {
            endpoint: &machine.endpoint,
            port: self.config.port,
            token: &token,
            secret: &stored.record.secret,
            method,
            path,
            sha256,
            body,
            answer_bytes_max: bytes_max,
            time: Duration::from_millis(self.config.overhead_ms),
        };
        Ok(self.endpoint.ask(ask).await)
    }

    async fn token(&self, id: &str) -> Result<String, HandsError> {
        let known = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        if let Some(token) = known {
            return Ok(token);
        }
        let token = self.machines().token(id).await?;
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.insert(id.to_owned(), token.clone());
        Ok(token)
    }

    fn forget_token(&self, id: &str) {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    async fn end(&self, machine: Option<&Machine>) -> Result<(), HandsError> {
        let Some(Machine { id, .. }) = machine else { return Ok(()) };
        self.forget_token(id);
        self.machines().terminate(id).await
    }
}

fn lost(what: &str) -> HandsError {
    HandsError::Lost { what: what.to_owned() }
}

fn unavailable(what: &str) -> HandsError {
    HandsError::Unavailable { what: what.to_owned() }
}
