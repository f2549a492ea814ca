//! A workspace as an archive: the same tree gives the same bytes and comes back, and hostile trees
//! and archives do no harm.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops where it fails")]

use std::{
    fs, io,
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use tailstep_sandbox::workspace::{Caps, WorkspaceError, pack, unpack};
use tar::{Builder, EntryType, Header};

fn tree(at: &Path, order: &[usize]) {
    fs::create_dir_all(at.join("dir/deep")).unwrap();
    fs::create_dir(at.join("empty")).unwrap();
    for n in order {
        fs::write(at.join(format!("dir/file{n}")), format!("content {n}").repeat(*n)).unwrap();
    }
    fs::write(at.join("run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(at.join("run.sh"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(at.join("empty"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("dir/file1", at.join("inside")).unwrap();
    symlink("/etc/passwd", at.join("outside")).unwrap();
    symlink("no/where", at.join("dangling")).unwrap();
    let long = "n".repeat(200);
    fs::create_dir(at.join(&long)).unwrap();
    fs::write(at.join(&long).join(&long), "long").unwrap();
    symlink(&long, at.join("long-link")).unwrap();
    symlink("x".repeat(300), at.join("longer-link")).unwrap();
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"odd \xff\nname");
    fs::write(at.join(odd), "odd").unwrap();
}

#[test]
fn a_tree_comes_back_and_packs_to_the_same_bytes() {
    let (one, two, three) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(one.path(), &[1, 2, 3, 0]);
    tree(two.path(), &[3, 0, 2, 1]);
    let packed = pack(one.path(), &Caps::default()).unwrap();
    assert_eq!((packed.left_out_total, packed.left_out.len()), (0, 0), "{:?}", packed.left_out);
    assert_eq!(packed.entries, 16);
    assert!(packed.bytes == pack(two.path(), &Caps::default()).unwrap().bytes, "order and times");
    unpack(&packed.bytes, three.path(), &Caps::default()).unwrap();
    assert!(packed.bytes == pack(three.path(), &Caps::default()).unwrap().bytes, "there and back");
    assert_eq!(fs::read_to_string(three.path().join("inside")).unwrap(), "content 1");
    assert_eq!(fs::read_link(three.path().join("outside")).unwrap(), Path::new("/etc/passwd"));
    let mode = fs::metadata(three.path().join("run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "executable, without the set-user-id bit");
    let text = String::from_utf8_lossy(&packed.bytes);
    assert!(!text.contains("root:x:0"), "links are not followed");
}

#[test]
fn unpacking_replaces_and_never_writes_through_what_is_there() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("a"), "new").unwrap();
    let packed = pack(from.path(), &Caps::default()).unwrap().bytes;
    let holder = tempfile::tempdir().unwrap();
    let (target, victim) = (holder.path().join("ws"), holder.path().join("victim"));
    fs::create_dir(&target).unwrap();
    fs::write(&victim, "untouched").unwrap();
    symlink(&victim, target.join("a")).unwrap();
    unpack(&packed, &target, &Caps::default()).unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "new");
}

#[test]
fn what_is_no_file_is_left_out_and_named() {
    let from = tempfile::tempdir().unwrap();
    let _listener = UnixListener::bind(from.path().join("socket")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .unwrap();
    fs::write(from.path().join("file"), "").unwrap();
    let packed = pack(from.path(), &Caps::default()).unwrap();
    let left_out: Vec<_> = packed
        .left_out
        .iter()
        .map(|left| (left.path.to_str().unwrap(), left.why.as_str()))
        .collect();
    assert_eq!(left_out, [("pipe", "it is a pipe"), ("socket", "it is a socket")]);
    assert_eq!((packed.entries, packed.left_out_total), (1, 2));
}

#[test]
fn caps_hold_in_both_directions() {
    let from = tempfile::tempdir().unwrap();
    for n in 0..20 {
        fs::write(from.path().join(format!("{n}")), vec![0; 100_000]).unwrap();
    }
    let sparse = fs::File::create(from.path().join("sparse")).unwrap();
    let whole = Caps::default();
    let (few, small) =
        (Caps { entries_max: 10, ..whole }, Caps { raw_bytes_max: 1_000_000, ..whole });
    let packed = pack(from.path(), &whole).unwrap().bytes;
    let tiny = Caps { packed_bytes_max: packed.len() as u64 - 1, ..whole };
    let check = |outcome: Result<(), WorkspaceError>, what: &str| {
        let why = outcome.unwrap_err();
        assert!(matches!(why, WorkspaceError::TooLarge { .. }), "{why:?}");
        assert!(why.to_string().contains(what), "{why}");
    };
    for (caps, what) in
        [(&few, "number of entries"), (&small, "size of its files"), (&tiny, "archive")]
    {
        check(pack(from.path(), caps).map(drop), what);
        let to = tempfile::tempdir().unwrap();
        check(unpack(&packed, to.path(), caps), what);
    }
    sparse.set_len(1 << 40).unwrap();
    check(pack(from.path(), &whole).map(drop), "size of its files");
}

type Make<'a> = &'a dyn Fn(&mut Builder<GzEncoder<Vec<u8>>>);

fn archive(make: Make<'_>) -> Vec<u8> {
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    make(&mut builder);
    builder.into_inner().unwrap().finish().unwrap()
}

/// Writes an entry whose name no library would write.
fn raw(
    builder: &mut Builder<GzEncoder<Vec<u8>>>,
    kind: EntryType,
    name: &[u8],
    link: &[u8],
    content: &[u8],
) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o6777);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..name.len()].copy_from_slice(name);
    gnu.linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

#[test]
fn hostile_archives_are_refused_and_write_nothing_outside() {
    let holder = tempfile::tempdir().unwrap();
    let outside = holder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let to_outside = outside.to_str().unwrap().as_bytes().to_vec();
    let cases: [(&str, Make<'_>, &str); 12] = [
        ("parent", &|b| raw(b, EntryType::Regular, b"../outside/e", b"", b"x"), "not plain"),
        (
            "inner parent",
            &|b| raw(b, EntryType::Regular, b"a/../../outside/e", b"", b"x"),
            "not plain",
        ),
        ("absolute", &|b| raw(b, EntryType::Regular, b"/tmp/e", b"", b"x"), "not plain"),
        ("itself", &|b| raw(b, EntryType::Directory, b"./", b"", b""), "not plain"),
        (
            "through a link",
            &|b| {
                raw(b, EntryType::Symlink, b"l", &to_outside, b"");
                raw(b, EntryType::Regular, b"l/e", b"", b"x");
            },
            "through a link",
        ),
        (
            "directory over a link",
            &|b| {
                raw(b, EntryType::Symlink, b"l", &to_outside, b"");
                raw(b, EntryType::Directory, b"l/d", b"", b"");
            },
            "through a link",
        ),
        (
            "hard link",
            &|b| raw(b, EntryType::Link, b"h", b"/etc/passwd", b""),
            "no file, directory",
        ),
        ("device", &|b| raw(b, EntryType::Char, b"d", b"", b""), "no file, directory"),
        ("pipe", &|b| raw(b, EntryType::Fifo, b"f", b"", b""), "no file, directory"),
        ("sparse", &|b| raw(b, EntryType::GNUSparse, b"s", b"", b""), "no file, directory"),
        (
            "pax",
            &|b| raw(b, EntryType::XHeader, b"p", b"", b"20 path=../../etc/x\n"),
            "no file, directory",
        ),
        ("long name", &|b| raw(b, EntryType::GNULongName, b"x", b"", &[b'a'; 100_000]), "too long"),
    ];
    for (name, make, why) in cases {
        let target = holder.path().join("ws");
        fs::create_dir(&target).unwrap();
        let refused = unpack(&archive(make), &target, &Caps::default()).unwrap_err();
        assert!(matches!(refused, WorkspaceError::Hostile { .. }), "{name}: {refused:?}");
        assert!(refused.to_string().contains(why), "{name}: {refused}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{name}");
        fs::remove_dir_all(&target).unwrap();
    }
}

#[test]
fn bombs_and_torn_archives_end_early() {
    let target = tempfile::tempdir().unwrap();
    let caps = Caps { raw_bytes_max: 1 << 20, ..Caps::default() };
    let bomb = archive(&|builder| {
        let mut header = Header::new_gnu();
        header.set_size(200 << 20);
        header.set_mode(0o644);
        let content = io::Read::take(io::repeat(0), 200 << 20);
        builder.append_data(&mut header, "bomb", content).unwrap();
    });
    assert!(bomb.len() < 2 << 20);
    let refused = unpack(&bomb, target.path(), &caps).unwrap_err();
    assert!(matches!(refused, WorkspaceError::TooLarge { .. }), "{refused:?}");
    let good = archive(&|b| raw(b, EntryType::Regular, b"f", b"", &[7; 5_000]));
    for cut in [5, good.len() / 2, good.len() - 9] {
        let torn = unpack(&good[..cut], target.path(), &Caps::default()).unwrap_err();
        assert!(matches!(torn, WorkspaceError::Corrupt(_)), "{cut}: {torn:?}");
    }
    let noise = unpack(b"not an archive at all", target.path(), &Caps::default()).unwrap_err();
    assert!(matches!(noise, WorkspaceError::Corrupt(_)), "{noise:?}");
}
