//! `CONNECT` to a host whose rule does not look into requests: bytes are passed on, after a look at the
//! TLS greeting.

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::{Duration, timeout},
};

use crate::{
    authority::Host,
    broker::Shared,
    hello::{self, Greeting},
    journal::Subject,
    meter::{Direction, Meter},
    policy::Way,
    refusal::{GONE, Refusal},
    request::same_name,
    stream::Inbound,
};

pub(crate) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// On this port nothing but TLS is expected.
const HTTPS_PORT: u16 = 443;

pub(crate) async fn serve(
    shared: &Shared,
    meter: &Meter,
    host: &Host,
    port: u16,
    mut inbound: Inbound<OwnedReadHalf>,
    mut out: OwnedWriteHalf,
    origin: TcpStream,
) {
    let (mut from, mut to) = origin.into_split();
    if out.write_all(ESTABLISHED).await.is_err() {
        return;
    }
    let up = async {
        greet(shared.config.head_ms, host, port, &mut inbound).await?;
        loop {
            if !inbound.buffer.is_empty() {
                meter.take(Direction::Up, inbound.buffer.len()).await?;
                let piece = inbound.buffer.split();
                // An origin that stops listening may still have something to say.
                if to.write_all(&piece).await.is_err() {
                    return Ok(());
                }
                meter.touch();
            }
            if inbound.fill().await.map_err(|_| Refusal::gone())? == 0 {
                let _ = to.shutdown().await;
                return Ok(());
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; 32 << 10];
        loop {
            let count = from.read(&mut buffer).await.map_err(|_| Refusal::gone())?;
            if count == 0 {
                let _ = out.shutdown().await;
                return Ok(());
            }
            meter.take(Direction::Down, count).await?;
            out.write_all(&buffer[..count]).await.map_err(|_| Refusal::gone())?;
            meter.touch();
        }
    };
    let still = |policy: &crate::policy::Policy| match policy.tunnel(host, port)? {
        Way::Blind { .. } => Ok(()),
        Way::Read => Err(Refusal::policy(format!("requests to {host} are now looked into"))),
    };
    let ended = tokio::select! {
        both = async { tokio::try_join!(up, down) } => both.map(drop),
        refusal = shared.forbidden(still) => Err(refusal),
        refusal = meter.idle(shared.config.idle_ms) => Err(refusal),
    };
    match ended {
        // A closed connection is no decision.
        Ok(()) | Err(Refusal { status: GONE, .. }) => {}
        Err(refusal) => shared.journal.refused(&Subject::tunnel(host, port), &refusal.why),
    }
}

/// Looks at what the sandbox sends first, and leaves it in the buffer.
async fn greet<R: AsyncRead + Unpin>(
    head_ms: u64,
    host: &Host,
    port: u16,
    inbound: &mut Inbound<R>,
) -> Result<(), Refusal> {
    let begun = async {
        loop {
            match hello::read(&inbound.buffer) {
                Greeting::More => {}
                greeting @ (Greeting::NotTls | Greeting::Broken | Greeting::Hello { .. }) => {
                    return Ok(greeting);
                }
            }
            if inbound.fill().await.map_err(|_| Refusal::gone())? == 0 {
                // Half a greeting, or none: nothing is passed on.
                return Err(Refusal::gone());
            }
        }
    };
    // On other ports the server may be the one who speaks first, so only silence ends the wait.
    let greeting = if port == HTTPS_PORT {
        let late = |_| Refusal::policy(format!("nothing like TLS was sent to {host} in time"));
        timeout(Duration::from_millis(head_ms), begun).await.map_err(late)??
    } else {
        begun.await?
    };
    match greeting {
        Greeting::Hello { server_name: None } => Ok(()),
        Greeting::Hello { server_name: Some(said) } if same_name(&said, host) => Ok(()),
        Greeting::Hello { server_name: Some(_) } => {
            Err(Refusal::policy(format!("TLS asked for another name than {host}")))
        }
        Greeting::NotTls if port != HTTPS_PORT => Ok(()),
        Greeting::NotTls => {
            Err(Refusal::policy(format!("what was sent to port 443 of {host} is not TLS")))
        }
        Greeting::Broken | Greeting::More => {
            Err(Refusal::policy(format!("the TLS greeting for {host} is broken")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_but_tls_goes_to_the_port_of_https() {
        let host = Host::Name("a.test".to_owned());
        for (port, sent, refused) in [
            (443, b"GET / HTTP/1.1\r\n\r\n".as_slice(), Some("is not TLS")),
            (443, b"SSH-2.0-x\r\n", Some("is not TLS")),
            (443, &[22, 3, 1, 0, 0, 0], Some("is broken")),
            (443, &[22, 3], Some("closed")),
            (80, b"GET / HTTP/1.1\r\n\r\n", None),
            (80, &[22, 3, 1, 0, 0, 0], Some("is broken")),
        ] {
            let why = greet(1_000, &host, port, &mut Inbound::new(sent)).await.err();
            match (why, refused) {
                (None, None) => {}
                (Some(refusal), Some(part)) if refusal.why.contains(part) => {}
                (found, _) => panic!("{port} {sent:?}: {found:?}"),
            }
        }
        let (_silent, other) = tokio::io::duplex(1);
        let late = greet(10, &host, 443, &mut Inbound::new(other)).await.unwrap_err();
        assert!(late.why.contains("in time"), "{}", late.why);
    }
}
