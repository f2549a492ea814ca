//! Whose rights the sandbox has on the host: a high user id that nobody else has, when the
//! supervisor may give one, else the supervisor's own; never the host's root.

use std::{
    ffi::CStr,
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fstat, open},
    process::{Pid, getegid, geteuid},
    thread::{CapabilitySet, capabilities, set_thread_groups},
};

use super::tree::{Stopped, unnest, visit};

/// The user inside. Not 0, so that programs that behave differently for root do not.
pub(super) const INNER_ID: u32 = 1_000;

/// Host ids given to sandboxes: far above those of people, services and the usual ranges of
/// subordinate ids, and below 2^31, where some programs stumble.
const HOST_IDS: std::ops::Range<u32> = 0x7000_0000..0x7001_0000;

/// Files of one workspace whose owner is changed; a tree larger than this is a mistake.
const OWNED_MAX: u64 = 5_000_000;

/// What the supervisor may do for its sandboxes.
pub(super) struct Rights {
    /// The ids that it may give to files and processes, if it may: the maps of its user namespace.
    switches: Option<Maps>,
    /// May copy mounts of the host's namespace, whatever the sandbox's user may reach.
    pub(super) mounts_outside: bool,
}

/// Tables of `user_namespaces(7)`.
struct Maps {
    uid: String,
    gid: String,
}

impl Maps {
    fn read() -> Result<Self, String> {
        let table = |name: &str| {
            fs::read_to_string(format!("/proc/self/{name}"))
                .map_err(|why| format!("cannot read /proc/self/{name}: {why}"))
        };
        Ok(Self { uid: table("uid_map")?, gid: table("gid_map")? })
    }

    /// A user and a group for a sandbox.
    fn free(&self, spread: u32) -> Result<(u32, u32), String> {
        let free = free_id(&self.uid, spread).zip(free_id(&self.gid, spread));
        free.ok_or_else(|| {
            "no user id but root's is mapped here: give this container a range of user ids".into()
        })
    }
}

impl Rights {
    pub(super) fn look() -> Result<Self, String> {
        let held = capabilities(None).map_err(|why| format!("cannot read capabilities: {why}"))?;
        let switching = CapabilitySet::SETUID
            | CapabilitySet::SETGID
            | CapabilitySet::CHOWN
            | CapabilitySet::DAC_OVERRIDE;
        let switches = held.effective.contains(switching);
        if !switches && geteuid().is_root() {
            return Err("the supervisor is root but may not change users: run it as an \
                        ordinary user, or give it CAP_SETUID, CAP_SETGID, CAP_CHOWN and \
                        CAP_DAC_OVERRIDE"
                .into());
        }
        let mounts_outside = switches && held.effective.contains(CapabilitySet::SYS_ADMIN);
        let switches = if switches { Some(Maps::read()?) } else { None };
        // Better known now than by the failure of what comes before a user is needed.
        switches.as_ref().map_or(Ok(()), |maps| maps.free(0).map(drop))?;
        Ok(Self { switches, mounts_outside })
    }

    /// Leaves the supervisor's supplementary groups, which would reach into the sandbox.
    pub(super) fn drop_groups(&self) -> Result<(), String> {
        if self.switches.is_none() {
            return Ok(());
        }
        set_thread_groups(&[]).map_err(|why| format!("cannot leave supplementary groups: {why}"))
    }

    /// Chooses the host user of the sandbox over `workspace`.
    pub(super) fn identity(&self, workspace: Option<&Path>) -> Result<Identity, String> {
        let (host_uid, host_gid) = match &self.switches {
            Some(maps) => maps.free(workspace.map_or(0, spread))?,
            None => (geteuid().as_raw(), getegid().as_raw()),
        };
        Ok(Identity { host_uid, host_gid, switches: self.switches.is_some() })
    }
}

pub(super) struct Identity {
    host_uid: u32,
    host_gid: u32,
    /// May give files and processes another owner.
    switches: bool,
}

impl Identity {
    /// Gives the sandbox's user what is in a directory, without following links: all of one that is the
    /// sandbox's own, and of a borrowed one what belongs to its owner, so that it can be as it was again. A
    /// file with several names may have one elsewhere and keeps its owner. What an earlier sandbox nested
    /// too deep is moved up in a directory of its own: else no sandbox could ever have it again, and
    /// nobody could clean up.
    pub(super) fn take_over(&self, lent: &Lent) -> Result<(), String> {
        if lent.borrowed && !self.switches {
            return Ok(());
        }
        let owner = |found: &Stat| match lent.borrowed {
            _ if !self.switches => None,
            _ if !is_directory(found) && found.st_nlink > 1 => None,
            false => Some((self.host_uid, Some(self.host_gid))),
            // The group stays, and so do the bits that a change of owner takes away.
            true if found.st_uid != lent.uid || is_set_id(found) => None,
            true => Some((self.host_uid, None)),
        };
        let mut taken = own(&lent.directory, &owner);
        if !lent.borrowed && matches!(taken, Err(Stopped::Nested)) {
            taken = unnest(&lent.directory)
                .map_err(Stopped::Failed)
                .and_then(|()| own(&lent.directory, &owner));
        }
        match taken {
            // Nothing was to be changed, and what cannot be read is the sandbox's affair.
            Err(Stopped::Failed(_) | Stopped::Entries) if !self.switches => Ok(()),
            taken => {
                taken.map_err(|why| format!("cannot take over {}: {why}", lent.directory.display()))
            }
        }
    }

    /// Gives what the sandbox's user has in a directory to whoever had that before. All of it was made
    /// inside or taken over, whatever names it has now.
    pub(super) fn give_back(&self, lent: &Lent) -> Result<(), String> {
        if !self.switches {
            return Ok(());
        }
        let owner = |found: &Stat| {
            let made_inside = found.st_gid == self.host_gid;
            (found.st_uid == self.host_uid).then_some((lent.uid, made_inside.then_some(lent.gid)))
        };
        own(&lent.directory, &owner)
            .map_err(|why| format!("cannot give back {}: {why}", lent.directory.display()))
    }

    /// Maps the inner user of the new namespace that `pid` is in.
    pub(super) fn map_user(&self, pid: Pid) -> Result<(), String> {
        let put = |file: &str, line: &str| {
            let path = PathBuf::from(format!("/proc/{}/{file}", pid.as_raw_nonzero()));
            fs::write(&path, line).map_err(|why| {
                format!("cannot write {file} of the new user namespace ({line}): {why}")
            })
        };
        put("setgroups", "deny")?;
        put("uid_map", &format!("{INNER_ID} {} 1", self.host_uid))?;
        put("gid_map", &format!("{INNER_ID} {} 1", self.host_gid))
    }
}

/// A directory that the sandbox's user has for a while, and whose it was.
pub(super) struct Lent {
    directory: PathBuf,
    /// It goes back afterwards.
    borrowed: bool,
    uid: u32,
    gid: u32,
}

impl Lent {
    pub(super) fn look(directory: &Path, borrowed: bool) -> Result<Self, String> {
        let found = fs::metadata(directory)
            .map_err(|why| format!("cannot take over {}: {why}", directory.display()))?;
        Ok(Self { directory: directory.to_owned(), borrowed, uid: found.uid(), gid: found.gid() })
    }
}

fn is_directory(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Directory
}

/// Whether a program that is started from the file gets the rights of its owner or group.
fn is_set_id(found: &Stat) -> bool {
    let mode = Mode::from_raw_mode(found.st_mode);
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        && mode.intersects(Mode::SUID | Mode::SGID)
}

/// Changes user and group of a directory and of what is in it, as `owner` says. Does all that it can
/// before it fails.
fn own(
    directory: &Path,
    owner: &impl Fn(&Stat) -> Option<(u32, Option<u32>)>,
) -> Result<(), Stopped> {
    let change = |holder: BorrowedFd<'_>, name: &CStr, found: &Stat, flags| -> io::Result<()> {
        let Some((uid, gid)) = owner(found) else { return Ok(()) };
        if (uid, gid.unwrap_or(found.st_gid)) == (found.st_uid, found.st_gid) {
            return Ok(());
        }
        Ok(chownat(holder, name, Some(Uid::from_raw(uid)), gid.map(Gid::from_raw), flags)?)
    };
    let top = open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let top = top.map_err(io::Error::from)?;
    let found = fstat(&top).map_err(io::Error::from)?;
    let mut outcome = change(top.as_fd(), c"", &found, AtFlags::EMPTY_PATH);
    let visited = visit(directory, OWNED_MAX, &mut |holder, name, found| {
        let changed = change(holder, name, found, AtFlags::SYMLINK_NOFOLLOW);
        outcome = std::mem::replace(&mut outcome, Ok(())).and(changed);
        Ok(())
    });
    outcome?;
    visited
}

/// A stable number for a workspace: the same one gets the same user again, so that its files need
/// no new owner; different ones mostly differ.
fn spread(workspace: &Path) -> u32 {
    let inode = fs::metadata(workspace).map_or(0, |found| found.ino() ^ found.dev());
    (inode % u64::from(HOST_IDS.end - HOST_IDS.start)) as u32
}

/// An id that is mapped in this process's own user namespace and is not root's: in the range for
/// sandboxes where that is mapped, else the highest one that is.
fn free_id(table: &str, spread: u32) -> Option<u32> {
    let mut best = None;
    for line in table.lines() {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            continue;
        };
        if first <= HOST_IDS.start.into() && first + count >= HOST_IDS.end.into() {
            return Some(HOST_IDS.start + spread);
        }
        let last = u32::try_from(first + count.saturating_sub(1)).ok().filter(|last| *last > 0);
        best = best.max(last);
    }
    best
}

/// Why a new user namespace was refused, and what to change.
pub(super) fn explain(why: &io::Error) -> String {
    let read = |name: &str| {
        fs::read_to_string(format!("/proc/sys/{name}")).map_or(String::new(), |s| s.trim().into())
    };
    let remedy = if read("user/max_user_namespaces") == "0" {
        "user.max_user_namespaces is 0: set it with `sysctl -w user.max_user_namespaces=15000`"
    } else if read("kernel/unprivileged_userns_clone") == "0" {
        "set `sysctl -w kernel.unprivileged_userns_clone=1`"
    } else if read("kernel/apparmor_restrict_unprivileged_userns") == "1" {
        "AppArmor restricts them: set `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, \
         or install a profile that allows them for this program"
    } else if why.raw_os_error() == Some(libc::ENOSPC) {
        "the limit user.max_user_namespaces is used up: raise it"
    } else {
        "the kernel or the container around this program refuses them: in a container, use a \
         seccomp profile that allows clone with namespaces"
    };
    format!("no user namespaces ({why}): {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_id_is_high_and_never_root() {
        assert_eq!(free_id("0 0 4294967295", 5), Some(0x7000_0005));
        assert_eq!(free_id("0 100000 65536", 5), Some(65_535));
        assert_eq!(free_id("0 1000 1\n1 100000 65536", 5), Some(65_536));
        assert_eq!(free_id("0 1000 1", 5), None);
        assert_eq!(free_id("", 5), None);
    }

    #[test]
    fn the_refusal_names_a_remedy() {
        let message = explain(&io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(message.starts_with("no user namespaces ("), "{message}");
        assert!(message.contains("max_user_namespaces"), "{message}");
    }
}
