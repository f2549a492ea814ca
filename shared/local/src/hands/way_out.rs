//! A sandbox's way out: the broker beside it, which accepts on the one listener inside.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use tailstep_core::{egress::Networking, event::HandsReport};
use tailstep_egress::{Broker, Config, EgressError, Policy, Secret};
use tailstep_runtime::ports::{Secrets, SecretsError};
use tailstep_sandbox::{Access, Mount, Network, Sandbox, SandboxError, Spec};
use thiserror::Error;
use tokio::{net::TcpListener, task::JoinHandle};

/// The store's names of secrets that rules may use begin so: a rule can name no other secret, such
/// as the key of a model provider. With `_hosts` behind the name the store may hold a list of hosts,
/// with commas between them, that the secret is for, whatever rules say.
const SECRET_PREFIX: &str = "egress_";

#[derive(Debug, Error)]
pub(super) enum WayOutError {
    #[error("secret {name} of the environment's network rules cannot be read")]
    Secret { name: String, source: SecretsError },
    #[error("the environment's network rules cannot be kept")]
    Rules(#[from] EgressError),
    #[error("cannot set up the sandbox's way out")]
    Setup(#[from] io::Error),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

/// Closed, with every connection through it, when it is dropped.
pub(super) struct WayOut {
    broker: Broker,
    serving: JoinHandle<()>,
}

/// What ways out are made with.
pub(super) struct Outside<'a> {
    pub(super) config: &'a Config,
    pub(super) secrets: &'a dyn Secrets,
    /// Keeps the certificates that the inside is to trust.
    pub(super) folder: &'a Path,
}

/// Starts the sandbox `spec`, with the way out that `networking` allows; without one when that is
/// nothing at all.
pub(super) async fn provision(
    mut spec: Spec,
    networking: &Networking,
    outside: Outside<'_>,
) -> Result<(Sandbox, Option<WayOut>), WayOutError> {
    if networking.is_none() {
        return Ok((Sandbox::provision(&spec).await?, None));
    }
    let Outside { config, secrets, folder } = outside;
    let policy = Policy::new(networking, &values(networking, secrets).await?)?;
    let broker = Broker::new(policy, config.clone())?;
    let environment = broker.environment();
    if environment.iter().any(|(_, value)| *value == config.ca_file) {
        let source = folder.join("egress-roots.pem");
        fs::write(&source, broker.ca_bundle_pem())?;
        let target = PathBuf::from(&config.ca_file);
        spec.mounts.push(Mount { source, target, access: Access::ReadOnly });
    }
    spec.environment.extend(environment);
    spec.network = Network::Proxy;
    let mut sandbox = Sandbox::provision(&spec).await?;
    let listener = sandbox.take_listener().ok_or_else(|| io::Error::other("no listener"))?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let served = broker.clone();
    let serving = tokio::spawn(async move { served.serve(listener).await });
    Ok((sandbox, Some(WayOut { broker, serving })))
}

impl WayOut {
    /// Adds what was decided since the last time.
    pub(super) fn report(&self, report: &mut HandsReport) {
        let (decisions, dropped) = self.broker.take_decisions();
        report.egress.extend(decisions);
        report.egress_dropped += dropped;
    }
}

impl Drop for WayOut {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn values(
    networking: &Networking,
    secrets: &dyn Secrets,
) -> Result<BTreeMap<String, Secret>, WayOutError> {
    let mut values = BTreeMap::new();
    let Networking::Limited { rules, .. } = networking else { return Ok(values) };
    for secret in rules.iter().flat_map(|rule| &rule.secrets) {
        let name = &secret.secret;
        let found = secrets.get(&format!("{SECRET_PREFIX}{name}")).await;
        let found = found.map_err(|source| WayOutError::Secret { name: name.clone(), source })?;
        if let Some(value) = found {
            let hosts = secrets.get(&format!("{SECRET_PREFIX}{name}_hosts")).await;
            let hosts =
                hosts.map_err(|source| WayOutError::Secret { name: name.clone(), source })?;
            let secret = Secret::new(value);
            values.insert(
                name.clone(),
                match &hosts {
                    Some(hosts) => secret.bound_to(hosts.split(',').map(str::trim)),
                    None => secret,
                },
            );
        }
    }
    Ok(values)
}
