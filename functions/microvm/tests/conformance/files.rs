//! What sessions are given, and what they put out.

use std::sync::Arc;

use tailstep_core::{
    agent::SkillSpec,
    files::{FileContent, FileResource, Given, Manifest, OutputFile},
    ids::{BlobRef, sha256_hex},
};
use tailstep_runtime::{
    content::ContentWriter,
    memory::MemoryBlobs,
    ports::{Blobs, HandsError, ToolReply},
};
use tests_wire::hands::{Provider, Session, Subject};

use crate::{service::Service, subject_over};

const OVERHEAD_MS: u64 = 20_000;
/// Goes to where absolute paths begin: the daemon's last argument.
const ROOT: &str = "cd \"$(tr '\\0' '\\n' </proc/$PPID/cmdline | tail -1)\"";
const OUTPUTS: &str = "mnt/session/outputs";

struct Scene {
    s: Subject,
    service: Arc<Service>,
    blobs: Arc<MemoryBlobs>,
    session: Session,
    given: Given,
    /// As the log has it.
    outputs: Option<BlobRef>,
}

impl Scene {
    async fn new() -> Self {
        let blobs = Arc::new(MemoryBlobs::default());
        let (s, _, service) = subject_over(blobs.clone(), OVERHEAD_MS).await;
        let (session, given) = (Session::new(), Given::default());
        Self { s, service, blobs, session, given, outputs: None }
    }

    fn tenant(&self) -> String {
        self.session.key.tenant.clone()
    }

    async fn content(&self, bytes: &[u8]) -> FileContent {
        let tenant = self.tenant();
        let mut writer = ContentWriter::new(self.blobs.as_ref(), &tenant);
        writer.write(bytes).await.unwrap();
        writer.finish().await.unwrap()
    }

    async fn give(&mut self, path: &str, bytes: &[u8]) {
        self.given.files.push(FileResource {
            id: "sesrsc_1".into(),
            file_id: "file_1".into(),
            filename: "a".into(),
            mount_path: path.into(),
            content: self.content(bytes).await,
            added_at_ms: 0,
        });
    }

    async fn give_skill(&mut self, name: &str, files: &[(&str, &[u8])]) {
        let mut manifest = Manifest::empty();
        for (path, bytes) in files {
            let content = self.content(bytes).await;
            manifest.files.push(OutputFile {
                path: (*path).to_owned(),
                content,
                collected_at_ms: 0,
            });
        }
        let encoded = manifest.encode().unwrap();
        self.given.skills.push(SkillSpec {
            skill_id: "skill_1".into(),
            version: "skillver_1".into(),
            name: name.into(),
            description: "Makes it.".into(),
            manifest: self.blobs.put(&self.tenant(), encoded.into()).await.unwrap(),
        });
    }

    /// One call, and what the log makes of it.
    async fn call(&mut self, command: &str) -> Result<ToolReply, HandsError> {
        let mut order = self.session.bash_order(command);
        (order.given, order.outputs) = (self.given.clone(), self.outputs.clone());
        let reply = self.session.send(&self.s, &order).await;
        if let Ok(ToolReply { report, .. }) = &reply
            && let Some(outputs) = &report.outputs
        {
            self.outputs = Some(outputs.clone());
        }
        reply
    }

    async fn text(&mut self, command: &str) -> String {
        let reply = self.call(command).await.unwrap();
        assert!(!reply.is_error, "{command}: {}", reply.text);
        reply.text
    }

    /// What the log says was put out, each file with the hash of the bytes that are stored.
    async fn stored(&self) -> Vec<(String, String)> {
        let Some(outputs) = &self.outputs else { return Vec::new() };
        let tenant = self.tenant();
        let manifest = self.blobs.get(&tenant, outputs).await.unwrap();
        let mut files = Vec::new();
        for OutputFile { path, content, .. } in Manifest::decode(&manifest).unwrap().files {
            let mut bytes = Vec::new();
            for chunk in &content.chunks {
                bytes.extend_from_slice(&self.blobs.get(&tenant, chunk).await.unwrap());
            }
            assert_eq!(sha256_hex(&bytes), content.sha256);
            files.push((path, content.sha256));
        }
        files
    }
}

fn all_bytes() -> Vec<u8> {
    (0..=255).collect()
}

/// More than two pieces, and no two of them equal.
fn large() -> Vec<u8> {
    (0..5_000_000_u32).flat_map(u32::to_le_bytes).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_is_there_in_every_machine_and_sent_once_to_each() {
    let mut scene = Scene::new().await;
    scene.give("/data/all", &all_bytes()).await;
    scene.give("/data/empty", b"").await;
    scene.give("/mnt/session/uploads/large", &large()).await;
    scene
        .give_skill("make-it", &[("SKILL.md", b"# How"), ("bin/run", b"#!/bin/sh\necho made\n")])
        .await;
    for _ in 0..2 {
        scene.text("true").await;
        let before = scene.service.requests();
        let seen = scene
            .text(&format!(
                "{ROOT}; cat skills/make-it/SKILL.md; echo; skills/make-it/bin/run; \
                 sha256sum < data/all; sha256sum < data/empty; sha256sum < mnt/session/uploads/large; \
                 stat -c %a data/all skills/make-it/bin/run"
            ))
            .await;
        let hash = |bytes: &[u8]| format!("{}  -\n", sha256_hex(bytes));
        let hashes = [hash(&all_bytes()), hash(b""), hash(&large())].concat();
        assert_eq!(seen, format!("# How\nmade\n{hashes}444\n555\n"));
        assert_eq!(scene.service.requests() - before, 1, "nothing is sent again");
        assert!(scene.s.provider.kill(&scene.session.key).await);
    }
    // What is lost is said, and nothing runs without it.
    let lost = scene.given.files[0].content.chunks[0].clone();
    scene.blobs.lose(&scene.tenant(), &lost);
    let reply = scene.call("echo ran").await.unwrap();
    assert!(reply.is_error && reply.text.contains("/data/all"), "{}", reply.text);
    assert!(reply.text.contains("did not run") && !reply.text.contains("ran\n"), "{}", reply.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_out_is_stored_and_outlives_the_machine() {
    let mut scene = Scene::new().await;
    scene.text("true").await;
    assert_eq!(scene.outputs, None, "nothing there, nothing to say");
    let put = format!(
        "{ROOT}/{OUTPUTS}; mkdir deep; : > empty; head -c 20000000 /dev/urandom > large; \
         python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)))' > deep/all; \
         ln -s /etc/passwd link; sha256sum < large"
    );
    let said = scene.text(&put).await;
    let large = said.split_whitespace().next().unwrap().to_owned();
    assert!(said.contains("[outputs: 1 entry of /mnt/session/outputs left out: link"), "{said}");
    let expected = vec![
        ("deep/all".to_owned(), sha256_hex(&all_bytes())),
        ("empty".to_owned(), sha256_hex(b"")),
        ("large".to_owned(), large.clone()),
    ];
    assert_eq!(scene.stored().await, expected);
    let (before, log) = (scene.service.requests(), scene.outputs.clone());
    assert_eq!(scene.text("echo on").await, "on\n");
    assert_eq!(scene.service.requests() - before, 1, "nothing has changed");
    assert_eq!(scene.outputs, log);
    // In another machine it is all there, and may be changed and removed.
    assert!(scene.s.provider.kill(&scene.session.key).await);
    scene.text("true").await;
    assert_eq!(scene.stored().await, expected);
    let seen = scene
        .text(&format!("{ROOT}/{OUTPUTS}; sha256sum < large; rm empty; echo 1 > deep/all"))
        .await;
    assert!(seen.contains(&large), "{seen}");
    let expected = vec![("deep/all".to_owned(), sha256_hex(b"1\n")), ("large".to_owned(), large)];
    assert_eq!(scene.stored().await, expected);
    scene.text(&format!("{ROOT}; rm -r {OUTPUTS}/*")).await;
    assert_eq!(scene.stored().await, []);
    // Bytes that are lost stop nothing.
    scene.text(&format!("{ROOT}; echo 2 > {OUTPUTS}/x")).await;
    scene.blobs.lose(&scene.tenant(), &BlobRef::of(b"2\n"));
    assert!(scene.s.provider.kill(&scene.session.key).await);
    assert!(scene.text("echo on").await.ends_with("on\n"));
}

/// A fault at each request of a call that is given something and puts something out.
#[tokio::test(flavor = "multi_thread")]
async fn no_fault_loses_or_doubles_anything() {
    for fault in [
        "reply lost",
        "reset in the middle of the reply",
        "token expired",
        "internal error",
        "empty reply",
    ] {
        for spared in 0.. {
            let mut scene = Scene::new().await;
            scene.give("/data/all", &all_bytes()).await;
            scene.text(&format!("{ROOT}; echo first > {OUTPUTS}/first")).await;
            // Another machine, so that files travel both ways.
            assert!(scene.s.provider.kill(&scene.session.key).await);
            let count = scene.s.outside.inside.join("count");
            let command = format!(
                "echo ran >> {}; {ROOT}; sha256sum < data/all; echo second > {OUTPUTS}/second",
                count.display()
            );
            scene.service.inject_after(spared, fault);
            let mut order = scene.session.bash_order(&command);
            (order.given, order.outputs) = (scene.given.clone(), scene.outputs.clone());
            let mut reply = scene.session.send(&scene.s, &order).await;
            let met = scene.service.pending() == 0;
            scene.service.forget_faults();
            for _ in 0..2 {
                let whole = reply.as_ref().is_ok_and(|reply| reply.report.outputs.is_some());
                if whole {
                    break;
                }
                // As the runtime does it: the same call comes again, or the next one goes on.
                reply = scene.session.send(&scene.s, &order).await;
            }
            let reply = reply.unwrap();
            assert!(
                reply.text.contains(&sha256_hex(&all_bytes())),
                "{fault} {spared}: {}",
                reply.text
            );
            scene.outputs = reply.report.outputs.clone();
            let stored = [("first", "first\n"), ("second", "second\n")]
                .map(|(path, bytes)| (path.to_owned(), sha256_hex(bytes.as_bytes())));
            assert_eq!(scene.stored().await, stored, "{fault} {spared}");
            let ran = std::fs::read_to_string(scene.s.outside.here.join("count")).unwrap();
            assert_eq!(ran, "ran\n", "{fault} {spared}");
            if !met {
                assert!(spared > 6, "only {spared} requests were made");
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_stored_is_stored_after_the_next_call() {
    let mut scene = Scene::new().await;
    scene.text("true").await;
    // The call itself is answered; then nothing is to be had, however often it is asked for.
    scene.service.inject_after(1, "reply lost");
    scene.service.inject("reply lost");
    scene.service.inject("reply lost");
    // Long enough for the next collection to be sure that the file is as it was.
    let reply = scene.call(&format!("{ROOT}; echo 1 > {OUTPUTS}/x; sleep 2.2")).await.unwrap();
    assert_eq!((scene.service.pending(), reply.report.outputs), (0, None));
    assert!(reply.text.contains("could not be stored") && !reply.is_error, "{}", reply.text);
    scene.text("true").await;
    assert_eq!(scene.stored().await, [("x".to_owned(), sha256_hex(b"1\n"))]);
}

/// A command can do to the daemon's pieces what it likes.
#[tokio::test(flavor = "multi_thread")]
async fn other_bytes_than_were_named_are_not_stored() {
    let mut scene = Scene::new().await;
    scene.text("true").await;
    let spoil = format!(
        "p=/tmp/outputs-$PPID; {ROOT}; \
         (while :; do for f in $p/*; do echo x > $f; done; done) >/dev/null 2>&1 & \
         spoiler=$!; head -c 1000000 /dev/urandom > {OUTPUTS}/x; sleep 0.2; echo end"
    );
    let reply = scene.call(&spoil).await.unwrap();
    assert!(reply.text.starts_with("end\n"), "{}", reply.text);
    if reply.report.outputs.is_none() {
        assert!(reply.text.contains("could not be"), "{}", reply.text);
    }
    assert!(scene.stored().await.len() <= 1);
    // Left alone, the next call brings it all, whatever became of the first.
    let whole = scene.text(&format!("kill $spoiler; sha256sum < {OUTPUTS}/x")).await;
    let whole = whole.split_whitespace().next().unwrap().to_owned();
    assert_eq!(scene.stored().await, [("x".to_owned(), whole)]);
}
