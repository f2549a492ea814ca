//! The conformance suite on the local hands, in real sandboxes. The program is its own sandbox
//! helper, so that nothing has to be built beside it.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test with a main of its own")]

use std::{env, fs, os::unix::fs::PermissionsExt, path::PathBuf, process::ExitCode, sync::Arc};

use async_trait::async_trait;
use tailstep_core::ids::SessionKey;
use tailstep_local::{HandsConfig, LocalHands};
use tailstep_runtime::memory::MemoryBlobs;
use tailstep_sandbox::{Access, Mount, Spec};
use tests_wire::hands::{self, Outside, Provider, Subject, Walls};

const HELPER: &str = "--be-the-sandbox-helper";

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        Some(HELPER) => return tailstep_sandbox::hands::main(),
        // Listing is all that a test runner asks for besides running.
        Some("--list") => return ExitCode::SUCCESS,
        Some(_) | None => {}
    }
    // The process starts itself again with a secret, which must not be seen inside.
    if env::var_os("SOME_SECRET").is_none() {
        let own = env::current_exe().unwrap();
        let status = std::process::Command::new(own).env("SOME_SECRET", "CANARY").status().unwrap();
        return ExitCode::from(u8::from(!status.success()));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(hands::all(subject));
    println!("the laws of the hands hold on the local ones");
    ExitCode::SUCCESS
}

async fn subject() -> Subject {
    let (data, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // The sandbox's user is another one.
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let inside = PathBuf::from("/outside");
    let mount = Mount {
        source: outside.path().to_owned(),
        target: inside.clone(),
        access: Access::ReadWrite,
    };
    let spec = Spec {
        helper_path: Some(env::current_exe().unwrap()),
        helper_args: vec![HELPER.to_owned()],
        mounts: vec![mount],
        ..Spec::new("/")
    };
    let config = HandsConfig { spec, ..HandsConfig::default() };
    let hands = LocalHands::new(data.path(), Arc::new(MemoryBlobs::default()), config);
    Subject {
        hands: hands.clone(),
        provider: Arc::new(Host { hands }),
        outside: Outside { here: outside.path().to_owned(), inside },
        walls: Walls::Own,
        faults: Vec::new(),
        keep: Box::new((data, outside)),
    }
}

/// This machine.
struct Host {
    hands: Arc<LocalHands>,
}

#[async_trait]
impl Provider for Host {
    async fn live(&self) -> usize {
        self.hands.live()
    }

    async fn kill(&self, key: &SessionKey) -> bool {
        // A sandbox has its session's folder mounted.
        let of_session = |pid: &String| {
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            mounts.contains(&key.tenant)
        };
        let mut found = false;
        for guard in children("self").iter().flat_map(|helper| children(helper)) {
            let inner = children(&guard);
            if !of_session(&guard) && !inner.iter().any(of_session) {
                continue;
            }
            let status = std::process::Command::new("kill").args(["-9", &guard]).status();
            found |= status.unwrap().success();
            // A crash takes everything at once; here the guard's end ends the rest.
            while inner.iter().any(of_session) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
        found
    }

    async fn name(&self, _key: &SessionKey) -> Option<String> {
        None
    }

    fn requests(&self) -> usize {
        0
    }

    fn inject(&self, fault: &str) {
        panic!("this machine has no fault {fault}");
    }

    fn pending(&self) -> usize {
        0
    }
}

fn children(pid: &str) -> Vec<String> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().map(str::to_owned));
    }
    found
}
