//! A running `tailstep dev`.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{built::Built, http};

/// Part of every value that must show nowhere, so that one search finds them all.
pub const CANARY: &str = "canary7f3a";

/// The key that tests use.
pub const KEY: &str = "canary7f3a-e2e-key";

/// A debug build on a busy machine takes this long at most to listen.
const READY: Duration = Duration::from_secs(30);

/// One process; killed when it is dropped.
pub struct Dev {
    child: Child,
    pub url: String,
    /// Lines of standard output before the address.
    pub printed: Vec<String>,
    /// When the process was started, and how long it took to listen.
    pub started: Instant,
    pub ready_after: Duration,
    /// Lines of standard error, with when they came.
    log: Receiver<(Instant, String)>,
}

impl Dev {
    /// Starts on a free port over `data`, and waits until it listens.
    ///
    /// # Errors
    /// When it ends instead, with what it said.
    pub fn start(
        data: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let started = Instant::now();
        let mut command = Built::get().command();
        command.args(["dev", "--listen", "127.0.0.1:0", "--data"]).arg(data).args(arguments);
        command.env("TAILSTEP_API_KEY", KEY).envs(environment.iter().copied());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("no standard output")?;
        let stderr = child.stderr.take().context("no standard error")?;
        let (out, log) = (lines_of(stdout), lines_of(stderr));
        let mut printed = Vec::new();
        let url = loop {
            match out.recv_timeout(READY) {
                Ok((_, line)) => match line.strip_prefix("listening on ") {
                    Some(url) => break url.to_owned(),
                    None => printed.push(line),
                },
                Err(_) => {
                    let _ = child.kill();
                    let status = child.wait()?;
                    let said: Vec<String> = log.try_iter().map(|(_, line)| line).collect();
                    bail!("tailstep dev does not listen ({status}): {}", said.join("\n"));
                }
            }
        };
        Ok(Self { child, url, printed, started, ready_after: started.elapsed(), log })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    /// When it is gone.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let sent = pid.map(|pid| kill_process(pid, signal));
        assert!(matches!(sent, Some(Ok(()))), "cannot signal tailstep dev");
    }

    /// Waits for the end, for at most `limit`.
    ///
    /// # Errors
    /// When it goes on.
    pub fn wait(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > until {
                bail!("tailstep dev did not end within {limit:?}");
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The steps logged since the last call, with when they were.
    pub fn steps(&self) -> Vec<(Instant, Value)> {
        self.log_lines()
            .into_iter()
            .filter_map(|(at, line)| Some((at, serde_json::from_str::<Value>(&line).ok()?)))
            .filter(|(_, line)| line["message"] == "step")
            .collect()
    }

    /// The lines logged since the last call.
    pub fn log_lines(&self) -> Vec<(Instant, String)> {
        self.log.try_iter().collect()
    }

    /// A request with the key.
    ///
    /// # Errors
    /// When there is no answer, or one that is not JSON.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(u16, Value)> {
        http::call(&self.url, method, path, Some(KEY), body)
    }

    /// As [`Self::call`], for what must succeed.
    ///
    /// # Errors
    /// Also when the status is not 200.
    pub fn ok(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        match self.call(method, path, body)? {
            (200, answer) => Ok(answer),
            (status, answer) => bail!("{method} {path} answered {status}: {answer}"),
        }
    }

    /// Makes a session whose agent has the toolset and this model; answers its id.
    ///
    /// # Errors
    /// When a request fails.
    pub fn session(&self, model: &str) -> anyhow::Result<String> {
        let agent = serde_json::json!({
            "name": "e2e", "model": model, "tools": [{ "type": "agent_toolset_20260401" }],
        });
        let agent = self.ok("POST", "/v1/agents", Some(&agent))?;
        let environment = serde_json::json!({ "name": "e2e" });
        let environment = self.ok("POST", "/v1/environments", Some(&environment))?;
        let session =
            serde_json::json!({ "agent": agent["id"], "environment_id": environment["id"] });
        let session = self.ok("POST", "/v1/sessions", Some(&session))?;
        session["id"].as_str().map(str::to_owned).context("a session without an id")
    }

    /// As [`Self::session`], and the session is given these resources.
    ///
    /// # Errors
    /// When a request fails.
    pub fn session_with(&self, model: &str, resources: &Value) -> anyhow::Result<String> {
        let plain = self.session(model)?;
        let plain = self.ok("GET", &format!("/v1/sessions/{plain}"), None)?;
        let session = serde_json::json!({
            "agent": plain["agent"]["id"],
            "environment_id": plain["environment_id"],
            "resources": resources,
        });
        let session = self.ok("POST", "/v1/sessions", Some(&session))?;
        session["id"].as_str().map(str::to_owned).context("a session without an id")
    }

    /// Sends a user's message.
    ///
    /// # Errors
    /// When the request fails.
    pub fn say(&self, session: &str, text: &str) -> anyhow::Result<()> {
        let content = serde_json::json!([{ "type": "text", "text": text }]);
        let body =
            serde_json::json!({ "events": [{ "type": "user.message", "content": content }] });
        self.ok("POST", &format!("/v1/sessions/{session}/events"), Some(&body))?;
        Ok(())
    }

    /// All events so far.
    ///
    /// # Errors
    /// When the request fails.
    pub fn events(&self, session: &str) -> anyhow::Result<Vec<Value>> {
        let page = self.ok("GET", &format!("/v1/sessions/{session}/events?limit=1000"), None)?;
        page["data"].as_array().cloned().context("a list without its data")
    }

    /// Waits until the session rests.
    ///
    /// # Errors
    /// When it does not within `limit`.
    pub fn rest(&self, session: &str, limit: Duration) -> anyhow::Result<Vec<Value>> {
        let until = Instant::now() + limit;
        loop {
            let status =
                self.ok("GET", &format!("/v1/sessions/{session}"), None)?["status"].clone();
            if status == "idle" {
                return self.events(session);
            }
            if Instant::now() > until {
                bail!("session {session} is {status} after {limit:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a pipe, read by a thread so that its writer never blocks.
fn lines_of(pipe: impl Read + Send + 'static) -> Receiver<(Instant, String)> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send((Instant::now(), line)).is_err() {
                return;
            }
        }
    });
    lines
}
