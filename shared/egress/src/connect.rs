//! From an allowed target to a connection: look up once, check every address, connect to one of them.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};

use crate::{address::is_public, authority::Host, config::Config, refusal::Refusal};

/// Addresses of one name that are tried.
const TRIES_MAX: usize = 4;

/// A connection to a checked address.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) stream: TcpStream,
    pub(crate) standing: Standing,
}

/// Why an address may be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Public,
    /// The operator opened it by hand.
    Opened,
}

/// Connects to `host` at `port` within `deadline`.
pub(crate) async fn connect(
    config: &Config,
    host: &Host,
    port: u16,
    deadline: Instant,
) -> Result<Connected, Refusal> {
    let late = |_| Refusal::origin(format!("{host} did not answer in time")).with_status(504);
    let found = timeout_at(deadline, lookup(config, host)).await.map_err(late)??;
    let addresses: Vec<SocketAddr> =
        found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
    let is_opened =
        |address: &SocketAddr| config.allow_private.iter().any(|net| net.contains(*address));
    // One closed address closes the name: whoever mixes them is trying something.
    if addresses.iter().any(|address| !is_opened(address) && !is_public(address.ip())) {
        return Err(Refusal::policy(format!(
            "{host} has an address that is not public, and this environment reaches public ones only"
        )));
    }
    let mut failed = format!("{host} has no address");
    for address in addresses.iter().take(TRIES_MAX) {
        let standing = if is_opened(address) { Standing::Opened } else { Standing::Public };
        match timeout_at(deadline, TcpStream::connect(address)).await.map_err(late)? {
            Ok(stream) if standing == Standing::Opened || !is_self(&stream) => {
                let _ = stream.set_nodelay(true);
                return Ok(Connected { stream, standing });
            }
            Ok(_) => {
                return Err(Refusal::policy(format!(
                    "{host} is the machine that runs the sandbox"
                )));
            }
            Err(error) => failed = format!("{host} cannot be reached: {}", error.kind()),
        }
    }
    Err(Refusal::origin(failed))
}

async fn lookup(config: &Config, host: &Host) -> Result<Vec<IpAddr>, Refusal> {
    match host {
        Host::Ip(ip) => Ok(vec![*ip]),
        Host::Name(name) => config.resolver.resolve(name).await.map_err(|error| {
            tracing::debug!(%error, name, "a name was not resolved");
            Refusal::origin(format!("the name {host} was not found"))
        }),
    }
}

/// A public address may be this machine's own; what listens here is not the internet.
fn is_self(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => local.ip() == peer.ip(),
        (Ok(_) | Err(_), _) => true,
    }
}

/// The end of the time that connecting has.
pub(crate) fn deadline(config: &Config) -> Instant {
    Instant::now() + Duration::from_millis(config.connect_ms)
}
