//! What the model is shown: the log as a conversation that every provider accepts.
//!
//! The builder only ever adds at the end, so a later request of the same session begins with the
//! earlier one's messages, byte for byte.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    agent::{AgentSpec, EnvironmentKind, SkillSpec},
    content::Content,
    event::{Created, Event, Input, ModelAnswered},
    files::{FileResource, SKILLS_DIRECTORY},
    ids::Position,
    limits::Limits,
    model::{Block, Message, ModelRequest, Part, Role, Stop},
    raw::RawJson,
    record::Record,
    toolset,
};

const EMPTY_RESULT: &str = "(no output)";
const EMPTY_ERROR: &str = "(failed without a message)";

/// Collects records in log order; [`Self::request`] gives the request at any point at which no call
/// is unanswered.
#[derive(Debug, Clone, Default)]
pub struct Context {
    agent: Option<AgentSpec>,
    system: Option<String>,
    messages: Arc<Vec<Message>>,
    /// Messages from users that no model call has shown yet.
    waiting: BTreeMap<Position, Vec<Content>>,
    /// Ids of the model's calls that have no result yet.
    calls: BTreeMap<Position, String>,
    /// Results of the last answer's calls, until all have come: they are shown in the calls' order,
    /// whatever the order in which they came.
    results: BTreeMap<Position, Part>,
}

impl Context {
    /// The conversation of a whole log.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut context = Self::default();
        for record in records {
            context.push(record);
        }
        context
    }

    /// Takes in the next record.
    pub fn push(&mut self, record: &Record) {
        for (index, event) in record.events.iter().enumerate() {
            // `Session::apply` refuses records with more events than fit.
            let place = Position::event(record.seq, u16::try_from(index).unwrap_or(u16::MAX));
            self.event(place, event);
        }
    }

    fn event(&mut self, place: Position, event: &Event) {
        match event {
            Event::Created(created) => {
                let Created { agent, environment, resources, .. } = created.as_ref();
                self.system = system(agent, environment.kind, resources);
                self.agent = Some(agent.clone());
            }
            Event::Received(received) => match &received.input {
                Input::Message { content } => {
                    self.waiting.insert(place, content.clone());
                }
                Input::Interrupt => {}
                Input::ToolResult { call, content, is_error } => {
                    self.result(*call, content, *is_error);
                }
            },
            Event::ModelStarted(started) => {
                for input in &started.inputs {
                    for block in self.waiting.remove(input).into_iter().flatten() {
                        if !block.is_blank() {
                            self.add(Role::User, Part::Content(block));
                        }
                    }
                }
            }
            Event::ModelAnswered(answered) => self.answer(place, answered),
            Event::ToolFinished(finished) => {
                self.result(finished.call, &finished.result.content, finished.result.is_error);
            }
            Event::ModelFailed(_)
            | Event::ToolStarted(_)
            | Event::ActionRequired(_)
            | Event::TurnEnded(_)
            | Event::Fenced(_)
            | Event::Ended(_) => {}
        }
    }

    /// A refused answer is left out: shown again, it would make the model refuse again.
    fn answer(&mut self, place: Position, answered: &ModelAnswered) {
        if matches!(answered.answer.stop, Stop::Refusal { .. }) {
            return;
        }
        for (index, block) in answered.answer.blocks.iter().enumerate() {
            let part = u16::try_from(index + 1).unwrap_or(u16::MAX);
            let part = match block {
                Block::Text { text } if text.trim().is_empty() => continue,
                Block::Text { text } => Part::Content(Content::text(text.clone())),
                Block::ToolUse { id, name, input } => {
                    self.calls.insert(Position { part, ..place }, id.clone());
                    Part::ToolUse { id: id.clone(), name: name.clone(), input: input.clone() }
                }
                Block::BrokenToolUse { id, name, .. } => {
                    self.calls.insert(Position { part, ..place }, id.clone());
                    Part::ToolUse {
                        id: id.clone(),
                        name: name.clone(),
                        input: RawJson::empty_object(),
                    }
                }
                Block::Opaque { dialect, raw } => {
                    Part::Opaque { dialect: dialect.clone(), raw: raw.clone() }
                }
            };
            self.add(Role::Assistant, part);
        }
    }

    fn result(&mut self, call: Position, content: &[Content], is_error: bool) {
        let Some(id) = self.calls.remove(&call) else { return };
        let mut content: Vec<Content> =
            content.iter().filter(|block| !block.is_blank()).cloned().collect();
        if content.is_empty() {
            let marker = if is_error { EMPTY_ERROR } else { EMPTY_RESULT };
            content.push(Content::text(marker));
        }
        self.results.insert(call, Part::ToolResult { id, content, is_error });
        if self.calls.is_empty() {
            for (_, result) in std::mem::take(&mut self.results) {
                self.add(Role::User, result);
            }
        }
    }

    /// Neighbours of one role become one message.
    fn add(&mut self, role: Role, part: Part) {
        // No request is under way while records are taken in, so that this does not copy.
        let messages = Arc::make_mut(&mut self.messages);
        match messages.last_mut() {
            Some(last) if last.role == role => last.parts.push(part),
            Some(_) | None => messages.push(Message { role, parts: vec![part] }),
        }
    }

    /// The request to send now; `None` before the session's first event.
    pub fn request(&self, limits: &Limits) -> Option<ModelRequest> {
        let agent = self.agent.as_ref()?;
        Some(ModelRequest {
            model: agent.model.id.clone(),
            effort: agent.model.effort.clone(),
            system: self.system.clone(),
            tools: toolset::definitions(&agent.tools),
            messages: self.messages.clone(),
            output_tokens_max: limits.output_tokens_max,
        })
    }
}

/// The agent's own words, and behind them what its sandboxes are given. Part of every prompt: its
/// bytes depend on the first event alone.
fn system(
    agent: &AgentSpec,
    environment: EnvironmentKind,
    files: &[FileResource],
) -> Option<String> {
    let mut parts: Vec<String> = agent.system.iter().cloned().collect();
    if !agent.skills.is_empty() {
        let mut part =
            "# Skills\n\nThese skills are installed, read-only. When a task is what a skill \
            is for, read its SKILL.md before you begin, and follow it.\n"
                .to_owned();
        let directory = match environment {
            EnvironmentKind::Cloud => SKILLS_DIRECTORY,
            // Workers have their own places: the official ones this, ours the other.
            EnvironmentKind::SelfHosted => {
                part.push_str(&format!(
                    "Paths begin at the working directory; where it has no `skills`, look in \
                    {SKILLS_DIRECTORY}.\n"
                ));
                &SKILLS_DIRECTORY[1..]
            }
        };
        for SkillSpec { name, description, .. } in &agent.skills {
            part.push_str(&format!("\n- {directory}/{name}/SKILL.md: {description}"));
        }
        parts.push(part);
    }
    if !files.is_empty() {
        let mut part = "# Files\n\nThe user has given you these files, read-only.\n".to_owned();
        for FileResource { mount_path, filename, content, .. } in files {
            let size_bytes = content.size_bytes;
            part.push_str(&format!("\n- {mount_path} ({filename}, {size_bytes} bytes)"));
        }
        parts.push(part);
    }
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{agent::ModelSpec, files::FileContent, ids::BlobRef};

    #[test]
    fn what_is_given_stands_behind_the_agents_own_words() {
        let model = ModelSpec { id: "m".into(), speed: None, effort: None };
        let mut agent = AgentSpec {
            id: "agent_1".into(),
            version: 1,
            name: "a".into(),
            description: None,
            model,
            system: Some("Own words.".into()),
            tools: Vec::new(),
            skills: Vec::new(),
        };
        assert_eq!(system(&agent, EnvironmentKind::Cloud, &[]).as_deref(), Some("Own words."));
        agent.skills.push(SkillSpec {
            skill_id: "skill_1".into(),
            version: "v".into(),
            name: "make-pdf".into(),
            description: "Makes PDF files.".into(),
            manifest: BlobRef::of(b""),
        });
        let content = FileContent { size_bytes: 12, sha256: String::new(), chunks: Vec::new() };
        let file = FileResource {
            id: "sesrsc_1".into(),
            file_id: "file_1".into(),
            filename: "a.csv".into(),
            mount_path: "/mnt/session/uploads/file_1".into(),
            content,
            added_at_ms: 0,
        };
        let want = "Own words.\n\n# Skills\n\nThese skills are installed, read-only. When a task is \
            what a skill is for, read its SKILL.md before you begin, and follow it.\n\n\
            - /skills/make-pdf/SKILL.md: Makes PDF files.\n\n# Files\n\nThe user has given you these \
            files, read-only.\n\n- /mnt/session/uploads/file_1 (a.csv, 12 bytes)";
        assert_eq!(
            system(&agent, EnvironmentKind::Cloud, std::slice::from_ref(&file)).as_deref(),
            Some(want)
        );
        agent.system = None;
        let outside = system(&agent, EnvironmentKind::SelfHosted, &[]).unwrap();
        assert!(outside.contains("\n- skills/make-pdf/SKILL.md: Makes PDF files."), "{outside}");
        assert!(outside.contains("look in /skills."), "{outside}");
        agent.skills.clear();
        assert!(system(&agent, EnvironmentKind::Cloud, &[file]).unwrap().starts_with("# Files\n"));
        assert_eq!(system(&agent, EnvironmentKind::Cloud, &[]), None);
    }
}
