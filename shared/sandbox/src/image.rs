//! An image's file system, unpacked once beside others and used read-only by any number of
//! sandboxes. The archive is one that `docker export` or `tar` of a root directory makes, plain or
//! gzipped. Owners and devices are left out: inside, everything belongs to nobody in particular.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Seek},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use tar::{Archive, Entry};
use thiserror::Error;

/// The most that an image may hold. Images of whole build systems have a few GiB.
const BYTES_MAX: u64 = 16 << 30;
const ENTRIES_MAX: u64 = 2_000_000;

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
    let file = File::open(archive).map_err(unreadable)?;
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
    let mut tar = Archive::new(content.take(BYTES_MAX));
    let refused = |why: String| ImageError::Refused { path: archive.to_owned(), why };
    let mut entries = 0;
    // The library's own message would show the file's content.
    let unlike = |_| ImageError::Refused {
        path: archive.to_owned(),
        why: "it is no tar archive, or a damaged one".to_owned(),
    };
    for entry in tar.entries().map_err(unlike)? {
        entries += 1;
        if entries > ENTRIES_MAX {
            return Err(refused(format!("it has more than {ENTRIES_MAX} entries")));
        }
        place(&mut entry.map_err(unlike)?, into).map_err(refused)?;
    }
    match fs::read_dir(into).map(|mut found| found.next().is_none()) {
        Ok(false) => Ok(()),
        _ => Err(refused("it holds no files".to_owned())),
    }
}

/// Writes one entry below `into`.
///
/// # Errors
/// One line that names the entry.
fn place(entry: &mut Entry<'_, impl Read>, into: &Path) -> Result<(), String> {
    let path = entry.path().map_err(|why| format!("an entry's path cannot be read: {why}"))?;
    let path = path.into_owned();
    let failed = |why: io::Error| format!("entry {}: {why}", path.display());
    let Some(inner) = plain(&path) else {
        return Err(format!("entry {} leads out of the image", path.display()));
    };
    if inner.as_os_str().is_empty() {
        return Ok(());
    }
    let target = into.join(&inner);
    let holder = target.parent().unwrap_or(into);
    no_links(into, inner.parent().unwrap_or(Path::new(""))).map_err(failed)?;
    fs::create_dir_all(holder).map_err(failed)?;
    let kind = entry.header().entry_type();
    let mode = entry.header().mode().map_err(failed)? & 0o777;
    if kind.is_dir() {
        if !fs::symlink_metadata(&target).is_ok_and(|found| found.is_dir()) {
            clear(&target).map_err(failed)?;
            fs::create_dir(&target).map_err(failed)?;
        }
        // Whoever unpacks must be able to fill and to remove it.
        return fs::set_permissions(&target, PermissionsExt::from_mode(mode | 0o700))
            .map_err(failed);
    }
    if kind.is_file() {
        clear(&target).map_err(failed)?;
        let mut file = File::create_new(&target).map_err(failed)?;
        io::copy(entry, &mut file).map_err(failed)?;
        return file.set_permissions(PermissionsExt::from_mode(mode | 0o400)).map_err(failed);
    }
    if kind.is_symlink() || kind.is_hard_link() {
        let link = entry.link_name().map_err(failed)?.unwrap_or_default().into_owned();
        clear(&target).map_err(failed)?;
        if kind.is_symlink() {
            return symlink(link, &target).map_err(failed);
        }
        let Some(original) = plain(&link) else {
            return Err(format!("entry {} links out of the image", path.display()));
        };
        no_links(into, &original).map_err(failed)?;
        return fs::hard_link(into.join(original), &target).map_err(failed);
    }
    // Devices and pipes: those that a sandbox needs are made there.
    Ok(())
}

/// A path without a root and without steps up; `None` if it has those.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

/// Nothing is written through a link that the image itself has put there.
fn no_links(into: &Path, inner: &Path) -> io::Result<()> {
    let mut at = into.to_owned();
    for part in inner.components() {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_symlink() => {
                return Err(io::Error::other("it would be reached through a link"));
            }
            Ok(_) => {}
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

fn clear(target: &Path) -> io::Result<()> {
    match fs::remove_file(target) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
        _ => Ok(()),
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
