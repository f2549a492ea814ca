//! Requests for `http://` URLs: one a connection, so that no second one can hide behind the first.

use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::{
    authority::{Authority, Host},
    broker::Shared,
    exchange::{Place, exchange},
    head::Head,
    meter::Meter,
    refusal::Refusal,
    request::{Scheme, Target},
    stream::{Inbound, last_words},
};

/// The parts of an absolute `http` URL.
pub(crate) struct Url {
    pub(crate) host: Host,
    pub(crate) port: u16,
    /// The path with its query.
    pub(crate) rest: String,
}

pub(crate) fn url(target: &str) -> Result<Url, Refusal> {
    let wrong = |why: &str| Err(Refusal::malformed(why));
    let (scheme, rest) = match target.split_once("://") {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None if target.starts_with('/') || target == "*" => {
            return wrong("this is a proxy, requests name the whole URL");
        }
        None => return wrong("the target is no URL"),
    };
    match scheme.as_str() {
        "http" => {}
        "https" => return wrong("https is reached with CONNECT"),
        _ => return wrong("only http and https are spoken here"),
    }
    if rest.contains('#') {
        return wrong("the target has a fragment");
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let authority = Authority::parse(&rest[..end]).map_err(Refusal::malformed)?;
    let rest = &rest[end..];
    let rest = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
    Ok(Url { host: authority.host, port: authority.port.unwrap_or(80), rest })
}

pub(crate) async fn serve(
    shared: &Shared,
    meter: &Meter,
    head: &Head,
    url: Url,
    mut inbound: Inbound<OwnedReadHalf>,
    mut out: OwnedWriteHalf,
) {
    let Url { host, port, rest } = url;
    let target = Target { host: &host, port, scheme: Scheme::Http };
    let place = Place { shared, meter, target };
    exchange(&place, head, &rest, &mut inbound, &mut out, &mut None).await;
    last_words(b"", &mut inbound, &mut out).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_urls_are_read() {
        let spelt =
            |target: &str| url(target).map(|url| format!("{} {} {}", url.host, url.port, url.rest));
        for (target, expect) in [
            ("http://a.test/", "a.test 80 /"),
            ("HTTP://A.test:8080/x?y=http://b/", "a.test 8080 /x?y=http://b/"),
            ("http://a.test", "a.test 80 /"),
            ("http://a.test?q", "a.test 80 /?q"),
            ("http://[::1]:80/x", "[::1] 80 /x"),
        ] {
            assert_eq!(spelt(target).unwrap(), expect);
        }
        for target in [
            "/",
            "*",
            "a.test:80",
            "a.test",
            "https://a.test/",
            "file:///etc/passwd",
            "ftp://a.test/",
            "gopher://127.0.0.1:22/",
            "http:///x",
            "http://u@a.test/",
            "http://a.test#@b.test/",
            "http://a.test\\@b.test/",
            "http:/a.test/",
            "http://",
            "http://%65vil.test/",
            "http://a.test/#f",
            "http://2852039166/",
            "http://0xa9fea9fe/",
            "unix:///x",
        ] {
            assert!(spelt(target).is_err(), "{target}");
        }
    }
}
