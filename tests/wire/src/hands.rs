//! The laws of the hands: what `ports::Hands` promises, whatever machine stands behind it.
//!
//! A session here is a log reduced to what hands see of it: the number of the next call, and the
//! workspace that the last one left.

mod faults;
mod laws;
mod session;

use std::{any::Any, future::Future, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use tailstep_core::ids::SessionKey;
use tailstep_runtime::ports::{Hands, ToolReply};

pub use self::session::Session;
use crate::law::laws;

/// Hands under test.
pub struct Subject {
    pub hands: Arc<dyn Hands>,
    pub provider: Arc<dyn Provider>,
    /// A directory outside every sandbox in which commands may write: where it is, and where they
    /// see it.
    pub outside: Outside,
    pub walls: Walls,
    /// The faults that this provider can have, each with what has to come of it.
    pub faults: Vec<Fault>,
    /// What has to live as long as the hands, such as a scratch directory.
    pub keep: Box<dyn Any + Send + Sync>,
}

#[derive(Debug, Clone)]
pub struct Outside {
    pub here: PathBuf,
    pub inside: PathBuf,
}

/// Who keeps sandboxes apart that run on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walls {
    /// The sandboxes themselves.
    Own,
    /// The provider, by a machine for each. A test on one machine has no such wall, so there the laws
    /// look into a session's own places only.
    Providers,
}

/// What stands behind the hands, seen from where its operator stands.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Sandboxes that would cost something now.
    async fn live(&self) -> usize;

    /// Kills the session's sandbox as a crash of its machine would. `false` when there is none.
    async fn kill(&self, key: &SessionKey) -> bool;

    /// The name of the session's sandbox at the provider, where it has one of its own.
    async fn name(&self, key: &SessionKey) -> Option<String>;

    /// Requests that came to the provider so far.
    fn requests(&self) -> usize;

    /// The next request that this fault can hit meets it. Once.
    fn inject(&self, fault: &str);

    /// Faults that no request has met.
    fn pending(&self) -> usize;
}

/// One thing that goes wrong, once.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// As [`Provider::inject`] takes it.
    pub name: &'static str,
    pub ending: Ending,
    /// The most requests to the provider that the call may cost.
    pub requests_max: usize,
    /// What the same call, delivered again without a fault, may find.
    pub again: Again,
}

/// What a call that meets a fault comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// As if nothing had happened.
    Answered,
    /// In another sandbox, and the reply says so.
    AnsweredAnew,
    /// An error reply that the model can act on; nothing ran.
    Refused,
    Unavailable,
    Lost,
}

/// Whether a call that met a fault had run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// It ran in a sandbox that still lives: its first result is found, and it runs no second time.
    Remembered,
    /// It did not run, and does now.
    Runs,
}

/// What a command comes to in a session of its own, for tests of one back end.
pub async fn one_call(s: &Subject, command: &str) -> ToolReply {
    Session::new().bash(s, command).await
}

/// A session that has a sandbox.
pub async fn started(s: &Subject) -> SessionKey {
    let mut one = Session::new();
    one.text(s, "true").await;
    one.key
}

/// Runs every law of the hands.
pub async fn all<F>(make: impl Fn() -> F)
where
    F: Future<Output = Subject>,
{
    laws!(
        "hands",
        make,
        [
            laws::commands_answer_with_output_and_exit_code,
            laws::files_are_written_read_edited_and_found,
            laws::a_workspace_and_a_shell_last_from_call_to_call,
            laws::a_call_delivered_again_runs_once,
            laws::a_deadline_ends_the_call_and_all_that_it_started,
            laws::a_flood_of_output_is_bounded,
            laws::sessions_share_nothing,
            laws::a_sandbox_is_named_by_its_session,
            laws::a_sandbox_lost_between_calls_is_replaced_and_the_model_is_told,
            laws::a_large_workspace_outlives_its_sandbox,
            laws::a_sandbox_lost_in_a_call_is_said_to_be_lost,
            laws::releasing_is_idempotent_and_leaves_nothing,
            laws::secrets_of_the_host_are_not_inside,
            faults::every_fault_has_its_ending,
        ]
    );
}
