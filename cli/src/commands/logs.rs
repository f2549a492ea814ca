//! `tailstep logs`: what happened in a session.

use std::process::ExitCode;

use super::DataArgs;
use crate::{
    api::event,
    home::{Home, Tools},
    logging,
    show::Form,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The session's id, as `tailstep sessions` lists it
    #[arg(value_name = "SESSION")]
    session: String,

    /// Print one event a line, as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    data: DataArgs,
}

pub(crate) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    logging::start(args.data.log.as_deref(), "warn")?;
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    threads.block_on(async {
        let home = Home::open_existing(&args.data.data, Tools::None).await?;
        let events = home.api().list(&format!("/v1/sessions/{}/events", args.session)).await;
        home.close().await;
        let form = Form::new(args.json);
        for fields in events? {
            form.print(&event(&fields.to_string())?)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}
