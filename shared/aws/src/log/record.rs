//! One record as an item: `R#` and the sequence number, the writer's nonce, and the body or the
//! address of the blob that holds it.

use aws_sdk_dynamodb::types::AttributeValue;
use tailstep_core::ids::{BlobRef, Seq, SessionKey};
use tailstep_runtime::ports::{Appended, Blobs, BlobsError, Entry, LogError};

use super::{conflict, head::partition};
use crate::item::{Item, binary, find_binary, get_number, get_text, number, text};

/// Largest body kept inside an item. DynamoDB takes items of 400 KB, names and keys included; the
/// rest is room for fields to come.
const BODY_BYTES_MAX: usize = 300_000;
/// Sorts behind every record key.
pub(super) const RECORD_KEY_END: &str = "R#~";
/// Item layout that this version writes; it refuses newer ones.
const LAYOUT: u64 = 1;

/// The sort key of a record. Twelve digits: a session with one record a millisecond would fill them
/// in 31 years.
pub(super) fn record_key(seq: Seq) -> String {
    format!("R#{seq:012}")
}

/// The item for `entry`, after storing its body as a blob if that is too large for an item.
pub(super) async fn encode(
    blobs: &dyn Blobs,
    key: &SessionKey,
    entry: &Entry,
) -> Result<Item, LogError> {
    let mut item = Item::from([
        ("pk".to_owned(), text(partition(key))),
        ("sk".to_owned(), text(record_key(entry.seq))),
        ("layout".to_owned(), number(LAYOUT)),
        ("nonce".to_owned(), text(&entry.nonce)),
    ]);
    if entry.body.len() <= BODY_BYTES_MAX {
        item.insert("body".to_owned(), binary(&entry.body));
    } else {
        let blob =
            blobs.put(&key.tenant, entry.body.clone()).await.map_err(|error| match error {
                BlobsError::Unavailable { what } => LogError::Unavailable { what },
                BlobsError::Refused { .. }
                | BlobsError::Missing { .. }
                | BlobsError::Corrupt { .. } => LogError::Refused { what: error.to_string() },
            })?;
        item.insert("body_sha256".to_owned(), text(blob.sha256));
        item.insert("body_bytes".to_owned(), number(blob.bytes));
    }
    Ok(item)
}

/// The entry in `item`, which must be record `expected`; its body is fetched if it is a blob.
pub(super) async fn decode(
    blobs: &dyn Blobs,
    key: &SessionKey,
    expected: Seq,
    item: &Item,
) -> Result<Entry, LogError> {
    let corrupt =
        |what: String| LogError::Corrupt { session: key.session.clone(), seq: expected, what };
    let sk = get_text(item, "sk").map_err(corrupt)?;
    if sk != record_key(expected) {
        return Err(corrupt(format!("{sk} follows where this record should be")));
    }
    let layout = get_number(item, "layout").map_err(corrupt)?;
    if layout > LAYOUT {
        return Err(LogError::Refused {
            what: format!("record has item layout {layout}, this version reads up to {LAYOUT}"),
        });
    }
    let nonce = get_text(item, "nonce").map_err(corrupt)?.to_owned();
    let body = match find_binary(item, "body").map_err(corrupt)? {
        Some(body) => body,
        None => {
            let blob = BlobRef {
                sha256: get_text(item, "body_sha256").map_err(corrupt)?.to_owned(),
                bytes: get_number(item, "body_bytes").map_err(corrupt)?,
            };
            blobs.get(&key.tenant, &blob).await.map_err(|error| match error {
                BlobsError::Unavailable { what } => LogError::Unavailable { what },
                BlobsError::Refused { what } => LogError::Refused { what },
                BlobsError::Missing { .. } | BlobsError::Corrupt { .. } => {
                    corrupt(error.to_string())
                }
            })?
        }
    };
    Ok(Entry { seq: expected, nonce, body })
}

/// What it means that the place of `entry` was taken by `found`: our own earlier write, whose answer
/// was lost, or somebody else's.
pub(super) fn taken(
    key: &SessionKey,
    entry: &Entry,
    found: Option<&Item>,
) -> Result<Appended, LogError> {
    let nonce = found.and_then(|item| item.get("nonce")).map(AttributeValue::as_s);
    match nonce {
        Some(Ok(nonce)) if *nonce == entry.nonce => Ok(Appended::AlreadyMine),
        Some(Ok(_) | Err(_)) | None => Err(conflict(key, entry.seq)),
    }
}
