//! The one sandbox that this machine is. A thread of its own holds the toolset: a call blocks it, and
//! shells must not outlive the thread that started them.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, mpsc},
    thread,
};

use bytes::Bytes;
use tailstep_core::ids::BlobRef;
use tailstep_sandbox::{
    Call, Limits, Sockets, remove_tree,
    toolset::Stop,
    vm,
    workspace::{Caps, WorkspaceError, pack, unpack},
};
use thiserror::Error;
use tokio::sync::oneshot;

use crate::{
    given::{Arrived, Arriving},
    message::{Answer, Coming, FORMAT, Order, Start},
    outputs::Outputs,
};

type Job = Box<dyn FnOnce(&mut Machine) + Send>;

/// A handle on the machine, for any number of requests.
#[derive(Clone)]
pub(crate) struct Guest {
    jobs: mpsc::Sender<Job>,
    start: Arc<OnceLock<Start>>,
    stop: Arc<Stop>,
}

#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("order has format {found}, this version reads {FORMAT}; build the image anew")]
    Newer { found: u32 },
    #[error("order cannot be read")]
    Form,
    /// The workspace is another one than the caller takes it for.
    #[error("the workspace is another one")]
    Workspace,
    /// This machine has run nothing yet: whether the call ran in its former life is unknown.
    #[error("this call is not known here")]
    Unknown,
    #[error("directory cannot be prepared")]
    Directory(#[from] io::Error),
    #[error("{0}")]
    Archive(#[from] WorkspaceError),
    #[error("what came is not what was announced")]
    Announced,
    /// What the session is given, or has put out before, is to come first.
    #[error("files are missing")]
    Files,
    #[error("the toolset has ended")]
    Ended,
}

impl Guest {
    /// `root` is where absolute paths of given files and outputs begin.
    pub(crate) fn start(scratch: &Path, root: &Path) -> io::Result<Self> {
        // The names of machines are the provider's; on one machine, as in tests, they must differ.
        let directory = scratch.join(format!("workspace-{}", std::process::id()));
        let pieces = scratch.join(format!("outputs-{}", std::process::id()));
        let outputs = Outputs::open(root, pieces)?;
        let mut machine = Machine::new(directory, root.to_owned(), outputs)?;
        let stop = machine.hands.stop();
        let (jobs, waiting) = mpsc::channel::<Job>();
        thread::Builder::new().name("toolset".into()).spawn(move || {
            for job in waiting {
                job(&mut machine);
            }
        })?;
        Ok(Self { jobs, start: Arc::default(), stop })
    }

    /// Says what this machine is, once; `false` when it is something else already.
    pub(crate) fn be(&self, start: &Start) -> bool {
        self.start.get_or_init(|| start.clone()) == start
    }

    pub(crate) fn started(&self) -> Option<&Start> {
        self.start.get()
    }

    /// Runs a call. When the future is dropped, the call is stopped.
    pub(crate) async fn call(&self, order: Order) -> Result<Answer, Failure> {
        let later = self.started().is_some_and(|start| start.generation > 1);
        let dropped = StopOnDrop { stop: self.stop.clone(), call_id: order.call.call_id.clone() };
        let answer = self.on(move |machine| machine.call(order, later)).await?;
        drop(dropped);
        answer
    }

    pub(crate) async fn lay(&self, archive: Bytes, sha256: String) -> Result<(), Failure> {
        self.on(move |machine| machine.lay(&archive, &sha256)).await?
    }

    pub(crate) async fn archive(&self) -> Result<Bytes, Failure> {
        self.on(|machine| machine.archive.clone()).await
    }

    pub(crate) async fn expect(&self, coming: Coming) -> Result<(), Failure> {
        self.on(move |machine| machine.expect(coming)).await?
    }

    pub(crate) async fn write(
        &self,
        index: usize,
        offset: u64,
        piece: Bytes,
    ) -> Result<(), Failure> {
        self.on(move |machine| match &machine.arriving {
            Some(arriving) => arriving.write(index, offset, &piece),
            None => Err(Failure::Form),
        })
        .await?
    }

    pub(crate) async fn arrived(&self) -> Result<(), Failure> {
        self.on(Machine::arrived).await?
    }

    pub(crate) async fn output(&self, sha256: String) -> Result<Option<Bytes>, Failure> {
        self.on(move |machine| machine.outputs.piece(&sha256)).await
    }

    async fn on<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Machine) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |machine| {
            // Nobody waits any more when the request is gone.
            let _ = sender.send(job(machine));
        });
        self.jobs.send(job).map_err(|_| Failure::Ended)?;
        receiver.await.map_err(|_| Failure::Ended)
    }
}

struct StopOnDrop {
    stop: Arc<Stop>,
    call_id: String,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // Does nothing once the call has ended.
        self.stop.call(&self.call_id);
    }
}

struct Machine {
    directory: PathBuf,
    hands: vm::Hands,
    /// What the directory was packed to last; empty for an empty one.
    archive: Bytes,
    /// Calls that ran here.
    ran: u64,
    /// A saved workspace was laid out, and no call has said so yet.
    restored: bool,
    last: Option<(Call, Answer)>,
    /// Where absolute paths begin.
    root: PathBuf,
    arriving: Option<Arriving>,
    arrived: Arrived,
    outputs: Outputs,
}

impl Machine {
    fn new(directory: PathBuf, root: PathBuf, outputs: Outputs) -> io::Result<Self> {
        let hands = open(&directory)?;
        Ok(Self {
            directory,
            hands,
            archive: Bytes::new(),
            ran: 0,
            restored: false,
            last: None,
            root,
            arriving: None,
            arrived: Arrived::default(),
            outputs,
        })
    }

    fn expect(&mut self, coming: Coming) -> Result<(), Failure> {
        self.arrived = Arrived::default();
        self.arriving = Some(Arriving::begin(&self.root, &self.outputs.directory, coming)?);
        Ok(())
    }

    fn arrived(&mut self) -> Result<(), Failure> {
        self.arrived = self.arriving.as_ref().ok_or(Failure::Form)?.finish()?;
        self.arriving = None;
        Ok(())
    }

    fn call(&mut self, order: Order, later: bool) -> Result<Answer, Failure> {
        let Order { v, call, workspace, given, outputs, repeated } = order;
        if v > FORMAT {
            return Err(Failure::Newer { found: v });
        }
        if let Some((last, answer)) = &self.last
            && (&last.call_id, &last.tool, &last.input) == (&call.call_id, &call.tool, &call.input)
        {
            return Ok(answer.clone());
        }
        if repeated && self.ran == 0 {
            return Err(Failure::Unknown);
        }
        if workspace != self.workspace() {
            return Err(Failure::Workspace);
        }
        let bare = self.ran == 0 && self.arrived.outputs != outputs;
        if self.arrived.given != given || bare {
            return Err(Failure::Files);
        }
        let mut reply = self.hands.run(&call);
        if self.ran == 0 && (later || self.restored) {
            reply.text.insert_str(0, vm::NEW_SANDBOX);
        }
        self.ran += 1;
        let kept = match pack(&self.directory, &Caps::default()) {
            Ok(packed) => {
                if packed.left_out_total > 0 {
                    let some = packed.left_out.first();
                    let some = some.map_or("?".into(), |out| out.path.display().to_string());
                    reply.text.push_str(&format!(
                        "\n[{} entries of the workspace cannot be saved, such as {some}]",
                        packed.left_out_total
                    ));
                }
                self.archive =
                    if packed.entries == 0 { Bytes::new() } else { Bytes::from(packed.bytes) };
                true
            }
            Err(error) => {
                reply.text.push_str(&format!(
                    "\n[the workspace could not be saved: if this sandbox is lost, so is what changed \
                     since it was last saved: {error}]"
                ));
                false
            }
        };
        let outputs = match self.outputs.collect(outputs.as_ref()) {
            Ok(changed) => {
                if let Some(notice) = changed.notice {
                    reply.text.push('\n');
                    reply.text.push_str(&notice);
                }
                changed.manifest
            }
            Err(error) => {
                reply.text.push_str(&format!("\n[outputs: they could not be collected: {error}]"));
                None
            }
        };
        let answer = Answer { v: FORMAT, reply, workspace: self.workspace(), outputs, kept };
        self.last = Some((call, answer.clone()));
        Ok(answer)
    }

    fn workspace(&self) -> Option<BlobRef> {
        (!self.archive.is_empty()).then(|| BlobRef::of(&self.archive))
    }

    fn lay(&mut self, archive: &Bytes, sha256: &str) -> Result<(), Failure> {
        if BlobRef::of(archive).sha256 != sha256 {
            return Err(Failure::Announced);
        }
        self.hands.end_all();
        remove_tree(&self.directory)?;
        self.hands = open(&self.directory)?;
        (self.ran, self.last, self.archive) = (0, None, Bytes::new());
        if !archive.is_empty() {
            unpack(archive, &self.directory, &Caps::default())?;
        }
        self.archive = archive.clone();
        self.restored = true;
        Ok(())
    }
}

fn open(directory: &Path) -> io::Result<vm::Hands> {
    fs::create_dir(directory)?;
    vm::Hands::open(directory.to_owned(), &Limits::default(), Sockets::Internet)
}
