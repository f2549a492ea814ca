//! Tunnels whose requests are read: the broker is the other end of TLS.

use std::time::Duration;

use tailstep_core::egress::EgressRule;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::client::TlsStream;

use crate::{
    origin::{Origin, echo, raw, says, tls},
    world::{PATIENCE, World, head, policy, rest, rule, status},
};

/// Only reading, and only below `/v1`.
fn narrow(host: &str, port: u16) -> EgressRule {
    EgressRule {
        methods: vec!["GET".to_owned(), "HEAD".to_owned()],
        paths: vec!["/v1".to_owned()],
        ..rule(host, port)
    }
}

/// TLS with the broker.
pub(crate) async fn open(world: &World, host: &str, port: u16) -> TlsStream<TcpStream> {
    let stream = world.connect(host, port).await.unwrap();
    tls(stream, host, world.broker.ca_pem()).await.unwrap()
}

pub(crate) fn get(path: &str, host: &str, port: u16, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{headers}\r\n")
}

/// Sends a request and reads the whole answer, whose length is said.
async fn ask(stream: &mut TlsStream<TcpStream>, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = head(stream).await;
    let length = answer.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    timeout(PATIENCE, stream.read_exact(&mut body)).await.unwrap().unwrap();
    answer.push_str(&String::from_utf8(body).unwrap());
    answer
}

#[tokio::test]
async fn each_request_of_a_connection_is_checked() {
    let origin = Origin::https("api.test", echo()).await;
    let port = origin.port;
    let world = World::new(vec![narrow("api.test", port)]).await;
    let mut stream = open(&world, "api.test", port).await;
    for path in ["/v1/a", "/v1/b?x"] {
        let answer = ask(&mut stream, &get(path, "api.test", port, "")).await;
        assert!(answer.contains(&format!("GET {path} HTTP/1.1")), "{answer}");
    }
    let forbidden = format!("DELETE /v1/a HTTP/1.1\r\nHost: api.test:{port}\r\n\r\n");
    let answer = ask(&mut stream, &forbidden).await;
    assert!(status(&answer) == 403 && answer.contains("the method DELETE"), "{answer}");
    assert_eq!(rest(&mut stream).await, "");
    assert_eq!(origin.seen().len(), 2);
    let target = format!("api.test:{port}");
    assert_eq!(
        world.decisions(),
        [
            format!("+ {target} GET /v1/a rule api.test"),
            format!("+ {target} GET /v1/b rule api.test"),
            format!(
                "- {target} DELETE /v1/a the method DELETE for api.test is not on the allow-list of \
                 this environment"
            ),
        ]
    );
}

#[tokio::test]
async fn requests_in_one_piece_are_told_apart() {
    let origin = Origin::https("api.test", says("x")).await;
    let port = origin.port;
    let world = World::new(vec![narrow("api.test", port)]).await;
    let mut stream = open(&world, "api.test", port).await;
    let (good, bad) = (get("/v1", "api.test", port, ""), get("/v2", "api.test", port, ""));
    stream.write_all(format!("{good}{bad}{good}").as_bytes()).await.unwrap();
    let answers = rest(&mut stream).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 1, "{answers}");
    assert!(answers.contains("403 refused") && origin.seen().len() == 1, "{answers}");
}

#[tokio::test]
async fn what_is_not_a_request_for_the_target_is_refused() {
    let origin = Origin::https("api.test", says("x")).await;
    let port = origin.port;
    let open_rule = EgressRule { methods: vec!["GET".to_owned()], ..rule("api.test", port) };
    let world = World::new(vec![open_rule]).await;
    let cases = [
        (get("/", "evil.invalid", port, ""), 400),
        (get("/", "api.test", 1, ""), 400),
        (get("http://evil.invalid/", "evil.invalid", port, ""), 400),
        (format!("CONNECT evil.invalid:443 HTTP/1.1\r\nHost: api.test:{port}\r\n\r\n"), 400),
        (get("/", "api.test", port, "Upgrade: websocket\r\nConnection: upgrade\r\n"), 403),
        (get("/", "api.test", port, "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), 400),
        ("GET /\r\n\r\n".to_owned(), 400),
        ("\0\0\0\n".to_owned(), 400),
    ];
    for (request, expect) in cases {
        let mut stream = open(&world, "api.test", port).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert_eq!(status(&answer), expect, "{request:?}: {answer}");
    }
    assert_eq!(origin.seen().len(), 0);
}

#[tokio::test]
async fn greetings_are_for_the_target_and_in_tls() {
    let origin = Origin::https("api.test", says("x")).await;
    let world = World::new(vec![narrow("api.test", origin.port)]).await;
    let stream = world.connect("api.test", origin.port).await.unwrap();
    assert!(tls(stream, "evil.invalid", world.broker.ca_pem()).await.is_err());
    let mut stream = world.connect("api.test", origin.port).await.unwrap();
    stream.write_all(b"GET /v1 HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(!rest(&mut stream).await.contains("HTTP/1.1 200"));
    // A client that trusts only the public roots, or here the tests' own.
    let stream = world.connect("api.test", origin.port).await.unwrap();
    assert!(tls(stream, "api.test", "").await.is_err());
    sleep(Duration::from_millis(50)).await;
    let decisions = world.decisions();
    for (decision, why) in
        decisions.iter().zip(["another name", "is not TLS", "does the program trust"])
    {
        assert!(decision.starts_with('-') && decision.contains(why), "{decision}");
    }
    assert_eq!(decisions.len(), 3, "{decisions:?}");
}

#[tokio::test]
async fn an_origin_must_show_its_name() {
    // The certificate is for another name.
    let origin = Origin::https("evil.invalid", says("x")).await;
    let world = World::new(vec![narrow("api.test", origin.port)]).await;
    let mut stream = open(&world, "api.test", origin.port).await;
    let answer = ask(&mut stream, &get("/v1", "api.test", origin.port, "")).await;
    assert!(status(&answer) == 502 && answer.contains("TLS with api.test failed"), "{answer}");
    assert_eq!(origin.seen().len(), 0);
}

#[tokio::test]
async fn closed_addresses_stay_closed_behind_tls() {
    let origin = Origin::https("api.test", says("x")).await;
    let world =
        World::with(policy(vec![narrow("api.test", origin.port)]), |c| c.allow_private.clear())
            .await;
    let mut stream = open(&world, "api.test", origin.port).await;
    let answer = ask(&mut stream, &get("/v1", "api.test", origin.port, "")).await;
    assert!(status(&answer) == 403 && answer.contains("not public"), "{answer}");
    assert_eq!(origin.seen().len(), 0);
}

#[tokio::test]
async fn a_new_policy_holds_for_the_next_request() {
    let origin = Origin::https("api.test", says("x")).await;
    let port = origin.port;
    let world = World::new(vec![narrow("api.test", port)]).await;
    let mut stream = open(&world, "api.test", port).await;
    assert_eq!(status(&ask(&mut stream, &get("/v1", "api.test", port, "")).await), 200);
    let other = EgressRule { paths: vec!["/v2".to_owned()], ..rule("api.test", port) };
    world.broker.replace(policy(vec![other])).unwrap();
    assert_eq!(status(&ask(&mut stream, &get("/v2", "api.test", port, "")).await), 200);
    assert_eq!(status(&ask(&mut stream, &get("/v1", "api.test", port, "")).await), 403);
    // And without any rule the connection itself goes.
    let mut stream = open(&world, "api.test", port).await;
    world.broker.replace(policy(Vec::new())).unwrap();
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn a_new_policy_cuts_an_answer_that_is_under_way() {
    // An answer that says more than it sends keeps the exchange open.
    let origin =
        Origin::https("api.test", raw("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nbegun")).await;
    let port = origin.port;
    let world = World::new(vec![narrow("api.test", port)]).await;
    let mut stream = open(&world, "api.test", port).await;
    stream.write_all(get("/v1", "api.test", port, "").as_bytes()).await.unwrap();
    head(&mut stream).await;
    world.broker.replace(policy(Vec::new())).unwrap();
    assert!(!rest(&mut stream).await.contains("403"));
    let decisions = world.decisions();
    assert!(decisions.iter().any(|decision| decision.starts_with('-')), "{decisions:?}");
}
