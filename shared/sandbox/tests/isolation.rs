//! What a command inside a sandbox cannot see, reach or do.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where it fails")]

mod common;

use common::{Scene, start, start_with};
use serde_json::json;
use tailstep_sandbox::{Access, Mount, Sandbox, SandboxError, Strictness};

#[tokio::test]
async fn every_layer_of_this_host_is_active() {
    let scene = start_with(|spec| spec.strictness = Strictness::Full).await;
    let layers = scene.sandbox.layers();
    assert_eq!(layers.missing, Vec::<String>::new());
    for layer in ["user namespace", "network namespace", "landlock", "system call filter"] {
        assert!(layers.active.iter().any(|active| active == layer), "{layer}: {layers:?}");
    }
    assert!(layers.active.iter().any(|active| active.starts_with("control group (")), "{layers:?}");
}

#[tokio::test]
async fn a_command_runs_in_the_workspace_as_an_ordinary_user() {
    let scene = start().await;
    assert_eq!(
        scene.prints("echo hello; pwd; id -un; hostname").await,
        "hello\n/workspace\nagent\nsandbox\n"
    );
    scene.prints("echo made > made && mkdir -m 700 private && echo p > private/p").await;
    let made = std::fs::read_to_string(scene.workspace.path().join("private/p"));
    assert_eq!(made.unwrap(), "p\n", "the supervisor reads what was made inside");
    let map = scene.prints("cat /proc/self/uid_map").await;
    let host: u64 = map.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(host >= 0x7000_0000 || !rustix::process::geteuid().is_root(), "{map}");
}

#[tokio::test]
async fn what_the_supervisor_put_there_can_be_changed_inside() {
    let workspace = tempfile::tempdir().unwrap();
    let inside = workspace.path().join("dir");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(inside.join("file"), "old").unwrap();
    std::fs::write(workspace.path().join("outside-target"), "").unwrap();
    std::os::unix::fs::symlink("/etc/hostname", inside.join("link")).unwrap();
    let owner = |path: &str| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).unwrap().uid()
    };
    let before = owner("/etc/hostname");
    let scene = Scene::over(workspace, |_| {}).await;
    assert_eq!(scene.prints("cd dir && echo new > file && rm link && cat file").await, "new\n");
    assert_eq!(owner("/etc/hostname"), before, "links are not followed when owners change");
}

#[tokio::test]
async fn no_environment_of_the_supervisor_is_inside() {
    let scene = start().await;
    // The test runner sets many variables; none of their names may be seen.
    let own: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
    let allowed = [
        "PATH", "HOME", "TMPDIR", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "PWD", "SHLVL", "_",
        "OLDPWD",
    ];
    assert!(own.iter().any(|name| name.starts_with("CARGO")), "the canaries are set");
    let seen = scene.prints("env").await;
    for line in seen.lines() {
        let name = line.split('=').next().unwrap();
        assert!(allowed.contains(&name), "{line}");
    }
    let environ = scene.bash("cat /proc/1/environ /proc/1/task/*/environ").await;
    assert!(environ.is_error && environ.text.contains("Permission denied"), "{}", environ.text);
    assert_eq!(scene.prints("tr -d '\\0' < /proc/1/cmdline").await, "");
}

#[tokio::test]
async fn no_file_of_the_host_is_inside() {
    let canary = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(canary.path(), "CANARY").unwrap();
    let scene = start().await;
    for path in [
        "/etc/shadow",
        "/root",
        "/home",
        "/boot",
        "/sys",
        "/var/log",
        "/proc/1/root/etc",
        canary.path().to_str().unwrap(),
    ] {
        let reply = scene.bash(&format!("ls -d {path}/. {path}")).await;
        assert!(reply.is_error, "{path}: {}", reply.text);
    }
    assert_eq!(scene.prints("ls /").await, scene.prints("printf '%s\\n' /* | sed s:/::").await);
    let users = scene.prints("cut -d: -f1 /etc/passwd | tr '\\n' ' '").await;
    assert_eq!(users, "root agent nobody ");
    for path in ["/x", "/usr/x", "/etc/x", "/dev/x", "/proc/sys/kernel/core_pattern", "/run/x"] {
        let reply = scene.bash(&format!("echo x > {path}")).await;
        assert!(reply.is_error, "{path} is writable");
    }
    let hidden = "cd /proc; for name in kallsyms keys cmdline config.gz; do \
                  [ ! -e $name ] || cat $name; done | wc -c";
    assert_eq!(scene.prints(hidden).await, "0\n");
}

#[tokio::test]
async fn file_tools_stay_in_the_workspace() {
    let scene = start().await;
    scene
        .prints(
            "ln -s / out; ln -s /workspace/in link; mkdir in; echo ok > in/f; ln -s ../../etc up",
        )
        .await;
    for path in ["/etc/passwd", "out/etc/passwd", "up/passwd", "../etc/passwd", "out/proc/1/status"]
    {
        let reply = scene.run("read", json!({ "file_path": path })).await;
        assert!(
            reply.is_error && reply.text.contains("leads out of the workspace"),
            "{path}: {}",
            reply.text
        );
        let reply = scene.run("write", json!({ "file_path": path, "content": "x" })).await;
        assert!(
            reply.is_error && reply.text.contains("leads out of the workspace"),
            "{path}: {}",
            reply.text
        );
    }
    for path in ["link/f", "/workspace/link/f", "in/../link/./f"] {
        assert_eq!(scene.run("read", json!({ "file_path": path })).await.text, "ok\n", "{path}");
    }
}

#[tokio::test]
async fn a_swapped_link_never_leads_out() {
    let scene = start().await;
    // A background loop exchanges a directory and a link out, as fast as it can.
    scene
        .prints(
            "mkdir -p real/etc && echo INSIDE > real/etc/passwd && ln -s / away && \
             (while :; do mv -T real swap && mv -T away real && mv -T real away && mv -T swap real; done) \
             >/dev/null 2>&1 &",
        )
        .await;
    let mut inside = 0;
    for _ in 0..300 {
        for path in ["real/etc/passwd", "swap/etc/passwd"] {
            let reply = scene.run("read", json!({ "file_path": path })).await;
            assert!(!reply.text.contains("root:"), "{}", reply.text);
            inside += usize::from(reply.text == "INSIDE\n");
        }
    }
    assert!(inside > 0, "the race was never won, so nothing was shown");
}

#[tokio::test]
async fn there_is_no_network_but_loopback() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let scene = start().await;
    assert_eq!(scene.prints("awk -F: 'NR>2{gsub(/ /,\"\",$1); print $1}' /proc/net/dev | grep -vE '^(tunl|sit|gre|erspan|ip6|ip_vti|teql)'").await, "lo\n");
    let reply = scene.bash(&format!("exec 3<>/dev/tcp/127.0.0.1/{port}")).await;
    assert!(reply.is_error && reply.text.contains("refused"), "{}", reply.text);
    let reply = scene.bash("exec 3<>/dev/udp/203.0.113.1/53").await;
    assert!(reply.is_error && reply.text.contains("unreachable"), "{}", reply.text);
    let own = "python3 -c 'import socket; s=socket.socket(); s.bind((\"127.0.0.1\",0)); s.listen(); \
               socket.create_connection(s.getsockname()); print(\"own loopback works\")'";
    assert_eq!(scene.prints(own).await, "own loopback works\n");
}

#[tokio::test]
async fn privileges_and_dangerous_calls_are_gone() {
    let scene = start().await;
    let status = scene
        .prints("grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status")
        .await;
    let expected = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
        .map(|name| format!("{name}:\t0000000000000000\n"))
        .concat();
    assert_eq!(status, format!("{expected}NoNewPrivs:\t1\nSeccomp:\t2\n"));
    for command in [
        "unshare -U true",
        "unshare -r true",
        "mount -t tmpfs x /tmp",
        "umount /proc",
        "chroot / true",
        "mknod n c 1 1",
        "kill -9 1 && kill -0 1 && false",
        "dmesg",
        "su -c true",
    ] {
        let reply = scene.bash(command).await;
        assert!(reply.is_error, "{command}: {}", reply.text);
    }
    let script = r#"
import ctypes, errno, socket
c = ctypes.CDLL(None, use_errno=True)
def call(*a):
    ctypes.set_errno(0)
    return errno.errorcode.get(ctypes.get_errno()) if c.syscall(*a) == -1 else "done"
print("clone3", call(435, 0, 0), "ptrace", call(101, 16, 1, 0, 0), "keyctl", call(250, 0, -3, 0),
      "bpf", call(321, 0, 0, 0), "io_uring", call(425, 1, 0), "userfaultfd", call(323, 1),
      "clone-newuser", call(56, 0x10000011, 0, 0, 0, 0), "x32", call(0x40000000 | 39))
for family, kind in ((40, 1), (38, 5), (17, 3), (2, 3), (16, 3)):
    try: socket.socket(family, kind, 12 if family == 16 else 0); print(family, "made")
    except OSError as e: print(family, errno.errorcode[e.errno])
"#;
    let reply = scene.run("write", json!({ "file_path": "calls.py", "content": script })).await;
    assert!(!reply.is_error);
    #[cfg(target_arch = "x86_64")]
    assert_eq!(
        scene.prints("python3 calls.py").await,
        "clone3 ENOSYS ptrace EPERM keyctl EPERM bpf EPERM io_uring EPERM userfaultfd EPERM \
         clone-newuser EPERM x32 EPERM\n40 EAFNOSUPPORT\n38 EAFNOSUPPORT\n17 EAFNOSUPPORT\n2 EPERM\n16 EAFNOSUPPORT\n"
    );
}

#[tokio::test]
async fn no_descriptor_leaks_in() {
    let canary = tempfile::tempfile().unwrap();
    rustix::io::fcntl_setfd(&canary, rustix::io::FdFlags::empty()).unwrap();
    let scene = start().await;
    let open =
        scene.prints("ls -l /proc/self/fd | awk '/->/{print $NF}' | sort | tr '\\n' ' '").await;
    assert!(!open.contains("/tmp/") && !open.contains("socket:"), "{open}");
    assert_eq!(
        scene.prints("ls /proc/self/fd").await,
        "0\n1\n2\n3\n",
        "the three streams and ls's own"
    );
    drop(canary);
}

#[tokio::test]
async fn tools_for_building_work() {
    let scene = start().await;
    let source = "#include <stdio.h>\nint main(void){puts(\"built\");return 0;}\n";
    scene.run("write", json!({ "file_path": "a.c", "content": source })).await;
    assert_eq!(scene.prints("cc a.c -o a && ./a").await, "built\n");
    assert_eq!(scene.prints("python3 -c 'import threading,os; t=threading.Thread(target=lambda: print(\"thread\")); t.start(); t.join(); print(os.cpu_count() > 0)'").await, "thread\nTrue\n");
    assert_eq!(scene.prints("git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline | wc -l").await, "1\n");
}

#[tokio::test]
async fn mounts_show_what_was_named() {
    let given = tempfile::tempdir().unwrap();
    std::fs::write(given.path().join("f"), "given").unwrap();
    let file = given.path().join("f");
    let scene = start_with(|spec| {
        spec.mounts = vec![
            Mount {
                source: given.path().into(),
                target: "/mnt/data".into(),
                access: Access::ReadOnly,
            },
            Mount {
                source: file.clone(),
                target: "/opt/one/file".into(),
                access: Access::ReadOnly,
            },
        ];
    })
    .await;
    assert_eq!(scene.prints("cat /mnt/data/f /opt/one/file").await, "givengiven");
    assert!(scene.bash("echo x > /mnt/data/f").await.is_error);
}

#[tokio::test]
async fn specifications_that_cannot_work_are_refused_plainly() {
    let workspace = tempfile::tempdir().unwrap();
    let refuse = async |change: &dyn Fn(&mut tailstep_sandbox::Spec), part: &str| {
        let mut spec = common::spec(workspace.path());
        change(&mut spec);
        let why = Sandbox::provision(&spec).await.err().expect("it must be refused").to_string();
        assert!(why.contains(part), "{part}: {why}");
    };
    let mount = |target: &str| Mount {
        source: "/usr".into(),
        target: target.into(),
        access: Access::ReadOnly,
    };
    for target in ["/proc/x", "/workspace/x", "/dev", "relative", "/a/../b", "/"] {
        refuse(&|spec| spec.mounts = vec![mount(target)], &format!("mount target {target}")).await;
    }
    let missing = |spec: &mut tailstep_sandbox::Spec| {
        spec.mounts = vec![Mount { source: "/no/such".into(), ..mount("/mnt/x") }];
    };
    refuse(&missing, "cannot mount /no/such").await;
    refuse(&|spec| spec.workspace = "/no/such/dir".into(), "workspace /no/such/dir").await;
    refuse(&|spec| spec.helper_path = Some("/no/helper".into()), "tailstep-hands").await;
    let other = |spec: &mut tailstep_sandbox::Spec| spec.helper_path = Some("/bin/true".into());
    refuse(&other, "the helper gave no answer").await;
}

#[tokio::test]
async fn the_host_can_be_asked() {
    let helper = env!("CARGO_BIN_EXE_tailstep-hands");
    let layers = tailstep_sandbox::check_host(Some(helper.as_ref())).await.unwrap();
    assert!(layers.active.contains(&"user namespace".to_owned()), "{layers:?}");
    let why = tailstep_sandbox::check_host(Some("/no/helper".as_ref())).await.unwrap_err();
    assert!(why.contains("/no/helper"), "{why}");
}

#[tokio::test]
async fn too_large_a_call_is_refused_and_harms_nothing() {
    let scene = start().await;
    let huge =
        common::call("huge", "write", json!({ "file_path": "f", "content": "x".repeat(9 << 20) }));
    let outcome = scene.sandbox.execute(huge).await;
    assert!(matches!(outcome, Err(SandboxError::CallTooLarge { .. })), "{outcome:?}");
    assert_eq!(scene.prints("echo alive").await, "alive\n");
}
