//! An origin's answer on its way in.

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode, header, response::Parts};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::{
    head::Version,
    meter::{Direction, Meter},
    refusal::Refusal,
    scrub::{Patterns, Scrubber},
};

/// How the answer is given to the sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner<'a> {
    pub(crate) version: Version,
    /// What is looked for; `None` when the host was given no secret.
    pub(crate) search: Option<&'a Patterns>,
    pub(crate) after: After,
}

/// What becomes of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Close,
    KeepAlive,
}

/// Refuses an answer that cannot be passed on as it is.
pub(crate) fn check(parts: &Parts, manner: &Manner<'_>) -> Result<(), Refusal> {
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Refusal::origin("the origin switched protocols without being asked"));
    }
    if manner.search.is_none() {
        return Ok(());
    }
    // A secret could not be seen in these.
    if parts.status == StatusCode::PARTIAL_CONTENT {
        return Err(Refusal::origin("the origin answered with a part, where answers are searched"));
    }
    let plain = |name, word: &str| {
        parts
            .headers
            .get_all(name)
            .iter()
            .all(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    if plain(header::CONTENT_ENCODING, "identity") && plain(header::TRANSFER_ENCODING, "chunked") {
        return Ok(());
    }
    Err(Refusal::origin("the origin compressed its answer, where answers are searched"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Nothing,
    Length(u64),
    Chunked,
    UntilClose,
}

/// The answer's head for the sandbox.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) head: Bytes,
    framing: Framing,
}

pub(crate) fn plan(
    method: &Method,
    parts: &Parts,
    length: Option<u64>,
    manner: &Manner<'_>,
) -> Plan {
    let bodiless = *method == Method::HEAD
        || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let framing = match (bodiless, length, manner.version) {
        (true, _, _) => Framing::Nothing,
        // A search may change the length.
        (false, Some(length), _) if manner.search.is_none() => Framing::Length(length),
        (false, _, Version::Http11) => Framing::Chunked,
        (false, _, Version::Http10) => Framing::UntilClose,
    };
    let mut head = BytesMut::new();
    let reason = parts.status.canonical_reason().unwrap_or("Status");
    head.put_slice(format!("HTTP/1.1 {} {reason}\r\n", parts.status.as_u16()).as_bytes());
    for (name, value) in &parts.headers {
        if is_between_neighbours(name.as_str(), &parts.headers) {
            continue;
        }
        let told = framing == Framing::Nothing && manner.search.is_none();
        if *name == header::CONTENT_LENGTH && !told {
            continue;
        }
        head.put_slice(name.as_str().as_bytes());
        head.put_slice(b": ");
        match manner.search {
            Some(patterns) => head.put_slice(&patterns.clean(value.as_bytes())),
            None => head.put_slice(value.as_bytes()),
        }
        head.put_slice(b"\r\n");
    }
    match framing {
        Framing::Length(length) => {
            head.put_slice(format!("content-length: {length}\r\n").as_bytes());
        }
        Framing::Chunked => head.put_slice(b"transfer-encoding: chunked\r\n"),
        Framing::Nothing | Framing::UntilClose => {}
    }
    if manner.after == After::Close {
        head.put_slice(b"connection: close\r\n");
    }
    head.put_slice(b"\r\n");
    Plan { head: head.freeze(), framing }
}

/// Headers that end here. `alt-svc` offers ways that a sandbox does not have.
fn is_between_neighbours(name: &str, headers: &HeaderMap) -> bool {
    const OWN: &[&str] = &[
        "alt-svc",
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let named = |value: &header::HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        text.split(',').any(|word| word.trim().eq_ignore_ascii_case(name))
    };
    OWN.contains(&name) || headers.get_all(header::CONNECTION).iter().any(named)
}

/// Passes the body on, searched, framed and metered.
pub(crate) async fn pass<W: AsyncWrite + Unpin>(
    mut body: Incoming,
    plan: &Plan,
    manner: &Manner<'_>,
    meter: &Meter,
    out: &mut W,
) -> Result<(), Refusal> {
    let mut scrubber = manner.search.map(Scrubber::new);
    while plan.framing != Framing::Nothing && !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|_| Refusal::origin("the origin's answer broke off"))?;
        // Trailers are dropped.
        let Ok(data) = frame.into_data() else { continue };
        meter.take(Direction::Down, data.len()).await?;
        let data = match &mut scrubber {
            Some(scrubber) => scrubber.push(&data),
            None => data,
        };
        send(plan.framing, &data, out).await?;
    }
    if let Some(scrubber) = scrubber {
        send(plan.framing, &scrubber.finish(), out).await?;
    }
    if plan.framing == Framing::Chunked {
        write(out, b"0\r\n\r\n").await?;
    }
    Ok(())
}

async fn send<W: AsyncWrite + Unpin>(
    framing: Framing,
    data: &[u8],
    out: &mut W,
) -> Result<(), Refusal> {
    if data.is_empty() {
        return Ok(());
    }
    if framing != Framing::Chunked {
        return write(out, data).await;
    }
    let mut chunk = BytesMut::with_capacity(data.len() + 24);
    chunk.put_slice(format!("{:x}\r\n", data.len()).as_bytes());
    chunk.put_slice(data);
    chunk.put_slice(b"\r\n");
    write(out, &chunk).await
}

/// Writes to the sandbox.
pub(crate) async fn write<W: AsyncWrite + Unpin>(out: &mut W, bytes: &[u8]) -> Result<(), Refusal> {
    let written = async {
        out.write_all(bytes).await?;
        out.flush().await
    };
    written.await.map_err(|_| Refusal::gone())
}
