//! Following a session: server-sent events, made of the log as it grows.
//!
//! A stream holds nothing of its own: it remembers a place in the log and reads what comes behind.
//! So an event is always listed before it is streamed, and a client that reconnects with
//! `Last-Event-ID` misses nothing.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Body as HttpBody,
    extract::{RawQuery, State},
    http::{HeaderMap, header},
    response::IntoResponse,
};
use bytes::Bytes;
use futures_util::stream::unfold;
use tailstep_core::{
    event::Event,
    ids::{Position, Seq},
    record::Record,
};
use tailstep_runtime::{
    error::RuntimeError,
    load::{Loaded, read},
};
use tokio::time::{Instant, sleep};

use super::{
    body::{Body, Place, Shown},
    past::{Messages, Past, read_range, stand_before, usage_before},
    view::{Mode, View},
};
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, Id},
    error::ApiError,
    query::Query,
    sessions,
};

/// Proxies and clients give up silent connections, the most impatient known after about 25 s.
const PING_MS: u64 = 15_000;

/// Records read at once.
const RECORDS_MAX: usize = 32;

/// Reads that may fail in a row, a second apart, before the stream gives up.
const FAILURES_MAX: u32 = 10;
const FAILURE_WAIT_MS: u64 = 1_000;

/// A log may end its waits early and without news; after such a wait the stream pauses, so that it
/// cannot spin.
const EARLY_WAIT_MS: u128 = 20;
const EARLY_PAUSE_MS: u64 = 50;

pub(crate) async fn stream(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    if !query.list("event_deltas").is_empty() {
        return Err(ApiError::unsupported("event_deltas[]", "previews are"));
    }
    query.finish()?;
    // The place in the log is fixed before the answer begins, so whatever happens once the client
    // has its headers is in the stream.
    let loaded = sessions::visible(&api, &caller, &id).await?;
    let last_id = headers.get("last-event-id").filter(|value| !value.is_empty());
    let follow = match last_id {
        None => Follow::from_now(api, loaded),
        Some(last) => {
            let place =
                last.to_str().ok().and_then(|text| parse_id(text, &id)).ok_or_else(|| {
                    ApiError::invalid("Last-Event-ID: not the id of an event of this stream")
                })?;
            Follow::behind(api, loaded, place).await?
        }
    };
    let frames = unfold(follow, |mut follow| async move {
        follow.next().await.map(|frame| (Ok::<_, Infallible>(frame), follow))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // Keeps buffering proxies from holding events back.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, HttpBody::from_stream(frames)).into_response())
}

struct Follow {
    api: Arc<Api>,
    loaded: Loaded,
    view: View,
    /// The last record that was read.
    after: Seq,
    /// Events up to this place were sent by an earlier stream.
    sent: Option<Place>,
    frames: VecDeque<Bytes>,
    pinged: Instant,
    ends: Option<Instant>,
    failures: u32,
    /// How long the last wait took, until a read has found what it brought.
    waited_ms: Option<u128>,
    over: bool,
}

impl Follow {
    fn from_now(api: Arc<Api>, loaded: Loaded) -> Self {
        let past = Past::of_session(&loaded.session);
        let after = loaded.session.seq;
        let over = loaded.session.is_ended();
        Self { over, ..Self::new(api, loaded, past, after) }
    }

    /// Goes on behind `place`. What the session had used by then is counted back from its total.
    async fn behind(api: Arc<Api>, loaded: Loaded, place: Place) -> Result<Self, ApiError> {
        let log = api.app.runtime.log.as_ref();
        let top = loaded.session.seq;
        if place.seq == 0 || place.seq > top {
            return Err(ApiError::invalid("Last-Event-ID: not the id of an event of this stream"));
        }
        let mut usage = loaded.session.usage;
        let mut next = place.seq;
        while next <= top {
            let last = top.min(next.saturating_add(RECORDS_MAX as u64 - 1));
            let records = read_range(log, &loaded.key, next, last).await?;
            let Some(end) = records.last().map(|record| record.seq) else { break };
            usage = usage_before(usage, &records);
            next = end + 1;
        }
        let stand = stand_before(log, &loaded.key, place.seq).await?;
        let follow = Self::new(Arc::clone(&api), loaded, Past { stand, usage }, place.seq - 1);
        Ok(Self { sent: Some(place), ..follow })
    }

    fn new(api: Arc<Api>, loaded: Loaded, past: Past, after: Seq) -> Self {
        let origin = loaded.session.origin.as_ref();
        let view = View {
            mode: Mode::Stream,
            session: loaded.key.session.clone(),
            tools: origin.map(|origin| origin.tools.clone()).unwrap_or_default(),
            past,
            messages: Messages::default(),
        };
        let now = Instant::now();
        let ends = api.app.stream_max_ms.map(|ms| now + Duration::from_millis(ms));
        Self {
            api,
            loaded,
            view,
            after,
            sent: None,
            // Says at once that the stream is open: some hosts send no headers before a first byte.
            frames: VecDeque::from([ping()]),
            pinged: now,
            ends,
            failures: 0,
            waited_ms: None,
            over: false,
        }
    }

    /// The next frame; `None` ends the stream cleanly.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(frame);
            }
            if self.over || self.ends.is_some_and(|ends| ends <= Instant::now()) {
                return None;
            }
            match self.read().await {
                Ok(()) => self.failures = 0,
                Err(error) => self.failed(error).await,
            }
            if self.frames.is_empty() && !self.over && self.failures == 0 {
                self.wait().await;
            }
        }
    }

    /// Reads what is behind `after`.
    async fn read(&mut self) -> Result<(), RuntimeError> {
        let log = self.api.app.runtime.log.as_ref();
        let key = &self.loaded.key;
        let records = match read(log, key, self.after, RECORDS_MAX).await {
            Ok(records) => records,
            // Records disappear while a session is deleted.
            Err(error) => {
                return if log.head(key).await?.is_none() { self.deleted() } else { Err(error) };
            }
        };
        if records.is_empty() {
            let Some(waited_ms) = self.waited_ms.take() else { return Ok(()) };
            if log.head(key).await?.is_none() {
                return self.deleted();
            }
            if waited_ms < EARLY_WAIT_MS {
                sleep(Duration::from_millis(EARLY_PAUSE_MS)).await;
            }
            return Ok(());
        }
        self.waited_ms = None;
        self.view.messages.fetch_for(log, key, &records).await?;
        for record in records {
            self.take(record);
        }
        Ok(())
    }

    fn take(&mut self, record: Record) {
        self.after = record.seq;
        self.over |= record.events.iter().any(|event| matches!(event, Event::Ended(_)));
        for shown in self.view.show(record) {
            if self.sent.is_none_or(|sent| shown.place > sent) {
                self.push(&shown);
            }
        }
    }

    /// The whole log went before its last record was read.
    fn deleted(&mut self) -> Result<(), RuntimeError> {
        let id = Position::event(self.after.saturating_add(1), 0);
        let place = Place { seq: id.seq, event: 0, nth: 0 };
        let processed_at_ms = Some(self.api.now_ms());
        let kind = "session.deleted";
        self.push(&Shown { place, id, processed_at_ms, kind, body: Body::Plain {} });
        self.over = true;
        Ok(())
    }

    fn push(&mut self, shown: &Shown) {
        let session = &self.loaded.key.session;
        match shown.render(session) {
            Ok(data) => {
                let id = spell_id(shown.place, session);
                // A tool's input is the model's own JSON, which may go over several lines; a frame's
                // data must not. Line breaks stand only between its tokens.
                let data = data.get().replace(['\n', '\r'], " ");
                let frame = format!("id: {id}\nevent: {}\ndata: {data}\n\n", shown.kind);
                self.frames.push_back(Bytes::from(frame));
            }
            Err(error) => self.give_up(&error),
        }
    }

    async fn failed(&mut self, error: RuntimeError) {
        self.failures += 1;
        if self.failures >= FAILURES_MAX {
            self.give_up(&ApiError::from(error));
            return;
        }
        tracing::warn!(error = &error as &dyn std::error::Error, "a stream could not read its log");
        sleep(Duration::from_millis(FAILURE_WAIT_MS)).await;
    }

    fn give_up(&mut self, error: &ApiError) {
        let request_id = tailstep_runtime::ids::new_id("req_", self.api.now_ms());
        let frame = format!("event: error\ndata: {}\n\n", error.body(&request_id));
        self.frames.push_back(Bytes::from(frame));
        self.over = true;
    }

    /// Waits until there may be something to send: records, a ping or the end.
    async fn wait(&mut self) {
        let began = Instant::now();
        let ping_at = self.pinged + Duration::from_millis(PING_MS);
        let until = self.ends.map_or(ping_at, |ends| ends.min(ping_at));
        let left_ms = until.saturating_duration_since(began).as_millis();
        // Rounded up, so that the wait does not end just before its purpose.
        let wait_ms = u64::try_from(left_ms).unwrap_or(u64::MAX).saturating_add(1);
        let log = self.api.app.runtime.log.as_ref();
        if let Err(error) = log.changed(&self.loaded.key, self.after, wait_ms).await {
            self.failed(error.into()).await;
        }
        if Instant::now() >= ping_at {
            self.pinged = Instant::now();
            self.frames.push_back(ping());
        }
        self.waited_ms = Some(began.elapsed().as_millis());
    }
}

fn ping() -> Bytes {
    Bytes::from_static(b"event: ping\ndata: {\"type\":\"ping\"}\n\n")
}

/// A place as the `id:` of a frame: the last characters of the session's id, and three numbers.
fn spell_id(place: Place, session: &str) -> String {
    format!("{}.{}.{}.{}", tail(session), place.seq, place.event, place.nth)
}

fn parse_id(text: &str, session: &str) -> Option<Place> {
    let mut parts = text.strip_prefix(tail(session))?.strip_prefix('.')?.split('.');
    let seq = parts.next()?.parse().ok()?;
    let event = parts.next()?.parse().ok()?;
    let nth = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some(Place { seq, event, nth })
}

fn tail(session: &str) -> &str {
    session.get(session.len().saturating_sub(8)..).unwrap_or(session)
}
