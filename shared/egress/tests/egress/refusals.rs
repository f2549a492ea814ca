//! Everything that must not get out, each over a connection of its own.

use tailstep_core::egress::{EgressRule, Networking};
use tailstep_egress::Policy;

use crate::{
    origin::{Origin, says},
    world::{World, policy, rule, status},
};

fn connect(target: &str, host: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

fn get(url: &str, host: &str) -> String {
    format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

#[tokio::test]
async fn what_is_not_plainly_allowed_is_refused() {
    let world = World::new(vec![EgressRule::for_host("allowed.test")]).await;
    let long = format!("{}.invalid:443", "n".repeat(6_000));
    let both =
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n";
    let smuggled = |url: &str, host: &str| format!("POST {url} HTTP/1.1\r\nHost: {host}\r\n{both}");
    let cases: Vec<(&str, String, u16)> = vec![
        // Names that no rule allows.
        ("connect to another name", connect("evil.invalid:443", "evil.invalid:443"), 403),
        ("plain request to another name", get("http://evil.invalid/", "evil.invalid"), 403),
        (
            "allowed name as a prefix",
            connect("allowed.test.evil.invalid:443", "allowed.test.evil.invalid"),
            403,
        ),
        ("allowed name as a suffix", connect("evil-allowed.test:443", "evil-allowed.test"), 403),
        ("a name below the allowed one", connect("sub.allowed.test:443", "sub.allowed.test"), 403),
        ("upper case and a final dot", connect("EVIL.Invalid.:443", "EVIL.Invalid.:443"), 403),
        ("this machine by name", connect("localhost:22", "localhost:22"), 403),
        // One thing in the target, another in the header.
        ("connect, allowed host header", connect("evil.invalid:443", "allowed.test:443"), 400),
        ("plain, allowed host header", get("http://evil.invalid/", "allowed.test"), 400),
        ("plain, other host header", get("http://allowed.test/", "evil.invalid"), 400),
        (
            "two host headers",
            get("http://allowed.test/", "allowed.test\r\nHost: evil.invalid"),
            400,
        ),
        ("no host header", "GET http://allowed.test/ HTTP/1.1\r\n\r\n".to_owned(), 400),
        // Names that two parsers read in two ways.
        ("user information", get("http://allowed.test@evil.invalid/", "evil.invalid"), 400),
        (
            "user information in connect",
            connect("allowed.test@evil.invalid:443", "evil.invalid"),
            400,
        ),
        ("a zero byte", connect("evil.invalid\0.allowed.test:443", "allowed.test"), 400),
        ("a line break", connect("evil.invalid:443\r\nX: allowed.test", "allowed.test"), 400),
        ("percent-encoding", get("http://%65vil.invalid/", "evil.invalid"), 400),
        ("another script", connect("\u{430}llowed.test:443", "allowed.test"), 400),
        ("a fragment", get("http://allowed.test#@evil.invalid/", "allowed.test"), 400),
        ("a backslash", get("http://allowed.test\\@evil.invalid/", "allowed.test"), 400),
        ("no name", connect(":443", "allowed.test"), 400),
        ("only a dot", connect(".:443", "allowed.test"), 400),
        ("two final dots", connect("allowed.test..:443", "allowed.test"), 400),
        ("a very long name", connect(&long, "allowed.test"), 400),
        // Addresses, in all their spellings.
        ("metadata", get("http://169.254.169.254/latest/", "169.254.169.254"), 403),
        ("metadata, decimal", get("http://2852039166/", "2852039166"), 400),
        ("metadata, octal", get("http://0251.0376.0251.0376/", "0251.0376.0251.0376"), 400),
        ("metadata, hexadecimal", get("http://0xa9fea9fe/", "0xa9fea9fe"), 400),
        (
            "metadata, mapped",
            connect("[::ffff:169.254.169.254]:80", "[::ffff:169.254.169.254]:80"),
            403,
        ),
        (
            "metadata, translated",
            connect("[64:ff9b::a9fe:a9fe]:80", "[64:ff9b::a9fe:a9fe]:80"),
            403,
        ),
        ("metadata, IPv6", connect("[fd00:ec2::254]:80", "[fd00:ec2::254]:80"), 403),
        ("loopback", connect("127.0.0.1:22", "127.0.0.1:22"), 403),
        ("loopback, short", connect("127.1:22", "127.1:22"), 400),
        ("loopback, IPv6", connect("[::1]:22", "[::1]:22"), 403),
        ("unspecified", connect("0.0.0.0:22", "0.0.0.0:22"), 403),
        ("private", connect("10.0.0.1:443", "10.0.0.1:443"), 403),
        ("a scope", connect("[fe80::1%25eth0]:80", "allowed.test"), 400),
        // Ports.
        ("another port", connect("allowed.test:25", "allowed.test:25"), 403),
        ("no such port", connect("allowed.test:99999", "allowed.test"), 400),
        ("port zero", connect("allowed.test:0", "allowed.test"), 400),
        ("no port", connect("allowed.test", "allowed.test"), 400),
        // Schemes and forms.
        ("file", get("file:///etc/passwd", "allowed.test"), 400),
        ("gopher", get("gopher://127.0.0.1:22/", "allowed.test"), 400),
        ("ftp", get("ftp://allowed.test/", "allowed.test"), 400),
        ("https without connect", get("https://allowed.test/", "allowed.test"), 400),
        ("a path", get("/", "allowed.test"), 400),
        ("an asterisk", "OPTIONS * HTTP/1.1\r\nHost: allowed.test\r\n\r\n".to_owned(), 400),
        (
            "TRACE",
            "TRACE http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n".to_owned(),
            405,
        ),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 505),
        ("TLS to the proxy", "\u{16}\u{3}\u{1}".to_owned(), 400),
        ("a line break first", "\nGET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("SOCKS", "\u{5}\u{1}\0\n".to_owned(), 400),
        // Bodies of two lengths.
        ("both lengths", smuggled("http://evil.invalid/", "evil.invalid"), 400),
        ("both lengths, allowed", smuggled("http://allowed.test/", "allowed.test"), 400),
        (
            "two lengths",
            get("http://allowed.test/", "allowed.test\r\nContent-Length: 1\r\nContent-Length: 1"),
            400,
        ),
        (
            "connect with a body",
            connect("allowed.test:443", "allowed.test\r\nContent-Length: 3"),
            400,
        ),
        // A second request behind a refused one.
        (
            "relay",
            format!(
                "{}{}",
                connect("evil.invalid:443", "evil.invalid"),
                connect("evil.invalid:443", "allowed.test")
            ),
            403,
        ),
    ];
    for (what, bytes, expect) in &cases {
        let answer = world.ask(bytes).await;
        assert_eq!(status(&answer), *expect, "{what}: {answer}");
        assert_eq!(answer.matches("\ncontent-length: ").count(), 1, "{what}: {answer}");
        let decisions = world.decisions();
        assert!(decisions.len() == 1 && decisions[0].starts_with('-'), "{what}: {decisions:?}");
    }
    // Nothing was even looked up.
    assert_eq!(*world.table.asked.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_refusal_tells_the_model_what_it_is() {
    let world = World::new(vec![EgressRule::for_host("allowed.test")]).await;
    let answer = world.ask(connect("evil.invalid:443", "evil.invalid:443")).await;
    let line = "refused by the sandbox's network policy: evil.invalid is not on the allow-list of this environment";
    assert!(answer.starts_with(&format!("HTTP/1.1 403 {line}\r\n")), "{answer}");
    assert!(answer.ends_with(&format!("\r\n\r\n{line}\n")), "{answer}");
    let decisions = world.decisions();
    assert_eq!(
        decisions,
        ["- evil.invalid:443 CONNECT  evil.invalid is not on the allow-list of this environment"]
    );
}

#[tokio::test]
async fn an_allowed_name_with_a_closed_address_is_refused() {
    let origin = Origin::http(says("inside")).await;
    let names = ["allowed.test", "mixed.test", "six.test", "mapped.test", "meta.test"];
    let rules = names.iter().map(|name| rule(name, origin.port)).collect();
    let world = World::with(policy(rules), |config| config.allow_private.clear()).await;
    world.table.set("mixed.test", &[&["1.1.1.1", "127.0.0.1"]]);
    world.table.set("six.test", &[&["::1"]]);
    world.table.set("mapped.test", &[&["::ffff:127.0.0.1"]]);
    world.table.set("meta.test", &[&["169.254.169.254"]]);
    for name in names {
        let answer = world.get(name, origin.port, "/").await;
        assert_eq!(status(&answer), 403, "{name}: {answer}");
        assert!(answer.contains("has an address that is not public"), "{answer}");
        let answer = world.connect(name, origin.port).await.unwrap_err();
        assert_eq!(status(&answer), 403, "{name}: {answer}");
    }
    assert_eq!(origin.seen().len(), 0);
    assert!(world.decisions().iter().all(|decision| decision.starts_with('-')));
}

#[tokio::test]
async fn an_address_in_a_rule_must_be_public_too() {
    let rules = vec![rule("127.0.0.1", 80), rule("10.0.0.1", 80), rule("::1", 80)];
    let world = World::with(policy(rules), |config| config.allow_private.clear()).await;
    for host in ["127.0.0.1", "10.0.0.1", "[::1]"] {
        let answer = world.connect(host, 80).await.unwrap_err();
        assert!(status(&answer) == 403 && answer.contains("not public"), "{answer}");
    }
}

#[tokio::test]
async fn a_name_that_changes_its_address_is_asked_once_a_connection() {
    let origin = Origin::http(says("first")).await;
    let open = |config: &mut tailstep_egress::Config| {
        config.allow_private = vec![format!("127.0.0.1:{}", origin.port).parse().unwrap()];
    };
    let world = World::with(policy(vec![rule("allowed.test", origin.port)]), open).await;
    world.table.set("allowed.test", &[&["127.0.0.1"], &["127.0.0.2"]]);
    assert!(world.get("allowed.test", origin.port, "/").await.ends_with("first"));
    assert_eq!(world.table.asked.lock().unwrap().len(), 1);
    let answer = world.get("allowed.test", origin.port, "/").await;
    assert_eq!(status(&answer), 403, "{answer}");
    assert_eq!(world.table.asked.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn unrestricted_means_public() {
    let policy = Policy::new(&Networking::Unrestricted, &[].into()).unwrap();
    let world = World::with(policy, |config| config.allow_private.clear()).await;
    for host in ["allowed.test", "127.0.0.1", "169.254.169.254", "[fd00:ec2::254]"] {
        let answer = world.connect(host, 80).await.unwrap_err();
        assert!(status(&answer) == 403 && answer.contains("not public"), "{answer}");
    }
    let answer = world.connect("allowed.test", 22).await.unwrap_err();
    assert!(answer.contains("only 80 and 443 are"), "{answer}");
}

#[tokio::test]
async fn nothing_at_all_without_a_policy() {
    let world = World::with(Policy::default(), |_| {}).await;
    let answer = world.get("allowed.test", 80, "/").await;
    assert!(status(&answer) == 403 && answer.contains("has no network"), "{answer}");
}

#[tokio::test]
async fn origins_that_do_not_answer_are_told_from_policy() {
    let nobody = crate::origin::nobody().await.port();
    let world = World::new(vec![rule("allowed.test", nobody), rule("unknown.test", 80)]).await;
    for (host, port) in [("allowed.test", nobody), ("unknown.test", 80)] {
        let answer = world.get(host, port, "/").await;
        assert_eq!(status(&answer), 502, "{answer}");
        let decision = world.decisions().remove(0);
        assert!(decision.starts_with('+') && decision.contains("allowed, but"), "{decision}");
    }
}
