//! Log → action, as tables. A log is written in words, one record a line part (`;` between records,
//! `+` between events of one record); see [`Script::event`] for the words.

use std::collections::BTreeMap;

use super::*;
use crate::{
    agent::{AgentSpec, EnvironmentKind, EnvironmentSpec, ModelSpec, ToolEntry},
    context::Context,
    event::{Created, EndReason, Ended, Fenced, Input, ModelAnswered, ModelFailed, Received},
    ids::Position,
    model::{Block, FailureKind, Message, ModelAnswer, ModelFailure, Part, Role, Stop, Usage},
    raw::RawJson,
};

/// Builds records from words, each checked by `apply`.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) session: Session,
    pub(crate) records: Vec<Record>,
}

impl Script {
    pub(crate) fn play(text: &str) -> Self {
        Self::play_on("created", text)
    }

    /// As [`Self::play`], where others run the calls.
    pub(crate) fn play_outside(text: &str) -> Self {
        Self::play_on("created outside", text)
    }

    fn play_on(created: &str, text: &str) -> Self {
        let mut script = Self::default();
        script.try_push(created).unwrap();
        for line in text.split(';').map(str::trim).filter(|line| !line.is_empty()) {
            script.try_push(line).unwrap_or_else(|refused| panic!("{line}: {refused}"));
        }
        script
    }

    pub(crate) fn try_push(&mut self, line: &str) -> Result<(), Refused> {
        let events = line.split('+').map(|word| self.event(word.trim())).collect();
        let seq = self.session.seq + 1;
        let record = Record::new(seq, seq * 1_000, events);
        self.session.apply(&record)?;
        self.records.push(record);
        Ok(())
    }

    fn intent(&self) -> Seq {
        self.session.open().map_or(self.session.seq, |open| open.intent)
    }

    fn next_call(&self) -> Position {
        let turn = self.session.turn().and_then(|turn| turn.calls.first());
        turn.map_or(Position::START, |call| call.call)
    }

    fn pending(&self) -> Vec<Position> {
        let calls = self.session.turn().map(|turn| turn.calls.as_slice()).unwrap_or_default();
        calls.iter().map(|pending| pending.call).collect()
    }

    fn last_answer(&self) -> Position {
        let answers = self.records.iter().rev().find_map(|record| {
            let is_answer = |event: &Event| matches!(event, Event::ModelAnswered(_));
            let index = record.events.iter().position(is_answer)?;
            Some(Position::event(record.seq, u16::try_from(index).unwrap()))
        });
        answers.unwrap_or(Position::START)
    }

    fn event(&self, word: &str) -> Event {
        let (verb, rest) = word.split_once(' ').unwrap_or((word, ""));
        let number = rest.parse::<u64>().ok();
        match verb {
            "created" => Event::Created(Box::new(created(rest))),
            "say" => received(Input::Message { content: vec![Content::text(rest)] }),
            "interrupt" => received(Input::Interrupt),
            // `result PART [TEXT]`: what somebody outside says about a call of the last answer.
            "result" => {
                let (part, text) = rest.split_once(' ').unwrap_or((rest, ""));
                let part = part.parse().unwrap();
                received(Input::ToolResult {
                    call: Position { part, ..self.last_answer() },
                    content: vec![Content::text(text)],
                    is_error: false,
                })
            }
            "require" => Event::ActionRequired(ActionRequired { calls: self.pending() }),
            "ask" => Event::ModelStarted(ModelStarted {
                attempt: u32::try_from(number.unwrap_or(1)).unwrap(),
                inputs: self.session.queued.clone(),
            }),
            "answer" => self.answered(self.intent(), rest),
            "stale" => self.answered(number.unwrap(), "late"),
            "fail" => Event::ModelFailed(ModelFailed {
                intent: self.intent(),
                failure: failure(),
                retry_at_ms: number,
            }),
            "run" => Event::ToolStarted(ToolStarted {
                call: self.next_call(),
                attempt: u32::try_from(number.unwrap_or(1)).unwrap(),
            }),
            "ran" => self.finished(Some(self.intent()), Origin::Ran, rest),
            "refused" => self.finished(None, Origin::Refused, rest),
            "cancelled" => self.finished(None, Origin::Cancelled, rest),
            "unknown" => self.finished(None, Origin::Unknown, rest),
            "end" => {
                let turn = self.session.turn().unwrap();
                let reason = turn.finish.clone().unwrap_or_else(|| TurnEnd::Interrupted {
                    input: turn.interrupt.unwrap_or(Position::START),
                });
                Event::TurnEnded(TurnEnded { reason })
            }
            "complete" => Event::TurnEnded(TurnEnded { reason: TurnEnd::Completed }),
            "fenced" => Event::Fenced(Fenced {
                intent: number.unwrap(),
                usage: usage(),
                outcome_sha256: String::new(),
            }),
            "archive" => Event::Ended(Ended { reason: EndReason::Archived }),
            "delete" => Event::Ended(Ended { reason: EndReason::Deleted }),
            other => panic!("unknown word {other}"),
        }
    }

    /// `answer WORD…`: `bash` and other names are calls, `!cut` and `!bad` broken calls, `.pause`,
    /// `.refusal`, `.length` and `.overflow` stop reasons; anything else is text.
    fn answered(&self, intent: Seq, words: &str) -> Event {
        let mut blocks = Vec::new();
        let mut stop = None;
        for (index, word) in words.split_whitespace().enumerate() {
            let id = format!("toolu_{}_{index}", self.session.seq);
            let broken = |reason| Block::BrokenToolUse {
                id: id.clone(),
                name: "bash".to_owned(),
                raw: "{\"comm".to_owned(),
                reason,
            };
            match word {
                ".pause" => stop = Some(Stop::Pause),
                ".refusal" => stop = Some(Stop::Refusal { category: None, explanation: None }),
                ".length" => stop = Some(Stop::MaxTokens),
                ".overflow" => stop = Some(Stop::ContextExceeded),
                "!cut" => blocks.push(broken(Broken::Cut)),
                "!bad" => blocks.push(broken(Broken::Malformed)),
                "bash" | "read" | "nope" => blocks.push(Block::ToolUse {
                    id,
                    name: word.to_owned(),
                    input: RawJson::parse(r#"{"command": 1.0}"#).unwrap(),
                }),
                "_" => blocks.push(Block::Text { text: "  ".to_owned() }),
                text => blocks.push(Block::Text { text: text.to_owned() }),
            }
        }
        let stop = stop.unwrap_or(Stop::EndTurn);
        Event::ModelAnswered(ModelAnswered {
            intent,
            answer: ModelAnswer { blocks, stop, usage: usage() },
        })
    }

    fn finished(&self, intent: Option<Seq>, origin: Origin, text: &str) -> Event {
        Event::ToolFinished(ToolFinished {
            call: self.next_call(),
            intent,
            result: ToolResult {
                content: vec![Content::text(text)],
                is_error: false,
                origin,
                workspace: None,
                report: HandsReport::default(),
            },
        })
    }
}

fn created(kind: &str) -> Created {
    let kind = match kind {
        "outside" => EnvironmentKind::SelfHosted,
        _ => EnvironmentKind::Cloud,
    };
    Created {
        agent: AgentSpec {
            id: "agent_1".to_owned(),
            version: 1,
            name: "tester".to_owned(),
            description: None,
            model: ModelSpec { id: "scripted/echo".to_owned(), speed: None, effort: None },
            system: Some("Be brief.".to_owned()),
            tools: vec![ToolEntry::Toolset {
                default_enabled: false,
                enabled: BTreeMap::from([("bash".to_owned(), true), ("read".to_owned(), true)]),
            }],
            skills: Vec::new(),
        },
        environment: EnvironmentSpec { kind, ..EnvironmentSpec::cloud("env_1") },
        title: None,
        metadata: BTreeMap::new(),
        resources: Vec::new(),
    }
}

fn received(input: Input) -> Event {
    Event::Received(Received { input, request: None })
}

fn usage() -> Usage {
    Usage { input_tokens: 10, output_tokens: 2, ..Usage::default() }
}

fn failure() -> ModelFailure {
    ModelFailure {
        kind: FailureKind::Overloaded,
        message: "busy".to_owned(),
        retry_after_ms: None,
        usage: Usage::default(),
    }
}

fn show(action: &Action) -> String {
    match action {
        Action::Rest => "rest".to_owned(),
        Action::Wait { until_ms } => format!("wait {until_ms}"),
        Action::Watch(open) => format!("watch {}", open.intent),
        Action::Record(events) => {
            let shown: Vec<String> = events.iter().map(show_event).collect();
            format!("record {}", shown.join(" + "))
        }
        Action::Start { intent, .. } => show_event(intent),
    }
}

fn show_event(event: &Event) -> String {
    match event {
        Event::ModelStarted(started) => {
            format!("model #{} inputs {}", started.attempt, started.inputs.len())
        }
        Event::ToolStarted(started) => {
            format!("tool {}.{} #{}", started.call.seq, started.call.part, started.attempt)
        }
        Event::ToolFinished(finished) => format!("{:?}", finished.result.origin).to_lowercase(),
        Event::TurnEnded(ended) => match &ended.reason {
            TurnEnd::Completed => "completed".to_owned(),
            TurnEnd::Interrupted { .. } => "interrupted".to_owned(),
            TurnEnd::Refused { .. } => "declined".to_owned(),
            TurnEnd::Failed { .. } => "failed".to_owned(),
            TurnEnd::Limit { limit } => format!("limit {limit:?}"),
        },
        Event::ActionRequired(required) => {
            let calls = required.calls.iter().map(|call| format!("{}.{}", call.seq, call.part));
            format!("require {}", calls.collect::<Vec<_>>().join(" "))
        }
        Event::Created(_)
        | Event::Received(_)
        | Event::ModelAnswered(_)
        | Event::ModelFailed(_)
        | Event::Fenced(_)
        | Event::Ended(_) => "unexpected".to_owned(),
    }
}

#[track_caller]
fn check(log: &str, expect: &str) {
    let script = Script::play(log);
    assert_eq!(show(&decide(&script.session, 50_000, &Limits::default())), expect, "after: {log}");
}

#[track_caller]
fn check_refused(log: &str, next: &str) {
    let mut script = Script::play(log);
    let before = script.session.clone();
    assert!(script.try_push(next).is_err(), "accepted: {log}; {next}");
    assert_eq!(script.session, before, "a refusal changed the session");
}

#[test]
fn a_turn_runs_its_course() {
    check("", "rest");
    check("say hi", "model #1 inputs 1");
    check("say hi; say there", "model #1 inputs 2");
    check("say hi; ask", "watch 3");
    check("say hi; ask; answer hello", "record completed");
    check("say hi; ask; answer hello; end", "rest");
    check("say hi; ask; answer bash", "tool 4.1 #1");
    check("say hi; ask; answer look bash read", "tool 4.2 #1");
    check("say hi; ask; answer bash; run", "watch 5");
    check("say hi; ask; answer bash; run; ran ok", "model #1 inputs 0");
    check("say hi; ask; answer bash read; run; ran ok", "tool 4.2 #1");
    check("say hi; ask; answer", "record completed");
    check("say hi; ask; answer .length", "record completed");
}

#[test]
fn people_may_speak_at_any_time() {
    check("say hi; ask; say more; answer hello", "model #1 inputs 1");
    check("say hi; ask; answer bash; run; say more; ran ok", "model #1 inputs 1");
    check("say hi; ask; answer bash; say more", "tool 4.1 #1");
    check_refused("say hi; ask; say more; answer hello", "complete");
    check_refused("say hi; ask; answer hello; say more", "complete");
}

#[test]
fn an_interrupt_answers_every_call_and_ends_the_turn() {
    check("interrupt", "rest");
    check("say hi; ask; interrupt", "record interrupted");
    check(
        "say hi; ask; answer bash read; run; interrupt",
        "record cancelled + cancelled + interrupted",
    );
    check("say hi; ask; interrupt; end", "rest");
    check("say hi; ask; interrupt; end; say next", "model #1 inputs 1");
    check_refused("say hi; ask; interrupt", "ask 2");
    check_refused("say hi; ask; answer bash; run", "cancelled");
}

#[test]
fn failures_are_tried_again_and_end_by_name() {
    check("say hi; ask; fail 60000", "wait 60000");
    check("say hi; ask; fail 40000", "model #2 inputs 0");
    check("say hi; ask; fail 40000; say more", "model #2 inputs 1");
    check("say hi; ask; fail", "record failed");
    check("say hi; ask; fail; end; say again", "model #1 inputs 1");
    check("say hi; ask; answer .overflow", "record failed");
    check("say hi; ask; answer .refusal", "record declined");
    check("say hi; ask; answer bash .refusal", "record declined");
}

#[test]
fn calls_that_cannot_run_are_answered_without_running() {
    check("say hi; ask; answer nope", "record refused");
    check("say hi; ask; answer !cut", "record refused");
    check("say hi; ask; answer !bad bash; refused why", "tool 4.2 #1");
    check_refused("say hi; ask; answer nope", "run");
    check_refused("say hi; ask; answer !cut", "run");
    let rounds = "; ask; answer nope; refused x".repeat(5);
    check(&format!("say hi{rounds}"), "record limit RefusedCalls");
    let rounds = "; ask; answer .pause".repeat(10);
    check(&format!("say hi{rounds}"), "record limit Pauses");
}

#[test]
fn only_the_open_attempt_may_report() {
    check_refused("say hi; ask; ask 2", "stale 3");
    check_refused("say hi; ask; answer hello; end", "stale 3");
    check_refused("say hi; ask", "ask 1");
    check_refused("say hi; ask", "ask 3");
    check_refused("say hi; ask; answer bash; run; ran ok", "ran again");
    check_refused("say hi; ask; answer bash; run", "run 1");
    check_refused("say hi; ask; answer bash", "ask");
    check_refused("", "ask");
    check("say hi; ask; ask 2; fenced 3", "watch 4");
    check_refused("say hi; ask", "fenced 3");
    check_refused("say hi; ask", "fenced 9");
}

#[test]
fn the_end_is_the_end() {
    check("archive", "rest");
    check_refused("archive", "say hi");
    check_refused("archive", "archive");
    check_refused("say hi; ask", "archive");
    check("archive; delete", "rest");
    check_refused("delete", "delete");
    check_refused("", "created");
}

#[track_caller]
fn check_given_up(log: &str, intent: Seq, expect: &str) {
    let script = Script::play(log);
    let action = given_up(&script.session, intent, 50_000, &Limits::default());
    assert_eq!(show(&action), expect, "after: {log}");
}

#[test]
fn a_dead_worker_costs_one_attempt() {
    check_given_up("say hi; ask", 3, "model #2 inputs 0");
    check_given_up("say hi; ask; say more", 3, "model #2 inputs 1");
    check_given_up("say hi; ask; answer bash; run", 5, "tool 4.1 #2");
    // The news is old: the attempt has reported, or another one is open.
    check_given_up("say hi; ask; answer bash", 3, "tool 4.1 #1");
    check_given_up("say hi; ask; ask 2", 3, "watch 4");
    let deaths: String = (2..=10).map(|n| format!("; ask {n}")).collect();
    check_given_up(&format!("say hi; ask{deaths}"), 12, "record limit LostAttempts");
    let deaths: String = (2..=10).map(|n| format!("; run {n}")).collect();
    check_given_up(&format!("say hi; ask; answer bash; run{deaths}"), 14, "record unknown");
    // Recorded failures are not deaths.
    check_given_up("say hi; ask; fail 1; ask 2", 5, "model #3 inputs 0");
}

#[test]
fn possible_charges_are_counted_until_they_are_known() {
    let script = Script::play("say hi; ask; ask 2; answer hello; end");
    assert_eq!(script.session.possible_charges, 1);
    assert_eq!(script.session.usage, usage());
    let script = Script::play("say hi; ask; ask 2; answer hello; end; fenced 3");
    assert_eq!(script.session.possible_charges, 0);
    assert_eq!(script.session.usage.input_tokens, 20);
}

#[test]
fn a_conclusion_holds_what_follows_from_the_outcome() {
    let script = Script::play("say hi; ask");
    let conclude_with = |script: &Script, word: &str| {
        let event = script.event(word);
        let (record, session) =
            conclude(&script.session, vec![event], 5_000, &Limits::default()).unwrap();
        (record.events.len(), show(&decide(&session, 5_000, &Limits::default())))
    };
    assert_eq!(conclude_with(&script, "answer hello"), (2, "rest".to_owned()));
    assert_eq!(conclude_with(&script, "answer nope !bad"), (3, "model #1 inputs 0".to_owned()));
    assert_eq!(conclude_with(&script, "answer bash"), (1, "tool 4.1 #1".to_owned()));
    assert_eq!(conclude_with(&script, "interrupt"), (2, "rest".to_owned()));
    let script = Script::play("say hi; ask; say more");
    assert_eq!(conclude_with(&script, "answer hello"), (1, "model #1 inputs 1".to_owned()));
}

fn show_messages(messages: &[Message]) -> String {
    let shown: Vec<String> = messages
        .iter()
        .map(|message| {
            let parts: Vec<String> = message
                .parts
                .iter()
                .map(|part| match part {
                    Part::Content(Content::Text { text }) => text.clone(),
                    Part::Content(_) => "media".to_owned(),
                    Part::ToolUse { name, input, .. } => format!("{name}{}", input.as_str()),
                    Part::ToolResult { content, .. } => {
                        format!("<{}>", crate::content::text_of(content))
                    }
                    Part::Opaque { .. } => "opaque".to_owned(),
                })
                .collect();
            let role = match message.role {
                Role::User => "U",
                Role::Assistant => "A",
            };
            format!("{role}[{}]", parts.join("|"))
        })
        .collect();
    shown.join(" ")
}

#[track_caller]
fn check_context(log: &str, expect: &str) {
    let script = Script::play(log);
    let request = Context::of(&script.records).request(&Limits::default()).unwrap();
    assert_eq!(show_messages(&request.messages), expect, "after: {log}");
}

#[test]
fn the_model_is_shown_a_valid_conversation() {
    check_context("say hi; ask", "U[hi]");
    check_context("say hi; say there; ask", "U[hi|there]");
    // What nobody took up yet is not shown.
    check_context("say hi; ask; say later", "U[hi]");
    check_context(
        "say hi; ask; answer on bash read; run; ran a; run; ran b; say more; ask",
        r#"U[hi] A[on|bash{"command": 1.0}|read{"command": 1.0}] U[<a>|<b>|more]"#,
    );
    check_context(
        "say hi; ask; answer bash; run; ran; ask",
        r#"U[hi] A[bash{"command": 1.0}] U[<(no output)>]"#,
    );
    check_context("say hi; ask; answer !bad; refused no; ask", "U[hi] A[bash{}] U[<no>]");
    check_context("say hi; ask; answer _; end; say more; ask", "U[hi|more]");
    check_context("say hi; ask; answer never .refusal; end; say more; ask", "U[hi|more]");
    check_context("say hi; ask; fail 1; say more; ask 2", "U[hi|more]");
    check_context(
        "say hi; ask; ask 2; answer hello; end; fenced 3; say x; ask",
        "U[hi] A[hello] U[x]",
    );
    check_context("say hi; ask; interrupt; end; say more; ask", "U[hi|more]");
}

mod laws;
mod outside;

#[test]
fn a_request_is_accepted_once_and_in_one_record() {
    let said = |request: &str| {
        let input = Input::Message { content: vec![Content::text("hello")] };
        Event::Received(Received { input, request: Some(request.to_owned()) })
    };
    let mut session = Script::play("").session;
    let mut push = |events: Vec<Event>| {
        let seq = session.seq + 1;
        session.apply(&Record::new(seq, seq, events)).map(|()| session.queued.len())
    };
    assert_eq!(push(vec![said("a"), said("a")]), Ok(2), "two inputs of one request");
    assert_eq!(push(vec![said("b")]), Ok(3));
    for again in ["a", "b"] {
        let refused = push(vec![said(again)]).unwrap_err();
        assert_eq!((refused.event, refused.why), ("received", "the request was accepted before"));
    }
    assert_eq!(push(vec![said("c")]), Ok(4));
}
