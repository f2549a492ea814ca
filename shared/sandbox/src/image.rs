//! An image's file system, unpacked once beside others and used read-only by any number of
//! sandboxes. The archive is one that `docker export` or `tar` of a root directory makes, plain or
//! gzipped. Owners and devices are left out: inside, everything belongs to nobody in particular.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Seek},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use rustix::fs::OFlags;
use thiserror::Error;

use crate::workspace::{Caps, WorkspaceError, unpack_system};

/// Images of whole build systems have a few GiB in some hundred thousand files.
const CAPS: Caps =
    Caps { packed_bytes_max: u64::MAX, raw_bytes_max: 16 << 30, entries_max: 2_000_000 };

#[derive(Debug, Error)]
pub enum ImageError {
    #[error("cannot read the image {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("image {path} is refused: {why}")]
    Refused { path: PathBuf, why: String },
    #[error("cannot unpack the image into {directory}")]
    Unpack { directory: PathBuf, source: io::Error },
}

/// Returns the directory below `cache` that holds the image's tree, unpacking it if that was not
/// done before. Two processes may do it at once; one tree stays.
///
/// # Errors
/// When the archive is not one, leads out of its own tree, or does not fit.
pub fn unpack(archive: &Path, cache: &Path) -> Result<PathBuf, ImageError> {
    let unreadable = |source| ImageError::Read { path: archive.to_owned(), source };
    // Without waiting: a pipe would keep the opener until somebody writes to it.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(archive).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() {
        let why = "it is neither a directory nor a file".to_owned();
        return Err(ImageError::Refused { path: archive.to_owned(), why });
    }
    // Another file, or the same one written anew, is another image.
    let name = format!("{:x}-{:x}-{:x}", found.ino(), found.size(), nanoseconds(&found));
    let tree = cache.join(&name);
    if tree.is_dir() {
        return Ok(tree);
    }
    let half = cache.join(format!("{name}.{}.part", std::process::id()));
    let failed = |source| ImageError::Unpack { directory: half.clone(), source };
    fs::create_dir_all(&half).map_err(failed)?;
    let done = unpack_into(file, archive, &half);
    let done = done.and_then(|()| match fs::rename(&half, &tree) {
        Ok(()) => Ok(()),
        // Somebody else was faster.
        Err(_) if tree.is_dir() => fs::remove_dir_all(&half).map_err(failed),
        Err(why) => Err(failed(why)),
    });
    if done.is_err() {
        // What is left of it does no harm, and the error matters more.
        let _ = fs::remove_dir_all(&half);
    }
    done.map(|()| tree)
}

fn nanoseconds(found: &fs::Metadata) -> i128 {
    i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec())
}

fn unpack_into(mut file: File, archive: &Path, into: &Path) -> Result<(), ImageError> {
    let unreadable = |source| ImageError::Read { path: archive.to_owned(), source };
    let mut magic = [0; 2];
    let gzipped = file.read_exact(&mut magic).is_ok() && magic == [0x1f, 0x8b];
    file.rewind().map_err(unreadable)?;
    let file = BufReader::new(file);
    let content: Box<dyn Read> =
        if gzipped { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    unpack_system(content, into, &CAPS).map_err(|why| ImageError::Refused {
        path: archive.to_owned(),
        // The library's own message would show the file's content.
        why: if let WorkspaceError::Corrupt(_) = why {
            "it is no tar archive (plain or gzipped), or a damaged one".to_owned()
        } else {
            why.to_string()
        },
    })?;
    match fs::read_dir(into).map(|mut found| found.next().is_none()) {
        Ok(false) => Ok(()),
        Ok(true) | Err(_) => Err(ImageError::Refused {
            path: archive.to_owned(),
            why: "it holds no files".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use tar::{Builder, EntryType, Header};

    use super::*;

    fn entry(tar: &mut Builder<Vec<u8>>, kind: EntryType, path: &str, link: &str, content: &[u8]) {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_size(content.len() as u64);
        // Written raw, since the library refuses the paths that are tried here.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        tar.append(&header, content).unwrap();
    }

    fn image(fill: impl FnOnce(&mut Builder<Vec<u8>>)) -> (tempfile::TempDir, PathBuf) {
        let scratch = tempfile::tempdir().unwrap();
        let mut tar = Builder::new(Vec::new());
        fill(&mut tar);
        let archive = scratch.path().join("image.tar");
        fs::write(&archive, tar.into_inner().unwrap()).unwrap();
        (scratch, archive)
    }

    #[test]
    fn an_image_is_unpacked_once() {
        let (scratch, archive) = image(|tar| {
            entry(tar, EntryType::Directory, "usr/", "", b"");
            entry(tar, EntryType::Regular, "usr/one", "", b"1");
            entry(tar, EntryType::Link, "usr/two", "usr/one", b"");
            entry(tar, EntryType::Symlink, "bin", "usr", b"");
            entry(tar, EntryType::Char, "null", "", b"");
        });
        let cache = scratch.path().join("cache");
        let tree = unpack(&archive, &cache).unwrap();
        assert_eq!(fs::read(tree.join("usr/two")).unwrap(), b"1");
        assert_eq!(fs::read_link(tree.join("bin")).unwrap(), Path::new("usr"));
        assert!(!tree.join("null").exists());
        fs::write(tree.join("mark"), "").unwrap();
        assert!(unpack(&archive, &cache).unwrap().join("mark").exists());
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
    }

    #[test]
    fn nothing_is_written_outside() {
        let outside = tempfile::tempdir().unwrap();
        let out = outside.path().to_str().unwrap();
        for (path, through) in [("../up", ""), ("a/../../up", ""), ("door/up", out)] {
            let (scratch, archive) = image(|tar| {
                if !through.is_empty() {
                    entry(tar, EntryType::Symlink, "door", through, b"");
                }
                entry(tar, EntryType::Regular, path, "", b"x");
            });
            let cache = scratch.path().join("cache");
            let refused = unpack(&archive, &cache).unwrap_err();
            assert!(matches!(refused, ImageError::Refused { .. }), "{path}: {refused}");
            assert_eq!(fs::read_dir(&cache).unwrap().count(), 0, "{path} left something");
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        let (scratch, archive) =
            image(|tar| entry(tar, EntryType::Link, "key", "../../etc/hostname", b""));
        assert!(unpack(&archive, &scratch.path().join("cache")).is_err());
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        for (name, content) in [("empty", &b""[..]), ("text", b"hello\n"), ("zip", b"\x1f\x8bx")] {
            let archive = scratch.path().join(name);
            fs::write(&archive, content).unwrap();
            assert!(unpack(&archive, &scratch.path().join("cache")).is_err(), "{name}");
        }
        assert!(unpack(Path::new("/dev/null"), scratch.path()).is_err());
    }
}
