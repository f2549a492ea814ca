//! Just enough HTTP to ask a server on this machine.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context, bail};
use serde_json::Value;

/// Sends one request and reads the whole answer: its status, and its JSON.
///
/// # Errors
/// When there is no answer within a minute, or it is not JSON.
pub fn call(
    url: &str,
    method: &str,
    path: &str,
    key: Option<&str>,
    body: Option<&Value>,
) -> anyhow::Result<(u16, Value)> {
    let host = url.strip_prefix("http://").context("not a plain http address")?;
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let body = body.map(ToString::to_string).unwrap_or_default();
    let key = key.map(|key| format!("x-api-key: {key}\r\n")).unwrap_or_default();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{key}connection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").context("no answer")?;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let mut payload = answer.split_off(end + 4);
    if head.contains("transfer-encoding: chunked") {
        payload = unchunk(&payload)?;
    }
    let json = serde_json::from_slice(&payload)
        .with_context(|| format!("not JSON: {}", String::from_utf8_lossy(&payload)))?;
    Ok((status.context("no status")?, json))
}

fn unchunk(mut rest: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n").context("a chunk without its size")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end])?, 16)?;
        if size == 0 {
            return Ok(whole);
        }
        let start = end + 2;
        if rest.len() < start + size + 2 {
            bail!("a chunk is cut off");
        }
        whole.extend_from_slice(&rest[start..start + size]);
        rest = &rest[start + size + 2..];
    }
}
