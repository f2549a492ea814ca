//! The provider's side: making, finding, waking and ending machines. Every loop here is bounded.

use std::time::Duration;

use aws_sdk_lambdamicrovms::{
    Client,
    error::SdkError,
    operation::run_microvm::{RunMicrovmError, RunMicrovmOutput},
    types::{IdlePolicy, MicrovmState, PortSpecification},
};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_types::retry::RetryConfig;
use tailstep_runtime::ports::HandsError;
use tokio::time::sleep;

use super::{MicroVmConfig, record::Machine};
use crate::{
    hands::wait,
    trouble::{Trouble, sort},
};

/// The most that the provider is told in a start payload. It takes 16,384 bytes in our service model
/// and has taken 4,096; what is sent here is far below either.
pub(super) const PAYLOAD_BYTES_MAX: usize = 4_096;
/// Requests for one machine, the first included: a quota frees up when another session's machine ends.
const RUN_ATTEMPTS_MAX: u32 = 4;
/// Looks at a machine that is changing its state.
const LOOKS_MAX: u32 = 20;
/// Between two of them; a resume takes about a second.
const LOOK: Duration = Duration::from_millis(500);
/// The longest life of a token that the provider gives.
const TOKEN_MINUTES: i32 = 60;
/// Machines on one page of the provider's list.
const PAGE: i32 = 50;
/// Pages read in one reaping; the next one reads on from a list that is shorter by then.
const PAGES_MAX: usize = 200;

/// How a machine was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Up,
    Asleep,
    Gone,
}

pub(super) struct Machines<'a> {
    pub(super) client: &'a Client,
    pub(super) config: &'a MicroVmConfig,
}

impl Machines<'_> {
    /// Makes the machine that `client_token` stands for, or finds it if it is made already.
    pub(super) async fn run(
        &self,
        client_token: &str,
        payload: &str,
    ) -> Result<Machine, HandsError> {
        if payload.len() > PAYLOAD_BYTES_MAX {
            let what = format!("start payload has {} bytes, more than 4,096", payload.len());
            return Err(HandsError::Unavailable { what });
        }
        for attempt in 1.. {
            let error = match self.run_once(client_token, payload).await {
                Ok(made) => return Ok(Machine { id: made.microvm_id, endpoint: made.endpoint }),
                Err(error) => error,
            };
            match again(&error) {
                Some(asked_s) if attempt < RUN_ATTEMPTS_MAX => sleep(wait(attempt, asked_s)).await,
                Some(_) | None => return Err(unavailable(sort("start a microVM", &error))),
            }
        }
        Err(HandsError::Unavailable { what: "start a microVM: no attempt was made".to_owned() })
    }

    async fn run_once(
        &self,
        client_token: &str,
        payload: &str,
    ) -> Result<RunMicrovmOutput, SdkError<RunMicrovmError, HttpResponse>> {
        let config = self.config;
        let idle = IdlePolicy::builder()
            .max_idle_duration_seconds(config.idle_s)
            .suspended_duration_seconds(config.suspended_s)
            .auto_resume_enabled(true)
            .build()
            .map_err(SdkError::construction_failure)?;
        self.client
            .run_microvm()
            .client_token(client_token)
            .image_identifier(&config.image)
            .set_image_version(config.image_version.clone())
            // Both always: what is left out means the open internet in both directions.
            .set_ingress_network_connectors(Some(config.ingress.clone()))
            .set_egress_network_connectors(Some(config.egress.clone()))
            .maximum_duration_in_seconds(config.life_s)
            .idle_policy(idle)
            .run_hook_payload(payload)
            .customize()
            // The loop above repeats it: it knows quotas, and what the provider asks for.
            .config_override(
                aws_sdk_lambdamicrovms::Config::builder().retry_config(RetryConfig::disabled()),
            )
            .send()
            .await
    }

    /// A token for the daemon's port of this machine.
    pub(super) async fn token(&self, id: &str) -> Result<String, HandsError> {
        let made = self
            .client
            .create_microvm_auth_token()
            .microvm_identifier(id)
            .expiration_in_minutes(TOKEN_MINUTES)
            .allowed_ports(PortSpecification::Port(self.config.port))
            .send()
            .await
            .map_err(|error| unavailable(sort("open a microVM", &error)))?;
        let token = made.auth_token.get("X-aws-proxy-auth").cloned();
        token.ok_or_else(|| HandsError::Unavailable {
            what: "open a microVM: the answer has no token".to_owned(),
        })
    }

    /// Asks the provider, and waits while the machine changes its state.
    pub(super) async fn look(&self, id: &str) -> Result<Found, HandsError> {
        for _ in 0..LOOKS_MAX {
            let found = match self.client.get_microvm().microvm_identifier(id).send().await {
                Ok(found) => found,
                Err(error)
                    if error
                        .as_service_error()
                        .is_some_and(|e| e.is_resource_not_found_exception()) =>
                {
                    return Ok(Found::Gone);
                }
                Err(error) => return Err(unavailable(sort("look at a microVM", &error))),
            };
            // Another project's enumeration, which may grow: the rest is on its way to somewhere.
            match found.state.as_str() {
                "RUNNING" => return Ok(Found::Up),
                "SUSPENDED" => return Ok(Found::Asleep),
                "TERMINATED" | "TERMINATING" => return Ok(Found::Gone),
                _ => sleep(LOOK).await,
            }
        }
        Err(HandsError::Unavailable { what: format!("microVM {id} does not come up") })
    }

    pub(super) async fn resume(&self, id: &str) -> Result<(), HandsError> {
        match self.client.resume_microvm().microvm_identifier(id).send().await {
            Ok(_) => Ok(()),
            // It is waking already: an earlier answer was lost, or a request woke it.
            Err(error) if error.as_service_error().is_some_and(|e| e.is_conflict_exception()) => {
                Ok(())
            }
            Err(error) => Err(unavailable(sort("resume a microVM", &error))),
        }
    }

    /// Ends a machine, if there is one. Idempotent.
    pub(super) async fn terminate(&self, id: &str) -> Result<(), HandsError> {
        match self.client.terminate_microvm().microvm_identifier(id).send().await {
            Ok(_) => Ok(()),
            Err(error)
                if error.as_service_error().is_some_and(|e| {
                    e.is_resource_not_found_exception() || e.is_conflict_exception()
                }) =>
            {
                // It has ended, or is ending.
                Ok(())
            }
            Err(error) => Err(unavailable(sort("terminate a microVM", &error))),
        }
    }

    /// Ids of all machines of our image that are not ending.
    pub(super) async fn list(&self) -> Result<Vec<String>, HandsError> {
        let (mut ids, mut next) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let page = self
                .client
                .list_microvms()
                .image_identifier(&self.config.image)
                .max_results(PAGE)
                .set_next_token(next)
                .send()
                .await
                .map_err(|error| unavailable(sort("list microVMs", &error)))?;
            let live = page.items.into_iter().filter(|item| {
                !matches!(item.state, MicrovmState::Terminated | MicrovmState::Terminating)
            });
            ids.extend(live.map(|item| item.microvm_id));
            next = page.next_token;
            if next.is_none() {
                break;
            }
        }
        Ok(ids)
    }
}

/// Whether a request for a machine is worth repeating, with the seconds that the provider asks for.
/// Repeating is safe in any case: its token never makes a second machine.
fn again(error: &SdkError<RunMicrovmError, HttpResponse>) -> Option<Option<u64>> {
    let seconds = |asked: Option<i32>| asked.and_then(|seconds| u64::try_from(seconds).ok());
    match error.as_service_error() {
        Some(RunMicrovmError::ThrottlingException(busy)) => {
            Some(seconds(busy.retry_after_seconds()))
        }
        Some(RunMicrovmError::InternalServerException(broken)) => {
            Some(seconds(broken.retry_after_seconds()))
        }
        Some(
            RunMicrovmError::ServiceQuotaExceededException(_)
            | RunMicrovmError::InsufficientCapacityException(_),
        ) => Some(None),
        Some(_) => None,
        None if matches!(error, SdkError::ConstructionFailure(_)) => None,
        // Its answer was lost.
        None => Some(None),
    }
}

fn unavailable(trouble: Trouble) -> HandsError {
    let (Trouble::Unavailable(what) | Trouble::Refused(what)) = trouble;
    HandsError::Unavailable { what }
}
