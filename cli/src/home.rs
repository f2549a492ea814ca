//! Opens a data directory and puts the parts of the runtime together over it.

mod mirrors;
mod no_hands;

use std::{
    path::{Path, PathBuf, absolute},
    sync::Arc,
};

use anyhow::{Context, anyhow, bail};
use tailstep_api::{App, HandsFeatures, router_for};
use tailstep_core::{
    ids::SessionKey,
    limits::{Limits, files::UPLOAD_BYTES_MAX},
};
use tailstep_egress::Net;
use tailstep_local::{Config, HandsConfig, Local, LocalHands, workspace_dir};
use tailstep_model::{Config as ModelConfig, Router};
use tailstep_runtime::{
    Runtime,
    ports::{Hands, SystemClock},
    prefix::Prefixes,
};

use self::no_hands::NoHands;
use crate::api::Api;

/// The local form has one tenant.
pub(crate) const TENANT: &str = "default";

/// Names the directory that environments' packages are installed from.
const PACKAGES_VARIABLE: &str = "TAILSTEP_PACKAGES";

/// Names the private networks that sandboxes may reach where a rule allows it: mirrors, split name
/// services.
const OPENED_VARIABLE: &str = "TAILSTEP_EGRESS_ALLOW_PRIVATE";

/// Conversations kept at hand between model calls; a cache of what the log holds.
const PREFIXES_MAX: usize = 256;

/// Whether tools can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tools {
    /// In sandboxes; a host that cannot isolate is refused.
    Sandboxed,
    /// Every call is answered with an error.
    None,
}

/// An open data directory, held by this process alone.
pub(crate) struct Home {
    pub(crate) data_dir: PathBuf,
    pub(crate) local: Local,
    pub(crate) runtime: Runtime,
    sandboxes: Option<Arc<LocalHands>>,
    scripted: Vec<String>,
}

impl Home {
    /// Opens `data_dir`, which is made if it does not exist. `scripted` are further model ids that
    /// `scripted/echo` answers for.
    ///
    /// # Errors
    /// One line that says what to do.
    pub(crate) async fn open(
        data_dir: &Path,
        tools: Tools,
        scripted: &[String],
    ) -> anyhow::Result<Self> {
        let data_dir = absolute(data_dir)?;
        let mut models = ModelConfig::from_env()?;
        models.scripted_aliases.extend_from_slice(scripted);
        let packages = packages()?;
        let local = Local::open(&Config::new(&data_dir)).await?;
        let sandboxes = match tools {
            Tools::Sandboxed => Some(sandboxes(&data_dir, &local, packages.as_deref()).await?),
            Tools::None => None,
        };
        let hands: Arc<dyn Hands> = match &sandboxes {
            Some(sandboxes) => sandboxes.clone(),
            None => Arc::new(NoHands),
        };
        let router = Router::new(&models, local.secrets.clone())?;
        let runtime = Runtime {
            log: local.log.clone(),
            queue: local.queue.clone(),
            model: Arc::new(router),
            hands,
            documents: local.documents.clone(),
            clock: Arc::new(SystemClock),
            limits: Limits::default(),
            prefixes: Arc::new(Prefixes::new(PREFIXES_MAX)),
        };
        Ok(Self { data_dir, local, runtime, sandboxes, scripted: models.scripted_aliases })
    }

    /// As [`Self::open`], for commands that only look: nothing is made.
    ///
    /// # Errors
    /// Also when there is no such directory.
    pub(crate) async fn open_existing(data_dir: &Path, tools: Tools) -> anyhow::Result<Self> {
        if !data_dir.is_dir() {
            bail!("there is no data directory {}; name one with --data", data_dir.display());
        }
        Self::open(data_dir, tools, &[]).await
    }

    /// The API, as the one tenant there is.
    pub(crate) fn api(&self) -> Api {
        Api::new(router_for(self.app(), TENANT))
    }

    /// What the API works on here.
    pub(crate) fn app(&self) -> App {
        let packages = self.sandboxes.is_some();
        App {
            runtime: self.runtime.clone(),
            documents: self.local.documents.clone(),
            blobs: self.local.blobs.clone(),
            upload_bytes_max: UPLOAD_BYTES_MAX,
            hands: HandsFeatures { files: true, skills: true, packages, networking: true },
            stream_max_ms: None,
        }
    }

    /// A scripted answer must not be taken for a model's.
    pub(crate) fn say_what_is_scripted(&self) {
        for id in &self.scripted {
            eprintln!("model id `{id}` is answered by scripted/echo, no real model is behind it");
        }
    }

    /// Whether sessions with `model` can run here.
    ///
    /// # Errors
    /// One line that says what to do.
    pub(crate) async fn check_model(&self, model: &str) -> anyhow::Result<()> {
        self.runtime.model.check(model).map_err(|what| anyhow!(what))?;
        let anthropic = !model.contains('/') && !self.scripted.iter().any(|id| id == model);
        if anthropic && !self.has_anthropic_key().await? {
            bail!("model `{model}` needs ANTHROPIC_API_KEY; set it, or try --model scripted/echo");
        }
        Ok(())
    }

    pub(crate) async fn has_anthropic_key(&self) -> anyhow::Result<bool> {
        let key = self.local.secrets.get("anthropic_api_key").await;
        Ok(key.context("cannot look for ANTHROPIC_API_KEY")?.is_some())
    }

    /// Where the files of `session` are, or will be.
    pub(crate) fn workspace(&self, session: &str) -> PathBuf {
        workspace_dir(&self.data_dir, &SessionKey::new(TENANT, session))
    }

    /// Ends every sandbox and whatever runs in it; the workspaces stay.
    pub(crate) async fn end_sandboxes(&self) {
        if let Some(sandboxes) = &self.sandboxes {
            sandboxes.close().await;
        }
    }

    /// Gives the directory back.
    pub(crate) async fn close(&self) {
        self.end_sandboxes().await;
        self.local.close();
    }
}

/// Rather no hands than hands that are not held back.
async fn sandboxes(
    data_dir: &Path,
    local: &Local,
    packages: Option<&Path>,
) -> anyhow::Result<Arc<LocalHands>> {
    let layers = LocalHands::check_host(None)
        .await
        .map_err(|what| anyhow!("{what} (`tailstep dev --no-hands` runs without tools)"))?;
    for missing in &layers.missing {
        tracing::debug!(missing, "a wall of the sandbox is missing");
    }
    let mut config = HandsConfig { secrets: local.secrets.clone(), ..HandsConfig::default() };
    config.packages.directory = packages.map(Path::to_owned);
    mirrors::add(&mut config.packages, |name| std::env::var(name).ok())?;
    config.egress.allow_private = opened()?;
    Ok(LocalHands::new(data_dir, local.blobs.clone(), config))
}

fn opened() -> anyhow::Result<Vec<Net>> {
    let named = std::env::var(OPENED_VARIABLE).unwrap_or_default();
    let parts = named.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| part.parse().map_err(|why| anyhow!("{OPENED_VARIABLE}: {part}: {why}")))
        .collect()
}

fn packages() -> anyhow::Result<Option<PathBuf>> {
    let Some(named) = std::env::var_os(PACKAGES_VARIABLE).filter(|named| !named.is_empty()) else {
        return Ok(None);
    };
    let directory = absolute(named)?;
    if !directory.is_dir() {
        bail!("{PACKAGES_VARIABLE} names {}, which is no directory", directory.display());
    }
    Ok(Some(directory))
}
