//! A request's body: read from the sandbox piece by piece, and handed to the client of the origin,
//! which frames it anew. Nothing of the sandbox's own framing reaches the origin.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::{io::AsyncRead, sync::mpsc};

use crate::{head::Framing, refusal::Refusal, stream::Inbound};

/// Longest line of a chunk's size with its extensions, and all trailers together.
const LINE_BYTES_MAX: usize = 256;
const TRAILER_BYTES_MAX: usize = 4 << 10;

/// Takes a body apart.
#[derive(Debug)]
pub(crate) struct BodyReader {
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Length(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers { seen: usize },
    Done,
}

impl BodyReader {
    pub(crate) fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::ChunkSize,
        };
        Self { state }
    }

    /// The next piece; `None` when the body is complete.
    pub(crate) async fn next<R: AsyncRead + Unpin>(
        &mut self,
        inbound: &mut Inbound<R>,
    ) -> Result<Option<Bytes>, Refusal> {
        loop {
            match self.state {
                State::Done | State::Length(0) => return Ok(None),
                State::Length(left) => {
                    let piece = piece(inbound, left).await?;
                    self.state = State::Length(left - piece.len() as u64);
                    return Ok(Some(piece));
                }
                State::Chunk(0) => self.state = State::ChunkEnd,
                State::Chunk(left) => {
                    let piece = piece(inbound, left).await?;
                    self.state = State::Chunk(left - piece.len() as u64);
                    return Ok(Some(piece));
                }
                State::ChunkSize => {
                    let line = line(inbound, LINE_BYTES_MAX).await?;
                    self.state = match chunk_size(&line)? {
                        0 => State::Trailers { seen: 0 },
                        size => State::Chunk(size),
                    };
                }
                State::ChunkEnd => {
                    if !line(inbound, 0).await?.is_empty() {
                        return Err(broken("a chunk is longer than its size"));
                    }
                    self.state = State::ChunkSize;
                }
                // Trailers are read and dropped: nothing inside has a use for them.
                State::Trailers { seen } => {
                    let line = line(inbound, TRAILER_BYTES_MAX - seen).await?;
                    self.state = if line.is_empty() {
                        State::Done
                    } else {
                        State::Trailers { seen: (seen + line.len() + 2).min(TRAILER_BYTES_MAX) }
                    };
                }
            }
        }
    }
}

fn broken(why: &str) -> Refusal {
    Refusal::malformed(why)
}

async fn more<R: AsyncRead + Unpin>(inbound: &mut Inbound<R>) -> Result<(), Refusal> {
    match inbound.fill().await {
        Ok(1..) => Ok(()),
        Ok(0) | Err(_) => Err(broken("the connection ended within a body")),
    }
}

async fn piece<R: AsyncRead + Unpin>(
    inbound: &mut Inbound<R>,
    left: u64,
) -> Result<Bytes, Refusal> {
    if inbound.buffer.is_empty() {
        more(inbound).await?;
    }
    let there = inbound.buffer.len();
    let take = usize::try_from(left).map_or(there, |left| left.min(there));
    Ok(inbound.buffer.split_to(take).freeze())
}

/// A line without its CR LF, which has at most `max` bytes.
async fn line<R: AsyncRead + Unpin>(
    inbound: &mut Inbound<R>,
    max: usize,
) -> Result<Bytes, Refusal> {
    loop {
        if let Some(at) = inbound.buffer.iter().take(max + 2).position(|b| *b == b'\n') {
            let line = inbound.buffer.split_to(at + 1).freeze();
            let text = line.strip_suffix(b"\r\n").ok_or_else(|| broken("a line has no CR LF"))?;
            return Ok(line.slice(..text.len()));
        }
        if inbound.buffer.len() >= max + 2 {
            return Err(broken("a line within a body is too long"));
        }
        more(inbound).await?;
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, Refusal> {
    let digits = line.split(|b| *b == b';').next().unwrap_or_default();
    let text = std::str::from_utf8(digits).unwrap_or_default();
    let plain = !text.is_empty() && text.len() <= 15 && text.bytes().all(|b| b.is_ascii_hexdigit());
    match u64::from_str_radix(text, 16) {
        Ok(size) if plain => Ok(size),
        Ok(_) | Err(_) => Err(broken("a chunk's size is not a number")),
    }
}

/// What goes through the channel of a [`RequestBody`]. A channel that closes without `End` is a body
/// that broke off, and the origin must not take it for a whole one.
#[derive(Debug)]
pub(crate) enum Piece {
    Data(Bytes),
    End,
}

/// The body as the origin's client sends it.
#[derive(Debug)]
pub(crate) struct RequestBody {
    pieces: mpsc::Receiver<Piece>,
    /// Bytes still to come, where that is known.
    left: Option<u64>,
    ended: bool,
}

/// The sandbox did not send all of it.
#[derive(Debug, thiserror::Error)]
#[error("the request broke off")]
pub(crate) struct BrokeOff;

impl RequestBody {
    pub(crate) fn new(framing: Framing) -> (mpsc::Sender<Piece>, Self) {
        let (sender, pieces) = mpsc::channel(4);
        let left = match framing {
            Framing::Length(length) => Some(length),
            Framing::Chunked => None,
        };
        (sender, Self { pieces, left, ended: false })
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BrokeOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        match self.pieces.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Piece::Data(data))) => {
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Poll::Ready(Some(Piece::End)) => {
                self.ended = true;
                Poll::Ready(None)
            }
            Poll::Ready(None) => {
                self.ended = true;
                Poll::Ready(Some(Err(BrokeOff)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(framing: Framing, text: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Refusal> {
        let mut inbound = Inbound::new(text);
        let mut body = BodyReader::new(framing);
        let mut all = Vec::new();
        while let Some(piece) = body.next(&mut inbound).await? {
            all.extend_from_slice(&piece);
        }
        Ok((all, inbound.buffer.to_vec()))
    }

    #[tokio::test]
    async fn bodies_end_where_they_say() {
        let (body, rest) = read(Framing::Length(3), b"abcGET").await.unwrap();
        assert_eq!((body.as_slice(), rest.as_slice()), (&b"abc"[..], &b"GET"[..]));
        let text = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nA: b\r\n\r\nGET";
        let (body, rest) = read(Framing::Chunked, text).await.unwrap();
        assert_eq!((body.as_slice(), rest.as_slice()), (&b"abcde"[..], &b"GET"[..]));
    }

    #[tokio::test]
    async fn broken_chunks_are_refused() {
        let long = format!("3;{}\r\nabc\r\n0\r\n\r\n", "x".repeat(999));
        let trailers = format!("0\r\n{}\r\n", "A: b\r\n".repeat(999));
        for text in [
            "3\r\nabcd\r\n0\r\n\r\n",
            "3\nabc\r\n0\r\n\r\n",
            "-1\r\n",
            "0x3\r\nabc\r\n",
            " 3\r\nabc\r\n",
            "\r\n",
            "3\r\nab",
            "",
            "fffffffffffffffff\r\n",
            "3\r\nabc0\r\n\r\n",
            &long,
            &trailers,
        ] {
            assert!(read(Framing::Chunked, text.as_bytes()).await.is_err(), "{text:?}");
        }
        assert!(read(Framing::Length(9), b"abc").await.is_err());
    }
}
