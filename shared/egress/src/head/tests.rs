use proptest::prelude::*;

use super::*;

fn spelt(head: &Head) -> Vec<u8> {
    let version = match head.version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
    };
    let mut out = format!("{} {} {version}\r\n", head.method, head.target).into_bytes();
    for (name, value) in &head.headers {
        out.extend_from_slice(format!("{name}: ").as_bytes());
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out
}

fn parse(lines: &str) -> Result<Head, Refusal> {
    Head::parse(format!("{lines}\r\n\r\n").as_bytes())
}

#[test]
fn a_head_is_read() {
    let head =
        parse("GET http://a.test/x?y HTTP/1.1\r\nHost: a.test\r\nX-A:\t b \r\nX-a: c").unwrap();
    assert_eq!((head.method.as_str(), head.target.as_str()), ("GET", "http://a.test/x?y"));
    assert_eq!(head.host().unwrap(), Some("a.test"));
    assert_eq!(head.all("x-a").collect::<Vec<_>>(), [b"b", b"c"]);
    assert_eq!(head.framing().unwrap(), Framing::Length(0));
    assert_eq!(parse("CONNECT a:1 HTTP/1.0").unwrap().host().unwrap(), None);
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    for lines in [
        "",
        "GET",
        "GET /",
        "GET  / HTTP/1.1",
        " GET / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "get / HTTP/1.1",
        "GET / HTTP/2.0",
        "GET / HTTP/0.9",
        "GET /\t HTTP/1.1",
        "GET /\0 HTTP/1.1",
        "GET /\u{e9} HTTP/1.1",
        "\r\nGET / HTTP/1.1",
        "GET / HTTP/1.1\nHost: a",
        "GET / HTTP/1.1\rHost: a",
        "GET / HTTP/1.1\r\nHost",
        "GET / HTTP/1.1\r\n: a",
        "GET / HTTP/1.1\r\nHost : a",
        "GET / HTTP/1.1\r\n Host: a",
        "GET / HTTP/1.1\r\nA: b\r\n folded",
        "GET / HTTP/1.1\r\nA: b\0c",
        "GET / HTTP/1.1\r\nA: b\rc",
        "GET / HTTP/1.1\r\nA\u{e9}: b",
    ] {
        assert!(parse(lines).is_err(), "{lines:?}");
    }
    let many = format!("GET / HTTP/1.1{}", "\r\nA: b".repeat(HEADERS_MAX + 1));
    assert_eq!(parse(&many).unwrap_err().status, 431);
}

#[test]
fn hosts_are_one() {
    assert!(parse("GET / HTTP/1.1").unwrap().host().is_err());
    assert!(parse("GET / HTTP/1.1\r\nHost: a\r\nHost: a").unwrap().host().is_err());
}

#[test]
fn lengths_are_one() {
    let framing =
        |headers: &str| parse(&format!("POST / HTTP/1.1\r\n{headers}")).unwrap().framing();
    assert_eq!(framing("Content-Length: 12").unwrap(), Framing::Length(12));
    assert_eq!(framing("Transfer-Encoding: Chunked").unwrap(), Framing::Chunked);
    for headers in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: -1",
        "Content-Length:",
        "Content-Length: 0x5",
        "Content-Length: 5 5",
        "Content-Length: 9999999999999999999",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding:",
    ] {
        assert!(framing(headers).is_err(), "{headers:?}");
    }
    let old = parse("POST / HTTP/1.0\r\nTransfer-Encoding: chunked").unwrap();
    assert!(old.framing().is_err());
}

proptest! {
    #[test]
    fn reading_is_total_and_stable(
        line in "[A-Z]{0,4} [!-~]{0,9} HTTP/1.[01]|\\PC{0,30}",
        headers in prop::collection::vec("[A-Za-z-]{0,5}:? ?[ -~\\t\u{80}-\u{ff}\\r\\n\\x00]{0,8}", 0..5),
    ) {
        let mut text = line;
        for header in headers {
            text.push_str("\r\n");
            text.push_str(&header);
        }
        text.push_str("\r\n\r\n");
        if let Ok(head) = Head::parse(text.as_bytes()) {
            prop_assert_eq!(Head::parse(&spelt(&head)).unwrap(), head);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        seen in 0usize..300,
    ) {
        let _ = head_end(&bytes, seen);
        if let Ok(head) = Head::parse(&bytes) {
            let _ = (head.host(), head.framing(), head.words("connection"));
        }
    }
}
