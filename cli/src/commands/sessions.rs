//! `tailstep sessions`: what a data directory holds, newest first.

use std::{
    io::{Write, stdout},
    process::ExitCode,
};

use serde_json::Value;

use super::DataArgs;
use crate::{
    home::{Home, Tools},
    logging,
    style::visible,
};

/// Characters of a title in the list.
const TITLE_CHARS_SHOWN: usize = 60;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also list sessions that are over
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    data: DataArgs,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    logging::start(args.data.log.as_deref(), "warn")?;
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    threads.block_on(async {
        let home = Home::open_existing(&args.data.data, Tools::None).await?;
        let sessions =
            home.api().list(&format!("/v1/sessions?include_archived={}", args.all)).await?;
        home.close().await;
        let mut out = stdout().lock();
        for session in &sessions {
            writeln!(out, "{}", line(session))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn line(session: &Value) -> String {
    let text = |field: &str| visible(session[field].as_str().unwrap_or_default());
    let title: String =
        text("title").lines().next().unwrap_or_default().chars().take(TITLE_CHARS_SHOWN).collect();
    format!("{}  {:<10}  {}  {title}", text("id"), text("status"), text("created_at"))
}
