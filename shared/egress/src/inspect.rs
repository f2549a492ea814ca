//! `CONNECT` to a host whose rule looks into requests: the broker is the other end of TLS.

use std::{io::Cursor, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
    time::{Instant, timeout_at},
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use crate::{
    answer::After,
    authority::Host,
    broker::Shared,
    exchange::{Place, exchange},
    head::{HeadTimes, read_head},
    journal::Subject,
    meter::Meter,
    refusal::Refusal,
    request::{Scheme, Target, same_name},
    stream::{Inbound, last_words},
    tunnel::ESTABLISHED,
};

pub(crate) async fn serve(
    shared: &Shared,
    meter: &Meter,
    host: &Host,
    port: u16,
    inbound: Inbound<OwnedReadHalf>,
    mut out: OwnedWriteHalf,
) {
    if out.write_all(ESTABLISHED).await.is_err() {
        return;
    }
    // What the client sent right behind its CONNECT is the beginning of its greeting.
    let Inbound { buffer, reader } = inbound;
    let io = tokio::io::join(Cursor::new(buffer).chain(reader), out);
    let subject = Subject::tunnel(host, port);
    let stream = match accept(shared, host, io).await {
        Ok(stream) => stream,
        Err(refusal) => return shared.journal.refused(&subject, &refusal.why),
    };
    let target = Target { host, port, scheme: Scheme::Https };
    let place = Place { shared, meter, target };
    requests(&place, stream).await;
}

async fn accept<S>(shared: &Shared, host: &Host, io: S) -> Result<TlsStream<S>, Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let deadline = Instant::now() + Duration::from_millis(shared.config.head_ms);
    let late = |_| Refusal::malformed(format!("TLS with {host} was not set up in time"));
    let acceptor = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), io);
    let start = timeout_at(deadline, acceptor).await.map_err(late)?.map_err(|_| {
        Refusal::policy(format!("what was sent to {host} is not TLS, and its rule reads requests"))
    })?;
    if let Some(said) = start.client_hello().server_name()
        && !same_name(said, host)
    {
        return Err(Refusal::policy(format!("TLS asked for another name than {host}")));
    }
    let config = shared.tls.server(host).map_err(|error| {
        tracing::warn!(%error, "no certificate could be made");
        Refusal::origin("no certificate could be made")
    })?;
    timeout_at(deadline, start.into_stream(config)).await.map_err(late)?.map_err(|error| {
        Refusal::malformed(format!(
            "TLS for {host} failed on the sandbox's side, does the program trust the sandbox's \
             certificates? ({error})"
        ))
    })
}

/// Each request of the connection is checked anew.
async fn requests<S: AsyncRead + AsyncWrite + Unpin>(place: &Place<'_>, stream: TlsStream<S>) {
    let Place { shared, target, .. } = place;
    let times = HeadTimes { first_ms: shared.config.idle_ms, rest_ms: shared.config.head_ms };
    let (reader, mut out) = tokio::io::split(stream);
    let mut inbound = Inbound::new(reader);
    let mut origin = None;
    loop {
        let subject = Subject::tunnel(target.host, target.port);
        // Between requests there is nobody to tell that the host is closed now; during one, the
        // exchange tells it.
        let read = tokio::select! {
            read = read_head(&mut inbound, times) => read,
            _ = shared.forbidden(|policy| policy.tunnel(target.host, target.port).map(drop)) => break,
        };
        let refusal = match read {
            Ok(Some(head)) if head.target.starts_with('/') && head.method != "CONNECT" => {
                let url = head.target.clone();
                match exchange(place, &head, &url, &mut inbound, &mut out, &mut origin).await {
                    After::KeepAlive => continue,
                    After::Close => break,
                }
            }
            Ok(Some(_)) => Refusal::malformed("requests within CONNECT name a path"),
            Ok(None) => break,
            Err(refusal) => refusal,
        };
        shared.journal.refused(&subject, &refusal.why);
        last_words(refusal.response().as_bytes(), &mut inbound, &mut out).await;
        return;
    }
    let _ = out.shutdown().await;
}
