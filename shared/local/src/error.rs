//! Why the local form cannot start. Each message is one line that says what to do.

use std::{io, path::PathBuf};

use thiserror::Error;

#[derive(Debug, Error)]
pub enum LocalError {
    #[error("data directory {} is in use by another process; stop it, or choose another --data", .dir.display())]
    InUse { dir: PathBuf },
    #[error(
        "data directory {} has format {found}, and this version knows {known}; upgrade tailstep",
        .dir.display()
    )]
    Newer { dir: PathBuf, found: i64, known: i64 },
    #[error("{} is not a tailstep database; choose another --data", .file.display())]
    Foreign { file: PathBuf },
    #[error("cannot {action} {}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot open the database in {}", .dir.display())]
    Database { dir: PathBuf, source: rusqlite::Error },
    #[error("{} may be read by others; run chmod 600 on it", .file.display())]
    SecretsExposed { file: PathBuf },
    #[error("{} is not a JSON object of names and texts: {what}", .file.display())]
    SecretsMalformed { file: PathBuf, what: String },
}

/// Shapes an I/O error, for `map_err`.
pub(crate) fn io_error(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> LocalError {
    let path = path.into();
    move |source| LocalError::Io { action, path, source }
}
