//! Sessions whose calls are run by workers outside.

use super::*;

#[track_caller]
fn check(log: &str, expect: &str) {
    let script = Script::play_outside(log);
    let action = decide(&script.session, 50_000, &Limits::default());
    assert_eq!(show(&action), expect, "after: {log}");
}

#[track_caller]
fn check_refused(log: &str, next: &str) {
    let mut script = Script::play_outside(log);
    let before = script.session.clone();
    assert!(script.try_push(next).is_err(), "accepted: {log}; {next}");
    assert_eq!(script.session, before, "a refusal changed the session");
}

#[track_caller]
fn check_context(log: &str, expect: &str) {
    let script = Script::play_outside(log);
    let request = Context::of(&script.records).request(&Limits::default()).unwrap();
    assert_eq!(show_messages(&request.messages), expect, "after: {log}");
}

const ASKED: &str = "say hi; ask; answer bash read";

#[test]
fn calls_are_asked_for_once_and_then_waited_for() {
    check(ASKED, "record require 4.1 4.2");
    check(&format!("{ASKED}; require"), "rest");
    let script = Script::play_outside(&format!("{ASKED}; require"));
    assert_eq!(script.session.awaits().len(), 2);
    assert!(script.session.is_busy());
    assert_eq!(due_at_ms(&script.session, 50_000, &Limits::default()), None);
    check_refused(&format!("{ASKED}; require"), "require");
    check_refused("say hi; ask; answer hello", "require");
    check_refused(ASKED, "run");
    // A message waits until the calls are answered.
    check(&format!("{ASKED}; require; say more"), "rest");
    check(
        &format!("{ASKED}; require; say more; result 1 a; require; result 2 b"),
        "model #1 inputs 1",
    );
    check("say hi; ask; answer hello", "record completed");
}

#[test]
fn answers_come_in_any_order_and_once() {
    let required = format!("{ASKED}; require");
    check(&format!("{required}; result 2 b"), "record require 4.1");
    check(&format!("{required}; result 2 b; require"), "rest");
    check(&format!("{required}; result 2 b; require; result 1 a"), "model #1 inputs 0");
    check(&format!("{required}; result 2 b + result 1 a"), "model #1 inputs 0");
    // Sooner than anybody was asked: the stream shows calls before the session rests.
    check(&format!("{ASKED}; result 1 a"), "record require 4.2");
    check_refused(&format!("{required}; result 1 a"), "result 1 again");
    check_refused(&format!("{required}; result 1 a; require"), "result 1 again");
    check_refused(&required, "result 3 nothing");
    check_refused(&required, "ran ok");
    check_refused("say hi; ask", "result 1 early");
    check_refused("say hi; ask; answer hello; end", "result 1 late");
    check_context(
        &format!("{required}; result 2 b; require; say x; result 1 a; ask"),
        r#"U[hi] A[bash{"command": 1.0}|read{"command": 1.0}] U[<a>|<b>|x]"#,
    );
    check_context(
        &format!("{required}; result 2; require; result 1; ask"),
        r#"U[hi] A[bash{"command": 1.0}|read{"command": 1.0}] U[<(no output)>|<(no output)>]"#,
    );
}

#[test]
fn calls_that_cannot_run_are_answered_by_us() {
    check("say hi; ask; answer bash nope", "record refused");
    check_refused("say hi; ask; answer bash nope", "require");
    check_refused("say hi; ask; answer bash nope", "result 2 x");
    check_refused("say hi; ask; answer bash !cut", "result 2 x");
    let script = Script::play_outside("say hi; ask");
    let answer = script.event("answer bash !bad nope read");
    let (record, next) =
        conclude(&script.session, vec![answer], 5_000, &Limits::default()).unwrap();
    let shown: Vec<String> = record.events.iter().skip(1).map(show_event).collect();
    assert_eq!(shown, ["refused", "refused", "require 4.1 4.4"]);
    assert_eq!(show(&decide(&next, 5_000, &Limits::default())), "rest");
}

#[test]
fn an_interrupt_abandons_what_is_waited_for() {
    let required = format!("{ASKED}; require");
    check(&format!("{required}; interrupt"), "record cancelled + cancelled + interrupted");
    check(&format!("{required}; result 2 b; require; interrupt"), "record cancelled + interrupted");
    check_refused(&format!("{required}; interrupt"), "require");
    let script = Script::play_outside(&required);
    let (_, stopped) =
        conclude(&script.session, vec![script.event("interrupt")], 9_000, &Limits::default())
            .unwrap();
    let late = Record::new(stopped.seq + 1, 9_000, vec![script.event("result 1 late")]);
    assert!(stopped.after(&late).is_err());
    assert_eq!(stopped.turn(), None);
}

#[test]
fn a_session_that_waits_can_be_archived() {
    check(&format!("{ASKED}; require; archive"), "rest");
    check_refused(ASKED, "archive");
    check_refused("say hi; ask", "archive");
    check_refused(&format!("{ASKED}; require; archive"), "result 1 late");
}

#[test]
fn nobody_outside_answers_where_the_deployment_has_hands() {
    let mut script = Script::play(ASKED);
    for word in ["result 1 x", "require"] {
        assert!(script.try_push(word).is_err(), "{word}");
    }
}
