//! What sandboxes cost against plain processes, in ratios measured in turns on the same machine, by
//! a process that holds 500 MB. Run it optimised: `make bench-sandbox`. The first argument is the
//! `tailstep` program; bubblewrap is measured beside it when it is installed.

use std::{
    error::Error,
    fs::File,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use tailstep_sandbox::{
    Call, Sandbox, Spec,
    program::{End, Exited, Program, Workspace, supervise},
};

/// Rounds. In each one every kind of work runs once, right after a plain process, so that what else the
/// machine does meets both alike.
const ROUNDS: usize = 200;

/// Before each run, so that what the kernel still takes apart of the one before is not counted; the last
/// figures are without it.
const PAUSE: Duration = Duration::from_millis(5);

/// What a runtime may hold while it starts sandboxes.
const HELD_BYTES: usize = 500 << 20;

/// Sandboxes at one time.
const SIDE_BY_SIDE: usize = 8;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    // As a runtime does it, in a task.
    tokio::spawn(async { measure().await.map_err(|why| why.to_string()) }).await??;
    Ok(())
}

#[allow(clippy::print_stdout, reason = "printing is what this program is for")]
async fn measure() -> Result<(), Box<dyn Error>> {
    let program =
        std::env::args_os().nth(1).map(PathBuf::from).ok_or("usage: spawn_cost TAILSTEP")?;
    // Written to, so that it is there and a fork would have to copy its page tables.
    let held = vec![1u8; HELD_BYTES];
    let workspace = std::env::temp_dir().join(format!("spawn-cost-{}", std::process::id()));
    std::fs::create_dir(&workspace)?;
    let live = Sandbox::provision(&Spec::new(&workspace)).await?;
    let mut works = vec![Work::Program, Work::Command, Work::Whole, Work::Live];
    if Command::new("bwrap").arg("--version").stdout(Stdio::null()).status().is_ok() {
        works.push(Work::Bubblewrap);
    } else {
        println!("bubblewrap is not installed and not measured");
    }
    let scene = Scene { program, workspace: workspace.clone(), live };
    let mut costs: Vec<Cost> = works.into_iter().map(Cost::new).collect();
    for round in 0..ROUNDS {
        for cost in &mut costs {
            cost.round(&scene, round).await?;
        }
    }
    println!("{:42} {:>24} {:>24}", "milliseconds (times a plain process)", "least", "median");
    for cost in &mut costs {
        cost.report();
    }
    without_pause(&scene).await?;
    side_by_side(&workspace).await?;
    drop(scene);
    std::fs::remove_dir_all(&workspace)?;
    println!("held meanwhile: {} MB", held.len() >> 20);
    Ok(())
}

struct Scene {
    program: PathBuf,
    workspace: PathBuf,
    live: Sandbox,
}

#[derive(Clone, Copy)]
enum Work {
    Plain,
    Program,
    Command,
    Whole,
    Live,
    Bubblewrap,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain /bin/true",
            Self::Program => "create, /bin/true, destroy",
            Self::Command => "tailstep sandbox run -- /bin/true",
            Self::Whole => "create, bash call of /bin/true, destroy",
            Self::Live => "bash call of /bin/true in a live sandbox",
            Self::Bubblewrap => "bubblewrap --unshare-all /bin/true",
        }
    }

    async fn run(self, scene: &Scene, round: usize) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Plain => done(&mut Command::new("/bin/true")),
            Self::Program => program(&scene.workspace).await,
            Self::Command => {
                done(Command::new(&scene.program).args(["sandbox", "run", "--", "/bin/true"]))
            }
            Self::Whole => {
                let sandbox = Sandbox::provision(&Spec::new(&scene.workspace)).await?;
                call(&sandbox, "only").await?;
                sandbox.destroy().await;
                Ok(())
            }
            Self::Live => call(&scene.live, &format!("call {round}")).await,
            Self::Bubblewrap => done(
                Command::new("bwrap")
                    .args(["--unshare-all", "--die-with-parent", "--new-session"])
                    .args(["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"])
                    .args(["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"])
                    .args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "/bin/true"]),
            ),
        }
    }
}

fn done(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status = command.stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}").into()) }
}

async fn program(workspace: &Path) -> Result<(), Box<dyn Error>> {
    let program =
        Program { argv: vec!["/bin/true".into()], directory: None, workspace: Workspace::Mounted };
    let nothing = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    let streams = [nothing()?, nothing()?, nothing()?];
    let end = supervise(&Spec::new(workspace), &program, streams, |_, _| {}).await?;
    if end == End::Exited(Exited::Code(0)) { Ok(()) } else { Err(format!("{end:?}").into()) }
}

async fn call(sandbox: &Sandbox, id: &str) -> Result<(), Box<dyn Error>> {
    let call = Call {
        call_id: id.into(),
        tool: "bash".into(),
        input: r#"{"command":"/bin/true"}"#.into(),
        timeout_ms: 10_000,
    };
    let reply = sandbox.execute(call).await?;
    if reply.is_error { Err(reply.text.into()) } else { Ok(()) }
}

/// Many at once must work as well as one.
#[allow(clippy::print_stdout, reason = "printing is what this program is for")]
async fn side_by_side(workspace: &Path) -> Result<(), Box<dyn Error>> {
    let mut failures = 0;
    let start = Instant::now();
    for _ in 0..ROUNDS / 10 {
        let mut running = Vec::new();
        for at in 0..SIDE_BY_SIDE {
            let own = workspace.join(format!("side-{at}"));
            std::fs::create_dir_all(&own)?;
            running.push(tokio::spawn(async move {
                let sandbox =
                    Sandbox::provision(&Spec::new(own)).await.map_err(|e| e.to_string())?;
                call(&sandbox, "only").await.map_err(|e| e.to_string())?;
                sandbox.destroy().await;
                Ok::<(), String>(())
            }));
        }
        for one in running {
            if let Err(why) = one.await? {
                println!("failed: {why}");
                failures += 1;
            }
        }
    }
    let (all, ms) = (ROUNDS / 10 * SIDE_BY_SIDE, start.elapsed().as_secs_f64() * 1e3);
    println!(
        "{SIDE_BY_SIDE} at a time: {all} sandboxes, {failures} failures, {:.2} ms each",
        ms / all as f64
    );
    Ok(())
}

struct Cost {
    work: Work,
    plain: Vec<Duration>,
    times: Vec<Duration>,
}

impl Cost {
    fn new(work: Work) -> Self {
        Self { work, plain: Vec::new(), times: Vec::new() }
    }

    async fn round(&mut self, scene: &Scene, round: usize) -> Result<(), Box<dyn Error>> {
        for (work, times) in [(Work::Plain, &mut self.plain), (self.work, &mut self.times)] {
            tokio::time::sleep(PAUSE).await;
            let start = Instant::now();
            work.run(scene, round).await?;
            times.push(start.elapsed());
        }
        Ok(())
    }

    #[allow(clippy::print_stdout, reason = "printing is what this program is for")]
    fn report(&mut self) {
        self.plain.sort();
        self.times.sort();
        print!("{:42}", self.work.name());
        for at in [0, ROUNDS / 2] {
            let [time, plain] = [&self.times, &self.plain].map(|times| ms(times[at]));
            print!("   {time:7.3} / {plain:5.3} = {:4.1}", time / plain);
        }
        println!();
    }
}

/// As fast as one task can.
#[allow(clippy::print_stdout, reason = "printing is what this program is for")]
async fn without_pause(scene: &Scene) -> Result<(), Box<dyn Error>> {
    let mut each = [0.0; 2];
    for (work, each) in [Work::Plain, Work::Program].into_iter().zip(&mut each) {
        let start = Instant::now();
        for round in 0..ROUNDS {
            work.run(scene, round).await?;
        }
        *each = ms(start.elapsed()) / ROUNDS as f64;
    }
    let [plain, sandbox] = each;
    println!(
        "without a pause: {}: {sandbox:.3} ms on average, {:.1} times the {plain:.3} ms of a plain process",
        Work::Program.name(),
        sandbox / plain
    );
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
