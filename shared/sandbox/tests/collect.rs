//! Collecting a directory that somebody hostile has filled, and may still be filling.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, symlink},
        net::UnixListener,
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, mkdirat, mknodat, openat, renameat_with,
        unlinkat,
    },
    process::geteuid,
};
use tailstep_core::{
    files::{FileContent, Manifest},
    ids::{BlobRef, sha256_hex},
};
use tailstep_sandbox::collect::{CollectError, Collected, Known, Limits, collect};
use tempfile::TempDir;

/// Keeps every piece, by hash.
#[derive(Default)]
struct Pieces {
    by_hash: BTreeMap<String, Vec<u8>>,
    longest: usize,
}

impl Pieces {
    fn put(&mut self, piece: Vec<u8>) -> io::Result<BlobRef> {
        self.longest = self.longest.max(piece.len());
        let blob = BlobRef::of(&piece);
        self.by_hash.insert(blob.sha256.clone(), piece);
        Ok(blob)
    }

    fn whole(&self, content: &FileContent) -> Vec<u8> {
        content.chunks.iter().flat_map(|blob| self.by_hash[&blob.sha256].clone()).collect()
    }
}

fn run(tree: &Path, limits: &Limits, known: &Known) -> (Collected, Pieces) {
    let mut pieces = Pieces::default();
    let collected = collect(tree, limits, known, &mut |piece| pieces.put(piece)).unwrap();
    (collected, pieces)
}

fn manifest(tree: &Path) -> Manifest {
    run(tree, &Limits::default(), &Known::default()).0.manifest
}

fn paths(manifest: &Manifest) -> Vec<&str> {
    manifest.files.iter().map(|file| file.path.as_str()).collect()
}

fn left_out(manifest: &Manifest) -> Vec<(&str, &str)> {
    manifest.left_out.iter().map(|left| (left.path.as_str(), left.why.as_str())).collect()
}

/// A tree of its own, and beside it what must never be read.
fn tree() -> (TempDir, std::path::PathBuf) {
    let holder = tempfile::tempdir().unwrap();
    let at = holder.path().join("outputs");
    fs::create_dir(&at).unwrap();
    fs::create_dir(holder.path().join("outside")).unwrap();
    fs::write(holder.path().join("outside/report.txt"), SENTINEL).unwrap();
    (holder, at)
}

const SENTINEL: &str = "the sentinel outside";

fn fifo(at: &Path) {
    mknodat(CWD, at, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

#[test]
fn bytes_sizes_and_hashes_are_those_of_the_files() {
    let (_holder, at) = tree();
    let all_bytes: Vec<u8> = (0..=255).collect();
    fs::write(at.join("all-bytes"), &all_bytes).unwrap();
    fs::write(at.join("empty"), "").unwrap();
    fs::create_dir_all(at.join("a/b")).unwrap();
    fs::write(at.join("a/b/deep.txt"), "deep").unwrap();
    fs::write(at.join("a-b"), "before a/b in byte order").unwrap();
    let limits = Limits { chunk_bytes: 100, ..Limits::default() };
    let (collected, pieces) = run(&at, &limits, &Known::default());
    let manifest = collected.manifest;
    assert_eq!(paths(&manifest), ["a-b", "a/b/deep.txt", "all-bytes", "empty"]);
    for file in &manifest.files {
        let bytes = fs::read(at.join(&file.path)).unwrap();
        assert_eq!(pieces.whole(&file.content), bytes, "{}", file.path);
        assert_eq!(file.content.size_bytes, bytes.len() as u64);
        assert_eq!(file.content.sha256, sha256_hex(&bytes));
    }
    assert_eq!(manifest.files[2].content.chunks.len(), 3, "100, 100 and 56 bytes");
    assert_eq!(pieces.longest, 100);
    assert!(manifest.files[3].content.chunks.is_empty());
    assert_eq!(manifest.left_out_count(), 0);
    assert_eq!(Manifest::decode(&manifest.encode().unwrap()).unwrap(), manifest);
}

#[test]
fn every_other_kind_is_left_out_with_its_reason() {
    let (holder, at) = tree();
    fs::write(at.join("plain"), "plain").unwrap();
    symlink(holder.path().join("outside"), at.join("link-to-directory")).unwrap();
    symlink(holder.path().join("outside/report.txt"), at.join("link-to-file")).unwrap();
    symlink("plain", at.join("link-within")).unwrap();
    symlink("/", at.join("root")).unwrap();
    symlink("loop", at.join("loop")).unwrap();
    symlink("/proc/self/fd/0", at.join("magic")).unwrap();
    fs::write(at.join("twin-a"), "twins").unwrap();
    fs::hard_link(at.join("twin-a"), at.join("twin-b")).unwrap();
    fs::hard_link(holder.path().join("outside/report.txt"), at.join("hard")).unwrap();
    fifo(&at.join("pipe"));
    let _socket = UnixListener::bind(at.join("socket")).unwrap();
    let link = "it is a link";
    let twin = "it has 2 names (hard links)";
    let mut expected = vec![
        ("hard", twin),
        ("link-to-directory", link),
        ("link-to-file", link),
        ("link-within", link),
        ("loop", link),
        ("magic", link),
        ("pipe", "it is a pipe"),
        ("root", link),
        ("socket", "it is a socket"),
        ("twin-a", twin),
        ("twin-b", twin),
    ];
    if geteuid().is_root() {
        // Character device 1:5 is /dev/zero, which never ends.
        let device = rustix::fs::makedev(1, 5);
        let made = mknodat(
            CWD,
            at.join("zero"),
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            device,
        );
        if made.is_ok() {
            expected.push(("zero", "it is a device"));
        }
    }
    let begun = Instant::now();
    let (collected, pieces) = run(&at, &Limits::default(), &Known::default());
    assert!(begun.elapsed() < Duration::from_secs(5), "something was waited for");
    assert_eq!(paths(&collected.manifest), ["plain"]);
    assert_eq!(left_out(&collected.manifest), expected);
    assert_eq!(pieces.by_hash.into_values().collect::<Vec<_>>(), [b"plain".to_vec()]);
}

#[test]
fn odd_names_are_kept_or_named() {
    let (_holder, at) = tree();
    let long = "n".repeat(255);
    let kept = [
        "-rf",
        "..hidden",
        "...",
        ".dot",
        "Case",
        "case",
        "new\nline",
        "tab\tbell\u{7}esc\u{1b}[2J",
        "back\\slash",
        "é",
        "%2e%2e",
        " ",
        long.as_str(),
    ];
    for name in kept {
        fs::write(at.join(name), name).unwrap();
    }
    fs::write(at.join(OsStr::from_bytes(b"bad\xff\n")), "x").unwrap();
    fs::create_dir(at.join(OsStr::from_bytes(b"dir\xfe"))).unwrap();
    fs::write(at.join(OsStr::from_bytes(b"dir\xfe/inner")), "x").unwrap();
    let manifest = manifest(&at);
    let mut sorted = kept.to_vec();
    sorted.sort_unstable();
    assert_eq!(paths(&manifest), sorted);
    let why = "its name is not UTF-8";
    assert_eq!(left_out(&manifest), [("bad\\xff\\n", why), ("dir\\xfe", why)]);
}

#[test]
fn a_directory_that_turns_into_a_link_leads_nowhere() {
    let (holder, at) = tree();
    let outside = holder.path().join("outside");
    fs::create_dir(at.join("spin")).unwrap();
    fs::write(at.join("spin/report.txt"), "inside").unwrap();
    fs::write(at.join("spin/other.txt"), "inside too").unwrap();
    symlink(&outside, at.join("spin-link")).unwrap();
    fs::write(at.join("flip"), "a file").unwrap();
    symlink(outside.join("report.txt"), at.join("flip-link")).unwrap();
    fifo(&at.join("flip-pipe"));
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = {
        let (stop, at) = (stop.clone(), at.clone());
        thread::spawn(move || {
            let swap = |a: &str, b: &str| {
                let both = RenameFlags::EXCHANGE;
                let _ = renameat_with(CWD, at.join(a), CWD, at.join(b), both);
            };
            let mut swaps = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                swap("spin", "spin-link");
                swap("flip", "flip-link");
                swap("flip", "flip-pipe");
                swaps += 1;
            }
            swaps
        })
    };
    let begun = Instant::now();
    let (mut rounds, mut met) = (0, 0);
    while begun.elapsed() < Duration::from_secs(3) {
        let (collected, pieces) = run(&at, &Limits::default(), &Known::default());
        for piece in pieces.by_hash.values() {
            assert_ne!(piece.as_slice(), SENTINEL.as_bytes(), "the sentinel was read");
        }
        met += usize::from(collected.manifest.files.iter().any(|f| f.path == "spin/report.txt"));
        rounds += 1;
    }
    stop.store(true, Ordering::Relaxed);
    let swaps = swapper.join().unwrap();
    assert!(swaps > 1_000 && rounds > 100 && met > 0, "{swaps} swaps, {rounds} rounds, {met} met");
}

#[test]
fn a_file_that_changes_under_the_reader_is_never_half_collected() {
    let (_holder, at) = tree();
    fs::write(at.join("log"), vec![b'a'; 64 << 10]).unwrap();
    fs::write(at.join("quiet"), "quiet").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (stop, path) = (stop.clone(), at.join("log"));
        thread::spawn(move || {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            let mut round = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                file.write_all_at(&[round; 4_096], 0).unwrap();
                file.set_len(64 << 10).unwrap();
                file.set_len((64 << 10) + u64::from(round) + 1).unwrap();
            }
        })
    };
    let limits = Limits { chunk_bytes: 4_096, ..Limits::default() };
    let (mut given_up, mut rounds) = (0, 0);
    // Beside other tests the writer may not get its turn for a while.
    let until = Instant::now() + Duration::from_secs(120);
    while rounds < 50 || (given_up == 0 && Instant::now() < until) {
        rounds += 1;
        let (Collected { manifest, .. }, pieces) = run(&at, &limits, &Known::default());
        for file in &manifest.files {
            let whole = pieces.whole(&file.content);
            assert_eq!(whole.len() as u64, file.content.size_bytes);
            assert_eq!(sha256_hex(&whole), file.content.sha256);
        }
        assert!(paths(&manifest).contains(&"quiet"));
        given_up += manifest.left_out.len();
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    assert!(given_up > 0, "the writer was never met: the test shows nothing");
    assert_eq!(paths(&manifest(&at)), ["log", "quiet"], "once it is quiet it is collected");
}

#[test]
fn sparse_and_large_files_are_judged_by_their_logical_size() {
    let (_holder, at) = tree();
    File::create(at.join("tera")).unwrap().set_len(1 << 40).unwrap();
    File::create(at.join("holes")).unwrap().set_len(3 << 20).unwrap();
    fs::write(at.join("small"), "small").unwrap();
    let limits = Limits { file_bytes_max: 4 << 20, chunk_bytes: 1 << 20, ..Limits::default() };
    let begun = Instant::now();
    let (collected, pieces) = run(&at, &limits, &Known::default());
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(paths(&collected.manifest), ["holes", "small"]);
    assert_eq!(collected.manifest.files[0].content.chunks.len(), 3);
    let why = "it has 1099511627776 bytes, more than the 4194304 of one file";
    assert_eq!(left_out(&collected.manifest), [("tera", why)]);
    assert_eq!((pieces.longest, collected.stored_bytes), (1 << 20, (3 << 20) + 5));
}

#[test]
fn each_limit_leaves_out_the_rest_and_says_so() {
    let (_holder, at) = tree();
    for index in 0..10 {
        fs::write(at.join(format!("f{index}")), "0123456789").unwrap();
    }
    let check = |limits: Limits, files: usize, why: &str| {
        let (Collected { manifest, .. }, _) = run(&at, &limits, &Known::default());
        assert_eq!(manifest.files.len(), files, "{why}");
        assert!(manifest.left_out.iter().all(|left| left.why == why), "{manifest:?}");
        assert!(!manifest.left_out.is_empty(), "{why}");
        manifest
    };
    let base = Limits::default;
    check(Limits { files_max: 3, ..base() }, 3, "there are more than 3 files");
    check(Limits { bytes_max: 45, ..base() }, 4, "all files together have more than 45 bytes");
    check(Limits { entries_max: 4, ..base() }, 4, "everything behind the first 4 entries");
    check(Limits { time_ms_max: 0, ..base() }, 0, "everything not read within 0 ms");
    let used_up = "earlier outputs have used up what may be stored";
    check(Limits { stored_bytes_max: 25, ..base() }, 2, used_up);
    check(Limits { path_bytes_max: 1, ..base() }, 0, "its path is longer than 1 bytes");
    let few = Limits { files_max: 1, left_out_named_max: 4, ..base() };
    let manifest = check(few, 1, "there are more than 1 files");
    assert_eq!((manifest.left_out.len(), manifest.left_out_more), (4, 5));
    assert_eq!(manifest.left_out_count(), 9);
}

/// Lists are held from the top down to the directory being read. Were names counted only when they
/// are visited, a tree that is wide on every level could make the collector hold the limit times its
/// depth.
#[test]
fn the_names_of_all_levels_share_one_limit() {
    let (_holder, at) = tree();
    let mut level = at.clone();
    for _ in 0..4 {
        for index in 0..40 {
            fs::write(level.join(format!("z{index:02}")), "").unwrap();
        }
        level = level.join("a");
        fs::create_dir(&level).unwrap();
    }
    // The top has 41 names, which leaves room for 9; its directory comes first and may not take more.
    let limits = Limits { entries_max: 50, left_out_named_max: 4, ..Limits::default() };
    let (Collected { manifest, .. }, _) = run(&at, &limits, &Known::default());
    let (top, below): (Vec<&str>, Vec<&str>) =
        paths(&manifest).into_iter().partition(|path| !path.contains('/'));
    assert_eq!(top.len(), 40);
    assert!(below.len() <= 50 - 41, "{below:?}");
    assert_eq!(left_out(&manifest), [(".", "everything behind the first 50 entries")]);
}

#[test]
fn ten_thousand_files_and_a_bottomless_tree_end_in_time() {
    let (_holder, at) = tree();
    for directory in 0..10 {
        let directory = at.join(format!("d{directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..1_000 {
            File::create(directory.join(format!("{file:04}"))).unwrap();
        }
    }
    // Far deeper than any path can say: made handle by handle.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut deep = openat(CWD, &at, flags, Mode::empty()).unwrap();
    for _ in 0..3_000 {
        mkdirat(&deep, "x", Mode::from_raw_mode(0o755)).unwrap();
        deep = openat(&deep, "x", flags, Mode::empty()).unwrap();
    }
    let begun = Instant::now();
    let manifest = manifest(&at);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(manifest.files.len(), 1_000);
    assert_eq!(manifest.left_out.len(), 100);
    assert_eq!(manifest.left_out_count(), 9_001, "9,000 files and the rest of the deep tree");
    remove_deep(&at);
}

/// Removes a chain of directories called `x` that is deeper than paths and descriptors reach: each
/// one is moved to the top before its holder goes.
fn remove_deep(top: &Path) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let holder = openat(CWD, top, flags, Mode::empty()).unwrap();
    let names = (0..).map(|number| format!("moved{number}"));
    let mut name = "x".to_owned();
    for next in names {
        let directory = openat(&holder, &name, flags, Mode::empty()).unwrap();
        let moved = renameat_with(&directory, "x", &holder, &next, RenameFlags::empty());
        unlinkat(&holder, &name, AtFlags::REMOVEDIR).unwrap();
        match moved {
            Ok(()) => name = next,
            Err(_) => return,
        }
    }
}

#[test]
fn what_is_quiet_is_not_read_again() {
    let (_holder, at) = tree();
    fs::write(at.join("old"), "old").unwrap();
    fs::write(at.join("new"), "new").unwrap();
    let limits = Limits::default();
    let (first, _) = run(&at, &limits, &Known::default());
    // Written within the doubtful time: read again.
    let (second, _) = run(&at, &limits, &first.known);
    assert_eq!((first.stored_bytes, second.stored_bytes), (6, 6));
    assert_eq!(second.manifest, first.manifest, "the times of the first sight are kept");
    thread::sleep(Duration::from_millis(2_100));
    let (third, _) = run(&at, &limits, &second.known);
    let (fourth, _) = run(&at, &limits, &third.known);
    assert_eq!((third.stored_bytes, fourth.stored_bytes), (6, 0));
    assert_eq!(fourth.manifest, first.manifest);
    // The same size and a forged time of change: the kernel's own stamp shows it.
    let before = fs::metadata(at.join("old")).unwrap().modified().unwrap();
    let mut file = OpenOptions::new().write(true).open(at.join("old")).unwrap();
    file.write_all(b"NEW").unwrap();
    file.set_modified(before).unwrap();
    let (fifth, _) = run(&at, &limits, &fourth.known);
    assert_eq!(fifth.stored_bytes, 3);
    assert_ne!(fifth.manifest, first.manifest);
    let stored = serde_json::to_vec(&fifth.known).unwrap();
    assert_eq!(serde_json::from_slice::<Known>(&stored).unwrap(), fifth.known);
}

#[test]
fn a_missing_directory_and_a_refusing_store_are_errors() {
    let (holder, at) = tree();
    fs::write(at.join("f"), "f").unwrap();
    symlink(&at, holder.path().join("link")).unwrap();
    let mut never = |_: Vec<u8>| -> io::Result<BlobRef> { Err(io::Error::other("full")) };
    for path in ["missing", "link", "outputs/f"] {
        let path = holder.path().join(path);
        let refused = collect(&path, &Limits::default(), &Known::default(), &mut never);
        assert!(matches!(refused, Err(CollectError::Directory { .. })), "{}", path.display());
    }
    let refused = collect(&at, &Limits::default(), &Known::default(), &mut never);
    assert!(matches!(refused, Err(CollectError::Store(_))));
}

/// A tree by path: some directories, some files.
fn trees() -> impl Strategy<Value = BTreeMap<Vec<String>, Vec<u8>>> {
    let name = "[a-c. -]{1,3}|\\PC{1,4}";
    let name = name.prop_map(|name: String| name.replace(['/', '\0'], "_"));
    let name = name.prop_filter("not a name", |name| name != "." && name != "..");
    let path = prop::collection::vec(name, 1..4);
    prop::collection::btree_map(path, prop::collection::vec(any::<u8>(), 0..40), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever plain files there are: all of them, byte for byte, in order, and nothing else.
    #[test]
    fn plain_trees_come_back_whole(tree in trees(), chunk_bytes in 1_usize..20) {
        let holder = tempfile::tempdir().unwrap();
        let mut model = BTreeMap::new();
        for (path, bytes) in tree {
            let at = holder.path().join(path.join("/"));
            // A file may be in the way of a directory, and the other way round.
            let made = fs::create_dir_all(at.parent().unwrap()).and_then(|()| fs::write(&at, &bytes));
            if made.is_ok() {
                model.insert(path.join("/"), bytes);
            }
        }
        let limits = Limits { chunk_bytes, ..Limits::default() };
        let (Collected { manifest, .. }, pieces) = run(holder.path(), &limits, &Known::default());
        let found: BTreeMap<String, Vec<u8>> =
            manifest.files.iter().map(|f| (f.path.clone(), pieces.whole(&f.content))).collect();
        prop_assert_eq!(&found, &model);
        prop_assert_eq!(manifest.files.len(), model.len());
        prop_assert!(manifest.files.is_sorted_by(|a, b| a.path < b.path));
        prop_assert_eq!(manifest.left_out_count(), 0);
    }
}
