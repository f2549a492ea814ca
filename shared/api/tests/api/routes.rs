//! `docs/compatibility.md` against the router: each endpoint that it lists as there is there, and
//! no other is.

use axum::http::Method;
use serde_json::Value;

use crate::bench::{Bench, KEY};

const DOCUMENT: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compatibility.md"));

/// Method, path and state of each endpoint.
fn listed() -> Vec<(Method, &'static str, &'static str)> {
    let rows = DOCUMENT.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let (method, path) = cells.next()?.strip_suffix('`')?.split_once(' ')?;
        Some((method.parse().ok()?, path, cells.next()?))
    });
    rows.filter(|(_, path, _)| path.starts_with("/v1/")).collect()
}

#[tokio::test]
async fn the_document_lists_what_is_there() {
    let bench = Bench::new().await;
    let listed = listed();
    assert_eq!(listed.len(), 95, "the protocol has 95 endpoints");
    assert_eq!(listed.iter().filter(|(_, _, state)| *state == "yes").count(), 44);
    for (method, path, state) in listed {
        let filled: Vec<&str> = path
            .split('/')
            .map(|part| if part.starts_with('{') { "no_such_id" } else { part })
            .collect();
        let got = bench.as_key(KEY, method.clone(), &filled.join("/"), &Value::Null).await;
        let message = got.body["error"]["message"].as_str().unwrap_or_default();
        let there = got.status != 405 && message != "there is no such route";
        assert_eq!(there, state == "yes", "{method} {path}: {} {}", got.status, got.body);
    }
}
