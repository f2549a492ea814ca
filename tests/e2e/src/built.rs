//! The programs under test, built when the first test asks for them.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

/// Where the programs are.
#[derive(Debug)]
pub struct Built {
    pub tailstep: PathBuf,
}

impl Built {
    /// Builds `tailstep` and the sandbox's helper once a process; a test never meets an old one.
    /// `TAILSTEP_BIN` names a program that is built already (its helper beside it).
    ///
    /// # Panics
    /// When they do not build.
    pub fn get() -> &'static Self {
        static BUILT: OnceLock<Built> = OnceLock::new();
        BUILT.get_or_init(|| {
            if let Some(tailstep) = env::var_os("TAILSTEP_BIN") {
                return Self { tailstep: tailstep.into() };
            }
            let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let status = Command::new(cargo)
                .args(["build", "--quiet", "-p", "tailstep", "-p", "tailstep-sandbox"])
                .current_dir(root())
                .status();
            assert!(status.is_ok_and(|status| status.success()), "the programs do not build");
            let target = env::var_os("CARGO_TARGET_DIR")
                .map_or_else(|| root().join("target"), PathBuf::from);
            Self { tailstep: root().join(target).join("debug/tailstep") }
        })
    }

    /// A command with nothing of this process's settings but what programs need to start.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.tailstep);
        command.env_clear().stdin(Stdio::null());
        for name in ["PATH", "HOME", "TMPDIR", "USER"] {
            if let Some(value) = env::var_os(name) {
                command.env(name, value);
            }
        }
        command
    }
}

/// Runs `tailstep` with `arguments` in `folder` until it ends.
///
/// # Panics
/// When it cannot be started.
pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    let output = Built::get().command().args(arguments).current_dir(folder).output();
    output.unwrap_or_else(|error| panic!("cannot start tailstep: {error}"))
}

/// The project's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
