//! Pages: opaque cursors, and filling a page from a store that knows no filters.

use std::future::Future;

use serde::Serialize;
use tailstep_core::ids::sha256_hex;
use tailstep_runtime::ports::Page;

use crate::error::ApiError;

/// Items asked of a store at once while a page is filled.
const BATCH: usize = 100;

/// A page that holds something is cut short after this many looked-at items, so that a filter which
/// matches little cannot keep one request busy for ever. (An empty page would stop official clients'
/// automatic paging, so a page is never cut short before its first item.)
const LOOKED_AT_MAX: usize = 10_000;

/// What lists answer.
#[derive(Serialize)]
pub(crate) struct PageBody<T> {
    pub(crate) data: Vec<T>,
    pub(crate) next_page: Option<String>,
}

/// What a cursor belongs to: it is refused anywhere else.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) tenant: &'a str,
    /// The list, its parent's id included.
    pub(crate) list: &'a str,
    pub(crate) order: &'a str,
}

/// Format of cursors; one of another format is refused.
const FORMAT: &str = "p1";

impl Scope<'_> {
    /// `place` as an opaque cursor. The check digits bind it to this list; they protect nothing, as
    /// a cursor only says where in one's own list to go on.
    pub(crate) fn cursor(&self, place: &str) -> String {
        let mut text = format!("{FORMAT}{}", self.check(place));
        for byte in place.bytes() {
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }

    /// Reads what [`Self::cursor`] wrote.
    pub(crate) fn place(&self, cursor: &str) -> Result<String, ApiError> {
        self.decode(cursor).ok_or_else(|| {
            ApiError::invalid(
                "page: not a cursor of this list in this order; take it from next_page of the \
                 same list, or leave it out to start at the beginning",
            )
        })
    }

    fn decode(&self, cursor: &str) -> Option<String> {
        let (check, hex) = cursor.strip_prefix(FORMAT)?.split_at_checked(CHECK_CHARS)?;
        if hex.len() % 2 != 0 || !hex.is_ascii() {
            return None;
        }
        let mut place = Vec::with_capacity(hex.len() / 2);
        for at in (0..hex.len()).step_by(2) {
            place.push(u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?);
        }
        let place = String::from_utf8(place).ok()?;
        (self.check(&place) == check).then_some(place)
    }

    fn check(&self, place: &str) -> String {
        let Self { tenant, list, order } = self;
        let mut check = sha256_hex(format!("{tenant}\n{list}\n{order}\n{place}").as_bytes());
        check.truncate(CHECK_CHARS);
        check
    }
}

const CHECK_CHARS: usize = 16;

/// Up to `limit` items behind `after` for which `keep` holds, and whether there are more.
pub(crate) async fn fill<T, Fut>(
    limit: usize,
    mut after: Option<String>,
    fetch: impl Fn(Option<String>, usize) -> Fut,
    id: impl Fn(&T) -> &str,
    keep: impl Fn(&T) -> bool,
) -> Result<(Vec<T>, bool), ApiError>
where
    Fut: Future<Output = Result<Page<T>, ApiError>>,
{
    let mut kept = Vec::new();
    let mut looked_at = 0;
    loop {
        // One more than is missing, to know whether there is another page.
        let wanted = (limit - kept.len() + 1).clamp(2, BATCH);
        let page = fetch(after.take(), wanted).await?;
        let more = page.more;
        looked_at += page.items.len();
        for item in page.items {
            after = Some(id(&item).to_owned());
            if !keep(&item) {
                continue;
            }
            if kept.len() == limit {
                return Ok((kept, true));
            }
            kept.push(item);
        }
        if !more || after.is_none() {
            return Ok((kept, false));
        }
        if looked_at >= LOOKED_AT_MAX && !kept.is_empty() {
            return Ok((kept, true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: Scope<'static> = Scope { tenant: "t", list: "agents", order: "desc" };

    #[test]
    fn cursors_come_back_only_where_they_belong() {
        let cursor = SCOPE.cursor("agent_1é");
        assert_eq!(SCOPE.place(&cursor).unwrap(), "agent_1é");
        for other in [
            Scope { tenant: "u", ..SCOPE },
            Scope { list: "environments", ..SCOPE },
            Scope { order: "asc", ..SCOPE },
        ] {
            assert!(other.place(&cursor).is_err());
        }
        for cut in 0..cursor.len() {
            if let Some(part) = cursor.get(..cut) {
                assert!(SCOPE.place(part).is_err(), "{part}");
            }
        }
        for bad in ["", "p1", "p2", "p1zz", "é", "p1ééééééééé", &format!("{cursor}0")] {
            assert!(SCOPE.place(bad).is_err(), "{bad}");
        }
    }
}
