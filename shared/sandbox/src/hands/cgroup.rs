//! The control group of one sandbox: the only bound on memory that covers everything, shared
//! memory and tmpfs included. Versions 1 and 2 of the interface, wherever a group can be made.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use rustix::process::Pid;

use crate::spec::Limits;

/// Threads of PID 1 itself, which the sandbox's own count does not include.
const OWN_TASKS: u64 = 8;

const PREFIX: &str = "tailstep-";

/// A group left behind by a guard that was killed is swept when it is this old.
const STALE: Duration = Duration::from_secs(60);

pub(super) struct Cgroup {
    /// One with version 2, one for each controller with version 1; the first bounds memory.
    directories: Vec<PathBuf>,
    version: u32,
}

/// A line of `/proc/self/mountinfo` that is about control groups.
struct Mounted {
    at: PathBuf,
    /// The group that is visible there as the top.
    root: String,
    version: u32,
    options: String,
}

impl Cgroup {
    pub(super) fn create(limits: &Limits) -> Result<Self, String> {
        let read = |path: &str| {
            fs::read_to_string(path)
                .map_err(|why| format!("control group: cannot read {path}: {why}"))
        };
        let groups = read("/proc/self/cgroup")?;
        let mounts: Vec<Mounted> =
            read("/proc/self/mountinfo")?.lines().filter_map(Mounted::parse).collect();
        let name = format!("{PREFIX}{}-{}", std::process::id(), nonce());
        version_2(&mounts, &groups, &name, limits)
            .or_else(|why_2| {
                version_1(&mounts, &groups, &name, limits).map_err(|why_1| (why_2, why_1))
            })
            .map_err(|(why_2, why_1)| {
                format!(
                    "control group: none can be made (version 2: {why_2}; version 1: {why_1}): run \
                     as root, or delegate one with `systemd-run --user --scope -p Delegate=yes`; \
                     until then memory is bounded per process only"
                )
            })
    }

    /// Puts a process into the group; what it starts is in it too.
    pub(super) fn add(&self, pid: Pid) -> Result<(), String> {
        for directory in &self.directories {
            put(directory, "cgroup.procs", &pid.as_raw_nonzero().to_string())
                .map_err(|why| format!("control group: cannot add PID 1: {why}"))?;
        }
        Ok(())
    }

    /// The file that counts kills for lack of memory.
    pub(super) fn oom_events(&self) -> Option<File> {
        let name = if self.version == 2 { "memory.events" } else { "memory.oom_control" };
        File::open(self.directories.first()?.join(name)).ok()
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

    /// Removes the group; all its processes must have been waited for.
    pub(super) fn remove(self) {
        for directory in &self.directories {
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

fn version_2(
    mounts: &[Mounted],
    groups: &str,
    name: &str,
    limits: &Limits,
) -> Result<Cgroup, String> {
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
        let group = Cgroup { directories: vec![parent.join(name)], version: 2 };
        let made = make(&group.directories[0])
            .and_then(|()| {
                put(&group.directories[0], "memory.max", &limits.memory_bytes.to_string())
            })
            .and_then(|()| put(&group.directories[0], "pids.max", &pids(limits)));
        match made {
            Ok(()) => {
                // Without swap accounting there is no such file, and no swap to bound.
                let _ = put(&group.directories[0], "memory.swap.max", "0");
                return Ok(group);
            }
            Err(refused) => {
                group.remove();
                why = refused;
            }
        }
    }
    Err(why)
}

fn version_1(
    mounts: &[Mounted],
    groups: &str,
    name: &str,
    limits: &Limits,
) -> Result<Cgroup, String> {
    let mut group = Cgroup { directories: Vec::new(), version: 1 };
    let settings = [
        ("memory", "memory.limit_in_bytes", limits.memory_bytes.to_string()),
        ("pids", "pids.max", pids(limits)),
    ];
    for (controller, file, value) in settings {
        let made = controller_1(mounts, groups, controller, name).and_then(|directory| {
            group.directories.push(directory.clone());
            put(&directory, file, &value)
        });
        if let Err(why) = made {
            group.remove();
            return Err(why);
        }
    }
    // Only there with swap accounting; without it there is no swap to bound.
    let swap = limits.memory_bytes.to_string();
    let _ = put(&group.directories[0], "memory.memsw.limit_in_bytes", &swap);
    Ok(group)
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

fn pids(limits: &Limits) -> String {
    limits.pids_max.saturating_add(OWN_TASKS).to_string()
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
