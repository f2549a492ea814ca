//! Opening and closing the local form.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tailstep_runtime::ports::{Blobs, Clock, Documents, Log, Queue, Secrets, SystemClock};

use crate::{
    blobs::LocalBlobs,
    documents::LocalDocuments,
    error::{LocalError, io_error},
    files::{make_private, make_private_dir, sync_dir},
    log::LocalLog,
    queue,
    secrets::LocalSecrets,
    store::Store,
};

/// The ports of the local form, all over one data directory, which this process holds alone.
pub struct Local {
    pub log: Arc<dyn Log>,
    pub queue: Arc<dyn Queue>,
    pub documents: Arc<dyn Documents>,
    pub blobs: Arc<dyn Blobs>,
    pub secrets: Arc<dyn Secrets>,
    store: Arc<Store>,
    lock: Mutex<Option<File>>,
}

#[derive(Debug, Clone)]
pub struct Config {
    /// Made if it does not exist, for this user alone.
    pub data_dir: PathBuf,
    /// A received wake-up that is not acknowledged comes back after this. Workers hide theirs again
    /// while they work, so that it only counts for one whose worker panicked.
    pub visibility_ms: u64,
    /// Memory for heads and records of sessions in use.
    pub cache_bytes: usize,
}

impl Config {
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: data_dir.into(), visibility_ms: 60_000, cache_bytes: 8 * 1024 * 1024 }
    }
}

impl Local {
    /// Opens the data directory and wakes every session that is due.
    ///
    /// # Errors
    /// [`LocalError`], one line each: the directory is in use, of a newer format, not ours, or
    /// cannot be read or written.
    pub async fn open(config: &Config) -> Result<Self, LocalError> {
        let dir = &config.data_dir;
        let lock = take(dir)?;
        let secrets = Arc::new(LocalSecrets::open(dir)?);
        let blobs = LocalBlobs::open(dir).map_err(io_error("prepare", dir.join("blobs")))?;
        let (store, overdue) = Store::open(dir, config.cache_bytes, SystemClock.now_ms())?;
        // The names of new files, the database among them, are durable from here on.
        sync_dir(dir).map_err(io_error("sync", dir))?;
        let store = Arc::new(store);
        Ok(Self {
            log: Arc::new(LocalLog { store: store.clone() }),
            queue: queue::open(overdue, config.visibility_ms).await,
            documents: Arc::new(LocalDocuments { store: store.clone() }),
            blobs: Arc::new(blobs),
            secrets,
            store,
            lock: Mutex::new(Some(lock)),
        })
    }

    /// Ends what is under way and gives the directory back. Ports that are still held refuse.
    /// Takes as long as one commit; a process that skips it loses nothing.
    pub fn close(&self) {
        self.store.close();
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Makes the directory if need be, and locks it: two processes on one log would each believe that
/// it alone writes.
fn take(dir: &Path) -> Result<File, LocalError> {
    let lock_file = dir.join("tailstep.lock");
    let ours = match fs::read_dir(dir) {
        Ok(mut entries) => lock_file.exists() || entries.next().is_none(),
        Err(_) => {
            make_private_dir(dir).map_err(io_error("make", dir))?;
            true
        }
    };
    // Somebody else's folder, which we were told to use, keeps its mode.
    if ours {
        make_private(dir).map_err(io_error("make private", dir))?;
    }
    let open = |path: &Path| {
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
    };
    let lock = open(&lock_file).map_err(io_error("open", &lock_file))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(LocalError::InUse { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) => return Err(io_error("lock", lock_file)(error)),
    }
    // Made here for its mode, which SQLite gives to the files beside it too.
    let database = dir.join("tailstep.db");
    open(&database).map_err(io_error("open", &database))?;
    Ok(lock)
}
