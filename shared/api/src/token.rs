//! Session tokens: what the secret of a work item holds. The token says itself where it belongs; that
//! it is the right one says the hash of its random half, which the item keeps. So it is good for as
//! long as its worker holds the item, and needs no document of its own.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tailstep_core::{ids::sha256_hex, work::WorkItem};
use tailstep_runtime::{Runtime, error::RuntimeError, ids::nonce, work};

use crate::scope::Scope;

/// What every token begins with.
pub(crate) const PREFIX: &str = "tailstep_work_";

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    #[serde(rename = "t")]
    tenant: String,
    #[serde(rename = "e")]
    environment: String,
    #[serde(rename = "s")]
    session: String,
    #[serde(rename = "w")]
    item: String,
}

/// A new token's random half, and its hash.
pub(crate) fn new_half() -> (String, String) {
    let half = format!("{}{}", nonce(), nonce());
    let hash = sha256_hex(half.as_bytes());
    (half, hash)
}

/// The `secret` of a polled item.
pub(crate) fn secret(tenant: &str, item: &WorkItem, half: &str) -> String {
    let claims = Claims {
        tenant: tenant.to_owned(),
        environment: item.environment.clone(),
        session: item.session.clone(),
        item: item.id.clone(),
    };
    let claims = URL_SAFE_NO_PAD.encode(json!(claims).to_string());
    let token = format!("{PREFIX}{claims}.{half}");
    URL_SAFE_NO_PAD.encode(json!({"sessions_token": token}).to_string())
}

/// Whose token it is, and what for; `None` when it is none, or none any more.
pub(crate) async fn holder(
    runtime: &Runtime,
    token: &str,
) -> Result<Option<(String, Scope)>, RuntimeError> {
    let Some((claims, half)) = parse(token) else { return Ok(None) };
    let Claims { tenant, environment, session, item } = claims;
    let live = work::of_session(runtime, &tenant, &environment, &session).await?;
    let hash = sha256_hex(half.as_bytes());
    let holds = live.is_some_and(|live| live.id == item && live.is_held_with(&hash));
    Ok(holds.then_some((tenant, Scope::Item { environment, session, item })))
}

fn parse(token: &str) -> Option<(Claims, &str)> {
    let (claims, half) = token.strip_prefix(PREFIX)?.split_once('.')?;
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    Some((serde_json::from_slice(&claims).ok()?, half))
}
