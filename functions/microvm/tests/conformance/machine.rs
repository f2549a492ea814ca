//! One machine: the daemon as a process, and the provider's proxy before it.

use std::{
    net::SocketAddr,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::sleep,
};

use crate::service::Service;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Suspended,
    Terminated,
}

pub(crate) struct Machine {
    pub(crate) id: String,
    pub(crate) client_token: String,
    pub(crate) payload: String,
    pub(crate) endpoint: SocketAddr,
    pub(crate) state: Mutex<Phase>,
    /// Tokens that open it.
    pub(crate) tokens: Mutex<Vec<String>>,
    daemon: Mutex<Daemon>,
}

struct Daemon {
    child: Child,
    address: SocketAddr,
    /// Where its absolute paths begin.
    _root: TempDir,
}

impl Daemon {
    async fn start(payload: &str) -> Self {
        let address = address();
        let root = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_microvm"))
            .arg(address.to_string())
            .arg(root.path())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("AWS_SECRET_ACCESS_KEY", "CANARY-SECRET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        while TcpStream::connect(address).await.is_err() {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "the daemon at {address} ended at its start: {ended:?}");
            sleep(Duration::from_millis(5)).await;
        }
        let body = serde_json::json!({ "microvmId": "microvm-1", "runHookPayload": payload });
        let hook = format!("http://{address}/aws/lambda-microvms/runtime/v1/run");
        let request = hyper::Request::post(hook).body(Body::from(body.to_string())).unwrap();
        let answer = client().request(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "the daemon takes its start");
        Self { child, address, _root: root }
    }

    fn kill(&mut self) {
        for pid in family(self.child.id()) {
            let _ = std::process::Command::new("kill")
                .args(["-9", &pid.to_string()])
                .stderr(Stdio::null())
                .status();
        }
        if let Some(pid) = self.child.id() {
            for name in ["workspace", "outputs"] {
                let _ = std::fs::remove_dir_all(format!("/tmp/{name}-{pid}"));
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An address that no other daemon has and that is never given out: a free port that is asked for and
/// given back may be somebody else's before the daemon has it.
fn address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(8_080);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, high, low, 1], NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn family(pid: Option<u32>) -> Vec<u32> {
    let mut family: Vec<u32> = pid.into_iter().collect();
    let mut at = 0;
    while at < family.len() {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", family[at]));
        for task in tasks.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children"));
            let children = children.unwrap_or_default();
            family.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        at += 1;
    }
    family
}

fn client() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}

impl Machine {
    pub(crate) async fn start(
        service: &Arc<Service>,
        id: String,
        client_token: String,
        payload: String,
    ) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let daemon = Daemon::start(&payload).await;
        let machine = Arc::new(Self {
            id,
            client_token,
            payload,
            endpoint: listener.local_addr().unwrap(),
            state: Mutex::new(Phase::Running),
            tokens: Mutex::default(),
            daemon: Mutex::new(daemon),
        });
        let app = Router::new().fallback(proxy).with_state((service.clone(), machine.clone()));
        tokio::spawn(async move { axum::serve(listener, app).await });
        machine
    }

    pub(crate) fn end(&self) {
        *self.state.lock().unwrap() = Phase::Terminated;
        self.daemon.lock().unwrap().kill();
    }

    /// As a machine that wakes without what it had.
    async fn restart(&self) {
        let fresh = Daemon::start(&self.payload).await;
        *self.daemon.lock().unwrap() = fresh;
    }

    pub(crate) fn state(&self) -> Phase {
        *self.state.lock().unwrap()
    }
}

async fn proxy(
    State((service, machine)): State<(Arc<Service>, Arc<Machine>)>,
    request: Request,
) -> Response {
    service.count();
    let shown = request.headers().get("x-aws-proxy-auth").map(|token| token.to_str().unwrap());
    let fault = service.fault_at_endpoint();
    match fault.as_deref() {
        Some("token expired") => machine.tokens.lock().unwrap().clear(),
        Some("not found") => machine.end(),
        Some("asleep" | "asleep, and the resume's reply lost") => {
            *machine.state.lock().unwrap() = Phase::Suspended;
        }
        Some("empty workspace") => machine.restart().await,
        Some("internal error") => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Some(_) | None => {}
    }
    match machine.state() {
        Phase::Running => {}
        Phase::Suspended => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Phase::Terminated => return StatusCode::NOT_FOUND.into_response(),
    }
    if !machine.tokens.lock().unwrap().iter().any(|token| Some(token.as_str()) == shown) {
        return StatusCode::FORBIDDEN.into_response();
    }
    assert_eq!(request.headers()["x-aws-proxy-port"], "8080");
    let address = machine.daemon.lock().unwrap().address;
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().unwrap().as_str().to_owned();
    parts.uri = format!("http://{address}{path}").parse().unwrap();
    parts.headers.remove("host");
    // The daemon must not need the provider's token, which opens the machine from outside.
    parts.headers.remove("x-aws-proxy-auth");
    match client().request(Request::from_parts(parts, body)).await {
        Ok(answer) => with_fault(fault.as_deref(), answer.map(Body::new)).await,
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}

/// An answer that suffers on its way.
async fn with_fault(fault: Option<&str>, answer: Response) -> Response {
    type Piece = Result<Bytes, std::io::Error>;
    let Some(fault) = fault else { return answer };
    let (mut parts, body) = answer.into_parts();
    let whole = axum::body::to_bytes(body, 1 << 30).await.unwrap();
    let broken = || Err::<Bytes, _>(std::io::Error::other("injected"));
    let half = whole.slice(..whole.len() / 2);
    parts.headers.remove("content-length");
    let body = match fault {
        "reply lost" => Body::from_stream(stream::iter([broken()])),
        "reset in the middle of the reply" => {
            Body::from_stream(stream::iter([Piece::Ok(half), broken()]))
        }
        "slow reply" => Body::from_stream(stream::iter(whole.to_vec()).then(async |byte| {
            sleep(Duration::from_millis(1)).await;
            Piece::Ok(Bytes::from(vec![byte]))
        })),
        "stalled reply" => {
            Body::from_stream(stream::iter([Piece::Ok(half)]).chain(stream::pending()))
        }
        "oversized reply" => {
            let pieces = stream::repeat_with(|| Piece::Ok(Bytes::from(vec![b' '; 1 << 20])));
            Body::from_stream(pieces.take(256))
        }
        "empty reply" => Body::empty(),
        _ => Body::from(whole),
    };
    Response::from_parts(parts, body)
}
