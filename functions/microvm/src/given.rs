//! Files that come from outside: what the session is given, and what it has put out in machines before
//! this one. They come piece by piece and are good once all of them are whole.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Component, Path, PathBuf},
};

use sha2::{Digest, Sha256};
use tailstep_core::ids::{BlobRef, hex};
use tailstep_sandbox::remove_tree;

use crate::{guest::Failure, message::Coming};

/// Files that one session may have, skills' files included.
const FILES_MAX: usize = 20_000;

/// What is on its way.
pub(crate) struct Arriving {
    coming: Coming,
    /// Where each file goes.
    places: Vec<PathBuf>,
}

/// What has arrived.
#[derive(Default)]
pub(crate) struct Arrived {
    pub(crate) given: Option<String>,
    pub(crate) outputs: Option<BlobRef>,
}

impl Arriving {
    /// Makes all files, empty, below `root`; `outputs` holds nothing else then.
    pub(crate) fn begin(root: &Path, outputs: &Path, coming: Coming) -> Result<Self, Failure> {
        if coming.files.len() > FILES_MAX {
            return Err(Failure::Form);
        }
        let mut places = Vec::new();
        for file in &coming.files {
            let inner = file.path.strip_prefix('/').map(Path::new).ok_or(Failure::Form)?;
            let plain = |part| matches!(part, Component::Normal(_));
            if inner.as_os_str().is_empty() || !inner.components().all(plain) {
                return Err(Failure::Form);
            }
            places.push(root.join(inner));
        }
        empty(outputs)?;
        for place in &places {
            if let Some(folder) = place.parent() {
                fs::create_dir_all(folder)?;
            }
            // Left by an attempt that broke off; it may be closed to writing.
            match fs::remove_file(place) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                Ok(()) | Err(_) => drop(File::create_new(place)?),
            }
        }
        Ok(Self { coming, places })
    }

    /// Writes a piece of one file; the same again does no harm.
    pub(crate) fn write(&self, index: usize, offset: u64, piece: &[u8]) -> Result<(), Failure> {
        let (file, place) =
            self.coming.files.get(index).zip(self.places.get(index)).ok_or(Failure::Form)?;
        let end = offset.checked_add(piece.len() as u64).ok_or(Failure::Form)?;
        if end > file.size_bytes {
            return Err(Failure::Form);
        }
        OpenOptions::new().write(true).open(place)?.write_all_at(piece, offset)?;
        Ok(())
    }

    /// Closes the files, once each of them is the one that was announced.
    pub(crate) fn finish(&self) -> Result<Arrived, Failure> {
        for (file, place) in self.coming.files.iter().zip(&self.places) {
            let (sha256, is_script) = read(place)?;
            if sha256 != file.sha256 {
                return Err(Failure::Announced);
            }
            let mode = match (file.writable, is_script) {
                (true, _) => 0o644,
                (false, true) => 0o555,
                (false, false) => 0o444,
            };
            fs::set_permissions(place, fs::Permissions::from_mode(mode))?;
        }
        let Coming { given, outputs, .. } = &self.coming;
        Ok(Arrived { given: given.clone(), outputs: outputs.clone() })
    }
}

/// Makes an empty directory of whatever is there.
pub(crate) fn empty(directory: &Path) -> io::Result<()> {
    remove_tree(directory)?;
    fs::create_dir_all(directory)
}

/// The hash of a file, and whether it says of itself that it is a script.
fn read(place: &Path) -> io::Result<(String, bool)> {
    let (mut file, mut hash, mut is_script) = (File::open(place)?, Sha256::new(), false);
    let (mut buffer, mut at) = (vec![0; 64 << 10], 0_u64);
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok((hex(&hash.finalize()), is_script));
        }
        is_script |= at == 0 && buffer[..count].starts_with(b"#!");
        hash.update(&buffer[..count]);
        at += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ComingFile;

    fn file(path: &str, content: &[u8], writable: bool) -> ComingFile {
        let BlobRef { sha256, bytes } = BlobRef::of(content);
        ComingFile { path: path.into(), size_bytes: bytes, sha256, writable }
    }

    fn coming(files: Vec<ComingFile>) -> Coming {
        Coming { given: Some("g".into()), outputs: None, files }
    }

    #[test]
    fn pieces_come_in_any_order_and_more_than_once() {
        let root = tempfile::tempdir().unwrap();
        let outputs = root.path().join("mnt/session/outputs");
        let files = vec![
            file("/skills/a/run", b"#!/bin/sh\n", false),
            file("/data/empty", b"", false),
            file("/mnt/session/outputs/x", b"out", true),
        ];
        for _ in 0..2 {
            let arriving = Arriving::begin(root.path(), &outputs, coming(files.clone())).unwrap();
            arriving.write(0, 5, b"n/sh\n").unwrap();
            arriving.write(2, 0, b"out").unwrap();
            assert!(matches!(arriving.finish(), Err(Failure::Announced)), "one is not whole");
            arriving.write(0, 0, b"#!/bi").unwrap();
            arriving.write(0, 0, b"#!/bi").unwrap();
            assert_eq!(arriving.finish().unwrap().given.as_deref(), Some("g"));
            let mode = |path: &str| fs::metadata(root.path().join(path)).unwrap().permissions();
            assert_eq!(mode("skills/a/run").mode() & 0o777, 0o555);
            assert_eq!(mode("data/empty").mode() & 0o777, 0o444);
            assert_eq!(mode("mnt/session/outputs/x").mode() & 0o777, 0o644);
        }
    }

    #[test]
    fn nothing_goes_elsewhere_and_no_file_grows() {
        let root = tempfile::tempdir().unwrap();
        let outputs = root.path().join("outputs");
        for path in ["a", "", "/", "/../a", "/a/../b", "//"] {
            let begun =
                Arriving::begin(root.path(), &outputs, coming(vec![file(path, b"", false)]));
            assert!(matches!(begun, Err(Failure::Form)), "{path}");
        }
        let one = coming(vec![file("/a", b"12", false)]);
        let arriving = Arriving::begin(root.path(), &outputs, one).unwrap();
        for (index, offset, piece) in [(0, 0, &b"123"[..]), (0, u64::MAX, b"1"), (1, 0, b"1")] {
            assert!(matches!(arriving.write(index, offset, piece), Err(Failure::Form)));
        }
    }
}
