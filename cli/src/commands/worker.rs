//! `tailstep worker`: hands on this machine for sessions that a server elsewhere leads. It makes
//! outbound requests only.

mod kept_here;

use std::{
    path::{Path, PathBuf, absolute},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, anyhow, bail};
use tailstep_local::{HandsConfig, LocalBlobs, LocalHands};
use tailstep_runtime::{ids::nonce, ports::Blobs};
use tailstep_worker::{Client, Config, Key, Until, Worker, run};
use tokio::sync::watch;

use self::kept_here::KeptHere;
use crate::{logging, signals::Stop};

/// A key file is one line.
const KEY_BYTES_MAX: u64 = 4_096;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The environment key is read from a variable or a file, never from the command line, and never reaches
a sandbox. A Tailstep server makes one with

    curl -X POST -H \"x-api-key: $TAILSTEP_API_KEY\" URL/v1/x/environments/ENV/keys

The first SIGTERM or Ctrl-C takes no more work, lets calls under way end, and gives the sessions back;
the second one stops at once.")]
pub(crate) struct Args {
    /// The self-hosted environment whose sessions are served
    #[arg(long, value_name = "ENV", env = "ANTHROPIC_ENVIRONMENT_ID")]
    environment: String,

    /// The server
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8080",
        env = "ANTHROPIC_BASE_URL"
    )]
    base_url: String,

    /// The variable that holds the environment key
    #[arg(long, value_name = "NAME", default_value = "ANTHROPIC_ENVIRONMENT_KEY")]
    key_env: String,

    /// A file that holds the environment key, instead of a variable
    #[arg(long, value_name = "FILE", conflicts_with = "key_env")]
    key_file: Option<PathBuf>,

    /// Where the workspaces of sessions are kept
    #[arg(long, value_name = "DIR", default_value = ".tailstep-worker")]
    workdir: PathBuf,

    /// Serve one session, then end
    #[arg(long)]
    once: bool,

    /// Serve what waits, then end
    #[arg(long, conflicts_with = "once")]
    drain: bool,

    /// Give a session back when it has rested for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    max_idle_s: u64,

    /// Sessions served at one time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,

    /// How long the server waits for this worker's next sign of life before it calls for another
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(2..=300))]
    lease_s: u32,

    /// Which log lines are shown, as in RUST_LOG
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    logging::start(args.log.as_deref(), "info")?;
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let worked = threads.block_on(work(args));
    // What was abandoned must not keep the process.
    threads.shutdown_background();
    worked.map(|()| ExitCode::SUCCESS)
}

async fn work(args: &Args) -> anyhow::Result<()> {
    let mut signals = Stop::new()?;
    let config = config(args)?;
    let worker_id = format!("tailstep-{}", nonce());
    let roots = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let client = Client::new(&args.base_url, roots.as_deref(), worker_id.clone())?;
    let workdir = absolute(&args.workdir)?;
    // Its own: workers may share a directory.
    let cache = Cache(workdir.join("skills").join(&worker_id));
    let skills = LocalBlobs::open(&cache.0)
        .with_context(|| format!("cannot keep skills in {}", cache.0.display()))?;
    let skills: Arc<dyn Blobs> = Arc::new(skills);
    let hands = hands(workdir, args.concurrency, skills.clone()).await?;
    let worker = Worker { client: Arc::new(client), hands: hands.clone(), blobs: skills, config };
    tracing::info!(environment = args.environment, "polling");
    let (stop, stopped) = watch::channel(false);
    let mut working = tokio::spawn(run(worker, stopped));
    let done = tokio::select! {
        done = &mut working => done?,
        () = signals.asked() => {
            tracing::info!("stopping; a second signal stops at once");
            let _ = stop.send(true);
            tokio::select! {
                done = &mut working => done?,
                () = signals.asked() => {
                    working.abort();
                    hands.close().await;
                    return Ok(());
                }
            }
        }
    };
    hands.close().await;
    let served = done.context("cannot poll for work")?;
    tracing::info!(items = served.items, "done");
    Ok(())
}

/// A directory that goes with its worker.
struct Cache(PathBuf);

impl Drop for Cache {
    fn drop(&mut self) {
        // Each session has copies of what it needs.
        let _ = tailstep_sandbox::remove_tree(&self.0);
    }
}

fn config(args: &Args) -> anyhow::Result<Config> {
    let named = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if args.environment.is_empty() || !args.environment.bytes().all(named) {
        bail!("--environment `{}` is not an environment's id", args.environment);
    }
    let until = match (args.once, args.drain) {
        (true, _) => Until::Once,
        (false, true) => Until::Drained,
        (false, false) => Until::Stopped,
    };
    Ok(Config {
        environment: args.environment.clone(),
        key: key(args)?,
        idle_ms_max: args.max_idle_s.saturating_mul(1_000),
        lease_s: args.lease_s,
        sessions_max: usize::from(args.concurrency),
        until,
    })
}

fn key(args: &Args) -> anyhow::Result<Key> {
    let text = match &args.key_file {
        Some(path) => read_key(path)?,
        None => std::env::var(&args.key_env).map_err(|_| {
            anyhow!(
                "{} is not set; put the environment key there, or name a file with --key-file",
                args.key_env
            )
        })?,
    };
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
        bail!("the environment key is empty or not one word of printable characters");
    }
    Ok(Key::new(text))
}

fn read_key(path: &Path) -> anyhow::Result<String> {
    use std::io::Read;
    let cannot = || format!("cannot read the key in {}", path.display());
    let file = std::fs::File::open(path).with_context(cannot)?;
    let mut text = String::new();
    file.take(KEY_BYTES_MAX).read_to_string(&mut text).with_context(cannot)?;
    Ok(text)
}

/// Rather no hands than hands that are not held back.
async fn hands(
    workdir: PathBuf,
    sessions_max: u16,
    skills: Arc<dyn Blobs>,
) -> anyhow::Result<Arc<LocalHands>> {
    let layers = LocalHands::check_host(None).await.map_err(|what| anyhow!(what))?;
    for missing in &layers.missing {
        tracing::debug!(missing, "a wall of the sandbox is missing");
    }
    let config = HandsConfig { live_max: usize::from(sessions_max), ..HandsConfig::default() };
    Ok(LocalHands::new(workdir, Arc::new(KeptHere { skills }), config))
}
