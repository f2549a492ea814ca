//! `tailstep run`: one session in this process, printed as it grows.

mod agent;
mod given;
mod lend;
mod outputs;
mod turn;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde_json::{Value, json};

use self::{
    given::Wanted,
    lend::{BroughtBack, Lent},
    outputs::Outputs,
    turn::{Ended, follow_turn},
};
use super::DataArgs;
use crate::{
    api::Api,
    engine::Engine,
    home::{Home, Tools},
    logging,
    show::Form,
    signals::Stop,
};

/// One session takes one step at a time; the others are for wake-ups that turn out to be stale.
const WORKERS: usize = 4;

/// How long a step under way may take to end after the turn is over, or was given up.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The agent works on a copy of --workspace, in a sandbox without network but for --allow-host. What it changed is shown as
a diff at the end; it is applied if you say yes, or with --apply. Files that you changed meanwhile
are never overwritten. `.git` folders are not copied.

Without --model the model is TAILSTEP_MODEL, else Anthropic's if ANTHROPIC_API_KEY is set.

Exit status: 0 done, 2 needs action (an approval, a conflict), 1 failed.")]
pub(crate) struct Args {
    /// What the agent is to do
    #[arg(value_name = "TASK", required_unless_present = "resume")]
    task: Option<String>,

    /// Model id: a bare Anthropic id, openai/NAME or scripted/NAME
    #[arg(long, value_name = "ID", conflicts_with = "resume")]
    model: Option<String>,

    /// Folder that the agent gets a copy of
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    workspace: Option<PathBuf>,

    /// JSON file with the agent's fields, as in the API (name, model, system, tools)
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    agent: Option<PathBuf>,

    /// Let the sandbox reach this host (*.example.com: all names below it); it has no network otherwise
    #[arg(long = "allow-host", value_name = "HOST[:PORT]", conflicts_with = "resume")]
    allowed: Vec<String>,

    /// Go on with this session; without TASK, finish its turn and show what it changed and put out
    #[arg(long, value_name = "SESSION")]
    resume: Option<String>,

    /// File that the agent sees, read-only, in /mnt/session/uploads or where TARGET says
    #[arg(long = "file", value_name = "PATH[:TARGET]", conflicts_with = "resume", value_parser = OsStringValueParser::new().try_map(|text| given::wanted(&text)))]
    files: Vec<Wanted>,

    /// Folder for what the agent leaves in /mnt/session/outputs; files that are there are not overwritten
    #[arg(long, value_name = "DIR")]
    outputs: Option<PathBuf>,

    /// Apply the changes to the workspace without asking, if the turn is done
    #[arg(long)]
    apply: bool,

    /// Print one event a line, as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    data: DataArgs,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    // A failed model call is among the printed events already.
    logging::start(args.data.log.as_deref(), "warn,tailstep_model=off")?;
    let threads = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = threads.block_on(run(args));
    threads.shutdown_background();
    Ok(ExitCode::from(ended?.code()))
}

async fn run(args: &Args) -> anyhow::Result<Ended> {
    let form = Form::new(args.json);
    let outputs = args.outputs.as_deref().map(Outputs::open).transpose()?;
    let home = Home::open(&args.data.data, Tools::Sandboxed, &[]).await?;
    let api = home.api();
    let session = match &args.resume {
        Some(session) if !session.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => {
            bail!("there is no session {session}; `tailstep sessions` lists them")
        }
        Some(session) => Session { id: session.clone(), lent: Lent::find(&home, session)? },
        None => begin(args, &home, &api).await?,
    };
    eprintln!("session {}", session.id);
    // Until here nothing needs an orderly end, and a signal may simply end the process.
    let mut stop = Stop::new()?;
    let engine = Engine::start(&home.runtime, WORKERS);
    let ended = match follow_turn(&api, &session.id, args.task.as_deref(), form, &mut stop).await? {
        Some(ended) => ended,
        None if session.lent.is_some() || outputs.is_some() => Ended::Done,
        None => bail!("session {} is at rest; say what it is to do next", session.id),
    };
    engine.stop(GRACE).await;
    let ended = match (&session.lent, ended) {
        (_, Ended::GivenUp) | (None, _) => ended,
        (Some(lent), ended) => {
            // A process that still runs in there could change what is about to be shown.
            home.end_sandboxes().await;
            let apply = args.apply && ended == Ended::Done;
            match lent.bring_back(&session.id, form, apply, &mut stop).await? {
                BroughtBack::Settled => ended,
                BroughtBack::Conflicts => ended.max(Ended::NeedsAction),
            }
        }
    };
    let ended = match (&outputs, ended) {
        (_, Ended::GivenUp) | (None, _) => ended,
        (Some(outputs), ended) if outputs.fetch(&api, &session.id, form).await? => ended,
        (Some(_), ended) => ended.max(Ended::NeedsAction),
    };
    home.close().await;
    Ok(ended)
}

struct Session {
    id: String,
    lent: Option<Lent>,
}

/// Makes the session, with a copy of the workspace if there is to be one.
async fn begin(args: &Args, home: &Home, api: &Api) -> anyhow::Result<Session> {
    let agent = agent::fields(args.agent.as_deref(), args.model.as_deref(), home).await?;
    let draft = match &args.workspace {
        Some(folder) => Some(Lent::copy_in(home, folder)?),
        None => None,
    };
    let id = create(api, &agent, args).await?;
    let lent = draft.map(|draft| draft.give_to(home, &id)).transpose()?;
    Ok(Session { id, lent })
}

/// The session keeps copies of its agent and environment, so these are archived at once: nobody
/// should find a hundred agents named `run` in a list.
async fn create(api: &Api, agent: &Value, args: &Args) -> anyhow::Result<String> {
    let made = api.post("/v1/agents", agent).await.with_context(|| match &args.agent {
        Some(file) => format!("{} is not an agent", file.display()),
        None => "cannot make the agent".to_owned(),
    })?;
    let environment = api.post("/v1/environments", &environment(&args.allowed)).await?;
    let (agent, environment) = (id_of(&made)?, id_of(&environment)?);
    let resources = given::upload(api, &args.files).await?;
    let title: String = args.task.as_deref().unwrap_or_default().chars().take(100).collect();
    let session = json!({
        "agent": agent, "environment_id": environment, "title": title, "resources": resources,
    });
    let session = api.post("/v1/sessions", &session).await;
    given::forget(api, &resources).await?;
    let session = session?;
    api.post(&format!("/v1/agents/{agent}/archive"), &json!({})).await?;
    api.post(&format!("/v1/environments/{environment}/archive"), &json!({})).await?;
    Ok(id_of(&session)?.to_owned())
}

/// Closed unless somebody opened it.
fn environment(allowed: &[String]) -> Value {
    let networking = json!({ "type": "limited", "allowed_hosts": allowed });
    json!({ "name": "run", "config": { "type": "cloud", "networking": networking } })
}

fn id_of(made: &Value) -> anyhow::Result<&str> {
    match made["id"].as_str() {
        Some(id) => Ok(id),
        None => bail!("the API answered without an id"),
    }
}
