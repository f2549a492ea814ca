//! A model that is none: deterministic answers without network, key or cost, for demos, tests and
//! benchmarks. It is labelled as what it is wherever it shows.
//!
//! The same request always gets the same answer: nothing is remembered between calls, so a call made
//! again after a crash changes nothing. `scripted/echo` understands a few plain requests ([`echo`]),
//! `scripted/FILE` plays a script ([`script`]).

mod echo;
mod script;

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use tailstep_core::{
    content::Content,
    model::{Block, Message, ModelAnswer, ModelFailure, ModelRequest, Part, Role, Usage},
};

use crate::failure::rejected;
use script::Script;

/// The name of the built-in script.
pub const ECHO: &str = "echo";

/// The scripted provider. Scripts are read from the folder it is given, and again when they change.
#[derive(Debug, Default)]
pub struct Scripted {
    root: Option<PathBuf>,
    read: Mutex<BTreeMap<PathBuf, Read>>,
}

/// A script as it was when it was last read.
#[derive(Debug, Clone)]
struct Read {
    changed: Option<SystemTime>,
    bytes: u64,
    script: Arc<Script>,
}

impl Scripted {
    /// `root` is the folder of `scripted/FILE`.
    pub fn new(root: Option<PathBuf>) -> Self {
        Self { root, read: Mutex::default() }
    }

    /// Answers `request` by the script `name` (without the `scripted/`).
    ///
    /// # Errors
    /// `Rejected` when the script is missing, faulty, at its end or expected something else; or the
    /// failure that the script plays.
    pub async fn call(
        &self,
        name: &str,
        request: &ModelRequest,
    ) -> Result<ModelAnswer, ModelFailure> {
        if name == ECHO {
            return Ok(echo::answer(request));
        }
        let script = self.script(name).map_err(rejected)?;
        let turn = script.turn(name, request)?;
        if turn.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(turn.delay_ms)).await;
        }
        turn.play(request)
    }

    /// Whether script `name` can be played; the error says what to do.
    ///
    /// # Errors
    /// One line for the user.
    pub fn check(&self, name: &str) -> Result<(), String> {
        if name == ECHO { Ok(()) } else { self.script(name).map(|_| ()) }
    }

    fn script(&self, name: &str) -> Result<Arc<Script>, String> {
        let path = self.path(name)?;
        let missing = |_| format!("there is no script `{name}` in the script folder");
        let state = std::fs::metadata(&path).map_err(missing)?;
        let (changed, bytes) = (state.modified().ok(), state.len());
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = read.get(&path)
            && known.changed == changed
            && known.bytes == bytes
        {
            return Ok(Arc::clone(&known.script));
        }
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("script `{name}` cannot be read: {error}"))?;
        let script = Script::parse(&text).map_err(|fault| format!("script `{name}`: {fault}"))?;
        let script = Arc::new(script);
        read.insert(path, Read { changed, bytes, script: Arc::clone(&script) });
        Ok(script)
    }

    /// The file of script `name`: below the root whatever the name says, symbolic links included.
    fn path(&self, name: &str) -> Result<PathBuf, String> {
        let Some(root) = &self.root else {
            return Err(format!(
                "`scripted/{name}` needs a script folder: set TAILSTEP_SCRIPT_ROOT, or use \
                 `scripted/{ECHO}`"
            ));
        };
        let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        if !plain {
            return Err(format!("script name `{name}` must be a path below the script folder"));
        }
        let mut path = root.join(name);
        if path.extension().is_none() {
            path.set_extension("json");
        }
        let missing = |_| format!("there is no script `{name}` in the script folder");
        let root = root
            .canonicalize()
            .map_err(|_| "the script folder of TAILSTEP_SCRIPT_ROOT does not exist".to_owned())?;
        let path = path.canonicalize().map_err(missing)?;
        if path.starts_with(&root) {
            Ok(path)
        } else {
            Err(format!("script name `{name}` must be a path below the script folder"))
        }
    }
}

/// How many answers the conversation holds already. Roles alternate and the user is first, so half
/// the messages are answers; nothing needs to be counted, however long the session is.
fn answers(messages: &[Message]) -> usize {
    messages.len() / 2
}

/// The id of call `index` in answer `turn`: the same on every try, and unique in the session. `start`
/// is the answer in which the work that this call belongs to was taken up.
fn call_id(start: usize, turn: usize, index: usize) -> String {
    format!("toolu_{start}_{turn}_{index}")
}

/// The `start` of an id made by [`call_id`].
fn call_start(id: &str) -> Option<usize> {
    let (start, _) = id.strip_prefix("toolu_")?.split_once('_')?;
    start.parse().ok()
}

/// The last text in `message` that a user wrote.
fn last_text(message: &Message) -> Option<&str> {
    if message.role == Role::Assistant {
        return None;
    }
    message.parts.iter().rev().find_map(|part| match part {
        Part::Content(Content::Text { text }) if !text.trim().is_empty() => Some(text.as_str()),
        Part::Content(_) | Part::ToolUse { .. } | Part::ToolResult { .. } | Part::Opaque { .. } => {
            None
        }
    })
}

/// Four bytes a token, and never nothing. Only the newest message is counted as input: the rest would
/// be in a provider's cache, and counting it would make each answer dearer than the one before.
fn usage(request: &ModelRequest, blocks: &[Block]) -> Usage {
    let shown =
        request.messages.last().map_or(0, |message| message.parts.iter().map(bytes_in).sum());
    let said = blocks.iter().map(bytes_out).sum();
    Usage { input_tokens: tokens(shown), output_tokens: tokens(said), ..Usage::default() }
}

fn tokens(bytes: usize) -> u64 {
    u64::try_from(bytes / 4).unwrap_or(u64::MAX).saturating_add(1)
}

fn bytes_in(part: &Part) -> usize {
    match part {
        Part::Content(content) => content_bytes(content),
        Part::ToolUse { name, input, .. } => name.len() + input.as_str().len(),
        Part::ToolResult { content, .. } => content.iter().map(content_bytes).sum(),
        Part::Opaque { raw, .. } => raw.as_str().len(),
    }
}

fn bytes_out(block: &Block) -> usize {
    match block {
        Block::Text { text } => text.len(),
        Block::ToolUse { name, input, .. } => name.len() + input.as_str().len(),
        Block::BrokenToolUse { name, raw, .. } => name.len() + raw.len(),
        Block::Opaque { raw, .. } => raw.as_str().len(),
    }
}

fn content_bytes(content: &Content) -> usize {
    use tailstep_core::content::Source;
    match content {
        Content::Text { text } => text.len(),
        Content::Image { source } | Content::Document { source, .. } => match source {
            Source::Base64 { data, .. } | Source::Text { data, .. } => data.len(),
            Source::Url { url } => url.len(),
        },
    }
}
