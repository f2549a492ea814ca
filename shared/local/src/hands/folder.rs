//! The folder of one session: its workspace, and whether a sandbox has had it.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use tailstep_core::ids::SessionKey;
use tailstep_sandbox::remove_tree;

use super::outputs::Outputs;
use crate::files::{component, make_private_dir};

/// Where the workspace of session `key` is, or will be: whoever wants files in it puts them there
/// before the session's first call.
pub fn workspace_dir(data_dir: &Path, key: &SessionKey) -> PathBuf {
    Folder::of(data_dir, key).workspace
}

pub(super) struct Folder {
    dir: PathBuf,
    pub(super) workspace: PathBuf,
}

impl Folder {
    pub(super) fn of(data_dir: &Path, key: &SessionKey) -> Self {
        let sessions = data_dir.join("sessions");
        let dir = sessions.join(component(&key.tenant)).join(component(&key.session));
        let workspace = dir.join("workspace");
        Self { dir, workspace }
    }

    /// Makes the folder ready for a sandbox; answers whether it has had one before, in this
    /// process's life or an earlier one's.
    pub(super) fn prepare(&self) -> io::Result<bool> {
        make_private_dir(&self.workspace)?;
        let mark = self.dir.join("had-a-sandbox");
        let had_one = mark.exists();
        if !had_one {
            File::create(mark)?;
        }
        Ok(had_one)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn outputs(&self) -> Outputs {
        Outputs::of(&self.dir)
    }

    /// Removes all of it, whatever was made inside. Idempotent.
    pub(super) fn remove(&self) -> io::Result<()> {
        remove_tree(&self.dir)
    }
}
