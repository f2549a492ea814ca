//! What sessions are given.

use axum::{
    body::Body,
    http::{Method, Request},
};
use serde_json::{Value, json};
use tailstep_api::{App, HandsFeatures, router};
use tailstep_runtime::{content::ContentWriter, load::read_one};
use tower::ServiceExt;

use crate::bench::{Bench, KEY, OTHER_KEY};

/// Uploads, and gives the file's id.
async fn upload(bench: &Bench, key: &str, name: &str, bytes: &str) -> String {
    let body = format!(
        "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{bytes}\r\n--b--\r\n"
    );
    let request = Request::builder()
        .method(Method::POST)
        .uri("/v1/files")
        .header("x-api-key", key)
        .header("content-type", "multipart/form-data; boundary=b");
    let made = bench.send_raw(request.body(Body::from(body)).unwrap()).await.ok();
    made["id"].as_str().unwrap().to_owned()
}

async fn body(bench: &Bench, resources: Value) -> Value {
    json!({
        "agent": bench.agent(KEY).await,
        "environment_id": bench.environment(KEY).await,
        "resources": resources,
    })
}

#[tokio::test]
async fn a_session_keeps_the_files_it_was_given() {
    let bench = Bench::new().await;
    let (a, b) = (upload(&bench, KEY, "a.csv", "a").await, upload(&bench, KEY, "b.csv", "b").await);
    let resources = json!([
        {"type": "file", "file_id": a},
        {"type": "file", "file_id": b, "mount_path": "/data/b.csv"},
        {"type": "file", "file_id": a, "mount_path": "/data/a.csv"},
    ]);
    let made = bench.post("/v1/sessions", &body(&bench, resources).await).await.ok();
    let session = made["id"].as_str().unwrap();
    let shown = &made["resources"];
    assert_eq!(shown[0]["mount_path"], format!("/mnt/session/uploads/{a}"));
    assert_eq!(shown[1]["mount_path"], "/data/b.csv");
    assert_eq!((&shown[1]["file_id"], &shown[1]["type"]), (&json!(b), &json!("file")));
    assert!(shown[0]["created_at"].is_string() && shown[0]["updated_at"].is_string());
    bench.delete(&format!("/v1/files/{a}")).await.ok();
    let again = bench.get(&format!("/v1/sessions/{session}")).await.ok();
    assert_eq!(again["resources"], *shown);
    let path = format!("/v1/sessions/{session}/resources");
    assert_eq!(bench.get(&path).await.ok(), json!({"data": shown, "next_page": null}));
    let one = format!("{path}/{}", shown[1]["id"].as_str().unwrap());
    assert_eq!(bench.get(&one).await.ok(), shown[1]);
    bench.get(&format!("{path}/sesrsc_no")).await.error(404, "not_found_error");
    let foreign = bench.as_key(OTHER_KEY, Method::GET, &one, &Value::Null).await;
    foreign.error(404, "not_found_error");
    // The record holds where the bytes are, for the hands.
    let key = tailstep_core::ids::SessionKey::new("one", session);
    let first = read_one(bench.log.as_ref(), &key, 1).await.unwrap();
    let tailstep_core::event::Event::Created(created) = &first.events[0] else { panic!() };
    assert_eq!(created.given().files.len(), 3);
    assert_eq!(created.given().files[0].content.chunks.len(), 1);
}

#[tokio::test]
async fn outputs_of_one_session_can_be_given_to_another() {
    let bench = Bench::new().await;
    let first = bench.session().await;
    bench.puts_out(&first, &[("report\n.md", b"report", 1)]).await;
    let listed = bench.get(&format!("/v1/files?scope_id={first}")).await.ok();
    let resources = json!([{"type": "file", "file_id": listed["data"][0]["id"]}]);
    let made = bench.post("/v1/sessions", &body(&bench, resources).await).await.ok();
    let key = tailstep_core::ids::SessionKey::new("one", made["id"].as_str().unwrap());
    let record = read_one(bench.log.as_ref(), &key, 1).await.unwrap();
    let tailstep_core::event::Event::Created(created) = &record.events[0] else { panic!() };
    assert_eq!(created.resources[0].filename, "report_.md", "one line for the model");
    let mut writer = ContentWriter::new(bench.blobs.as_ref(), "one");
    writer.write(b"report").await.unwrap();
    assert_eq!(created.resources[0].content, writer.finish().await.unwrap());
}

#[tokio::test]
async fn wrong_resources_are_named() {
    let bench = Bench::new().await;
    let own = upload(&bench, KEY, "a", "a").await;
    let foreign = upload(&bench, OTHER_KEY, "a", "a").await;
    let file = |id: &str, path: &str| json!({"type": "file", "file_id": id, "mount_path": path});
    for (resources, says) in [
        (json!("x"), "resources: must be an array"),
        (json!([{"type": "file"}]), "resources[0].file_id: is required"),
        (json!([{"file_id": own}]), "resources[0].type: is required"),
        (json!([{"type": "memory_store"}]), "resources[0].type: memory stores are not supported"),
        (json!([{"type": "github_repository"}]), "resources[0].type: repositories are not"),
        (json!([file(&own, ""), {"type": "x"}]), "resources[1].type: must be file"),
        (json!([file(&foreign, "")]), "resources[0].file_id: there is no such file"),
        (json!([file("file_../../x", "")]), "resources[0].file_id: there is no such file"),
        (json!([file(&own, "/workspace/a")]), "resources[0].mount_path: must not lie in or above"),
        (json!([file(&own, "relative")]), "resources[0].mount_path: must be an absolute path"),
        (json!([file(&own, "/a"), file(&own, "/a/b")]), "resources[1].mount_path: is in the way"),
        (json!([file(&own, "/a/b"), file(&own, "/a")]), "resources[1].mount_path: is in the way"),
        (json!(vec![file(&own, "/x"); 65]), "resources: has 65 entries, at most 64"),
    ] {
        let got = bench.post("/v1/sessions", &body(&bench, resources).await).await;
        let said = got.error(400, "invalid_request_error");
        assert!(said.starts_with(says), "{said}");
    }
    let bare = router(App { hands: HandsFeatures::default(), ..bench.app.clone() });
    let request = Request::builder()
        .method(Method::POST)
        .uri("/v1/sessions")
        .header("x-api-key", KEY)
        .body(Body::from(body(&bench, json!([file(&own, "/a")])).await.to_string()));
    assert_eq!(bare.oneshot(request.unwrap()).await.unwrap().status(), 400);
}
