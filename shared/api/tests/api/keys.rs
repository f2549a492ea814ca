//! API keys.

use serde_json::Value;
use tailstep_api::{
    keys::{self, KeyError},
    router_for,
};
use tailstep_core::ids::sha256_hex;
use tailstep_runtime::{
    memory::MemoryDocuments,
    ports::{DocumentKind, Documents},
};

use crate::bench::{Bench, KEY};

#[tokio::test]
async fn a_key_is_one_tenants_for_good() {
    let documents = MemoryDocuments::default();
    assert!(!keys::any_key(&documents).await.unwrap());
    let key = keys::new_key();
    assert!(key.starts_with("tailstep_") && key.len() == 9 + 64);
    assert_ne!(key, keys::new_key());
    keys::ensure_key(&documents, "one", &key, "first", 5).await.unwrap();
    assert!(keys::any_key(&documents).await.unwrap());
    // At every start again.
    keys::ensure_key(&documents, "one", &key, "first", 6).await.unwrap();
    let taken = keys::ensure_key(&documents, "two", &key, "first", 7).await;
    assert!(matches!(taken, Err(KeyError::Taken)));
    let no_tenant = keys::ensure_key(&documents, "", &key, "first", 7).await;
    assert!(matches!(no_tenant, Err(KeyError::NoTenant)));
    let no_key = keys::ensure_key(&documents, "one", "", "first", 7).await;
    assert!(matches!(no_key, Err(KeyError::NoKey)));
    // Only the hash is stored.
    let id = sha256_hex(key.as_bytes());
    let stored = documents.get("", DocumentKind::ApiKey, &id).await.unwrap().unwrap();
    assert!(!String::from_utf8_lossy(&stored.body).contains(&key));
}

#[tokio::test]
async fn a_key_taken_back_stops_working_within_a_minute() {
    let bench = Bench::new().await;
    bench.get("/v1/agents").await.ok();
    let id = sha256_hex(KEY.as_bytes());
    bench.documents.delete("", DocumentKind::ApiKey, &id).await.unwrap();
    bench.advance(59_999);
    bench.get("/v1/agents").await.ok();
    bench.advance(1);
    bench.get("/v1/agents").await.error(401, "authentication_error");
}

#[tokio::test]
async fn a_process_that_calls_itself_needs_no_key() {
    let bench = Bench::new().await;
    let agent = bench.agent(KEY).await;
    for (tenant, seen) in [("one", 1), ("two", 0)] {
        let router = router_for(bench.app.clone(), tenant);
        let request = axum::http::Request::get("/v1/agents").body(axum::body::Body::empty());
        let response = tower::ServiceExt::oneshot(router, request.unwrap()).await.unwrap();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let page: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(page["data"].as_array().unwrap().len(), seen);
        assert_eq!(page.to_string().contains(&agent), seen == 1);
    }
}
