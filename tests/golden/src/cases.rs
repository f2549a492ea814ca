//! The cases. Each is one session: what the user does, what the model answers, what the tools do.

use std::collections::BTreeMap;

use tailstep_core::{
    agent::EnvironmentKind,
    model::{Block, Broken, FailureKind, ModelAnswer, ModelFailure, Stop, Usage},
    raw::RawJson,
};

pub struct Case {
    pub name: &'static str,
    pub user: Vec<Act>,
    pub model: Vec<Result<ModelAnswer, ModelFailure>>,
    /// By a part of the input.
    pub tools: BTreeMap<&'static str, Tool>,
    pub model_calls_max: u32,
    pub hands: EnvironmentKind,
}

/// One act of the user, after which the agent works until it stops.
#[derive(Debug, Clone)]
pub enum Act {
    /// Messages in one request.
    Say(Vec<&'static str>),
    Interrupt,
    /// A worker outside answers the calls with these parts of the last answer.
    Answer(Vec<(u16, &'static str)>),
    Archive,
}

#[derive(Debug, Clone)]
pub enum Tool {
    Prints(&'static str),
    Fails(&'static str),
    /// The sandbox dies.
    IsLost,
    /// The user stops the turn while it runs.
    IsInterrupted,
    /// The user stops the turn, and the tool has just finished.
    FinishesTooLate,
    /// The user says this while it runs.
    Meanwhile(&'static str),
}

/// All cases, in order of name.
pub fn all() -> Vec<Case> {
    vec![
        archive(),
        broken_arguments(),
        failure_exhausted(),
        fenced_outcome(),
        interrupt_in_tool(),
        limit_reached(),
        message_in_turn(),
        outside_interrupt(),
        outside_tools(),
        parallel_tools(),
        pause_and_reasoning(),
        plain_turn(),
        rate_limited(),
        refusal(),
        sandbox_lost(),
    ]
}

fn case(name: &'static str) -> Case {
    Case {
        name,
        user: vec![Act::Say(vec!["Fix the failing test."])],
        model: Vec::new(),
        tools: BTreeMap::new(),
        model_calls_max: 100,
        hands: EnvironmentKind::Cloud,
    }
}

fn plain_turn() -> Case {
    Case { model: vec![says("Which one?")], ..case("plain_turn") }
}

fn parallel_tools() -> Case {
    Case {
        model: vec![
            calls("I look around.", &[("a", "ls"), ("b", "pytest"), ("c", "true")]),
            says("The test expects 4 and gets 5."),
        ],
        tools: BTreeMap::from([
            ("ls", Tool::Prints("main.py\ntest_main.py\n")),
            ("pytest", Tool::Fails("1 failed\n[exit code 1]")),
            ("true", Tool::Prints("")),
        ]),
        ..case("parallel_tools")
    }
}

fn interrupt_in_tool() -> Case {
    Case {
        user: vec![Act::Say(vec!["Run the long test."]), Act::Say(vec!["Run only the fast ones."])],
        model: vec![
            calls("Running all.", &[("a", "pytest --all"), ("b", "ls")]),
            says("As you like."),
        ],
        tools: BTreeMap::from([("pytest", Tool::IsInterrupted)]),
        ..case("interrupt_in_tool")
    }
}

fn fenced_outcome() -> Case {
    Case {
        model: vec![calls("Running it.", &[("a", "pytest")])],
        tools: BTreeMap::from([("pytest", Tool::FinishesTooLate)]),
        ..case("fenced_outcome")
    }
}

fn outside_tools() -> Case {
    Case {
        user: vec![
            Act::Say(vec!["Fix the failing test."]),
            Act::Answer(vec![(3, "1 failed")]),
            Act::Say(vec!["Take your time."]),
            Act::Answer(vec![(4, ""), (3, "late"), (2, "main.py")]),
        ],
        model: vec![
            calls("I look around.", &[("a", "ls"), ("b", "pytest"), ("c", "true")]),
            says("The test expects 4 and gets 5."),
        ],
        hands: EnvironmentKind::SelfHosted,
        ..case("outside_tools")
    }
}

fn outside_interrupt() -> Case {
    Case {
        user: vec![
            Act::Say(vec!["Run the long test."]),
            Act::Answer(vec![(3, "main.py")]),
            Act::Interrupt,
            Act::Answer(vec![(2, "too late")]),
            Act::Say(vec!["Run only the fast ones."]),
        ],
        model: vec![
            calls("Running all.", &[("a", "pytest --all"), ("b", "ls")]),
            says("As you like."),
        ],
        hands: EnvironmentKind::SelfHosted,
        ..case("outside_interrupt")
    }
}

fn message_in_turn() -> Case {
    Case {
        model: vec![calls("Running it.", &[("a", "pytest")]), says("Will do.")],
        tools: BTreeMap::from([("pytest", Tool::Meanwhile("Also update the changelog."))]),
        ..case("message_in_turn")
    }
}

fn refusal() -> Case {
    let declined = Stop::Refusal {
        category: Some("cyber".to_owned()),
        explanation: Some("this looks like an attack".to_owned()),
    };
    Case {
        user: vec![Act::Say(vec!["Break in."]), Act::Say(vec!["Sorry. Say hello."])],
        model: vec![answer(vec![text("I could")], declined), says("Hello.")],
        ..case("refusal")
    }
}

fn broken_arguments() -> Case {
    let broken = |id: &str, reason| Block::BrokenToolUse {
        id: id.to_owned(),
        name: "bash".to_owned(),
        raw: "{\"command\": \"echo".to_owned(),
        reason,
    };
    let unknown = Block::ToolUse {
        id: "c".to_owned(),
        name: "teleport".to_owned(),
        input: RawJson::empty_object(),
    };
    Case {
        model: vec![
            answer(vec![text("First try."), broken("a", Broken::Cut)], Stop::MaxTokens),
            answer(vec![broken("b", Broken::Malformed), unknown], Stop::ToolUse),
            calls("Third try.", &[("d", "echo")]),
            says("Done."),
        ],
        ..case("broken_arguments")
    }
}

fn limit_reached() -> Case {
    Case {
        model: vec![
            calls("Once.", &[("a", "make")]),
            calls("Twice.", &[("b", "make")]),
            calls("And again.", &[("c", "make")]),
        ],
        model_calls_max: 3,
        ..case("limit_reached")
    }
}

fn failure_exhausted() -> Case {
    let overloaded = || failure(FailureKind::Overloaded, "the provider is overloaded", None);
    Case { model: (0..8).map(|_| overloaded()).collect(), ..case("failure_exhausted") }
}

fn rate_limited() -> Case {
    Case {
        model: vec![
            failure(FailureKind::RateLimited, "too many requests", Some(30_000)),
            says("Here I am."),
        ],
        ..case("rate_limited")
    }
}

fn sandbox_lost() -> Case {
    Case {
        model: vec![calls("Running it.", &[("a", "pytest")]), says("The sandbox is gone.")],
        tools: BTreeMap::from([("pytest", Tool::IsLost)]),
        ..case("sandbox_lost")
    }
}

fn pause_and_reasoning() -> Case {
    let signed = r#"{"type":"thinking","thinking":"hm","signature":"c2ln","n":1.00}"#;
    let opaque = Block::Opaque {
        dialect: "anthropic".to_owned(),
        raw: RawJson::parse(signed).unwrap_or_else(|_| RawJson::empty_object()),
    };
    Case {
        model: vec![
            answer(vec![opaque, text("Let me think.")], Stop::Pause),
            says("Here is the answer."),
        ],
        ..case("pause_and_reasoning")
    }
}

fn archive() -> Case {
    Case {
        user: vec![Act::Say(vec!["Hello.", "Are you there?"]), Act::Interrupt, Act::Archive],
        model: vec![says("Yes.")],
        ..case("archive")
    }
}

fn text(text: &str) -> Block {
    Block::Text { text: text.to_owned() }
}

fn says(words: &str) -> Result<ModelAnswer, ModelFailure> {
    answer(vec![text(words)], Stop::EndTurn)
}

/// An answer with shell commands; each has the id that the provider gave it.
fn calls(words: &str, commands: &[(&str, &str)]) -> Result<ModelAnswer, ModelFailure> {
    let mut blocks = vec![text(words)];
    for (id, command) in commands {
        // The spaces are the model's.
        let input = RawJson::parse(&format!(r#"{{"command" :  "{command}"}}"#));
        blocks.push(Block::ToolUse {
            id: (*id).to_owned(),
            name: "bash".to_owned(),
            input: input.unwrap_or_else(|_| RawJson::empty_object()),
        });
    }
    answer(blocks, Stop::ToolUse)
}

fn answer(blocks: Vec<Block>, stop: Stop) -> Result<ModelAnswer, ModelFailure> {
    let usage = Usage { input_tokens: 100, output_tokens: 10, ..Usage::default() };
    Ok(ModelAnswer { blocks, stop, usage })
}

fn failure(
    kind: FailureKind,
    message: &str,
    retry_after_ms: Option<u64>,
) -> Result<ModelAnswer, ModelFailure> {
    Err(ModelFailure { kind, message: message.to_owned(), retry_after_ms, usage: Usage::default() })
}
