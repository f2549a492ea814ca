//! Files of the user's that a session is given: uploaded, and named as the session's resources.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use axum::body::{Body, Bytes};
use serde_json::{Value, json};
use tailstep_core::files::{UPLOADS_DIRECTORY, check_mount_path};

use crate::api::Api;

const BOUNDARY: &str = "tailstep-run-file";
/// Read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// One `--file`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    source: PathBuf,
    /// Where the sandbox sees it.
    target: String,
}

/// Reads `PATH[:TARGET]`. The last `:/` parts them: a path may hold others.
pub(super) fn wanted(text: &OsStr) -> anyhow::Result<Wanted> {
    let bytes = text.as_bytes();
    let parting = bytes.windows(2).rposition(|pair| pair == b":/").filter(|at| *at > 0);
    let (source, target) = match parting {
        Some(at) => (&bytes[..at], Some(OsStr::from_bytes(&bytes[at + 1..]))),
        None => (bytes, None),
    };
    let source = PathBuf::from(OsStr::from_bytes(source));
    let target = match (target, source.file_name()) {
        (Some(target), _) => target.to_str().map(str::to_owned),
        (None, Some(name)) => name.to_str().map(|name| format!("{UPLOADS_DIRECTORY}/{name}")),
        (None, None) => bail!("it names no file"),
    };
    let Some(target) = target else { bail!("its place inside is not UTF-8; say one behind it") };
    if let Err(what) = check_mount_path(&target) {
        bail!("its place inside, {target:?}, {what}");
    }
    Ok(Wanted { source, target })
}

/// Uploads the files; answers what a session names them by, and their ids.
pub(super) async fn upload(api: &Api, files: &[Wanted]) -> anyhow::Result<Vec<Value>> {
    let mut resources = Vec::new();
    for (index, Wanted { source, target }) in files.iter().enumerate() {
        if files[..index].iter().any(|other| other.target == *target) {
            bail!("two --file would be at {target}; say `:/another/place` behind one of them");
        }
        let made = one(api, source).await;
        let made = made.with_context(|| format!("cannot give the file {}", source.display()))?;
        resources.push(json!({ "type": "file", "file_id": made["id"], "mount_path": target }));
    }
    Ok(resources)
}

/// Removes the uploads, of which the session has copies.
pub(super) async fn forget(api: &Api, resources: &[Value]) -> anyhow::Result<()> {
    for resource in resources {
        let id = resource["file_id"].as_str().unwrap_or_default();
        api.delete(&format!("/v1/files/{id}")).await?;
    }
    Ok(())
}

async fn one(api: &Api, source: &Path) -> anyhow::Result<Value> {
    // Before it is opened: a pipe would be waited for.
    if !source.metadata()?.is_file() {
        bail!("it is not a regular file");
    }
    let file = File::open(source)?;
    let name = source.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    // What the model is told; any character that a form could stumble over is another one there.
    let plain = |c: char| if c.is_control() || "\"\\/".contains(c) { '_' } else { c };
    let name: String = name.chars().map(plain).collect();
    let head = format!(
        "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n"
    );
    let tail = format!("\r\n--{BOUNDARY}--\r\n");
    let pieces = io::Cursor::new(head).chain(file).chain(io::Cursor::new(tail));
    let body = futures_util::stream::try_unfold(pieces, async |mut pieces| {
        let mut piece = vec![0; PIECE_BYTES];
        let count = pieces.read(&mut piece)?;
        piece.truncate(count);
        Ok::<_, io::Error>((count > 0).then(|| (Bytes::from(piece), pieces)))
    });
    let form = format!("multipart/form-data; boundary={BOUNDARY}");
    api.post_form("/v1/files", &form, Body::from_stream(body)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_inside_may_be_named() {
        for (text, source, target) in [
            ("a/b.csv", "a/b.csv", "/mnt/session/uploads/b.csv"),
            ("b.csv:/data/x", "b.csv", "/data/x"),
            ("12:30:/data/x", "12:30", "/data/x"),
            ("12:30", "12:30", "/mnt/session/uploads/12:30"),
            ("/abs/b", "/abs/b", "/mnt/session/uploads/b"),
        ] {
            let found = wanted(OsStr::new(text)).unwrap();
            assert_eq!((found.source, found.target.as_str()), (source.into(), target), "{text}");
        }
        for wrong in ["", "/", "..", "a:/", "a:/../x", "a:/usr/x", "a:/workspace/x"] {
            assert!(wanted(OsStr::new(wrong)).is_err(), "{wrong}");
        }
        assert!(wanted(OsStr::from_bytes(b"\xff")).is_err());
        assert!(wanted(OsStr::from_bytes(b"\xff:/data/x")).is_ok());
    }
}
