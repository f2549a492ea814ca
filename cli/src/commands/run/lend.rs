//! The workspace of a run: copied in before the first message, compared and given back at the end.
//!
//! Kept in the data directory as `runs/SESSION/`: `folder`, the path it came from, and `base/`, the
//! copy as it was before the agent had it.

use std::{
    ffi::OsString,
    fs,
    io::{IsTerminal, Write, stderr, stdin, stdout},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tailstep_runtime::ids::nonce;

use crate::{
    home::Home,
    show::Form,
    signals::Stop,
    style::Paint,
    workspace::{Change, Conflict, Root, apply, changes, conflicts, copy, read_tree, write_patch},
};

/// A copy that no session has yet.
pub(super) struct Draft {
    folder: PathBuf,
    kept: PathBuf,
}

/// A copy that a session works on.
pub(super) struct Lent {
    /// Where it came from, and where changes go.
    folder: PathBuf,
    kept: PathBuf,
    /// Where the agent has it.
    agents: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BroughtBack {
    /// Nothing changed, or it was applied, or the user did not want it.
    Settled,
    Conflicts,
}

impl Lent {
    /// Copies `folder`.
    ///
    /// # Errors
    /// When it cannot be read, or is beyond a limit.
    pub(super) fn copy_in(home: &Home, folder: &Path) -> anyhow::Result<Draft> {
        let open = || format!("cannot open the workspace {}", folder.display());
        let folder = fs::canonicalize(folder).with_context(open)?;
        let source = Root::open(&folder).with_context(open)?;
        let kept = home.data_dir.join("runs").join(format!("draft-{}", nonce()));
        let copied = copy(&source, &kept.join("base"), Some(&home.data_dir))?;
        let odd = copied.left_out.iter().filter(|(_, why)| *why != "version control");
        for (path, why) in odd {
            eprintln!("not copied: {} ({why})", path.display());
        }
        fs::write(kept.join("folder"), folder.as_os_str().as_bytes())?;
        tracing::debug!(files = copied.files, "the workspace is copied");
        Ok(Draft { folder, kept })
    }

    /// The copy that `session` got earlier, if it got one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn find(home: &Home, session: &str) -> anyhow::Result<Option<Self>> {
        let agents = home.workspace(session);
        let kept = home.data_dir.join("runs").join(session);
        match fs::read(kept.join("folder")) {
            Ok(folder) => {
                let folder = PathBuf::from(OsString::from_vec(folder));
                Ok(Some(Self { folder, kept, agents }))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context("cannot read where the workspace came from"),
        }
    }

    /// Shows what the agent changed, and applies it if that is wanted: with `apply`, or when the
    /// user, asked on a terminal, says yes.
    ///
    /// # Errors
    /// When a folder cannot be read or written.
    pub(super) async fn bring_back(
        &self,
        session: &str,
        form: Form,
        apply_now: bool,
        stop: &mut Stop,
    ) -> anyhow::Result<BroughtBack> {
        let base = self.root(&self.kept.join("base"))?;
        let agents = self.root(&self.agents)?;
        let (before, after) = (read_tree(&base, None)?, read_tree(&agents, None)?);
        for (path, why) in &after.left_out {
            eprintln!("not brought back: {} ({why})", path.display());
        }
        let changes = changes(&before, &after);
        if changes.is_empty() {
            eprintln!("nothing is changed in the workspace");
            return Ok(BroughtBack::Settled);
        }
        if let Form::Text(paint) = form {
            println!();
            write_patch(&mut stdout().lock(), &changes, &base, &agents, paint)?;
        }
        let wanted = apply_now || self.is_wanted(form, changes.len(), stop).await?;
        let conflicts = if wanted { self.apply(&changes, &agents)? } else { Vec::new() };
        let applied = wanted && conflicts.is_empty();
        match form {
            Form::Json => {
                let mut patch = Vec::new();
                write_patch(&mut patch, &changes, &base, &agents, Paint::Plain)?;
                let patch = String::from_utf8_lossy(&patch);
                writeln!(stdout().lock(), "{}", self.line(&patch, applied, &conflicts))?;
            }
            Form::Text(_) => self.say(session, changes.len(), applied, &conflicts),
        }
        Ok(if conflicts.is_empty() { BroughtBack::Settled } else { BroughtBack::Conflicts })
    }

    fn root(&self, path: &Path) -> anyhow::Result<Root> {
        Root::open(path).with_context(|| format!("cannot open {}", path.display()))
    }

    async fn is_wanted(&self, form: Form, count: usize, stop: &mut Stop) -> anyhow::Result<bool> {
        if !form.is_watched() || !stdin().is_terminal() {
            return Ok(false);
        }
        eprint!("apply {} to {}? [y/N] ", files(count), self.folder.display());
        stderr().flush()?;
        let answer = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            stdin().read_line(&mut line).map(|_| line)
        });
        tokio::select! {
            answer = answer => Ok(matches!(answer??.trim(), "y" | "Y" | "yes")),
            () = stop.asked() => {
                eprintln!();
                Ok(false)
            }
        }
    }

    fn apply(&self, changes: &[Change], agents: &Root) -> anyhow::Result<Vec<Conflict>> {
        let target = self.root(&self.folder)?;
        let conflicts = conflicts(&target, changes);
        if conflicts.is_empty() {
            apply(&target, changes, agents)?;
            // What was applied is what the next turn's changes are told from.
            let base = self.kept.join("base");
            let fresh = self.kept.join("base.new");
            let _ = fs::remove_dir_all(&fresh);
            copy(agents, &fresh, None)?;
            fs::remove_dir_all(&base)?;
            fs::rename(&fresh, &base)?;
        }
        Ok(conflicts)
    }

    /// The last line of the JSON form: no event of the API, and named so that it never becomes one.
    fn line(&self, patch: &str, applied: bool, conflicts: &[Conflict]) -> Value {
        let conflicts: Vec<Value> = conflicts
            .iter()
            .map(|conflict| json!({ "path": conflict.path.to_string_lossy(), "why": conflict.why }))
            .collect();
        json!({
            "type": "x_workspace.changes",
            "folder": self.folder.to_string_lossy(),
            "patch": patch,
            "applied": applied,
            "conflicts": conflicts,
        })
    }

    fn say(&self, session: &str, count: usize, applied: bool, conflicts: &[Conflict]) {
        let (count, folder) = (files(count), self.folder.display());
        for conflict in conflicts {
            eprintln!("conflict: {} {}", conflict.path.display(), conflict.why);
        }
        let later = format!("tailstep run --resume {session} --apply");
        if applied {
            eprintln!("applied: {count} in {folder}");
        } else if conflicts.is_empty() {
            eprintln!("not applied: {count}; `{later}` applies them to {folder}");
        } else {
            eprintln!("nothing was applied to {folder}; settle the conflicts, then `{later}`");
        }
    }
}

impl Draft {
    /// Gives the copy to `session`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn give_to(self, home: &Home, session: &str) -> anyhow::Result<Lent> {
        let kept = home.data_dir.join("runs").join(session);
        fs::rename(&self.kept, &kept).with_context(|| format!("cannot make {}", kept.display()))?;
        let agents = home.workspace(session);
        if agents.exists() {
            bail!("session {session} has a workspace already");
        }
        copy(&Root::open(&kept.join("base"))?, &agents, None)?;
        Ok(Lent { folder: self.folder, kept, agents })
    }
}

fn files(count: usize) -> String {
    if count == 1 { "1 changed file".to_owned() } else { format!("{count} changed files") }
}
