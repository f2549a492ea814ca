//! `tailstep dev`: the API, the workers, the timers and the sweeper in one process.

use std::{
    io::{ErrorKind, Write, stdout},
    net::SocketAddr,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use axum::{
    body::Body, http::header::CONTENT_TYPE, middleware::map_response, response::Response,
    serve::ListenerExt,
};
use futures_util::StreamExt;
use tailstep_api::{App, keys, router};
use tailstep_runtime::ports::{Clock, Documents, SystemClock};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time,
};

use super::DataArgs;
use crate::{
    engine::Engine,
    home::{Home, TENANT, Tools},
    logging,
    signals::Stop,
};

/// How long requests and steps under way may take to end after the first signal.
const GRACE: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The API key comes from TAILSTEP_API_KEY. Without it the first start makes one and shows it once; a
lost one is replaced by starting with TAILSTEP_API_KEY set to a new one.

Models: bare ids need ANTHROPIC_API_KEY, openai/NAME needs TAILSTEP_OPENAI_BASE_URL (and
OPENAI_API_KEY if the server wants one), scripted/echo needs nothing.

Packages of environments come from the public registries, or from the directory of wheels, gems and
the like that TAILSTEP_PACKAGES names, or from mirrors (TAILSTEP_PIP_INDEX_URL and others, see
docs/compatibility.md). TAILSTEP_EGRESS_ALLOW_PRIVATE (10.1.0.0/16,...) opens private
addresses to rules that name their hosts.")]
pub(crate) struct Args {
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", env = "TAILSTEP_LISTEN")]
    listen: String,

    #[command(flatten)]
    data: DataArgs,

    /// Steps that may be under way at one time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    workers: u16,

    /// Run without sandboxes; every tool call is answered with an error
    #[arg(long)]
    no_hands: bool,

    /// Let scripted/echo answer for this model id (for tests; may be given more than once)
    #[arg(long, value_name = "ID")]
    scripted_model: Vec<String>,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    logging::start(args.data.log.as_deref(), "info")?;
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = threads.block_on(dev(args));
    // What was abandoned must not keep the process.
    threads.shutdown_background();
    served.map(|()| ExitCode::SUCCESS)
}

async fn dev(args: &Args) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    let listener = listen(&args.listen).await?;
    let address = listener.local_addr()?;
    let tools = if args.no_hands { Tools::None } else { Tools::Sandboxed };
    let home = Home::open(&args.data.data, tools, &args.scripted_model).await?;
    home.say_what_is_scripted();
    let key = ready_key(home.local.documents.as_ref()).await?;
    let engine = Engine::start(&home.runtime, usize::from(args.workers));
    let app = home.app();
    let (closing, closed) = watch::channel(false);
    let mut server = tokio::spawn(serve(listener, app, closed));
    announce(address, key.as_deref())?;

    tokio::select! {
        () = stop.asked() => {}
        ended = &mut server => bail!("the server ended by itself: {ended:?}"),
    }
    tracing::info!("stopping; a second signal stops at once");
    let _ = closing.send(true);
    let ending = async {
        let (_, _) = tokio::join!(time::timeout(GRACE, &mut server), engine.stop(GRACE));
    };
    tokio::select! {
        () = ending => {}
        () = stop.asked() => {}
    }
    home.close().await;
    Ok(())
}

/// One line for every way in which an address cannot be had.
async fn listen(address: &str) -> anyhow::Result<TcpListener> {
    let error = match TcpListener::bind(address).await {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    let kind = error.kind();
    Err(if kind == ErrorKind::AddrInUse {
        anyhow!(
            "{address} is in use; stop the other process, or choose another port with --listen \
             (port 0 takes a free one)"
        )
    } else if kind == ErrorKind::PermissionDenied {
        anyhow!("may not listen on {address}; choose a port above 1023 with --listen")
    } else {
        anyhow!("cannot listen on {address}: {error}; give --listen as ADDRESS:PORT")
    })
}

async fn serve(
    listener: TcpListener,
    app: App,
    closed: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    // Small answers and single events must not wait for the next packet.
    let listener = listener.tap_io(no_delay);
    let streams = closed.clone();
    let routes = router(app).layer(map_response(move |response| end_stream(response, &streams)));
    axum::serve(listener, routes)
        .with_graceful_shutdown(is_closed(closed))
        .await
        .context("cannot serve")
}

/// Ends an event stream when the server closes, so that its client sees an end and not a broken
/// connection.
fn end_stream(
    response: Response,
    closed: &watch::Receiver<bool>,
) -> impl Future<Output = Response> + use<> {
    let kind = response.headers().get(CONTENT_TYPE);
    let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let closed = is_closed(closed.clone());
    async move {
        if !is_stream {
            return response;
        }
        let (parts, body) = response.into_parts();
        let frames = body.into_data_stream().take_until(Box::pin(closed));
        Response::from_parts(parts, Body::from_stream(frames))
    }
}

/// Waits until the server is to close; the sender's end is the process's end.
async fn is_closed(mut closed: watch::Receiver<bool>) {
    let _ = closed.wait_for(|closed| *closed).await;
}

fn no_delay(stream: &mut TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection stays with delays");
    }
}

/// Makes sure that a key is accepted; answers one that was made just now.
async fn ready_key(documents: &dyn Documents) -> anyhow::Result<Option<String>> {
    let now_ms = SystemClock.now_ms();
    if let Some(key) = std::env::var("TAILSTEP_API_KEY").ok().filter(|key| !key.is_empty()) {
        keys::ensure_key(documents, TENANT, &key, "TAILSTEP_API_KEY", now_ms)
            .await
            .context("cannot use TAILSTEP_API_KEY")?;
        return Ok(None);
    }
    if keys::any_key(documents).await? {
        return Ok(None);
    }
    let key = keys::new_key();
    keys::ensure_key(documents, TENANT, &key, "first start", now_ms).await?;
    Ok(Some(key))
}

fn announce(address: SocketAddr, key: Option<&str>) -> anyhow::Result<()> {
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "reachable from other machines, without encryption");
    }
    let mut out = stdout().lock();
    if let Some(key) = key {
        writeln!(out, "api key: {key} (shown this once; only its hash is kept)")?;
    }
    writeln!(out, "listening on http://{address}")?;
    out.flush()?;
    Ok(())
}
