//! Blobs as files: `<data>/blobs/<tenant>/<first two digits>/<sha256>`.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use tailstep_core::ids::{BlobRef, sha256_hex};
use tailstep_runtime::ports::{Blobs, BlobsError};
use tokio::task::spawn_blocking;

use crate::files::{component, make_private_dir, sync_dir};

/// [`Blobs`] as files of one directory, for one process at a time.
pub struct LocalBlobs {
    files: Arc<Files>,
}

struct Files {
    dir: PathBuf,
    temporary: PathBuf,
    next: AtomicU64,
}

impl LocalBlobs {
    /// The blobs in `data_dir`, which is made. Drops what an earlier process left half written.
    ///
    /// # Errors
    /// The file system's own.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let dir = data_dir.join("blobs");
        // No tenant's folder has this name: a dot would be written as %2e.
        let temporary = dir.join(".unfinished");
        if temporary.exists() {
            fs::remove_dir_all(&temporary)?;
        }
        make_private_dir(&temporary)?;
        Ok(Self { files: Arc::new(Files { dir, temporary, next: AtomicU64::new(0) }) })
    }
}

#[async_trait]
impl Blobs for LocalBlobs {
    async fn put(&self, tenant: &str, content: Bytes) -> Result<BlobRef, BlobsError> {
        let (files, tenant) = (self.files.clone(), tenant.to_owned());
        let stored = spawn_blocking(move || {
            let blob = BlobRef::of(&content);
            files.put(&tenant, &blob, &content).map(|()| blob)
        });
        stored.await.map_err(unavailable)?.map_err(unavailable)
    }

    async fn get(&self, tenant: &str, blob: &BlobRef) -> Result<Bytes, BlobsError> {
        if blob.sha256.len() != 64 || !blob.sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(BlobsError::Missing { sha256: blob.sha256.clone() });
        }
        let (path, blob) = (self.files.path(tenant, blob), blob.clone());
        spawn_blocking(move || read(&path, &blob)).await.map_err(unavailable)?
    }
}

impl Files {
    fn path(&self, tenant: &str, blob: &BlobRef) -> PathBuf {
        let first = blob.sha256.get(..2).unwrap_or_default();
        self.dir.join(component(tenant)).join(first).join(&blob.sha256)
    }

    /// Whole under its name, or not there at all: written elsewhere, then renamed.
    fn put(&self, tenant: &str, blob: &BlobRef, content: &[u8]) -> io::Result<()> {
        let path = self.path(tenant, blob);
        // A damaged file is replaced.
        if fs::read(&path).is_ok_and(|found| found == content) {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(&self.dir);
        if !parent.exists() {
            make_private_dir(parent)?;
            for dir in parent.ancestors().skip(1).take_while(|dir| dir.starts_with(&self.dir)) {
                sync_dir(dir)?;
            }
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.temporary.join(number.to_string());
        let mut file = File::create(&unfinished)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)?;
        sync_dir(parent)
    }
}

fn read(path: &Path, blob: &BlobRef) -> Result<Bytes, BlobsError> {
    let sha256 = blob.sha256.clone();
    let content = match fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(BlobsError::Missing { sha256 });
        }
        Err(error) => return Err(unavailable(error)),
    };
    if content.len() as u64 != blob.bytes || sha256_hex(&content) != sha256 {
        return Err(BlobsError::Corrupt { sha256 });
    }
    Ok(Bytes::from(content))
}

fn unavailable(error: impl std::fmt::Display) -> BlobsError {
    BlobsError::Unavailable { what: error.to_string() }
}
