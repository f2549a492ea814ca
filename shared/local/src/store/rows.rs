//! Heads, records and documents as rows.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Result, Row, params, types::Type};
use tailstep_core::{
    ids::{Seq, SessionKey},
    model::Usage,
};
use tailstep_runtime::ports::{
    Document, DocumentKind, Entry, Head, ListDocuments, ListSessions, SessionStatus,
};

/// Where a session stands in the database.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    /// 1 and up.
    pub no: i64,
    /// The last record; 0 when there is none.
    pub last_seq: Seq,
    /// The last record that the stored head covers; `None` without a head.
    pub stored_seq: Option<Seq>,
    pub stored_due_ms: Option<u64>,
}

pub(super) fn place(c: &Connection, key: &SessionKey) -> Result<Option<Place>> {
    let mut statement = c.prepare_cached(
        "SELECT no, last_seq, due_at_ms, (SELECT max(seq) FROM records WHERE session = no)
         FROM sessions WHERE tenant = ?1 AND session = ?2",
    )?;
    let read = |row: &Row<'_>| {
        Ok(Place {
            no: row.get(0)?,
            stored_seq: row.get(1)?,
            stored_due_ms: row.get(2)?,
            last_seq: row.get::<_, Option<Seq>>(3)?.unwrap_or(0),
        })
    };
    statement.query_row([&key.tenant, &key.session], read).optional()
}

pub(super) fn insert_session(c: &Connection, no: i64, key: &SessionKey) -> Result<()> {
    c.prepare_cached("INSERT INTO sessions(no, tenant, session) VALUES (?1, ?2, ?3)")?
        .execute(params![no, key.tenant, key.session])?;
    Ok(())
}

pub(super) fn insert_record(c: &Connection, no: i64, entry: &Entry) -> Result<()> {
    c.prepare_cached("INSERT INTO records(session, seq, nonce, body) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![no, int(entry.seq), entry.nonce, &entry.body[..]])?;
    Ok(())
}

pub(super) fn nonce(c: &Connection, no: i64, seq: Seq) -> Result<Option<String>> {
    c.prepare_cached("SELECT nonce FROM records WHERE session = ?1 AND seq = ?2")?
        .query_row(params![no, int(seq)], |row| row.get(0))
        .optional()
}

pub(super) fn write_head(c: &Connection, no: i64, head: &Head) -> Result<()> {
    let usage = serde_json::to_string(&head.usage)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    c.prepare_cached(
        "UPDATE sessions SET last_seq = ?2, status = ?3, agent_id = ?4, agent_version = ?5,
             environment_id = ?6, title = ?7, created_at_ms = ?8, updated_at_ms = ?9,
             archived_at_ms = ?10, due_at_ms = ?11, usage = ?12, snapshot = ?13
         WHERE no = ?1",
    )?
    .execute(params![
        no,
        int(head.last_seq),
        status_name(head.status),
        head.agent_id,
        int(head.agent_version),
        head.environment_id,
        head.title,
        int(head.created_at_ms),
        int(head.updated_at_ms),
        head.archived_at_ms.map(int),
        head.due_at_ms.map(int),
        usage,
        &head.snapshot[..],
    ])?;
    Ok(())
}

pub(super) fn write_due(c: &Connection, no: i64, due_at_ms: u64) -> Result<()> {
    c.prepare_cached("UPDATE sessions SET due_at_ms = ?2 WHERE no = ?1")?
        .execute(params![no, int(due_at_ms)])?;
    Ok(())
}

const HEAD_COLUMNS: &str = "no, tenant, session, last_seq, status, agent_id, agent_version, \
    environment_id, title, created_at_ms, updated_at_ms, archived_at_ms, due_at_ms, usage, snapshot";

/// A head and the number of its session.
pub(super) type NumberedHead = (i64, Head);

pub(super) fn head(c: &Connection, key: &SessionKey) -> Result<Option<NumberedHead>> {
    let sql = format!(
        "SELECT {HEAD_COLUMNS} FROM sessions
         WHERE tenant = ?1 AND session = ?2 AND last_seq IS NOT NULL"
    );
    c.prepare_cached(&sql)?.query_row([&key.tenant, &key.session], read_head).optional()
}

/// One more than `query.limit` when there are more.
pub(super) fn heads(
    c: &Connection,
    tenant: &str,
    query: &ListSessions,
) -> Result<Vec<NumberedHead>> {
    let (behind, order) = behind("session", query.after.is_some(), query.descending);
    let sql = format!(
        "SELECT {HEAD_COLUMNS} FROM sessions
         WHERE tenant = ?1 AND {behind} AND last_seq IS NOT NULL
         ORDER BY session {order} LIMIT ?3"
    );
    let limit = int(query.limit.saturating_add(1) as u64);
    let after = query.after.as_deref().unwrap_or_default();
    c.prepare_cached(&sql)?.query_map(params![tenant, after, limit], read_head)?.collect()
}

fn read_head(row: &Row<'_>) -> Result<NumberedHead> {
    let usage: String = row.get(13)?;
    let usage: Usage = serde_json::from_str(&usage)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(13, Type::Text, error.into()))?;
    let head = Head {
        tenant: row.get(1)?,
        session: row.get(2)?,
        last_seq: row.get(3)?,
        status: read_status(row.get_ref(4)?.as_str()?)?,
        agent_id: row.get(5)?,
        agent_version: row.get(6)?,
        environment_id: row.get(7)?,
        title: row.get(8)?,
        created_at_ms: row.get(9)?,
        updated_at_ms: row.get(10)?,
        archived_at_ms: row.get(11)?,
        due_at_ms: row.get(12)?,
        usage,
        snapshot: Bytes::copy_from_slice(row.get_ref(14)?.as_blob()?),
        lease: None,
    };
    Ok((row.get(0)?, head))
}

/// Records behind `after`, in order, whether or not there are gaps between them.
pub(super) fn records(
    c: &Connection,
    key: &SessionKey,
    after: Seq,
    limit: usize,
) -> Result<Vec<Entry>> {
    let mut statement = c.prepare_cached(
        "SELECT r.seq, r.nonce, r.body FROM sessions s JOIN records r ON r.session = s.no
         WHERE s.tenant = ?1 AND s.session = ?2 AND r.seq > ?3 ORDER BY r.seq LIMIT ?4",
    )?;
    let read = |row: &Row<'_>| {
        let body = Bytes::copy_from_slice(row.get_ref(2)?.as_blob()?);
        Ok(Entry { seq: row.get(0)?, nonce: row.get(1)?, body })
    };
    statement
        .query_map(params![key.tenant, key.session, int(after), int(limit as u64)], read)?
        .collect()
}

pub(super) fn purge(c: &Connection, no: i64) -> Result<()> {
    c.prepare_cached("DELETE FROM records WHERE session = ?1")?.execute([no])?;
    c.prepare_cached("DELETE FROM sessions WHERE no = ?1")?.execute([no])?;
    Ok(())
}

pub(super) fn sessions_max(c: &Connection) -> Result<i64> {
    c.query_row("SELECT ifnull(max(no), 0) FROM sessions", [], |row| row.get(0))
}

/// A session that somebody should look at.
pub(super) struct Due {
    pub key: SessionKey,
    pub due_at_ms: u64,
    /// It was being worked on, or the next step was on its way.
    pub moving: bool,
}

pub(super) fn due(c: &Connection) -> Result<Vec<Due>> {
    let mut statement = c.prepare(
        "SELECT tenant, session, due_at_ms, status, last_seq,
             (SELECT max(seq) FROM records WHERE session = no)
         FROM sessions WHERE due_at_ms IS NOT NULL ORDER BY due_at_ms, no",
    )?;
    let read = |row: &Row<'_>| {
        let status: Option<String> = row.get(3)?;
        let (covered, last): (Option<Seq>, Option<Seq>) = (row.get(4)?, row.get(5)?);
        Ok(Due {
            key: SessionKey { tenant: row.get(0)?, session: row.get(1)? },
            due_at_ms: row.get(2)?,
            moving: status.as_deref() == Some(status_name(SessionStatus::Running))
                || last > covered,
        })
    };
    statement.query_map([], read)?.collect()
}

const DOCUMENT_COLUMNS: &str = "id, revision, created_at_ms, body";

pub(super) fn document(
    c: &Connection,
    tenant: &str,
    kind: DocumentKind,
    id: &str,
) -> Result<Option<Document>> {
    let sql = format!(
        "SELECT {DOCUMENT_COLUMNS} FROM documents WHERE tenant = ?1 AND kind = ?2 AND id = ?3"
    );
    c.prepare_cached(&sql)?
        .query_row([tenant, kind.as_str(), id], |row| read_document(row, tenant, kind))
        .optional()
}

/// One more than `query.limit` when there are more.
pub(super) fn documents(
    c: &Connection,
    tenant: &str,
    kind: DocumentKind,
    query: &ListDocuments,
) -> Result<Vec<Document>> {
    let (behind, order) = behind("id", query.after.is_some(), query.descending);
    // The range bounds the scan; the prefix itself is compared exactly, byte for byte.
    let sql = format!(
        "SELECT {DOCUMENT_COLUMNS} FROM documents
         WHERE tenant = ?1 AND kind = ?4 AND {behind}
             AND id >= ?5 AND substr(id, 1, length(?5)) = ?5
         ORDER BY id {order} LIMIT ?3"
    );
    let after = query.after.as_deref().unwrap_or_default();
    let limit = int(query.limit.saturating_add(1) as u64);
    let mut statement = c.prepare_cached(&sql)?;
    let rows = statement
        .query_map(params![tenant, after, limit, kind.as_str(), query.prefix], |row| {
            read_document(row, tenant, kind)
        })?;
    rows.collect()
}

fn read_document(row: &Row<'_>, tenant: &str, kind: DocumentKind) -> Result<Document> {
    Ok(Document {
        tenant: tenant.to_owned(),
        kind,
        id: row.get(0)?,
        revision: row.get(1)?,
        created_at_ms: row.get(2)?,
        body: Bytes::copy_from_slice(row.get_ref(3)?.as_blob()?),
    })
}

pub(super) fn revision(
    c: &Connection,
    tenant: &str,
    kind: DocumentKind,
    id: &str,
) -> Result<Option<u64>> {
    c.prepare_cached("SELECT revision FROM documents WHERE tenant = ?1 AND kind = ?2 AND id = ?3")?
        .query_row([tenant, kind.as_str(), id], |row| row.get(0))
        .optional()
}

pub(super) fn write_document(c: &Connection, document: &Document) -> Result<()> {
    c.prepare_cached(
        "INSERT INTO documents(tenant, kind, id, revision, created_at_ms, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT(tenant, kind, id) DO UPDATE SET
             revision = excluded.revision, created_at_ms = excluded.created_at_ms,
             body = excluded.body",
    )?
    .execute(params![
        document.tenant,
        document.kind.as_str(),
        document.id,
        int(document.revision),
        int(document.created_at_ms),
        &document.body[..],
    ])?;
    Ok(())
}

pub(super) fn delete_document(
    c: &Connection,
    tenant: &str,
    kind: DocumentKind,
    id: &str,
) -> Result<()> {
    c.prepare_cached("DELETE FROM documents WHERE tenant = ?1 AND kind = ?2 AND id = ?3")?
        .execute([tenant, kind.as_str(), id])?;
    Ok(())
}

/// The condition on `column` for a page behind ?2, and the direction.
fn behind(column: &str, after: bool, descending: bool) -> (String, &'static str) {
    let condition = match (after, descending) {
        (false, _) => "1".to_owned(),
        (true, false) => format!("{column} > ?2"),
        (true, true) => format!("{column} < ?2"),
    };
    (condition, if descending { "DESC" } else { "ASC" })
}

/// SQLite's integers are signed. Times and counts beyond 2^63 are not reached; a sequence number
/// cannot be, because it is dense.
fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn status_name(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Idle => "idle",
        SessionStatus::Running => "running",
        SessionStatus::Rescheduling => "rescheduling",
        SessionStatus::Terminated => "terminated",
        SessionStatus::Deleted => "deleted",
    }
}

fn read_status(name: &str) -> Result<SessionStatus> {
    let all = [
        SessionStatus::Idle,
        SessionStatus::Running,
        SessionStatus::Rescheduling,
        SessionStatus::Terminated,
        SessionStatus::Deleted,
    ];
    all.into_iter().find(|status| status_name(*status) == name).ok_or_else(|| {
        let what = format!("unknown session status {name}");
        rusqlite::Error::FromSqlConversionFailure(4, Type::Text, what.into())
    })
}
