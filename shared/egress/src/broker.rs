//! The broker: accepts, and sends each connection its way.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tailstep_core::egress::EgressDecision;
use tokio::{
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Semaphore, watch},
    task::JoinSet,
    time::sleep,
};

use crate::{
    authority::{Authority, Host},
    config::Config,
    connect,
    error::EgressError,
    head::{Framing, Head, HeadTimes, read_head},
    inspect,
    journal::{Journal, Subject},
    meter::{Meter, Totals},
    plain,
    policy::{Policy, Way},
    refusal::Refusal,
    scrub::Patterns,
    secret::{Placeholders, Secret},
    stream::{Inbound, last_words},
    tls::{Tls, public_roots_pem},
    tunnel,
};

/// Connections beyond the limit that are told so; further ones are just closed.
const TOLD_MAX: usize = 32;
/// Values of replaced policies that are still looked for in answers.
const OLD_VALUES_MAX: usize = 64;

/// One sandbox's way out.
#[derive(Debug, Clone)]
pub struct Broker {
    shared: Arc<Shared>,
}

/// What all connections see.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) journal: Journal,
    pub(crate) tls: Tls,
    totals: Arc<Totals>,
    live: watch::Sender<Arc<Live>>,
    known: Mutex<Known>,
    connections: Arc<Semaphore>,
    told: Arc<Semaphore>,
}

/// The policy that is in force, with what goes with it.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) policy: Policy,
    pub(crate) placeholders: Placeholders,
    pub(crate) patterns: Patterns,
}

/// What outlives a policy.
#[derive(Debug, Default)]
struct Known {
    placeholders: Placeholders,
    /// Values with their placeholders, newest last.
    values: Vec<(Secret, String)>,
}

impl Broker {
    /// A broker with its own certificate authority and placeholders.
    ///
    /// # Errors
    /// When a root cannot be read, or the system gives no random bytes.
    pub fn new(policy: Policy, config: Config) -> Result<Self, EgressError> {
        let shared = Shared {
            journal: Journal::new(config.decisions_max),
            tls: Tls::new(&config.extra_roots)?,
            totals: Arc::new(Totals::new(&config)),
            live: watch::Sender::new(Arc::default()),
            known: Mutex::default(),
            connections: Arc::new(Semaphore::new(config.connections_max)),
            told: Arc::new(Semaphore::new(TOLD_MAX)),
            config,
        };
        let broker = Self { shared: Arc::new(shared) };
        broker.replace(policy)?;
        Ok(broker)
    }

    /// Serves the sandbox that connects to `listener`. Dropping the future closes every connection.
    pub async fn serve(&self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.begin(&mut connections, stream),
                    Err(error) => {
                        tracing::warn!(%error, "a sandbox's connection was not accepted");
                        sleep(Duration::from_millis(50)).await;
                    }
                },
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "serving a sandbox's connection failed");
                    }
                }
            }
        }
    }

    fn begin(&self, connections: &mut JoinSet<()>, stream: TcpStream) {
        let shared = Arc::clone(&self.shared);
        let _ = stream.set_nodelay(true);
        if let Ok(permit) = Arc::clone(&shared.connections).try_acquire_owned() {
            connections.spawn(async move {
                connection(&shared, stream).await;
                drop(permit);
            });
            return;
        }
        let max = shared.config.connections_max;
        let refusal =
            Refusal::limit(format!("this sandbox may have {max} connections at once, and it has"));
        shared.journal.refused(&Subject::default(), &refusal.why);
        if let Ok(permit) = Arc::clone(&shared.told).try_acquire_owned() {
            connections.spawn(async move {
                let (reader, mut out) = stream.into_split();
                let words = refusal.response();
                last_words(words.as_bytes(), &mut Inbound::new(reader), &mut out).await;
                drop(permit);
            });
        }
    }

    /// Puts `policy` in force. Connections and requests that it forbids are cut; placeholders stay what
    /// they are, and new variables get new ones, see [`Self::environment`].
    ///
    /// # Errors
    /// When the system gives no random bytes; nothing is allowed then.
    pub fn replace(&self, policy: Policy) -> Result<(), EgressError> {
        let mut known = self.shared.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.learn(&policy) {
            Ok(()) => {
                let live = known.live(policy);
                self.shared.live.send_replace(Arc::new(live));
                Ok(())
            }
            Err(error) => {
                self.shared.live.send_replace(Arc::default());
                Err(error)
            }
        }
    }

    /// Decisions since the last time, oldest first, and how many more there were.
    pub fn take_decisions(&self) -> (Vec<EgressDecision>, u64) {
        self.shared.journal.take()
    }

    /// What programs inside need to find their way: the proxy, the placeholders, and, when any rule
    /// makes the broker read TLS, where the roots are (the caller puts [`Self::ca_bundle_pem`] there).
    pub fn environment(&self) -> Vec<(String, String)> {
        const PROXY: [&str; 4] = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"];
        const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];
        const ROOTS: [&str; 8] = [
            "SSL_CERT_FILE",
            "CURL_CA_BUNDLE",
            "REQUESTS_CA_BUNDLE",
            "PIP_CERT",
            "GIT_SSL_CAINFO",
            "CARGO_HTTP_CAINFO",
            "NODE_EXTRA_CA_CERTS",
            "AWS_CA_BUNDLE",
        ];
        let Config { proxy_url, ca_file, .. } = &self.shared.config;
        let live = self.shared.live();
        let mut variables: Vec<(String, String)> = Vec::new();
        let mut set = |names: &[&str], value: &str| {
            variables.extend(names.iter().map(|name| ((*name).to_owned(), value.to_owned())));
        };
        set(&PROXY, proxy_url);
        set(&NO_PROXY, "localhost,127.0.0.1,::1");
        // Node takes no notice of a proxy unless it is told to.
        set(&["NODE_USE_ENV_PROXY"], "1");
        if live.policy.reads_requests() {
            set(&ROOTS, ca_file);
        }
        for secret in live.policy.secrets() {
            let placeholder = live.placeholders.get(&secret.variable).unwrap_or_default();
            set(&[&secret.variable], placeholder);
        }
        variables.sort();
        variables.dedup();
        variables
    }

    /// The certificate of this broker's authority.
    pub fn ca_pem(&self) -> &str {
        self.shared.tls.ca_pem()
    }

    /// The same with Mozilla's roots, for programs that take one file of roots. About 250 KB.
    pub fn ca_bundle_pem(&self) -> String {
        format!("{}{}", self.ca_pem(), public_roots_pem())
    }
}

impl Known {
    fn learn(&mut self, policy: &Policy) -> Result<(), EgressError> {
        for secret in policy.secrets() {
            let placeholder = self.placeholders.make(&secret.variable)?;
            let pair = (secret.value.clone(), placeholder);
            self.values.retain(|known| *known != pair);
            self.values.push(pair);
        }
        let current = policy.secrets().count();
        let surplus = self.values.len().saturating_sub(current.max(OLD_VALUES_MAX));
        self.values.drain(..surplus);
        Ok(())
    }

    fn live(&self, policy: Policy) -> Live {
        let values = self.values.iter();
        let patterns = Patterns::new(values.map(|(value, mark)| (value.reveal(), mark.as_str())));
        Live { policy, placeholders: self.placeholders.clone(), patterns }
    }
}

impl Shared {
    pub(crate) fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.borrow())
    }

    /// Ends when the policy in force does not allow it any more.
    pub(crate) async fn forbidden(
        &self,
        allowed: impl Fn(&Policy) -> Result<(), Refusal>,
    ) -> Refusal {
        let mut live = self.live.subscribe();
        loop {
            let now = Arc::clone(&live.borrow_and_update());
            if let Err(refusal) = allowed(&now.policy) {
                return refusal;
            }
            // The sender is ours: it does not go while we wait.
            if live.changed().await.is_err() {
                return Refusal::policy("the broker is closed");
            }
        }
    }
}

async fn connection(shared: &Shared, stream: TcpStream) {
    let (reader, mut out) = stream.into_split();
    let mut inbound = Inbound::new(reader);
    let head_ms = shared.config.head_ms;
    let head =
        match read_head(&mut inbound, HeadTimes { first_ms: head_ms, rest_ms: head_ms }).await {
            Ok(Some(head)) => head,
            Ok(None) => return,
            Err(refusal) => {
                shared.journal.refused(&Subject::default(), &refusal.why);
                return last_words(refusal.response().as_bytes(), &mut inbound, &mut out).await;
            }
        };
    let meter = Meter::new(Arc::clone(&shared.totals));
    let refusal = if head.method == "CONNECT" {
        match target(&head) {
            Ok((host, port)) => return tunnelled(shared, &meter, &host, port, inbound, out).await,
            Err(refusal) => refusal,
        }
    } else {
        match plain::url(&head.target) {
            Ok(url) => return plain::serve(shared, &meter, &head, url, inbound, out).await,
            Err(refusal) => refusal,
        }
    };
    shared.journal.refused(&Subject::unread(&head.target), &refusal.why);
    last_words(refusal.response().as_bytes(), &mut inbound, &mut out).await;
}

/// The target of a `CONNECT`. It decides; the `Host` header may only repeat it.
fn target(head: &Head) -> Result<(Host, u16), Refusal> {
    let asked = Authority::parse(&head.target).map_err(Refusal::malformed)?;
    let port = asked.port.ok_or_else(|| Refusal::malformed("the target has no port"))?;
    if let Some(host) = head.host()? {
        let said = Authority::parse(host).map_err(Refusal::malformed)?;
        if said.host != asked.host || said.port.is_some_and(|said| said != port) {
            return Err(Refusal::malformed("the Host header is not the request's target"));
        }
    }
    if head.framing()? != Framing::Length(0) {
        return Err(Refusal::malformed("CONNECT has no body"));
    }
    Ok((asked.host, port))
}

async fn tunnelled(
    shared: &Shared,
    meter: &Meter,
    host: &Host,
    port: u16,
    mut inbound: Inbound<OwnedReadHalf>,
    mut out: OwnedWriteHalf,
) {
    let subject = Subject::tunnel(host, port);
    let refusal = match shared.live().policy.tunnel(host, port) {
        Ok(Way::Read) => return inspect::serve(shared, meter, host, port, inbound, out).await,
        Ok(Way::Blind { by }) => {
            let deadline = connect::deadline(&shared.config);
            match connect::connect(&shared.config, host, port, deadline).await {
                Ok(connected) => {
                    shared.journal.allowed(&subject, &by);
                    let origin = connected.stream;
                    return tunnel::serve(shared, meter, host, port, inbound, out, origin).await;
                }
                Err(refusal) => refusal,
            }
        }
        Err(refusal) => refusal,
    };
    shared.journal.outcome(&subject, &refusal);
    last_words(refusal.response().as_bytes(), &mut inbound, &mut out).await;
}
