//! What the writer is asked to do, and what it answers.

use std::sync::Arc;

use tailstep_core::ids::{Seq, SessionKey};
use tailstep_runtime::ports::{Appended, Document, DocumentKind, Entry, Expect, Head, Projection};

use super::board::Beat;

pub(crate) enum Op {
    Append {
        key: Arc<SessionKey>,
        entry: Entry,
        head: Arc<Head>,
        projection: Projection,
    },
    Project {
        key: Arc<SessionKey>,
        head: Arc<Head>,
    },
    Beat {
        key: Arc<SessionKey>,
        beat: Beat,
    },
    Purge {
        key: Arc<SessionKey>,
    },
    PutDocument {
        document: Document,
        expect: Expect,
    },
    /// `revision`: only if it still has that one.
    DeleteDocument {
        tenant: String,
        kind: DocumentKind,
        id: String,
        revision: Option<u64>,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Done,
    Appended(Appended),
    /// The last record that the head covers.
    HeadSeq(Seq),
}

#[derive(Debug, Clone)]
pub(crate) enum Refusal {
    /// Another writer has the place, or the document has another revision.
    Conflict(Seq),
    /// The record before this one, or this one below later ones, is not there.
    Missing(Seq),
    /// The database failed; nothing was written, or it is unknown.
    Unavailable(String),
    /// The database cannot be used.
    Refused(String),
}
