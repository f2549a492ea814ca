//! What the tests of real sandboxes share. They need a host that can isolate and fail with its
//! reason where it cannot.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where it fails")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use serde_json::{Value, json};
use tailstep_sandbox::{Call, Reply, Sandbox, Spec};
use tempfile::TempDir;

/// A running sandbox over a scratch workspace.
pub struct Scene {
    pub sandbox: Sandbox,
    pub workspace: TempDir,
}

pub fn spec(workspace: &Path) -> Spec {
    let helper = std::env::var_os("TAILSTEP_TEST_HELPER").map(PathBuf::from);
    let helper = helper.unwrap_or_else(|| env!("CARGO_BIN_EXE_tailstep-hands").into());
    let mut spec = Spec { helper_path: Some(helper), ..Spec::new(workspace) };
    if let Ok(call_ms) = std::env::var("TAILSTEP_TEST_CALL_MS") {
        spec.limits.call_ms_max = call_ms.parse().expect("a number");
    }
    spec
}

pub async fn start() -> Scene {
    start_with(|_| {}).await
}

pub async fn start_with(change: impl FnOnce(&mut Spec)) -> Scene {
    Scene::over(tempfile::tempdir().expect("a scratch directory"), change).await
}

pub fn call(id: &str, tool: &str, input: Value) -> Call {
    Call { call_id: id.into(), tool: tool.into(), input: input.to_string(), timeout_ms: 0 }
}

/// Child processes of a process, as the host sees them.
pub fn children(of: u32) -> Vec<u32> {
    let mut found = BTreeSet::new();
    for task in fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten() {
        let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    found.into_iter().collect()
}

impl Scene {
    pub async fn over(workspace: TempDir, change: impl FnOnce(&mut Spec)) -> Self {
        let mut spec = spec(workspace.path());
        change(&mut spec);
        let sandbox = match Sandbox::provision(&spec).await {
            Ok(sandbox) => sandbox,
            Err(why) => panic!("this host cannot run the sandbox tests: {why}"),
        };
        Self { sandbox, workspace }
    }

    /// The process of the helper's outer half.
    pub fn guard_pid(&self) -> u32 {
        self.sandbox.guard_pid().expect("the helper runs")
    }

    pub async fn run(&self, tool: &str, input: Value) -> Reply {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = format!("call-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.sandbox.execute(call(&id, tool, input)).await.expect("the sandbox lives")
    }

    pub async fn bash(&self, command: &str) -> Reply {
        self.run("bash", json!({ "command": command })).await
    }

    /// What a command that succeeds prints.
    pub async fn prints(&self, command: &str) -> String {
        let reply = self.bash(command).await;
        assert!(!reply.is_error, "`{command}` failed: {}", reply.text);
        reply.text
    }
}
