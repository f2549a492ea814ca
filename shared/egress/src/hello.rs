//! The beginning of a TLS connection (RFC 8446 §4.1.2, RFC 6066 §3): the name that the client asks for.

use tailstep_core::limits::egress::HEAD_BYTES_MAX;

/// What a connection's first bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// More bytes are needed.
    More,
    NotTls,
    Hello {
        server_name: Option<String>,
    },
    Broken,
}

/// Records of one greeting. One is usual; more cost time to read again and again.
const RECORDS_MAX: usize = 32;
const HANDSHAKE_RECORD: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// Reads the greeting from the first bytes of a connection.
pub(crate) fn read(bytes: &[u8]) -> Greeting {
    match bytes {
        [] => return Greeting::More,
        [HANDSHAKE_RECORD] => return Greeting::More,
        [HANDSHAKE_RECORD, 3, ..] => {}
        _ => return Greeting::NotTls,
    }
    // A greeting may be spread over several records.
    let mut message = Vec::new();
    let mut rest = bytes;
    for _ in 0..RECORDS_MAX {
        if let [kind, one, two, three, ..] = message.as_slice() {
            let length = u32::from_be_bytes([0, *one, *two, *three]) as usize;
            if *kind != CLIENT_HELLO || length > HEAD_BYTES_MAX {
                return Greeting::Broken;
            }
            if let Some(body) = message.get(4..4 + length) {
                return match server_name(body) {
                    Some(server_name) => Greeting::Hello { server_name },
                    None => Greeting::Broken,
                };
            }
        }
        match rest {
            [HANDSHAKE_RECORD, 3, _, high, low, after @ ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                if length == 0 || message.len() + length > 2 * HEAD_BYTES_MAX {
                    return Greeting::Broken;
                }
                let Some((part, next)) = after.split_at_checked(length) else {
                    return Greeting::More;
                };
                message.extend_from_slice(part);
                rest = next;
            }
            [] | [HANDSHAKE_RECORD] | [HANDSHAKE_RECORD, 3] => return Greeting::More,
            [HANDSHAKE_RECORD, 3, ..] => return Greeting::More,
            _ => return Greeting::Broken,
        }
    }
    Greeting::Broken
}

/// `None` when the greeting is broken; `Some(None)` when it names nobody.
fn server_name(body: &[u8]) -> Option<Option<String>> {
    let mut body = Bytes(body);
    body.take(2 + 32)?;
    body.vector8()?; // session id
    body.vector16()?; // cipher suites
    body.vector8()?; // compression methods
    if body.0.is_empty() {
        return Some(None);
    }
    let mut extensions = Bytes(body.vector16()?);
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let extension = extensions.vector16()?;
        if kind != SERVER_NAME {
            continue;
        }
        let mut list = Bytes(Bytes(extension).vector16()?);
        let name = match list.take(1)? {
            [HOST_NAME] => std::str::from_utf8(list.vector16()?).ok()?,
            _ => return None,
        };
        // One name, once: servers would differ about which of two counts.
        if !list.0.is_empty() || found.is_some() {
            return None;
        }
        found = Some(name.to_owned());
    }
    Some(found)
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number16(&mut self) -> Option<u16> {
        match self.take(2)? {
            [high, low] => Some(u16::from_be_bytes([*high, *low])),
            _ => None,
        }
    }

    fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(*self.take(1)?.first()?);
        self.take(length)
    }

    fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.number16()?);
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, pki_types::ServerName};

    use super::*;

    /// A real greeting for `name`.
    fn greeting(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    fn hello(name: &str) -> Greeting {
        Greeting::Hello { server_name: Some(name.to_owned()) }
    }

    /// The same message in records of `size` bytes.
    fn in_records(bytes: &[u8], size: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for part in bytes[5..].chunks(size) {
            out.extend_from_slice(&[22, 3, 1]);
            out.extend_from_slice(&u16::try_from(part.len()).unwrap().to_be_bytes());
            out.extend_from_slice(part);
        }
        out
    }

    #[test]
    fn names_are_read_from_real_greetings() {
        let bytes = greeting("a.test");
        assert_eq!(read(&bytes), hello("a.test"));
        for size in [20, 50] {
            assert_eq!(read(&in_records(&bytes, size)), hello("a.test"));
        }
        assert_eq!(read(&in_records(&bytes, 1)), Greeting::Broken);
        assert_eq!(read(&greeting("192.0.2.7")), Greeting::Hello { server_name: None });
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]), Greeting::More, "{end}");
        }
    }

    #[test]
    fn other_protocols_are_told_apart() {
        for bytes in [b"GET / HTTP/1.1".as_slice(), b"SSH-2.0", &[0], &[22, 9], &[21, 3]] {
            assert_eq!(read(bytes), Greeting::NotTls, "{bytes:?}");
        }
        for bytes in [
            &[22, 3, 1, 0, 0][..],
            &[22, 3, 1, 0, 4, 2, 0, 0, 0],
            &[22, 3, 1, 0, 4, 1, 0, 0, 1, 23],
            &[22, 3, 1, 0, 5, 1, 0, 0, 1, 7],
            &[22, 3, 1, 0, 4, 1, 255, 0, 0],
        ] {
            assert_eq!(read(bytes), Greeting::Broken, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn reading_is_total(at in 0usize..300, byte: u8, noise in prop::collection::vec(any::<u8>(), 0..99)) {
            let _ = read(&noise);
            let mut bytes = greeting("a.test");
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = read(&bytes);
        }
    }
}
