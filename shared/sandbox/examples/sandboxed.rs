//! Runs one shell command in a sandbox over a directory and prints what the model would see:
//! `sandboxed DIRECTORY COMMAND`. The directory's files are given to the sandbox's user.

use std::{path::PathBuf, process::ExitCode};

use tailstep_sandbox::{Call, Sandbox, Spec, Strictness};

#[tokio::main(flavor = "current_thread")]
#[allow(clippy::print_stdout, reason = "printing is what this program is for")]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(command)) = (arguments.next(), arguments.next()) else {
        return Err("usage: sandboxed DIRECTORY COMMAND".into());
    };
    let mut spec = Spec::new(PathBuf::from(directory).canonicalize()?);
    spec.strictness = Strictness::BestEffort;
    spec.limits.output_bytes_max = 1 << 20;
    spec.limits.call_ms_max = 600_000;
    let sandbox = Sandbox::provision(&spec).await?;
    let input = format!("{{\"timeout_ms\":600000,\"command\":{command:?}}}");
    let call = Call { call_id: "only".into(), tool: "bash".into(), input, timeout_ms: 600_000 };
    let reply = sandbox.execute(call).await?;
    sandbox.destroy().await;
    println!("{}", reply.text);
    Ok(if reply.is_error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
