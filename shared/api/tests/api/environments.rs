//! Environments.

use serde_json::{Value, json};

use crate::bench::{Bench, KEY};

#[tokio::test]
async fn the_one_configuration_is_filled_in() {
    let bench = Bench::new().await;
    let config = json!({
        "type": "cloud",
        "networking": {"type": "unrestricted"},
        "packages": {
            "type": "packages",
            "apt": [], "cargo": [], "gem": [], "go": [], "npm": [], "pip": [],
        },
    });
    let plain = bench.post("/v1/environments", &json!({"name": "e"})).await.ok();
    assert_eq!(
        plain,
        json!({
            "id": plain["id"],
            "type": "environment",
            "name": "e",
            "description": null,
            "scope": "organization",
            "config": config,
            "metadata": {},
            "created_at": "2026-11-30T00:53:20.000Z",
            "updated_at": "2026-11-30T00:53:20.000Z",
            "archived_at": null,
        })
    );
    for spelt in [json!({"type": "cloud"}), config.clone(), Value::Null] {
        let body = json!({"name": "e", "config": spelt, "description": null, "metadata": null});
        assert_eq!(bench.post("/v1/environments", &body).await.ok()["config"], config);
    }
}

#[tokio::test]
async fn updates_archive_and_delete() {
    let bench = Bench::new().await;
    let id = bench.environment(KEY).await;
    let path = format!("/v1/environments/{id}");
    bench.advance(1_000);
    let body = json!({"name": "n", "description": "d", "metadata": {"a": "1", "b": "2"}});
    let updated = bench.post(&path, &body).await.ok();
    assert_eq!((&updated["name"], &updated["description"]), (&json!("n"), &json!("d")));
    assert_eq!(updated["updated_at"], "2026-11-30T00:53:21.000Z");
    // Null and the empty text both delete.
    let body = json!({"metadata": {"a": null, "b": ""}, "config": {"type": "cloud"}});
    assert_eq!(bench.post(&path, &body).await.ok()["metadata"], json!({}));
    assert_eq!(bench.get(&path).await.ok()["name"], "n");
    let archived = bench.post(&format!("{path}/archive"), &Value::Null).await.ok();
    assert!(archived["archived_at"].is_string());
    let got = bench.post(&path, &json!({"name": "x"})).await;
    got.error(400, "invalid_request_error");
    assert_eq!(got.body["error"]["details"]["error_code"], "environment_archived");
    let body = json!({"agent": bench.agent(KEY).await, "environment_id": id});
    let got = bench.post("/v1/sessions", &body).await;
    got.error(400, "invalid_request_error");
    assert_eq!(got.body["error"]["details"]["error_code"], "environment_archived");
    assert_eq!(bench.get("/v1/environments").await.ok()["data"], json!([]));
    let all = bench.get("/v1/environments?include_archived=true").await.ok();
    assert_eq!(all["data"][0]["id"], id.as_str());
    let gone = bench.delete(&path).await.ok();
    assert_eq!(gone, json!({"id": id, "type": "environment_deleted"}));
    bench.get(&path).await.error(404, "not_found_error");
    bench.delete(&path).await.error(404, "not_found_error");
}

#[tokio::test]
async fn packages_are_shown_kept_and_pinned_by_sessions() {
    let bench = Bench::new().await;
    let packages = json!({"pip": ["numpy==2.1.*", "httpx[http2]"], "npm": ["@types/node@^20"]});
    let body = json!({"name": "e", "config": {"type": "cloud", "packages": packages}});
    let made = bench.post("/v1/environments", &body).await.ok();
    let shown = &made["config"]["packages"];
    assert_eq!((&shown["pip"], &shown["npm"]), (&packages["pip"], &packages["npm"]));
    assert_eq!((&shown["apt"], &shown["type"]), (&json!([]), &json!("packages")));
    let path = format!("/v1/environments/{}", made["id"].as_str().unwrap());
    let kept = json!({"name": "f", "config": {"type": "cloud"}});
    assert_eq!(bench.post(&path, &kept).await.ok()["config"]["packages"], *shown);
    let session = json!({"agent": bench.agent(KEY).await, "environment_id": made["id"]});
    let session = bench.post("/v1/sessions", &session).await.ok();
    let cleared = json!({"config": {"type": "cloud", "packages": {"gem": ["rails"]}}});
    let changed = bench.post(&path, &cleared).await.ok();
    assert_eq!(changed["config"]["packages"]["pip"], json!([]));
    assert_eq!(changed["config"]["packages"]["gem"], json!(["rails"]));
    // The session runs with what was there when it was made.
    let key = tailstep_core::ids::SessionKey::new("one", session["id"].as_str().unwrap());
    let record = tailstep_runtime::load::read_one(bench.log.as_ref(), &key, 1).await.unwrap();
    let tailstep_core::event::Event::Created(created) = &record.events[0] else { panic!() };
    assert_eq!(created.environment.packages.pip, ["numpy==2.1.*", "httpx[http2]"]);
    assert_eq!(created.environment.packages.npm, ["@types/node@^20"]);
}

#[tokio::test]
async fn packages_behind_a_limited_network_need_their_registries() {
    let bench = Bench::new().await;
    let with = |allowed: bool| {
        let network = json!({"type": "limited", "allow_package_managers": allowed});
        json!({
            "name": "e",
            "config": {"type": "cloud", "networking": network, "packages": {"pip": ["numpy"]}},
        })
    };
    let said = bench.post("/v1/environments", &with(false)).await;
    let said = said.error(400, "invalid_request_error");
    assert!(said.starts_with("config.networking.allow_package_managers: must be true"), "{said}");
    let made = bench.post("/v1/environments", &with(true)).await.ok();
    // Nor can it be taken away later.
    let path = format!("/v1/environments/{}", made["id"].as_str().unwrap());
    let closed = json!({"config": {"type": "cloud", "networking": {"type": "limited"}}});
    bench.post(&path, &closed).await.error(400, "invalid_request_error");
}
