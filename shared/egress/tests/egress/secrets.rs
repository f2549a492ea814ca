//! Secrets go out in headers, and come back in nothing.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use tailstep_core::egress::EgressRule;
use tokio::io::AsyncWriteExt;

use crate::{
    origin::{Behave, Origin, echo, raw, says},
    read::{get, open},
    world::{VALUE, World, policy, rest, rule, status, with_secret},
};

const HOST: &str = "api.test";

/// An origin, and a broker that gives it the secret.
async fn given(behave: Behave) -> (Origin, World) {
    let origin = Origin::https(HOST, behave).await;
    let world = World::new(vec![with_secret(rule(HOST, origin.port), "KEY", "api-key")]).await;
    (origin, world)
}

/// One request over TLS with the broker; the answer to its end.
async fn ask(world: &World, port: u16, headers: &str) -> String {
    let mut stream = open(world, HOST, port).await;
    let headers = format!("{headers}Connection: close\r\n");
    stream.write_all(get("/", HOST, port, &headers).as_bytes()).await.unwrap();
    rest(&mut stream).await
}

#[tokio::test]
async fn placeholders_become_values_on_the_way_out() {
    let (origin, world) = given(says("ok")).await;
    let key = world.placeholder("KEY");
    assert!(key.starts_with("tailstep-placeholder-") && key.len() == 53, "{key}");
    ask(&world, origin.port, &format!("X-Api-Key: {key}\r\nAuthorization: Bearer {key}\r\n")).await;
    let seen = origin.last();
    assert!(seen.contains(&format!("x-api-key: {VALUE}\r\n")), "{seen}");
    assert!(seen.contains(&format!("authorization: Bearer {VALUE}\r\n")), "{seen}");
    let basic = STANDARD.encode(format!("user:{key}"));
    ask(&world, origin.port, &format!("Authorization: Basic {basic}\r\n")).await;
    let basic = STANDARD.encode(format!("user:{VALUE}"));
    assert!(origin.last().contains(&format!("authorization: Basic {basic}\r\n")));
    // What would keep the answer from being searched does not go out.
    ask(&world, origin.port, "Accept-Encoding: gzip, br\r\nRange: bytes=0-3\r\n").await;
    let seen = origin.last();
    assert!(seen.contains("accept-encoding: identity\r\n") && !seen.contains("gzip"), "{seen}");
    assert!(!seen.contains("range: "), "{seen}");
}

#[tokio::test]
async fn values_do_not_come_back() {
    let (origin, world) = given(echo()).await;
    let key = world.placeholder("KEY");
    let basic = STANDARD.encode(format!("user:{key}"));
    let headers = format!("X-Api-Key: {key}\r\nAuthorization: Basic {basic}\r\n");
    let answer = ask(&world, origin.port, &headers).await;
    assert!(origin.last().contains(VALUE));
    assert!(answer.contains(&format!("x-api-key: {key}\r\n")), "{answer}");
    for form in [VALUE.to_owned(), STANDARD.encode(format!("user:{VALUE}"))] {
        assert!(!answer.contains(&form), "{answer}");
    }
}

#[tokio::test]
async fn values_do_not_come_back_in_other_spellings_or_in_pieces() {
    let percent: String = VALUE.bytes().map(|b| format!("%{b:02X}")).collect();
    let hex: String = VALUE.bytes().map(|b| format!("{b:02x}")).collect();
    let spellings =
        [VALUE.to_owned(), percent, hex, STANDARD.encode(VALUE), VALUE.replace('/', "\\/")];
    for spelling in spellings {
        let head =
            format!("HTTP/1.1 200 OK\r\nX-Echo: {spelling}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut pieces = vec![head.into_bytes()];
        // A chunk, and a TLS record, for each byte.
        let body = format!("before {spelling} after");
        pieces.extend(body.bytes().map(|b| format!("1\r\n{}\r\n", char::from(b)).into_bytes()));
        pieces.push(b"0\r\n\r\n".to_vec());
        let (origin, world) = given(Arc::new(move |_| Some(pieces.clone()))).await;
        let answer = ask(&world, origin.port, "").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let key = world.placeholder("KEY");
        assert!(head.contains(&format!("x-echo: {key}")), "{head}");
        let body = dechunked(body).replace("= after", " after");
        assert_eq!(body, format!("before {key} after"), "{spelling}");
    }
}

fn dechunked(mut body: &str) -> String {
    let mut text = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return text;
        }
        text.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
}

#[tokio::test]
async fn answers_that_cannot_be_searched_are_refused() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\u{1f}\u{8b}..",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\n\r\nsk-l",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ] {
        let (origin, world) = given(raw(answer)).await;
        let answer = ask(&world, origin.port, "").await;
        assert_eq!(status(&answer), 502, "{answer}");
    }
}

#[tokio::test]
async fn a_placeholder_for_somebody_else_is_refused() {
    let (origin, other) = (Origin::https(HOST, says("x")).await, Origin::http(says("x")).await);
    let port = origin.port;
    let world = World::new(vec![
        with_secret(rule(HOST, port), "KEY", "api-key"),
        with_secret(rule("elsewhere.test", 443), "OTHER", "other-key"),
        rule("other.test", other.port),
    ])
    .await;
    let (key, foreign) = (world.placeholder("KEY"), world.placeholder("OTHER"));
    let basic = STANDARD.encode(format!("u:{foreign}"));
    for headers in [format!("X: {foreign}\r\n"), format!("Authorization: Basic {basic}\r\n")] {
        let answer = ask(&world, port, &headers).await;
        assert!(status(&answer) == 403 && answer.contains("placeholder of OTHER"), "{answer}");
    }
    let to_other = |path: &str, header: &str| {
        format!(
            "GET http://other.test:{0}{path} HTTP/1.1\r\nHost: other.test:{0}\r\n{header}\r\n",
            other.port
        )
    };
    for request in [to_other("/", &format!("X: {key}\r\n")), to_other(&format!("/?k={key}"), "")] {
        let answer = world.ask(request).await;
        assert!(status(&answer) == 403 && answer.contains("placeholder of KEY"), "{answer}");
    }
    assert_eq!(origin.seen().len() + other.seen().len(), 0);
    let decisions = world.decisions();
    assert!(decisions.len() == 4 && decisions.iter().all(|d| d.starts_with('-')), "{decisions:?}");
    assert!(!decisions.concat().contains(&key), "{decisions:?}");
}

#[tokio::test]
async fn a_secret_goes_to_its_method_and_path_only() {
    let origin = Origin::https(HOST, says("x")).await;
    let port = origin.port;
    let narrow = EgressRule { paths: vec!["/paid".to_owned()], ..rule(HOST, port) };
    let world = World::new(vec![with_secret(narrow, "KEY", "api-key"), rule(HOST, port)]).await;
    let key = world.placeholder("KEY");
    for (path, expect) in [("/paid/x", 200), ("/free", 403)] {
        let mut stream = open(&world, HOST, port).await;
        let headers = format!("X-Key: {key}\r\nConnection: close\r\n");
        stream.write_all(get(path, HOST, port, &headers).as_bytes()).await.unwrap();
        assert_eq!(status(&rest(&mut stream).await), expect, "{path}");
    }
    assert_eq!(origin.seen().len(), 1);
}

#[tokio::test]
async fn an_operators_own_registry_takes_a_secret_over_plain_http() {
    let origin = Origin::http(echo()).await;
    let port = origin.port;
    let world = World::new(vec![with_secret(rule(HOST, port), "KEY", "api-key")]).await;
    let key = world.placeholder("KEY");
    let request = format!(
        "GET http://{HOST}:{port}/ HTTP/1.1\r\nHost: {HOST}:{port}\r\nX-Key: {key}\r\n\r\n"
    );
    let answer = world.ask(request).await;
    assert!(origin.last().contains(VALUE) && !answer.contains(VALUE) && answer.contains(&key));
}

#[tokio::test]
async fn placeholders_outlive_a_policy_and_old_values_stay_secret() {
    let (origin, world) = given(says(&format!("once it was {VALUE}"))).await;
    let key = world.placeholder("KEY");
    let renewed = with_secret(rule(HOST, origin.port), "KEY", "other-key");
    world.broker.replace(policy(vec![renewed])).unwrap();
    assert_eq!(world.placeholder("KEY"), key);
    let answer = ask(&world, origin.port, &format!("X-Key: {key}\r\n")).await;
    assert!(origin.last().contains("x-key: another-secret-value"), "{}", origin.last());
    assert!(answer.contains(&format!("once it was {key}")), "{answer}");
}

#[tokio::test]
async fn what_programs_inside_are_told() {
    let world = World::new(vec![rule("allowed.test", 443)]).await;
    let names = |world: &World| -> Vec<String> {
        world.broker.environment().into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(
        names(&world),
        [
            "HTTPS_PROXY",
            "HTTP_PROXY",
            "NODE_USE_ENV_PROXY",
            "NO_PROXY",
            "http_proxy",
            "https_proxy",
            "no_proxy"
        ]
    );
    let secret = with_secret(rule(HOST, 443), "KEY", "api-key");
    world.broker.replace(policy(vec![secret])).unwrap();
    let told = names(&world);
    assert!(told.contains(&"SSL_CERT_FILE".to_owned()) && told.contains(&"KEY".to_owned()));
    assert!(!format!("{:?}{:?}", world.broker, world.broker.environment()).contains(VALUE));
    let bundle = world.broker.ca_bundle_pem();
    assert!(bundle.starts_with(world.broker.ca_pem()));
    assert!(bundle.matches("BEGIN CERTIFICATE").count() > 100);
}
