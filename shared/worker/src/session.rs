//! Serving one session: following its events, running its calls one after another, posting results.

use std::{pin::Pin, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tailstep_core::{
    agent::EnvironmentSpec,
    files::Given,
    ids::{Position, SessionKey, sha256_hex},
    limits::Limits,
    raw::RawJson,
};
use tailstep_runtime::ports::{HandsError, ToolOrder, ToolReply};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};

use crate::{
    Worker,
    calls::{Call, Calls},
    client::CallError,
    events::{Event, Page},
    key::Key,
    lease::Lease,
    pause::{Backoff, told},
    skills,
};

/// Whose workspaces they are: a worker has one owner.
pub(crate) const TENANT: &str = "worker";

/// Events that tell which calls wait, for the list; the stream brings all.
const KINDS: [&str; 7] = [
    "agent.tool_use",
    "agent.tool_result",
    "user.tool_result",
    "user.tool_confirmation",
    "session.status_running",
    "session.status_idle",
    "session.status_terminated",
];

/// Events between the reader and the loop.
const EVENTS_AHEAD: usize = 256;

/// A call that runs when the worker is told to stop may go on for this long.
const LAST_CALL_MS: u64 = 20_000;

/// A stream that ends is opened again after at least this.
const REOPEN_MS: u64 = 200;

/// What the reader tells the loop.
enum News {
    /// A list begins: a call in it may have its answer further on.
    Behind,
    Event(Event),
    /// The list is read; from here on events come as they happen.
    CaughtUp,
}

/// A call under way, its result's way to the server included. Dropping it stops the call.
struct Running<'a> {
    id: String,
    work: Pin<Box<dyn Future<Output = ()> + Send + 'a>>,
}

/// Returns when the session rests for long, is over, or the worker or its lease is to end.
pub(crate) async fn serve(
    worker: &Worker,
    session: &str,
    key: &Key,
    mut lease: watch::Receiver<Lease>,
    stop: &watch::Receiver<bool>,
) {
    let given = tokio::select! {
        skills = skills::fetch(worker, session, key) => Given { files: Vec::new(), skills },
        () = told(stop) => return,
        () = ending(&mut lease) => return,
    };
    let (sender, mut events) = mpsc::channel(EVENTS_AHEAD);
    let reader = follow(worker, session, key, sender);
    tokio::pin!(reader);
    let mut calls = Calls::default();
    let mut following = true;
    let mut caught_up = false;
    let mut running: Option<Running<'_>> = None;
    let mut rests_since: Option<Instant> = None;
    let mut last_call: Option<Instant> = None;
    loop {
        if caught_up && last_call.is_none() && running.is_none() {
            running = calls.next().cloned().map(|call| start(worker, session, key, &given, call));
        }
        if calls.are_over() || last_call.is_some() && running.is_none() {
            return finish(worker, session, &calls).await;
        }
        let idle_at = rests_since.map(|at| at + Duration::from_millis(worker.config.idle_ms_max));
        tokio::select! {
            event = events.recv() => match event {
                Some(News::Behind) => caught_up = false,
                Some(News::CaughtUp) => caught_up = true,
                Some(News::Event(event)) => {
                    calls.take(event);
                    rests_since = calls.rests().then(|| rests_since.unwrap_or_else(Instant::now));
                }
                None => return,
            },
            // The session cannot be followed any more; what was sent is still taken.
            () = &mut reader, if following => following = false,
            () = done(&mut running) => {
                if let Some(Running { id, .. }) = running.take() {
                    calls.is_answered(&id);
                }
            }
            () = at(idle_at) => return,
            () = at(last_call) => return,
            () = told(stop), if last_call.is_none() => {
                last_call = Some(Instant::now() + Duration::from_millis(LAST_CALL_MS));
            }
            () = ending(&mut lease), if last_call.is_none() => {
                last_call = Some(Instant::now() + Duration::from_millis(LAST_CALL_MS));
            }
        }
        // Abandoned by an interrupt, or answered by somebody else.
        running = running.filter(|running| !calls.has_answer(&running.id));
    }
}

async fn finish(worker: &Worker, session: &str, calls: &Calls) {
    if calls.are_over() {
        let released = worker.hands.release(&SessionKey::new(TENANT, session)).await;
        if let Err(error) = released {
            tracing::warn!(%error, session, "a workspace was not removed");
        }
    }
}

async fn done(running: &mut Option<Running<'_>>) {
    match running {
        Some(running) => running.work.as_mut().await,
        None => std::future::pending().await,
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

async fn ending(lease: &mut watch::Receiver<Lease>) {
    if lease.wait_for(|lease| *lease == Lease::Ending).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn start<'a>(
    worker: &'a Worker,
    session: &'a str,
    key: &'a Key,
    given: &'a Given,
    call: Call,
) -> Running<'a> {
    let id = call.id.clone();
    let work = async move {
        let began = Instant::now();
        let reply = run(worker, session, given, &call).await;
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(session, tool = call.tool, took_ms, is_error = reply.is_error, "call");
        post(worker, session, key, &call, &reply).await;
    };
    Running { id, work: Box::pin(work) }
}

async fn run(worker: &Worker, session: &str, given: &Given, call: &Call) -> ToolReply {
    let error =
        |text: &str| ToolReply { text: text.to_owned(), is_error: true, ..ToolReply::default() };
    let Ok(input) = RawJson::parse(call.input.get()) else {
        return error("the arguments are not JSON");
    };
    let order = ToolOrder {
        key: SessionKey::new(TENANT, session),
        call: place(&call.id, session),
        tool: call.tool.clone(),
        input,
        timeout_ms: Limits::default().tool_ms_max,
        environment: EnvironmentSpec::cloud(worker.config.environment.as_str()),
        given: given.clone(),
        workspace: None,
        outputs: None,
    };
    match worker.hands.execute(&order).await {
        Ok(reply) => reply,
        Err(failure) => {
            tracing::warn!(error = %failure, session, "a tool call gave no result");
            match &failure {
                HandsError::Unprepared { told } => error(told),
                HandsError::Lost { .. } => error(
                    "the sandbox was lost during this call, which may have run in part; running \
                     processes and shell variables are gone",
                ),
                HandsError::Unavailable { .. } => {
                    error("no sandbox is available; the call did not run")
                }
            }
        }
    }
}

/// Names the call within its session. Ids of other servers are not places, but name as well.
fn place(id: &str, session: &str) -> Position {
    Position::from_event_id(id, session).unwrap_or_else(|| {
        let hash = sha256_hex(id.as_bytes());
        let seq = u64::from_str_radix(hash.get(..15).unwrap_or_default(), 16).unwrap_or(0);
        Position::event(seq, 0)
    })
}

/// Posts the result until the server has it; it takes one result a call, however often this is said.
/// For as long as the lease is held, trying again is right.
async fn post(worker: &Worker, session: &str, key: &Key, call: &Call, reply: &ToolReply) {
    let text = if reply.text.is_empty() { "(no output)" } else { &reply.text };
    match send(worker, session, key, call, text, reply.is_error).await {
        Ok(()) => {}
        Err(error) if error.is_status(400) || error.is_status(413) => {
            tracing::warn!(%error, session, "a result was refused");
            // Without any, the session would wait for ever.
            let text = "the server refused the result of this call, which has run";
            if let Err(error) = send(worker, session, key, call, text, true).await {
                tracing::warn!(%error, session, "nor was there any other");
            }
        }
        Err(error) => tracing::warn!(%error, session, "a result was refused"),
    }
}

async fn send(
    worker: &Worker,
    session: &str,
    key: &Key,
    call: &Call,
    text: &str,
    is_error: bool,
) -> Result<(), CallError> {
    let body = json!({"events": [{
        "type": "user.tool_result",
        "tool_use_id": call.id,
        "is_error": is_error,
        "content": [{"type": "text", "text": text}],
    }]});
    let path = format!("/v1/sessions/{session}/events");
    let mut backoff = Backoff::new(500, 30_000);
    loop {
        match worker.client.call::<Value>(Method::POST, &path, key, Some(&body)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.may_pass() => {
                tracing::warn!(%error, session, "a result is posted again");
                backoff.wait().await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Sends everything that tells about calls, for as long as the session can be followed. The stream is
/// opened before the list is read, so that nothing falls between them.
async fn follow(worker: &Worker, session: &str, key: &Key, events: mpsc::Sender<News>) {
    let mut backoff = Backoff::new(500, 10_000);
    loop {
        let ended = once(worker, session, key, &events, &mut backoff).await;
        match ended {
            Ok(()) => sleep(Duration::from_millis(REOPEN_MS)).await,
            Err(error) if error.may_pass() => {
                tracing::warn!(%error, session, "the session is followed again");
                backoff.wait().await;
            }
            Err(error) => {
                tracing::warn!(%error, session, "the session cannot be followed");
                return;
            }
        }
        if events.is_closed() {
            return;
        }
    }
}

async fn once(
    worker: &Worker,
    session: &str,
    key: &Key,
    events: &mpsc::Sender<News>,
    backoff: &mut Backoff,
) -> Result<(), CallError> {
    let path = format!("/v1/sessions/{session}/events");
    let mut stream = worker.client.events(&format!("{path}/stream"), key).await?;
    let kinds: String = KINDS.iter().map(|kind| format!("&types[]={kind}")).collect();
    let kinds = kinds.replace('[', "%5B").replace(']', "%5D");
    let _ = events.send(News::Behind).await;
    let mut page = String::new();
    loop {
        let list = format!("{path}?limit=1000{kinds}{page}");
        let read: Page = worker.client.call(Method::GET, &list, key, None).await?;
        for event in read.data {
            if events.send(News::Event(event)).await.is_err() {
                return Ok(());
            }
        }
        match read.next_page {
            Some(next) => page = format!("&page={next}"),
            None => break,
        }
    }
    let _ = events.send(News::CaughtUp).await;
    backoff.reset();
    while let Some(event) = stream.next().await? {
        if events.send(News::Event(event)).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
