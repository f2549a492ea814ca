//! The target of a request: a host and a port, in one spelling.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use tailstep_core::egress::normal_name;

/// A host as a request names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// In lower case, without a dot at its end.
    Name(String),
    Ip(IpAddr),
}

/// `host`, `host:port`, `1.2.3.4:port` or `[v6]:port`. Its `Display` is its one spelling and reads back
/// as itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    pub host: Host,
    pub port: Option<u16>,
}

impl Authority {
    /// Strict: no user information, no percent-encoding, no other script, no second way to write a
    /// number.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(rest) = text.strip_prefix('[') {
            let (inside, rest) =
                rest.split_once(']').ok_or("the target has an unclosed bracket")?;
            let ip = inside.parse::<Ipv6Addr>().map_err(|_| "the target is no IPv6 address")?;
            let port = match rest.strip_prefix(':') {
                Some(port) => Some(parse_port(port)?),
                None if rest.is_empty() => None,
                None => return Err("the target has something behind its bracket"),
            };
            return Ok(Self { host: Host::Ip(ip.into()), port });
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(parse_port(port)?)),
            None => (text, None),
        };
        // The library takes four decimal numbers only: no octal, hexadecimal or short forms.
        let host = match host.parse::<Ipv4Addr>() {
            Ok(ip) => Host::Ip(ip.into()),
            Err(_) => Host::Name(normal_name(host).map_err(|_| "the target is no host name")?),
        };
        Ok(Self { host, port })
    }
}

fn parse_port(text: &str) -> Result<u16, &'static str> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    match text.parse::<u16>() {
        Ok(port) if plain => Ok(port),
        Ok(_) | Err(_) => Err("the target's port is no number from 1 to 65535"),
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Ip(IpAddr::V4(ip)) => write!(f, "{ip}"),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
        }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => write!(f, "{}", self.host),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_spelling() {
        for (text, expect) in [
            ("Example.COM.:443", "example.com:443"),
            ("example.com", "example.com"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::0:1]:80", "[::1]:80"),
            ("[::FFFF:1.2.3.4]", "[::ffff:1.2.3.4]"),
        ] {
            assert_eq!(Authority::parse(text).unwrap().to_string(), expect);
        }
    }

    #[test]
    fn odd_targets_are_refused() {
        let long = format!("{}.invalid:443", "a".repeat(5_000));
        for text in [
            "",
            ":443",
            ".:443",
            "..",
            "a..b:1",
            "a:",
            "a:0",
            "a:080",
            "a:65536",
            "a:99999",
            "a:+80",
            "a:80:80",
            "a: 80",
            "user@a.com",
            "user:pass@a.com:80",
            "a.com/",
            "a.com\0.b.com:443",
            "a.com\r\nX: y",
            "%61.com",
            "2852039166",
            "0251.0376.0251.0376",
            "0xa9fea9fe",
            "127.1",
            "1.2.3",
            "1.2.3.4.",
            "1.2.3.4.5",
            "::1",
            "[::1",
            "[::1]x",
            "[127.0.0.1]",
            "[fe80::1%25eth0]",
            "[]:80",
            "all\u{43e}wed.test:443",
            "a_b.com",
            "a b.com",
            "a.com..",
            "localhost\t",
            &long,
        ] {
            assert!(Authority::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn parsing_is_total_and_stable(text in "\\PC{0,40}|[a-z0-9.:@%\\[\\]-]{0,40}|[a-c.]{1,9}(:[0-9]{1,5})?") {
            if let Ok(read) = Authority::parse(&text) {
                let spelt = read.to_string();
                prop_assert!(spelt.is_ascii());
                prop_assert_eq!(Authority::parse(&spelt).unwrap(), read);
            }
        }
    }
}
