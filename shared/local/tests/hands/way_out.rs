//! What leaves a sandbox.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tailstep_core::egress::{EgressRule, EgressSecret, Networking};
use tailstep_runtime::{memory::MemorySecrets, ports::Hands};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::{hands, order};

/// Answers every request with what was asked, one line a header; counts them.
async fn echo_server() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, asked) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let count = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && client.read_buf(&mut head).await.unwrap_or(0) > 0
            {
            }
            let key = String::from_utf8_lossy(&head).contains("x-key: the-secret-value");
            let known = if key { "known" } else { "unknown" };
            let body = format!("{known}\n{}", String::from_utf8_lossy(&head));
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = client.write_all(answer.as_bytes()).await;
        }
    });
    (port, asked)
}

pub(crate) async fn the_way_out_is_what_the_environment_says() {
    let data = tempfile::tempdir().unwrap();
    let (port, asked) = echo_server().await;
    let secrets = MemorySecrets::default();
    secrets.set("egress_api", "the-secret-value");
    secrets.set("anthropic_api_key", "never-to-be-had");
    let secrets = Arc::new(secrets);
    let hands = hands(data.path(), |config| {
        config.egress.allow_private = vec![format!("127.0.0.1:{port}").parse().unwrap()];
        config.secrets = secrets;
    });
    let ask = |path: &str| {
        format!(
            "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://127.0.0.1:{port}{path} HTTP/1.1\\r\\n\
             Host: 127.0.0.1:{port}\\r\\nx-key: %s\\r\\n\\r\\n' \"$API_KEY\" >&3; cat <&3"
        )
    };
    let rule = |secret: &str| EgressRule {
        ports: vec![port],
        paths: vec!["/open".to_owned()],
        secrets: vec![EgressSecret { variable: "API_KEY".into(), secret: secret.into() }],
        ..EgressRule::for_host("127.0.0.1")
    };
    let limited = |rule| Networking::Limited { rules: vec![rule], package_managers: false };
    let with = |session: &str, seq, command: &str, networking| {
        let mut order = order(session, seq, command);
        order.environment.networking = networking;
        order
    };
    // Nothing said: there is not even a proxy.
    let reply = hands.execute(&order("none", 1, &ask("/open"))).await.unwrap();
    assert!(reply.is_error && reply.text.contains("refused"), "{}", reply.text);
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    // What a rule allows, with the secret put in outside and taken out of the answer.
    let open = with("some", 1, &ask("/open"), limited(rule("api")));
    let reply = hands.execute(&open).await.unwrap();
    assert!(reply.text.contains("200 OK") && reply.text.contains("known\n"), "{}", reply.text);
    assert!(!reply.text.contains("unknown"), "{}", reply.text);
    assert!(!reply.text.contains("the-secret-value"), "{}", reply.text);
    assert_eq!(reply.report.egress.len(), 1);
    assert!(reply.report.egress[0].allowed && reply.report.egress[0].port == port);
    let inside = with("some", 2, "env; cat /proc/*/environ", limited(rule("api")));
    let inside = hands.execute(&inside).await.unwrap().text;
    assert!(inside.contains("API_KEY=") && !inside.contains("the-secret-value"), "{inside}");
    // What no rule allows.
    let closed = with("some", 3, &ask("/closed"), limited(rule("api")));
    let reply = hands.execute(&closed).await.unwrap();
    assert!(reply.text.contains(" 403 ") && reply.text.contains("policy"), "{}", reply.text);
    assert!(!reply.report.egress[0].allowed, "{:?}", reply.report);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    // The keys of model providers cannot be named.
    let theft = with("thief", 1, &ask("/open"), limited(rule("anthropic_api_key")));
    let error = hands.execute(&theft).await.unwrap_err().to_string();
    assert!(error.contains("anthropic_api_key") && !error.contains("never-to-be"), "{error}");
}
