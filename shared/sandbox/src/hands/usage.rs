//! How much the sandbox's own directories hold. Nothing in the kernel bounds a plain directory for one
//! user on every file system, so the guard looks now and then, and ends a sandbox that goes on writing
//! beyond its limit. One that only has much may go on, or nobody could clean up.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{AtFlags, FileType, statat};

use crate::{
    spec::{Access, Limits},
    toolset::{Inner, Root, Step, Walked, walk},
    wire::Start,
};

/// Between two looks. A fast disk takes about a gigabyte in it.
const EVERY: Duration = Duration::from_secs(1);

/// A look at a large tree is followed by a longer pause, so that looking costs a twentieth of a core.
const PAUSE_FACTOR: u32 = 20;

/// Less is no growth: programs rewrite logs and temporary files.
const GROWTH_BYTES: u64 = 16 << 20;
const GROWTH_ENTRIES: u64 = 1_000;

pub(crate) struct Usage<'a> {
    directories: Vec<&'a Path>,
    limits: &'a Limits,
    last: Option<Held>,
    next: Instant,
}

#[derive(Clone, Copy, Default)]
struct Held {
    bytes: u64,
    entries: u64,
}

impl<'a> Usage<'a> {
    pub(super) fn of(start: &'a Start) -> Self {
        let owned = start.mounts.iter().filter(|mount| mount.access == Access::Owned);
        let sources = owned.map(|mount| mount.source.as_path());
        let directories = start.workspace.as_deref().into_iter().chain(sources).collect();
        Self { directories, limits: &start.limits, last: None, next: Instant::now() + EVERY }
    }

    /// When to look again; `None` when there is nothing to look at.
    pub(crate) fn next(&self) -> Option<Instant> {
        (!self.directories.is_empty()).then_some(self.next)
    }

    /// Looks, if it is time; true when the limit is passed and there is more than the last time.
    pub(crate) fn is_passed(&mut self) -> bool {
        if self.next().is_none_or(|next| Instant::now() < next) {
            return false;
        }
        let began = Instant::now();
        let held = self.held();
        self.next = Instant::now() + EVERY.max(began.elapsed() * PAUSE_FACTOR);
        let Some(last) = self.last.replace(held) else { return false };
        let Limits { disk_bytes, disk_entries_max, .. } = *self.limits;
        (held.bytes > disk_bytes && held.bytes > last.bytes + GROWTH_BYTES)
            || (held.entries > disk_entries_max && held.entries > last.entries + GROWTH_ENTRIES)
    }

    fn held(&self) -> Held {
        let mut held = Held::default();
        // Beyond twice the limit the exact number does not matter.
        let most = usize::try_from(self.limits.disk_entries_max.saturating_mul(2));
        let most = most.unwrap_or(usize::MAX);
        for directory in &self.directories {
            let Ok(root) = Root::open(directory, &PathBuf::from("/")) else { continue };
            let mut visit = |path: &Inner, kind: FileType| {
                held.entries += 1;
                held.bytes = held.bytes.saturating_add(bytes(&root, path, kind));
                Step::On
            };
            let walked = walk(&root, &Inner::top(), most, &mut visit, &mut |_, _| {});
            if walked == Walked::Bounded {
                // So that growth beyond what is counted is growth.
                held.entries = held.entries.saturating_add(self.last.map_or(0, |l| l.entries));
            }
        }
        held
    }
}

/// What a file takes on the disk, holes not counted.
fn bytes(root: &Root, path: &Inner, kind: FileType) -> u64 {
    if kind != FileType::RegularFile {
        return 0;
    }
    let Ok(holder) = root.parent(path) else { return 0 };
    let name = path.as_path().file_name().unwrap_or_default();
    let found = statat(&holder, name, AtFlags::SYMLINK_NOFOLLOW);
    found.map_or(0, |found| u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512))
}
