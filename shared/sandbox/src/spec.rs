//! What a sandbox is given and what it may use, fixed before it starts.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::wire::path;

/// Where the workspace is seen inside a `namespaces` sandbox.
pub const WORKSPACE: &str = "/workspace";

/// Directories of the system, which are no workspace, nor is anything in them.
const HOSTS_OWN: [&str; 10] =
    ["/bin", "/boot", "/dev/pts", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr"];

/// Directories that hold many owners' things; what is in them may be a workspace.
const WHOLE: [&str; 12] = [
    "/", "/dev", "/dev/shm", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var",
    "/var/tmp",
];

/// One sandbox, described in advance.
#[derive(Debug, Clone)]
pub struct Spec {
    /// An existing directory that belongs to the sandbox (a copy, never a user's own tree): it is
    /// mounted read-write at [`WORKSPACE`], and when the supervisor is root, what is in it is
    /// given to the sandbox's user.
    pub workspace: PathBuf,
    pub root: Root,
    pub mounts: Vec<Mount>,
    pub network: Network,
    /// Variables of everything that runs inside, on top of a small fixed set; a name given here
    /// replaces that set's.
    pub environment: Vec<(String, String)>,
    pub limits: Limits,
    pub strictness: Strictness,
    /// The helper executable; `None` looks beside the running program.
    pub helper_path: Option<PathBuf>,
    /// Arguments that make `helper_path` behave as the helper, for a program that carries the
    /// helper within itself ([`crate::hands::main`]); usually empty.
    pub helper_args: Vec<String>,
}

impl Spec {
    /// A sandbox over `workspace` with the default limits, no further mounts, strict.
    pub fn new(workspace: impl Into<PathBuf>) -> Self {
        Self {
            workspace: workspace.into(),
            root: Root::Host,
            mounts: Vec::new(),
            network: Network::None,
            environment: Vec::new(),
            limits: Limits::default(),
            strictness: Strictness::Strict,
            helper_path: None,
            helper_args: Vec::new(),
        }
    }
}

impl Spec {
    /// Says what is wrong with it on any host, if anything is.
    pub(crate) fn check(&self) -> Result<(), String> {
        // Its files are given to another user, and only what is there at the end is given back.
        let shared = HOSTS_OWN.iter().any(|own| self.workspace.starts_with(own));
        let whole = WHOLE.iter().any(|all| self.workspace == Path::new(all));
        if shared || whole {
            let at = self.workspace.display();
            return Err(format!(
                "workspace {at} belongs to the system: choose a directory of yours"
            ));
        }
        self.mounts.iter().try_for_each(Mount::check)?;
        if let Root::Directory(root) = &self.root
            && (!root.is_absolute() || !root.is_dir())
        {
            return Err(format!("root {} must be an absolute path of a directory", root.display()));
        }
        self.environment.iter().try_for_each(|(name, value)| check_variable(name, value))
    }
}

/// Whose programs are seen inside. Always read-only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Root {
    /// The host's program directories, and what programs need of its configuration.
    #[default]
    Host,
    /// All of a directory that holds the tree of a whole system, such as an unpacked image.
    Directory(#[serde(with = "path")] PathBuf),
}

/// The way out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// None: only the sandbox's own loopback interface.
    #[default]
    None,
    /// A listener at [`PROXY`] on that interface, whose other side is the supervisor: whoever
    /// accepts there decides what goes further. There is no route and no name service.
    Proxy,
}

/// Where a proxy is found inside.
pub const PROXY: std::net::SocketAddrV4 =
    std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 3_128);

/// Says what is wrong with a variable, if anything is.
pub(crate) fn check_variable(name: &str, value: &str) -> Result<(), String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(format!(
            "variable name `{}` must not be empty or hold `=`",
            name.escape_debug()
        ));
    }
    if value.contains('\0') {
        return Err(format!("the value of variable {name} must not hold a NUL byte"));
    }
    Ok(())
}

/// A host directory or file made visible inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    #[serde(with = "path")]
    pub source: PathBuf,
    /// Absolute, outside the workspace, `/proc` and `/dev`.
    #[serde(with = "path")]
    pub target: PathBuf,
    pub access: Access,
}

/// What may be done with a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    ReadOnly,
    /// As far as the files' owners and modes let the sandbox's user.
    ReadWrite,
    /// Also given to the sandbox's user when the supervisor is root, as the workspace is: for a
    /// directory that belongs to the sandbox.
    Owned,
}

impl Mount {
    /// Says what is wrong with the target, if anything is.
    pub(crate) fn check(&self) -> Result<(), String> {
        let at = self.target.display();
        let plain = self
            .target
            .components()
            .skip(1)
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        if !self.target.is_absolute() || !plain || self.target == Path::new("/") {
            return Err(format!("mount target {at} must be absolute, without `..`, and not /"));
        }
        for taken in [WORKSPACE, "/proc", "/dev"] {
            if self.target.starts_with(taken) {
                return Err(format!("mount target {at} lies in {taken}: choose another place"));
            }
        }
        Ok(())
    }
}

/// How much a missing layer matters. The namespaces, the fresh root and the mapped user are never
/// optional.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strictness {
    /// Every layer, control groups and landlock included.
    Full,
    /// Every layer that any current kernel can give; control groups and landlock where the host
    /// has them.
    Strict,
    /// Missing layers are reported and otherwise tolerated.
    BestEffort,
}

/// The most that one sandbox may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// All processes together, with what they keep in tmpfs; needs a control group. Without one it
    /// bounds the private memory of each process instead.
    pub memory_bytes: u64,
    /// Processes and threads at one time.
    pub pids_max: u64,
    /// Size of the private `/tmp`; `/dev/shm` gets a quarter of it.
    pub tmp_bytes: u64,
    /// What the workspace and other owned mounts may hold together, and in how many files and
    /// directories. A sandbox that goes on writing beyond that is ended within seconds; until then a
    /// fast writer gets further.
    pub disk_bytes: u64,
    pub disk_entries_max: u64,
    /// The largest single file.
    pub file_bytes_max: u64,
    /// Output kept per call of bash, glob and grep.
    pub output_bytes_max: u64,
    /// No call lasts longer.
    pub call_ms_max: u64,
    /// The sandbox is ended after this time, whatever it is doing.
    pub life_ms_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Enough for a compiler or a test suite; ten such sandboxes fit a 16 GB machine.
            memory_bytes: 1 << 30,
            // A parallel build on a large machine uses about 100.
            pids_max: 256,
            tmp_bytes: 256 << 20,
            // The public protocol's cloud sandboxes have 10 GB (API reference §5.4).
            disk_bytes: 10 << 30,
            // A repository with its dependencies and build results has a few hundred thousand.
            disk_entries_max: 1_000_000,
            file_bytes_max: 512 << 20,
            // The output tail of the public worker's bash tool (API reference §9).
            output_bytes_max: 100 << 10,
            // The per-call ceiling there.
            call_ms_max: 150_000,
            // The default backstop of the design, §7.
            life_ms_max: 600_000,
        }
    }
}

/// Which layers stand between a sandbox and its host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    pub active: Vec<String>,
    /// One line each: the layer, why it is missing, what to change.
    pub missing: Vec<String>,
}

impl Layers {
    /// The missing layers without their reasons, which tell of the host.
    pub fn missing_names(&self) -> Vec<String> {
        let name = |line: &String| line.split(':').next().unwrap_or_default().to_owned();
        self.missing.iter().map(name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_no_workspace() {
        let checked = |at: &str| Spec::new(at).check();
        for at in ["/", "/etc", "/etc/ssl", "/usr/lib", "/proc/1", "/home", "/tmp", "/var", "/root"]
        {
            assert!(checked(at).is_err_and(|why| why.contains("workspace")), "{at}");
        }
        for at in ["", "/home/me/project", "/tmp/x", "/dev/shm/x", "/etcetera", "/root/project"] {
            assert_eq!(checked(at), Ok(()), "{at}");
        }
    }
}
