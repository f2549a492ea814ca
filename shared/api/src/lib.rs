//! The public HTTP API: routes and their JSON, over `tailstep_runtime`'s ingress, log and documents.
//! Wire-compatible with the Managed Agents API, stage 1; `docs/compatibility.md` lists each route.
//!
//! **Architecture invariant:** the API never runs a model or a tool, and knows neither the host that
//! serves it (a socket, Lambda) nor the stores behind the ports nor how core encodes a record.

mod agents;
mod auth;
mod edge;
mod environment_keys;
mod environments;
mod error;
mod events;
mod fields;
mod files;
mod metadata;
mod page;
mod query;
mod repeat;
mod scope;
mod sessions;
mod skills;
mod stamp;
mod store;
mod token;
mod work;

pub mod keys;

use std::sync::Arc;

use axum::{
    Extension, Router, middleware,
    routing::{delete, get, post},
};
use tailstep_runtime::{
    Runtime,
    ports::{Blobs, Documents},
};

use crate::{
    auth::{Caller, KeyCache},
    repeat::RecentCreates,
    scope::Scope,
    sessions::Firsts,
    work::Polling,
};

/// What the API works on.
#[derive(Clone)]
pub struct App {
    pub runtime: Runtime,
    pub documents: Arc<dyn Documents>,
    /// Where files' bytes and manifests are.
    pub blobs: Arc<dyn Blobs>,
    /// The longest file that can be uploaded. A function needs less than what its host lets in.
    pub upload_bytes_max: u64,
    /// What sandboxes can be given.
    pub hands: HandsFeatures,
    /// An event stream ends cleanly after this long; `None` leaves it open. A function needs less
    /// than its own time limit here.
    pub stream_max_ms: Option<u64>,
}

/// What the deployment's hands can do for a session beyond running its tools. What they cannot do is
/// refused when it is asked for, not ignored when it is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HandsFeatures {
    /// Files in the sandbox that the session was given.
    pub files: bool,
    /// Skills in the sandbox.
    pub skills: bool,
    /// Packages installed before the first call.
    pub packages: bool,
    /// A network that reaches only what rules allow.
    pub networking: bool,
}

/// [`App`] and what the process remembers between requests: caches only, each may be lost.
struct Api {
    app: App,
    keys: KeyCache,
    creates: RecentCreates,
    firsts: Firsts,
    polling: Polling,
}

impl Api {
    fn now_ms(&self) -> u64 {
        self.app.runtime.clock.now_ms()
    }
}

/// The routes of the API as one service. It takes any HTTP body and answers with streamed ones, so a
/// local server and Lambda serve the same value.
pub fn router(app: App) -> Router {
    let api = api(app);
    let routes =
        routes().route_layer(middleware::from_fn_with_state(Arc::clone(&api), auth::require));
    in_envelope(routes, api)
}

/// The same service for a process that calls itself: no key is asked for, and every request is
/// `tenant`'s. Never put it on a socket.
pub fn router_for(app: App, tenant: &str) -> Router {
    let caller =
        Caller { tenant: tenant.to_owned(), key_hash: String::new(), scope: Scope::Tenant };
    in_envelope(routes().route_layer(Extension(caller)), api(app))
}

fn api(app: App) -> Arc<Api> {
    Arc::new(Api {
        app,
        keys: KeyCache::default(),
        creates: RecentCreates::default(),
        firsts: Firsts::default(),
        polling: Polling::default(),
    })
}

fn in_envelope(routes: Router<Arc<Api>>, api: Arc<Api>) -> Router {
    routes
        .fallback(edge::unknown_route)
        .method_not_allowed_fallback(edge::wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&api), edge::envelope))
        .with_state(api)
}

fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/v1/agents", post(agents::create).get(agents::list))
        .route("/v1/agents/{id}", get(agents::retrieve).post(agents::update))
        .route("/v1/agents/{id}/archive", post(agents::archive))
        .route("/v1/agents/{id}/versions", get(agents::versions))
        .route("/v1/environments", post(environments::create).get(environments::list))
        .route(
            "/v1/environments/{id}",
            get(environments::retrieve).post(environments::update).delete(environments::delete),
        )
        .route("/v1/environments/{id}/archive", post(environments::archive))
        .route("/v1/environments/{id}/work", get(work::list))
        .route("/v1/environments/{id}/work/poll", get(work::poll))
        .route("/v1/environments/{id}/work/stats", get(work::stats))
        .route("/v1/environments/{id}/work/{work_id}", get(work::retrieve).post(work::update))
        .route("/v1/environments/{id}/work/{work_id}/ack", post(work::ack))
        .route("/v1/environments/{id}/work/{work_id}/heartbeat", post(work::heartbeat))
        .route("/v1/environments/{id}/work/{work_id}/stop", post(work::stop))
        .route(
            "/v1/x/environments/{id}/keys",
            post(environment_keys::create).get(environment_keys::list),
        )
        .route("/v1/x/environments/{id}/keys/{key_id}", delete(environment_keys::delete))
        .route("/v1/sessions", post(sessions::create).get(sessions::list))
        .route("/v1/sessions/{id}", get(sessions::retrieve).delete(sessions::delete))
        .route("/v1/sessions/{id}/archive", post(sessions::archive))
        .route("/v1/sessions/{id}/events", post(events::send).get(events::list))
        .route("/v1/sessions/{id}/events/stream", get(events::stream))
        .route("/v1/sessions/{id}/resources", get(sessions::list_resources))
        .route("/v1/sessions/{id}/resources/{resource_id}", get(sessions::retrieve_resource))
        .route("/v1/skills", post(skills::create).get(skills::list))
        .route("/v1/skills/{id}", get(skills::retrieve).delete(skills::delete))
        .route("/v1/skills/{id}/versions", post(skills::create_version).get(skills::list_versions))
        .route(
            "/v1/skills/{id}/versions/{version}",
            get(skills::retrieve_version).delete(skills::delete_version),
        )
        .route("/v1/skills/{id}/versions/{version}/content", get(skills::download))
        .route("/v1/files", post(files::upload).get(files::list))
        .route("/v1/files/{id}", get(files::retrieve).delete(files::delete))
        .route("/v1/files/{id}/content", get(files::download))
}
