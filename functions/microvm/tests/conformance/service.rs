//! The part of the MicroVM service that the hands talk to, in its own protocol, and what can go wrong.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use tailstep_core::ids::SessionKey;
use tailstep_runtime::{
    memory::MemoryDocuments,
    ports::{DocumentKind, Documents},
};
use tests_wire::hands::Provider;
use tokio::{net::TcpListener, sync::Mutex as AsyncMutex};

use crate::machine::{Machine, Phase};

pub(crate) const IMAGE: &str = "arn:aws:lambda:us-east-1:1:microvm-image:hands";
pub(crate) const INGRESS: &str =
    "arn:aws:lambda:us-east-1:aws:network-connector:aws-network-connector:ALL_INGRESS";
pub(crate) const EGRESS: &str = "arn:aws:lambda:us-east-1:1:network-connector:no-way-out";

pub(crate) struct Service {
    address: SocketAddr,
    documents: Arc<MemoryDocuments>,
    requests: AtomicUsize,
    faults: Mutex<Vec<String>>,
    /// Requests at endpoints that no fault meets yet.
    spared: AtomicUsize,
    machines: Mutex<Vec<Arc<Machine>>>,
    /// One machine is made at a time, so that one token makes one machine.
    making: AsyncMutex<()>,
}

impl Service {
    pub(crate) async fn start(documents: Arc<MemoryDocuments>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            documents,
            requests: AtomicUsize::new(0),
            faults: Mutex::default(),
            spared: AtomicUsize::new(0),
            machines: Mutex::default(),
            making: AsyncMutex::default(),
        });
        let base = "/2025-09-09/microvms";
        let app = Router::new()
            .route(base, post(run).get(list))
            .route(&format!("{base}/{{id}}"), get(look).delete(terminate))
            .route(&format!("{base}/{{id}}/auth-token"), post(token))
            .route(&format!("{base}/{{id}}/resume"), post(resume))
            .layer(axum::middleware::from_fn_with_state(
                service.clone(),
                async |State(service): State<Arc<Self>>,
                       request: axum::extract::Request,
                       next: axum::middleware::Next| {
                    service.count();
                    next.run(request).await
                },
            ))
            .with_state(service.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        service
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the next fault if it is one of those that `here` names.
    fn fault(&self, here: impl Fn(&str) -> bool) -> Option<String> {
        let mut faults = self.faults.lock().unwrap();
        let next = faults.first().is_some_and(|fault| here(fault));
        next.then(|| faults.remove(0))
    }

    /// The fault meets the request at an endpoint that comes after so many others.
    pub(crate) fn inject_after(&self, requests: usize, fault: &str) {
        self.spared.store(requests, Ordering::Relaxed);
        self.inject(fault);
    }

    /// Takes back what no request has met.
    pub(crate) fn forget_faults(&self) {
        self.faults.lock().unwrap().clear();
    }

    pub(crate) fn fault_at_endpoint(&self) -> Option<String> {
        let less = |spared: usize| spared.checked_sub(1);
        if self.spared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            return None;
        }
        self.fault(|fault| {
            let elsewhere = ["create", "token reply", "end denied", "list denied"];
            fault != "resume" && !elsewhere.iter().any(|start| fault.starts_with(start))
        })
    }

    /// A machine that stands in no record.
    pub(crate) async fn orphan(self: &Arc<Self>) {
        let payload = json!({ "v": 1, "sandbox": "x", "generation": 1, "secret_sha256": "" });
        self.make("orphan".into(), payload.to_string()).await;
    }

    async fn make(self: &Arc<Self>, client_token: String, payload: String) -> Arc<Machine> {
        let _making = self.making.lock().await;
        let made = |machine: &&Arc<Machine>| machine.client_token == client_token;
        if let Some(found) = self.machines.lock().unwrap().iter().find(made) {
            return found.clone();
        }
        let id = format!("microvm-{}", self.machines.lock().unwrap().len());
        let machine = Machine::start(self, id, client_token.clone(), payload).await;
        self.machines.lock().unwrap().push(machine.clone());
        machine
    }

    fn machine(&self, id: &str) -> Option<Arc<Machine>> {
        self.machines.lock().unwrap().iter().find(|machine| machine.id == id).cloned()
    }

    /// The machine that the session's record names.
    async fn of_session(&self, key: &SessionKey) -> Option<Arc<Machine>> {
        let name = tailstep_aws::sandbox_name(key);
        let document = self.documents.get("", DocumentKind::Sandbox, &name).await.unwrap()?;
        let record: Value = serde_json::from_slice(&document.body).unwrap();
        self.machine(record["machine"]["id"].as_str()?)
    }
}

fn described(machine: &Machine) -> Response {
    let state = match machine.state() {
        Phase::Running => "RUNNING",
        Phase::Suspended => "SUSPENDED",
        Phase::Terminated => "TERMINATED",
    };
    let body = json!({
        "microvmId": machine.id, "state": state, "imageArn": IMAGE, "imageVersion": "1",
        "endpoint": format!("http://{}", machine.endpoint), "maximumDurationInSeconds": 600,
        "startedAt": 1_764_547_200,
    });
    body.to_string().into_response()
}

fn refusal(status: u16, kind: &'static str) -> Response {
    let headers = [("x-amzn-errortype", kind), ("retry-after", "1")];
    let status = StatusCode::from_u16(status).unwrap();
    (status, headers, json!({ "message": "injected" }).to_string()).into_response()
}

fn lost() -> Response {
    let broken = Err::<Bytes, _>(std::io::Error::other("injected"));
    Body::from_stream(stream::iter([broken])).into_response()
}

async fn run(State(service): State<Arc<Service>>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let payload = body["runHookPayload"].as_str().unwrap().to_owned();
    assert!(payload.len() <= 4_096);
    assert_eq!(body["imageIdentifier"], IMAGE);
    assert_eq!(body["ingressNetworkConnectors"], json!([INGRESS]), "ingress is named");
    assert_eq!(body["egressNetworkConnectors"], json!([EGRESS]), "egress is named");
    assert_eq!(body["maximumDurationInSeconds"], 600, "its life has an end");
    assert!(body.get("executionRoleArn").is_none(), "it has no role");
    let fault = service.fault(|fault| fault.starts_with("create"));
    let refused = match fault.as_deref() {
        Some("create throttled" | "create throttled for long") => {
            Some((429, "ThrottlingException"))
        }
        Some("create over quota") => Some((402, "ServiceQuotaExceededException")),
        Some("create without capacity") => Some((503, "InsufficientCapacityException")),
        Some("create conflict") => Some((409, "ConflictException")),
        Some("create denied") => Some((403, "ExpiredTokenException")),
        Some("create internal error") => Some((500, "InternalServerException")),
        Some(_) | None => None,
    };
    if let Some((status, kind)) = refused {
        return refusal(status, kind);
    }
    let client_token = body["clientToken"].as_str().unwrap().to_owned();
    let machine = service.make(client_token, payload).await;
    if fault.is_some() { lost() } else { described(&machine) }
}

async fn list(State(service): State<Arc<Service>>) -> Response {
    if service.fault(|fault| fault == "list denied").is_some() {
        return refusal(403, "AccessDeniedException");
    }
    let machines = service.machines.lock().unwrap();
    let item = |machine: &Arc<Machine>| {
        let state = if machine.state() == Phase::Terminated { "TERMINATED" } else { "RUNNING" };
        json!({ "microvmId": machine.id, "state": state, "imageArn": IMAGE, "imageVersion": "1",
                "startedAt": 1_764_547_200 })
    };
    json!({ "items": machines.iter().map(item).collect::<Vec<_>>() }).to_string().into_response()
}

async fn look(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Response {
    match service.machine(&id) {
        Some(machine) => described(&machine),
        None => refusal(404, "ResourceNotFoundException"),
    }
}

async fn terminate(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Response {
    if service.fault(|fault| fault == "end denied").is_some() {
        return refusal(403, "AccessDeniedException");
    }
    match service.machine(&id) {
        Some(machine) if machine.state() == Phase::Terminated => refusal(409, "ConflictException"),
        Some(machine) => {
            machine.end();
            "{}".into_response()
        }
        None => refusal(404, "ResourceNotFoundException"),
    }
}

async fn resume(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Response {
    let Some(machine) = service.machine(&id) else {
        return refusal(404, "ResourceNotFoundException");
    };
    if machine.state() == Phase::Running {
        return refusal(409, "ConflictException");
    }
    *machine.state.lock().unwrap() = Phase::Running;
    match service.fault(|fault| fault == "resume") {
        Some(_) => lost(),
        None => "{}".into_response(),
    }
}

async fn token(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    body: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["allowedPorts"], json!([{ "port": 8080 }]), "no more than the daemon's port");
    let Some(machine) = service.machine(&id) else {
        return refusal(404, "ResourceNotFoundException");
    };
    let mut tokens = machine.tokens.lock().unwrap();
    let token = format!("token-{}-{}", machine.id, service.requests.load(Ordering::Relaxed));
    tokens.push(token.clone());
    match service.fault(|fault| fault.starts_with("token reply")) {
        Some(_) => lost(),
        None => json!({ "authToken": { "X-aws-proxy-auth": token } }).to_string().into_response(),
    }
}

#[async_trait]
impl Provider for Service {
    async fn live(&self) -> usize {
        let machines = self.machines.lock().unwrap();
        machines.iter().filter(|machine| machine.state() != Phase::Terminated).count()
    }

    async fn kill(&self, key: &SessionKey) -> bool {
        let Some(machine) = self.of_session(key).await else { return false };
        let lived = machine.state() != Phase::Terminated;
        machine.end();
        lived
    }

    async fn name(&self, key: &SessionKey) -> Option<String> {
        Some(self.of_session(key).await?.id.clone())
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    fn inject(&self, fault: &str) {
        let mut faults = self.faults.lock().unwrap();
        let times = if fault == "create throttled for long" { 4 } else { 1 };
        faults.extend(std::iter::repeat_n(fault.to_owned(), times));
        if fault.contains("resume") {
            faults.push("resume".to_owned());
        }
    }

    fn pending(&self) -> usize {
        self.faults.lock().unwrap().len()
    }
}
