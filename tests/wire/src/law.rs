//! How laws run: each alone, on its own subject, and all of them even if some are broken.

use std::{any::Any, future::Future, pin::Pin, time::Duration};

use tokio::time::{Instant, sleep, timeout};

/// How long the service under an adapter may take, so that laws about time hold on a slow machine
/// and do not wait on a fast one.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// A received message is hidden for this long.
    pub visibility_ms: u64,
    /// The smallest step of the service's delays: laws ask for multiples of it.
    pub step_ms: u64,
    /// How far the service's clock may be off ours when it decides that a delay is over.
    pub slack_ms: u64,
    /// Something that has to happen has happened after this long, however busy the machine is.
    pub patience_ms: u64,
}

impl Timing {
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }
}

/// Does to what is stored what a failing disk would do.
pub type Sabotage<T> = Box<dyn Fn(T) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Longest time for one law. It only ends a law that would never end.
const LAW_MAX: Duration = Duration::from_secs(180);

/// Runs one law; says its name and what it found when it is broken.
pub(crate) async fn hold(
    name: &str,
    law: impl Future<Output = ()> + Send + 'static,
) -> Option<String> {
    let mut task = tokio::spawn(law);
    match timeout(LAW_MAX, &mut task).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => {
            let found = error.try_into_panic().map_or_else(|e| e.to_string(), |p| text(&*p));
            Some(format!("{name}: {found}"))
        }
        Err(_) => {
            task.abort();
            Some(format!("{name}: has not ended after {LAW_MAX:?}"))
        }
    }
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Runs each law on a subject of its own and panics with the names of the broken ones.
macro_rules! laws {
    ($port:literal, $make:expr, [$($module:ident :: $law:ident),+ $(,)?]) => {{
        let make = $make;
        let mut broken: Vec<String> = Vec::new();
        $({
            let subject = make().await;
            broken.extend($crate::law::hold(stringify!($law), $module::$law(subject)).await);
        })+
        assert!(broken.is_empty(), "broken laws of the {} port:\n{}", $port, broken.join("\n"));
    }};
}
pub(crate) use laws;

/// Waits until `look` answers `true`.
pub(crate) async fn eventually<F>(timing: Timing, what: &str, look: impl Fn() -> F)
where
    F: Future<Output = bool>,
{
    let until = Instant::now() + timing.patience();
    while !look().await {
        assert!(Instant::now() < until, "still not so: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
