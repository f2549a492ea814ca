//! A sandbox's way out: the broker beside it, which accepts on the one listener inside.

use std::{
    collections::BTreeMap,
    fs, io,
    net::TcpListener as StdListener,
    path::{Path, PathBuf},
};

use tailstep_core::{egress::Networking, event::HandsReport};
use tailstep_egress::{Broker, Config, EgressError, Policy, Secret};
use tailstep_runtime::ports::{Secrets, SecretsError};
use tailstep_sandbox::{Access, Mount, Network, Spec};
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
}

/// Closed, with every connection through it, when it is dropped.
pub(super) struct WayOut {
    broker: Broker,
    serving: Option<JoinHandle<()>>,
}

impl WayOut {
    /// What `networking` allows; `None` when that is nothing at all. Adds to `spec` what the inside
    /// needs to find it; `folder` keeps the certificates that the inside is to trust.
    pub(super) async fn prepare(
        networking: &Networking,
        secrets: &dyn Secrets,
        config: &Config,
        folder: &Path,
        spec: &mut Spec,
    ) -> Result<Option<Self>, WayOutError> {
        if networking.is_none() {
            return Ok(None);
        }
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
        Ok(Some(Self { broker, serving: None }))
    }

    pub(super) fn serve(&mut self, listener: StdListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let broker = self.broker.clone();
        self.serving = Some(tokio::spawn(async move { broker.serve(listener).await }));
        Ok(())
    }

    /// Adds what was decided since the last time.
    pub(super) fn report(&self, report: &mut HandsReport) {
        let (decisions, dropped) = self.broker.take_decisions();
        report.egress.extend(decisions);
        report.egress_dropped += dropped;
    }
}

impl Drop for WayOut {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
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
