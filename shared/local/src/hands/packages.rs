//! Packages of environments as layers: installed once for each set of them, in a sandbox of its own,
//! into a directory that sessions' sandboxes then see read-only.
//!
//! What runs while packages are installed is as foreign as anything else: it sees the directory to be
//! filled, an empty workspace and the way out that it is given, and nothing of any session.

mod commands;

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tailstep_core::{
    agent::Packages,
    egress::{EgressRule, Networking},
    ids::sha256_hex,
    packages::Manager,
};
use tailstep_egress::Config as EgressConfig;
use tailstep_runtime::memory::MemorySecrets;
use tailstep_sandbox::{
    Access, Call, Limits, Mount, Root, Sandbox, SandboxError, Spec, remove_tree,
};
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, timeout},
};

use super::way_out::{Outside, provision};
use crate::files::make_private_dir;

/// Where sandboxes see a layer.
pub(super) const LAYER: &str = "/opt/tailstep/packages";

/// Where a build sees the directory of [`PackageSource::directory`].
const SOURCE: &str = "/mnt/packages";

/// A failed build is not tried again for this long: every call of a session would start it anew.
const FAILED_MS: u64 = 60_000;

/// The end of a failed command's output that the model is told.
const TOLD_LINES: usize = 15;
const TOLD_CHARS: usize = 2_000;

/// Where packages come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackageSource {
    /// A directory of packages (wheels, archives) that builds see read-only. With it nothing is
    /// fetched from anywhere; without it builds reach the public registries, and nothing else.
    pub directory: Option<PathBuf>,
    /// Further hosts that builds may reach, such as a mirror's.
    pub registries: Vec<EgressRule>,
    /// Variables of builds, such as the address of a mirror.
    pub environment: Vec<(String, String)>,
    /// The longest build.
    pub build_ms_max: u64,
    /// A call waits for a build no longer than this; the build goes on for the next one.
    pub wait_ms_max: u64,
    /// The most that a layer may hold, and what a build may write: one that goes on beyond it is ended
    /// within seconds.
    pub layer_bytes_max: u64,
}

impl PackageSource {
    /// No directory, and times for a compiler at work: a call waits below its own ceiling.
    pub fn new() -> Self {
        let (build_ms_max, wait_ms_max) = (1_200_000, 140_000);
        let (registries, environment) = (Vec::new(), Vec::new());
        // The largest sets of packages that are usual, machine learning's, have some gigabytes.
        let layer_bytes_max = 8 << 30;
        Self {
            directory: None,
            registries,
            environment,
            build_ms_max,
            wait_ms_max,
            layer_bytes_max,
        }
    }
}

/// All layers of a data directory.
pub(super) struct Layers {
    directory: PathBuf,
    /// What builds are made of: helper, limits, strictness.
    template: Spec,
    source: PackageSource,
    /// Limits of a build's way out.
    egress: EgressConfig,
    /// By key; held while it is built.
    states: Mutex<BTreeMap<String, Arc<AsyncMutex<State>>>>,
}

#[derive(Default)]
enum State {
    #[default]
    Unknown,
    Ready(PathBuf),
    Failed {
        at: Instant,
        told: String,
    },
}

impl Layers {
    pub(super) fn new(
        data_dir: &Path,
        template: Spec,
        source: PackageSource,
        egress: EgressConfig,
    ) -> Arc<Self> {
        let directory = data_dir.join("layers");
        Arc::new(Self { directory, template, source, egress, states: Mutex::default() })
    }

    /// How a sandbox sees `packages`: its mount and its variables. Builds the layer if nobody has;
    /// whoever asks meanwhile waits for the same build.
    ///
    /// # Errors
    /// What the model is told when there is no layer.
    pub(super) async fn ready(
        self: &Arc<Self>,
        packages: &Packages,
    ) -> Result<(Mount, Vec<(String, String)>), String> {
        let key = self.key(packages);
        let state = {
            let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(states.entry(key.clone()).or_default())
        };
        // A task of its own: a build outlives the call that began it.
        let build = {
            let (layers, packages) = (Arc::clone(self), packages.clone());
            tokio::spawn(
                async move { layers.settled(&key, &packages, &mut *state.lock().await).await },
            )
        };
        let wait = Duration::from_millis(self.source.wait_ms_max);
        let built = timeout(wait, build).await.map_err(|_| {
            "the environment's packages are still being installed, so this call did not run; \
             make it again in a minute"
                .to_owned()
        })?;
        let source = built.unwrap_or_else(|error| Err(broken(&error)))?;
        let mount = Mount { source, target: PathBuf::from(LAYER), access: Access::ReadOnly };
        Ok((mount, commands::environment(Path::new(LAYER), packages)))
    }

    /// What makes two layers the same. Sandboxes see the programs of this host or of an image, so that
    /// versions are theirs; a host that was upgraded builds anew.
    fn key(&self, packages: &Packages) -> String {
        let stamp = |path: &str| {
            let changed = fs::metadata(path).and_then(|found| found.modified()).ok();
            format!("{changed:?}")
        };
        let managers = Manager::ALL.map(|manager| match packages.of(manager).is_empty() {
            true => String::new(),
            false => stamp(commands::program(manager)),
        });
        let packages = serde_json::to_string(packages).unwrap_or_default();
        let (root, source) = (&self.template.root, &self.source);
        sha256_hex(format!("2\n{packages}\n{managers:?}\n{root:?}\n{source:?}").as_bytes())
    }

    async fn settled(
        &self,
        key: &str,
        packages: &Packages,
        state: &mut State,
    ) -> Result<PathBuf, String> {
        match state {
            State::Ready(layer) => return Ok(layer.clone()),
            State::Failed { at, told } if at.elapsed() < Duration::from_millis(FAILED_MS) => {
                return Err(told.clone());
            }
            State::Unknown | State::Failed { .. } => {}
        }
        let layer = self.directory.join(key);
        if !layer.exists() {
            let begun = Instant::now();
            if let Err(told) = self.build(key, &layer, packages).await {
                tracing::warn!(layer = key, "packages could not be installed");
                *state = State::Failed { at: Instant::now(), told: told.clone() };
                return Err(told);
            }
            let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            tracing::info!(layer = key, packages = packages.count(), took_ms, "packages installed");
        }
        *state = State::Ready(layer.clone());
        Ok(layer)
    }

    /// Whole under its name, or not there at all.
    async fn build(&self, key: &str, layer: &Path, packages: &Packages) -> Result<(), String> {
        let place = self.directory.join(format!(".unfinished-{key}"));
        let (root, workspace) = (place.join("layer"), place.join("workspace"));
        let prepare = || -> io::Result<()> {
            // Left by a process that was killed.
            remove_tree(&place)?;
            make_private_dir(&workspace)?;
            make_private_dir(&root)?;
            // For the build's user, whoever that is; nobody else gets through the folder above.
            fs::set_permissions(&root, Permissions::from_mode(0o777))
        };
        prepare().map_err(|error| broken(&error))?;
        let outcome = self.install(&root, &workspace, packages).await;
        let finish = || -> io::Result<()> {
            fs::set_permissions(&root, Permissions::from_mode(0o755))?;
            fs::rename(&root, layer)
        };
        let outcome = outcome.and_then(|()| finish().map_err(|error| broken(&error)));
        if let Err(error) = remove_tree(&place) {
            tracing::warn!(%error, layer = key, "what a build left cannot be removed");
        }
        outcome
    }

    async fn install(
        &self,
        root: &Path,
        workspace: &Path,
        packages: &Packages,
    ) -> Result<(), String> {
        let outside = Outside {
            config: &self.egress,
            secrets: &MemorySecrets::default(),
            folder: &self.directory,
        };
        let made =
            provision(self.spec(root, workspace, packages), &self.networking(), outside).await;
        let (sandbox, _way_out) = made.map_err(|error| broken(&error))?;
        let mut outcome = Ok(());
        for manager in Manager::ALL {
            let wanted = packages.of(manager);
            if wanted.is_empty() {
                continue;
            }
            let command = commands::install(manager, wanted, self.source.directory.is_some());
            outcome = run(&sandbox, manager.as_str(), command, self.source.build_ms_max).await;
            if outcome.is_err() {
                break;
            }
        }
        if outcome.is_ok() {
            let weigh = commands::weigh(self.source.layer_bytes_max);
            outcome = run(&sandbox, "all", weigh, self.source.build_ms_max).await;
        }
        sandbox.destroy().await;
        outcome
    }

    fn networking(&self) -> Networking {
        match self.source.directory {
            Some(_) => Networking::None,
            None => Networking::Limited {
                rules: self.source.registries.clone(),
                package_managers: true,
            },
        }
    }

    fn spec(&self, root: &Path, workspace: &Path, packages: &Packages) -> Spec {
        let layer =
            Mount { source: root.to_owned(), target: PathBuf::from(LAYER), access: Access::Owned };
        let source = self.source.directory.as_ref().map(|directory| Mount {
            source: directory.clone(),
            target: PathBuf::from(SOURCE),
            access: Access::ReadOnly,
        });
        // What the host has need not be in a layer: sandboxes see the host's programs.
        let has_list = self.template.root == Root::Host && Path::new(commands::INSTALLED).is_file();
        let installed = (!packages.apt.is_empty() && has_list).then(|| Mount {
            source: PathBuf::from(commands::INSTALLED),
            target: PathBuf::from(commands::HOST_INSTALLED),
            access: Access::ReadOnly,
        });
        let mut environment = commands::environment(Path::new(LAYER), packages);
        environment.extend(commands::build_environment(source.is_some().then_some(SOURCE)));
        environment.extend(self.source.environment.iter().cloned());
        let time_ms = self.source.build_ms_max;
        Spec {
            workspace: workspace.to_owned(),
            mounts: std::iter::once(layer).chain(source).chain(installed).collect(),
            environment,
            limits: Limits {
                call_ms_max: time_ms,
                life_ms_max: time_ms.saturating_mul(2),
                disk_bytes: self.source.layer_bytes_max,
                ..self.template.limits.clone()
            },
            ..self.template.clone()
        }
    }
}

async fn run(sandbox: &Sandbox, name: &str, command: String, time_ms: u64) -> Result<(), String> {
    let call = Call {
        call_id: name.to_owned(),
        tool: "bash".to_owned(),
        input: serde_json::json!({ "command": command }).to_string(),
        timeout_ms: time_ms,
    };
    let failed = |what: &str| {
        format!(
            "the environment's packages could not be installed, so this call did not run; {name}: \
             {what}"
        )
    };
    let reply = match sandbox.execute(call).await {
        Ok(reply) => reply,
        // By a limit, mostly, which it names.
        Err(SandboxError::Gone { why }) => {
            return Err(failed(&format!("its sandbox ended: {why}")));
        }
        Err(error) => return Err(broken(&error)),
    };
    if reply.timed_out {
        return Err(failed(&format!("it took longer than {} s", time_ms / 1_000)));
    }
    // The shell says the status in the text of a call that failed; success is spelt out.
    match reply.is_error || !reply.text.trim_end().ends_with(commands::DONE) {
        true => Err(failed(&last_lines(&reply.text))),
        false => Ok(()),
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(TOLD_LINES);
    let told = lines.get(from..).unwrap_or_default().join("\n");
    let over = told.chars().count().saturating_sub(TOLD_CHARS);
    told.chars().skip(over).collect()
}

/// A fault that is not the packages'.
fn broken(error: &dyn std::error::Error) -> String {
    tracing::warn!(error = super::chain(error), "a layer could not be prepared");
    "the environment's packages could not be prepared on this host, so this call did not run"
        .to_owned()
}
