//! Just enough HTTP to ask a server on this machine.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
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
    let body = body.map(ToString::to_string).unwrap_or_default();
    exchange(url, method, path, key, "application/json", body.as_bytes())
}

/// Uploads files, by name and content, as parts named `files[]`.
///
/// # Errors
/// As [`call`].
pub fn upload_all(
    url: &str,
    path: &str,
    key: Option<&str>,
    files: &[(&str, &[u8])],
) -> anyhow::Result<(u16, Value)> {
    const BOUNDARY: &str = "the-boundary-of-parts";
    let mut body = Vec::new();
    for (name, content) in files {
        write!(
            body,
            "--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"files[]\"; \
             filename=\"{name}\"\r\n\r\n"
        )?;
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    write!(body, "--{BOUNDARY}--\r\n")?;
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    exchange(url, "POST", path, key, &kind, &body)
}

fn exchange(
    url: &str,
    method: &str,
    path: &str,
    key: Option<&str>,
    content_type: &str,
    body: &[u8],
) -> anyhow::Result<(u16, Value)> {
    let host = url.strip_prefix("http://").context("not a plain http address")?;
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let key = key.map(|key| format!("x-api-key: {key}\r\n")).unwrap_or_default();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{key}connection: close\r\n\
         content-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body)?;
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

/// The beginning of an answer whose body follows on `body`.
pub struct Answer {
    pub status: u16,
    /// Status line and headers, in lower case.
    pub head: String,
    body: BufReader<TcpStream>,
}

impl Answer {
    fn read(stream: TcpStream) -> anyhow::Result<Self> {
        let mut body = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if body.read_line(&mut head)? == 0 {
                bail!("the answer has no end of its headers: {head}");
            }
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.context("no status")?;
        Ok(Self { status, head: head.to_ascii_lowercase(), body })
    }

    /// Gives the body to `sink`, piece by piece.
    ///
    /// # Errors
    /// When it ends before its announced length.
    pub fn body(mut self, sink: &mut dyn FnMut(&[u8])) -> anyhow::Result<u64> {
        let length = self.head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: u64 = length.context("no content-length")?.trim().parse()?;
        let (mut got, mut piece) = (0, vec![0; 1 << 16]);
        loop {
            match self.body.read(&mut piece)? {
                0 if got == length => return Ok(got),
                0 => bail!("{got} of {length} bytes came"),
                count => {
                    got += count as u64;
                    sink(&piece[..count]);
                }
            }
        }
    }
}

/// Asks for `path` and reads the answer's beginning.
///
/// # Errors
/// When there is no answer.
pub fn get(url: &str, path: &str, key: &str) -> anyhow::Result<Answer> {
    let host = url.strip_prefix("http://").context("not a plain http address")?;
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {host}\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n"
    )?;
    Answer::read(stream)
}

/// Uploads `content` as the file `name`, without holding it whole; answers the file's metadata.
///
/// # Errors
/// When it is refused.
pub fn upload(
    url: &str,
    key: &str,
    name: &str,
    size_bytes: u64,
    content: &mut dyn Read,
) -> anyhow::Result<Value> {
    let host = url.strip_prefix("http://").context("not a plain http address")?;
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let head = format!(
        "--e2e\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n"
    );
    let tail = "\r\n--e2e--\r\n";
    let length = (head.len() + tail.len()) as u64 + size_bytes;
    write!(
        stream,
        "POST /v1/files HTTP/1.1\r\nhost: {host}\r\nx-api-key: {key}\r\nconnection: close\r\n\
         content-type: multipart/form-data; boundary=e2e\r\ncontent-length: {length}\r\n\r\n{head}"
    )?;
    io::copy(&mut content.take(size_bytes), &mut stream)?;
    stream.write_all(tail.as_bytes())?;
    let answer = Answer::read(stream)?;
    let (status, mut body) = (answer.status, Vec::new());
    answer.body(&mut |piece| body.extend_from_slice(piece))?;
    let body: Value = serde_json::from_slice(&body)?;
    if status != 200 {
        bail!("an upload answered {status}: {body}");
    }
    Ok(body)
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
