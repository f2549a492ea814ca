//! The proxy of `tailstep sandbox run --net proxy`.

use std::{collections::BTreeMap, net::TcpListener, thread};

use anyhow::{Context, bail};
use tailstep_core::egress::Networking;
use tailstep_egress::{Broker, Config, Policy};
use tailstep_sandbox::{Network, Spec};
use tokio::runtime::Builder;

use super::run::Args;

pub(super) struct WayOut(Broker);

impl WayOut {
    /// `None` without a network. Starts no thread: the sandbox is yet to be forked.
    pub(super) fn prepare(args: &Args, spec: &mut Spec) -> anyhow::Result<Option<Self>> {
        if spec.network == Network::None {
            if !args.allowed.is_empty() {
                bail!("--allow needs --net proxy");
            }
            return Ok(None);
        }
        let networking =
            Networking::Limited { rules: args.allowed.clone(), package_managers: false };
        let policy = Policy::new(&networking, &BTreeMap::new())?;
        let broker = Broker::new(policy, Config::default())?;
        // What was asked for by name wins.
        let mut environment = broker.environment();
        environment.append(&mut spec.environment);
        spec.environment = environment;
        Ok(Some(Self(broker)))
    }

    /// Serves the sandbox from a thread of its own, until this process ends.
    pub(super) fn serve(&self, listener: TcpListener) -> anyhow::Result<()> {
        let broker = self.0.clone();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        listener.set_nonblocking(true)?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let serving = thread::Builder::new().name("proxy".into());
        serving
            .spawn(move || runtime.block_on(broker.serve(listener)))
            .map(drop)
            .context("cannot start the proxy")
    }

    /// Names what was refused, and with `everything` what was allowed too.
    pub(super) fn show_decisions(&self, everything: bool) {
        let (decisions, dropped) = self.0.take_decisions();
        for decision in decisions.iter().filter(|decision| everything || !decision.allowed) {
            let word = if decision.allowed { "allowed" } else { "refused" };
            let host = decision.host.escape_debug();
            if decision.host.is_empty() {
                // What was sent names nobody.
                eprintln!("tailstep: {word}: {}", decision.why);
            } else {
                eprintln!("tailstep: {word} {host}:{}: {}", decision.port, decision.why);
            }
        }
        if dropped > 0 {
            eprintln!("tailstep: and {dropped} more requests");
        }
    }
}
