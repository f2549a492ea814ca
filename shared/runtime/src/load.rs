//! Reading a session: the snapshot in its head and the records behind it, never the whole log.

use tailstep_core::{
    ids::{Seq, SessionKey},
    record::Record,
    session::{SNAPSHOT_FORMAT, Session},
};

use crate::{
    error::RuntimeError,
    ports::{Entry, Head, Log},
};

/// Records read in one call.
const BATCH: usize = 256;

/// A session as it is in the log at this moment.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub key: SessionKey,
    /// The head as it is stored; it may be older than `session`.
    pub head: Option<Head>,
    pub session: Session,
}

/// Loads the session, or refuses with [`RuntimeError::NotFound`].
///
/// # Errors
/// Also when the log is out of reach, has a gap, or does not fold.
pub async fn load(log: &dyn Log, key: &SessionKey) -> Result<Loaded, RuntimeError> {
    let head = log.head(key).await?;
    let snapshot = head.as_ref().and_then(snapshot);
    let mut loaded = Loaded { key: key.clone(), head, session: snapshot.unwrap_or_default() };
    catch_up(log, &mut loaded).await?;
    if loaded.session.origin.is_none() {
        return Err(RuntimeError::NotFound { session: key.session.clone() });
    }
    Ok(loaded)
}

fn snapshot(head: &Head) -> Option<Session> {
    let session: Session = serde_json::from_slice(&head.snapshot).ok()?;
    (session.format == SNAPSHOT_FORMAT).then_some(session)
}

/// Folds in what was appended since.
///
/// # Errors
/// When the log is out of reach, has a gap, or does not fold.
pub async fn catch_up(log: &dyn Log, loaded: &mut Loaded) -> Result<(), RuntimeError> {
    loop {
        let records = read(log, &loaded.key, loaded.session.seq, BATCH).await?;
        for record in &records {
            loaded.session.apply(record).map_err(|source| RuntimeError::Inconsistent {
                session: loaded.key.session.clone(),
                source,
            })?;
        }
        if records.len() < BATCH {
            return Ok(());
        }
    }
}

/// Decoded records behind `after`, at most `limit`.
///
/// # Errors
/// When the log is out of reach or a record cannot be decoded.
pub async fn read(
    log: &dyn Log,
    key: &SessionKey,
    after: Seq,
    limit: usize,
) -> Result<Vec<Record>, RuntimeError> {
    let entries = log.read(key, after, limit).await?;
    entries.iter().map(|entry| decode(key, entry)).collect()
}

fn decode(key: &SessionKey, entry: &Entry) -> Result<Record, RuntimeError> {
    Record::decode(&entry.body).map_err(|source| RuntimeError::Unreadable {
        session: key.session.clone(),
        seq: entry.seq,
        source,
    })
}

/// The record with this number.
///
/// # Errors
/// [`RuntimeError::NotFound`] when the log ends before it.
pub async fn read_one(log: &dyn Log, key: &SessionKey, seq: Seq) -> Result<Record, RuntimeError> {
    let mut records = read(log, key, seq.saturating_sub(1), 1).await?;
    match records.pop() {
        Some(record) if record.seq == seq => Ok(record),
        Some(_) | None => Err(RuntimeError::NotFound { session: key.session.clone() }),
    }
}
