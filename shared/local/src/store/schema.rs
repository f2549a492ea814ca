//! The tables, and what a connection needs before its first statement.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::LocalError;

/// Format of the database, in its `user_version`. A file of an older format is brought up to this
/// one when it is opened; a newer one is left alone.
const FORMAT: i64 = 1;

/// Records lie in the order in which they were appended, whatever their session, so that one commit
/// for hundreds of sessions writes a few full pages at the end of one table instead of a page a
/// session. The index finds a session's records; the names stand once, in `sessions`, which also has
/// the head (all of its columns are null until the first head is written).
const TABLES: &str = "
CREATE TABLE sessions(
    no INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    last_seq INTEGER,
    status TEXT,
    agent_id TEXT,
    agent_version INTEGER,
    environment_id TEXT,
    title TEXT,
    created_at_ms INTEGER,
    updated_at_ms INTEGER,
    archived_at_ms INTEGER,
    due_at_ms INTEGER,
    usage TEXT,
    snapshot BLOB,
    UNIQUE(tenant, session)
) STRICT;
CREATE INDEX sessions_due ON sessions(no) WHERE due_at_ms IS NOT NULL;
CREATE TABLE records(
    place INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions(no),
    seq INTEGER NOT NULL,
    nonce TEXT NOT NULL,
    body BLOB NOT NULL,
    UNIQUE(session, seq)
) STRICT;
CREATE TABLE documents(
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE(tenant, kind, id)
) STRICT;
";

/// Opens the writer's connection and makes the tables where there are none.
pub(super) fn open_writer(dir: &Path, file: &Path) -> Result<Connection, LocalError> {
    let failed = |source: rusqlite::Error| match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => LocalError::Foreign { file: file.to_owned() },
        Some(_) | None => LocalError::Database { dir: dir.to_owned(), source },
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags).map_err(failed)?;
    let found: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    if found > FORMAT {
        return Err(LocalError::Newer { dir: dir.to_owned(), found, known: FORMAT });
    }
    prepare_writer(&connection).map_err(failed)?;
    if found == FORMAT {
        return Ok(connection);
    }
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    if tables > 0 {
        return Err(LocalError::Foreign { file: file.to_owned() });
    }
    let create = format!("BEGIN IMMEDIATE;{TABLES}PRAGMA user_version = {FORMAT};COMMIT;");
    connection.execute_batch(&create).map_err(failed)?;
    Ok(connection)
}

fn prepare_writer(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(32);
    // 16 MB of log between checkpoints, so that a hot page is written back once for many commits.
    connection.execute_batch(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA foreign_keys = ON;
         PRAGMA cache_size = -4096;
         PRAGMA wal_autocheckpoint = 4000;
         PRAGMA journal_size_limit = 33554432;
         PRAGMA temp_store = MEMORY;",
    )
}

/// Opens a connection that only reads. It sees every commit that ended before its statement began.
pub(super) fn open_reader(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.execute_batch("PRAGMA cache_size = -1024;")?;
    Ok(connection)
}
