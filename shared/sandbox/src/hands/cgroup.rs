//! The control group of one sandbox: the only bound on memory that covers everything, shared
//! memory and tmpfs included. Versions 1 and 2 of the interface, wherever a group can be made.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use crate::spec::Limits;

/// Threads of PID 1 itself, which the sandbox's own count does not include.
const OWN_TASKS: u64 = 8;

const PREFIX: &str = "tailstep-";

/// A group left behind by a guard that was killed is swept when it is this old.
const STALE: Duration = Duration::from_secs(60);

/// Removed when it is dropped; all its processes must have been waited for.
pub(super) struct Cgroup {
    memory: PathBuf,
    /// The same directory with version 2.
    pids: PathBuf,
    version: u32,
}

/// The way into a group, with the rights of the process that made it.
pub(super) struct Doors(Vec<File>);

/// A line of `/proc/self/mountinfo` that is about control groups.
struct Mounted {
    at: PathBuf,
    /// The group that is visible there as the top.
    root: String,
    version: u32,
    options: String,
}

impl Cgroup {
    /// Makes an empty group without limits.
    pub(super) fn create() -> Result<(Self, Doors), String> {
        let read = |path: &str| {
            fs::read_to_string(path)
                .map_err(|why| format!("control group: cannot read {path}: {why}"))
        };
        let groups = read("/proc/self/cgroup")?;
        let mounts: Vec<Mounted> =
            read("/proc/self/mountinfo")?.lines().filter_map(Mounted::parse).collect();
        let name = format!("{PREFIX}{}-{}", std::process::id(), nonce());
        version_2(&mounts, &groups, &name)
            .or_else(|why_2| version_1(&mounts, &groups, &name).map_err(|why_1| (why_2, why_1)))
            .map_err(|(why_2, why_1)| {
                format!(
                    "control group: none can be made (version 2: {why_2}; version 1: {why_1}): run \
                     as root, or delegate one with `systemd-run --user --scope -p Delegate=yes`; \
                     until then memory is bounded per process only"
                )
            })
            .and_then(|group| group.doors().map(|doors| (group, doors)))
    }

    /// Sets what everything in the group may use together.
    pub(super) fn limit(&self, limits: &Limits) -> Result<(), String> {
        let memory = limits.memory_bytes.to_string();
        let pids = limits.pids_max.saturating_add(OWN_TASKS).to_string();
        let (most, swap, no_swap) = match self.version {
            2 => ("memory.max", "memory.swap.max", "0"),
            _ => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", memory.as_str()),
        };
        put(&self.memory, most, &memory)?;
        put(&self.pids, "pids.max", &pids)?;
        // Without swap accounting there is no such file, and no swap to bound.
        let _ = put(&self.memory, swap, no_swap);
        Ok(())
    }

    fn doors(&self) -> Result<Doors, String> {
        // With version 1, moving one thread spares the kernel a lock that all forks and exits take,
        // which can be waited for as long as 10 ms.
        let name = if self.version == 2 { "cgroup.procs" } else { "tasks" };
        let door = |directory: &Path| {
            let file = File::options().write(true).open(directory.join(name));
            file.map_err(|why| {
                format!("control group: cannot open {name} in {}: {why}", directory.display())
            })
        };
        self.directories().map(door).collect::<Result<_, _>>().map(Doors)
    }

    /// The file that counts kills for lack of memory.
    pub(super) fn oom_events(&self) -> Option<File> {
        let name = if self.version == 2 { "memory.events" } else { "memory.oom_control" };
        File::open(self.memory.join(name)).ok()
    }

    /// True when the kernel has killed a process of the group for lack of memory.
    pub(super) fn killed_any(&self) -> bool {
        let text = self.oom_events().and_then(|file| io::read_to_string(file).ok());
        text.unwrap_or_default()
            .lines()
            .any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
    }

    pub(super) fn describe(&self) -> String {
        format!("control group (version {}): memory and processes", self.version)
    }

    fn directories(&self) -> impl Iterator<Item = &Path> {
        let pids = (self.pids != self.memory).then_some(self.pids.as_path());
        std::iter::once(self.memory.as_path()).chain(pids)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for directory in self.directories() {
            // The kernel takes a moment to take ended processes out of their group.
            for _ in 0..50 {
                match fs::remove_dir(directory) {
                    Ok(()) => break,
                    Err(why) if why.kind() == io::ErrorKind::NotFound => break,
                    Err(_) => thread::sleep(Duration::from_millis(2)),
                }
            }
        }
    }
}

impl Doors {
    /// Puts the calling process, which has one thread, into the group; what it starts is in it too.
    pub(super) fn enter(self) -> Result<(), String> {
        self.0
            .into_iter()
            .try_for_each(|mut door| door.write_all(b"0"))
            .map_err(|why| format!("control group: cannot add PID 1: {why}"))
    }
}

fn version_2(mounts: &[Mounted], groups: &str, name: &str) -> Result<Cgroup, String> {
    let mounted = mounts.iter().find(|mounted| mounted.version == 2).ok_or("not mounted")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::")).ok_or("no group")?;
    let own = mounted.directory(own);
    let mut why = "no memory and pids controllers here".to_owned();
    // A group with processes may not pass controllers on, except the topmost one; a sibling of it
    // can then be made in its parent.
    for parent in own.ancestors().take(2).filter(|parent| parent.starts_with(&mounted.at)) {
        let offered = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
        let has = |list: &str| {
            ["memory", "pids"].iter().all(|c| list.split_whitespace().any(|o| o == *c))
        };
        if !has(&offered) {
            continue;
        }
        let passed = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default();
        if !has(&passed)
            && let Err(refused) = put(parent, "cgroup.subtree_control", "+memory +pids")
        {
            why = refused;
            continue;
        }
        sweep(parent);
        let directory = parent.join(name);
        match make(&directory) {
            Ok(()) => return Ok(Cgroup { memory: directory.clone(), pids: directory, version: 2 }),
            Err(refused) => why = refused,
        }
    }
    Err(why)
}

fn version_1(mounts: &[Mounted], groups: &str, name: &str) -> Result<Cgroup, String> {
    let memory = controller_1(mounts, groups, "memory", name)?;
    match controller_1(mounts, groups, "pids", name) {
        Ok(pids) => Ok(Cgroup { memory, pids, version: 1 }),
        Err(why) => {
            let _ = fs::remove_dir(memory);
            Err(why)
        }
    }
}

fn controller_1(
    mounts: &[Mounted],
    groups: &str,
    controller: &str,
    name: &str,
) -> Result<PathBuf, String> {
    let named = |list: &str| list.split(',').any(|found| found == controller);
    let mounted = mounts
        .iter()
        .find(|mounted| mounted.version == 1 && named(&mounted.options))
        .ok_or_else(|| format!("{controller} is not mounted"))?;
    let own = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        named(controllers).then_some(path)
    });
    let parent = mounted.directory(own.unwrap_or("/"));
    sweep(&parent);
    let directory = parent.join(name);
    make(&directory)?;
    Ok(directory)
}

impl Mounted {
    fn parse(line: &str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, at) = (mount.next()?.to_owned(), PathBuf::from(mount.next()?));
        let mut kind = kind.split(' ');
        let version = match kind.next()? {
            "cgroup2" => 2,
            "cgroup" => 1,
            _ => return None,
        };
        Some(Self { at, root, version, options: kind.next_back()?.to_owned() })
    }

    /// Where the group `path` is seen; the top when it lies outside what is mounted.
    fn directory(&self, path: &str) -> PathBuf {
        let inner = Path::new(path).strip_prefix(&self.root).unwrap_or(Path::new(""));
        self.at.join(inner)
    }
}

fn make(directory: &Path) -> Result<(), String> {
    fs::create_dir(directory).map_err(|why| format!("cannot make {}: {why}", directory.display()))
}

fn put(directory: &Path, file: &str, value: &str) -> Result<(), String> {
    fs::write(directory.join(file), value)
        .map_err(|why| format!("cannot write {file} in {}: {why}", directory.display()))
}

/// Removes groups of guards that were killed before they could. One that is in use cannot be
/// removed, and a fresh one, which may be about to be used, is left alone.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let made = entry.metadata().and_then(|found| found.modified());
        let old = made
            .is_ok_and(|made| SystemTime::now().duration_since(made).is_ok_and(|age| age > STALE));
        if old {
            // Refused while a process is in it, which is the answer wanted then.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Tells two guards with the same process number, in different namespaces, apart.
fn nonce() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos())
}
