//! One execution environment: the bootstrap as a process, and the Runtime API that it polls.

use std::{
    collections::HashMap,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use tokio::{
    net::TcpListener,
    process::{Child, Command},
    sync::{Mutex as AsyncMutex, mpsc, oneshot},
    time::{sleep, timeout},
};

/// What an invocation came to: the function's answer, or the name of its failure and Lambda's text.
pub(crate) type Outcome = Result<Bytes, (&'static str, String)>;

pub(crate) struct Environment {
    invocations: mpsc::Sender<(String, Bytes)>,
    runtime: Arc<Runtime>,
    /// One invocation at a time, as in Lambda.
    child: AsyncMutex<Child>,
    pid: u32,
    workspace: PathBuf,
}

struct Runtime {
    next: AsyncMutex<mpsc::Receiver<(String, Bytes)>>,
    waiting: Mutex<HashMap<String, oneshot::Sender<Outcome>>>,
}

impl Environment {
    pub(crate) async fn start(tenant: &str) -> Self {
        let (invocations, next) = mpsc::channel(1);
        let waiting = Mutex::default();
        let runtime = Arc::new(Runtime { next: AsyncMutex::new(next), waiting });
        let base = "/2018-06-01/runtime";
        let app = Router::new()
            .route(&format!("{base}/invocation/next"), get(next_invocation))
            .route(&format!("{base}/invocation/{{id}}/response"), post(response))
            .route(&format!("{base}/invocation/{{id}}/error"), post(error))
            .layer(axum::extract::DefaultBodyLimit::max(8 << 20))
            .with_state(runtime.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        // What Lambda gives a function, credentials included. Nothing of it may be seen inside.
        let child = Command::new(env!("CARGO_BIN_EXE_sandbox"))
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("AWS_LAMBDA_RUNTIME_API", address.to_string())
            .env("AWS_LAMBDA_FUNCTION_NAME", "sandbox")
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "2048")
            .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "CANARY-KEY-ID")
            .env("AWS_SECRET_ACCESS_KEY", "CANARY-SECRET")
            .env("AWS_SESSION_TOKEN", "CANARY-TOKEN")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let workspace = PathBuf::from(format!("/tmp/workspace-{}", &tenant[..16]));
        let pid = child.id().unwrap();
        Self { invocations, runtime, child: AsyncMutex::new(child), pid, workspace }
    }

    /// `None` when the environment is dead already.
    pub(crate) async fn invoke(&self, id: String, payload: Bytes) -> Option<Outcome> {
        let mut child = self.child.lock().await;
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.runtime.waiting.lock().unwrap().insert(id.clone(), sender);
        self.invocations.send((id, payload)).await.unwrap();
        let exited = |status| {
            let text =
                format!("{{\"errorType\":\"Runtime.ExitError\",\"errorMessage\":\"{status}\"}}");
            Err(("Unhandled", text))
        };
        Some(tokio::select! {
            outcome = receiver => outcome.unwrap(),
            status = child.wait() => exited(status.unwrap()),
        })
    }

    /// Kills the bootstrap and everything that it started, as the end of its machine would.
    pub(crate) async fn kill(&self) {
        let mut family = vec![self.pid];
        let mut at = 0;
        while at < family.len() {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", family[at]));
            for task in tasks.into_iter().flatten().flatten() {
                let children = std::fs::read_to_string(task.path().join("children"));
                family.extend(
                    children
                        .unwrap_or_default()
                        .split_whitespace()
                        .filter_map(|p| p.parse::<u32>().ok()),
                );
            }
            at += 1;
        }
        for pid in family {
            let _ = std::process::Command::new("kill")
                .args(["-9", &pid.to_string()])
                .stderr(Stdio::null())
                .status();
        }
        for _ in 0..500 {
            // Whoever invokes it holds the child, and sees its end.
            if let Ok(mut child) = timeout(Duration::from_millis(20), self.child.lock()).await {
                if child.try_wait().unwrap().is_some() {
                    break;
                }
            } else if !std::path::Path::new(&format!("/proc/{}/exe", self.pid)).exists() {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        let _ = std::fs::remove_dir_all(&self.workspace);
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        let _ = std::process::Command::new("kill")
            .args(["-9", &self.pid.to_string()])
            .stderr(Stdio::null())
            .status();
        let _ = std::fs::remove_dir_all(&self.workspace);
    }
}

async fn next_invocation(State(runtime): State<Arc<Runtime>>) -> Response {
    let Some((id, payload)) = runtime.next.lock().await.recv().await else {
        return StatusCode::GONE.into_response();
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(900);
    let headers = [
        ("lambda-runtime-aws-request-id", id),
        ("lambda-runtime-deadline-ms", now.as_millis().to_string()),
        (
            "lambda-runtime-invoked-function-arn",
            "arn:aws:lambda:us-east-1:1:function:sandbox".into(),
        ),
        ("lambda-runtime-trace-id", "Root=1-1-1".into()),
        ("content-type", "application/json".into()),
    ];
    (headers, payload).into_response()
}

async fn response(
    State(runtime): State<Arc<Runtime>>,
    Path(id): Path<String>,
    body: Bytes,
) -> StatusCode {
    settle(&runtime, &id, Ok(body))
}

async fn error(
    State(runtime): State<Arc<Runtime>>,
    Path(id): Path<String>,
    body: Bytes,
) -> StatusCode {
    settle(&runtime, &id, Err(("Unhandled", String::from_utf8_lossy(&body).into_owned())))
}

fn settle(runtime: &Runtime, id: &str, outcome: Outcome) -> StatusCode {
    if let Some(waiting) = runtime.waiting.lock().unwrap().remove(id) {
        let _ = waiting.send(outcome);
    }
    StatusCode::ACCEPTED
}
