//! What the stub says next, and what goes wrong while it does.

use tailstep_core::model::{Block, Stop, Usage};

/// One scripted reply.
#[derive(Debug, Clone)]
pub struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Body,
    pub(super) delay_ms: u64,
    pub(super) pieces: Vec<usize>,
    pub(super) cut_after: Option<usize>,
    pub(super) stall_after: Option<usize>,
    pub(super) error_event: Option<(String, String)>,
}

#[derive(Debug, Clone)]
pub(super) enum Body {
    /// Streamed in the dialect of the request.
    Answer { blocks: Vec<Block>, stop: Stop, usage: Usage },
    /// The data of each event.
    Events(Vec<String>),
    /// The bytes of an event stream, as they are.
    Stream(Vec<u8>),
    /// Not a stream.
    Plain(String),
    /// An error in the envelope of the request's dialect.
    Error { kind: String, message: String },
}

impl Reply {
    fn new(status: u16, body: Body) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body,
            delay_ms: 0,
            pieces: Vec::new(),
            cut_after: None,
            stall_after: None,
            error_event: None,
        }
    }

    /// A whole answer, in the dialect of whatever request it replies to.
    pub fn answer(blocks: Vec<Block>, stop: Stop) -> Self {
        let usage = Usage { input_tokens: 11, output_tokens: 7, ..Usage::default() };
        Self::new(200, Body::Answer { blocks, stop, usage })
    }

    /// A whole answer of one text.
    pub fn text(text: &str) -> Self {
        Self::answer(vec![Block::Text { text: text.to_owned() }], Stop::EndTurn)
    }

    /// An event stream with this data, one event each.
    pub fn events(data: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::new(200, Body::Events(data.into_iter().map(Into::into).collect()))
    }

    /// An event stream of these bytes.
    pub fn stream(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(200, Body::Stream(bytes.into()))
    }

    /// An error, in the envelope of the request's dialect.
    pub fn error(status: u16, kind: &str, message: &str) -> Self {
        Self::new(status, Body::Error { kind: kind.to_owned(), message: message.to_owned() })
    }

    /// A body that is no stream; its content type is among [`Self::header`]s.
    pub fn plain(status: u16, body: &str) -> Self {
        Self::new(status, Body::Plain(body.to_owned()))
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    #[must_use]
    pub fn usage(mut self, charged: Usage) -> Self {
        if let Body::Answer { usage, .. } = &mut self.body {
            *usage = charged;
        }
        self
    }

    /// Waits before the head.
    #[must_use]
    pub fn delay_ms(mut self, delay_ms: u64) -> Self {
        self.delay_ms = delay_ms;
        self
    }

    /// Sends a stream in pieces of these sizes; the last size repeats.
    #[must_use]
    pub fn in_pieces(mut self, sizes: impl Into<Vec<usize>>) -> Self {
        self.pieces = sizes.into();
        self
    }

    /// Closes the socket after this many bytes of a stream's body.
    #[must_use]
    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.cut_after = Some(bytes);
        self
    }

    /// Says no more after this many bytes of a stream's body, and keeps the socket open.
    #[must_use]
    pub fn stall_after(mut self, bytes: usize) -> Self {
        self.stall_after = Some(bytes);
        self
    }

    /// An error event inside the stream, in place of its end.
    #[must_use]
    pub fn error_event(mut self, kind: &str, message: &str) -> Self {
        self.error_event = Some((kind.to_owned(), message.to_owned()));
        self
    }
}
