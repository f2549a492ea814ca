//! Refusals, keys and time, against the strict stub.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests fail by panicking")]

mod common;

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use common::{KEY, Keys, config, request, router, user};
use tailstep_core::model::{FailureKind, ModelFailure};
use tailstep_model::{
    Config, Router,
    strict::{Reply, Stub},
};
use tailstep_runtime::ports::Model;

const MODELS: [&str; 2] = ["claude-test-1", "openai/test-1"];

async fn fail(router: &Router, model: &str) -> ModelFailure {
    router.call(&request(model, vec![user("hi")])).await.unwrap_err()
}

#[tokio::test]
async fn every_refusal() {
    use FailureKind::{Credentials, Overloaded, RateLimited, Rejected};
    let stub = Stub::start().await.unwrap();
    let router = router(&stub);
    let error = Reply::error;
    for model in MODELS {
        for (reply, kind, wait_ms) in [
            (
                error(429, "rate_limit_error", "m").header("retry-after", "171"),
                RateLimited,
                Some(171_000),
            ),
            (
                error(429, "rate_limit_error", "m")
                    .header("date", "Sun, 06 Nov 1994 08:49:07 GMT")
                    .header("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"),
                RateLimited,
                Some(30_000),
            ),
            (error(429, "rate_limit_error", "m"), RateLimited, None),
            (error(429, "rate_limit_error", "m").header("retry-after", "0"), RateLimited, Some(0)),
            (
                error(429, "rate_limit_error", "monthly limit, resets in 16 days")
                    .header("retry-after", "1382400"),
                RateLimited,
                Some(1_382_400_000),
            ),
            (error(429, "insufficient_quota", "m"), Credentials, None),
            (error(529, "overloaded_error", "m"), Overloaded, None),
            (error(503, "api_error", "m").header("retry-after", "7"), Overloaded, Some(7_000)),
            (error(500, "api_error", "m"), Overloaded, None),
            (error(400, "invalid_request_error", "m"), Rejected, None),
            (error(404, "not_found_error", "m"), Rejected, None),
            (error(413, "request_too_large", "m"), Rejected, None),
            (error(403, "permission_error", "m"), Credentials, None),
            (error(402, "billing_error", "m"), Credentials, None),
        ] {
            stub.push(reply.clone());
            let failed = fail(&router, model).await;
            assert_eq!((failed.kind, failed.retry_after_ms), (kind, wait_ms), "{reply:?}");
            assert!(failed.message.contains(": m"), "{}", failed.message);
        }
    }
    assert!(stub.requests().iter().all(|request| request.fault.is_none()));
    assert_eq!(stub.requests().len(), 28, "a call is tried once");
}

#[tokio::test]
async fn answers_of_something_else() {
    let stub = Stub::start().await.unwrap();
    let router = router(&stub);
    for (reply, kind, message) in [
        (
            Reply::plain(502, "<html>bad gateway</html>").header("content-type", "text/html"),
            FailureKind::Overloaded,
            "anthropic answered 502",
        ),
        (
            Reply::plain(200, "<html>log in</html>").header("content-type", "text/html; x=y"),
            FailureKind::Rejected,
            "anthropic answered text/html instead of an event stream; check \
             TAILSTEP_ANTHROPIC_BASE_URL",
        ),
        (
            Reply::plain(307, "").header("location", "http://127.0.0.1:9/"),
            FailureKind::Rejected,
            "anthropic answered 307",
        ),
        (
            Reply::stream("data: {\"type\":\n\n"),
            FailureKind::Interrupted,
            "anthropic sent an event that makes no sense: EOF while parsing a value at line 1 column 8",
        ),
        (
            Reply::stream(b"data: \xff\xfe\n\n".to_vec()),
            FailureKind::Interrupted,
            "anthropic sent bytes that are not UTF-8",
        ),
    ] {
        stub.push(reply);
        let failed = fail(&router, MODELS[0]).await;
        assert_eq!((failed.kind, failed.message.as_str()), (kind, message));
    }
}

#[tokio::test]
async fn a_refused_key_is_fetched_anew_once() {
    let stub = Stub::start().await.unwrap();
    stub.accept_only("key-new-9876543210");
    for model in MODELS {
        let keys = Keys::rotating(Some(KEY), Some("key-new-9876543210"));
        let router = Router::new(&config(&stub), Arc::clone(&keys) as _).unwrap();
        stub.push(Reply::text("ok"));
        router.call(&request(model, vec![user("hi")])).await.unwrap();
        assert_eq!(keys.refreshed.load(Ordering::SeqCst), 1);
    }
    assert_eq!(stub.requests().len(), 4);

    // The same key again is not worth another try; another wrong one is the last.
    for (fresh, requests) in [(KEY, 1), ("key-wrong-5555555555", 2)] {
        for model in MODELS {
            let before = stub.requests().len();
            let keys = Keys::rotating(Some(KEY), Some(fresh));
            let router = Router::new(&config(&stub), Arc::clone(&keys) as _).unwrap();
            let failed = fail(&router, model).await;
            assert_eq!(failed.kind, FailureKind::Credentials);
            assert_eq!(keys.refreshed.load(Ordering::SeqCst), 1);
            assert_eq!(stub.requests().len() - before, requests);
            let shown = format!("{failed:?}");
            assert!(shown.contains("invalid key: [redacted]"), "{shown}");
            assert!(!shown.contains(KEY) && !shown.contains(fresh), "{shown}");
            assert!(shown.contains("check the secret `"), "{shown}");
        }
    }
}

#[tokio::test]
async fn a_missing_key_is_named() {
    let stub = Stub::start().await.unwrap();
    for key in [None, Some(""), Some(" \n")] {
        let router = Router::new(&config(&stub), Keys::fixed(key)).unwrap();
        let failed = fail(&router, MODELS[0]).await;
        assert_eq!(failed.kind, FailureKind::Credentials);
        assert_eq!(
            failed.message,
            "no key for anthropic: set the secret `anthropic_api_key` (in local mode the variable \
             ANTHROPIC_API_KEY)"
        );
    }
    // A key file that ends with a line break is the usual case; one in the middle cannot be a key.
    let router = Router::new(&config(&stub), Keys::fixed(Some("key\n"))).unwrap();
    stub.push(Reply::text("ok"));
    router.call(&request(MODELS[0], vec![user("hi")])).await.unwrap();
    assert_eq!(stub.requests()[0].header("x-api-key"), Some("key"));
    let router = Router::new(&config(&stub), Keys::fixed(Some("two\nlines"))).unwrap();
    let failed = fail(&router, MODELS[0]).await;
    assert_eq!(failed.kind, FailureKind::Credentials);
    assert_eq!(failed.message, "the secret `anthropic_api_key` has characters that no key has");
}

#[tokio::test]
async fn a_secret_store_that_is_away_is_a_reason_to_wait() {
    let stub = Stub::start().await.unwrap();
    let mut keys = Keys::fixed(Some(KEY));
    Arc::get_mut(&mut keys).unwrap().broken = true;
    let failed = fail(&Router::new(&config(&stub), keys).unwrap(), MODELS[0]).await;
    assert_eq!(failed.kind, FailureKind::Interrupted);
    assert!(!failed.message.contains(KEY) && !failed.message.contains("10.0.0.1"));
}

#[tokio::test]
async fn silence_and_slowness_end_a_call() {
    let stub = Stub::start().await.unwrap();
    let with = |idle_ms, call_ms| {
        let config = Config { idle_ms, call_ms, ..config(&stub) };
        Router::new(&config, Keys::fixed(Some(KEY))).unwrap()
    };
    for model in MODELS {
        for (router, reply, message) in [
            (with(100, 5_000), Reply::text("x").delay_ms(3_000), "was silent for 100 ms"),
            (with(100, 5_000), Reply::text("x").stall_after(60), "was silent for 100 ms"),
            (with(5_000, 100), Reply::text("x").delay_ms(3_000), "was not done within 100 ms"),
            (with(5_000, 100), Reply::text("x").stall_after(60), "was not done within 100 ms"),
        ] {
            stub.push(reply);
            let begun = Instant::now();
            let failed = fail(&router, model).await;
            assert!(begun.elapsed() < Duration::from_millis(2_000), "{:?}", begun.elapsed());
            assert_eq!(failed.kind, FailureKind::Interrupted);
            assert!(failed.message.ends_with(message), "{}", failed.message);
        }
    }
}

#[tokio::test]
async fn dropping_a_call_ends_it() {
    let stub = Stub::start().await.unwrap();
    let router = router(&stub);
    stub.push(Reply::text("x").stall_after(10));
    let asked = request(MODELS[0], vec![user("hi")]);
    let call = tokio::time::timeout(Duration::from_millis(200), router.call(&asked));
    assert!(call.await.is_err());
    // The stub sees the socket close, and is free for the next call.
    stub.push(Reply::text("y"));
    router.call(&asked).await.unwrap();
    assert_eq!(stub.connections(), 2);
}

#[tokio::test]
async fn a_server_that_is_not_there() {
    let gone = Stub::start().await.unwrap();
    let config = config(&gone);
    drop(gone);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let router = Router::new(&config, Keys::fixed(Some(KEY))).unwrap();
    let failed = fail(&router, MODELS[1]).await;
    assert_eq!(failed.kind, FailureKind::Interrupted);
    assert_eq!(
        failed.message,
        "the openai-compatible server cannot be reached: connection refused (check \
         TAILSTEP_OPENAI_BASE_URL)"
    );
}

#[tokio::test]
async fn https_is_spoken_and_certificates_are_checked() {
    // A server that answers a TLS greeting with plain text: the client must have begun with TLS.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let greeting = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut first = [0; 3];
        socket.read_exact(&mut first).await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        first
    });
    let config = Config { anthropic_base_url: format!("https://{address}"), ..Config::default() };
    let router = Router::new(&config, Keys::fixed(Some(KEY))).unwrap();
    let failed = fail(&router, MODELS[0]).await;
    assert_eq!(failed.kind, FailureKind::Interrupted);
    assert!(failed.message.starts_with("anthropic cannot be reached"), "{}", failed.message);
    // A handshake record of TLS 1.x.
    assert_eq!(greeting.await.unwrap()[..2], [0x16, 0x03]);
}

/// A TLS server with a certificate of a private CA, before the stub. Returns its base URL.
async fn private_tls(stub: &Stub, ca_file: &std::path::Path) -> String {
    use tokio_rustls::rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer};
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new([]).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    std::fs::write(ca_file, ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    tailstep_model::tls::install();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key.into())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let behind = stub.anthropic_url().replace("http://", "");
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            // A client that does not trust us breaks the handshake off.
            let Ok(mut socket) = acceptor.accept(socket).await else { continue };
            let mut behind = tokio::net::TcpStream::connect(&behind).await.unwrap();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut socket, &mut behind).await;
            });
        }
    });
    url
}

#[tokio::test]
async fn a_private_ca_is_trusted_when_it_is_named() {
    let stub = Stub::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ca_file = folder.path().join("ca.pem");
    let url = private_tls(&stub, &ca_file).await;
    let with = |extra_roots| {
        let config = Config { anthropic_base_url: url.clone(), extra_roots, ..Config::default() };
        Router::new(&config, Keys::fixed(Some(KEY))).unwrap()
    };
    let failed = fail(&with(None), MODELS[0]).await;
    assert!(failed.message.contains("invalid peer certificate"), "{}", failed.message);
    let failed = fail(&with(Some(folder.path().join("gone.pem"))), MODELS[0]).await;
    assert!(failed.message.contains("invalid peer certificate"), "{}", failed.message);
    stub.push(Reply::text("ok"));
    let trusting = with(Some(ca_file));
    trusting.call(&request(MODELS[0], vec![user("hi")])).await.unwrap();
}

#[tokio::test]
async fn model_ids_lead_where_they_say() {
    let stub = Stub::start().await.unwrap();
    let config = Config { scripted_aliases: vec!["claude-haiku-4-5".into()], ..config(&stub) };
    let router = Router::new(&config, Keys::fixed(None)).unwrap();
    for (model, told) in [
        ("claude-anything", None),
        ("openai/a/b", None),
        ("scripted/echo", None),
        ("claude-haiku-4-5", None),
        ("bedrock/x", Some("has the unknown prefix `bedrock/`")),
        ("/x", Some("has the unknown prefix `/`")),
        ("openai/", Some("names no model after `openai/`")),
        ("scripted/", Some("names no model after `scripted/`")),
        ("", Some("the model id is empty")),
        ("scripted/other", Some("set TAILSTEP_SCRIPT_ROOT")),
    ] {
        let checked = router.check(model);
        match told {
            None => assert_eq!(checked, Ok(()), "{model}"),
            Some(told) => {
                let said = checked.unwrap_err();
                assert!(said.contains(told), "{said}");
                let failed = fail(&router, model).await;
                assert_eq!((failed.kind, failed.message), (FailureKind::Rejected, said));
            }
        }
    }
    // An alias needs no key, because nothing is called; the same id without it does.
    let asked = request("claude-haiku-4-5", vec![user("Reply with exactly this text: A")]);
    router.call(&asked).await.unwrap();
    assert_eq!(stub.requests().len(), 0);
    let plain = Router::new(&self::config(&stub), Keys::fixed(None)).unwrap();
    assert_eq!(fail(&plain, "claude-haiku-4-5").await.kind, FailureKind::Credentials);
}
