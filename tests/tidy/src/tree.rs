//! The files of the repository.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// One text file, by its path from the root.
#[derive(Debug, Clone)]
pub struct File {
    pub path: String,
    pub text: String,
}

impl File {
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every text file that is or could be committed, in order of path.
///
/// # Errors
/// When `git` cannot list them.
pub fn files() -> Result<Vec<File>, String> {
    let listed = run("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?;
    let mut paths: Vec<&str> = listed.lines().collect();
    paths.sort_unstable();
    paths.dedup();
    let read = |path: &str| {
        // Deleted files and binary ones have no text.
        let text = std::fs::read_to_string(root().join(path)).ok()?;
        Some(File::new(path, &text))
    };
    Ok(paths.into_iter().filter_map(read).collect())
}

/// What a command prints when it is run in the root.
///
/// # Errors
/// What it says when it fails.
pub fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let done = Command::new(program).args(args).current_dir(root()).output();
    let done = done.map_err(|error| format!("{program} does not start: {error}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{program} {}: {said}", args.join(" ")));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
