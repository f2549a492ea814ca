//! Limits, and clients that are slow on purpose.

use std::time::{Duration, Instant};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::sleep,
};

use crate::{
    origin::{Origin, mirror, says},
    world::{World, policy, rest, rule, status},
};

#[tokio::test]
async fn connections_at_once_are_counted() {
    let port = mirror().await;
    let world =
        World::with(policy(vec![rule("allowed.test", port)]), |c| c.connections_max = 2).await;
    let one = world.connect("allowed.test", port).await.unwrap();
    let _two = world.connect("allowed.test", port).await.unwrap();
    let answer = world.connect("allowed.test", port).await.unwrap_err();
    assert!(status(&answer) == 429 && answer.contains("2 connections at once"), "{answer}");
    assert!(world.decisions()[2].starts_with('-'));
    drop(one);
    sleep(Duration::from_millis(100)).await;
    world.connect("allowed.test", port).await.unwrap();
}

#[tokio::test]
async fn bytes_of_a_connection_are_counted() {
    let port = mirror().await;
    let world = World::with(policy(vec![rule("allowed.test", port)]), |config| {
        config.connection_bytes_max = 1_000;
    })
    .await;
    let mut stream = world.connect("allowed.test", port).await.unwrap();
    stream.write_all(&[b'x'; 1_000]).await.unwrap();
    let mut back = [0; 1_000];
    stream.read_exact(&mut back).await.unwrap();
    stream.write_all(b"x").await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
    assert!(world.decisions()[1].contains("1000 bytes each way"));
}

#[tokio::test]
async fn bytes_of_all_connections_are_counted() {
    let origin = Origin::http(says(&"x".repeat(400))).await;
    let rules = policy(vec![rule("allowed.test", origin.port)]);
    let world = World::with(rules, |config| config.total_bytes_max = 800).await;
    assert_eq!(status(&world.get("allowed.test", origin.port, "/").await), 200);
    let cut = world.get("allowed.test", origin.port, "/").await;
    assert!(cut.len() < 400, "{cut}");
    let answer = world.get("allowed.test", origin.port, "/").await;
    assert!(status(&answer) == 429 && answer.contains("800 bytes in all"), "{answer}");
}

#[tokio::test]
async fn the_rate_is_held() {
    let origin = Origin::http(says(&"x".repeat(150_000))).await;
    let rules = policy(vec![rule("allowed.test", origin.port)]);
    let world = World::with(rules, |config| config.rate_bytes_per_s = 200_000).await;
    let begun = Instant::now();
    assert_eq!(status(&world.get("allowed.test", origin.port, "/").await), 200);
    // 750 ms at this rate, of which a burst takes 250.
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(450), "{took:?}");
}

#[tokio::test]
async fn silence_ends_a_connection() {
    let port = mirror().await;
    let world = World::with(policy(vec![rule("allowed.test", port)]), |c| c.idle_ms = 200).await;
    let mut stream = world.connect("allowed.test", port).await.unwrap();
    for _ in 0..4 {
        sleep(Duration::from_millis(100)).await;
        stream.write_all(b"x").await.unwrap();
    }
    assert_eq!(rest(&mut stream).await, "xxxx");
    assert!(world.decisions()[1].contains("nothing moved for 200 ms"));
    // An origin that never answers.
    let origin = Origin::http(std::sync::Arc::new(|_| Some(Vec::new()))).await;
    world.broker.replace(policy(vec![rule("allowed.test", origin.port)])).unwrap();
    let answer = world.get("allowed.test", origin.port, "/").await;
    assert_eq!(status(&answer), 504, "{answer}");
}

#[tokio::test]
async fn a_head_that_drips_is_given_up() {
    let world = World::with(policy(Vec::new()), |config| config.head_ms = 300).await;
    let mut stream = world.dial().await;
    let begun = Instant::now();
    let (mut from, mut to) = stream.split();
    let drip = async {
        for byte in b"GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nX: ".iter().cycle()
        {
            if to.write_all(&[*byte]).await.is_err() {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let mut answer = String::new();
    tokio::select! {
        () = drip => {}
        text = rest(&mut from) => answer = text,
    }
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert_eq!(status(&answer), 408, "{answer}");
    // One that says nothing at all is closed without a word.
    let mut stream = world.dial().await;
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn a_huge_head_is_refused_before_it_is_read() {
    let world = World::new(Vec::new()).await;
    let huge = format!("GET http://allowed.test/{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    assert_eq!(status(&world.ask(&huge).await), 431);
    let many = "A: b\r\n".repeat(1 << 17);
    let answer = world.ask(format!("GET http://a.test/ HTTP/1.1\r\n{many}\r\n")).await;
    assert_eq!(status(&answer), 431);
}

#[tokio::test]
async fn decisions_are_kept_in_bounds() {
    let world = World::with(policy(Vec::new()), |config| config.decisions_max = 3).await;
    for number in 0..5 {
        world.get(&format!("h{number}.test"), 80, "/").await;
    }
    let (kept, dropped) = world.broker.take_decisions();
    assert_eq!((kept.len(), dropped), (3, 2));
    assert_eq!(kept[0].host, "h0.test");
    assert_eq!(world.broker.take_decisions(), (Vec::new(), 0));
}
