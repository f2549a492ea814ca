//! What a sandbox costs against a plain process: create + `true` + destroy as a ratio to spawning
//! `/bin/true`, measured in turns on the same machine. Run with `--release`.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use tailstep_sandbox::{Call, Sandbox, Spec};

const ROUNDS: usize = 200;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let workspace = std::env::temp_dir().join(format!("spawn-cost-{}", std::process::id()));
    std::fs::create_dir(&workspace)?;
    let (mut plain, mut empty, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        plain.push(timed(async || Command::new("/bin/true").status().map(drop)).await?);
        empty.push(
            timed(async || {
                Sandbox::provision(&Spec::new(&workspace)).await?.destroy().await;
                Ok::<_, tailstep_sandbox::SandboxError>(())
            })
            .await?,
        );
        whole.push(
            timed(async || {
                let sandbox = Sandbox::provision(&Spec::new(&workspace)).await?;
                let call = Call {
                    call_id: round.to_string(),
                    tool: "bash".into(),
                    input: r#"{"command":"/bin/true"}"#.into(),
                    timeout_ms: 10_000,
                };
                sandbox.execute(call).await?;
                sandbox.destroy().await;
                Ok::<_, tailstep_sandbox::SandboxError>(())
            })
            .await?,
        );
    }
    std::fs::remove_dir(&workspace)?;
    let base = spread(&mut plain);
    report("plain spawn of true", base, base);
    report("provision + destroy", spread(&mut empty), base);
    report("provision + true in the shell + destroy", spread(&mut whole), base);
    Ok(())
}

async fn timed<E>(work: impl AsyncFnOnce() -> Result<(), E>) -> Result<Duration, E> {
    let start = Instant::now();
    work().await?;
    Ok(start.elapsed())
}

/// The shortest and the middle time: on a busy machine the first says more about the work itself.
fn spread(times: &mut [Duration]) -> [Duration; 2] {
    times.sort();
    [times[0], times[times.len() / 2]]
}

#[allow(clippy::print_stdout, reason = "printing is what this program is for")]
fn report(what: &str, times: [Duration; 2], base: [Duration; 2]) {
    let [least, middle] = times.map(|time| time.as_secs_f64() * 1e3);
    let [least_x, middle_x] = [0, 1].map(|at| times[at].as_secs_f64() / base[at].as_secs_f64());
    println!(
        "{what:40} least {least:7.3} ms {least_x:5.1} x   median {middle:7.3} ms {middle_x:5.1} x"
    );
}
