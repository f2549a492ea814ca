//! The history of a session, page by page.
//!
//! A page shows the log as it is when the page is asked for, and its cursor says which place in the
//! log comes next; appends in between move nothing, so paging to the end shows every event once. The
//! one thing that moves is a message that waits behind the end and is later taken up: the cursor
//! remembers which of those were shown.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{RawQuery, State},
};
use serde_json::value::RawValue;
use tailstep_core::{
    event::Event,
    ids::{Position, Seq, UnixMs},
    model::Usage,
};
use tailstep_runtime::load::Loaded;

use super::{
    body::{Body, MESSAGE, Place, Shown, is_kind},
    cursor::Cursor,
    past::{Messages, Past, read_range, stand_before, usage_before},
    view::{Mode, View},
};
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, Id, json},
    error::ApiError,
    page::{PageBody, Scope},
    query::{Order, Query, TimeRange},
    sessions,
};

const PAGE_DEFAULT: usize = 1_000;
const PAGE_MAX: usize = 1_000;

/// A page ends early when it has this many bytes: Lambda answers with at most 6 MB.
const PAGE_BYTES_MAX: usize = 4_500_000;

/// Records read at once.
const RECORDS_MAX: u64 = 32;

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Id(id): Id,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let filter = Filter::read(&mut query)?;
    let order = query.order(Order::Asc)?;
    let limit = query.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let page = query.one("page")?;
    query.finish()?;
    let loaded = sessions::visible(&api, &caller, &id).await?;
    let name = format!("sessions/{id}/events");
    let scope = Scope { tenant: &caller.tenant, list: &name, order: order.as_str() };
    let from = page.map(|cursor| Cursor::decode(&scope, &cursor)).transpose()?;
    let mut page = Page { filter, session: id, limit, bytes: 0, data: Vec::new(), last: None };
    let walk = Walk { api: &api, loaded: &loaded };
    let filled = match order {
        Order::Asc => walk.forwards(&mut page, from).await?,
        Order::Desc => walk.backwards(&mut page, from).await?,
    };
    let next = match filled {
        Filled::Page => page.last,
        Filled::All => None,
    };
    json(&PageBody { data: page.data, next_page: next.map(|next| next.encode(&scope)) })
}

struct Filter {
    kinds: Vec<String>,
    processed_at: TimeRange,
}

impl Filter {
    fn read(query: &mut Query) -> Result<Self, ApiError> {
        let kinds = query.list("types");
        if let Some(wrong) = kinds.iter().find(|kind| !is_kind(kind)) {
            let shown: String = wrong.chars().filter(|c| !c.is_control()).take(64).collect();
            return Err(ApiError::invalid(format!("types[]: `{shown}` is not an event type")));
        }
        Ok(Self { kinds, processed_at: query.created_at()? })
    }

    fn holds(&self, kind: &str, processed_at_ms: Option<UnixMs>) -> bool {
        let in_time = match processed_at_ms {
            Some(at_ms) => self.processed_at.holds(at_ms),
            None => self.processed_at.is_open(),
        };
        in_time && (self.kinds.is_empty() || self.kinds.iter().any(|wanted| wanted == kind))
    }
}

/// A page being filled.
struct Page {
    filter: Filter,
    session: String,
    limit: usize,
    bytes: usize,
    data: Vec<Box<RawValue>>,
    last: Option<Cursor>,
}

/// How far a walk came.
enum Filled {
    /// There are more events than fit on the page.
    Page,
    /// There are no more events.
    All,
}

impl Page {
    /// Puts `shown` on the page if it passes the filter; `Ok(false)` when the page is full.
    fn push(&mut self, shown: &Shown, cursor: Cursor) -> Result<bool, ApiError> {
        if !self.filter.holds(shown.kind, shown.processed_at_ms) {
            return Ok(true);
        }
        if self.data.len() == self.limit {
            return Ok(false);
        }
        let event = shown.render(&self.session)?;
        let bytes = self.bytes + event.get().len();
        if bytes > PAGE_BYTES_MAX && !self.data.is_empty() {
            return Ok(false);
        }
        self.bytes = bytes;
        self.data.push(event);
        self.last = Some(cursor);
        Ok(true)
    }

    fn records_at_once(&self) -> u64 {
        (self.limit as u64 + 1).clamp(8, RECORDS_MAX)
    }
}

struct Walk<'a> {
    api: &'a Api,
    loaded: &'a Loaded,
}

impl Walk<'_> {
    /// Oldest first: the log from the cursor on, then the messages that wait.
    async fn forwards(&self, page: &mut Page, from: Option<Cursor>) -> Result<Filled, ApiError> {
        let (log, key) = (self.api.app.runtime.log.as_ref(), &self.loaded.key);
        let top = self.loaded.session.seq;
        let listed = from.and_then(|from| from.waiting);
        let unlisted = |place: Position| listed.is_none_or(|listed| place > listed);
        let mut next = from.map_or(1, |from| from.place.seq.max(1));
        let usage = from.map(|from| from.usage).unwrap_or_default();
        let stand = stand_before(log, key, next).await?;
        let mut view = self.view(Past { stand, usage });
        let mut before = usage;
        while next <= top {
            let last = top.min(next.saturating_add(page.records_at_once() - 1));
            let records = read_range(log, key, next, last).await?;
            view.messages.fetch_for(log, key, &records).await?;
            // Without records, the session is being deleted.
            let Some(end) = records.last().map(|record| record.seq) else { break };
            for record in records {
                before = view.past.usage;
                for shown in view.show(record) {
                    if from.is_some_and(|from| shown.place <= from.place)
                        || shown.is_message() && !unlisted(shown.id)
                    {
                        continue;
                    }
                    let cursor = Cursor { place: shown.place, usage: before, waiting: listed };
                    if !page.push(&shown, cursor)? {
                        return Ok(Filled::Page);
                    }
                }
            }
            next = end + 1;
        }
        let queued = self.loaded.session.queued.iter().copied();
        let waiting = queued.filter(|place| unlisted(*place)).map(|place| (place, None));
        let end = Cursor { place: end_of(top), usage: before, waiting: None };
        self.messages(page, waiting.collect(), end, &mut view.messages).await
    }

    /// Newest first: the messages that wait, then the log down to its beginning.
    async fn backwards(&self, page: &mut Page, from: Option<Cursor>) -> Result<Filled, ApiError> {
        let session = &self.loaded.session;
        let (top, usage) =
            from.map_or((session.seq, session.usage), |from| (from.place.seq, from.usage));
        // A cursor among the waiting messages, or none at all, has them still to come.
        if from.is_none_or(|from| from.waiting.is_some()) {
            let waiting = self.waiting_at(top, from.and_then(|from| from.waiting)).await?;
            let end = Cursor { place: end_of(top), usage, waiting: None };
            let filled = self.messages(page, waiting, end, &mut Messages::default()).await?;
            if matches!(filled, Filled::Page) {
                return Ok(filled);
            }
        }
        let below = from.filter(|from| from.waiting.is_none()).map(|from| from.place);
        self.records_down(page, top, usage, below).await
    }

    async fn records_down(
        &self,
        page: &mut Page,
        top: Seq,
        mut usage: Usage,
        below: Option<Place>,
    ) -> Result<Filled, ApiError> {
        let (log, key) = (self.api.app.runtime.log.as_ref(), &self.loaded.key);
        let mut high = top.min(self.loaded.session.seq);
        while high >= 1 {
            let low = high.saturating_sub(page.records_at_once() - 1).max(1);
            let records = read_range(log, key, low, high).await?;
            let stand = stand_before(log, key, low).await?;
            let start = usage_before(usage, &records);
            let mut view = self.view(Past { stand, usage: start });
            view.messages.fetch_for(log, key, &records).await?;
            let mut newest_last = Vec::new();
            for record in records {
                let shown = view.show(record);
                newest_last.push((shown, view.past.usage));
            }
            for (shown, usage) in newest_last.into_iter().rev() {
                for shown in shown.into_iter().rev() {
                    if below.is_some_and(|below| shown.place >= below) {
                        continue;
                    }
                    let cursor = Cursor { place: shown.place, usage, waiting: None };
                    if !page.push(&shown, cursor)? {
                        return Ok(Filled::Page);
                    }
                }
            }
            usage = start;
            high = low - 1;
        }
        Ok(Filled::All)
    }

    /// Puts waiting messages on the page; `end` is the end of the log that they wait behind.
    async fn messages(
        &self,
        page: &mut Page,
        waiting: Vec<(Position, Option<UnixMs>)>,
        end: Cursor,
        messages: &mut Messages,
    ) -> Result<Filled, ApiError> {
        let places: Vec<Position> = waiting.iter().map(|(place, _)| *place).collect();
        messages.fetch(self.api.app.runtime.log.as_ref(), &self.loaded.key, &places).await?;
        for (id, processed_at_ms) in waiting {
            let Some(content) = messages.take(id) else { continue };
            let body = Body::Said { content };
            let shown = Shown { place: end.place, id, processed_at_ms, kind: MESSAGE, body };
            if !page.push(&shown, Cursor { waiting: Some(id), ..end })? {
                return Ok(Filled::Page);
            }
        }
        Ok(Filled::All)
    }

    /// The messages that waited behind record `top`, newest first, below `below`; with the time at
    /// which each was taken up, if it was since.
    async fn waiting_at(
        &self,
        top: Seq,
        below: Option<Position>,
    ) -> Result<Vec<(Position, Option<UnixMs>)>, ApiError> {
        let (log, key) = (self.api.app.runtime.log.as_ref(), &self.loaded.key);
        let session = &self.loaded.session;
        let mut found: Vec<_> = session.queued.iter().map(|place| (*place, None)).collect();
        let mut next = top.saturating_add(1);
        while next <= session.seq {
            let last = session.seq.min(next.saturating_add(RECORDS_MAX - 1));
            let records = read_range(log, key, next, last).await?;
            let Some(end) = records.last().map(|record| record.seq) else { break };
            for record in &records {
                for event in &record.events {
                    if let Event::ModelStarted(started) = event {
                        let at_ms = Some(record.at_ms);
                        found.extend(started.inputs.iter().map(|place| (*place, at_ms)));
                    }
                }
            }
            next = end + 1;
        }
        found.retain(|(at, _)| at.seq <= top && below.is_none_or(|below| *at < below));
        found.sort_by(|(a, _), (b, _)| b.cmp(a));
        Ok(found)
    }

    fn view(&self, past: Past) -> View {
        let session = &self.loaded.session;
        View {
            mode: Mode::List,
            session: self.loaded.key.session.clone(),
            tools: session.origin.as_ref().map(|o| o.tools.clone()).unwrap_or_default(),
            past,
            messages: Messages::default(),
        }
    }
}

/// Behind every event of record `seq`.
fn end_of(seq: Seq) -> Place {
    Place { seq, event: u16::MAX, nth: u16::MAX }
}
