//! A session as hands see it.

use std::{future::Future, time::Duration};

use tailstep_core::{
    agent::EnvironmentSpec,
    files::Given,
    ids::{BlobRef, Position, Seq, SessionKey},
    raw::RawJson,
};
use tailstep_runtime::ports::{HandsError, ToolOrder, ToolReply};
use tokio::time::{Instant, sleep, timeout};

use super::Subject;
use crate::sample;

/// A call that takes longer than this hangs.
const CALL_MAX: Duration = Duration::from_secs(60);

pub struct Session {
    pub key: SessionKey,
    next: Seq,
    /// The archive that the last call left.
    pub workspace: Option<BlobRef>,
}

impl Session {
    /// A session of its own, without a workspace.
    #[allow(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        Self { key: sample::key(), next: 1, workspace: None }
    }

    /// The session's next call, not yet sent.
    pub fn order(&mut self, tool: &str, input: &str) -> ToolOrder {
        let call = Position { seq: self.next, event: 0, part: 1 };
        self.next += 1;
        ToolOrder {
            key: self.key.clone(),
            call,
            tool: tool.to_owned(),
            input: RawJson::parse(input).unwrap(),
            timeout_ms: 20_000,
            environment: EnvironmentSpec::cloud("env_1"),
            given: Given::default(),
            workspace: self.workspace.clone(),
            outputs: None,
        }
    }

    pub fn bash_order(&mut self, command: &str) -> ToolOrder {
        let input = format!("{{\"command\":{}}}", quoted(command));
        self.order("bash", &input)
    }

    /// Has an order run, and takes its workspace over as the log does.
    pub async fn send(&mut self, s: &Subject, order: &ToolOrder) -> Result<ToolReply, HandsError> {
        let done = timeout(CALL_MAX, s.hands.execute(order)).await;
        let done = done.unwrap_or_else(|_| panic!("no end after {CALL_MAX:?}: {:?}", order.input));
        if let Ok(ToolReply { workspace: Some(workspace), .. }) = &done {
            self.workspace = Some(workspace.clone());
        }
        done
    }

    pub async fn tool(&mut self, s: &Subject, tool: &str, input: &str) -> ToolReply {
        let order = self.order(tool, input);
        self.send(s, &order).await.unwrap()
    }

    pub async fn bash(&mut self, s: &Subject, command: &str) -> ToolReply {
        let order = self.bash_order(command);
        self.send(s, &order).await.unwrap()
    }

    /// The output of a command that has to succeed.
    pub async fn text(&mut self, s: &Subject, command: &str) -> String {
        let reply = self.bash(s, command).await;
        assert!(!reply.is_error, "{command}: {}", reply.text);
        reply.text
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

pub(super) async fn until<F>(what: &str, look: impl Fn() -> F)
where
    F: Future<Output = bool>,
{
    let until = Instant::now() + Duration::from_secs(30);
    while !look().await {
        assert!(Instant::now() < until, "still not so: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
