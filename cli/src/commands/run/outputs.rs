//! What the agent has put out, as files of a folder of the user's.

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use http_body_util::BodyExt;
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::{
    api::Api,
    show::Form,
    workspace::{Leaf, Root, Saving, leaf},
};

pub(super) struct Outputs {
    folder: PathBuf,
    root: Root,
}

/// What became of one file.
enum Saved {
    New,
    /// It was there, byte for byte.
    Already,
    /// Something else is there, and stays.
    Taken,
}

impl Outputs {
    /// Opens `folder`, which is made if it is not there: before anything is spent.
    ///
    /// # Errors
    /// When it cannot be made or opened.
    pub(super) fn open(folder: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot use {} for outputs", folder.display());
        std::fs::create_dir_all(folder).with_context(cannot)?;
        Ok(Self { folder: folder.to_owned(), root: Root::open(folder).with_context(cannot)? })
    }

    /// Copies all that the session has put out so far; `false` when a file could not have its place,
    /// because another one has it.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub(super) async fn fetch(&self, api: &Api, session: &str, form: Form) -> anyhow::Result<bool> {
        let files = api.list(&format!("/v1/files?scope_id={session}&limit=1000")).await?;
        let (mut written, mut taken) = (Vec::new(), Vec::new());
        for file in &files {
            let path = text(file, "x_path")?;
            let saved = self.save(api, file, path).await;
            match saved.with_context(|| format!("cannot write the output {path:?}"))? {
                Saved::New => written.push(path),
                Saved::Already => {}
                Saved::Taken => taken.push(path),
            }
        }
        match form {
            Form::Json => println!(
                "{}",
                json!({
                    "type": "x_outputs",
                    "folder": self.folder.to_string_lossy(),
                    "written": written,
                    "conflicts": taken,
                })
            ),
            Form::Text(_) => {
                for path in &taken {
                    eprintln!("conflict: output {path:?} is another file in the folder, and stays");
                }
                let (new, all) = (written.len(), files.len());
                eprintln!("{new} of {all} outputs are new in {}", self.folder.display());
            }
        }
        Ok(taken.is_empty())
    }

    async fn save(&self, api: &Api, file: &Value, path: &str) -> anyhow::Result<Saved> {
        let (id, expected) = (text(file, "id")?, text(file, "x_sha256")?);
        let path = Path::new(path);
        match leaf(&self.root, path) {
            Ok(None) => {}
            Ok(Some(Leaf::File { sha256, .. })) if sha256 == expected => return Ok(Saved::Already),
            Ok(Some(_)) => return Ok(Saved::Taken),
            Err(error) => return in_the_way(error),
        }
        let mut body = api.content(&format!("/v1/files/{id}/content")).await?;
        let mut saving = match Saving::begin(&self.root, path) {
            Ok(saving) => saving,
            Err(error) => return in_the_way(error),
        };
        while let Some(frame) = body.frame().await {
            if let Ok(bytes) = frame.context("its bytes broke off")?.into_data() {
                saving.write(&bytes)?;
            }
        }
        Ok(if saving.finish()? { Saved::New } else { Saved::Taken })
    }
}

/// A file where a folder is needed, or a link, which is never followed.
fn in_the_way(error: io::Error) -> anyhow::Result<Saved> {
    let is_link = error.raw_os_error() == Some(Errno::LOOP.raw_os_error());
    if is_link || error.kind() == io::ErrorKind::NotADirectory {
        Ok(Saved::Taken)
    } else {
        Err(error.into())
    }
}

fn text<'a>(file: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    match file[field].as_str() {
        Some(text) => Ok(text),
        None => bail!("the API answered a file without {field}"),
    }
}
