//! The model of the simulation: a function of the request and of nothing else, so that a faulty run
//! and an undisturbed one must end in the same conversation.
//!
//! A user's message carries the script of its turn: a name, and one letter a round (see [`Round`]).

use tailstep_core::{
    content::Content,
    model::{Block, Broken, Message, ModelAnswer, ModelRequest, Part, Role, Stop, Usage},
    raw::RawJson,
};

/// What the model does in one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// `E`: says something and stops.
    End,
    /// `1` to `3`: that many calls.
    Calls(u16),
    /// `S`: a call that takes long.
    SlowCall,
    /// `B`: arguments that are not JSON.
    Broken,
    /// `C`: arguments cut off by the output limit.
    Cut,
    /// `U`: a tool that does not exist.
    UnknownTool,
    /// `Z`: a good call, a broken one and an unknown one.
    Mixed,
    /// `O`: a signed block, and a call.
    Opaque,
    /// `P`: the provider pauses the turn.
    Pause,
    /// `R`: declines.
    Refuse,
    /// `X`: the text is cut off by the output limit.
    CutText,
    /// `Y`: a stop reason that nobody knows.
    Other,
    /// `W`: the conversation is too long.
    TooLong,
}

impl Round {
    fn of(letter: char) -> Self {
        match letter {
            '1' => Self::Calls(1),
            '2' => Self::Calls(2),
            '3' => Self::Calls(3),
            'S' => Self::SlowCall,
            // `L` breaks its calls for ever, until a limit ends the turn.
            'B' | 'L' => Self::Broken,
            'C' => Self::Cut,
            'U' => Self::UnknownTool,
            'Z' => Self::Mixed,
            'O' => Self::Opaque,
            // `Q` pauses for ever.
            'P' | 'Q' => Self::Pause,
            'R' => Self::Refuse,
            'X' => Self::CutText,
            'Y' => Self::Other,
            'W' => Self::TooLong,
            _ => Self::End,
        }
    }
}

/// The dialect of the signed blocks.
const DIALECT: &str = "sim";

/// Marks a call whose tool takes longer than a lease.
pub const SLOW: &str = "slow";

/// The answer to `request`, without its usage.
pub fn answer(request: &ModelRequest) -> ModelAnswer {
    let (name, round, number) = place(&request.messages);
    let mut blocks = vec![Block::Text { text: format!("{name} round {number}") }];
    let id = |k: u16| format!("call_{name}_{number}_{k}");
    let call = |k: u16, word: &str| Block::ToolUse {
        id: id(k),
        name: "bash".to_owned(),
        input: arguments(&format!("{word} {name} {number} {k}")),
    };
    let broken = |k: u16, reason| Block::BrokenToolUse {
        id: id(k),
        name: "bash".to_owned(),
        raw: "{\"command\": ".to_owned(),
        reason,
    };
    let unknown =
        |k: u16| Block::ToolUse { id: id(k), name: "teleport".to_owned(), input: arguments("go") };
    let stop = match round {
        Round::End => Stop::EndTurn,
        Round::Calls(n) => {
            blocks.extend((0..n).map(|k| call(k, "echo")));
            Stop::ToolUse
        }
        Round::SlowCall => {
            blocks.push(call(0, SLOW));
            Stop::ToolUse
        }
        Round::Broken => {
            blocks.push(broken(0, Broken::Malformed));
            Stop::ToolUse
        }
        Round::Cut => {
            blocks.push(broken(0, Broken::Cut));
            Stop::MaxTokens
        }
        Round::UnknownTool => {
            blocks.push(unknown(0));
            Stop::ToolUse
        }
        Round::Mixed => {
            blocks.extend([broken(0, Broken::Malformed), call(1, "echo"), unknown(2)]);
            Stop::ToolUse
        }
        Round::Opaque => {
            let raw = RawJson::parse(
                r#"{"type":"thinking","z":1.0,"a":"sig==","n":10000000000000000000000}"#,
            );
            blocks.insert(0, opaque(raw.unwrap_or_else(|_| RawJson::empty_object())));
            blocks.push(Block::Text { text: " \n".to_owned() });
            blocks.push(call(0, "echo"));
            Stop::ToolUse
        }
        Round::Pause => Stop::Pause,
        Round::Refuse => Stop::Refusal { category: Some("sim".to_owned()), explanation: None },
        Round::CutText => Stop::MaxTokens,
        Round::Other => Stop::Other { reason: "moon".to_owned() },
        Round::TooLong => Stop::ContextExceeded,
    };
    ModelAnswer { blocks, stop, usage: Usage::default() }
}

fn opaque(raw: RawJson) -> Block {
    Block::Opaque { dialect: DIALECT.to_owned(), raw }
}

/// Arguments whose bytes do not survive a parse: order, spaces and digits have to be kept.
fn arguments(command: &str) -> RawJson {
    let text = format!(r#"{{"command": "{command}","b":1.00,"a":123456789012345678901234567890}}"#);
    RawJson::parse(&text).unwrap_or_else(|_| RawJson::empty_object())
}

/// The name of the last user message, the round that its script has reached, and its number.
fn place(messages: &[Message]) -> (String, Round, usize) {
    let mut script = String::new();
    let mut number = 0;
    for message in messages {
        for part in &message.parts {
            let Part::Content(Content::Text { text }) = part else { continue };
            match message.role {
                Role::User => {
                    script.clone_from(text);
                    number = 0;
                }
                // Every answer has exactly one text block that is not blank.
                Role::Assistant => number += 1,
            }
        }
    }
    let (name, letters) = script.split_once(' ').unwrap_or((&script, ""));
    let forever = letters.chars().last().filter(|last| matches!(last, 'L' | 'Q'));
    let letter = letters.chars().nth(number).or(forever).unwrap_or('E');
    (name.to_owned(), Round::of(letter), number)
}

/// What the tool of the simulation prints for these arguments.
pub fn output(input: &RawJson) -> String {
    format!("done: {}", input.as_str())
}
