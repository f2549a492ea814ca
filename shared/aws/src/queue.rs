//! Wake-ups in a standard SQS queue, and in one-time schedules of EventBridge Scheduler where SQS
//! cannot wait long enough.
//!
//! A schedule's message has no message group, since Scheduler gives one to FIFO queues only: such
//! wake-ups are rare and take no part in the fair sharing between tenants.

use async_trait::async_trait;
use aws_sdk_scheduler::{
    operation::create_schedule::CreateScheduleError,
    types::{ActionAfterCompletion, FlexibleTimeWindow, FlexibleTimeWindowMode, Target},
};
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};
use aws_smithy_types::{DateTime, date_time::Format, error::metadata::ProvideErrorMetadata};
use tailstep_core::ids::sha256_hex;
use tailstep_runtime::ports::{Clock, Delivery, Queue, QueueError, SystemClock, Wake};

use crate::{
    clients::Clients,
    config::WakeConfig,
    trouble::{from_trouble, sort},
};

/// Longest `DelaySeconds` (service limit).
const DELAY_S_MAX: u64 = 900;
/// Longest `VisibilityTimeout` (service limit: twelve hours).
const HIDDEN_S_MAX: u64 = 43_200;
/// Longest `WaitTimeSeconds` (service limit).
const WAIT_S_MAX: u64 = 20;
/// Most messages in one receive (service limit).
const RECEIVE_MAX: usize = 10;
/// Longest message group id (service limit).
const GROUP_CHARS_MAX: usize = 128;

from_trouble!(QueueError);

#[derive(Debug, Clone)]
pub struct SqsQueue {
    sqs: aws_sdk_sqs::Client,
    scheduler: aws_sdk_scheduler::Client,
    config: WakeConfig,
}

impl SqsQueue {
    pub fn new(clients: &Clients, config: WakeConfig) -> Self {
        Self { sqs: clients.sqs.clone(), scheduler: clients.scheduler.clone(), config }
    }
}

#[async_trait]
impl Queue for SqsQueue {
    async fn send(&self, wake: &Wake, delay_ms: u64) -> Result<(), QueueError> {
        let delay_s = delay_ms.div_ceil(1_000);
        if delay_s > DELAY_S_MAX {
            return self.schedule(wake, delay_s).await;
        }
        self.sqs
            .send_message()
            .queue_url(&self.config.queue_url)
            .message_body(wake.encode())
            .message_group_id(group(&wake.key.tenant))
            .delay_seconds(i32::try_from(delay_s).unwrap_or(0))
            .send()
            .await
            .map_err(|error| sort("send wake-up", &error))?;
        Ok(())
    }

    async fn receive(&self, max: usize, wait_ms: u64) -> Result<Vec<Delivery>, QueueError> {
        let answer = self
            .sqs
            .receive_message()
            .queue_url(&self.config.queue_url)
            .max_number_of_messages(i32::try_from(max.clamp(1, RECEIVE_MAX)).unwrap_or(1))
            .wait_time_seconds(seconds(wait_ms, WAIT_S_MAX))
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount)
            .message_system_attribute_names(MessageSystemAttributeName::SentTimestamp)
            .message_system_attribute_names(
                MessageSystemAttributeName::ApproximateFirstReceiveTimestamp,
            )
            .send()
            .await
            .map_err(|error| sort("receive wake-ups", &error))?;
        let mut deliveries = Vec::new();
        for message in answer.messages() {
            match delivery(message) {
                Ok(delivery) => deliveries.push(delivery),
                // Left where it is: for newer code, or for the dead-letter queue.
                Err(error) => tracing::error!(%error, "wake-up cannot be used"),
            }
        }
        Ok(deliveries)
    }

    async fn ack(&self, delivery: &Delivery) -> Result<(), QueueError> {
        if delivery.receipt.is_empty() {
            return Ok(());
        }
        let sent = self
            .sqs
            .delete_message()
            .queue_url(&self.config.queue_url)
            .receipt_handle(&delivery.receipt)
            .send()
            .await;
        match sent {
            Ok(_) => Ok(()),
            // Acknowledged before, by a request whose answer was lost.
            Err(error) if is_gone(error.code()) => Ok(()),
            Err(error) => Err(sort("acknowledge wake-up", &error).into()),
        }
    }

    async fn hide(&self, delivery: &Delivery, hidden_ms: u64) -> Result<(), QueueError> {
        if delivery.receipt.is_empty() {
            return Ok(());
        }
        let sent = self
            .sqs
            .change_message_visibility()
            .queue_url(&self.config.queue_url)
            .receipt_handle(&delivery.receipt)
            .visibility_timeout(seconds(hidden_ms, HIDDEN_S_MAX))
            .send()
            .await;
        match sent {
            Ok(_) => Ok(()),
            // Deleted, or visible to others already: there is nothing left to hide.
            Err(error) if is_gone(error.code()) => Ok(()),
            Err(error) => Err(sort("hide wake-up", &error).into()),
        }
    }
}

impl SqsQueue {
    /// A one-time schedule that sends the same message and then deletes itself.
    async fn schedule(&self, wake: &Wake, delay_s: u64) -> Result<(), QueueError> {
        let at_s = SystemClock.now_ms().div_ceil(1_000).saturating_add(delay_s);
        let bug = |error: aws_sdk_scheduler::error::BuildError| QueueError::Refused {
            what: format!("schedule wake-up: {error}"),
        };
        let target = Target::builder()
            .arn(&self.config.queue_arn)
            .role_arn(&self.config.schedule_role_arn)
            .input(wake.encode())
            .build()
            .map_err(bug)?;
        let exactly =
            FlexibleTimeWindow::builder().mode(FlexibleTimeWindowMode::Off).build().map_err(bug)?;
        let sent = self
            .scheduler
            .create_schedule()
            .name(schedule_name(wake, at_s))
            .group_name(&self.config.schedule_group)
            .schedule_expression(at_expression(at_s)?)
            .schedule_expression_timezone("UTC")
            .flexible_time_window(exactly)
            .action_after_completion(ActionAfterCompletion::Delete)
            .target(target)
            .send()
            .await;
        match sent {
            Ok(_) => Ok(()),
            // The name says everything that is in it, so the one that exists is this one.
            Err(error) => match error.as_service_error() {
                Some(CreateScheduleError::ConflictException(_)) => Ok(()),
                _ => Err(sort("schedule wake-up", &error).into()),
            },
        }
    }
}

/// A message as a delivery. Lambda's event source hands over the same parts under its own names:
/// `receipt`, and the attributes `SentTimestamp`, `ApproximateFirstReceiveTimestamp` and
/// `ApproximateReceiveCount`, which `attribute` looks up.
///
/// The time waited is that until the *first* receipt: SQS dates no later one, and its own clock is
/// the only one that may be used. For a redelivery it is a lower bound.
///
/// # Errors
/// [`QueueError::Newer`] and [`QueueError::Malformed`] for the body, as [`Wake::decode`].
pub(crate) fn wake_of<'a>(
    body: &str,
    receipt: &str,
    attribute: impl Fn(&str) -> Option<&'a str>,
) -> Result<Delivery, QueueError> {
    let number = |name: &str| attribute(name).and_then(|text| text.parse::<u64>().ok());
    let sent_ms = number("SentTimestamp");
    let first_ms = number("ApproximateFirstReceiveTimestamp");
    let receives = number("ApproximateReceiveCount").unwrap_or(1);
    Ok(Delivery {
        wake: Wake::decode(body)?,
        receipt: receipt.to_owned(),
        waited_ms: first_ms.unwrap_or(0).saturating_sub(sent_ms.unwrap_or(u64::MAX)),
        receives: u32::try_from(receives).unwrap_or(u32::MAX),
    })
}

fn delivery(message: &Message) -> Result<Delivery, QueueError> {
    let attributes = message.attributes();
    wake_of(
        message.body().unwrap_or_default(),
        message.receipt_handle().unwrap_or_default(),
        |name| attributes?.get(&MessageSystemAttributeName::from(name)).map(String::as_str),
    )
}

fn is_gone(code: Option<&str>) -> bool {
    // The first name is the JSON protocol's, the other two are the ones of the older query protocol.
    code.is_some_and(|code| {
        let name = code.rsplit('.').next().unwrap_or(code);
        matches!(name, "MessageNotInflight" | "ReceiptHandleIsInvalid" | "InvalidParameterValue")
    })
}

/// The message group of a tenant, which may hold only some characters and no more than 128.
fn group(tenant: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !tenant.is_empty() && tenant.len() <= GROUP_CHARS_MAX && tenant.bytes().all(plain) {
        tenant.to_owned()
    } else {
        sha256_hex(tenant.as_bytes())
    }
}

/// The name of a schedule (64 characters at most): the same wake-up at the same second is the same
/// schedule, so that a repeated request cannot make two.
fn schedule_name(wake: &Wake, at_s: u64) -> String {
    let digest = sha256_hex(wake.encode().as_bytes());
    format!("wake-{at_s}-{}", &digest[..32])
}

fn at_expression(at_s: u64) -> Result<String, QueueError> {
    let seconds = i64::try_from(at_s).unwrap_or(i64::MAX);
    let time = DateTime::from_secs(seconds).fmt(Format::DateTime).map_err(|error| {
        QueueError::Refused { what: format!("schedule wake-up at {at_s} s: {error}") }
    })?;
    Ok(format!("at({})", time.trim_end_matches('Z')))
}

fn seconds(ms: u64, max: u64) -> i32 {
    i32::try_from(ms.div_ceil(1_000).min(max)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use tailstep_core::ids::SessionKey;

    use super::*;

    #[test]
    fn names_and_times_of_schedules() {
        let wake = Wake::new(SessionKey::new("t", "sesn_1"));
        let name = schedule_name(&wake, 1_796_000_000);
        assert!(name.len() <= 64, "{name}");
        assert_eq!(name, schedule_name(&wake, 1_796_000_000));
        assert_ne!(name, schedule_name(&Wake::new(SessionKey::new("t", "sesn_2")), 1_796_000_000));
        assert_eq!(at_expression(1_796_000_000).unwrap(), "at(2026-11-30T00:53:20)");
    }

    #[test]
    fn any_tenant_has_a_group() {
        assert_eq!(group("default"), "default");
        let long = "x".repeat(129);
        for odd in ["", "é", "a b", long.as_str()] {
            assert_eq!(group(odd).len(), 64);
        }
    }

    #[test]
    fn waiting_is_measured_by_the_queues_clock_only() {
        let body = Wake::new(SessionKey::new("t", "s")).encode();
        let all = |name: &str| match name {
            "SentTimestamp" => Some("1000"),
            "ApproximateFirstReceiveTimestamp" => Some("16500"),
            "ApproximateReceiveCount" => Some("3"),
            _ => None,
        };
        let got = wake_of(&body, "r", all).unwrap();
        assert_eq!((got.waited_ms, got.receives), (15_500, 3));
        // Nothing known: nothing may be concluded.
        let got = wake_of(&body, "r", |_| None).unwrap();
        assert_eq!((got.waited_ms, got.receives), (0, 1));
        assert!(matches!(wake_of(r#"{"v":99}"#, "r", all), Err(QueueError::Newer { found: 99 })));
    }
}
