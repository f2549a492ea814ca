//! How much the sandbox's own directories hold. Nothing in the kernel bounds a plain directory for one
//! user on every file system, so the guard looks now and then, and ends a sandbox that goes on writing
//! beyond its limit. One that only has much may go on, or nobody could clean up.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use rustix::fs::FileType;

use super::tree::{Stopped, visit};
use crate::{
    spec::{Access, Limits},
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

    /// Looks, if it is time; true when the limit is passed and there is more than the last time, or so
    /// much, or so deep, that it is not counted.
    pub(crate) fn is_passed(&mut self) -> bool {
        if self.next().is_none_or(|next| Instant::now() < next) {
            return false;
        }
        let began = Instant::now();
        let held = self.held();
        self.next = Instant::now() + EVERY.max(began.elapsed() * PAUSE_FACTOR);
        let Some(held) = held else { return true };
        let Some(last) = self.last.replace(held) else { return false };
        let Limits { disk_bytes, disk_entries_max, .. } = *self.limits;
        (held.bytes > disk_bytes && held.bytes > last.bytes + GROWTH_BYTES)
            || (held.entries > disk_entries_max && held.entries > last.entries + GROWTH_ENTRIES)
    }

    /// `None` when no limit lets it be counted.
    fn held(&self) -> Option<Held> {
        let mut held = Held::default();
        // Beyond twice the limit the exact number does not matter.
        let most = self.limits.disk_entries_max.saturating_mul(2);
        for directory in &self.directories {
            let visited = visit(directory, most, &mut |_, _, found| {
                held.entries += 1;
                if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
                    // What the file takes on the disk, holes not counted.
                    let blocks = u64::try_from(found.st_blocks).unwrap_or(0);
                    held.bytes = held.bytes.saturating_add(blocks.saturating_mul(512));
                }
                Ok(())
            });
            match visited {
                // Something that cannot be read now can be the next time.
                Ok(()) | Err(Stopped::Failed(_)) => {}
                Err(Stopped::Nested | Stopped::Entries) => return None,
            }
        }
        Some(held)
    }
}
