//! Time stamps as the wire has them: RFC 3339, in UTC with `Z`.

use tailstep_core::ids::UnixMs;
use time::{OffsetDateTime, UtcDateTime, format_description::well_known::Rfc3339};

/// `ms` as text, to the millisecond. Times beyond the year 9999 are shown as its end.
pub(crate) fn stamp(ms: UnixMs) -> String {
    let at = UtcDateTime::from_unix_timestamp_nanos(nanos(ms)).unwrap_or(UtcDateTime::MAX);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.millisecond()
    )
}

/// Reads a time stamp with any offset, as nanoseconds since 1970 (clients send microseconds, and a
/// cut one would compare wrongly); `None` when it is none.
pub(crate) fn parse(text: &str) -> Option<i128> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(OffsetDateTime::unix_timestamp_nanos)
}

/// `ms` in the unit of [`parse`].
pub(crate) fn nanos(ms: UnixMs) -> i128 {
    i128::from(ms) * 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_round_trip() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_796_079_600_007, "2026-11-30T23:00:00.007Z"),
            (951_825_600_000, "2000-02-29T12:00:00.000Z"),
        ] {
            assert_eq!(stamp(ms), text);
            assert_eq!(parse(text), Some(nanos(ms)));
        }
        assert_eq!(stamp(u64::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn offsets_are_read_and_nonsense_is_not() {
        assert_eq!(parse("2026-12-01T01:00:00+02:00"), parse("2026-11-30T23:00:00Z"));
        for bad in ["", "2026-11-30", "yesterday", "2026-13-01T00:00:00Z", "2026-11-30T23:00:00"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
