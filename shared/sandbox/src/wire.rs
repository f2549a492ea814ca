//! What the supervisor and its helper say to each other: frames of a 4-byte little-endian length
//! and JSON. The helper's side is plain blocking I/O; the supervisor's is asynchronous.

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    path::PathBuf,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    call::{Call, Reply},
    spec::{Layers, Limits, Mount, Network, Root, Spec, Strictness},
};

/// The largest order: a `write` of the largest file that a call may carry, escaped.
pub(crate) const ORDER_BYTES_MAX: usize = 8 << 20;

/// The largest report: a full `read` (256 KiB) or the largest output, every byte escaped as six.
pub(crate) const REPORT_BYTES_MAX: usize = 32 << 20;

/// Supervisor to PID 1.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    Call(Call),
    /// Ends the running call, if it is this one.
    Cancel {
        call_id: String,
    },
}

/// The first frame, to the guard: what to start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) job: Job,
    #[serde(with = "path::optional")]
    pub(crate) workspace: Option<PathBuf>,
    pub(crate) root: Root,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) network: Network,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) limits: Limits,
    pub(crate) strictness: Strictness,
}

impl Start {
    pub(crate) fn of(spec: &Spec, job: Job, workspace: Option<PathBuf>) -> Self {
        Self {
            job,
            workspace,
            root: spec.root.clone(),
            mounts: spec.mounts.clone(),
            network: spec.network,
            environment: spec.environment.clone(),
            limits: spec.limits.clone(),
            strictness: spec.strictness,
        }
    }
}

/// What a sandbox is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Only to see whether the host can isolate.
    Look,
    /// Calls of the toolset, until the line closes.
    Tools,
    /// One program, with standard streams from outside.
    Program {
        argv: Vec<OsString>,
        #[serde(with = "path")]
        directory: PathBuf,
    },
}

/// PID 1, or the guard, to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Ready(Layers),
    Refused {
        why: String,
    },
    Reply(Reply),
    /// The program has ended.
    Exited(Exited),
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exited {
    Code(u8),
    Signal(i32),
    /// There is no such program inside.
    Missing {
        why: String,
    },
    /// It cannot be executed.
    NotExecutable {
        why: String,
    },
}

/// Paths as the bytes that they are; a string of JSON could not hold all of them.
pub(crate) mod path {
    use std::{
        ffi::OsString,
        path::{Path, PathBuf},
    };

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        OsString::deserialize(from).map(PathBuf::from)
    }

    pub(crate) mod optional {
        use super::{Deserialize, Deserializer, OsString, PathBuf, Serialize, Serializer};

        pub(crate) fn serialize<S: Serializer>(
            path: &Option<PathBuf>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            path.as_deref().map(std::path::Path::as_os_str).serialize(to)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<PathBuf>, D::Error> {
            Ok(Option::<OsString>::deserialize(from)?.map(PathBuf::from))
        }
    }
}

/// Encodes a message as one frame.
pub(crate) fn frame(message: &impl Serialize, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    if length > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("frame of {length} bytes")));
    }
    let prefix = u32::try_from(length).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&prefix.to_le_bytes());
    Ok(bytes)
}

pub(crate) fn write(to: &mut impl Write, message: &impl Serialize, max: usize) -> io::Result<()> {
    to.write_all(&frame(message, max)?)
}

pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read, bytes_max: usize) -> io::Result<T> {
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix)?;
    let mut body = vec![0; length(prefix, bytes_max)?];
    from.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

pub(crate) async fn write_async(
    to: &mut (impl AsyncWriteExt + Unpin),
    frame: &[u8],
) -> io::Result<()> {
    to.write_all(frame).await
}

pub(crate) async fn read_async<T: DeserializeOwned>(
    from: &mut (impl AsyncReadExt + Unpin),
    bytes_max: usize,
) -> io::Result<T> {
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix).await?;
    let mut body = vec![0; length(prefix, bytes_max)?];
    from.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

fn length(prefix: [u8; 4], bytes_max: usize) -> io::Result<usize> {
    let length = u32::from_le_bytes(prefix) as usize;
    if length > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("frame of {length} bytes")));
    }
    Ok(length)
}
