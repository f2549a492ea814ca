//! Files: uploads, and what sessions put out.

use std::convert::Infallible;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, Method, Request, StatusCode},
};
use futures_util::stream;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tailstep_api::{App, router};
use tailstep_core::{
    ids::{BlobRef, sha256_hex},
    limits::files::CHUNK_BYTES,
};
use tower::ServiceExt;

use crate::bench::{Bench, Got, KEY, OTHER_KEY, ids};

const BOUNDARY: &str = "the-boundary";

/// A part of a form: its header's parameters, its media type, its bytes.
type Part<'a> = (&'a str, Option<&'a str>, &'a [u8]);

fn form(parts: &[Part<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    for (parameters, kind, bytes) in parts {
        let kind = kind.map(|kind| format!("content-type: {kind}\r\n")).unwrap_or_default();
        let head =
            format!("--{BOUNDARY}\r\ncontent-disposition: form-data; {parameters}\r\n{kind}\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    body
}

fn post(key: &str, headers: &[(&str, &str)], body: Body) -> Request<Body> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri("/v1/files")
        .header("x-api-key", key)
        .header("content-type", format!("multipart/form-data; boundary={BOUNDARY}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).unwrap()
}

async fn send(bench: &Bench, parts: &[Part<'_>]) -> Got {
    bench.send_raw(post(KEY, &[], Body::from(form(parts)))).await
}

async fn upload(bench: &Bench, name: &str, bytes: &[u8]) -> Value {
    send(bench, &[(&format!("name=\"file\"; filename=\"{name}\""), None, bytes)]).await.ok()
}

async fn download(bench: &Bench, key: &str, id: &str) -> (StatusCode, HeaderMap, Bytes) {
    let request =
        Request::builder().uri(format!("/v1/files/{id}/content")).header("x-api-key", key);
    let response =
        bench.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    (parts.status, parts.headers, body.collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn what_goes_up_comes_down() {
    let bench = Bench::new().await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let two_pieces: Vec<u8> = (0..CHUNK_BYTES + 1).map(|n| (n % 251) as u8).collect();
    for bytes in [&b""[..], &all_bytes, &two_pieces] {
        let made = upload(&bench, "data.bin", bytes).await;
        assert_eq!(made["type"], "file");
        assert_eq!(made["filename"], "data.bin");
        assert_eq!(made["mime_type"], "application/octet-stream");
        assert_eq!(made["size_bytes"], bytes.len());
        assert_eq!(made["downloadable"], true);
        assert_eq!((&made["scope"], &made["expires_at"]), (&Value::Null, &Value::Null));
        assert_eq!(made["x_sha256"], sha256_hex(bytes));
        let id = made["id"].as_str().unwrap();
        assert_eq!(bench.get(&format!("/v1/files/{id}")).await.ok(), made);
        let (status, headers, body) = download(&bench, KEY, id).await;
        assert_eq!(status, 200);
        assert_eq!(sha256_hex(&body), sha256_hex(bytes));
        assert_eq!(headers["content-length"], bytes.len().to_string());
        assert_eq!(headers["content-type"], "application/octet-stream");
        let disposition = "attachment; filename=\"data.bin\"; filename*=UTF-8''data.bin";
        assert_eq!(headers["content-disposition"], disposition);
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(download(&bench, OTHER_KEY, id).await.0, 404);
    }
}

#[tokio::test]
async fn a_form_is_read_strictly() {
    let bench = Bench::new().await;
    let file: Part = ("name=\"file\"; filename=\"a.txt\"", Some("text/plain; charset=utf-8"), b"a");
    let made = send(&bench, &[("name=\"expires_in_seconds\"", None, b"3600"), file]).await.ok();
    assert_eq!(made["mime_type"], "text/plain");
    assert!(made["expires_at"].is_string());
    let hidden: Part = ("name=\"file\"; filename=\"x\"", Some("text/html\u{1}"), b"");
    for (parts, says) in [
        (&[][..], "file: is required"),
        (&[file, file], "file: is given more than once"),
        (&[file, ("name=\"purpose\"", None, b"x")], "a part of the form has an unknown name"),
        (&[("filename=\"x\"", None, b"x")], "a part of the form has an unknown name"),
        (&[("name=\"file\"; filename=\"\"", None, b"x")], "file: its filename: must not be blank"),
        (&[("name=\"file\"", None, b"x")], "file: its filename is missing, or is not UTF-8"),
        (&[("name=\"file\"; filename=\"a/b\"", None, b"x")], "file: its filename must not be"),
        (&[("name=\"file\"; filename=\"..\"", None, b"x")], "file: its filename must not be"),
        (&[("name=\"expires_in_seconds\"", None, b"60"), file], "expires_in_seconds: must be"),
        (&[("name=\"expires_in_seconds\"", None, &[b'1'; 99])], "a part of it is too long"),
        (&[hidden], "no whole multipart form"),
    ] {
        let said = send(&bench, parts).await.error(400, "invalid_request_error");
        assert!(said.contains(says), "{said}");
    }
    let latin1 = form(&[("name=\"file\"; filename=\"?\"", None, b"x")]);
    let latin1: Vec<u8> = latin1.iter().map(|&b| if b == b'?' { 0xe9 } else { b }).collect();
    let said = bench.send_raw(post(KEY, &[], Body::from(latin1))).await;
    assert!(said.error(400, "invalid_request_error").contains("is not UTF-8"));
    let whole = form(&[file]);
    let cut = Body::from(whole[..whole.len() - 8].to_vec());
    bench.send_raw(post(KEY, &[], cut)).await.error(400, "invalid_request_error");
    let said = bench.post("/v1/files", &json!({"file": "x"})).await;
    assert!(said.error(400, "invalid_request_error").starts_with("content-type:"));
}

#[tokio::test]
async fn an_upload_beyond_the_limit_is_refused_without_being_kept() {
    let bench = Bench::new().await;
    let small = App { upload_bytes_max: 1_000, ..bench.app.clone() };
    let small = router(small);
    let file: Part = ("name=\"file\"; filename=\"a\"", None, &[7; 1_001]);
    let refused = |request: Request<Body>| {
        let small = small.clone();
        async move {
            let response = small.oneshot(request).await.unwrap();
            assert_eq!(response.status(), 413);
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap();
            let said = body["error"]["message"].as_str().unwrap();
            assert_eq!(said, "file: is longer than the limit of 1000 bytes");
        }
    };
    refused(post(KEY, &[], Body::from(form(&[file])))).await;
    refused(post(KEY, &[("content-length", "20000")], Body::from(form(&[file])))).await;
    // A body without an end: the server stops reading by itself.
    let start = form(&[file]);
    let first = Bytes::from(start[..start.len() - 20].to_vec());
    let endless = stream::unfold(Some(first), |first| async {
        Some((Ok::<_, Infallible>(first.unwrap_or(Bytes::from_static(&[7; 4_096]))), None))
    });
    refused(post(KEY, &[], Body::from_stream(endless))).await;
    assert_eq!(bench.get("/v1/files").await.ok()["data"], json!([]));
}

#[tokio::test]
async fn lists_page_expire_and_forget() {
    let bench = Bench::new().await;
    let mut made = Vec::new();
    for index in 0..5 {
        made.push(upload(&bench, &format!("{index}.txt"), b"x").await);
        bench.advance(1);
    }
    let expiring: Part = ("name=\"expires_in_seconds\"", None, b"3600");
    let file: Part = ("name=\"file\"; filename=\"a.txt\"", None, b"a");
    let short = send(&bench, &[expiring, file]).await.ok();
    let short = short["id"].as_str().unwrap();
    made.reverse();
    let mut seen = Vec::new();
    let mut page = bench.get("/v1/files?limit=3").await.ok();
    assert_eq!(page["data"][0]["id"], short);
    bench.advance(3_600_000);
    loop {
        seen.extend(page["data"].as_array().unwrap().clone());
        let Some(next) = page["next_page"].as_str() else { break };
        page = bench.get(&format!("/v1/files?limit=3&page={next}")).await.ok();
    }
    assert_eq!(ids(&seen[1..]), ids(&made));
    let expired = bench.get(&format!("/v1/files/{short}")).await;
    expired.error(404, "not_found_error");
    assert_eq!(expired.body["error"]["details"]["error_code"], "file_expired");
    assert_eq!(download(&bench, KEY, short).await.0, 404);
    assert_eq!(bench.get("/v1/files").await.ok()["data"].as_array().unwrap().len(), 5);

    let id = made[1]["id"].as_str().unwrap();
    let gone = json!({"id": id, "type": "file_deleted"});
    assert_eq!(bench.delete(&format!("/v1/files/{id}")).await.ok(), gone);
    bench.delete(&format!("/v1/files/{id}")).await.error(404, "not_found_error");
    let other = made[0]["id"].as_str().unwrap();
    let some = format!("/v1/files?ids[]={id}&ids[]={other}&ids[]=nonsense&ids[]={short}");
    assert_eq!(bench.get(&some).await.ok()["data"], json!([made[0]]));
    for (query, says) in [
        ("limit=0", "limit: must be from 1 to 1000"),
        ("limit=1001", "limit: must be from 1 to 1000"),
        ("ids[]=a&limit=3", "ids[]: cannot be combined"),
        ("page=x", "page: not a cursor"),
        ("order=asc", "order: unknown query parameter"),
    ] {
        let said = bench.get(&format!("/v1/files?{query}")).await;
        assert!(said.error(400, "invalid_request_error").starts_with(says), "{query}");
    }
    let many = "ids[]=a&".repeat(101);
    bench.get(&format!("/v1/files?{many}")).await.error(400, "invalid_request_error");
}

#[tokio::test]
async fn a_repeated_upload_is_one_file() {
    let bench = Bench::new().await;
    let file: Part = ("name=\"file\"; filename=\"a\"", None, b"a");
    let again = |headers: &'static [(&'static str, &'static str)]| {
        bench.send_raw(post(KEY, headers, Body::from(form(&[file]))))
    };
    let key = &[("idempotency-key", "one")];
    let first = again(key).await.ok();
    bench.advance(1);
    assert_eq!(again(key).await.ok(), first);
    let plain = again(&[]).await.ok();
    assert_ne!(plain["id"], first["id"]);
    assert_eq!(again(&[("x-stainless-retry-count", "1")]).await.ok(), plain);
    let other: Part = ("name=\"file\"; filename=\"a\"", None, b"b");
    let reused = bench.send_raw(post(KEY, key, Body::from(form(&[other])))).await;
    reused.error(409, "conflict_error");
}

#[tokio::test]
async fn outputs_are_files_of_their_session() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let list = format!("/v1/files?scope_id={session}");
    assert_eq!(bench.get(&list).await.ok()["data"], json!([]));
    let all_bytes: Vec<u8> = (0..=255).collect();
    let (old, new) = (1_000, 2_000);
    let files: &[(&str, &[u8], u64)] =
        &[("b/odd \"\n.csv", &all_bytes, old), ("c", b"", old), ("z.txt", b"newest", new)];
    bench.puts_out(&session, files).await;
    let listed = bench.get(&list).await.ok()["data"].as_array().unwrap().clone();
    let paths: Vec<_> = listed.iter().map(|file| file["x_path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["z.txt", "b/odd \"\n.csv", "c"], "newest first, then by path");
    for (shown, (_, bytes, at_ms)) in listed.iter().zip([&files[2], &files[0], &files[1]]) {
        assert_eq!(shown["scope"], json!({"type": "session", "id": session}));
        assert_eq!(shown["size_bytes"], bytes.len());
        assert_eq!(shown["created_at"], format!("1970-01-01T00:00:0{}.000Z", at_ms / 1_000));
        let id = shown["id"].as_str().unwrap();
        assert!(id.starts_with("file_") && id.len() == 64, "{id}");
        assert_eq!(bench.get(&format!("/v1/files/{id}")).await.ok(), *shown);
        let (status, headers, body) = download(&bench, KEY, id).await;
        assert_eq!((status, &body[..]), (StatusCode::OK, *bytes));
        assert!(!headers["content-disposition"].to_str().unwrap().contains(['\n', '/']));
        assert_eq!(download(&bench, OTHER_KEY, id).await.0, 404);
    }
    assert_eq!(listed[1]["mime_type"], "text/csv");
    assert_eq!(listed[1]["filename"], "odd \"\n.csv");
    // Pages, and one that is asked for by id.
    let first = bench.get(&format!("{list}&limit=2")).await.ok();
    let next = first["next_page"].as_str().unwrap();
    let second = bench.get(&format!("{list}&limit=2&page={next}")).await.ok();
    assert_eq!(second["data"], json!([listed[2]]));
    assert_eq!(second["next_page"], Value::Null);
    let other = bench.session().await;
    let by_id = format!("ids[]={}", listed[0]["id"].as_str().unwrap());
    assert_eq!(bench.get(&format!("{list}&{by_id}")).await.ok()["data"], json!([listed[0]]));
    let elsewhere = bench.get(&format!("/v1/files?scope_id={other}&{by_id}")).await.ok();
    assert_eq!(elsewhere["data"], json!([]));
    // Uploads and outputs are listed apart.
    assert_eq!(bench.get("/v1/files").await.ok()["data"], json!([]));
    bench.get("/v1/files?scope_id=sesn_none").await.error(404, "not_found_error");
    let foreign = bench.as_key(OTHER_KEY, Method::GET, &list, &Value::Null).await;
    foreign.error(404, "not_found_error");
}

#[tokio::test]
async fn an_output_that_was_deleted_or_changed_is_gone() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let list = format!("/v1/files?scope_id={session}");
    bench.puts_out(&session, &[("a", b"a", 1), ("b", b"b", 1), ("c", b"c", 1)]).await;
    let listed = bench.get(&list).await.ok()["data"].clone();
    let id = |at: usize| listed[at]["id"].as_str().unwrap().to_owned();
    let first = bench.get(&format!("{list}&limit=1")).await.ok();
    bench.delete(&format!("/v1/files/{}", id(0))).await.ok();
    bench.delete(&format!("/v1/files/{}", id(0))).await.error(404, "not_found_error");
    assert_eq!(download(&bench, KEY, &id(0)).await.0, 404);
    assert_eq!(bench.get(&list).await.ok()["data"], json!([listed[1], listed[2]]));
    // A cursor that stands on the deleted one still leads on.
    let next = first["next_page"].as_str().unwrap();
    let rest = bench.get(&format!("{list}&page={next}")).await.ok();
    assert_eq!(rest["data"], json!([listed[1], listed[2]]));
    bench.puts_out(&session, &[("a", b"a", 1), ("b", b"other", 2)]).await;
    bench.get(&format!("/v1/files/{}", id(1))).await.error(404, "not_found_error");
    let now = bench.get(&list).await.ok()["data"].clone();
    assert_eq!(now.as_array().unwrap().len(), 1, "the same bytes under the same path stay hidden");
    assert_eq!(now[0]["size_bytes"], 5);
    // With the session its files go.
    let id = now[0]["id"].as_str().unwrap();
    bench.delete(&format!("/v1/sessions/{session}")).await.ok();
    bench.get(&format!("/v1/files/{id}")).await.error(404, "not_found_error");
    bench.delete(&format!("/v1/files/{id}")).await.error(404, "not_found_error");
}

#[tokio::test]
async fn lost_bytes_are_an_error_without_internals() {
    let bench = Bench::new().await;
    let made = upload(&bench, "a", b"a").await;
    let blob = BlobRef::of(b"a");
    bench.blobs.lose("one", &blob);
    let path = format!("/v1/files/{}/content", made["id"].as_str().unwrap());
    let said = bench.get(&path).await.error(500, "api_error");
    assert!(!said.contains(&blob.sha256), "{said}");
}
