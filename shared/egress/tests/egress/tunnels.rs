//! Blind tunnels.

use std::time::Duration;

use tailstep_core::egress::EgressRule;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{sleep, timeout},
};

use crate::{
    origin::{Origin, mirror, says, tls},
    world::{PATIENCE, World, head, policy, rest, rule},
};

#[tokio::test]
async fn tls_passes_through_untouched() {
    let origin = Origin::https("allowed.test", says("from far away")).await;
    let world = World::new(vec![rule("allowed.test", origin.port)]).await;
    let stream = world.connect("allowed.test", origin.port).await.unwrap();
    // The certificate is the origin's own.
    let mut stream = tls(stream, "allowed.test", "").await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n").await.unwrap();
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
    assert_eq!(
        world.decisions(),
        [format!("+ allowed.test:{} CONNECT  rule allowed.test", origin.port)]
    );
}

#[tokio::test]
async fn a_greeting_for_another_name_is_cut() {
    let origin = Origin::https("evil.invalid", says("x")).await;
    let world = World::new(vec![rule("allowed.test", origin.port)]).await;
    let stream = world.connect("allowed.test", origin.port).await.unwrap();
    assert!(tls(stream, "evil.invalid", "").await.is_err());
    sleep(Duration::from_millis(50)).await;
    let decisions = world.decisions();
    assert!(
        decisions[1].starts_with('-') && decisions[1].contains("another name"),
        "{decisions:?}"
    );
    assert_eq!(origin.seen().len(), 0);
}

#[tokio::test]
async fn other_protocols_pass_where_a_rule_names_their_port() {
    let port = mirror().await;
    let world = World::new(vec![rule("allowed.test", port)]).await;
    let mut stream = world.connect("allowed.test", port).await.unwrap();
    let upgrade = b"GET /chat HTTP/1.1\r\nHost: allowed.test\r\nUpgrade: websocket\r\n\r\n";
    stream.write_all(upgrade).await.unwrap();
    stream.shutdown().await.unwrap();
    // The end of one direction does not end the other.
    assert_eq!(rest(&mut stream).await.as_bytes(), upgrade);
}

#[tokio::test]
async fn what_is_sent_right_behind_connect_is_not_lost() {
    let port = mirror().await;
    let world = World::new(vec![rule("allowed.test", port)]).await;
    let mut stream = world.dial().await;
    let both = format!("CONNECT allowed.test:{port} HTTP/1.0\r\n\r\nfirst words");
    stream.write_all(both.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(rest(&mut stream).await.ends_with("\r\n\r\nfirst words"));
}

#[tokio::test]
async fn a_new_policy_cuts_the_tunnels_that_it_forbids() {
    let port = mirror().await;
    let world = World::new(vec![rule("allowed.test", port), rule("other.test", port)]).await;
    let mut cut = world.connect("allowed.test", port).await.unwrap();
    let mut kept = world.connect("other.test", port).await.unwrap();
    let mut buffer = [0; 5];
    for stream in [&mut cut, &mut kept] {
        stream.write_all(b"hello").await.unwrap();
        timeout(PATIENCE, stream.read_exact(&mut buffer)).await.unwrap().unwrap();
    }
    world.decisions();
    world.broker.replace(policy(vec![rule("other.test", port)])).unwrap();
    assert_eq!(rest(&mut cut).await, "");
    kept.write_all(b"still").await.unwrap();
    timeout(PATIENCE, kept.read_exact(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(&buffer, b"still");
    let decisions = world.decisions();
    assert!(decisions.len() == 1 && decisions[0].starts_with("- allowed.test"), "{decisions:?}");
    assert!(world.connect("allowed.test", port).await.is_err());

    // A rule that looks into requests cannot look into a tunnel that is already open.
    let narrow = EgressRule { methods: vec!["GET".to_owned()], ..rule("other.test", port) };
    world.broker.replace(policy(vec![narrow])).unwrap();
    assert_eq!(rest(&mut kept).await, "");
}

#[tokio::test]
async fn tunnels_end_with_the_broker() {
    let port = mirror().await;
    let world = World::new(vec![rule("allowed.test", port)]).await;
    let mut stream = world.connect("allowed.test", port).await.unwrap();
    drop(world);
    assert_eq!(rest(&mut stream).await, "");
}
