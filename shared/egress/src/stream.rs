//! Small things around byte streams.

use std::{io, time::Duration};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::JoinHandle,
    time::timeout,
};

/// Room for one read. Large enough that a fast transfer is not bound by system calls.
const READ_BYTES: usize = 32 << 10;

/// A reader with what was read and not yet used.
#[derive(Debug)]
pub(crate) struct Inbound<R> {
    pub(crate) buffer: BytesMut,
    pub(crate) reader: R,
}

impl<R: AsyncRead + Unpin> Inbound<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { buffer: BytesMut::new(), reader }
    }

    /// Reads more; 0 at the end of the stream.
    pub(crate) async fn fill(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ_BYTES);
        self.reader.read_buf(&mut self.buffer).await
    }
}

/// Anything that carries HTTP or TLS.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A task that ends with its owner.
#[derive(Debug)]
pub(crate) struct Owned(pub(crate) JoinHandle<()>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How long and how much a refused client may go on sending.
const LINGER_MS: u64 = 500;
const LINGER_BYTES_MAX: usize = 2 << 20;

/// Says the last words and closes. What the client still sends is read and thrown away for a moment,
/// because a socket closed over unread bytes is reset, and the client would not see the words.
pub(crate) async fn last_words<R, W>(words: &[u8], inbound: &mut Inbound<R>, out: &mut W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let goodbye = async {
        out.write_all(words).await?;
        out.shutdown().await?;
        let mut dropped = 0;
        while dropped < LINGER_BYTES_MAX {
            inbound.buffer.clear();
            match inbound.fill().await? {
                0 => break,
                more => dropped += more,
            }
        }
        io::Result::Ok(())
    };
    // The client may be gone or may not read; it was told what there was to tell.
    let _ = timeout(Duration::from_millis(LINGER_MS), goodbye).await;
}
