//! What sessions are given: uploaded files and skills, copied from blobs into the session's folder
//! once and mounted read-only into each of its sandboxes.

use std::{
    fs::Permissions,
    io,
    os::unix::fs::PermissionsExt,
    path::{Component, Path, PathBuf},
};

use tailstep_core::{
    agent::SkillSpec,
    files::{FileContent, FileResource, Given, Manifest, OutputFile, SKILLS_DIRECTORY},
};
use tailstep_runtime::ports::{Blobs, BlobsError};
use tailstep_sandbox::{Access, Mount};
use thiserror::Error;
use tokio::{fs, io::AsyncWriteExt};

use crate::files::{component, make_private_dir};

#[derive(Debug, Error)]
pub(super) enum GivenError {
    #[error("cannot put {what} into the session's folder")]
    File { what: String, source: io::Error },
    #[error("the bytes of {what} are out of reach")]
    Bytes { what: String, source: BlobsError },
    #[error("the stored form of {what} is broken")]
    Broken { what: String },
}

/// Copies what is not there yet into `folder`; answers how sandboxes are to see it.
pub(super) async fn prepare(
    folder: &Path,
    blobs: &dyn Blobs,
    tenant: &str,
    given: &Given,
) -> Result<Vec<Mount>, GivenError> {
    let mut mounts = Vec::new();
    if given.is_empty() {
        return Ok(mounts);
    }
    let place = Place { directory: folder.join("given"), blobs, tenant };
    let made = make_private_dir(&place.directory);
    made.map_err(|source| GivenError::File { what: "what it is given".to_owned(), source })?;
    for file in &given.files {
        let source = place.file(file).await?;
        let target = PathBuf::from(&file.mount_path);
        mounts.push(Mount { source, target, access: Access::ReadOnly });
    }
    for skill in &given.skills {
        let source = place.skill(skill).await?;
        let target = Path::new(SKILLS_DIRECTORY).join(&skill.name);
        mounts.push(Mount { source, target, access: Access::ReadOnly });
    }
    Ok(mounts)
}

struct Place<'a> {
    directory: PathBuf,
    blobs: &'a dyn Blobs,
    tenant: &'a str,
}

impl Place<'_> {
    async fn file(&self, file: &FileResource) -> Result<PathBuf, GivenError> {
        let at = self.directory.join(component(&file.id));
        if at.exists() {
            return Ok(at);
        }
        let unfinished = at.with_extension("unfinished");
        let what = || format!("file {}", file.file_id);
        self.write(&unfinished, &file.content, 0o444, &what).await?;
        let whole = fs::rename(&unfinished, &at).await;
        whole.map_err(|source| GivenError::File { what: what(), source })?;
        Ok(at)
    }

    async fn skill(&self, skill: &SkillSpec) -> Result<PathBuf, GivenError> {
        let at = self.directory.join(component(&skill.manifest.sha256));
        if at.exists() {
            return Ok(at);
        }
        let unfinished = at.with_extension("unfinished");
        let what = || format!("skill {}", skill.name);
        let failed = |source| GivenError::File { what: what(), source };
        // Left by a process that was killed.
        match fs::remove_dir_all(&unfinished).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        let stored = self.blobs.get(self.tenant, &skill.manifest).await;
        let stored = stored.map_err(|source| GivenError::Bytes { what: what(), source })?;
        let manifest =
            Manifest::decode(&stored).map_err(|_| GivenError::Broken { what: what() })?;
        directory(&unfinished).await.map_err(failed)?;
        for OutputFile { path, content, .. } in &manifest.files {
            let plain = |part| matches!(part, Component::Normal(_));
            if path.is_empty() || !Path::new(path).components().all(plain) {
                return Err(GivenError::Broken { what: what() });
            }
            let to = unfinished.join(path);
            for above in parents(Path::new(path)) {
                directory(&unfinished.join(above)).await.map_err(failed)?;
            }
            self.write(&to, content, 0o444, &what).await?;
            if begins_with_interpreter(&to).await.map_err(failed)? {
                let mode = Permissions::from_mode(0o555);
                fs::set_permissions(&to, mode).await.map_err(failed)?;
            }
        }
        fs::rename(&unfinished, &at).await.map_err(failed)?;
        Ok(at)
    }

    async fn write(
        &self,
        to: &Path,
        content: &FileContent,
        mode: u32,
        what: &impl Fn() -> String,
    ) -> Result<(), GivenError> {
        let failed = |source| GivenError::File { what: what(), source };
        let mut file = fs::File::create(to).await.map_err(failed)?;
        for chunk in &content.chunks {
            let piece = self.blobs.get(self.tenant, chunk).await;
            let piece = piece.map_err(|source| GivenError::Bytes { what: what(), source })?;
            file.write_all(&piece).await.map_err(failed)?;
        }
        file.flush().await.map_err(failed)?;
        file.set_permissions(Permissions::from_mode(mode)).await.map_err(failed)
    }
}

/// Makes one that the sandbox's user can read, whatever this process's mask is.
async fn directory(at: &Path) -> io::Result<()> {
    match fs::create_dir(at).await {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs::set_permissions(at, Permissions::from_mode(0o755)).await
}

/// The directories that lead to `path`, outermost first.
fn parents(path: &Path) -> Vec<&Path> {
    let mut above: Vec<&Path> =
        path.ancestors().skip(1).filter(|at| !at.as_os_str().is_empty()).collect();
    above.reverse();
    above
}

/// An upload says nothing of modes; a script says itself that it is one.
async fn begins_with_interpreter(path: &Path) -> io::Result<bool> {
    use tokio::io::AsyncReadExt;
    let mut first = Vec::new();
    fs::File::open(path).await?.take(2).read_to_end(&mut first).await?;
    Ok(first == b"#!")
}

#[cfg(test)]
mod tests {
    use tailstep_core::ids::BlobRef;
    use tailstep_runtime::{content::ContentWriter, memory::MemoryBlobs};

    use super::*;

    async fn content(blobs: &MemoryBlobs, bytes: &[u8]) -> FileContent {
        let mut writer = ContentWriter::new(blobs, "t");
        writer.write(bytes).await.unwrap();
        writer.finish().await.unwrap()
    }

    async fn skill(blobs: &MemoryBlobs, files: &[(&str, &[u8])]) -> SkillSpec {
        let mut manifest = Manifest::empty();
        for (path, bytes) in files {
            let content = content(blobs, bytes).await;
            let path = (*path).to_owned();
            manifest.files.push(OutputFile { path, content, collected_at_ms: 0 });
        }
        let manifest = blobs.put("t", manifest.encode().unwrap().into()).await.unwrap();
        SkillSpec {
            skill_id: "skill_1".into(),
            version: "skillver_1".into(),
            name: "make-it".into(),
            description: "Makes it.".into(),
            manifest,
        }
    }

    #[tokio::test]
    async fn files_and_skills_are_copied_once() {
        let (holder, blobs) = (tempfile::tempdir().unwrap(), MemoryBlobs::default());
        let file = FileResource {
            id: "sesrsc_1".into(),
            file_id: "file_1".into(),
            filename: "a".into(),
            mount_path: "/data/a".into(),
            content: content(&blobs, b"given").await,
            added_at_ms: 0,
        };
        let files: &[(&str, &[u8])] = &[("SKILL.md", b"---"), ("bin/run", b"#!/bin/sh\n")];
        let skill = skill(&blobs, files).await;
        let given = Given { files: vec![file], skills: vec![skill] };
        let mounts = prepare(holder.path(), &blobs, "t", &given).await.unwrap();
        assert_eq!(std::fs::read(&mounts[0].source).unwrap(), b"given");
        assert_eq!(mounts[0].target, Path::new("/data/a"));
        assert_eq!(mounts[1].target, Path::new("/skills/make-it"));
        let mode = |at: PathBuf| std::fs::metadata(at).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(mounts[1].source.join("SKILL.md")), 0o444);
        assert_eq!(mode(mounts[1].source.join("bin")), 0o755);
        assert_eq!(mode(mounts[1].source.join("bin/run")), 0o555);
        assert!(mounts.iter().all(|mount| mount.access == Access::ReadOnly));
        // A second sandbox needs no blob any more.
        let empty = MemoryBlobs::default();
        assert_eq!(prepare(holder.path(), &empty, "t", &given).await.unwrap(), mounts);
        let other = tempfile::tempdir().unwrap();
        let missing = prepare(other.path(), &empty, "t", &given).await.unwrap_err();
        assert!(matches!(missing, GivenError::Bytes { .. }));
    }

    #[tokio::test]
    async fn a_skill_cannot_write_elsewhere() {
        let (holder, blobs) = (tempfile::tempdir().unwrap(), MemoryBlobs::default());
        for path in ["../x", "/x", "a/../../x", ""] {
            let skill = skill(&blobs, &[(path, b"x")]).await;
            let given = Given { files: Vec::new(), skills: vec![skill] };
            let refused = prepare(holder.path(), &blobs, "t", &given).await.unwrap_err();
            assert!(matches!(refused, GivenError::Broken { .. }), "{path}");
        }
        let mut unknown = skill(&blobs, &[]).await;
        unknown.manifest = BlobRef::of(b"never stored");
        let given = Given { files: Vec::new(), skills: vec![unknown] };
        assert!(prepare(holder.path(), &blobs, "t", &given).await.is_err());
        assert!(!holder.path().join("x").exists());
    }
}
