//! What a rule may say, and what its names and paths mean. The broker and the public API ask here,
//! so that what the API took is what the broker understands.

use std::net::IpAddr;

use super::EgressRule;
use crate::limits::egress::{PATH_CHARS_MAX, RULE_ITEMS_MAX};

/// What is wrong with a rule, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFault {
    /// Within the rule: `host`, `ports[1]`, `secrets[0].variable`.
    pub field: String,
    pub why: String,
}

impl EgressRule {
    /// A rule for `host`: every method and path, on the ports of the web.
    pub fn for_host(host: impl Into<String>) -> Self {
        Self { host: host.into(), ..Self::default() }
    }

    /// Whether the broker can hold the rule.
    ///
    /// # Errors
    /// The first field that it cannot.
    pub fn check(&self) -> Result<(), RuleFault> {
        host_pattern(&self.host).map_err(|why| fault("host", why))?;
        let counts = [
            ("ports", self.ports.len()),
            ("methods", self.methods.len()),
            ("paths", self.paths.len()),
            ("secrets", self.secrets.len()),
        ];
        if let Some((field, count)) = counts.into_iter().find(|(_, count)| *count > RULE_ITEMS_MAX)
        {
            let why = format!("has {count} entries, at most {RULE_ITEMS_MAX} are allowed");
            return Err(fault(field, why));
        }
        if let Some(at) = self.ports.iter().position(|port| *port == 0) {
            return Err(fault(format!("ports[{at}]"), "must be from 1 to 65535"));
        }
        for (at, method) in self.methods.iter().enumerate() {
            let plain = !method.is_empty()
                && method.len() <= 32
                && method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
            if !plain || ["CONNECT", "TRACE"].contains(&method.as_str()) {
                let why = "must be an HTTP method in upper case, and not CONNECT or TRACE";
                return Err(fault(format!("methods[{at}]"), why));
            }
        }
        for (at, path) in self.paths.iter().enumerate() {
            prefix(path).map_err(|why| fault(format!("paths[{at}]"), why))?;
        }
        for (at, secret) in self.secrets.iter().enumerate() {
            variable(&secret.variable)
                .map_err(|why| fault(format!("secrets[{at}].variable"), why))?;
            secret_name(&secret.secret)
                .map_err(|why| fault(format!("secrets[{at}].secret"), why))?;
        }
        Ok(())
    }

    /// Whether the broker has to read the requests to hold this rule.
    pub fn reads_requests(&self) -> bool {
        !(self.methods.is_empty() && self.paths.is_empty() && self.secrets.is_empty())
    }
}

fn fault(field: impl Into<String>, why: impl Into<String>) -> RuleFault {
    RuleFault { field: field.into(), why: why.into() }
}

/// A name, a name behind `*.`, or an address.
fn host_pattern(host: &str) -> Result<(), &'static str> {
    if host.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let name = host.strip_prefix("*.").unwrap_or(host);
    match normal_name(name) {
        Ok(normal) if normal == name => Ok(()),
        Ok(_) => Err("must be in lower case and without a dot at its end"),
        Err(_) if host == "*" => {
            Err("must name a host; for every host use unrestricted networking")
        }
        Err(why) => Err(why),
    }
}

/// The one spelling of a host's name: lower case, without a dot at its end.
///
/// Only letters, digits and hyphens in labels of 1 to 63, 253 characters in all (RFC 1035, RFC 1123).
/// Names in other scripts come in their `xn--` form. A name whose last label is a number is refused,
/// because resolvers read such names as addresses (WHATWG URL, "ends in a number").
///
/// # Errors
/// What is wrong with it.
pub fn normal_name(text: &str) -> Result<String, &'static str> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() {
        return Err("must not be empty");
    }
    if name.len() > 253 {
        return Err("must have at most 253 characters");
    }
    let mut last = "";
    for label in name.split('.') {
        if label.is_empty() || label.len() > 63 {
            return Err("must have labels of 1 to 63 characters between its dots");
        }
        if !label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err("must have letters, digits, hyphens and dots only, and no scheme or path");
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err("must not have a hyphen at either end of a label");
        }
        last = label;
    }
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let number = last.bytes().all(|b| b.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    if number {
        return Err("must not end in a number; addresses are four decimal numbers or IPv6");
    }
    Ok(name.to_ascii_lowercase())
}

fn prefix(path: &str) -> Result<(), &'static str> {
    if !path.starts_with('/') {
        return Err("must begin with a slash");
    }
    if path.len() > PATH_CHARS_MAX {
        return Err("is too long");
    }
    if path.contains(['?', '#', '*']) {
        return Err("must be the beginning of a path, without a query and without wildcards");
    }
    if !path.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("must be plain ASCII; other characters are percent-encoded");
    }
    path_fault(path).map_or(Ok(()), Err)
}

/// Why `path` cannot be compared with a rule's beginnings: servers would not agree on what it names.
pub fn path_fault(path: &str) -> Option<&'static str> {
    if !path.starts_with('/') {
        return Some("does not begin with a slash");
    }
    if path.contains('\\') {
        return Some("has a backslash");
    }
    // `..;x` is `..` for servers that know path parameters.
    let dots = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
    if path.split('/').any(dots) {
        return Some("has a segment of dots");
    }
    let bytes = path.as_bytes();
    for (at, _) in path.match_indices('%') {
        let digits = bytes.get(at + 1..at + 3).map(<[u8]>::to_ascii_lowercase);
        match digits.as_deref() {
            Some([high, low]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {}
            Some(_) | None => return Some("has a broken percent-encoding"),
        }
        // A zero byte, a percent sign (a second decoding), a dot, a slash, a backslash.
        if matches!(digits.as_deref(), Some(b"00" | b"25" | b"2e" | b"2f" | b"5c")) {
            return Some("has an encoded dot, slash, backslash or percent sign");
        }
    }
    None
}

/// Whether `path`, without its query, is `beginning` or stands below it, at whole segments.
pub fn is_below(path: &str, beginning: &str) -> bool {
    path.strip_prefix(beginning)
        .is_some_and(|rest| rest.is_empty() || beginning.ends_with('/') || rest.starts_with('/'))
}

/// Variables that would change how programs inside run, or that the broker sets itself.
const TAKEN_VARIABLES: &[&str] = &["PATH", "HOME", "IFS", "ENV", "BASH_ENV", "SHELL"];

fn variable(name: &str) -> Result<(), &'static str> {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let plain = name.starts_with(first)
        && name.len() <= 128
        && name.chars().all(|c| first(c) || c.is_ascii_digit());
    if !plain {
        return Err("must be a name of letters, digits and underscores");
    }
    let upper = name.to_ascii_uppercase();
    let taken = TAKEN_VARIABLES.contains(&upper.as_str())
        || upper.starts_with("LD_")
        || upper.ends_with("_PROXY");
    if taken { Err("must not be a variable that the sandbox itself needs") } else { Ok(()) }
}

/// Names are looked up in files and in services: nothing in one may lead anywhere else.
fn secret_name(name: &str) -> Result<(), &'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(plain) {
        return Err("must be a name of letters, digits, hyphens, underscores and dots");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::EgressSecret, *};

    #[track_caller]
    fn check(rule: &EgressRule, expect: Result<(), &str>) {
        let found = rule.check().map_err(|fault| fault.field);
        assert_eq!(found.as_ref().map_err(String::as_str).copied(), expect, "{rule:?}");
    }

    #[test]
    fn hosts_are_names_suffixes_or_addresses() {
        for host in
            ["a", "example.com", "*.example.com", "xn--bcher-kva.example", "192.0.2.7", "::1"]
        {
            check(&EgressRule::for_host(host), Ok(()));
        }
        let long = format!("{}.com", "a.".repeat(130));
        for host in [
            "",
            ".",
            "*",
            "*.",
            "a..b",
            "Example.com",
            "a.com.",
            "-a.com",
            "a-.com",
            "a_b.com",
            "http://a.com",
            "a.com/x",
            "a.com:80",
            "*.*.com",
            "a*.com",
            "1.2.3",
            "0x7f.1",
            "a.0x1f",
            "2130706433",
            "010.0.0.1",
            "bücher.example",
            "a b",
            "u@a.com",
            "%61.com",
            &long,
        ] {
            check(&EgressRule::for_host(host), Err("host"));
        }
    }

    #[test]
    fn every_field_is_checked_and_named() {
        let rule = |change: fn(&mut EgressRule)| {
            let mut rule = EgressRule::for_host("a.com");
            change(&mut rule);
            rule
        };
        check(&rule(|r| r.ports = vec![443, 0]), Err("ports[1]"));
        check(&rule(|r| r.ports = vec![1; 33]), Err("ports"));
        for method in ["get", "", "CONNECT", "TRACE", "G T"] {
            let mut wrong = rule(|_| {});
            wrong.methods = vec!["GET".to_owned(), method.to_owned()];
            check(&wrong, Err("methods[1]"));
        }
        for path in ["", "x", "/a/../b", "/a/%2e%2e", "/a?b", "/a*", "/ä", "/a%2", "/a/..;x/b"] {
            let mut wrong = rule(|_| {});
            wrong.paths = vec![path.to_owned()];
            check(&wrong, Err("paths[0]"));
        }
        for name in ["", "1A", "A-B", "A=B", "PATH", "LD_PRELOAD", "https_proxy"] {
            let mut wrong = rule(|_| {});
            let secret = "s".to_owned();
            wrong.secrets = vec![EgressSecret { variable: name.to_owned(), secret }];
            check(&wrong, Err("secrets[0].variable"));
        }
        for name in ["", " ", "../key", "a/b", ".key", "a b", "k\u{e9}y"] {
            let secret = EgressSecret { variable: "TOKEN".to_owned(), secret: name.to_owned() };
            check(&EgressRule { secrets: vec![secret], ..rule(|_| {}) }, Err("secrets[0].secret"));
        }
        let secret =
            EgressSecret { variable: "TOKEN".to_owned(), secret: "github.token-1".to_owned() };
        check(&EgressRule { secrets: vec![secret], ..rule(|_| {}) }, Ok(()));
    }

    #[test]
    fn paths_are_compared_at_whole_segments() {
        assert!(is_below("/a", "/a") && is_below("/a/b", "/a") && is_below("/a/", "/a"));
        assert!(is_below("/a/b", "/a/") && is_below("/x", "/"));
        assert!(!is_below("/ab", "/a") && !is_below("/a", "/a/") && !is_below("/", "/a"));
        assert!(!is_below("/A", "/a"));
    }

    #[test]
    fn ambiguous_paths_are_seen() {
        for path in [
            "/a/../b",
            "/..",
            "/./a",
            "/a/..;p=1/b",
            "/a\\b",
            "/%2E%2e/a",
            "/a%2fb",
            "/a%5Cb",
            "/%252e",
            "/a%00",
            "/a%",
            "/a%g0",
            "/a%2",
            "x",
            "",
        ] {
            assert!(path_fault(path).is_some(), "{path}");
        }
        for path in ["/", "/a.b/..c/...", "/a%20b", "//a", "/a;v=1/b", "/a/b~c"] {
            assert_eq!(path_fault(path), None, "{path}");
        }
    }

    #[test]
    fn the_registries_are_good_rules() {
        for host in super::super::REGISTRY_HOSTS {
            check(&EgressRule::for_host(*host), Ok(()));
        }
    }
}
