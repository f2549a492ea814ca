//! `tailstep sandbox run`.

use std::{
    ffi::{OsStr, OsString},
    net::Ipv6Addr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, anyhow, bail};
use clap::builder::{OsStringValueParser, TypedValueParser};
use tailstep_core::egress::EgressRule;
use tailstep_sandbox::{
    Access, Layers, Limits, Mount, Network, Root, Spec, Strictness, image,
    program::{End, Exited, Program, Workspace, run},
};

use super::way_out::WayOut;

/// Exit codes of our own, as `timeout(1)`, `env(1)` and shells have them.
const TIME_OVER: u8 = 124;
const DISK_FULL: u8 = 122;
const NOT_STARTED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const MISSING: u8 = 127;
const SIGNAL: u8 = 128;

/// As long as a sandbox may live when nobody says otherwise: the backstop that every kind of
/// sandbox has.
const TIME_MS: u64 = 600_000;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: the command's own; 128 + N when signal N ended it; 122 when it \
    wrote more than --disk-mb; 124 when its time was over; 125 when no sandbox could be made; 126 and 127 when the command cannot be run or \
    is not there; 137 when memory ran out."
)]
pub(crate) struct Args {
    /// Whose programs are seen: a directory that holds a whole system, or a tar archive of one;
    /// without it, this host's, read-only
    #[arg(long, value_name = "DIR|TAR")]
    root: Option<PathBuf>,

    /// A directory that the sandbox may change, at /workspace; as root, its files belong to the
    /// sandbox's user meanwhile
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,

    /// Make a host path visible inside; writable as far as its owner and mode let the sandbox's user
    #[arg(long = "mount", value_name = "SRC:DST[:ro]", value_parser = OsStringValueParser::new().try_map(|given| mount(&given)))]
    mounts: Vec<Mount>,

    /// The way out: none, or a proxy that allows what --allow names
    #[arg(long, value_name = "none|proxy", default_value = "none", value_parser = network)]
    net: Network,

    /// Let requests to this host through the proxy; `*.example.com` means all names below it. Refused
    /// requests are named on standard error
    #[arg(long = "allow", value_name = "HOST[:PORT]", value_parser = OsStringValueParser::new().try_map(|given| rule(text(&given)?)))]
    pub(super) allowed: Vec<EgressRule>,

    /// End the sandbox after this time
    #[arg(long, value_name = "N", default_value_t = TIME_MS, value_parser = clap::value_parser!(u64).range(1..))]
    time_ms: u64,

    /// Memory of everything inside together, tmpfs included
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(16..=1 << 24))]
    memory_mb: u64,

    /// Processes and threads at one time; one of them is the sandbox's own
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    pids: u64,

    /// Size of the private /tmp, and of what the workspace may grow to
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    disk_mb: u64,

    /// Set a variable inside; nothing of this process's environment goes in by itself
    #[arg(long = "env", value_name = "K=V", value_parser = OsStringValueParser::new().try_map(|given| variable(text(&given)?)))]
    variables: Vec<(String, String)>,

    /// Refuse to run unless every wall stands, control groups and landlock included
    #[arg(long, conflicts_with = "best_effort")]
    strict: bool,

    /// Run even if walls are missing; those are named on standard error
    #[arg(long)]
    best_effort: bool,

    /// Name the walls that stand on standard error
    #[arg(long, short)]
    pub(super) verbose: bool,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    match sandboxed(args) {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(error) => {
            eprintln!("tailstep: {error:#}");
            Ok(ExitCode::from(NOT_STARTED))
        }
    }
}

fn sandboxed(args: &Args) -> anyhow::Result<u8> {
    let mut spec = spec(args)?;
    let way_out = WayOut::prepare(args, &mut spec)?;
    let workspace = if args.workspace.is_some() { Workspace::Mounted } else { Workspace::None };
    let program = Program { argv: args.command.clone(), directory: None, workspace };
    let mut open = Ok(());
    let end = run(&spec, &program, |layers, listener| {
        show(layers, args);
        if let (Some(way_out), Some(listener)) = (&way_out, listener) {
            open = way_out.serve(listener);
        }
    })?;
    open?;
    if let Some(way_out) = &way_out {
        way_out.show_decisions(args.verbose);
    }
    Ok(code(&end, &spec.limits))
}

fn spec(args: &Args) -> anyhow::Result<Spec> {
    let whole = |path: &Path| {
        path.canonicalize().with_context(|| format!("no such directory: {}", path.display()))
    };
    let workspace = args.workspace.as_deref().map(whole).transpose()?;
    let mut spec = Spec::new(workspace.unwrap_or_default());
    spec.root = match args.root.as_deref() {
        None => Root::Host,
        Some(path) if path.is_dir() => Root::Directory(whole(path)?),
        Some(archive) => Root::Directory(image::unpack(archive, &cache()?)?),
    };
    spec.mounts = args.mounts.clone();
    for mount in &mut spec.mounts {
        let missing = || format!("nothing to mount at {}", mount.source.display());
        mount.source = mount.source.canonicalize().with_context(missing)?;
    }
    spec.network = args.net;
    spec.environment = args.variables.clone();
    spec.limits = Limits {
        memory_bytes: args.memory_mb << 20,
        pids_max: args.pids,
        tmp_bytes: args.disk_mb << 20,
        disk_bytes: args.disk_mb << 20,
        file_bytes_max: Limits::default().file_bytes_max.max(args.disk_mb << 20),
        life_ms_max: args.time_ms,
        ..Limits::default()
    };
    spec.strictness = match (args.strict, args.best_effort) {
        (true, _) => Strictness::Full,
        (_, true) => Strictness::BestEffort,
        (false, false) => Strictness::Strict,
    };
    Ok(spec)
}

/// Where unpacked images are kept (XDG base directory specification).
fn cache() -> anyhow::Result<PathBuf> {
    let given = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = given("XDG_CACHE_HOME").or_else(|| given("HOME").map(|home| home.join(".cache")));
    let base =
        base.ok_or_else(|| anyhow!("set HOME or XDG_CACHE_HOME: images are unpacked there"))?;
    Ok(base.join("tailstep").join("roots"))
}

fn show(layers: &Layers, args: &Args) {
    if args.verbose {
        eprintln!("tailstep: walls: {}", layers.active.join(", "));
    }
    if args.verbose || args.best_effort {
        for missing in &layers.missing {
            eprintln!("tailstep: missing: {missing}");
        }
    }
}

/// The exit code, said in words where it is not the command's own.
fn code(end: &End, limits: &Limits) -> u8 {
    let signal = |signal: i32| SIGNAL | u8::try_from(signal & 0x7f).unwrap_or_default();
    match end {
        End::Exited(Exited::Code(code)) => *code,
        End::Exited(Exited::Signal(number)) => signal(*number),
        End::Exited(Exited::Missing { why }) => said(MISSING, why),
        End::Exited(Exited::NotExecutable { why }) => said(NOT_EXECUTABLE, why),
        End::TimeOver => {
            let over = format!("ended after {} ms (--time-ms)", limits.life_ms_max);
            said(TIME_OVER, &over)
        }
        End::OutOfMemory => {
            let over = format!(
                "ended by the kernel: it used more than {} MB of memory (--memory-mb)",
                limits.memory_bytes >> 20
            );
            said(SIGNAL | 9, &over)
        }
        End::DiskFull => {
            let over = format!(
                "ended: it went on writing to the workspace beyond {} MB (--disk-mb)",
                limits.disk_bytes >> 20
            );
            said(DISK_FULL, &over)
        }
        End::Told(number) => signal(*number),
        End::Died => said(SIGNAL | 9, "the sandbox's first process died"),
    }
}

fn said(code: u8, what: &str) -> u8 {
    eprintln!("tailstep: {what}");
    code
}

fn mount(given: &OsStr) -> anyhow::Result<Mount> {
    let given = given.as_bytes();
    let (paths, access) = match given.strip_suffix(b":ro") {
        Some(paths) => (paths, Access::ReadOnly),
        None => (given.strip_suffix(b":rw").unwrap_or(given), Access::ReadWrite),
    };
    // The last colon: a host's path may hold others. What follows DST and is no mode of ours, such
    // as `:RO`, must not be taken for a part of DST and mounted writable.
    let mut halves = paths.rsplitn(2, |byte| *byte == b':');
    match (halves.next(), halves.next()) {
        (Some(target), Some(source)) if !source.is_empty() && target.starts_with(b"/") => {
            let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
            Ok(Mount { source: path(source), target: path(target), access })
        }
        _ => bail!(
            "write it as SRC:DST or SRC:DST:ro, with an absolute DST that holds no colon; the mode \
             is ro or rw"
        ),
    }
}

fn network(text: &str) -> anyhow::Result<Network> {
    match text {
        "none" => Ok(Network::None),
        "proxy" => Ok(Network::Proxy),
        _ => bail!("it is none or proxy"),
    }
}

/// Named by the option that it is of, which the parser of texts does not do.
fn text(given: &OsStr) -> anyhow::Result<&str> {
    given.to_str().ok_or_else(|| anyhow!("it is not UTF-8"))
}

fn variable(text: &str) -> anyhow::Result<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => bail!("write it as NAME=VALUE"),
    }
}

fn rule(text: &str) -> anyhow::Result<EgressRule> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (host, port) = match (bracketed, text.rsplit_once(':')) {
        (Some((address, "")), _) => (address, None),
        (Some((address, rest)), _) => (address, Some(rest.strip_prefix(':').unwrap_or_default())),
        // An address of version 6 as it is.
        (None, _) if text.parse::<Ipv6Addr>().is_ok() => (text, None),
        (None, Some((_, path))) if path.starts_with('/') => {
            bail!("write it as HOST or HOST:PORT, without a scheme or a path")
        }
        (None, Some((host, port))) => (host, Some(port)),
        (None, None) => (text, None),
    };
    let number = |port: &str| port.parse().context("the port is a number up to 65535");
    let ports = port.map(number).transpose()?.into_iter().collect();
    Ok(EgressRule { ports, ..EgressRule::for_host(host) })
}
