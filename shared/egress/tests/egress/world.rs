//! A broker with a table of names, and a client that speaks to it byte by byte.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use tailstep_core::egress::{EgressDecision, EgressRule, EgressSecret, Networking};
use tailstep_egress::{Broker, Config, Policy, Resolver, Secret};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

use crate::origin::Authority;

/// Nothing here takes longer unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const VALUE: &str = "sk-live/0123+456=789";

/// Names with their answers, one after the other; the last one stays.
#[derive(Debug, Default)]
pub(crate) struct Table {
    names: Mutex<BTreeMap<String, Vec<Vec<IpAddr>>>>,
    pub(crate) asked: Mutex<Vec<String>>,
}

impl Table {
    pub(crate) fn set(&self, name: &str, answers: &[&[&str]]) {
        let answers =
            answers.iter().map(|ips| ips.iter().map(|ip| ip.parse().unwrap()).collect()).collect();
        self.names.lock().unwrap().insert(name.to_owned(), answers);
    }
}

#[async_trait::async_trait]
impl Resolver for Table {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.lock().unwrap().push(name.to_owned());
        let mut names = self.names.lock().unwrap();
        let answers = names.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() })
    }
}

pub(crate) struct World {
    pub(crate) broker: Broker,
    pub(crate) table: Arc<Table>,
    pub(crate) address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Secrets of the tests' deployment.
pub(crate) fn secrets() -> BTreeMap<String, Secret> {
    let other = Secret::new("another-secret-value");
    [("api-key".to_owned(), Secret::new(VALUE)), ("other-key".to_owned(), other)].into()
}

pub(crate) fn policy(rules: Vec<EgressRule>) -> Policy {
    let networking = Networking::Limited { rules, package_managers: false };
    Policy::new(&networking, &secrets()).unwrap()
}

/// A rule for `host` at `port`.
pub(crate) fn rule(host: &str, port: u16) -> EgressRule {
    EgressRule { ports: vec![port], ..EgressRule::for_host(host) }
}

pub(crate) fn with_secret(rule: EgressRule, variable: &str, secret: &str) -> EgressRule {
    let secret = EgressSecret { variable: variable.to_owned(), secret: secret.to_owned() };
    EgressRule { secrets: vec![secret], ..rule }
}

impl World {
    pub(crate) async fn new(rules: Vec<EgressRule>) -> Self {
        Self::with(policy(rules), |_| {}).await
    }

    /// A broker that reaches the tests' origins at 127.0.0.1, and nothing else of this machine.
    pub(crate) async fn with(policy: Policy, change: impl FnOnce(&mut Config)) -> Self {
        let table = Arc::new(Table::default());
        for name in ["allowed.test", "other.test", "api.test"] {
            table.set(name, &[&["127.0.0.1"]]);
        }
        let mut config = Config {
            resolver: Arc::clone(&table) as Arc<dyn Resolver>,
            allow_private: vec!["127.0.0.1".parse().unwrap()],
            extra_roots: vec![Authority::shared().root()],
            ..Config::default()
        };
        change(&mut config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let broker = Broker::new(policy, config).unwrap();
        let served = broker.clone();
        let serving = tokio::spawn(async move { served.serve(listener).await });
        Self { broker, table, address, serving }
    }

    pub(crate) async fn dial(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends `bytes` on a new connection and reads to its end.
    pub(crate) async fn ask(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.dial().await;
        // The broker may refuse before it has read everything.
        let _ = stream.write_all(bytes.as_ref()).await;
        rest(&mut stream).await
    }

    pub(crate) async fn get(&self, host: &str, port: u16, path: &str) -> String {
        let request =
            format!("GET http://{host}:{port}{path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
        self.ask(request).await
    }

    /// A tunnel that was opened, or the answer that refused it.
    pub(crate) async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let mut stream = self.dial().await;
        let request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = head(&mut stream).await;
        if head.starts_with("HTTP/1.1 200 ") {
            Ok(stream)
        } else {
            Err(head + &rest(&mut stream).await)
        }
    }

    /// Decisions as `+ host:port method path why`, a refusal with `-`.
    pub(crate) fn decisions(&self) -> Vec<String> {
        self.broker.take_decisions().0.iter().map(told).collect()
    }

    pub(crate) fn placeholder(&self, variable: &str) -> String {
        let variables = self.broker.environment();
        variables.into_iter().find(|(name, _)| name == variable).unwrap().1
    }
}

fn told(decision: &EgressDecision) -> String {
    let EgressDecision { allowed, host, port, method, path, why, .. } = decision;
    let sign = if *allowed { '+' } else { '-' };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{sign} {host}:{port} {} {} {why}", text(method), text(path))
}

/// One head, and not a byte more.
pub(crate) async fn head<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        while !bytes.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => bytes.push(byte),
                Err(_) => break,
            }
        }
    };
    timeout(PATIENCE, reading).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Everything up to the end, however the connection ends.
pub(crate) async fn rest<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[track_caller]
pub(crate) fn status(answer: &str) -> u16 {
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    status.unwrap_or_else(|| panic!("no HTTP: {answer:?}")).parse().unwrap()
}
