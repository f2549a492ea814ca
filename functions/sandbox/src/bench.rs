//! The one sandbox that this environment serves: lays its workspace out, runs a call, packs what has
//! become of it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use tailstep_sandbox::{
    Call, Limits, Reply, Sockets, vm,
    workspace::{Caps, WorkspaceError, pack, unpack},
};
use thiserror::Error;

use crate::message::{Answer, FORMAT, Order};

/// Largest packed workspace: with base64 it is 5.3 MB of the 6 MB that an invocation may carry.
const PACKED_BYTES_MAX: u64 = 4_000_000;
/// Characters of a sandbox's name that its directory has.
const NAME_CHARS: usize = 16;

/// Keeps the sandbox's shell and files between the calls that happen to meet here.
pub(crate) struct Bench {
    root: PathBuf,
    laid: Option<Laid>,
}

struct Laid {
    sandbox: String,
    directory: PathBuf,
    hands: vm::Hands,
    /// The archive that the directory is equal to; `None` when that is not known.
    archive: Option<Vec<u8>>,
    /// Laid out for a session that has worked elsewhere before, and no call has said so yet.
    new: bool,
    /// The last call with its answer, for the case that the answer was lost on its way: the same
    /// call comes again with the workspace of before, and must neither run nor be laid out again.
    last: Option<(Call, Answer)>,
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
}

impl Bench {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), laid: None }
    }

    /// Runs one call. Whatever goes wrong is part of the answer, for the model to see.
    pub(crate) fn run(&mut self, order: Order) -> Answer {
        let Order { v, sandbox, call, workspace } = order;
        if let Some(answer) = self.answered(&sandbox, &call) {
            return answer;
        }
        let laid = if v > FORMAT {
            Err(Failure::Newer { found: v })
        } else {
            self.lay(&sandbox, workspace.as_deref())
        };
        match laid {
            Ok(laid) => laid.run(&call),
            Err(failure) => {
                self.laid = None;
                let text = format!("no sandbox could be prepared, the call did not run: {failure}");
                Answer { v: FORMAT, reply: failed(&call, text), workspace: None }
            }
        }
    }

    /// What the last call of this sandbox came to, if it is the same one.
    fn answered(&self, sandbox: &str, call: &Call) -> Option<Answer> {
        let laid = self.laid.as_ref().filter(|laid| laid.sandbox == sandbox)?;
        let (last, answer) = laid.last.as_ref()?;
        let same = (&last.call_id, &last.tool, &last.input);
        (same == (&call.call_id, &call.tool, &call.input)).then(|| answer.clone())
    }

    /// The sandbox with the workspace as `given`: the one at hand if that is how it was left.
    fn lay(&mut self, sandbox: &str, given: Option<&str>) -> Result<&mut Laid, Failure> {
        let archive = given.map(|text| STANDARD.decode(text)).transpose()?.unwrap_or_default();
        let usable = self
            .laid
            .take()
            .filter(|laid| laid.sandbox == sandbox && laid.archive.as_ref() == Some(&archive));
        let laid = match usable {
            Some(laid) => laid,
            None => self.lay_anew(sandbox, archive)?,
        };
        Ok(self.laid.insert(laid))
    }

    fn lay_anew(&self, sandbox: &str, archive: Vec<u8>) -> Result<Laid, Failure> {
        // The step names sandboxes by a hash; anything else must not become a path.
        let plain = |c: &char| c.is_ascii_alphanumeric();
        let name: String = sandbox.chars().filter(plain).take(NAME_CHARS).collect();
        let directory = self.root.join(format!("workspace-{name}"));
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => fs::create_dir(&directory)?,
        }
        let new = !archive.is_empty();
        if new {
            unpack(&archive, &directory, &caps())?;
        }
        let hands = vm::Hands::open(directory.clone(), &Limits::default(), Sockets::Local)?;
        let sandbox = sandbox.to_owned();
        Ok(Laid { sandbox, directory, hands, archive: Some(archive), new, last: None })
    }
}

impl Laid {
    fn run(&mut self, call: &Call) -> Answer {
        let mut reply = self.hands.run(call);
        if std::mem::take(&mut self.new) {
            reply.text.insert_str(0, vm::NEW_SANDBOX);
        }
        let before = self.archive.take();
        let workspace = match pack(&self.directory, &caps()) {
            Ok(packed) => {
                if packed.left_out_total > 0 {
                    let text = format!(
                        "\n[{} entries of the workspace cannot be kept for the next call, such as {}]",
                        packed.left_out_total,
                        packed
                            .left_out
                            .first()
                            .map_or("?".into(), |out| out.path.display().to_string()),
                    );
                    reply.text.push_str(&text);
                }
                // An empty workspace is the one that needs no archive.
                let archive = if packed.entries == 0 { Vec::new() } else { packed.bytes };
                let changed = before.as_ref() != Some(&archive);
                let text = changed.then(|| STANDARD.encode(&archive));
                self.archive = Some(archive);
                text
            }
            Err(error) => {
                let text = format!(
                    "\n[the workspace could not be kept, so what this call changed is lost: {error}]"
                );
                reply.text.push_str(&text);
                reply.is_error = true;
                None
            }
        };
        let answer = Answer { v: FORMAT, reply, workspace };
        self.last = Some((call.clone(), answer.clone()));
        answer
    }
}

impl Drop for Laid {
    fn drop(&mut self) {
        self.hands.end_all();
        // A directory left behind is removed when its sandbox comes again, or with the environment.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn caps() -> Caps {
    Caps { packed_bytes_max: PACKED_BYTES_MAX, ..Caps::default() }
}

fn failed(call: &Call, text: String) -> Reply {
    Reply {
        call_id: call.call_id.clone(),
        text,
        is_error: true,
        truncated_bytes: 0,
        timed_out: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One at a time: ending a sandbox ends every process that this one has started.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn alone() -> std::sync::MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn order(sandbox: &str, id: &str, command: &str, workspace: Option<String>) -> Order {
        let input = format!("{{\"command\":{}}}", serde_json::to_string(command).unwrap());
        let call = Call { call_id: id.into(), tool: "bash".into(), input, timeout_ms: 10_000 };
        Order { v: FORMAT, sandbox: sandbox.into(), call, workspace }
    }

    #[test]
    fn a_workspace_travels_between_environments() {
        let _alone = alone();
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (mut here, mut there) = (Bench::new(one.path()), Bench::new(two.path()));
        let first = here.run(order("s1", "1", "echo hello > note; X=kept; pwd", None));
        assert!(first.reply.text.contains("workspace-s1"), "{}", first.reply.text);
        // Elsewhere: the file has come along, the shell has not.
        let second = there.run(order("s1", "2", "cat note; echo [$X]", first.workspace.clone()));
        assert_eq!(second.reply.text, format!("{}hello\n[]\n", vm::NEW_SANDBOX));
        assert!(second.workspace.is_none(), "nothing changed");
        // Here: the shell is still there.
        let third = here.run(order("s1", "3", "echo [$X]; rm note", first.workspace));
        assert_eq!(third.reply.text, "[kept]\n");
        // Emptied: an archive of nothing, which is not the same as unchanged.
        assert_eq!(third.workspace.as_deref(), Some(""));
        let fourth = there.run(order("s1", "4", "ls -A | wc -l", third.workspace));
        assert_eq!(fourth.reply.text.trim(), "0");
    }

    #[test]
    fn a_call_delivered_again_is_answered_with_what_it_came_to() {
        let _alone = alone();
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let count = outside.path().join("count");
        let command = format!("echo x | tee -a {} made", count.display());
        let mut bench = Bench::new(root.path());
        let first = bench.run(order("s1", "1", &command, None));
        // The answer was lost, so the step still knows the workspace of before.
        let again = bench.run(order("s1", "1", &command, None));
        assert_eq!(again.workspace, first.workspace);
        assert_eq!((again.reply.text.as_str(), first.workspace.is_some()), ("x\n", true));
        assert_eq!(fs::read_to_string(&count).unwrap(), "x\n");
        bench.run(order("s1", "2", &command, first.workspace));
        assert_eq!(fs::read_to_string(&count).unwrap(), "x\nx\n", "an intended repeat runs");
    }

    #[test]
    fn another_sandbox_finds_nothing_of_the_first() {
        let _alone = alone();
        let root = tempfile::tempdir().unwrap();
        let mut bench = Bench::new(root.path());
        bench.run(order("s1", "1", "echo secret > note; Y=secret", None));
        let answer = bench.run(order("s2", "2", "cat ../*/note; echo [$Y]", None));
        assert!(!answer.reply.text.contains("secret"), "{}", answer.reply.text);
        let strange = bench.run(order("../../etc", "3", "pwd", None));
        assert!(strange.reply.text.contains("workspace-etc"), "{}", strange.reply.text);
    }

    #[test]
    fn what_cannot_be_laid_out_or_kept_is_said() {
        let _alone = alone();
        let root = tempfile::tempdir().unwrap();
        let mut bench = Bench::new(root.path());
        for bad in ["not base64!", "aGVsbG8="] {
            let answer = bench.run(order("s1", "1", "true", Some(bad.into())));
            assert!(answer.reply.is_error && answer.reply.text.contains("did not run"));
        }
        let newer = Order { v: 2, ..order("s1", "2", "true", None) };
        assert!(bench.run(newer).reply.text.contains("format 2"));
        let large = "head -c 6000000 /dev/urandom > big; echo done";
        let answer = bench.run(order("s1", "3", large, None));
        assert!(answer.reply.is_error && answer.workspace.is_none());
        assert!(answer.reply.text.contains("done") && answer.reply.text.contains("is lost"));
        let after = bench.run(order("s1", "4", "ls", None));
        assert_eq!(after.reply.text.trim(), "", "the next call starts from what was kept");
    }
}
