//! What the loop needs from the world, as small traits. Adapters implement them; nothing above them
//! knows which adapter it has. Each trait has its in-memory twin in [`crate::memory`], and one
//! conformance suite that every adapter passes.

mod blobs;
mod clock;
mod documents;
mod hands;
mod log;
mod model;
mod queue;
mod secrets;

pub use blobs::{Blobs, BlobsError};
pub use clock::{Clock, SystemClock};
pub use documents::{Document, DocumentKind, Documents, DocumentsError, Expect, ListDocuments};
pub use hands::{Hands, HandsError, ToolOrder, ToolReply};
pub use log::{
    Appended, Entry, Head, Lease, ListSessions, Log, LogError, Page, Projection, SessionStatus,
};
pub use model::Model;
pub use queue::{Delivery, Observed, Queue, QueueError, Wake};
pub use secrets::{Secrets, SecretsError};
