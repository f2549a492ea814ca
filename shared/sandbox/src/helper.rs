//! The helper processes of this program: one for each way to start one, kept running, since starting a
//! program costs several times what a fork of a small one does.

use std::{
    collections::BTreeMap,
    env, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::sleep;

use crate::{error::SandboxError, pass};

const NAME: &str = "tailstep-hands";

/// Between two tries to hand over a request while the helper has many before it.
const FULL_PAUSE: Duration = Duration::from_millis(1);

static RUNNING: Mutex<BTreeMap<Helper, Arc<Server>>> = Mutex::new(BTreeMap::new());

/// A way to start a helper.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Helper {
    path: PathBuf,
    args: Vec<String>,
}

/// One that runs, until this is dropped or this process ends.
pub(crate) struct Server {
    control: UnixStream,
    child: Child,
}

impl Helper {
    /// `None` looks beside the running program.
    pub(crate) fn find(path: Option<&Path>, args: &[String]) -> Result<Self, SandboxError> {
        Ok(Self { path: helper_path(path)?, args: args.to_vec() })
    }

    /// The running one; started when there is none.
    pub(crate) fn server(&self) -> Result<Arc<Server>, SandboxError> {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = running.get(self) {
            return Ok(server.clone());
        }
        let server = Server::start(self)
            .map_err(|source| SandboxError::Start { path: self.path.clone(), source })?;
        let server = Arc::new(server);
        running.insert(self.clone(), server.clone());
        Ok(server)
    }

    /// The next sandbox gets another server than this one, which has ended or does not answer.
    /// Sandboxes that it has made go on.
    pub(crate) fn forget(&self, server: &Arc<Server>) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if running.get(self).is_some_and(|current| Arc::ptr_eq(current, server)) {
            running.remove(self);
        }
    }
}

impl Server {
    fn start(helper: &Helper) -> io::Result<Self> {
        let (control, theirs) = UnixStream::pair()?;
        control.set_nonblocking(true)?;
        // Without hooks between fork and exec the standard library uses posix_spawn, whose cost
        // does not grow with the memory of this process.
        let child = Command::new(&helper.path)
            // Seen inside as the name of PID 1: a path would tell of the host.
            .arg0(NAME)
            .args(&helper.args)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { control, child })
    }

    /// Asks for one sandbox.
    pub(crate) async fn request(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            match pass::send_all(self.control.as_fd(), descriptors) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => sleep(FULL_PAUSE).await,
                outcome => return outcome,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn helper_path(explicit: Option<&Path>) -> Result<PathBuf, SandboxError> {
    if let Some(path) = explicit {
        return match path.is_file() {
            true => Ok(path.to_owned()),
            false => Err(SandboxError::NoHelper { looked_in: path.display().to_string() }),
        };
    }
    let program = env::current_exe().unwrap_or_default();
    // Test programs lie one directory below the others.
    let beside: Vec<&Path> = program.ancestors().skip(1).take(2).collect();
    let found = beside.iter().map(|directory| directory.join(NAME)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let looked_in: Vec<String> = beside.iter().map(|path| path.display().to_string()).collect();
        SandboxError::NoHelper { looked_in: looked_in.join(" and ") }
    })
}
