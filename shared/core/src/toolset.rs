//! The built-in toolset `agent_toolset_20260401`: names, and what the model is told of each tool.
//!
//! The texts are part of every prompt, so their bytes change only with a version of the toolset.

use std::sync::LazyLock;

use crate::{agent::ToolEntry, model::ToolDefinition, raw::RawJson};

/// The type name of the toolset in the public API.
pub const NAME: &str = "agent_toolset_20260401";

struct Tool {
    name: &'static str,
    description: &'static str,
    input_schema: &'static str,
}

/// In the order in which the model sees them.
const TOOLS: [Tool; 6] = [BASH, READ, WRITE, EDIT, GLOB, GREP];

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
    // Read once: a model call should not parse schemas that never change.
    static ALL: LazyLock<Vec<ToolDefinition>> =
        LazyLock::new(|| TOOLS.iter().filter_map(definition).collect());
    let enabled: Vec<&str> = enabled(entries).collect();
    ALL.iter().filter(|tool| enabled.contains(&tool.name.as_str())).cloned().collect()
}

fn definition(tool: &Tool) -> Option<ToolDefinition> {
    Some(ToolDefinition {
        name: tool.name.to_owned(),
        description: tool.description.to_owned(),
        input_schema: RawJson::parse(tool.input_schema).ok()?,
    })
}

const BASH: Tool = Tool {
    name: "bash",
    description: "Run a command in a bash shell that stays open from call to call: the current \
directory, variables and functions carry over. It starts in the workspace. Standard output and \
standard error come back together, in order; very long output loses its middle. There is no \
terminal and no input, so do not start programs that ask questions. A command that runs past its \
time is killed with everything that runs in the sandbox, and the next call gets a new shell. Start \
servers in the background with their output sent to a file. Set restart to true to throw the shell \
away and begin with a new one.",
    input_schema: r#"{"type":"object","properties":{"command":{"type":"string","description":"The command to run. Required unless restart is true."},"restart":{"type":"boolean","description":"Start a new shell first."},"timeout_ms":{"type":"integer","minimum":1,"description":"The longest the command may run, in milliseconds. 120000 when left out."}},"additionalProperties":false}"#,
};

const READ: Tool = Tool {
    name: "read",
    description: "Read a text file of the workspace. Files over 256 KiB must be read in parts, by \
giving view_range.",
    input_schema: r#"{"type":"object","properties":{"file_path":{"type":"string","description":"The file, relative to the workspace or absolute within it."},"view_range":{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":2,"description":"First and last line to show, counted from 1; -1 as the last means to the end."}},"required":["file_path"],"additionalProperties":false}"#,
};

const WRITE: Tool = Tool {
    name: "write",
    description: "Write a whole text file in the workspace. Missing directories are made, and a \
file that exists is replaced.",
    input_schema: r#"{"type":"object","properties":{"file_path":{"type":"string","description":"The file, relative to the workspace or absolute within it."},"content":{"type":"string","description":"The whole new content."}},"required":["file_path","content"],"additionalProperties":false}"#,
};

const EDIT: Tool = Tool {
    name: "edit",
    description: "Replace a piece of text in a file of the workspace. old_string must match the \
file exactly, spaces and line breaks included, and occur just once, unless replace_all is true.",
    input_schema: r#"{"type":"object","properties":{"file_path":{"type":"string","description":"The file, relative to the workspace or absolute within it."},"old_string":{"type":"string","description":"The text to replace."},"new_string":{"type":"string","description":"The text to put in its place."},"replace_all":{"type":"boolean","description":"Replace every occurrence."}},"required":["file_path","old_string","new_string"],"additionalProperties":false}"#,
};

const GLOB: Tool = Tool {
    name: "glob",
    description: "List the files of the workspace whose paths match a pattern such as \
**/*.rs or src/{a,b}/*.py. At most 200 paths come back, sorted. Directories named .git are not \
searched.",
    input_schema: r#"{"type":"object","properties":{"pattern":{"type":"string","description":"The pattern; * stays within one directory, ** crosses directories."},"path":{"type":"string","description":"The directory to search, the workspace when left out. The pattern is relative to it."}},"required":["pattern"],"additionalProperties":false}"#,
};

const GREP: Tool = Tool {
    name: "grep",
    description: "Search the text files of the workspace for a regular expression, line by line. \
Each match comes back as path:line:text. Binary files and directories named .git are not searched, \
and links are not followed.",
    input_schema: r#"{"type":"object","properties":{"pattern":{"type":"string","description":"A regular expression without look-around or back-references; (?i) at its start ignores case."},"path":{"type":"string","description":"The file or directory to search, the workspace when left out."}},"required":["pattern"],"additionalProperties":false}"#,
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn schemas_are_objects_with_the_documented_fields() {
        let fields = [
            ("bash", vec!["command", "restart", "timeout_ms"]),
            ("read", vec!["file_path", "view_range"]),
            ("write", vec!["content", "file_path"]),
            ("edit", vec!["file_path", "new_string", "old_string", "replace_all"]),
            ("glob", vec!["path", "pattern"]),
            ("grep", vec!["path", "pattern"]),
        ];
        let all =
            definitions(&[ToolEntry::Toolset { default_enabled: true, enabled: BTreeMap::new() }]);
        assert_eq!(all.len(), fields.len());
        for (tool, (name, expected)) in all.iter().zip(fields) {
            let schema: serde_json::Value = tool.input_schema.read().unwrap();
            assert_eq!(schema["type"], "object", "{name}");
            let properties = schema["properties"].as_object().unwrap();
            let mut found: Vec<&str> = properties.keys().map(String::as_str).collect();
            found.sort_unstable();
            assert_eq!((tool.name.as_str(), found), (name, expected));
            for required in schema["required"].as_array().into_iter().flatten() {
                assert!(properties.contains_key(required.as_str().unwrap()), "{name}");
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
