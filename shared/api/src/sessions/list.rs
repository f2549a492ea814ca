//! The list of sessions, from their heads, in both directions.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{RawQuery, State},
};
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::Value;
use tailstep_core::ids::SessionKey;
use tailstep_runtime::{
    error::RuntimeError,
    ports::{Head, ListSessions, SessionStatus},
};

use super::body::{Shape, shown, status_name};
use crate::{
    Api,
    auth::Caller,
    edge::{Answer, json},
    error::ApiError,
    page::{Scope, fill},
    query::{Order, Query, TimeRange},
};

const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 100;

const STATUSES: [SessionStatus; 4] = [
    SessionStatus::Idle,
    SessionStatus::Running,
    SessionStatus::Rescheduling,
    SessionStatus::Terminated,
];

#[derive(Serialize)]
struct Body {
    data: Vec<Value>,
    next_page: Option<String>,
    prev_page: Option<String>,
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Answer {
    let mut query = Query::of(query.as_deref());
    let filter = Filter::read(&mut query)?;
    let order = query.order(Order::Desc)?;
    let limit = query.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let page = query.one("page")?;
    query.finish()?;
    let scope = Scope { tenant: &caller.tenant, list: "sessions", order: order.as_str() };
    let from = page.map(|cursor| Start::read(&scope, &cursor)).transpose()?;
    let (heads, more) = heads(&api, &caller, &filter, order, limit, from.as_ref()).await?;
    let ends = (heads.first(), heads.last());
    let next = |head: &Head| scope.cursor(&format!("+{}", head.session));
    let prev = |head: &Head| scope.cursor(&format!("-{}", head.session));
    let (next_page, prev_page) = match &from {
        // Backwards: the page that was come from follows this one.
        Some(Start { backwards: true, .. }) => {
            (ends.1.map(next), ends.0.filter(|_| more).map(prev))
        }
        Some(Start { backwards: false, .. }) => {
            (ends.1.filter(|_| more).map(next), ends.0.map(prev))
        }
        None => (ends.1.filter(|_| more).map(next), None),
    };
    let shown = heads.iter().map(|head| show(&api, head));
    let data = try_join_all(shown).await?.into_iter().flatten().collect();
    json(&Body { data, next_page, prev_page })
}

/// Where a page begins.
struct Start {
    /// The page before the session instead of the one behind it.
    backwards: bool,
    session: String,
}

impl Start {
    fn read(scope: &Scope<'_>, cursor: &str) -> Result<Self, ApiError> {
        let place = scope.place(cursor)?;
        match place.split_at_checked(1) {
            Some(("-", session)) => Ok(Self { backwards: true, session: session.to_owned() }),
            Some((_, session)) => Ok(Self { backwards: false, session: session.to_owned() }),
            None => Err(ApiError::invalid("page: not a cursor of this list")),
        }
    }
}

async fn heads(
    api: &Api,
    caller: &Caller,
    filter: &Filter,
    order: Order,
    limit: usize,
    from: Option<&Start>,
) -> Result<(Vec<Head>, bool), ApiError> {
    let backwards = from.is_some_and(|from| from.backwards);
    let descending = if backwards { order.reversed() } else { order }.is_desc();
    let log = api.app.runtime.log.as_ref();
    let tenant = caller.tenant.as_str();
    let fetch = |after, limit| async move {
        let query = ListSessions { after, limit, descending };
        log.list(tenant, &query).await.map_err(|error| RuntimeError::from(error).into())
    };
    let after = from.map(|from| from.session.clone());
    let now_ms = api.now_ms();
    let (mut heads, more) = fill(
        limit,
        after,
        fetch,
        |head: &Head| head.session.as_str(),
        |head| filter.holds(head, now_ms),
    )
    .await?;
    if backwards {
        heads.reverse();
    }
    Ok((heads, more))
}

/// `None` when the session was deleted while the page was made.
async fn show(api: &Api, head: &Head) -> Result<Option<Value>, ApiError> {
    let key = SessionKey::new(head.tenant.as_str(), head.session.as_str());
    match api.firsts.created(api, &key).await {
        Ok(created) => {
            Ok(Some(shown(&head.session, &created, &Shape::of_head(head, api.now_ms()))))
        }
        Err(error) if error.status == axum::http::StatusCode::NOT_FOUND => Ok(None),
        Err(error) => Err(error),
    }
}

struct Filter {
    agent_id: Option<String>,
    agent_version: Option<u64>,
    statuses: Vec<String>,
    created_at: TimeRange,
    archived: bool,
}

impl Filter {
    fn read(query: &mut Query) -> Result<Self, ApiError> {
        for (name, what) in
            [("deployment_id", "deployments are"), ("memory_store_id", "memory stores are")]
        {
            if query.one(name)?.is_some() {
                return Err(ApiError::unsupported(name, what));
            }
        }
        let statuses = query.list("statuses");
        for status in &statuses {
            if !STATUSES.iter().any(|known| status_name(*known) == status) {
                return Err(ApiError::invalid(
                    "statuses[]: must be idle, running, rescheduling or terminated",
                ));
            }
        }
        Ok(Self {
            agent_id: query.one("agent_id")?,
            agent_version: query.count("agent_version")?,
            statuses,
            created_at: query.created_at()?,
            archived: query.flag("include_archived")?,
        })
    }

    fn holds(&self, head: &Head, now_ms: u64) -> bool {
        let status = Shape::of_head(head, now_ms).status;
        status != SessionStatus::Deleted
            && (self.archived || head.archived_at_ms.is_none())
            && self.agent_id.as_ref().is_none_or(|id| *id == head.agent_id)
            && self.agent_version.is_none_or(|version| version == head.agent_version)
            && self.created_at.holds(head.created_at_ms)
            && (self.statuses.is_empty()
                || self.statuses.iter().any(|wanted| wanted == status_name(status)))
    }
}
