//! The skills of a session's agent: fetched from the server, and kept where hands take from what
//! sandboxes are given.

use std::{
    collections::BTreeMap,
    io::{Cursor, Read},
    path::{Component, Path},
};

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use tailstep_core::{
    agent::SkillSpec,
    files::{Manifest, OutputFile},
    ids::BlobRef,
};
use tailstep_runtime::{
    content::ContentWriter,
    ports::{Blobs, BlobsError},
};
use thiserror::Error;
use zip::{ZipArchive, result::ZipError};

use crate::{Worker, client::CallError, item::is_plain, key::Key, pause::Backoff, session::TENANT};

/// Of one skill, unpacked. Servers take half as much.
const BYTES_MAX: u64 = 64 << 20;
/// Files and directories of one skill.
const ENTRIES_MAX: usize = 2_000;
/// Of one agent; servers take 20.
const SKILLS_MAX: usize = 100;

#[derive(Debug, Error)]
enum SkillError {
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("cannot be kept here: {0}")]
    Kept(#[from] BlobsError),
    #[error("its archive cannot be read: {0}")]
    Archive(#[from] ZipError),
    #[error("its archive is refused: {0}")]
    Refused(&'static str),
}

#[derive(Deserialize)]
struct Session {
    #[serde(default)]
    agent: Agent,
}

#[derive(Default, Deserialize)]
struct Agent {
    #[serde(default)]
    skills: Vec<Reference>,
}

#[derive(Deserialize)]
struct Reference {
    skill_id: String,
    version: String,
}

#[derive(Deserialize)]
struct Version {
    name: String,
}

/// What can be had of the agent's skills. For as long as the lease is held, trying again is right; a
/// skill that is refused for good is left out, and the log says so.
pub(crate) async fn fetch(worker: &Worker, session: &str, key: &Key) -> Vec<SkillSpec> {
    let mut skills = Vec::new();
    let path = format!("/v1/sessions/{session}");
    let get = || async { Ok(worker.client.call::<Session>(Method::GET, &path, key, None).await?) };
    let found = match retried(get).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, session, "the session's skills are not known");
            return skills;
        }
    };
    for Reference { skill_id, version } in found.agent.skills.into_iter().take(SKILLS_MAX) {
        match retried(|| one(worker, key, &skill_id, &version)).await {
            Ok(skill) => skills.push(skill),
            Err(error) => tracing::warn!(%error, session, skill_id, "a skill is left out"),
        }
    }
    skills
}

async fn retried<T, F>(work: impl Fn() -> F) -> Result<T, SkillError>
where
    F: Future<Output = Result<T, SkillError>> + Send,
{
    let mut backoff = Backoff::new(500, 30_000);
    loop {
        match work().await {
            Err(SkillError::Call(error)) if error.may_pass() => {
                tracing::warn!(%error, "skills are asked for again");
                backoff.wait().await;
            }
            ended => return ended,
        }
    }
}

async fn one(
    worker: &Worker,
    key: &Key,
    skill_id: &str,
    version: &str,
) -> Result<SkillSpec, SkillError> {
    if !is_plain(skill_id) || !is_plain(version) {
        return Err(SkillError::Refused("its id or version is none"));
    }
    let path = format!("/v1/skills/{skill_id}/versions/{version}");
    let Version { name } = worker.client.call(Method::GET, &path, key, None).await?;
    // It becomes a directory.
    if !is_plain(&name) {
        return Err(SkillError::Refused(
            "its name has other characters than letters, digits and -",
        ));
    }
    let archive = worker.client.bytes(&format!("{path}/content"), key).await?;
    let files = unpack(archive)?;
    let manifest = keep(worker.blobs.as_ref(), files).await?;
    Ok(SkillSpec {
        skill_id: skill_id.to_owned(),
        version: version.to_owned(),
        name,
        // The server's own model has been told.
        description: String::new(),
        manifest,
    })
}

/// The files below the one directory that wraps them.
fn unpack(archive: Bytes) -> Result<BTreeMap<String, Vec<u8>>, SkillError> {
    let mut archive = ZipArchive::new(Cursor::new(archive))?;
    if archive.len() > ENTRIES_MAX {
        return Err(SkillError::Refused("it has too many entries"));
    }
    let (mut files, mut left) = (BTreeMap::new(), BYTES_MAX);
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        if entry.is_dir() {
            continue;
        }
        if !entry.is_file() {
            return Err(SkillError::Refused("an entry is neither a file nor a directory"));
        }
        let path = inner(&entry.name()?)
            .ok_or(SkillError::Refused("an entry's name is no plain path below one directory"))?;
        let mut content = Vec::new();
        // What an archive says of sizes is not believed.
        let read = entry.by_ref().take(left + 1).read_to_end(&mut content);
        read.map_err(ZipError::Io)?;
        left = left
            .checked_sub(content.len() as u64)
            .ok_or(SkillError::Refused("it has too many bytes"))?;
        if files.insert(path, content).is_some() {
            return Err(SkillError::Refused("two entries have one name"));
        }
    }
    Ok(files)
}

fn inner(name: &str) -> Option<String> {
    let (_, path) = name.split_once('/')?;
    let whole = Path::new(name);
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    (!path.is_empty() && !path.contains('\\') && whole.components().all(plain))
        .then(|| path.to_owned())
}

async fn keep(blobs: &dyn Blobs, files: BTreeMap<String, Vec<u8>>) -> Result<BlobRef, SkillError> {
    let mut manifest = Manifest::empty();
    for (path, bytes) in files {
        let mut writer = ContentWriter::new(blobs, TENANT);
        writer.write(&bytes).await?;
        let content = writer.finish().await?;
        manifest.files.push(OutputFile { path, content, collected_at_ms: 0 });
    }
    let encoded =
        manifest.encode().map_err(|error| BlobsError::Refused { what: error.to_string() })?;
    Ok(blobs.put(TENANT, encoded.into()).await?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;

    fn archive(entries: &[(&str, &[u8])]) -> Bytes {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in entries {
            archive.start_file(*name, SimpleFileOptions::default()).unwrap();
            archive.write_all(content).unwrap();
        }
        archive.finish().unwrap().into_inner().into()
    }

    #[test]
    fn files_are_found_below_the_wrapping_directory() {
        let files =
            unpack(archive(&[("pdf/SKILL.md", b"---"), ("pdf/bin/a", b""), ("pdf/é", b"x")]));
        let files = files.unwrap();
        assert_eq!(files.keys().collect::<Vec<_>>(), ["SKILL.md", "bin/a", "é"]);
        assert_eq!(files["SKILL.md"], b"---");
        let mut with_directory = ZipWriter::new(Cursor::new(Vec::new()));
        with_directory.add_directory("pdf/", SimpleFileOptions::default()).unwrap();
        assert!(unpack(with_directory.finish().unwrap().into_inner().into()).unwrap().is_empty());
    }

    #[test]
    fn nothing_leads_out_of_the_directory() {
        for name in
            ["SKILL.md", "/pdf/a", "pdf/../a", "../pdf/a", "pdf/", "pdf/..", "pdf/a\\..\\b", ""]
        {
            let refused = unpack(archive(&[(name, b"x")]));
            assert!(refused.is_err() || refused.unwrap().is_empty(), "{name}");
        }
        let mut linked = ZipWriter::new(Cursor::new(Vec::new()));
        linked.add_symlink("pdf/a", "/etc", SimpleFileOptions::default()).unwrap();
        let linked = linked.finish().unwrap().into_inner();
        assert!(matches!(unpack(linked.into()), Err(SkillError::Refused(_))));
    }

    #[test]
    fn an_archive_cannot_fill_the_worker() {
        let zeros = vec![0; 33 << 20];
        let mut bomb = ZipWriter::new(Cursor::new(Vec::new()));
        for name in ["pdf/a", "pdf/b"] {
            let packed = zip::CompressionMethod::Deflated;
            bomb.start_file(name, SimpleFileOptions::default().compression_method(packed)).unwrap();
            bomb.write_all(&zeros).unwrap();
        }
        let bomb = bomb.finish().unwrap().into_inner();
        assert!(bomb.len() < 1 << 20);
        assert!(matches!(unpack(bomb.into()), Err(SkillError::Refused(_))));
        let many: Vec<String> = (0..=ENTRIES_MAX).map(|n| format!("pdf/{n}")).collect();
        let many: Vec<(&str, &[u8])> = many.iter().map(|name| (name.as_str(), &b""[..])).collect();
        assert!(matches!(unpack(archive(&many)), Err(SkillError::Refused(_))));
        for broken in [&b""[..], b"PK", b"not a zip at all"] {
            assert!(unpack(Bytes::from_static(broken)).is_err());
        }
    }
}
