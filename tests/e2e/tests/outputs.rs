//! Files from the sandbox to the client and back in, with the shipped program, and without ever
//! holding one whole.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{self, Read},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tests_e2e::{Dev, dev::KEY, http};

const TURN: Duration = Duration::from_secs(120);

const LARGE_BYTES: u64 = 200 << 20;

/// What the process may hold beyond what it holds when it is idle.
const RSS_GROWTH_BYTES_MAX: u64 = 150 << 20;

/// Bytes that no compression and no hole explains, the same in every run.
struct Noise {
    state: u64,
    left: u64,
}

impl Noise {
    fn new(bytes: u64) -> Self {
        Self { state: 0x9e37_79b9_7f4a_7c15, left: bytes }
    }
}

impl Read for Noise {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(piece.len());
        for part in piece[..count].chunks_mut(8) {
            // Xorshift64.
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            part.copy_from_slice(&self.state.to_le_bytes()[..part.len()]);
        }
        self.left -= count as u64;
        Ok(count)
    }
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash_of(mut content: impl Read) -> String {
    let (mut digest, mut piece) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match content.read(&mut piece).unwrap() {
            0 => return hex(digest),
            count => digest.update(&piece[..count]),
        }
    }
}

fn download(dev: &Dev, file: &Value) -> (u64, String) {
    let path = format!("/v1/files/{}/content", file["id"].as_str().unwrap());
    let answer = http::get(&dev.url, &path, KEY).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.head);
    assert!(answer.head.contains("content-disposition: attachment;"), "{}", answer.head);
    let mut digest = Sha256::new();
    let length = answer.body(&mut |piece| digest.update(piece)).unwrap();
    (length, hex(digest))
}

/// A line of the process's status, in bytes.
fn memory(dev: &Dev, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", dev.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let kilobytes: u64 = line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().unwrap();
    kilobytes << 10
}

/// Lets the session run one command; answers the text of its result.
fn bash(dev: &Dev, session: &str, command: &str) -> String {
    dev.say(session, &format!("Use the bash tool to run exactly: {command}")).unwrap();
    let events = dev.rest(session, TURN).unwrap();
    let result = events.iter().rfind(|event| event["type"] == "agent.tool_result").unwrap();
    assert_ne!(result["is_error"], true, "{result}");
    result["content"][0]["text"].as_str().unwrap_or_default().to_owned()
}

fn outputs(dev: &Dev, session: &str) -> Vec<Value> {
    let page = dev.ok("GET", &format!("/v1/files?scope_id={session}"), None).unwrap();
    let mut files = page["data"].as_array().unwrap().clone();
    files.sort_by_key(|file| file["x_path"].as_str().unwrap().to_owned());
    files
}

#[test]
fn large_empty_and_odd_files_come_out_whole_and_memory_stays_small() {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &[], &[]).unwrap();
    let session = dev.session("scripted/echo").unwrap();
    bash(&dev, &session, "echo warm");
    let idle = memory(&dev, "VmRSS");

    let begun = Instant::now();
    let make = format!(
        "cd /mnt/session/outputs; head -c {LARGE_BYTES} /dev/urandom > large; : > empty; \
         for i in {{0..255}}; do printf \"\\\\x$(printf %02x $i)\"; done > bytes; \
         sha256sum bytes empty large"
    );
    let said = bash(&dev, &session, &make);
    let made_after = begun.elapsed();
    let sums: Vec<(&str, &str)> = said.lines().filter_map(|line| line.split_once("  ")).collect();
    let listed = outputs(&dev, &session);
    assert_eq!(sums.len(), 3, "{said}");
    for (file, ((sum, name), size)) in listed.iter().zip(sums.iter().zip([256, 0, LARGE_BYTES])) {
        assert_eq!((file["x_path"].as_str().unwrap(), &file["size_bytes"]), (*name, &size.into()));
        assert_eq!(download(&dev, file), (size, (*sum).to_owned()), "{name}");
    }
    assert_eq!(hash_of(&(0..=255).collect::<Vec<u8>>()[..]), sums[0].0, "every byte is there");
    let out = memory(&dev, "VmHWM").saturating_sub(idle);

    let begun_up = Instant::now();
    let sent = hash_of(Noise::new(LARGE_BYTES));
    let mut noise = Noise::new(LARGE_BYTES);
    let file = http::upload(&dev.url, KEY, "noise.bin", LARGE_BYTES, &mut noise).unwrap();
    assert_eq!(file["x_sha256"], sent.as_str());
    assert_eq!(download(&dev, &file), (LARGE_BYTES, sent));
    let up = memory(&dev, "VmHWM").saturating_sub(idle);
    println!(
        "200 MB: made and collected in {made_after:?}, up and down in {:?}; resident memory \
         {} MB idle, at most +{} MB after outputs and +{} MB after an upload",
        begun_up.elapsed(),
        idle >> 20,
        out >> 20,
        up >> 20,
    );
    assert!(up < RSS_GROWTH_BYTES_MAX, "the process grew by {up} bytes");
}

#[test]
fn outputs_survive_a_kill_and_what_is_left_out_is_told() {
    let data = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(data.path(), &[], &[]).unwrap();
    let session = dev.session("scripted/echo").unwrap();
    let make = "cd /mnt/session/outputs; echo report > report.txt; ln -s /etc/passwd link; \
                mkfifo pipe; cp report.txt twin; ln twin twin2";
    let said = bash(&dev, &session, make);
    assert!(said.contains("[outputs: 4 entries of /mnt/session/outputs left out: "), "{said}");
    assert!(said.contains("link (it is a link)"), "{said}");
    let listed = outputs(&dev, &session);
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["filename"], "report.txt");
    dev.signal(rustix::process::Signal::KILL);
    dev.wait(Duration::from_secs(5)).unwrap();
    let dev = Dev::start(data.path(), &[], &[]).unwrap();
    assert_eq!(outputs(&dev, &session), listed);
    assert_eq!(download(&dev, &listed[0]), (7, hash_of(&b"report\n"[..])));
    let said = bash(&dev, &session, "cat /mnt/session/outputs/report.txt");
    assert!(said.contains("report") && !said.contains("[outputs"), "{said}");
    assert_eq!(outputs(&dev, &session), listed, "nothing changed, so the ids are the same");
}

#[test]
fn an_upload_and_another_sessions_output_are_given_to_a_session() {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &[], &[]).unwrap();
    let first = dev.session("scripted/echo").unwrap();
    bash(&dev, &first, "echo from the first > /mnt/session/outputs/note.txt");
    let note = &outputs(&dev, &first)[0];
    let size = 9 << 20;
    let large = http::upload(&dev.url, KEY, "large.bin", size, &mut Noise::new(size)).unwrap();
    let resources = json!([
        {"type": "file", "file_id": note["id"], "mount_path": "/data/note.txt"},
        {"type": "file", "file_id": large["id"]},
    ]);
    let second = dev.session_with("scripted/echo", &resources).unwrap();
    let said = bash(&dev, &second, "cat /data/note.txt; sha256sum /mnt/session/uploads/*");
    assert!(said.contains("from the first"), "{said}");
    assert!(said.contains(&hash_of(Noise::new(size))), "{said}");
    let said =
        bash(&dev, &second, "rm /data/note.txt 2>&1; echo x 2>&1 > /data/note.txt; ls /data");
    assert!(said.contains("note.txt"), "{said}");
    assert!(said.contains("busy") || said.contains("Read-only"), "{said}");
}

#[test]
fn packages_are_accepted_only_where_they_can_be_installed() {
    let (data, wheels) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let environment = json!({
        "name": "packaged",
        "config": {"type": "cloud", "packages": {"pip": ["missing==9"]}},
    });
    let handless = Dev::start(data.path(), &["--no-hands"], &[]).unwrap();
    let (status, said) = handless.call("POST", "/v1/environments", Some(&environment)).unwrap();
    assert_eq!(status, 400, "{said}");
    drop(handless);
    let from = [("TAILSTEP_PACKAGES", wheels.path().to_str().unwrap())];
    let dev = Dev::start(data.path(), &[], &from).unwrap();
    let environment = dev.ok("POST", "/v1/environments", Some(&environment)).unwrap();
    let agent = json!({
        "name": "e2e",
        "model": "scripted/echo",
        "tools": [{"type": "agent_toolset_20260401"}],
    });
    let agent = dev.ok("POST", "/v1/agents", Some(&agent)).unwrap();
    let session = json!({"agent": agent["id"], "environment_id": environment["id"]});
    let session = dev.ok("POST", "/v1/sessions", Some(&session)).unwrap();
    let session = session["id"].as_str().unwrap();
    dev.say(session, "Use the bash tool to run exactly: echo it ran").unwrap();
    let events = dev.rest(session, TURN).unwrap();
    let result = events.iter().find(|event| event["type"] == "agent.tool_result").unwrap();
    let text = result["content"][0]["text"].as_str().unwrap();
    assert_eq!(result["is_error"], true);
    for said in ["could not be installed", "did not run", "pip:"] {
        assert!(text.contains(said), "{text}");
    }
}
