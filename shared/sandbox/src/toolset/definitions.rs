//! What a model is told of each tool. The text is fixed byte for byte, and so is the order: it
//! stands at the front of every prompt, and a change there costs every session its cache.

/// One tool as a model sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    pub name: &'static str,
    pub description: &'static str,
    /// JSON text of the input's schema.
    pub input_schema: &'static str,
}

/// Every tool, in the order in which they are shown.
pub const DEFINITIONS: [Definition; 6] = [BASH, READ, WRITE, EDIT, GLOB, GREP];

/// The names, in the same order.
pub fn names() -> String {
    DEFINITIONS.map(|definition| definition.name).join(", ")
}

const BASH: Definition = Definition {
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

const READ: Definition = Definition {
    name: "read",
    description: "Read a text file of the workspace. Files over 256 KiB must be read in parts, by \
giving view_range.",
    input_schema: r#"{"type":"object","properties":{"file_path":{"type":"string","description":"The file, relative to the workspace or absolute within it."},"view_range":{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":2,"description":"First and last line to show, counted from 1; -1 as the last means to the end."}},"required":["file_path"],"additionalProperties":false}"#,
};

const WRITE: Definition = Definition {
    name: "write",
    description: "Write a whole text file in the workspace. Missing directories are made, and a \
file that exists is replaced.",
    input_schema: r#"{"type":"object","properties":{"file_path":{"type":"string","description":"The file, relative to the workspace or absolute within it."},"content":{"type":"string","description":"The whole new content."}},"required":["file_path","content"],"additionalProperties":false}"#,
};

const EDIT: Definition = Definition {
    name: "edit",
    description: "Replace a piece of text in a file of the workspace. old_string must match the \
file exactly, spaces and line breaks included, and occur just once, unless replace_all is true.",
    input_schema: r#"{"type":"object","properties":{"file_path":{"type":"string","description":"The file, relative to the workspace or absolute within it."},"old_string":{"type":"string","description":"The text to replace."},"new_string":{"type":"string","description":"The text to put in its place."},"replace_all":{"type":"boolean","description":"Replace every occurrence."}},"required":["file_path","old_string","new_string"],"additionalProperties":false}"#,
};

const GLOB: Definition = Definition {
    name: "glob",
    description: "List the files of the workspace whose paths match a pattern such as \
**/*.rs or src/{a,b}/*.py. At most 200 paths come back, sorted. Directories named .git are not \
searched.",
    input_schema: r#"{"type":"object","properties":{"pattern":{"type":"string","description":"The pattern; * stays within one directory, ** crosses directories."},"path":{"type":"string","description":"The directory to search, the workspace when left out. The pattern is relative to it."}},"required":["pattern"],"additionalProperties":false}"#,
};

const GREP: Definition = Definition {
    name: "grep",
    description: "Search the text files of the workspace for a regular expression, line by line. \
Each match comes back as path:line:text. Binary files and directories named .git are not searched, \
and links are not followed.",
    input_schema: r#"{"type":"object","properties":{"pattern":{"type":"string","description":"A regular expression without look-around or back-references; (?i) at its start ignores case."},"path":{"type":"string","description":"The file or directory to search, the workspace when left out."}},"required":["pattern"],"additionalProperties":false}"#,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_json_objects_with_the_documented_fields() {
        let fields = [
            ("bash", vec!["command", "restart", "timeout_ms"]),
            ("read", vec!["file_path", "view_range"]),
            ("write", vec!["content", "file_path"]),
            ("edit", vec!["file_path", "new_string", "old_string", "replace_all"]),
            ("glob", vec!["path", "pattern"]),
            ("grep", vec!["path", "pattern"]),
        ];
        assert_eq!(names(), "bash, read, write, edit, glob, grep");
        for (definition, (name, expected)) in DEFINITIONS.iter().zip(fields) {
            let schema: serde_json::Value = serde_json::from_str(definition.input_schema).unwrap();
            let mut found: Vec<&String> =
                schema["properties"].as_object().unwrap().keys().collect();
            found.sort();
            assert_eq!(
                (definition.name, found),
                (name, expected.iter().map(|f| f.to_string()).collect::<Vec<_>>().iter().collect())
            );
        }
    }
}
