//! Wake-ups as Lambda's event source delivers them: a batch comes in, the failed ones are named in the
//! answer, and Lambda deletes the rest from the queue. That deletion is the acknowledgement.

use std::fmt::Display;

use aws_lambda_events::sqs::{BatchItemFailure, SqsBatchResponse, SqsEvent, SqsMessage};
use tailstep_runtime::ports::{Delivery, Queue, QueueError};

use crate::queue::wake_of;

/// How long a wake-up waits after its first failure; it doubles with each further one.
const RETRY_FIRST_MS: u64 = 2_000;
const RETRY_MAX_MS: u64 = 300_000;

/// Does `work` for each message of `event`, one after the other, and answers with those that failed.
/// A failed message comes back after a short wait instead of the queue's whole visibility time.
///
/// A message that cannot be read counts as failed: it is left for newer code, and in the end for the
/// dead-letter queue.
pub async fn handle_batch<E: Display>(
    queue: &dyn Queue,
    event: &SqsEvent,
    mut work: impl AsyncFnMut(&Delivery) -> Result<(), E>,
) -> SqsBatchResponse {
    let mut response = SqsBatchResponse::default();
    for message in &event.records {
        let receipt = message.receipt_handle.as_deref().unwrap_or_default();
        let failed = match delivery(message) {
            Ok(delivery) => match work(&delivery).await {
                Ok(()) => continue,
                Err(error) => {
                    tracing::error!(session = %delivery.wake.key, %error, "step failed");
                    delivery
                }
            },
            Err(error) => {
                tracing::error!(%error, "wake-up cannot be used");
                unreadable(message, receipt)
            }
        };
        let wait_ms = RETRY_FIRST_MS << failed.receives.saturating_sub(1).min(16);
        if let Err(error) = queue.hide(&failed, wait_ms.min(RETRY_MAX_MS)).await {
            tracing::warn!(%error, "failed wake-up keeps its long visibility time");
        }
        let mut failure = BatchItemFailure::default();
        failure.item_identifier = message.message_id.clone().unwrap_or_default();
        response.batch_item_failures.push(failure);
    }
    response
}

fn delivery(message: &SqsMessage) -> Result<Delivery, QueueError> {
    let body = message.body.as_deref().unwrap_or_default();
    let receipt = message.receipt_handle.as_deref().unwrap_or_default();
    wake_of(body, receipt, |name| message.attributes.get(name).map(String::as_str))
}

/// A delivery that carries what is needed to hide a message whose body says nothing.
fn unreadable(message: &SqsMessage, receipt: &str) -> Delivery {
    let receives = message.attributes.get("ApproximateReceiveCount");
    Delivery {
        wake: tailstep_runtime::ports::Wake::new(tailstep_core::ids::SessionKey::new("", "")),
        receipt: receipt.to_owned(),
        waited_ms: 0,
        receives: receives.and_then(|count| count.parse().ok()).unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tailstep_core::ids::SessionKey;
    use tailstep_runtime::ports::Wake;

    use super::*;

    #[derive(Default)]
    struct Hidden(Mutex<Vec<(String, u64)>>);

    #[async_trait]
    impl Queue for Hidden {
        async fn send(&self, _: &Wake, _: u64) -> Result<(), QueueError> {
            unreachable!("a batch sends nothing")
        }

        async fn receive(&self, _: usize, _: u64) -> Result<Vec<Delivery>, QueueError> {
            unreachable!("a batch is given")
        }

        async fn ack(&self, _: &Delivery) -> Result<(), QueueError> {
            unreachable!("Lambda deletes")
        }

        async fn hide(&self, delivery: &Delivery, hidden_ms: u64) -> Result<(), QueueError> {
            self.0.lock().unwrap().push((delivery.receipt.clone(), hidden_ms));
            Ok(())
        }
    }

    fn message(id: &str, body: String, receives: &str) -> SqsMessage {
        let mut message = SqsMessage::default();
        message.message_id = Some(id.into());
        message.receipt_handle = Some(format!("receipt {id}"));
        message.body = Some(body);
        message.attributes.insert("ApproximateReceiveCount".into(), receives.into());
        message
    }

    #[tokio::test]
    async fn only_failed_messages_are_named_and_they_come_back_soon() {
        let wake = |session: &str| Wake::new(SessionKey::new("t", session)).encode();
        let mut event = SqsEvent::default();
        event.records = vec![
            message("1", wake("good"), "1"),
            message("2", wake("bad"), "3"),
            message("3", r#"{"v":2,"tenant":"t"}"#.into(), "1"),
            message("4", "nonsense".into(), "40"),
        ];
        let queue = Hidden::default();
        let mut seen = Vec::new();
        let response = handle_batch(&queue, &event, async |delivery: &Delivery| {
            seen.push(delivery.wake.key.session.clone());
            if delivery.wake.key.session == "bad" { Err("broken") } else { Ok(()) }
        })
        .await;
        let failed: Vec<_> =
            response.batch_item_failures.iter().map(|f| f.item_identifier.as_str()).collect();
        assert_eq!((seen, failed), (vec!["good".to_owned(), "bad".into()], vec!["2", "3", "4"]));
        let hidden = queue.0.lock().unwrap().clone();
        let waits = [("receipt 2", 8_000), ("receipt 3", 2_000), ("receipt 4", 300_000)];
        assert_eq!(hidden, waits.map(|(receipt, ms)| (receipt.to_owned(), ms)));
    }
}
