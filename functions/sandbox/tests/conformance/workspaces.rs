//! Workspaces that do not fit into a message: they travel through S3.

use tailstep_runtime::ports::HandsError;
use tests_wire::hands::Session;

use crate::{
    bucket::{Bucket, Fault, Kind},
    subject_with,
};

/// Time for a transfer that is given up, and what comes of it.
const OVERHEAD_MS: u64 = 60_000;
const MAKE: &str = "head -c 4200000 /dev/urandom > big; sha256sum big";
const LOOK: &str = "sha256sum big; echo end";

#[tokio::test(flavor = "multi_thread")]
async fn only_large_workspaces_travel_apart_and_only_when_they_have_to() {
    let bucket = Bucket::start().await;
    let s = subject_with(&bucket, OVERHEAD_MS).await;
    let mut one = Session::new();
    one.text(&s, "echo small > file").await;
    assert_eq!(bucket.requests(), [Kind::Put], "a small one is in the answer");
    let made = one.text(&s, MAKE).await;
    // The small one is read for the order, what the sandbox stored is read, and becomes a blob.
    let expected = [Kind::Get, Kind::SandboxPut, Kind::Get, Kind::Copy, Kind::Delete];
    assert_eq!(bucket.requests(), expected);
    assert_eq!((bucket.count("staged/"), bucket.count("blobs/")), (0, 2));
    assert_eq!(one.text(&s, "sha256sum big").await, made);
    assert_eq!(bucket.requests(), [], "the sandbox has it still, and it did not change");
    s.provider.kill(&one.key).await;
    assert!(one.text(&s, "sha256sum big").await.ends_with(&made));
    assert_eq!(bucket.requests(), [Kind::SandboxGet]);
    assert_eq!(one.text(&s, "rm big; cat file").await, "small\n");
    assert_eq!(bucket.requests(), [Kind::Put]);
}

/// What a call comes to whose workspace meets a fault on its way in.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_fetched_is_tried_again_or_said() {
    let bucket = Bucket::start().await;
    let s = subject_with(&bucket, OVERHEAD_MS).await;
    let mut one = Session::new();
    let made = one.text(&s, MAKE).await;
    let (runs, does_not) = (true, false);
    for (fault, times, expected) in [
        (Fault::Status(503), 3, runs),
        (Fault::Status(500), 1, runs),
        (Fault::Status(429), 1, runs),
        (Fault::Cut, 2, runs),
        (Fault::Slow, 1, runs),
        (Fault::Status(503), 4, does_not),
        (Fault::Status(403), 1, does_not),
        (Fault::Other, 1, does_not),
        (Fault::Stall, 1, does_not),
    ] {
        s.provider.kill(&one.key).await;
        for _ in 0..times {
            bucket.inject(Kind::SandboxGet, fault);
        }
        let reply = one.bash(&s, LOOK).await;
        assert_eq!(bucket.pending(), 0, "{fault:?}");
        if expected == runs {
            assert!(reply.text.ends_with(&format!("{made}end\n")), "{fault:?}: {}", reply.text);
        } else {
            assert!(reply.is_error && reply.text.contains("did not run"), "{}", reply.text);
            assert!(!reply.text.contains("Signature"), "{}", reply.text);
        }
        let next = one.bash(&s, LOOK).await;
        assert!(next.text.ends_with(&format!("{made}end\n")), "{fault:?}: {}", next.text);
    }
    bucket.remove("blobs/");
    s.provider.kill(&one.key).await;
    let reply = one.bash(&s, LOOK).await;
    assert!(reply.is_error && reply.text.contains("did not run"), "{}", reply.text);
}

/// What a call comes to whose workspace meets a fault on its way out.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_stored_is_tried_again_or_said() {
    #[derive(Debug, PartialEq)]
    enum Ends {
        Kept,
        /// The model is told, and goes on with what was kept before.
        Said,
        Lost,
    }
    let bucket = Bucket::start().await;
    let s = subject_with(&bucket, OVERHEAD_MS).await;
    for (kind, fault, times, ends) in [
        (Kind::SandboxPut, Fault::Status(503), 3, Ends::Kept),
        (Kind::SandboxPut, Fault::Cut, 2, Ends::Kept),
        (Kind::SandboxPut, Fault::LoseAnswer, 1, Ends::Kept),
        (Kind::Get, Fault::Status(503), 1, Ends::Kept),
        (Kind::Copy, Fault::Status(500), 1, Ends::Kept),
        (Kind::Copy, Fault::LoseAnswer, 1, Ends::Kept),
        (Kind::Delete, Fault::Status(403), 1, Ends::Kept),
        (Kind::SandboxPut, Fault::Status(503), 4, Ends::Said),
        (Kind::SandboxPut, Fault::Status(403), 1, Ends::Said),
        (Kind::SandboxPut, Fault::Other, 1, Ends::Lost),
        (Kind::Get, Fault::Status(404), 1, Ends::Lost),
        (Kind::Get, Fault::Other, 1, Ends::Lost),
        (Kind::Get, Fault::Cut, 1, Ends::Lost),
        (Kind::Copy, Fault::Status(412), 1, Ends::Lost),
        (Kind::Copy, Fault::Status(403), 1, Ends::Lost),
    ] {
        let what = format!("{kind:?} {fault:?}");
        let mut one = Session::new();
        let order = one.bash_order(MAKE);
        for _ in 0..times {
            bucket.inject(kind, fault);
        }
        let ended = one.send(&s, &order).await;
        assert_eq!(bucket.pending(), 0, "{what}");
        let found = match &ended {
            Ok(reply) if reply.text.contains("is lost") && reply.is_error => Ends::Said,
            Ok(reply) if !reply.is_error => Ends::Kept,
            Err(HandsError::Lost { .. }) => Ends::Lost,
            other => panic!("{what}: {other:?}"),
        };
        assert_eq!(found, ends, "{what}: {ended:?}");
        assert!(!format!("{ended:?}").contains("Signature"), "{what}: {ended:?}");
        // Whatever became of it: delivered again the call does not run again, and is kept now.
        let again = one.send(&s, &order).await.unwrap();
        assert!(!again.is_error, "{what}: {}", again.text);
        s.provider.kill(&one.key).await;
        let now = one.text(&s, LOOK).await;
        let made = again.text.lines().find(|line| line.ends_with("  big")).unwrap();
        assert!(now.ends_with(&format!("{made}\nend\n")), "{what}: {now}, {made}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_do_not_see_the_urls() {
    let bucket = Bucket::start().await;
    let s = subject_with(&bucket, OVERHEAD_MS).await;
    let mut one = Session::new();
    one.text(&s, MAKE).await;
    s.provider.kill(&one.key).await;
    let reply = one
        .bash(
            &s,
            "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; \
             grep -rl X-Amz-Sig . ; for p in /proc/[0-9]*; do head -c 1 $p/mem; done 2>/dev/null",
        )
        .await;
    // The pattern itself stands in the shell's own command line.
    let shown = reply.text.replace("X-Amz-Sig .", "");
    assert!(!shown.contains("X-Amz-Sig"), "{shown}");
}
