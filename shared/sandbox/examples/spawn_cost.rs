//! What a sandbox costs against a plain process: create + `true` + destroy as a ratio to spawning
//! `/bin/true`, measured in turns on the same machine. Run it optimised.

use std::{
    error::Error,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use tailstep_sandbox::{Call, Sandbox, Spec};

/// Each kind of work runs in short turns, so that what else the machine does meets all alike.
const TURNS: usize = 10;
const ROUNDS_PER_TURN: usize = 20;

/// Processor time is counted in ticks of 1/100 s (`sysconf(_SC_CLK_TCK)` on Linux).
const TICK_MS: f64 = 10.0;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let workspace = std::env::temp_dir().join(format!("spawn-cost-{}", std::process::id()));
    std::fs::create_dir(&workspace)?;
    let mut costs = [Work::Plain, Work::Empty, Work::Whole].map(Cost::new);
    for _ in 0..TURNS {
        for cost in &mut costs {
            cost.turn(&workspace).await?;
        }
    }
    std::fs::remove_dir(&workspace)?;
    let base = costs[0].figures();
    for cost in &mut costs {
        report(cost.work.name(), cost.figures(), base);
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Work {
    Plain,
    Empty,
    Whole,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain spawn of true",
            Self::Empty => "provision + destroy",
            Self::Whole => "provision + true in the shell + destroy",
        }
    }

    async fn run(self, workspace: &Path) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Plain => {
                Command::new("/bin/true").status()?;
            }
            Self::Empty => Sandbox::provision(&Spec::new(workspace)).await?.destroy().await,
            Self::Whole => {
                let sandbox = Sandbox::provision(&Spec::new(workspace)).await?;
                let call = Call {
                    call_id: "only".into(),
                    tool: "bash".into(),
                    input: r#"{"command":"/bin/true"}"#.into(),
                    timeout_ms: 10_000,
                };
                sandbox.execute(call).await?;
                sandbox.destroy().await;
            }
        }
        Ok(())
    }
}

struct Cost {
    work: Work,
    times: Vec<Duration>,
    processor_ms: f64,
}

impl Cost {
    fn new(work: Work) -> Self {
        Self { work, times: Vec::new(), processor_ms: 0.0 }
    }

    async fn turn(&mut self, workspace: &Path) -> Result<(), Box<dyn Error>> {
        let before = processor_ms()?;
        for _ in 0..ROUNDS_PER_TURN {
            let start = Instant::now();
            self.work.run(workspace).await?;
            self.times.push(start.elapsed());
        }
        self.processor_ms += processor_ms()? - before;
        Ok(())
    }

    /// Milliseconds a round: the shortest time, the middle one, processor time on average.
    fn figures(&mut self) -> [f64; 3] {
        self.times.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let rounds = self.times.len();
        [ms(self.times[0]), ms(self.times[rounds / 2]), self.processor_ms / rounds as f64]
    }
}

/// Processor time of this process and the children it has waited for.
fn processor_ms() -> Result<f64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // utime, stime, cutime, cstime: fields 14 to 17, of which the name ended the second.
    let ticks: u64 = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(ticks as f64 * TICK_MS)
}

#[allow(clippy::print_stdout, reason = "printing is what this program is for")]
fn report(what: &str, figures: [f64; 3], base: [f64; 3]) {
    print!("{what:40}");
    for ((name, figure), base) in ["least", "median", "processor"].iter().zip(figures).zip(base) {
        print!("  {name} {figure:7.3} ms {:5.1} x", figure / base);
    }
    println!();
}
