//! `tailstep sandbox run` from the outside: what goes in, what comes out, and that nothing stays.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    ffi::OsStr,
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::{ffi::OsStrExt, fs::MetadataExt, process::ExitStatusExt},
    path::Path,
    process::{Child, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tests_e2e::{Built, run};

/// Sandboxes that leave processes behind on purpose, each of which must be gone.
const ROUNDS: u32 = 100;

fn sandboxed(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let all: Vec<&str> = ["sandbox", "run"].iter().chain(arguments).copied().collect();
    run(folder.path(), &all)
}

#[track_caller]
fn prints(arguments: &[&str], expected: &str) {
    let output = sandboxed(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {} {errors}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{arguments:?}: {errors}");
}

#[track_caller]
fn fails(arguments: &[&str], code: i32, says: &str) {
    let output = sandboxed(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    assert!(errors.contains(says), "{arguments:?}: {errors}");
}

/// A whole second that no other test sleeps for, so that a process can be told by its arguments.
fn mark() -> String {
    let mut random = [0; 4];
    getrandom::fill(&mut random).unwrap();
    format!("{}", 100_000_000 + u32::from_le_bytes(random) % 100_000_000)
}

fn alive(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let arguments = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    arguments
        .filter(|line| line.split(|byte| *byte == 0).any(|part| part == mark.as_bytes()))
        .count()
}

#[track_caller]
fn gone(mark: &str, within: Duration) {
    let until = Instant::now() + within;
    while alive(mark) > 0 {
        assert!(Instant::now() < until, "{} processes live on", alive(mark));
        thread::sleep(Duration::from_millis(5));
    }
}

fn started(arguments: &[&str]) -> Child {
    let mut command = Built::get().command();
    command.args(["sandbox", "run"]).args(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn the_command_is_passed_on_whole() {
    prints(&["--", "sh", "-c", "printf 'a\\0b'; echo no >&2"], "a\0b");
    prints(&["--", "pwd"], "/tmp\n");
    prints(&["--env", "ONE=1=2", "--", "sh", "-c", "echo $ONE $HOME"], "1=2 /tmp\n");
    fails(&["--", "sh", "-c", "exit 7"], 7, "");
    fails(&["--", "sh", "-c", "kill -9 $$"], 137, "");
    fails(&["--", "/no/such/program"], 127, "cannot run /no/such/program");
    fails(&["--", "/etc/passwd"], 126, "cannot run /etc/passwd");
    let mut child = Built::get()
        .command()
        .args(["sandbox", "run", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through");
}

#[test]
fn what_is_asked_for_wrongly_is_refused_with_its_name() {
    fails(&["--root", "/no/such/root", "--", "true"], 125, "/no/such/root");
    fails(&["--mount", "/no/such/source:/mnt/a", "--", "true"], 125, "/no/such/source");
    fails(&["--mount", "/usr:relative", "--", "true"], 2, "absolute");
    fails(&["--mount", "/usr:/proc/x", "--", "true"], 125, "/proc");
    fails(&["--mount", "/usr:/usr/no/such", "--", "true"], 125, "choose one that is there");
    for mode in ["RO", "readonly", "ro,z", "ro:ro", ""] {
        fails(&["--mount", &format!("/usr:/mnt/a:{mode}"), "--", "true"], 2, "ro or rw");
    }
    fails(&["--pids", "1", "--", "true"], 2, "pids");
    // What is no file is not waited for.
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    fails(&["--root", pipe.to_str().unwrap(), "--", "true"], 125, "neither a directory nor a file");
    fails(&["--root", "/dev/zero", "--", "true"], 125, "neither a directory nor a file");
    fails(&["--env", "=x", "--", "true"], 2, "NAME=VALUE");
    for option in ["--env", "--allow"] {
        let odd = OsStr::from_bytes(b"A=\xff");
        let mut command = Built::get().command();
        command.args(["sandbox", "run", option]).arg(odd).args(["--", "true"]);
        let said = String::from_utf8_lossy(&command.output().unwrap().stderr).into_owned();
        assert!(said.contains(option) && said.contains("not UTF-8"), "{said}");
    }
    fails(&["--net", "all", "--", "true"], 2, "none or proxy");
    fails(&["--allow", "a.test", "--", "true"], 125, "--net proxy");
    fails(&["--net", "proxy", "--allow", "http://a.test", "--", "true"], 2, "without a scheme");
    for address in ["[fd00::1]:x", "[fd00::1]80", "[fd00::1]:"] {
        fails(&["--net", "proxy", "--allow", address, "--", "true"], 2, "port");
    }
    for address in ["fd00::1", "[fd00::1]", "[fd00::1]:8080"] {
        prints(&["--net", "proxy", "--allow", address, "--", "echo", "allowed"], "allowed\n");
    }
    fails(&["--net", "proxy", "--allow", "a b", "--", "true"], 125, "host");
    fails(&["--time-ms", "0", "--", "true"], 2, "time-ms");
    fails(&["--strict", "--best-effort", "--", "true"], 2, "best-effort");
    fails(&["--"], 2, "CMD");
}

#[test]
fn limits_are_kept_and_named() {
    Built::get();
    let start = Instant::now();
    fails(&["--time-ms", "300", "--", "sleep", "60"], 124, "--time-ms");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    fails(&["--disk-mb", "2", "--", "sh", "-c", "head -c 9000000 /dev/zero > f"], 1, "space");
    fails(&["--root", "/etc/passwd", "--", "true"], 125, "no tar archive");
    let doctor = run(Path::new("/"), &["sandbox", "doctor"]).stdout;
    if String::from_utf8_lossy(&doctor).contains("stands   control group (") {
        let hungry = ["--memory-mb", "64", "--", "python3", "-c", "x = bytearray(400 << 20)"];
        fails(&hungry, 137, "--memory-mb");
        let killed = sandboxed(&["--memory-mb", "64", "--", "sh", "-c", "kill -9 $$"]);
        assert_eq!((killed.status.code(), killed.stderr), (Some(137), Vec::new()));
    } else {
        println!("SKIPPED: no control group here, so memory is bounded per process only");
    }
    let work = tempfile::tempdir().unwrap();
    let fill = "while :; do head -c 8000000 /dev/zero >> f; sleep 0.05; done";
    let at = work.path().to_str().unwrap();
    fails(&["--workspace", at, "--disk-mb", "40", "--", "sh", "-c", fill], 122, "--disk-mb");
    // Who has too much may still clean up.
    prints(&["--workspace", at, "--disk-mb", "40", "--", "sh", "-c", "sleep 2.5; rm f; ls"], "");
    fails(&["--pids", "4", "--", "sh", "-c", "for i in 1 2 3 4 5 6; do sleep 2 & done"], 2, "fork");
}

/// As root, since nobody else can change owners.
fn borrowed_directories_are_as_they_were(workspace: &Path) {
    use std::os::unix::fs::{PermissionsExt, chown};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let at = |name: &str| workspace.join(name);
    for name in ["mine", "other", "grouped", "set-id", "two", "deep"] {
        fs::write(at(name), name).unwrap();
    }
    chown(at("other"), Some(1_234), Some(1_234)).unwrap();
    chown(at("grouped"), None, Some(5_678)).unwrap();
    fs::set_permissions(at("set-id"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::hard_link(at("two"), at("two-too")).unwrap();
    let look = || {
        ["mine", "other", "grouped", "set-id", "two", "two-too"].map(|name| {
            let found = at(name).metadata().unwrap();
            (name, found.uid(), found.gid(), found.mode())
        })
    };
    let before = look();
    let directory = workspace.to_str().unwrap();
    let write = "echo x >>mine; echo x >>grouped; echo x >>other; ln mine linked; touch made";
    let output = sandboxed(&["--workspace", directory, "--", "sh", "-c", write]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("other") && !errors.contains("grouped"), "{errors}");
    assert_eq!(look(), before);
    for name in ["linked", "made"] {
        let found = at(name).metadata().unwrap();
        assert_eq!((found.uid(), found.gid()), (0, 0), "{name}");
    }
    // Also when it cannot be taken over whole: too deep.
    let mut deep = workspace.to_owned();
    for _ in 0..300 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    fails(&["--workspace", directory, "--", "true"], 125, "take over");
    assert_eq!(look(), before);
    assert_eq!(workspace.metadata().unwrap().uid(), 0);
    fs::remove_dir_all(at("d")).unwrap();
}

#[test]
fn mounts_and_roots_show_what_they_should() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "given").unwrap();
    let mount = format!("{}:/mnt/in:ro", data.display());
    prints(&["--mount", &mount, "--", "cat", "/mnt/in/file"], "given");
    fails(&["--mount", &mount, "--", "sh", "-c", "echo x > /mnt/in/file"], 2, "");
    let odd = folder.path().join("a:/b");
    fs::create_dir_all(&odd).unwrap();
    fs::write(odd.join("file"), "odd").unwrap();
    let mount_odd = format!("{}:/mnt/odd:ro", odd.display());
    prints(&["--mount", &mount_odd, "--", "cat", "/mnt/odd/file"], "odd");
    // A path is bytes.
    let source = OsStr::from_bytes(b"\xff\n");
    fs::rename(&odd, folder.path().join(source)).unwrap();
    let mut command = Built::get().command();
    command.current_dir(folder.path()).args(["sandbox", "run", "--mount"]);
    command.arg(OsStr::from_bytes(b"\xff\n:/mnt/\xfe:ro")).args(["--", "cat"]);
    let read = command.arg(OsStr::from_bytes(b"/mnt/\xfe/file")).output().unwrap();
    assert_eq!(read.stdout, b"odd", "{}", String::from_utf8_lossy(&read.stderr));
    let workspace = folder.path().join("work");
    fs::create_dir(&workspace).unwrap();
    let at = workspace.to_str().unwrap();
    prints(&["--workspace", at, "--", "sh", "-c", "pwd; echo made > f"], "/workspace\n");
    assert_eq!(fs::read_to_string(workspace.join("f")).unwrap(), "made\n");
    // Everything is ours again, and nothing of it can lend our rights.
    fs::write(workspace.join("own"), "").unwrap();
    let make = "mkdir d; cp /bin/true d/x; chmod 4755 d/x; rm own; ls";
    prints(&["--workspace", at, "--", "sh", "-c", make], "d\nf\n");
    let (mine, made) = (folder.path().metadata().unwrap(), workspace.join("d/x"));
    for path in [&workspace, &workspace.join("d"), &workspace.join("f"), &made] {
        assert_eq!(path.metadata().unwrap().uid(), mine.uid(), "{}", path.display());
    }
    if mine.uid() == 0 {
        assert_eq!(made.metadata().unwrap().mode() & 0o6000, 0);
    }

    borrowed_directories_are_as_they_were(&workspace);
    let root = folder.path().join("root");
    system(&root);
    let at = root.to_str().unwrap();
    prints(&["--root", at, "--mount", &mount, "--", "/bin/sh", "-c", "ls /; cat /etc/own"], {
        "bin\ndev\netc\nlib\nlib64\nmnt\nproc\nrun\ntmp\nusr\nown\n"
    });
    prints(&["--root", at, "--", "/bin/sh", "-c", "cat /etc/hostname"], "sandbox\n");
    let archive = folder.path().join("root.tar");
    let mut packed = std::process::Command::new("tar");
    packed.arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".");
    assert!(packed.status().unwrap().success());
    prints(&["--root", archive.to_str().unwrap(), "--", "/bin/sh", "-c", "cat /etc/own"], "own\n");
}

/// An ignored SIGCHLD is inherited, and nothing may wait for it then.
#[test]
fn whoever_ignores_the_ends_of_children_gets_an_end() {
    let built = Built::get();
    let ignore = "import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = std::process::Command::new("python3");
    command.args(["-c", ignore]).arg(built.command().get_program());
    command.args(["sandbox", "run", "--time-ms", "20000", "--", "sh", "-c", "(exit 1); exit 3"]);
    assert_eq!(command.status().unwrap().code(), Some(3));
}

/// A system that holds a shell, `cat` and `ls`, taken from this host.
fn system(root: &Path) {
    for name in ["etc", "mnt", "usr/bin", "proc"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::write(root.join("etc/own"), "own\n").unwrap();
    fs::write(root.join("etc/hostname"), "image\n").unwrap();
    for program in ["sh", "cat", "ls"] {
        let path = fs::canonicalize(format!("/usr/bin/{program}")).unwrap();
        fs::copy(&path, root.join("usr/bin").join(program)).unwrap();
        let listed = std::process::Command::new("ldd").arg(&path).output().unwrap();
        for word in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
            if let Some(inner) = word.strip_prefix('/') {
                let to = root.join(inner);
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                if !to.exists() {
                    fs::copy(word, to).unwrap();
                }
            }
        }
    }
    std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
}

#[test]
fn the_only_way_out_is_the_proxy() {
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port().to_string();
    let dial = "exec 3<>/dev/tcp/127.0.0.1/$0";
    fails(&["--net", "none", "--", "bash", "-c", dial, "3128"], 1, "refused");
    fails(&["--net", "proxy", "--", "bash", "-c", dial, &port], 1, "refused");
    let ask = "exec 3<>/dev/tcp/127.0.0.1/3128; \
               printf 'CONNECT evil.invalid:443 HTTP/1.1\\r\\nHost: evil.invalid:443\\r\\n\\r\\n' >&3; \
               head -n 1 <&3";
    let output = sandboxed(&["--net", "proxy", "--allow", "good.invalid", "--", "bash", "-c", ask]);
    let (said, errors) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(said.starts_with(b"HTTP/1.1 403"), "{} {errors}", String::from_utf8_lossy(&said));
    assert!(errors.contains("refused evil.invalid:443"), "{errors}");
    outside.set_nonblocking(true).unwrap();
    assert!(outside.accept().is_err(), "somebody came through");
}

#[test]
fn nothing_lives_on() {
    let script = "setsid sh -c '(sleep MARK &) ; sleep MARK' >/dev/null 2>&1 & \
                  (setsid setsid sleep MARK &) ; sleep 0.01; STAY";
    for round in 0..ROUNDS {
        let mark = mark();
        let stays = round % 4 == 0;
        let script =
            script.replace("MARK", &mark).replace("STAY", if stays { "sleep 60" } else { "true" });
        let mut child = started(&["--", "sh", "-c", &script]);
        if stays {
            let until = Instant::now() + Duration::from_secs(20);
            while alive(&mark) == 0 && Instant::now() < until {
                thread::sleep(Duration::from_millis(2));
            }
            let signal = if round % 8 == 0 { Signal::KILL } else { Signal::TERM };
            let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
            kill_process(pid, signal).unwrap();
            let status = child.wait().unwrap();
            let told = status.signal() == Some(9) || status.code() == Some(128 + 15);
            assert!(told, "round {round}: {status}");
        } else {
            assert!(child.wait().unwrap().success(), "round {round}");
        }
        gone(&mark, Duration::from_secs(5));
    }
}

#[test]
fn a_flood_goes_through_without_filling_memory() {
    let mut child = Built::get()
        .command()
        .args(["sandbox", "run", "--", "head", "-c", "200000000", "/dev/zero"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut output = child.stdout.take().unwrap();
    let (mut piece, mut all, mut most_kb) = (vec![0; 1 << 20], 0, 0);
    loop {
        match output.read(&mut piece).unwrap() {
            0 => break,
            count => all += count,
        }
        let status = fs::read_to_string(&status).unwrap_or_default();
        let held = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let held = held.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
        most_kb = most_kb.max(held.unwrap_or_default());
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(all, 200_000_000);
    assert!(most_kb < 100_000, "{most_kb} kB");
}

#[test]
fn the_doctor_speaks() {
    let output = run(Path::new("/"), &["sandbox", "doctor"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for wall in ["user namespace", "fresh root", "no capabilities", "system call filter"] {
        assert!(said.lines().any(|line| line == format!("stands   {wall}")), "{wall}: {said}");
    }
}
