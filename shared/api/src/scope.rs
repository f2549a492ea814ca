//! What a credential is good for. A worker's credentials are for one environment or one work item,
//! on the few routes that a worker needs; everything else is refused to them here, so that a new
//! route is closed to workers until it is named.

use axum::http::Method;
use tailstep_core::session::Session;

use crate::error::ApiError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// An API key: everything of its tenant but a worker's polling.
    Tenant,
    /// An environment key: the queue and the sessions of one environment, or of every self-hosted
    /// one of its tenant.
    Environment(Reach),
    /// The token in a work item's secret: that item and its session.
    Item { environment: String, session: String, item: String },
}

/// Where an environment key works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reach {
    All,
    One(String),
}

const POLL: &str = "/v1/environments/{id}/work/poll";
const LIST: &str = "/v1/environments/{id}/work";

/// What a worker asks of its queue, beside polling.
const ON_ITEM: [&str; 3] = [
    "/v1/environments/{id}/work/{work_id}/ack",
    "/v1/environments/{id}/work/{work_id}/heartbeat",
    "/v1/environments/{id}/work/{work_id}/stop",
];

/// What a worker asks of a session.
const ON_SESSION: [(Method, &str); 4] = [
    (Method::GET, "/v1/sessions/{id}"),
    (Method::GET, "/v1/sessions/{id}/events"),
    (Method::POST, "/v1/sessions/{id}/events"),
    (Method::GET, "/v1/sessions/{id}/events/stream"),
];

/// What a worker fetches for the session's agent. Skills are the tenant's own instructions and hold
/// no secret; which ones an agent has is not looked up for each request.
const ON_SKILLS: [&str; 3] = [
    "/v1/skills/{id}/versions",
    "/v1/skills/{id}/versions/{version}",
    "/v1/skills/{id}/versions/{version}/content",
];

impl Scope {
    /// Less than a tenant.
    pub(crate) fn is_bound(&self) -> bool {
        *self != Self::Tenant
    }

    /// Whether the credential may be used for `method` on `route` (the router's pattern) at `path`.
    pub(crate) fn allow(&self, method: &Method, route: &str, path: &str) -> Result<(), ApiError> {
        let mut parts = path.split('/').skip(3);
        let id = parts.next().unwrap_or_default();
        let item_id = parts.nth(1).unwrap_or_default();
        let on_queue = *method == Method::GET && (route == POLL || route == LIST);
        let on_item = *method == Method::POST && ON_ITEM.contains(&route);
        let on_session =
            ON_SESSION.iter().any(|(allowed, pattern)| allowed == method && *pattern == route);
        let on_skills = *method == Method::GET && ON_SKILLS.contains(&route);
        match self {
            Self::Tenant if on_queue => Err(ApiError::forbidden(
                "this takes an environment key; make one with \
                 POST /v1/x/environments/{id}/keys",
            )),
            Self::Tenant => Ok(()),
            Self::Environment(reach) if on_queue || on_item => match reach {
                Reach::One(own) if own != id => {
                    Err(ApiError::forbidden("this key is for another environment"))
                }
                Reach::One(_) | Reach::All => Ok(()),
            },
            // Whose session it is is seen once it is read.
            Self::Environment(_) if on_session || on_skills => Ok(()),
            Self::Item { .. } if on_skills => Ok(()),
            Self::Item { environment, item, .. } if on_item && !route.ends_with("/ack") => {
                if environment == id && item == item_id {
                    Ok(())
                } else {
                    Err(ApiError::forbidden("this token is for another work item"))
                }
            }
            Self::Item { session, .. } if on_session => {
                if session == id {
                    Ok(())
                } else {
                    Err(ApiError::not_found("session", id))
                }
            }
            Self::Environment(_) | Self::Item { .. } => {
                Err(ApiError::forbidden("a worker's key or token is not for this; use an API key"))
            }
        }
    }

    /// Whether the session `id` is one that the credential is for.
    pub(crate) fn sees(&self, id: &str, session: &Session) -> bool {
        let environment = session.origin.as_ref().map(|origin| origin.environment.id.as_str());
        match self {
            Self::Tenant => true,
            Self::Environment(Reach::All) => session.is_self_hosted(),
            Self::Environment(Reach::One(own)) => {
                session.is_self_hosted() && environment == Some(own)
            }
            Self::Item { session: own, .. } => own == id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_is_not_named_is_closed_to_workers() {
        let one = Scope::Environment(Reach::One("env_1".to_owned()));
        let all = Scope::Environment(Reach::All);
        let item = Scope::Item {
            environment: "env_1".to_owned(),
            session: "sesn_1".to_owned(),
            item: "work_1".to_owned(),
        };
        let ok = |scope: &Scope, method: Method, route: &str, path: &str| {
            scope.allow(&method, route, path).is_ok()
        };
        let beat = ON_ITEM[1];
        let path = "/v1/environments/env_1/work/work_1/heartbeat";
        let other = "/v1/environments/env_1/work/work_2/heartbeat";
        let elsewhere = "/v1/environments/env_2/work/work_1/heartbeat";
        assert!(ok(&one, Method::POST, beat, path) && ok(&one, Method::POST, beat, other));
        assert!(ok(&item, Method::POST, beat, path) && !ok(&item, Method::POST, beat, other));
        assert!(
            !ok(&one, Method::POST, beat, elsewhere) && ok(&all, Method::POST, beat, elsewhere)
        );
        assert!(!ok(&item, Method::POST, beat, elsewhere));
        let ack = "/v1/environments/env_1/work/work_1/ack";
        assert!(
            ok(&one, Method::POST, ON_ITEM[0], ack) && !ok(&item, Method::POST, ON_ITEM[0], ack)
        );
        let poll = "/v1/environments/env_1/work/poll";
        assert!(ok(&one, Method::GET, POLL, poll) && !ok(&item, Method::GET, POLL, poll));
        assert!(!ok(&Scope::Tenant, Method::GET, POLL, poll));
        for (method, route) in ON_SESSION {
            let own = route.replace("{id}", "sesn_1");
            let foreign = route.replace("{id}", "sesn_2");
            assert!(ok(&item, method.clone(), route, &own));
            assert!(!ok(&item, method.clone(), route, &foreign));
            assert!(ok(&one, method, route, &foreign), "the session itself says whose it is");
        }
        for route in ON_SKILLS {
            for scope in [&one, &all, &item] {
                assert!(ok(scope, Method::GET, route, "/v1/skills/skill_1/versions/1"));
                assert!(!ok(scope, Method::DELETE, route, "/v1/skills/skill_1/versions/1"));
            }
        }
        for (method, route) in [
            (Method::GET, "/v1/skills"),
            (Method::GET, "/v1/files/{id}/content"),
            (Method::DELETE, "/v1/sessions/{id}"),
            (Method::GET, "/v1/agents"),
            (Method::GET, "/v1/environments/{id}/work/stats"),
            (Method::POST, "/v1/environments/{id}/work/{work_id}"),
            (Method::POST, "/v1/x/environments/{id}/keys"),
        ] {
            for scope in [&one, &all, &item] {
                assert!(!ok(scope, method.clone(), route, "/v1/sessions/sesn_1/work/work_1"));
            }
            assert!(ok(&Scope::Tenant, method, route, "/"));
        }
    }
}
