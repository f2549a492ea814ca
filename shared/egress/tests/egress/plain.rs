//! Plain HTTP through the broker.

use tailstep_core::egress::EgressRule;
use tokio::io::AsyncWriteExt;

use crate::{
    origin::{Origin, echo, raw, says},
    world::{World, rest, rule, status},
};

#[tokio::test]
async fn a_request_goes_out_and_its_answer_comes_back() {
    let origin = Origin::http(echo()).await;
    let port = origin.port;
    let world = World::new(vec![rule("allowed.test", port)]).await;
    let answer = world
        .ask(format!(
            "POST http://Allowed.Test.:{port}/a/b?c=d HTTP/1.1\r\nHost: allowed.test:{port}\r\n\
             Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nProxy-Authorization: Basic eDp5\r\n\
             Proxy-Connection: keep-alive\r\nX-Kept: yes\r\nContent-Length: 5\r\n\r\nhello"
        ))
        .await;
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    let seen = origin.last().to_ascii_lowercase();
    assert!(seen.starts_with("post /a/b?c=d http/1.1\r\n"), "{seen}");
    assert!(seen.contains(&format!("\r\nhost: allowed.test:{port}\r\n")), "{seen}");
    assert!(seen.contains("x-kept: yes") && seen.ends_with("\r\n\r\nhello"), "{seen}");
    for gone in ["x-hop", "proxy-", "eDp5"] {
        assert!(!seen.contains(gone), "{seen}");
    }
    assert_eq!(world.decisions(), [format!("+ allowed.test:{port} POST /a/b rule allowed.test")]);
}

#[tokio::test]
async fn chunked_bodies_and_answers_pass() {
    let answer =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let origin = Origin::http(raw(answer)).await;
    let port = origin.port;
    let world = World::new(vec![rule("allowed.test", port)]).await;
    let request = |version: &str, body: &str| {
        format!("PUT http://allowed.test:{port}/ {version}\r\nHost: allowed.test:{port}\r\n{body}")
    };
    let chunked = "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n2\r\nhe\r\n3;x\r\nllo\r\n0\r\nA: b\r\n\r\n";
    let answer = world.ask(request("HTTP/1.1", chunked)).await;
    assert!(answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("0\r\n\r\n") && answer.contains("3\r\nabc\r\n"), "{answer}");
    // The origin's request is framed anew, without what stood between the chunks.
    assert!(origin.last().contains("llo\r\n") && !origin.last().contains("3;x"));
    // HTTP/1.0 knows no chunks.
    let answer = world.ask(request("HTTP/1.0", "Content-Length: 0\r\n\r\n")).await;
    assert!(answer.ends_with("\r\n\r\nabcde") && !answer.contains("chunked"), "{answer}");
}

#[tokio::test]
async fn answers_without_a_body_have_none() {
    let origin = Origin::http(raw("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")).await;
    let port = origin.port;
    let world = World::new(vec![rule("allowed.test", port)]).await;
    let answer = world
        .ask(format!(
            "HEAD http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test:{port}\r\n\r\n"
        ))
        .await;
    assert!(answer.contains("content-length: 99") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn a_second_request_behind_the_first_is_not_served() {
    let origin = Origin::http(says("one")).await;
    let port = origin.port;
    let world = World::new(vec![rule("allowed.test", port)]).await;
    let one =
        format!("GET http://allowed.test:{port}/one HTTP/1.1\r\nHost: allowed.test:{port}\r\n\r\n");
    let two = "GET http://evil.invalid/ HTTP/1.1\r\nHost: evil.invalid\r\n\r\n";
    let answer = world.ask(format!("{one}{two}{one}")).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert_eq!(origin.seen().len(), 1);
}

#[tokio::test]
async fn a_redirect_leads_no_further_than_the_rules() {
    let to = "HTTP/1.1 302 Found\r\nLocation: http://evil.invalid/\r\nContent-Length: 0\r\n\r\n";
    let origin = Origin::http(raw(to)).await;
    let world = World::new(vec![rule("allowed.test", origin.port)]).await;
    let answer = world.get("allowed.test", origin.port, "/").await;
    assert_eq!(status(&answer), 302);
    let next = answer.lines().find_map(|line| line.strip_prefix("location: ")).unwrap();
    let answer = world.ask(format!("GET {next} HTTP/1.1\r\nHost: evil.invalid\r\n\r\n")).await;
    assert_eq!(status(&answer), 403);
}

#[tokio::test]
async fn methods_and_paths_hold_on_plain_http() {
    let origin = Origin::http(says("x")).await;
    let port = origin.port;
    let narrow = EgressRule {
        methods: vec!["GET".to_owned()],
        paths: vec!["/v1/items".to_owned()],
        ..rule("allowed.test", port)
    };
    let world = World::new(vec![narrow]).await;
    let ask = async |method: &str, path: &str, headers: &str| {
        let request = format!(
            "{method} http://allowed.test:{port}{path} HTTP/1.1\r\nHost: allowed.test:{port}\r\n{headers}\r\n"
        );
        status(&world.ask(request).await)
    };
    for path in ["/v1/items", "/v1/items?x=..", "/v1/items/7", "/v1/items/"] {
        assert_eq!(ask("GET", path, "").await, 200, "{path}");
    }
    for path in [
        "/",
        "/v1/itemsx",
        "/v1/items/../keys",
        "/v1/items/%2e%2e/keys",
        "/v1/items/..%2fkeys",
        "/v1/items/%252e%252e/keys",
        "/v1/items\\..\\keys",
        "//v1/items",
        "/V1/items",
        "?/v1/items",
    ] {
        assert_eq!(ask("GET", path, "").await, 403, "{path}");
    }
    assert_eq!(ask("DELETE", "/v1/items", "").await, 403);
    assert_eq!(ask("GET", "/v1/items", "X-HTTP-Method-Override: DELETE\r\n").await, 403);
    assert_eq!(ask("GET", "/v1/items", "X-Original-URL: /v1/keys\r\n").await, 403);
    assert_eq!(origin.seen().len(), 4);
}

#[tokio::test]
async fn upgrades_are_refused() {
    let origin = Origin::http(says("x")).await;
    let port = origin.port;
    let world = World::new(vec![rule("allowed.test", port)]).await;
    let answer = world
        .ask(format!(
            "GET http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test:{port}\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        ))
        .await;
    assert!(status(&answer) == 403 && answer.contains("WebSocket"), "{answer}");
    assert_eq!(origin.seen().len(), 0);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_no_whole_body() {
    let origin = Origin::http(says("x")).await;
    let port = origin.port;
    let world = World::new(vec![rule("allowed.test", port)]).await;
    for body in ["Content-Length: 10\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"]
    {
        let mut stream = world.dial().await;
        let request = format!(
            "POST http://allowed.test:{port}/ HTTP/1.1\r\nHost: allowed.test:{port}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(status(&rest(&mut stream).await), 400);
    }
    assert_eq!(origin.seen().len(), 0);
}
