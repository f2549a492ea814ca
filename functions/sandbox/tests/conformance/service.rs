//! The part of Lambda that the hands talk to: invocations of one function in tenant isolation mode,
//! and what can go wrong with them.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tailstep_core::ids::SessionKey;
use tests_wire::hands::Provider;
use tokio::{net::TcpListener, sync::Mutex as AsyncMutex, time::sleep};

use crate::environment::Environment;

pub(crate) const FUNCTION: &str = "sandbox";

pub(crate) struct Service {
    address: SocketAddr,
    requests: AtomicUsize,
    faults: Mutex<Vec<String>>,
    /// By tenant.
    environments: AsyncMutex<HashMap<String, Arc<Environment>>>,
}

impl Service {
    pub(crate) async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            requests: AtomicUsize::new(0),
            faults: Mutex::default(),
            environments: AsyncMutex::default(),
        });
        let app = Router::new()
            .route("/2015-03-31/functions/{name}/invocations", post(invoke))
            .layer(axum::extract::DefaultBodyLimit::max(6 << 20))
            .with_state(service.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        service
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    async fn environment(&self, tenant: &str) -> Arc<Environment> {
        let mut environments = self.environments.lock().await;
        if let Some(found) = environments.get(tenant) {
            return found.clone();
        }
        let made = Arc::new(Environment::start(tenant).await);
        environments.insert(tenant.to_owned(), made.clone());
        made
    }

    fn fault(&self) -> Option<String> {
        let mut faults = self.faults.lock().unwrap();
        (!faults.is_empty()).then(|| faults.remove(0))
    }
}

async fn invoke(
    State(service): State<Arc<Service>>,
    Path(function): Path<String>,
    headers: HeaderMap,
    payload: Bytes,
) -> Response {
    service.requests.fetch_add(1, Ordering::Relaxed);
    assert_eq!(function, FUNCTION);
    // In tenant isolation mode Lambda refuses an invocation that names no tenant.
    let Some(tenant) = headers.get("x-amz-tenant-id").map(|value| value.to_str().unwrap()) else {
        return refusal(StatusCode::BAD_REQUEST, "InvalidParameterValueException", "no tenant id");
    };
    let fault = service.fault();
    let refused = match fault.as_deref() {
        Some("throttled" | "throttled for long") => Some((429, "TooManyRequestsException")),
        Some("credentials expired") => Some((403, "ExpiredTokenException")),
        Some("not found") => Some((404, "ResourceNotFoundException")),
        Some("conflict") => Some((409, "ResourceConflictException")),
        Some("internal error") => Some((500, "ServiceException")),
        Some(_) | None => None,
    };
    if let Some((status, kind)) = refused {
        return refusal(StatusCode::from_u16(status).unwrap(), kind, "injected");
    }
    let outcome = loop {
        let environment = service.environment(tenant).await;
        let id = format!("{:?}", std::time::Instant::now());
        let id: String = id.chars().filter(char::is_ascii_digit).collect();
        match environment.invoke(id, payload.clone()).await {
            Some(outcome) => break outcome,
            // Found dead: Lambda makes another one.
            None => service.environments.lock().await.remove(tenant),
        };
    };
    match outcome {
        Ok(answer) => with_fault(fault.as_deref(), answer),
        Err((kind, text)) => {
            service.environments.lock().await.remove(tenant);
            ([("x-amz-function-error", kind)], text).into_response()
        }
    }
}

fn refusal(status: StatusCode, kind: &'static str, message: &str) -> Response {
    let headers = [("x-amzn-errortype", kind), ("retry-after", "1")];
    (status, headers, format!("{{\"Type\":\"User\",\"message\":\"{message}\"}}")).into_response()
}

/// An answer that suffers on its way.
fn with_fault(fault: Option<&str>, answer: Bytes) -> Response {
    type Piece = Result<Bytes, std::io::Error>;
    let broken = || Err::<Bytes, _>(std::io::Error::other("injected"));
    let half = answer.slice(..answer.len() / 2);
    match fault {
        None | Some("throttled" | "throttled for long") => answer.into_response(),
        Some("reply lost") => Body::from_stream(stream::iter([broken()])).into_response(),
        Some("reset in the middle of the reply") => {
            Body::from_stream(stream::iter([Piece::Ok(half), broken()])).into_response()
        }
        Some("slow reply") => {
            let bytes = stream::iter(answer.to_vec()).then(async |byte| {
                sleep(Duration::from_millis(1)).await;
                Ok::<_, Infallible>(Bytes::from(vec![byte]))
            });
            Body::from_stream(bytes).into_response()
        }
        Some("stalled reply") => {
            let pieces = stream::iter([Piece::Ok(half)]).chain(stream::pending());
            Body::from_stream(pieces).into_response()
        }
        Some("oversized reply") => {
            let pieces = stream::repeat_with(|| Piece::Ok(Bytes::from(vec![b' '; 1 << 20])));
            Body::from_stream(pieces.take(256)).into_response()
        }
        Some("empty reply") => StatusCode::OK.into_response(),
        Some(other) => panic!("no such fault: {other}"),
    }
}

#[async_trait]
impl Provider for Service {
    /// Lambda has no list and bills no idle environment: what costs is what runs.
    async fn live(&self) -> usize {
        0
    }

    async fn kill(&self, key: &SessionKey) -> bool {
        let name = self.name(key).await.unwrap();
        let found = self.environments.lock().await.get(&name).cloned();
        match found {
            Some(environment) => {
                environment.kill().await;
                true
            }
            None => false,
        }
    }

    async fn name(&self, key: &SessionKey) -> Option<String> {
        Some(tailstep_aws::sandbox_name(key))
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    fn inject(&self, fault: &str) {
        let times = if fault == "throttled for long" { 4 } else { 1 };
        self.faults.lock().unwrap().extend(std::iter::repeat_n(fault.to_owned(), times));
    }

    fn pending(&self) -> usize {
        self.faults.lock().unwrap().len()
    }
}
