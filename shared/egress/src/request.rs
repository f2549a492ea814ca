//! One request: whether it says one thing only, and what of it goes on.

use tailstep_core::egress::normal_name;

use crate::{
    authority::{Authority, Host},
    head::{Framing, Head},
    policy::Grant,
    refusal::Refusal,
};

pub(crate) type Headers = Vec<(String, Vec<u8>)>;

/// Whose target a request has, and how it is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) host: &'a Host,
    pub(crate) port: u16,
    pub(crate) scheme: Scheme,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Target<'_> {
    pub(crate) fn default_port(&self) -> u16 {
        match self.scheme {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }

    /// The `Host` that the origin gets.
    pub(crate) fn host_header(&self) -> String {
        if self.port == self.default_port() {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Checks that the request's parts agree with each other and with its target.
///
/// The target decides, and a `Host` that says something else is an attempt to be taken for somebody
/// else further on.
pub(crate) fn check(head: &Head, target: &Target<'_>) -> Result<Framing, Refusal> {
    if head.method == "TRACE" {
        return Err(Refusal::malformed("TRACE sends a request's headers back").with_status(405));
    }
    if let Some(host) = head.host()? {
        let said = Authority::parse(host).map_err(Refusal::malformed)?;
        let port = said.port.unwrap_or(target.default_port());
        if said.host != *target.host || port != target.port {
            return Err(Refusal::malformed("the Host header is not the request's target"));
        }
    }
    let upgrades = head.words("upgrade");
    // Servers may ignore the offer of HTTP/2, and so do we; every other one is meant.
    if upgrades.iter().any(|protocol| protocol != "h2c") {
        return Err(Refusal::policy(
            "a connection that is upgraded (a WebSocket) needs a rule without methods, paths and \
             secrets, and CONNECT",
        ));
    }
    if head.words("expect").iter().any(|word| word != "100-continue") {
        return Err(Refusal::malformed("only 100-continue can be expected").with_status(417));
    }
    head.framing()
}

/// Headers between two neighbours (RFC 9110 §7.6.1), and those that the broker writes itself.
const OWN: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that make servers act on another method or path than the request line's.
const OVERRIDES: &[&str] = &[
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-url",
];

/// What of the request's headers goes to the origin.
pub(crate) fn outgoing(head: &Head, grant: &Grant) -> Result<Headers, Refusal> {
    let named = head.words("connection");
    let mut headers = Headers::new();
    for (name, value) in &head.headers {
        if grant.narrowed && OVERRIDES.contains(&name.as_str()) {
            return Err(Refusal::policy(format!(
                "the header {name} would go around the allow-list of this environment"
            )));
        }
        if OWN.contains(&name.as_str()) || named.contains(name) {
            continue;
        }
        // Answers are searched for secrets: they have to be whole, and not compressed.
        if grant.searched
            && ["accept-encoding", "a-im", "range", "if-range"].contains(&name.as_str())
        {
            continue;
        }
        headers.push((name.clone(), value.clone()));
    }
    if grant.searched {
        headers.push(("accept-encoding".to_owned(), b"identity".to_vec()));
    }
    Ok(headers)
}

/// Whether a TLS greeting's name is the target's.
pub(crate) fn same_name(said: &str, host: &Host) -> bool {
    match host {
        Host::Name(name) => normal_name(said).is_ok_and(|said| said == *name),
        Host::Ip(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &str) -> Head {
        Head::parse(format!("{lines}\r\n\r\n").as_bytes()).unwrap()
    }

    fn checked(lines: &str, port: u16, scheme: Scheme) -> Result<Framing, Refusal> {
        let host = Host::Name("a.test".to_owned());
        check(&head(lines), &Target { host: &host, port, scheme })
    }

    #[test]
    fn the_host_is_the_target() {
        let good = [("a.test", 443), ("A.TEST.", 443), ("a.test:443", 443), ("a.test:8443", 8443)];
        for (host, port) in good {
            let lines = format!("GET / HTTP/1.1\r\nHost: {host}");
            assert!(checked(&lines, port, Scheme::Https).is_ok(), "{host}");
        }
        let bad =
            [("b.test", 443), ("a.test:80", 443), ("a.test", 8443), ("", 443), ("u@a.test", 443)];
        for (host, port) in bad {
            let lines = format!("GET / HTTP/1.1\r\nHost: {host}");
            assert!(checked(&lines, port, Scheme::Https).is_err(), "{host}");
        }
        assert!(checked("GET / HTTP/1.1\r\nHost: a.test", 80, Scheme::Http).is_ok());
        assert!(checked("GET / HTTP/1.0", 80, Scheme::Http).is_ok());
    }

    #[test]
    fn upgrades_and_odd_expectations_are_refused() {
        let status = |headers: &str| {
            let lines = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{headers}");
            checked(&lines, 80, Scheme::Http).map_err(|refusal| refusal.status).err()
        };
        assert_eq!(status("Upgrade: websocket\r\nConnection: Upgrade"), Some(403));
        assert_eq!(status("Upgrade: h2c"), None);
        assert_eq!(status("Expect: 100-Continue"), None);
        assert_eq!(status("Expect: cake"), Some(417));
        let trace = checked("TRACE / HTTP/1.1\r\nHost: a.test", 80, Scheme::Http);
        assert_eq!(trace.unwrap_err().status, 405);
    }

    #[test]
    fn only_end_to_end_headers_go_on() {
        let head = head(
            "POST / HTTP/1.1\r\nHost: a.test\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
             Proxy-Authorization: Basic x\r\nTE: trailers\r\nContent-Length: 3\r\nRange: bytes=0-1\r\n\
             Accept-Encoding: gzip\r\nX-HTTP-Method-Override: DELETE\r\nX-Keep: 1",
        );
        let grant = |narrowed, searched| Grant {
            by: String::new(),
            narrowed,
            searched,
            secrets: Vec::new(),
        };
        let names = |grant| -> Vec<String> {
            outgoing(&head, &grant).unwrap().into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(
            names(grant(false, false)),
            ["range", "accept-encoding", "x-http-method-override", "x-keep"]
        );
        let searched = outgoing(&head, &grant(false, true)).unwrap();
        assert!(!searched.iter().any(|(name, _)| name == "range"));
        assert_eq!(searched.last().unwrap().1, b"identity");
        assert!(outgoing(&head, &grant(true, false)).unwrap_err().why.contains("x-http-method"));
    }
}
