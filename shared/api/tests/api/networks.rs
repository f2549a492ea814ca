//! Environments' networks, and what becomes of them.

use serde_json::{Value, json};
use tailstep_api::{App, HandsFeatures, router};
use tailstep_core::{
    egress::{EgressDecision, EgressRule, EgressSecret, Networking},
    event::{Event, HandsReport},
    ids::SessionKey,
};
use tailstep_runtime::load::read_one;

use crate::bench::{Bench, KEY, calls, says};

fn limited(rest: &Value) -> Value {
    let mut networking = json!({"type": "limited"});
    for (field, value) in rest.as_object().unwrap() {
        networking[field] = value.clone();
    }
    json!({"name": "e", "config": {"type": "cloud", "networking": networking}})
}

/// The networking of a new session in a new environment.
async fn kept(bench: &Bench, environment: &Value) -> Networking {
    let made = bench.post("/v1/environments", environment).await.ok();
    let body = json!({"agent": bench.agent(KEY).await, "environment_id": made["id"]});
    let session = bench.post("/v1/sessions", &body).await.ok();
    let key = SessionKey::new("one", session["id"].as_str().unwrap());
    let first = read_one(bench.log.as_ref(), &key, 1).await.unwrap();
    let Event::Created(created) = &first.events[0] else { panic!("{first:?}") };
    created.environment.networking.clone()
}

#[tokio::test]
async fn limits_are_shown_as_they_were_sent_and_kept_as_rules() {
    let bench = Bench::new().await;
    let rule = json!({
        "host": "api.example.com", "ports": [443], "methods": ["GET"], "paths": ["/v1"],
        "secrets": [{"variable": "KEY", "secret": "api-key"}],
    });
    let hosts = json!(["Example.com", "*.example.org", "example.net:8443"]);
    let environment = limited(&json!({
        "allowed_hosts": hosts, "allow_mcp_servers": false, "allow_package_managers": true,
        "x_rules": [rule],
    }));
    let made = bench.post("/v1/environments", &environment).await.ok();
    let networking = json!({
        "type": "limited", "allowed_hosts": hosts, "allow_mcp_servers": false,
        "allow_package_managers": true, "x_rules": [rule],
    });
    assert_eq!(made["config"]["networking"], networking);
    let path = format!("/v1/environments/{}", made["id"].as_str().unwrap());
    assert_eq!(bench.get(&path).await.ok()["config"]["networking"], networking);

    let secret = EgressSecret { variable: "KEY".to_owned(), secret: "api-key".to_owned() };
    let rules = vec![
        EgressRule::for_host("example.com"),
        EgressRule::for_host("*.example.org"),
        EgressRule { ports: vec![8443], ..EgressRule::for_host("example.net") },
        EgressRule {
            ports: vec![443],
            methods: vec!["GET".to_owned()],
            paths: vec!["/v1".to_owned()],
            secrets: vec![secret],
            ..EgressRule::for_host("api.example.com")
        },
    ];
    let expect = Networking::Limited { rules, package_managers: true };
    assert_eq!(kept(&bench, &environment).await, expect);
}

#[tokio::test]
async fn what_says_nothing_is_unrestricted_and_nothing_listed_is_nothing_allowed() {
    let bench = Bench::new().await;
    for environment in [
        json!({"name": "e"}),
        json!({"name": "e", "config": {"type": "cloud"}}),
        json!({"name": "e", "config": {"type": "cloud", "networking": {"type": "unrestricted"}}}),
    ] {
        assert_eq!(kept(&bench, &environment).await, Networking::Unrestricted);
    }
    let nothing = Networking::Limited { rules: Vec::new(), package_managers: false };
    assert_eq!(kept(&bench, &limited(&json!({}))).await, nothing);
    // Somebody else's hands have somebody else's network.
    let outside = json!({"name": "e", "config": {"type": "self_hosted"}});
    assert_eq!(kept(&bench, &outside).await, Networking::None);
}

#[tokio::test]
async fn an_update_that_does_not_speak_of_the_network_does_not_open_it() {
    let bench = Bench::new().await;
    let made = bench.post("/v1/environments", &limited(&json!({}))).await.ok();
    let path = format!("/v1/environments/{}", made["id"].as_str().unwrap());
    for body in [json!({"name": "n"}), json!({"config": {"type": "cloud"}})] {
        let updated = bench.post(&path, &body).await.ok();
        assert_eq!(updated["config"]["networking"]["type"], "limited", "{body}");
    }
    let open = json!({"config": {"type": "cloud", "networking": {"type": "unrestricted"}}});
    let updated = bench.post(&path, &open).await.ok();
    assert_eq!(updated["config"]["networking"], json!({"type": "unrestricted"}));
}

#[tokio::test]
async fn what_cannot_be_held_is_refused_by_name() {
    let bench = Bench::new().await;
    let cases = [
        (json!({"allowed_hosts": "a.com"}), "config.networking.allowed_hosts: must be an array"),
        (
            json!({"allowed_hosts": ["a.com", 1]}),
            "config.networking.allowed_hosts[1]: must be a string",
        ),
        (json!({"allowed_hosts": ["*"]}), "config.networking.allowed_hosts[0]: must name a host"),
        (
            json!({"allowed_hosts": ["https://a.com"]}),
            "config.networking.allowed_hosts[0]: must have a port",
        ),
        (
            json!({"allowed_hosts": ["a.com/x"]}),
            "config.networking.allowed_hosts[0]: must have letters",
        ),
        (
            json!({"allowed_hosts": ["a.com:0"]}),
            "config.networking.allowed_hosts[0]: must have a port",
        ),
        (
            json!({"allowed_hosts": ["0x7f.1"]}),
            "config.networking.allowed_hosts[0]: must not end in a number",
        ),
        (
            json!({"allow_mcp_servers": true}),
            "config.networking.allow_mcp_servers: MCP servers are not supported",
        ),
        (
            json!({"allow_package_managers": 1}),
            "config.networking.allow_package_managers: must be true or false",
        ),
        (json!({"hosts": []}), "config.networking.hosts: unknown field"),
        (json!({"x_rules": [{}]}), "config.networking.x_rules[0].host: is required"),
        (
            json!({"x_rules": [{"host": "A.com"}]}),
            "config.networking.x_rules[0].host: must be in lower case",
        ),
        (
            json!({"x_rules": [{"host": "a.com", "ports": [0]}]}),
            "config.networking.x_rules[0].ports[0]: must be",
        ),
        (
            json!({"x_rules": [{"host": "a.com", "ports": ["80"]}]}),
            "config.networking.x_rules[0].ports: must be",
        ),
        (
            json!({"x_rules": [{"host": "a.com", "methods": ["get"]}]}),
            "config.networking.x_rules[0].methods[0]: must be",
        ),
        (
            json!({"x_rules": [{"host": "a.com", "paths": ["/a/../b"]}]}),
            "config.networking.x_rules[0].paths[0]: has a segment",
        ),
        (
            json!({"x_rules": [{"host": "a.com", "secrets": [{"variable": "A-B", "secret": "s"}]}]}),
            "config.networking.x_rules[0].secrets[0].variable: must be a name",
        ),
        (
            json!({"x_rules": [{"host": "a.com", "secrets": [{"variable": "K"}]}]}),
            "config.networking.x_rules[0].secrets[0].secret: is required",
        ),
        (
            json!({"x_rules": [{"host": "a.com", "scheme": "http"}]}),
            "config.networking.x_rules[0].scheme: unknown field",
        ),
        (
            json!({"allowed_hosts": vec!["a.com"; 201]}),
            "config.networking: has 201 hosts and rules",
        ),
    ];
    for (networking, expect) in cases {
        let got = bench.post("/v1/environments", &limited(&networking)).await;
        let message = got.error(400, "invalid_request_error");
        assert!(message.starts_with(expect), "{networking}: {message}");
    }
}

#[tokio::test]
async fn hands_without_limits_refuse_them() {
    let mut bare = Bench::new().await;
    bare.router = router(App { hands: HandsFeatures::default(), ..bare.app.clone() });
    let got = bare.post("/v1/environments", &limited(&json!({}))).await;
    let message = got.error(400, "invalid_request_error");
    assert_eq!(message, "config.networking.type: limited is not supported by this version");
}

#[tokio::test]
async fn decisions_stand_beside_the_result() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let decision = EgressDecision {
        at_ms: 1_796_000_000_123,
        allowed: false,
        host: "evil.invalid".to_owned(),
        port: 443,
        method: Some("CONNECT".to_owned()),
        path: None,
        why: "evil.invalid is not on the allow-list of this environment".to_owned(),
    };
    let report = HandsReport { egress: vec![decision], egress_dropped: 7, ..Default::default() };
    bench.hands_report(report);
    bench.model_answers([calls("bash"), calls("bash"), says("done")]);
    bench.say(&session, "go").await;
    bench.settle().await;
    let history = bench.history(&session).await;
    let results: Vec<&Value> =
        history.iter().filter(|event| event["type"] == "agent.tool_result").collect();
    assert_eq!(
        results[0]["x_egress"],
        json!([{
            "at": "2026-11-30T00:53:20.123Z",
            "allowed": false,
            "host": "evil.invalid",
            "port": 443,
            "method": "CONNECT",
            "path": null,
            "why": "evil.invalid is not on the allow-list of this environment",
        }])
    );
    assert_eq!(results[0]["x_egress_dropped"], 7);
    let plain = results[1].as_object().unwrap();
    assert!(!plain.contains_key("x_egress") && !plain.contains_key("x_egress_dropped"));
}
