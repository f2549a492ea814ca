//! Files that go into a machine before a call, and out of it after one. What comes out is data: a
//! machine's manifest names pieces, and each piece is stored only as what it is.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Serialize;
use tailstep_core::{
    files::{FileContent, Given, Manifest, OUTPUTS_DIRECTORY, OutputFile, SKILLS_DIRECTORY},
    ids::{BlobRef, sha256_hex},
};
use tailstep_runtime::ports::{BlobsError, HandsError, ToolOrder, ToolReply};
use tokio::time::timeout;

use super::{Machine, MicroVmHands, Said, Stored, Transfer, unavailable};
use crate::hands::failed;

/// For one call. A step waits longer, but collecting takes its part of that.
const TAKE: Duration = Duration::from_secs(40);
/// A thousand files of the longest paths are 2 MB.
const MANIFEST_BYTES_MAX: u64 = 8 << 20;
/// Sendings of one request.
const ATTEMPTS_MAX: usize = 3;

/// Files that are about to be sent.
#[derive(Serialize)]
struct Coming<'a> {
    given: Option<String>,
    outputs: Option<&'a BlobRef>,
    files: Vec<ComingFile>,
}

#[derive(Serialize)]
struct ComingFile {
    path: String,
    size_bytes: u64,
    sha256: String,
    writable: bool,
    #[serde(skip)]
    chunks: Vec<BlobRef>,
}

impl ComingFile {
    fn new(path: String, content: &FileContent, writable: bool) -> Self {
        let FileContent { size_bytes, sha256, chunks } = content.clone();
        Self { path, size_bytes, sha256, writable, chunks }
    }
}

/// Why files did not get into a machine.
enum Undone {
    /// The bytes of something are lost, or nowhere to be put.
    Refused(String),
    /// Bytes of an output are lost.
    OutputLost(String),
    Hands(HandsError),
}

impl Undone {
    fn of_output(self) -> Self {
        match self {
            Self::Refused(why) => Self::OutputLost(why),
            Self::OutputLost(_) | Self::Hands(_) => self,
        }
    }
}

impl From<HandsError> for Undone {
    fn from(error: HandsError) -> Self {
        Self::Hands(error)
    }
}

/// Names what a session is given; `None` when that is nothing.
pub(super) fn name(given: &Given) -> Option<String> {
    if given.is_empty() {
        return None;
    }
    let mut text = String::new();
    for file in &given.files {
        text.push_str(&format!("{:?} {}\n", file.mount_path, file.content.sha256));
    }
    for skill in &given.skills {
        text.push_str(&format!("{:?} {}\n", skill.name, skill.manifest.sha256));
    }
    Some(sha256_hex(text.as_bytes()))
}

impl MicroVmHands {
    /// Sends what the session is given, and what it put out in former machines. A refusal is the
    /// call's reply.
    pub(super) async fn give(
        &self,
        order: &ToolOrder,
        stored: &Stored,
        machine: &Machine,
    ) -> Result<Option<ToolReply>, HandsError> {
        let mut sent = match self.former_outputs(order).await {
            Ok(outputs) => self.send_files(order, stored, machine, outputs).await,
            Err(undone) => Err(undone),
        };
        if let Err(Undone::OutputLost(why)) = &sent {
            // Nothing else has to wait for what is not to be had again.
            tracing::error!(session = %order.key, why, "outputs are lost");
            sent = self.send_files(order, stored, machine, Vec::new()).await;
        }
        match sent {
            Ok(()) => Ok(None),
            Err(Undone::Refused(why) | Undone::OutputLost(why)) => {
                tracing::error!(session = %order.key, why, "files cannot be given");
                Ok(Some(failed(format!("{why}; the call did not run"))))
            }
            Err(Undone::Hands(error)) => Err(error),
        }
    }

    async fn send_files(
        &self,
        order: &ToolOrder,
        stored: &Stored,
        machine: &Machine,
        outputs: Vec<ComingFile>,
    ) -> Result<(), Undone> {
        let mut files = self.given(order).await?;
        let given = files.len();
        files.extend(outputs);
        let coming = Coming { given: name(&order.given), outputs: order.outputs.as_ref(), files };
        let list = serde_json::to_vec(&coming).map_err(|error| unavailable(&error.to_string()))?;
        self.put(stored, machine, Method::PUT, "/v1/files", list.into()).await?;
        for (index, file) in coming.files.iter().enumerate() {
            let mut offset = 0;
            for chunk in &file.chunks {
                let piece = self.bytes(order, chunk, &format!("the file {:?}", file.path)).await;
                let piece = if index < given { piece } else { piece.map_err(Undone::of_output) };
                let piece = piece?;
                let path = format!("/v1/files/{index}/{offset}");
                self.put(stored, machine, Method::PUT, &path, piece).await?;
                offset += chunk.bytes;
            }
        }
        self.put(stored, machine, Method::POST, "/v1/files", Bytes::new()).await
    }

    async fn given(&self, order: &ToolOrder) -> Result<Vec<ComingFile>, Undone> {
        let Given { files, skills } = &order.given;
        let mut coming: Vec<ComingFile> = files
            .iter()
            .map(|file| ComingFile::new(file.mount_path.clone(), &file.content, false))
            .collect();
        for skill in skills {
            let what = format!("the skill {:?}", skill.name);
            let manifest = self.manifest(order, &skill.manifest, &what).await?;
            let path =
                |file: &OutputFile| format!("{SKILLS_DIRECTORY}/{}/{}", skill.name, file.path);
            let files = manifest.files.iter();
            coming.extend(files.map(|file| ComingFile::new(path(file), &file.content, false)));
        }
        Ok(coming)
    }

    async fn former_outputs(&self, order: &ToolOrder) -> Result<Vec<ComingFile>, Undone> {
        let Some(blob) = &order.outputs else { return Ok(Vec::new()) };
        let manifest = self.manifest(order, blob, "the list of outputs").await;
        let manifest = manifest.map_err(Undone::of_output)?;
        let path = |file: &OutputFile| format!("{OUTPUTS_DIRECTORY}/{}", file.path);
        let files = manifest.files.iter();
        Ok(files.map(|file| ComingFile::new(path(file), &file.content, true)).collect())
    }

    async fn manifest(
        &self,
        order: &ToolOrder,
        blob: &BlobRef,
        what: &str,
    ) -> Result<Manifest, Undone> {
        let stored = self.bytes(order, blob, what).await?;
        Manifest::decode(&stored).map_err(|error| Undone::Refused(format!("{what}: {error}")))
    }

    async fn bytes(&self, order: &ToolOrder, blob: &BlobRef, what: &str) -> Result<Bytes, Undone> {
        self.blobs.get(&order.key.tenant, blob).await.map_err(|error| match error {
            BlobsError::Missing { .. } | BlobsError::Corrupt { .. } => {
                Undone::Refused(format!("{what} is lost"))
            }
            BlobsError::Unavailable { .. } | BlobsError::Refused { .. } => {
                unavailable(&error.to_string()).into()
            }
        })
    }

    /// The same again does no harm.
    async fn put(
        &self,
        stored: &Stored,
        machine: &Machine,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(), Undone> {
        let mut last = String::new();
        for _ in 0..ATTEMPTS_MAX {
            let transfer = Transfer {
                method: method.clone(),
                path,
                sha256: None,
                body: body.clone(),
                bytes_max: 4_096,
            };
            match self.transfer(stored, machine, transfer).await? {
                Said::Guest(status, _) if status.is_success() => return Ok(()),
                Said::Guest(status, body) => {
                    let text = String::from_utf8_lossy(&body[..body.len().min(500)]).into_owned();
                    return Err(Undone::Refused(format!(
                        "files cannot be placed in the sandbox ({status}): {text}"
                    )));
                }
                Said::Token => {
                    self.forget_token(&machine.id);
                    last = "the endpoint refuses the token".to_owned();
                }
                Said::Unreached(what) | Said::Broken(what) => last = what,
            }
        }
        Err(unavailable(&last).into())
    }

    /// Stores what the machine has named; `false` when that cannot be done now.
    pub(super) async fn take_outputs(
        &self,
        order: &ToolOrder,
        stored: &Stored,
        machine: &Machine,
        named: &BlobRef,
    ) -> bool {
        let taken = timeout(TAKE, self.take(order, stored, machine, named)).await;
        let why = match taken {
            Ok(Ok(())) => return true,
            Ok(Err(why)) => why,
            Err(_) => format!("not done within {} s", TAKE.as_secs()),
        };
        tracing::warn!(session = %order.key, why, "outputs were not stored");
        false
    }

    async fn take(
        &self,
        order: &ToolOrder,
        stored: &Stored,
        machine: &Machine,
        named: &BlobRef,
    ) -> Result<(), String> {
        let tenant = &order.key.tenant;
        let blobs = |error: BlobsError| error.to_string();
        if named.bytes > MANIFEST_BYTES_MAX {
            return Err(format!("a manifest of {} bytes", named.bytes));
        }
        let encoded = self.piece(stored, machine, named).await?;
        let manifest = Manifest::decode(&encoded).map_err(|error| error.to_string())?;
        manifest.check()?;
        // What the log knows already is stored; nothing else may be named without its bytes.
        let mut there = BTreeSet::new();
        if let Some(before) = &order.outputs {
            let before = self.blobs.get(tenant, before).await.map_err(blobs)?;
            let before = Manifest::decode(&before).map_err(|error| error.to_string())?;
            there.extend(before.files.into_iter().flat_map(|file| file.content.chunks));
        }
        for chunk in manifest.files.iter().flat_map(|file| &file.content.chunks) {
            if there.insert(chunk.clone()) {
                let piece = self.piece(stored, machine, chunk).await?;
                self.blobs.put(tenant, piece).await.map_err(blobs)?;
            }
        }
        self.blobs.put(tenant, encoded).await.map_err(blobs)?;
        Ok(())
    }

    async fn piece(
        &self,
        stored: &Stored,
        machine: &Machine,
        blob: &BlobRef,
    ) -> Result<Bytes, String> {
        let path = format!("/v1/outputs/{}", blob.sha256);
        let mut last = String::new();
        for _ in 0..ATTEMPTS_MAX {
            let bytes_max = usize::try_from(blob.bytes).unwrap_or(usize::MAX);
            let transfer = Transfer {
                method: Method::GET,
                path: &path,
                sha256: None,
                body: Bytes::new(),
                bytes_max,
            };
            let said = self.transfer(stored, machine, transfer).await;
            match said.map_err(|error| error.to_string())? {
                Said::Guest(StatusCode::OK, piece) if BlobRef::of(&piece) == *blob => {
                    return Ok(piece);
                }
                Said::Token => self.forget_token(&machine.id),
                Said::Guest(status, _) => last = format!("{status}, or other bytes"),
                Said::Unreached(what) | Said::Broken(what) => last = what,
            }
        }
        Err(last)
    }
}
