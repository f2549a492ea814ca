//! The built-in toolset `agent_toolset_20260401`: names, and what the model is told of each tool.
//!
//! The texts are part of every prompt, so their bytes change only with a version of the toolset.

use crate::{agent::ToolEntry, model::ToolDefinition, raw::RawJson};

/// The type name of the toolset in the public API.
pub const NAME: &str = "agent_toolset_20260401";

struct Tool {
    name: &'static str,
    description: &'static str,
    input_schema: &'static str,
}

/// In the order in which the model sees them.
const TOOLS: [Tool; 6] = [
    Tool {
        name: "bash",
        description: "Run a command in a bash shell inside the sandbox. The shell keeps its working \
            directory and variables from one call to the next; `restart` starts a fresh one. There \
            is no network. A command that is still running at the time limit is killed.",
        input_schema: r#"{"type":"object","properties":{"command":{"type":"string","description":"The command to run."},"restart":{"type":"boolean","description":"Start a fresh shell instead of running a command."},"timeout_ms":{"type":"integer","description":"Time limit in milliseconds; 120000 when absent."}}}"#,
    },
    Tool {
        name: "read",
        description: "Read a text file of the workspace.",
        input_schema: r#"{"type":"object","properties":{"file_path":{"type":"string","description":"Path of the file, absolute or relative to the workspace."},"view_range":{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":2,"description":"First and last line to read, counted from 1; -1 as the last means the end."}},"required":["file_path"]}"#,
    },
    Tool {
        name: "write",
        description: "Write a file of the workspace, replacing it if it exists. Missing directories \
            are made.",
        input_schema: r#"{"type":"object","properties":{"file_path":{"type":"string","description":"Path of the file, absolute or relative to the workspace."},"content":{"type":"string","description":"The whole new content."}},"required":["file_path","content"]}"#,
    },
    Tool {
        name: "edit",
        description: "Replace text in a file of the workspace. The old text must match exactly and, \
            unless `replace_all` is true, occur exactly once.",
        input_schema: r#"{"type":"object","properties":{"file_path":{"type":"string","description":"Path of the file, absolute or relative to the workspace."},"old_string":{"type":"string","description":"The text to replace."},"new_string":{"type":"string","description":"The text to put there."},"replace_all":{"type":"boolean","description":"Replace every occurrence."}},"required":["file_path","old_string","new_string"]}"#,
    },
    Tool {
        name: "glob",
        description: "List the files of the workspace whose paths match a glob pattern, such as \
            `src/**/*.rs`.",
        input_schema: r#"{"type":"object","properties":{"pattern":{"type":"string","description":"The glob pattern."},"path":{"type":"string","description":"Directory to search in; the workspace when absent."}},"required":["pattern"]}"#,
    },
    Tool {
        name: "grep",
        description: "Search the files of the workspace for a regular expression. Each match is \
            given as path, line number and line.",
        input_schema: r#"{"type":"object","properties":{"pattern":{"type":"string","description":"The regular expression."},"path":{"type":"string","description":"File or directory to search in; the workspace when absent."}},"required":["pattern"]}"#,
    },
];

/// Names of all tools, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().map(|tool| tool.name)
}

/// Names of the tools that `entries` enable, in order.
pub fn enabled(entries: &[ToolEntry]) -> impl Iterator<Item = &'static str> {
    names().filter(|name| {
        entries.iter().any(|entry| match entry {
            ToolEntry::Toolset { default_enabled, enabled } => {
                enabled.get(*name).copied().unwrap_or(*default_enabled)
            }
        })
    })
}

/// What the model is told of the tools that `entries` enable, in order.
pub fn definitions(entries: &[ToolEntry]) -> Vec<ToolDefinition> {
    enabled(entries).filter_map(definition).collect()
}

fn definition(name: &str) -> Option<ToolDefinition> {
    let tool = TOOLS.iter().find(|tool| tool.name == name)?;
    Some(ToolDefinition {
        name: tool.name.to_owned(),
        description: tool.description.to_owned(),
        input_schema: RawJson::parse(tool.input_schema).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_tool_has_a_schema_that_is_an_object() {
        let all =
            definitions(&[ToolEntry::Toolset { default_enabled: true, enabled: BTreeMap::new() }]);
        assert_eq!(all.len(), TOOLS.len());
        for tool in all {
            let schema: serde_json::Value = tool.input_schema.read().unwrap();
            assert_eq!(schema["type"], "object", "{}", tool.name);
            for required in schema["required"].as_array().into_iter().flatten() {
                assert!(schema["properties"][required.as_str().unwrap()].is_object());
            }
        }
    }

    #[test]
    fn configs_override_the_default() {
        let only_bash = ToolEntry::Toolset {
            default_enabled: false,
            enabled: BTreeMap::from([("bash".to_owned(), true)]),
        };
        assert_eq!(enabled(&[only_bash]).collect::<Vec<_>>(), ["bash"]);
        assert_eq!(enabled(&[]).count(), 0);
    }
}
