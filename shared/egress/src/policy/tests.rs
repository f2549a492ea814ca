use tailstep_core::egress::EgressSecret;

use super::*;
use crate::authority::Authority;

fn limited(rules: Vec<EgressRule>) -> Policy {
    let secrets = [("api-key".to_owned(), Secret::new("sk-0123456789"))].into();
    Policy::new(&Networking::Limited { rules, package_managers: false }, &secrets).unwrap()
}

fn host(text: &str) -> Host {
    Authority::parse(text).unwrap().host
}

#[track_caller]
fn tunnel(policy: &Policy, name: &str, port: u16, expect: &str) {
    let found = match policy.tunnel(&host(name), port) {
        Ok(Way::Blind { .. }) => "blind",
        Ok(Way::Read) => "read",
        Err(_) => "refused",
    };
    assert_eq!(found, expect, "{name}:{port}");
}

#[track_caller]
fn request(policy: &Policy, method: &str, name: &str, path: &str, expect: Result<usize, &str>) {
    let host = host(name);
    let asked = Asked { host: &host, port: 443, method, path };
    match (policy.request(&asked), expect) {
        (Ok(grant), Ok(secrets)) => assert_eq!(grant.secrets.len(), secrets),
        (Err(refusal), Err(part)) => assert!(refusal.why.contains(part), "{}", refusal.why),
        (found, expect) => panic!("{method} {name}{path}: {found:?}, not {expect:?}"),
    }
}

#[test]
fn nothing_is_allowed_by_default() {
    let nothing = [
        Policy::default(),
        Policy::deny_all(),
        Policy::new(&Networking::None, &BTreeMap::new()).unwrap(),
        limited(Vec::new()),
    ];
    for policy in nothing {
        tunnel(&policy, "example.com", 443, "refused");
        request(&policy, "GET", "example.com", "/", Err("environment"));
    }
}

#[test]
fn unrestricted_is_the_ports_of_the_web() {
    let policy = Policy::new(&Networking::Unrestricted, &BTreeMap::new()).unwrap();
    tunnel(&policy, "example.com", 443, "blind");
    tunnel(&policy, "example.com", 80, "blind");
    tunnel(&policy, "1.1.1.1", 443, "blind");
    tunnel(&policy, "example.com", 22, "refused");
    request(&policy, "GET", "example.com", "/", Ok(0));
}

#[test]
fn names_match_whole_and_suffixes_at_dots() {
    let policy = limited(vec![
        EgressRule::for_host("allowed.test"),
        EgressRule::for_host("*.below.test"),
        EgressRule::for_host("192.0.2.7"),
        EgressRule::for_host("2001:db8::7"),
        EgressRule { ports: vec![8443], ..EgressRule::for_host("port.test") },
    ]);
    for name in ["allowed.test", "ALLOWED.test.", "a.below.test", "a.b.below.test", "192.0.2.7"] {
        tunnel(&policy, name, 443, "blind");
    }
    tunnel(&policy, "[2001:db8:0::7]", 443, "blind");
    tunnel(&policy, "port.test", 8443, "blind");
    for name in [
        "evil.test",
        "evil-allowed.test",
        "allowed.test.evil.test",
        "a.allowed.test",
        "below.test",
        "xbelow.test",
        "192.0.2.8",
        "[::ffff:192.0.2.7]",
        "test",
    ] {
        tunnel(&policy, name, 443, "refused");
    }
    tunnel(&policy, "allowed.test", 25, "refused");
    tunnel(&policy, "port.test", 443, "refused");
}

#[test]
fn rules_add_up() {
    let narrow = EgressRule {
        methods: vec!["GET".to_owned()],
        paths: vec!["/v1/read".to_owned()],
        ..EgressRule::for_host("api.test")
    };
    let write = EgressRule {
        methods: vec!["POST".to_owned()],
        paths: vec!["/v1/write".to_owned()],
        secrets: vec![EgressSecret { variable: "KEY".to_owned(), secret: "api-key".to_owned() }],
        ..EgressRule::for_host("api.test")
    };
    let policy = limited(vec![narrow.clone(), write.clone()]);
    tunnel(&policy, "api.test", 443, "read");
    request(&policy, "GET", "api.test", "/v1/read/x", Ok(0));
    request(&policy, "POST", "api.test", "/v1/write", Ok(1));
    request(&policy, "POST", "api.test", "/v1/read", Err("POST /v1/read at api.test"));
    request(&policy, "PUT", "api.test", "/v1/read", Err("the method PUT"));
    request(&policy, "GET", "api.test", "/v1/reader", Err("GET /v1/reader"));
    request(&policy, "GET", "api.test", "/v1/read/../write", Err("segment of dots"));
    request(&policy, "GET", "api.test", "/v1/read/%2e%2e/x", Err("encoded dot"));

    let open = EgressRule::for_host("*.test");
    tunnel(&limited(vec![narrow.clone(), open.clone()]), "api.test", 443, "blind");
    // A secret has to be put in, so the requests are read although all are allowed.
    let policy = limited(vec![write, open]);
    tunnel(&policy, "api.test", 443, "read");
    request(&policy, "GET", "api.test", "/v1/read/../write", Ok(0));
    request(&policy, "POST", "api.test", "/v1/write", Ok(1));
}

#[test]
fn package_managers_open_the_registries_only() {
    let networking = Networking::Limited { rules: Vec::new(), package_managers: true };
    let policy = Policy::new(&networking, &BTreeMap::new()).unwrap();
    for name in ["pypi.org", "index.rubygems.org", "registry.npmjs.org", "static.crates.io"] {
        tunnel(&policy, name, 443, "blind");
    }
    tunnel(&policy, "archive.ubuntu.com", 80, "blind");
    tunnel(&policy, "github.com", 443, "refused");
}

#[test]
fn what_cannot_be_held_is_refused_when_it_is_made() {
    let make = |rule: EgressRule, value: &str| {
        let secrets = [("api-key".to_owned(), Secret::new(value))].into();
        let networking = Networking::Limited { rules: vec![rule], package_managers: false };
        Policy::new(&networking, &secrets).unwrap_err().to_string()
    };
    let with = |secret: &str| EgressRule {
        secrets: vec![EgressSecret { variable: "KEY".to_owned(), secret: secret.to_owned() }],
        ..EgressRule::for_host("api.test")
    };
    let wrong = make(EgressRule::for_host("*"), "0123456789");
    assert!(wrong.contains("rule 0 (*): host must name a host"), "{wrong}");
    assert!(make(with("other"), "0123456789").contains("no secret named other, which KEY needs"));
    assert!(make(with("api-key"), "a\r\nbcdefgh").contains("the secret api-key"));
    let bound = Secret::new("0123456789").bound_to(["other.test"]);
    let networking = Networking::Limited { rules: vec![with("api-key")], package_managers: false };
    let wrong = Policy::new(&networking, &[("api-key".to_owned(), bound)].into()).unwrap_err();
    assert_eq!(wrong.to_string(), "the secret api-key is bound to other hosts than api.test");
}
