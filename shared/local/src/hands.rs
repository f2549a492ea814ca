//! The execution layer of the local form: one sandbox a session, made when its first call comes,
//! ended when it has been idle for a while or room is needed, over a workspace that outlives it.

mod folder;
mod given;
mod outputs;
mod packages;
mod pool;
mod way_out;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use tailstep_core::ids::SessionKey;
use tailstep_egress::Config as EgressConfig;
use tailstep_runtime::ports::{Blobs, Hands, HandsError, Secrets, ToolOrder, ToolReply};
use tailstep_runtime::{error::chain, memory::MemorySecrets};
use tailstep_sandbox::{Call, Layers as Walls, Mount, Retry, SandboxError, Spec, check_host};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, timeout_at},
};

pub use folder::workspace_dir;
pub use packages::PackageSource;

use folder::Folder;
use packages::Layers;
use pool::{Live, Pool, Use};
use way_out::{Outside, WayOutError, provision};

/// Said before the reply of a call that finds the shell of the calls before it gone.
const NEW_SANDBOX: &str = "[This call ran in a new sandbox: the files in /workspace are as they \
    were, but processes and shell variables of earlier calls are gone.]\n";

/// The details are the operator's.
const OUTPUTS_FAILED: &str = "[outputs: they could not be stored after this call; the next call \
    tries again]";

#[derive(Clone)]
pub struct HandsConfig {
    /// What each sandbox is made of; its `workspace` is set for each session.
    pub spec: Spec,
    /// Sandboxes at one time. When all are at work, a further session's call waits.
    pub live_max: usize,
    /// A sandbox without a call for this long is ended.
    pub idle_ms: u64,
    /// The longest wait for room.
    pub room_wait_ms: u64,
    /// Where environments' packages come from.
    pub packages: PackageSource,
    /// Limits of each sandbox's way out, for environments that have one.
    pub egress: EgressConfig,
    /// Where the secrets of network rules are; without it a rule that names one is an error.
    pub secrets: Arc<dyn Secrets>,
}

impl Default for HandsConfig {
    fn default() -> Self {
        Self {
            spec: Spec::new(PathBuf::new()),
            live_max: 32,
            idle_ms: 120_000,
            room_wait_ms: 60_000,
            packages: PackageSource::new(),
            egress: EgressConfig::default(),
            secrets: Arc::new(MemorySecrets::default()),
        }
    }
}

/// [`Hands`] in `namespaces` sandboxes of this machine.
pub struct LocalHands {
    data_dir: PathBuf,
    blobs: Arc<dyn Blobs>,
    config: HandsConfig,
    pool: Pool,
    layers: Arc<Layers>,
}

impl LocalHands {
    /// Hands over the workspaces in `data_dir`; what sessions put out goes to `blobs`. Needs a tokio
    /// runtime.
    pub fn new(
        data_dir: impl Into<PathBuf>,
        blobs: Arc<dyn Blobs>,
        config: HandsConfig,
    ) -> Arc<Self> {
        let pool = Pool::new(config.live_max);
        let data_dir = data_dir.into();
        let layers = Layers::new(
            &data_dir,
            config.spec.clone(),
            config.packages.clone(),
            config.egress.clone(),
        );
        let hands = Arc::new(Self { data_dir, blobs, config, pool, layers });
        tokio::spawn(end_the_idle(Arc::downgrade(&hands), hands.config.idle_ms));
        hands
    }

    /// Looks whether this host can isolate, and which walls it has; `helper` as in
    /// [`Spec::helper_path`].
    ///
    /// # Errors
    /// One line that says what is missing and what to change.
    pub async fn check_host(helper: Option<&Path>) -> Result<Walls, String> {
        check_host(helper).await
    }

    /// Ends every sandbox, whatever it is doing; workspaces stay. Later calls are refused.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Sandboxes that are running.
    pub fn live(&self) -> usize {
        self.pool.live(self.config.live_max)
    }

    /// The session's sandbox, and whether it is another one than the call before may have had.
    async fn ready(
        &self,
        session: &Use<'_>,
        order: &ToolOrder,
    ) -> Result<(Live, bool), HandsError> {
        let mut held = session.slot().lock_owned().await;
        match &*held {
            Some(live) if !self.is_worn(live) => return Ok((live.clone(), false)),
            Some(_) | None => {}
        }
        if let Some(worn) = held.take() {
            worn.end().await;
        }
        let layer = match order.environment.packages.is_empty() {
            true => None,
            // Before there is room for it: a build takes longer than others should wait.
            false => Some(self.layer(order).await?),
        };
        let until = Instant::now() + Duration::from_millis(self.config.room_wait_ms);
        let room = timeout_at(until, self.pool.room()).await.map_err(|_| {
            unavailable(format!("all {} sandboxes are at work", self.config.live_max))
        })?;
        let room = room.ok_or_else(|| unavailable("the process is ending".to_owned()))?;
        let folder = Folder::of(&self.data_dir, &order.key);
        let had_one = folder.prepare().map_err(|error| unavailable(error.to_string()))?;
        let outputs = folder.outputs().mount().map_err(|error| unavailable(error.to_string()))?;
        let blobs = self.blobs.as_ref();
        let given = given::prepare(folder.dir(), blobs, &order.key.tenant, &order.given).await;
        let dir = folder.dir().to_owned();
        let mut spec = Spec { workspace: folder.workspace, ..self.config.spec.clone() };
        spec.mounts.push(outputs);
        spec.mounts.extend(given.map_err(|error| unavailable(chain(&error)))?);
        if let Some((mount, environment)) = layer {
            spec.mounts.push(mount);
            spec.environment.extend(environment);
        }
        let HandsConfig { egress, secrets, .. } = &self.config;
        let outside = Outside { config: egress, secrets: secrets.as_ref(), folder: &dir };
        let made = provision(spec, &order.environment.networking, outside).await;
        let (sandbox, way_out) = made.map_err(unprepared)?;
        let live = Live::new(sandbox, way_out, room);
        *held = Some(live.clone());
        Ok((live, had_one))
    }

    async fn layer(&self, order: &ToolOrder) -> Result<(Mount, Vec<(String, String)>), HandsError> {
        let layer = self.layers.ready(&order.environment.packages).await;
        layer.map_err(|told| HandsError::Unprepared { told })
    }

    /// Adds what the call has put out. The call has run, so that a failure here must not lose its
    /// reply.
    async fn with_outputs(&self, order: &ToolOrder, mut reply: ToolReply) -> ToolReply {
        let outputs = Folder::of(&self.data_dir, &order.key).outputs();
        let before = order.outputs.clone();
        let line = match outputs.collect(self.blobs.clone(), &order.key.tenant, before).await {
            Ok(None) => return reply,
            Ok(Some(changed)) => {
                reply.report.outputs = Some(changed.manifest);
                changed.notice
            }
            Err(error) => {
                tracing::warn!(%error, session = %order.key, "outputs were not collected");
                Some(OUTPUTS_FAILED.to_owned())
            }
        };
        if let Some(line) = line {
            if !reply.text.is_empty() && !reply.text.ends_with('\n') {
                reply.text.push('\n');
            }
            reply.text.push_str(&line);
        }
        reply
    }

    /// Its backstop could end it during the next call.
    fn is_worn(&self, live: &Live) -> bool {
        let limits = &self.config.spec.limits;
        let left_ms = limits.life_ms_max.saturating_sub(limits.call_ms_max);
        live.born.elapsed() >= Duration::from_millis(left_ms.max(limits.life_ms_max / 2))
    }
}

#[async_trait]
impl Hands for LocalHands {
    async fn execute(&self, order: &ToolOrder) -> Result<ToolReply, HandsError> {
        let session = self.pool.enter(&order.key);
        let (live, new) = self.ready(&session, order).await?;
        let call = Call {
            call_id: format!("{}.{}.{}", order.call.seq, order.call.event, order.call.part),
            tool: order.tool.clone(),
            input: order.input.as_str().to_owned(),
            timeout_ms: order.timeout_ms,
        };
        let done = tokio::select! {
            done = live.sandbox.execute(call) => done,
            () = live.stopped() => Err(SandboxError::Gone { why: "it was ended".to_owned() }),
        };
        match done {
            Ok(reply) => {
                let text = if new { format!("{NEW_SANDBOX}{}", reply.text) } else { reply.text };
                let mut reply =
                    ToolReply { text, is_error: reply.is_error, ..ToolReply::default() };
                reply.report.walls_missing = live.sandbox.layers().missing_names();
                if let Some(way_out) = &live.way_out {
                    way_out.report(&mut reply.report);
                }
                Ok(self.with_outputs(order, reply).await)
            }
            Err(error) => match error.retry() {
                // The sandbox is well, the call is not one it can take.
                Retry::Never => {
                    Ok(ToolReply { text: chain(&error), is_error: true, ..ToolReply::default() })
                }
                Retry::FreshSandbox => {
                    session.forget(&live).await;
                    Err(HandsError::Lost { what: chain(&error) })
                }
            },
        }
    }

    async fn release(&self, key: &SessionKey) -> Result<(), HandsError> {
        let session = self.pool.enter(key);
        // Held until the folder is gone, so that no call makes a sandbox in it meanwhile.
        let mut held = session.slot().lock_owned().await;
        if let Some(live) = held.take() {
            live.end().await;
        }
        let folder = Folder::of(&self.data_dir, key);
        let removed = spawn_blocking(move || folder.remove()).await;
        removed
            .map_err(|error| unavailable(error.to_string()))?
            .map_err(|error| unavailable(format!("cannot remove a session's folder: {error}")))
    }
}

/// Looks for idle sandboxes until the hands are gone.
async fn end_the_idle(hands: Weak<LocalHands>, idle_ms: u64) {
    loop {
        sleep(Duration::from_millis((idle_ms / 4).clamp(50, 10_000))).await;
        let Some(hands) = hands.upgrade() else { return };
        hands.pool.end_idle(Duration::from_millis(idle_ms)).await;
    }
}

/// What the model can be told of: rules that cannot be kept. The rest is the operator's.
fn unprepared(error: WayOutError) -> HandsError {
    match &error {
        WayOutError::Rules(_) => {
            HandsError::Unprepared { told: format!("{}; the call did not run", chain(&error)) }
        }
        WayOutError::Secret { .. } | WayOutError::Setup(_) | WayOutError::Sandbox(_) => {
            unavailable(chain(&error))
        }
    }
}

fn unavailable(what: String) -> HandsError {
    HandsError::Unavailable { what }
}
