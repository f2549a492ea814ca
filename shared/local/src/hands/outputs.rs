//! What sessions leave for people: a directory of the session's folder that its sandboxes see as
//! [`OUTPUTS_DIRECTORY`], collected after each call into blobs and a manifest.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tailstep_core::{files::OUTPUTS_DIRECTORY, ids::BlobRef, limits::files::STORED_BYTES_MAX};
use tailstep_runtime::ports::Blobs;
use tailstep_sandbox::{
    Access, Mount,
    collect::{Collected, Known, Limits, collect},
};
use tokio::{runtime::Handle, task::spawn_blocking};

use crate::files::make_private_dir;

/// Format of [`Notes`]; others are thrown away.
const NOTES_FORMAT: u32 = 1;

pub(super) struct Outputs {
    directory: PathBuf,
    notes: PathBuf,
}

/// What is remembered between calls, beside the directory. A cache: without it everything is read
/// once more.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Notes {
    v: u32,
    known: Known,
    /// By all collections of this session.
    stored_bytes: u64,
}

/// The outputs after a call, when they are others than before.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) manifest: BlobRef,
    /// One line for the model about what is missing.
    pub(super) notice: Option<String>,
}

impl Outputs {
    /// In the folder of a session.
    pub(super) fn of(folder: &Path) -> Self {
        Self { directory: folder.join("outputs"), notes: folder.join("outputs.json") }
    }

    /// Makes the directory, and says how a sandbox sees it.
    pub(super) fn mount(&self) -> io::Result<Mount> {
        make_private_dir(&self.directory)?;
        Ok(Mount {
            source: self.directory.clone(),
            target: PathBuf::from(OUTPUTS_DIRECTORY),
            access: Access::Owned,
        })
    }

    /// Stores what is in the directory; `before` is the manifest that the log knows. Dropping the
    /// future ends the work at the next piece.
    pub(super) async fn collect(
        self,
        blobs: Arc<dyn Blobs>,
        tenant: &str,
        before: Option<BlobRef>,
    ) -> io::Result<Option<Changed>> {
        let tenant = tenant.to_owned();
        let stop = Stop::default();
        let stopped = stop.0.clone();
        let runtime = Handle::current();
        let work = spawn_blocking(move || {
            let mut put = |content: Vec<u8>| {
                if stopped.load(Ordering::Relaxed) {
                    return Err(io::Error::other("the call was stopped"));
                }
                let stored = runtime.block_on(blobs.put(&tenant, Bytes::from(content)));
                stored.map_err(io::Error::other)
            };
            self.collect_now(&mut put, before.as_ref())
        });
        let changed = work.await.map_err(io::Error::other)?;
        drop(stop);
        changed
    }

    fn collect_now(
        &self,
        put: &mut dyn FnMut(Vec<u8>) -> io::Result<BlobRef>,
        before: Option<&BlobRef>,
    ) -> io::Result<Option<Changed>> {
        let old = self.read_notes();
        let limits = Limits {
            stored_bytes_max: STORED_BYTES_MAX.saturating_sub(old.stored_bytes),
            ..Limits::default()
        };
        let collected = collect(&self.directory, &limits, &old.known, put);
        let Collected { manifest, known, stored_bytes } = collected.map_err(io::Error::other)?;
        if manifest.is_empty() && before.is_none() {
            return Ok(None);
        }
        let encoded = manifest.encode().map_err(io::Error::other)?;
        let changed = before != Some(&BlobRef::of(&encoded));
        let stored = if changed { Some(put(encoded)?) } else { None };
        let stored_bytes = old.stored_bytes.saturating_add(stored_bytes);
        let new = Notes { v: NOTES_FORMAT, known, stored_bytes };
        if new != old {
            self.write_notes(&new)?;
        }
        Ok(stored.map(|blob| Changed { manifest: blob, notice: manifest.notice() }))
    }

    fn read_notes(&self) -> Notes {
        let read = fs::read(&self.notes).ok();
        let notes: Option<Notes> = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        notes.filter(|notes| notes.v == NOTES_FORMAT).unwrap_or_default()
    }

    /// Whole or not at all; it need not survive a crash of the machine.
    fn write_notes(&self, notes: &Notes) -> io::Result<()> {
        let unfinished = self.notes.with_extension("unfinished");
        fs::write(&unfinished, serde_json::to_vec(notes).map_err(io::Error::other)?)?;
        fs::rename(unfinished, &self.notes)
    }
}

/// Tells the worker thread when nobody waits for it any more.
#[derive(Default)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tailstep_core::files::Manifest;

    use super::*;

    struct Session {
        holder: tempfile::TempDir,
        stored: Vec<BlobRef>,
        log: Option<BlobRef>,
    }

    impl Session {
        fn new() -> Self {
            let holder = tempfile::tempdir().unwrap();
            Outputs::of(holder.path()).mount().unwrap();
            Self { holder, stored: Vec::new(), log: None }
        }

        /// One call's collection, recorded in the log if it is to be.
        fn call(&mut self) -> Option<Changed> {
            let stored = &mut self.stored;
            let mut put = |content: Vec<u8>| {
                stored.push(BlobRef::of(&content));
                Ok(BlobRef::of(&content))
            };
            let outputs = Outputs::of(self.holder.path());
            outputs.collect_now(&mut put, self.log.as_ref()).unwrap()
        }

        fn at(&self, name: &str) -> PathBuf {
            self.holder.path().join("outputs").join(name)
        }
    }

    #[test]
    fn the_log_hears_of_changes_only() {
        let mut session = Session::new();
        assert_eq!(session.call(), None, "nothing there, nothing to say");
        fs::write(session.at("a"), "a").unwrap();
        let first = session.call().unwrap();
        assert_eq!(first.notice, None);
        // The record of that call was lost with its worker: the next one says it again.
        let again = session.call().unwrap();
        assert_eq!(again.manifest, first.manifest);
        session.log = Some(first.manifest);
        assert_eq!(session.call(), None);
        fs::remove_file(session.at("a")).unwrap();
        let emptied = session.call().unwrap();
        assert_eq!(emptied.manifest, BlobRef::of(&Manifest::empty().encode().unwrap()));
        // What is remembered may be lost or broken.
        session.log = Some(emptied.manifest);
        fs::write(session.holder.path().join("outputs.json"), "{").unwrap();
        assert_eq!(session.call(), None);
    }

    #[test]
    fn what_is_left_out_is_one_line() {
        let mut session = Session::new();
        symlink("/etc/passwd", session.at("line\nbreak")).unwrap();
        let line = session.call().unwrap().notice.unwrap();
        let want =
            "[outputs: 1 entry of /mnt/session/outputs left out: line\\nbreak (it is a link)]";
        assert_eq!(line, want);
        for name in ["b", "c", "d"] {
            symlink("/", session.at(name)).unwrap();
        }
        let line = session.call().unwrap().notice.unwrap();
        assert!(line.starts_with("[outputs: 4 entries of ") && line.ends_with(", …]"), "{line}");
    }
}
