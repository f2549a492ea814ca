//! Who is asking: a key, in either header, names a tenant; an environment key or a work item's token
//! names a part of one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tailstep_core::ids::{UnixMs, sha256_hex};

use crate::{Api, environment_keys, error::ApiError, keys, scope::Scope, token};

/// Keys remembered at once; a process serves few.
const CACHED_MAX: usize = 1_024;

/// A key that was taken back is accepted for at most this long.
const CACHED_MS: u64 = 60_000;

/// Longer ones are refused unread: none that we make is.
const KEY_BYTES_MAX: usize = 1_024;

/// Whose request it is.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) tenant: String,
    /// SHA-256 of the key; names the credential without holding it.
    pub(crate) key_hash: String,
    /// What the credential is for.
    pub(crate) scope: Scope,
}

/// Lets a request with a known key through, as its tenant's.
pub(crate) async fn require(
    State(api): State<Arc<Api>>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match caller(&api, request.headers()).await {
        Ok(caller) => allowed(&caller, &request).map(|()| caller),
        Err(error) => Err(error),
    };
    match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

fn allowed(caller: &Caller, request: &Request) -> Result<(), ApiError> {
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map(MatchedPath::as_str).unwrap_or_default();
    caller.scope.allow(request.method(), route, request.uri().path())
}

async fn caller(api: &Api, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let key = key_of(headers).ok_or_else(ApiError::unauthenticated)?;
    let key_hash = sha256_hex(key.as_bytes());
    let now_ms = api.now_ms();
    if key.starts_with(token::PREFIX) {
        let (tenant, scope) =
            token::holder(&api.app.runtime, key).await?.ok_or_else(ApiError::unauthenticated)?;
        return Ok(Caller { tenant, key_hash, scope });
    }
    if key.starts_with(environment_keys::PREFIX) {
        let found = environment_keys::holder(api.app.documents.as_ref(), &key_hash).await?;
        let (tenant, reach) = found.ok_or_else(ApiError::unauthenticated)?;
        return Ok(Caller { tenant, key_hash, scope: Scope::Environment(reach) });
    }
    let scope = Scope::Tenant;
    if let Some(tenant) = api.keys.get(&key_hash, now_ms) {
        return Ok(Caller { tenant, key_hash, scope });
    }
    match keys::tenant_of(api.app.documents.as_ref(), &key_hash).await? {
        Some(tenant) => {
            api.keys.put(&key_hash, &tenant, now_ms);
            Ok(Caller { tenant, key_hash, scope })
        }
        None => Err(ApiError::unauthenticated()),
    }
}

fn key_of(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer
        .and_then(|value| value.split_once(' '))
        .and_then(|(scheme, key)| scheme.eq_ignore_ascii_case("bearer").then(|| key.trim()));
    let key = match bearer {
        Some(key) => key,
        None => headers.get("x-api-key")?.to_str().ok()?.trim(),
    };
    (!key.is_empty() && key.len() <= KEY_BYTES_MAX).then_some(key)
}

/// Known keys by hash. Unknown ones are not remembered: anybody can send any number of those.
#[derive(Default)]
pub(crate) struct KeyCache {
    entries: Mutex<BTreeMap<String, (String, UnixMs)>>,
}

impl KeyCache {
    fn get(&self, key_hash: &str, now_ms: UnixMs) -> Option<String> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let (tenant, until_ms) = entries.get(key_hash)?;
        (*until_ms > now_ms).then(|| tenant.clone())
    }

    fn put(&self, key_hash: &str, tenant: &str, now_ms: UnixMs) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= CACHED_MAX {
            entries.retain(|_, (_, until_ms)| *until_ms > now_ms);
        }
        if entries.len() >= CACHED_MAX {
            entries.clear();
        }
        entries.insert(key_hash.to_owned(), (tenant.to_owned(), now_ms + CACHED_MS));
    }
}
