//! One request and its answer: checked, sent to the origin, and brought back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderName, HeaderValue, Method, Request, Uri};
use hyper::{
    body::{Body, Incoming},
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    pin,
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;

use crate::{
    answer::{self, After, Manner},
    authority::Host,
    body::{BodyReader, Piece, RequestBody},
    broker::{Live, Shared},
    connect::{self, Standing},
    head::{Framing, Head, Version},
    journal::Subject,
    meter::{Direction, Meter},
    policy::{Asked, Grant},
    refusal::{GONE, Refusal},
    request::{self, Headers, Scheme, Target},
    stream::{Inbound, Io, Owned, last_words},
    substitute::{self, Filled},
};

/// An idle connection to an origin is used again within this time. Servers close theirs after 5 s and
/// more, and a request that meets a closing connection is lost.
const REUSE_MS: u64 = 4_000;

/// Where exchanges happen.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) meter: &'a Meter,
    pub(crate) target: Target<'a>,
}

/// A connection to the origin.
pub(crate) struct Origin {
    sender: SendRequest<RequestBody>,
    standing: Standing,
    used: Instant,
    _driver: Owned,
}

/// A request that may go out.
struct Ready {
    request: Request<RequestBody>,
    pieces: tokio::sync::mpsc::Sender<Piece>,
    framing: Framing,
    live: Arc<Live>,
    grant: Grant,
}

/// Serves the request of `head` for `url` (a path with its query), and says what becomes of the
/// sandbox's connection.
pub(crate) async fn exchange<R, W>(
    place: &Place<'_>,
    head: &Head,
    url: &str,
    inbound: &mut Inbound<R>,
    out: &mut W,
    origin: &mut Option<Origin>,
) -> After
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let Place { shared, target, .. } = place;
    let subject = Subject::request(target.host, target.port, &head.method, url);
    let begun = AtomicBool::new(false);
    let done = match prepare(place, head, url, origin).await {
        Ok(ready) => {
            shared.journal.allowed(&subject, &ready.grant.by);
            relay(place, head, url, ready, inbound, out, origin, &begun).await
        }
        Err(refusal) => Err(refusal),
    };
    match done {
        Ok(after) => after,
        Err(refusal) => {
            *origin = None;
            shared.journal.outcome(&subject, &refusal);
            // In the middle of an answer there is no way to say it: the connection just ends, and the
            // answer's framing shows that it is not whole.
            if !begun.load(Ordering::Relaxed) && refusal.status != GONE {
                last_words(refusal.response().as_bytes(), inbound, out).await;
            }
            After::Close
        }
    }
}

/// Everything that can refuse a request before the origin sees any of it.
async fn prepare(
    place: &Place<'_>,
    head: &Head,
    url: &str,
    origin: &mut Option<Origin>,
) -> Result<Ready, Refusal> {
    let Place { shared, target, .. } = place;
    let framing = request::check(head, target)?;
    let live = shared.live();
    let grant = live.policy.request(&asked(target, head, url))?;
    let mut headers = request::outgoing(head, &grant)?;
    let filled = substitute::fill(&mut headers, url, &grant, target.host, &live.placeholders)?;
    let (pieces, body) = RequestBody::new(framing);
    let request = build(head, url, target, headers, body)?;
    let fresh = origin.take().filter(|origin| {
        origin.sender.is_ready() && origin.used.elapsed() < Duration::from_millis(REUSE_MS)
    });
    let connected = match fresh {
        Some(origin) => origin,
        None => dial(shared, target).await?,
    };
    check_carrier(filled, target.scheme, connected.standing)?;
    *origin = Some(connected);
    Ok(Ready { request, pieces, framing, live, grant })
}

/// Anybody on the way could read a secret in plain HTTP; an operator's own network is the operator's
/// to judge.
fn check_carrier(filled: Filled, scheme: Scheme, standing: Standing) -> Result<(), Refusal> {
    match (filled, scheme, standing) {
        (Filled::Secret, Scheme::Http, Standing::Public) => {
            Err(Refusal::policy("a secret is sent over TLS only"))
        }
        (Filled::Nothing, _, _) | (_, Scheme::Https, _) | (_, _, Standing::Opened) => Ok(()),
    }
}

fn asked<'a>(target: &Target<'a>, head: &'a Head, url: &'a str) -> Asked<'a> {
    let path = url.split('?').next().unwrap_or_default();
    Asked { host: target.host, port: target.port, method: &head.method, path }
}

fn build(
    head: &Head,
    url: &str,
    target: &Target<'_>,
    headers: Headers,
    body: RequestBody,
) -> Result<Request<RequestBody>, Refusal> {
    let unfit = |what: &str| Refusal::malformed(format!("the {what} cannot be sent on"));
    let mut request = Request::new(body);
    *request.method_mut() =
        Method::from_bytes(head.method.as_bytes()).map_err(|_| unfit("method"))?;
    *request.uri_mut() = url.parse::<Uri>().map_err(|_| unfit("path"))?;
    let map = request.headers_mut();
    let host = HeaderValue::try_from(target.host_header()).map_err(|_| unfit("host"))?;
    map.insert(http::header::HOST, host);
    for (name, value) in headers {
        let name = HeaderName::try_from(name).map_err(|_| unfit("header"))?;
        let mut value = HeaderValue::from_bytes(&value).map_err(|_| unfit("header"))?;
        value.set_sensitive(true);
        map.append(name, value);
    }
    Ok(request)
}

async fn dial(shared: &Shared, target: &Target<'_>) -> Result<Origin, Refusal> {
    let deadline = connect::deadline(&shared.config);
    let host = target.host;
    let connected = connect::connect(&shared.config, host, target.port, deadline).await?;
    let io: Box<dyn Io> = match target.scheme {
        Scheme::Http => Box::new(connected.stream),
        Scheme::Https => {
            let name = match host {
                Host::Name(name) => ServerName::try_from(name.clone())
                    .map_err(|_| Refusal::malformed("the host's name is not fit for TLS"))?,
                Host::Ip(ip) => ServerName::from(*ip),
            };
            let tls = TlsConnector::from(shared.tls.client()).connect(name, connected.stream);
            let late = |_| Refusal::origin(format!("{host} did not answer in time"));
            let failed = |error| Refusal::origin(format!("TLS with {host} failed: {error}"));
            Box::new(timeout_at(deadline, tls).await.map_err(late)?.map_err(failed)?)
        }
    };
    let handshake = http1::Builder::new().max_buf_size(64 << 10).handshake(TokioIo::new(io));
    let failed = |_| Refusal::origin(format!("{host} does not speak HTTP"));
    let (sender, connection) = handshake.await.map_err(failed)?;
    let driver = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to an origin ended");
        }
    });
    let standing = connected.standing;
    Ok(Origin { sender, standing, used: Instant::now(), _driver: Owned(driver) })
}

/// Sends the request's body and brings the answer, at the same time.
#[allow(clippy::too_many_arguments, reason = "both ends, and what stands between them")]
async fn relay<R, W>(
    place: &Place<'_>,
    head: &Head,
    url: &str,
    ready: Ready,
    inbound: &mut Inbound<R>,
    out: &mut W,
    origin: &mut Option<Origin>,
    begun: &AtomicBool,
) -> Result<After, Refusal>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let Place { shared, meter, target } = place;
    let Ready { request, pieces, framing, live, grant } = ready;
    let Some(origin) = origin else { return Err(Refusal::origin("there is no connection")) };
    let after = wanted(head, target);
    let manner =
        Manner { version: head.version, search: grant.searched.then_some(&live.patterns), after };
    meter.take(Direction::Up, head.bytes()).await?;
    if !head.words("expect").is_empty() && head.version == Version::Http11 {
        answer::write(out, b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    let upload = upload(framing, pieces, inbound, meter);
    let download = async {
        let method = request.method().clone();
        let sent = origin.sender.send_request(request).await;
        let response = sent.map_err(|_| {
            Refusal::origin(format!("{} closed the connection without an answer", target.host))
        })?;
        meter.touch();
        let (parts, body) = response.into_parts();
        answer::check(&parts, &manner)?;
        let plan = answer::plan(&method, &parts, length(&body), &manner);
        meter.take(Direction::Down, plan.head.len()).await?;
        begun.store(true, Ordering::Relaxed);
        answer::write(out, &plan.head).await?;
        answer::pass(body, &plan, &manner, meter, out).await
    };
    let forbidden = shared.forbidden(|policy| policy.request(&asked(target, head, url)).map(drop));
    let idle = meter.idle(shared.config.idle_ms);
    pin!(upload, download, forbidden, idle);
    let mut whole = false;
    let mut uploading = true;
    loop {
        tokio::select! {
            refusal = &mut forbidden => return Err(refusal),
            refusal = &mut idle => return Err(refusal),
            sent = &mut upload, if uploading => {
                uploading = false;
                whole = sent? == Sent::Whole;
            }
            passed = &mut download => {
                passed?;
                break;
            }
        }
    }
    origin.used = Instant::now();
    // What the sandbox has not sent of this body would be read as the next request.
    Ok(if whole { after } else { After::Close })
}

fn length(body: &Incoming) -> Option<u64> {
    body.size_hint().exact()
}

fn wanted(head: &Head, target: &Target<'_>) -> After {
    let close = head.words("connection").iter().any(|word| word == "close");
    let keeps = head.version == Version::Http11 && target.scheme == Scheme::Https && !close;
    if keeps { After::KeepAlive } else { After::Close }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Whole,
    /// The origin stopped listening; its answer says why.
    InPart,
}

async fn upload<R: AsyncRead + Unpin>(
    framing: Framing,
    pieces: tokio::sync::mpsc::Sender<Piece>,
    inbound: &mut Inbound<R>,
    meter: &Meter,
) -> Result<Sent, Refusal> {
    let mut body = BodyReader::new(framing);
    while let Some(piece) = body.next(inbound).await? {
        meter.take(Direction::Up, piece.len()).await?;
        if pieces.send(Piece::Data(piece)).await.is_err() {
            return Ok(Sent::InPart);
        }
    }
    // The receiver of a body with a known length may be gone already.
    let _ = pieces.send(Piece::End).await;
    Ok(Sent::Whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_travel_in_the_open() {
        let refused = check_carrier(Filled::Secret, Scheme::Http, Standing::Public).unwrap_err();
        assert_eq!(refused.status, 403);
        for good in [
            (Filled::Secret, Scheme::Https, Standing::Public),
            (Filled::Secret, Scheme::Http, Standing::Opened),
            (Filled::Nothing, Scheme::Http, Standing::Public),
        ] {
            assert!(check_carrier(good.0, good.1, good.2).is_ok(), "{good:?}");
        }
    }
}
