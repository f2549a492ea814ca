//! The one sandbox that this environment serves: lays its workspace out, runs a call, packs what has
//! become of it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use tailstep_core::ids::BlobRef;
use tailstep_sandbox::{
    Call, Limits, Reply, Sockets, remove_tree, vm,
    workspace::{Caps, WorkspaceError, pack, unpack},
};
use thiserror::Error;

use crate::{
    message::{Answer, FORMAT, Given, Kept, Order},
    store::{Store, StoreError},
};

/// Largest packed workspace inside an answer: with base64 it is 5.3 MB of the 6 MB that an invocation
/// may carry.
const INLINE_BYTES_MAX: usize = 4_000_000;
/// Characters of a sandbox's name that its directory has.
const NAME_CHARS: usize = 16;

/// Keeps the sandbox's shell and files between the calls that happen to meet here.
pub(crate) struct Bench {
    root: PathBuf,
    store: Store,
    laid: Option<Laid>,
}

struct Laid {
    sandbox: String,
    directory: PathBuf,
    hands: vm::Hands,
    /// The archive that the directory is equal to; `None` when that is not known.
    archive: Option<BlobRef>,
    /// Laid out for a session that has worked elsewhere before, and no call has said so yet.
    new: bool,
    /// The last call with its reply, for the case that the answer was lost on its way: the same
    /// call comes again with the workspace of before, and must neither run nor be laid out again.
    last: Option<(Call, Reply)>,
}

/// The workspace that an order comes with.
struct Before {
    blob: BlobRef,
    bytes: Whence,
}

enum Whence {
    Here(Vec<u8>),
    /// Behind this URL.
    Stored(String),
}

#[derive(Debug, Error)]
enum Failure {
    #[error("order has format {found}, this version reads {FORMAT}; deploy all functions together")]
    Newer { found: u32 },
    #[error("workspace is not base64")]
    Base64(#[from] base64::DecodeError),
    #[error("directory cannot be prepared")]
    Directory(#[from] io::Error),
    #[error("{0}")]
    Workspace(#[from] WorkspaceError),
    #[error("the saved workspace cannot be had: {0}")]
    Get(#[source] StoreError),
    #[error(
        "it has {bytes} bytes packed, more than the {INLINE_BYTES_MAX} that an answer can carry"
    )]
    Inline { bytes: usize },
    #[error("it has {bytes} bytes packed and cannot be stored: {source}")]
    Put { bytes: usize, source: StoreError },
}

impl Bench {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), store: Store::default(), laid: None }
    }

    /// Runs one call. Whatever goes wrong is part of the answer, for the model to see.
    pub(crate) async fn run(&mut self, order: Order) -> Answer {
        let Order { v, sandbox, call, workspace, put_url } = order;
        let before = match Before::read(v, workspace) {
            Ok(before) => before,
            Err(failure) => return self.failed(&call, &failure),
        };
        let was = before.blob.clone();
        let mut reply = match self.remembered(&sandbox, &call) {
            Some(reply) => reply,
            None => match self.lay(&sandbox, before).await {
                Ok(laid) => laid.run(&call),
                Err(failure) => return self.failed(&call, &failure),
            },
        };
        let workspace = match &mut self.laid {
            Some(laid) => laid.keep(&self.store, &was, put_url.as_deref(), &mut reply).await,
            None => None,
        };
        Answer::new(reply, workspace)
    }

    fn failed(&mut self, call: &Call, failure: &Failure) -> Answer {
        self.laid = None;
        let reply = Reply {
            call_id: call.call_id.clone(),
            text: format!("no sandbox could be prepared, the call did not run: {failure}"),
            is_error: true,
            truncated_bytes: 0,
            timed_out: false,
        };
        Answer::new(reply, None)
    }

    /// What the last call of this sandbox came to, if it is the same one.
    fn remembered(&self, sandbox: &str, call: &Call) -> Option<Reply> {
        let laid = self.laid.as_ref().filter(|laid| laid.sandbox == sandbox)?;
        let (last, reply) = laid.last.as_ref()?;
        let same = (&last.call_id, &last.tool, &last.input);
        (same == (&call.call_id, &call.tool, &call.input)).then(|| reply.clone())
    }

    /// The sandbox with the workspace as it was before: the one at hand if that is how it was left.
    async fn lay(&mut self, sandbox: &str, before: Before) -> Result<&mut Laid, Failure> {
        let usable = self
            .laid
            .take()
            .filter(|laid| laid.sandbox == sandbox && laid.archive.as_ref() == Some(&before.blob));
        let laid = match usable {
            Some(laid) => laid,
            None => self.lay_anew(sandbox, before).await?,
        };
        Ok(self.laid.insert(laid))
    }

    async fn lay_anew(&self, sandbox: &str, before: Before) -> Result<Laid, Failure> {
        let Before { blob, bytes } = before;
        let archive = match bytes {
            Whence::Here(bytes) => bytes,
            Whence::Stored(url) => self.store.get(&url, &blob).await.map_err(Failure::Get)?,
        };
        // The step names sandboxes by a hash; anything else must not become a path.
        let plain = |c: &char| c.is_ascii_alphanumeric();
        let name: String = sandbox.chars().filter(plain).take(NAME_CHARS).collect();
        let directory = self.root.join(format!("workspace-{name}"));
        remove_tree(&directory)?;
        fs::create_dir(&directory)?;
        let new = !archive.is_empty();
        if new {
            unpack(&archive, &directory, &Caps::default())?;
        }
        let hands = vm::Hands::open(directory.clone(), &Limits::default(), Sockets::Local)?;
        let sandbox = sandbox.to_owned();
        Ok(Laid { sandbox, directory, hands, archive: Some(blob), new, last: None })
    }
}

impl Before {
    fn read(v: u32, workspace: Option<Given>) -> Result<Self, Failure> {
        if v > FORMAT {
            return Err(Failure::Newer { found: v });
        }
        let archive = match workspace {
            Some(Given::Stored { blob, get_url }) => {
                return Ok(Self { blob, bytes: Whence::Stored(get_url) });
            }
            Some(Given::Inline(text)) => STANDARD.decode(text)?,
            None => Vec::new(),
        };
        Ok(Self { blob: BlobRef::of(&archive), bytes: Whence::Here(archive) })
    }
}

impl Laid {
    fn run(&mut self, call: &Call) -> Reply {
        self.archive = None;
        let mut reply = self.hands.run(call);
        if std::mem::take(&mut self.new) {
            reply.text.insert_str(0, vm::NEW_SANDBOX);
        }
        self.last = Some((call.clone(), reply.clone()));
        reply
    }

    /// Packs the workspace, and says in the reply what of it cannot be kept.
    async fn keep(
        &mut self,
        store: &Store,
        was: &BlobRef,
        put_url: Option<&str>,
        reply: &mut Reply,
    ) -> Option<Kept> {
        match self.pack(store, was, put_url, reply).await {
            Ok(kept) => kept,
            Err(error) => {
                self.archive = None;
                let text = format!(
                    "\n[the workspace could not be kept, so what this call changed is lost: {error}]"
                );
                reply.text.push_str(&text);
                reply.is_error = true;
                None
            }
        }
    }

    async fn pack(
        &mut self,
        store: &Store,
        was: &BlobRef,
        put_url: Option<&str>,
        reply: &mut Reply,
    ) -> Result<Option<Kept>, Failure> {
        let packed = pack(&self.directory, &Caps::default())?;
        if packed.left_out_total > 0 {
            let text = format!(
                "\n[{} entries of the workspace cannot be kept for the next call, such as {}]",
                packed.left_out_total,
                packed.left_out.first().map_or("?".into(), |out| out.path.display().to_string()),
            );
            reply.text.push_str(&text);
        }
        // An empty workspace is the one that needs no archive.
        let archive = if packed.entries == 0 { Vec::new() } else { packed.bytes };
        let blob = BlobRef::of(&archive);
        let kept = if blob == *was {
            None
        } else if archive.len() <= INLINE_BYTES_MAX {
            Some(Kept::Inline(STANDARD.encode(&archive)))
        } else {
            let bytes = archive.len();
            let url = put_url.ok_or(Failure::Inline { bytes })?;
            let put = store.put(url, archive).await;
            put.map_err(|source| Failure::Put { bytes, source })?;
            Some(Kept::Stored(blob.clone()))
        };
        self.archive = Some(blob);
        Ok(kept)
    }
}

impl Drop for Laid {
    fn drop(&mut self) {
        self.hands.end_all();
        // A directory left behind is removed when its sandbox comes again, or with the environment.
        let _ = remove_tree(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One at a time: ending a sandbox ends every process that this one has started.
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    fn order(sandbox: &str, id: &str, command: &str, workspace: Option<String>) -> Order {
        let input = format!("{{\"command\":{}}}", serde_json::to_string(command).unwrap());
        let call = Call { call_id: id.into(), tool: "bash".into(), input, timeout_ms: 10_000 };
        let workspace = workspace.map(Given::Inline);
        Order { v: FORMAT, sandbox: sandbox.into(), call, workspace, put_url: None }
    }

    /// The archive of an answer that carries one.
    fn inline(answer: &Answer) -> Option<String> {
        match &answer.workspace {
            Some(Kept::Inline(text)) => Some(text.clone()),
            Some(Kept::Stored(_)) | None => None,
        }
    }

    #[tokio::test]
    async fn a_workspace_travels_between_environments() {
        let _alone = ALONE.lock().await;
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (mut here, mut there) = (Bench::new(one.path()), Bench::new(two.path()));
        let first = here.run(order("s1", "1", "echo hello > note; X=kept; pwd", None)).await;
        assert!(first.reply.text.contains("workspace-s1"), "{}", first.reply.text);
        // Elsewhere: the file has come along, the shell has not.
        let second = there.run(order("s1", "2", "cat note; echo [$X]", inline(&first))).await;
        assert_eq!(second.reply.text, format!("{}hello\n[]\n", vm::NEW_SANDBOX));
        assert!(second.workspace.is_none(), "nothing changed");
        // Here: the shell is still there.
        let third = here.run(order("s1", "3", "echo [$X]; rm note", inline(&first))).await;
        assert_eq!(third.reply.text, "[kept]\n");
        // Emptied: an archive of nothing, which is not the same as unchanged.
        assert_eq!(inline(&third).as_deref(), Some(""));
        let fourth = there.run(order("s1", "4", "ls -A | wc -l", inline(&third))).await;
        assert_eq!(fourth.reply.text.trim(), "0");
    }

    #[tokio::test]
    async fn a_call_delivered_again_is_answered_with_what_it_came_to() {
        let _alone = ALONE.lock().await;
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let count = outside.path().join("count");
        let command = format!("echo x | tee -a {} made", count.display());
        let mut bench = Bench::new(root.path());
        let first = bench.run(order("s1", "1", &command, None)).await;
        // The answer was lost, so the step still knows the workspace of before.
        let again = bench.run(order("s1", "1", &command, None)).await;
        assert_eq!(again.workspace, first.workspace);
        assert_eq!((again.reply.text.as_str(), first.workspace.is_some()), ("x\n", true));
        assert_eq!(fs::read_to_string(&count).unwrap(), "x\n");
        bench.run(order("s1", "2", &command, inline(&first))).await;
        assert_eq!(fs::read_to_string(&count).unwrap(), "x\nx\n", "an intended repeat runs");
    }

    #[tokio::test]
    async fn another_sandbox_finds_nothing_of_the_first() {
        let _alone = ALONE.lock().await;
        let root = tempfile::tempdir().unwrap();
        let mut bench = Bench::new(root.path());
        bench.run(order("s1", "1", "echo secret > note; Y=secret", None)).await;
        let answer = bench.run(order("s2", "2", "cat ../*/note; echo [$Y]", None)).await;
        assert!(!answer.reply.text.contains("secret"), "{}", answer.reply.text);
        let strange = bench.run(order("../../etc", "3", "pwd", None)).await;
        assert!(strange.reply.text.contains("workspace-etc"), "{}", strange.reply.text);
    }

    #[tokio::test]
    async fn what_cannot_be_laid_out_or_kept_is_said() {
        let _alone = ALONE.lock().await;
        let root = tempfile::tempdir().unwrap();
        let mut bench = Bench::new(root.path());
        for bad in ["not base64!", "aGVsbG8="] {
            let answer = bench.run(order("s1", "1", "true", Some(bad.into()))).await;
            assert!(answer.reply.is_error && answer.reply.text.contains("did not run"));
        }
        let newer = Order { v: 3, ..order("s1", "2", "true", None) };
        assert!(bench.run(newer).await.reply.text.contains("format 3"));
        let large = "head -c 6000000 /dev/urandom > big; echo done";
        let answer = bench.run(order("s1", "3", large, None)).await;
        assert!(answer.reply.is_error && answer.workspace.is_none());
        assert!(answer.reply.text.contains("done") && answer.reply.text.contains("is lost"));
        let after = bench.run(order("s1", "4", "ls", None)).await;
        assert_eq!(after.reply.text.trim(), "", "the next call starts from what was kept");
    }
}
