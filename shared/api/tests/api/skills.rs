//! Skills: uploaded, versioned, downloaded, and pinned by agents.

use axum::{
    body::Body,
    http::{Method, Request, StatusCode},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tailstep_api::{App, HandsFeatures, router};
use tailstep_core::files::Manifest;
use tailstep_runtime::{load::read_one, ports::Blobs};
use tower::ServiceExt;

use crate::bench::{Bench, Got, KEY, OTHER_KEY, ids};

const SKILL_MD: &str = "---\nname: make-pdf\ndescription: Makes PDF files.\n---\n# How\n";

async fn send(bench: &Bench, path: &str, key: &str, parts: &[(&str, &str)]) -> Got {
    let mut body = String::new();
    for (name, content) in parts {
        let parameters = match name.strip_prefix('=') {
            Some(field) => format!("name=\"{field}\""),
            None => format!("name=\"files[]\"; filename=\"{name}\""),
        };
        body.push_str(&format!(
            "--b\r\ncontent-disposition: form-data; {parameters}\r\n\r\n{content}\r\n"
        ));
    }
    body.push_str("--b--\r\n");
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("x-api-key", key)
        .header("content-type", "multipart/form-data; boundary=b");
    bench.send_raw(request.body(Body::from(body)).unwrap()).await
}

async fn made(bench: &Bench) -> Value {
    let parts =
        [("pdf/SKILL.md", SKILL_MD), ("pdf/bin/run", "#!/bin/sh\n"), ("=display_name", "PDF")];
    send(bench, "/v1/skills", KEY, &parts).await.ok()
}

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap()
}

fn agent(skills: &Value) -> Value {
    json!({
        "name": "a",
        "model": "m-1",
        "tools": [{"type": "agent_toolset_20260401"}],
        "skills": skills,
    })
}

#[tokio::test]
async fn a_skill_and_its_versions_are_shown_listed_and_removed() {
    let bench = Bench::new().await;
    let skill = made(&bench).await;
    let path = format!("/v1/skills/{}", id(&skill));
    assert_eq!((&skill["type"], &skill["display_name"]), (&json!("skill"), &json!("PDF")));
    assert_eq!(skill["source"], json!({"type": "custom"}));
    assert_eq!(bench.get(&path).await.ok(), skill);
    let first = bench.get(&format!("{path}/versions/latest")).await.ok();
    assert_eq!(first["id"], skill["latest_version_id"]);
    assert_eq!(first["skill_id"], skill["id"]);
    assert_eq!(
        (&first["name"], &first["description"]),
        (&json!("make-pdf"), &json!("Makes PDF files."))
    );
    bench.advance(1);
    let other = SKILL_MD.replace("Makes PDF files.", "Makes better ones.");
    let versions = format!("{path}/versions");
    let second = send(&bench, &versions, KEY, &[("x/SKILL.md", &other)]).await.ok();
    assert_eq!(second["description"], "Makes better ones.");
    let listed = bench.get(&versions).await.ok()["data"].clone();
    assert_eq!(ids(listed.as_array().unwrap()), [id(&second), id(&first)]);
    let page = bench.get(&format!("{versions}?limit=1")).await.ok();
    let next = page["next_page"].as_str().unwrap();
    let page = bench.get(&format!("{versions}?limit=1&page={next}")).await.ok();
    assert_eq!(ids(page["data"].as_array().unwrap()), [id(&first)]);
    assert_eq!(bench.get(&path).await.ok()["latest_version_id"], second["id"]);
    let gone = bench.delete(&format!("{versions}/{}", id(&second))).await.ok();
    assert_eq!(gone, json!({"id": second["id"], "type": "skill_version_deleted"}));
    assert_eq!(bench.get(&path).await.ok()["latest_version_id"], first["id"]);
    assert_eq!(bench.get("/v1/skills?source=custom").await.ok()["data"][0]["id"], skill["id"]);
    assert_eq!(bench.get("/v1/skills?source=anthropic").await.ok()["data"], json!([]));
    for path in
        [&path, &versions, &format!("{versions}/latest"), &format!("{versions}/latest/content")]
    {
        let foreign = bench.as_key(OTHER_KEY, Method::GET, path, &Value::Null).await;
        foreign.error(404, "not_found_error");
    }
    assert_eq!(bench.delete(&path).await.ok()["type"], "skill_deleted");
    bench.get(&path).await.error(404, "not_found_error");
    bench.get(&format!("{versions}/latest")).await.error(404, "not_found_error");
}

#[tokio::test]
async fn wrong_skills_are_refused_and_nothing_is_made() {
    let bench = Bench::new().await;
    let md = ("pdf/SKILL.md", SKILL_MD);
    let many: Vec<String> = (0..501).map(|n| format!("pdf/{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|path| (path.as_str(), "")).collect();
    for (parts, says) in [
        (&[][..], "files[]: is required"),
        (&[("pdf/other.md", "x")], "files[]: pdf/SKILL.md is missing"),
        (&[("pdf/sub/SKILL.md", SKILL_MD)], "files[]: pdf/SKILL.md is missing"),
        (&[md, ("other/x", "")], "files[]: all files must lie in one top directory"),
        (&[md, md], "files[]: a path is given twice"),
        (&[md, ("pdf/a", ""), ("pdf/a/b", "")], "files[]: a path is given twice"),
        (&[md, ("=files[]", "x")], "files[]: a filename is missing, or is not UTF-8"),
        (&[md, ("", "x")], "files[]: a filename: must not be blank"),
        (&[("SKILL.md", SKILL_MD)], "files[]: a filename must be a path"),
        (&[md, ("pdf/../x", "")], "files[]: a filename must be a path"),
        (&[md, ("/pdf/x", "")], "files[]: a filename must be a path"),
        (&[("pdf/SKILL.md", "# no front matter")], "files[]: SKILL.md must begin with"),
        (&[md, ("=purpose", "x")], "a part of the form has an unknown name"),
        (&many, "files[]: more than 500 files"),
    ] {
        let said = send(&bench, "/v1/skills", KEY, parts).await.error(400, "invalid_request_error");
        assert!(said.starts_with(says), "{said}");
    }
    assert_eq!(bench.get("/v1/skills").await.ok()["data"], json!([]));
    let missing = send(&bench, "/v1/skills/skill_no/versions", KEY, &[md]).await;
    missing.error(404, "not_found_error");
}

#[tokio::test]
async fn a_skill_comes_down_as_an_archive_that_other_programs_read() {
    let bench = Bench::new().await;
    let skill = made(&bench).await;
    let uri = format!("/v1/skills/{}/versions/latest/content", id(&skill));
    let request = Request::builder().uri(uri).header("x-api-key", KEY).body(Body::empty());
    let response = bench.router.clone().oneshot(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/zip");
    let zip = response.into_body().collect().await.unwrap().to_bytes();
    let read = "import io,sys,zipfile\n\
        z=zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read())); assert z.testzip() is None\n\
        for i in z.infolist(): print(i.filename, oct(i.external_attr>>16), z.read(i))";
    use std::{
        io::Write,
        process::{Command, Stdio},
    };
    let mut python = Command::new("python3")
        .args(["-c", read])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is needed by the repository's tests");
    python.stdin.take().unwrap().write_all(&zip).unwrap();
    let said = String::from_utf8(python.wait_with_output().unwrap().stdout).unwrap();
    let want = format!(
        "pdf/SKILL.md 0o100644 b'{}'\npdf/bin/run 0o100755 b'#!/bin/sh\\n'\n",
        SKILL_MD.escape_default()
    );
    assert_eq!(said, want);
}

#[tokio::test]
async fn an_agent_keeps_the_version_it_was_made_with() {
    let bench = Bench::new().await;
    let skill = made(&bench).await;
    let wish = json!([{"type": "custom", "skill_id": skill["id"]}]);
    let made = bench.post("/v1/agents", &agent(&wish)).await.ok();
    let pinned =
        json!([{"type": "custom", "skill_id": skill["id"], "version": skill["latest_version_id"]}]);
    assert_eq!(made["skills"], pinned);
    bench.advance(1);
    let versions = format!("/v1/skills/{}/versions", id(&skill));
    let second = send(&bench, &versions, KEY, &[("x/SKILL.md", SKILL_MD)]).await.ok();
    let path = format!("/v1/agents/{}", id(&made));
    assert_eq!(bench.post(&path, &json!({"name": "b"})).await.ok()["skills"], pinned);
    let newer = bench.post(&path, &json!({"skills": wish})).await.ok();
    assert_eq!(newer["skills"][0]["version"], second["id"]);
    let older = bench.post(&path, &json!({"skills": pinned})).await.ok();
    assert_eq!(older["skills"], pinned);
    // The session has what the hands need, also when the skill is gone.
    bench.delete(&format!("/v1/skills/{}", id(&skill))).await.ok();
    let body = json!({"agent": older["id"], "environment_id": bench.environment(KEY).await});
    let session = bench.post("/v1/sessions", &body).await.ok();
    assert_eq!(session["agent"]["skills"], pinned);
    let key = tailstep_core::ids::SessionKey::new("one", id(&session));
    let record = read_one(bench.log.as_ref(), &key, 1).await.unwrap();
    let tailstep_core::event::Event::Created(created) = &record.events[0] else { panic!() };
    let given = created.given();
    let stored = bench.blobs.get("one", &given.skills[0].manifest).await.unwrap();
    let files = Manifest::decode(&stored).unwrap().files;
    let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["SKILL.md", "bin/run"]);
    assert_eq!(bench.post(&path, &json!({"skills": null})).await.ok()["skills"], json!([]));
    // Hands that cannot be given skills are not asked to.
    let bare = router(App { hands: HandsFeatures::default(), ..bench.app.clone() });
    let pinned = json!({"agent": {"type": "agent", "id": older["id"], "version": older["version"]},
        "environment_id": body["environment_id"]});
    let request = Request::builder().method(Method::POST).uri("/v1/sessions");
    let request = request.header("x-api-key", KEY).body(Body::from(pinned.to_string())).unwrap();
    assert_eq!(bare.oneshot(request).await.unwrap().status(), 400);
}

#[tokio::test]
async fn wrong_skills_of_an_agent_are_named() {
    let bench = Bench::new().await;
    let skill = made(&bench).await;
    let own = json!({"type": "custom", "skill_id": skill["id"]});
    let with = |field: &str, value: Value| {
        let mut wish = own.clone();
        wish[field] = value;
        wish
    };
    for (skills, says) in [
        (json!("x"), "skills: must be an array"),
        (
            json!([{"type": "anthropic", "skill_id": "pdf"}]),
            "skills[0].type: Anthropic's own skills are not",
        ),
        (json!([{"type": "x"}]), "skills[0].type: must be custom"),
        (json!([{"type": "custom"}]), "skills[0].skill_id: is required"),
        (
            json!([with("skill_id", json!("skill_no"))]),
            "skills[0].skill_id: there is no such skill",
        ),
        (
            json!([with("version", json!("skillver_no"))]),
            "skills[0].version: the skill has no such",
        ),
        (json!([own, own]), "skills[1]: another entry has the same name `make-pdf`"),
        (json!(vec![own.clone(); 21]), "skills: has 21 entries, at most 20"),
    ] {
        let got = bench.post("/v1/agents", &agent(&skills)).await;
        let said = got.error(400, "invalid_request_error");
        assert!(said.starts_with(says), "{said}");
    }
    let bare = json!({"name": "a", "model": "m-1", "skills": [own]});
    let said = bench.post("/v1/agents", &bare).await.error(400, "invalid_request_error");
    assert!(said.starts_with("skills: an agent reads its skills with its tools"), "{said}");
    let body = agent(&json!([own]));
    let foreign = bench.as_key(OTHER_KEY, Method::POST, "/v1/agents", &body).await;
    foreign.error(400, "invalid_request_error");
}
