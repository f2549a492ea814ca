//! The stub's HTTP: just enough of HTTP/1.1 for our own client, in full control of every byte that
//! goes out.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::sleep,
};

use super::{
    Fault, anthropic, openai, render,
    reply::{Body, Reply},
};

/// A model server on a port of 127.0.0.1 that the system chose. It ends when it is dropped.
pub struct Stub {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// Why it was refused, if it was.
    pub fault: Option<String>,
}

impl Recorded {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
struct State {
    replies: VecDeque<Reply>,
    requests: Vec<Recorded>,
    signed: anthropic::Signed,
    /// The only key that is accepted; any, if none is set.
    key: Option<String>,
    connections: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Anthropic,
    OpenAi,
}

impl Stub {
    /// # Errors
    /// When no port can be had.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                lock(&state).connections += 1;
                tokio::spawn(async move {
                    // A broken connection is what half of the tests are about.
                    let _ = serve(socket, &state).await;
                });
            }
        });
        Ok(Self { address, state, task })
    }

    /// The base URL for the Messages API.
    pub fn anthropic_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The base URL for chat completions.
    pub fn openai_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Adds a reply behind those that wait. A request that is refused takes none.
    pub fn push(&self, reply: Reply) {
        lock(&self.state).replies.push_back(reply);
    }

    /// From now on answers 401 to any other key, and repeats that key in the error, as some do.
    pub fn accept_only(&self, key: &str) {
        lock(&self.state).key = Some(key.to_owned());
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Recorded> {
        lock(&self.state).requests.clone()
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        lock(&self.state).connections
    }

    /// Replies that no request has taken.
    pub fn waiting(&self) -> usize {
        lock(&self.state).replies.len()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(socket: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut socket = BufReader::new(socket);
    while let Some(request) = read(&mut socket).await? {
        let (dialect, reply) = lock(state).reply(request);
        if !write(socket.get_mut(), dialect, &reply).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// One request with a content length; `None` when the client has closed.
async fn read(socket: &mut BufReader<TcpStream>) -> io::Result<Option<Recorded>> {
    let mut line = String::new();
    if socket.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        socket.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut request = Recorded { path, headers, body: String::new(), fault: None };
    let length = request.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await?;
    request.body = String::from_utf8_lossy(&body).into_owned();
    Ok(Some(request))
}

impl State {
    /// Records `request` and chooses its reply.
    fn reply(&mut self, mut request: Recorded) -> (Dialect, Reply) {
        let dialect = match request.path.as_str() {
            "/v1/messages" => Dialect::Anthropic,
            "/v1/chat/completions" => Dialect::OpenAi,
            path => {
                let reply = Reply::error(404, "not_found_error", &format!("no such path: {path}"));
                self.requests.push(request);
                return (Dialect::Anthropic, reply);
            }
        };
        let key = match dialect {
            Dialect::Anthropic => request.header("x-api-key"),
            Dialect::OpenAi => request
                .header("authorization")
                .map(|value| value.strip_prefix("Bearer ").unwrap_or(value)),
        };
        let key = key.unwrap_or_default();
        let refused = match &self.key {
            Some(accepted) => accepted != key,
            None => key.is_empty() && dialect == Dialect::Anthropic,
        };
        if refused {
            let message = format!("invalid key: {key}");
            self.requests.push(request);
            return (dialect, Reply::error(401, "authentication_error", &message));
        }
        let reply = match self.check(dialect, &request) {
            Ok(()) => self.replies.pop_front().unwrap_or_else(|| {
                Reply::error(400, "invalid_request_error", "the stub has no reply left")
            }),
            Err(fault) => {
                let reply = Reply::error(400, "invalid_request_error", &fault);
                request.fault = Some(fault);
                reply
            }
        };
        if let (Dialect::Anthropic, Body::Answer { blocks, .. }) = (dialect, &reply.body) {
            self.signed.give_out(&render::anthropic_blocks(blocks));
        }
        self.requests.push(request);
        (dialect, reply)
    }

    fn check(&self, dialect: Dialect, request: &Recorded) -> Result<(), Fault> {
        let body: Value =
            serde_json::from_str(&request.body).map_err(|fault| format!("not JSON: {fault}"))?;
        match dialect {
            Dialect::Anthropic if request.header("anthropic-version").is_none() => {
                Err("anthropic-version: header is required".to_owned())
            }
            Dialect::Anthropic => anthropic::check(&body, &self.signed),
            Dialect::OpenAi => openai::check(&body),
        }
    }
}

/// Whether the connection can take another request.
async fn write(socket: &mut TcpStream, dialect: Dialect, reply: &Reply) -> io::Result<bool> {
    if reply.delay_ms > 0 {
        sleep(Duration::from_millis(reply.delay_ms)).await;
    }
    let events = match &reply.body {
        Body::Answer { blocks, stop, usage } => match dialect {
            Dialect::Anthropic => render::anthropic(blocks, stop, *usage),
            Dialect::OpenAi => render::openai(blocks, stop, *usage),
        },
        Body::Events(events) => events.clone(),
        Body::Stream(bytes) => return stream(socket, reply, bytes).await,
        Body::Plain(text) => return plain(socket, reply, text).await,
        Body::Error { kind, message } => {
            let reply = reply.clone().header("content-type", "application/json");
            return plain(socket, &reply, &envelope(dialect, kind, message)).await;
        }
    };
    stream(socket, reply, encode(dialect, events, reply).as_bytes()).await
}

fn envelope(dialect: Dialect, kind: &str, message: &str) -> String {
    match dialect {
        Dialect::Anthropic => {
            json!({"type": "error", "error": {"type": kind, "message": message}}).to_string()
        }
        Dialect::OpenAi => {
            json!({"error": {"message": message, "type": kind, "param": null, "code": kind}})
                .to_string()
        }
    }
}

/// Data as an event stream, with `event:` lines where the dialect has them.
fn encode(dialect: Dialect, mut events: Vec<String>, reply: &Reply) -> String {
    if let Some((kind, message)) = &reply.error_event {
        // Both dialects end with two events that make the answer whole.
        events.truncate(events.len().saturating_sub(2));
        events.push(envelope(dialect, kind, message));
    }
    let mut text = String::new();
    for data in events {
        if dialect == Dialect::Anthropic {
            let value: Value = serde_json::from_str(&data).unwrap_or(Value::Null);
            let name = value.get("type").and_then(Value::as_str).unwrap_or("message");
            text.push_str(&format!("event: {name}\n"));
        }
        // Data of several lines is several data lines.
        text.push_str(&format!("data: {}\n\n", data.replace('\n', "\ndata: ")));
    }
    text
}

fn head(reply: &Reply, framing: &str) -> String {
    let mut head = format!("HTTP/1.1 {} Stub\r\n{framing}\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + "\r\n"
}

async fn plain(socket: &mut TcpStream, reply: &Reply, body: &str) -> io::Result<bool> {
    let head = head(reply, &format!("content-length: {}", body.len()));
    socket.write_all((head + body).as_bytes()).await?;
    Ok(true)
}

async fn stream(socket: &mut TcpStream, reply: &Reply, body: &[u8]) -> io::Result<bool> {
    let framing = "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked";
    socket.write_all(head(reply, framing).as_bytes()).await?;
    let end = reply.cut_after.or(reply.stall_after).unwrap_or(body.len()).min(body.len());
    let mut sizes = reply.pieces.iter().copied();
    let mut size = body.len().max(1);
    let mut rest = &body[..end];
    while !rest.is_empty() {
        size = sizes.next().unwrap_or(size).max(1);
        let (piece, left) = rest.split_at(size.min(rest.len()));
        socket.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
        socket.write_all(piece).await?;
        socket.write_all(b"\r\n").await?;
        rest = left;
    }
    if reply.stall_after.is_some() {
        // Until the client gives up.
        let mut byte = [0];
        let _ = socket.read(&mut byte).await;
        return Ok(false);
    }
    if reply.cut_after.is_some() {
        socket.shutdown().await?;
        return Ok(false);
    }
    socket.write_all(b"0\r\n\r\n").await?;
    Ok(true)
}
