//! Stores that fail: what clients are told, and what they are not told.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use axum::{
    body::{Body, to_bytes},
    http::{Request, Response},
};
use serde_json::Value;
use tailstep_api::{App, router, router_for};
use tailstep_core::ids::{Seq, SessionKey, UnixMs};
use tailstep_runtime::ports::{
    Appended, Delivery, Document, DocumentKind, Documents, DocumentsError, Entry, Expect, Head,
    ListDocuments, ListSessions, Log, LogError, Page, Projection, Queue, QueueError, Wake,
};
use tower::ServiceExt;

use crate::bench::{Bench, message};

const SECRET: &str = "table arn:aws:secret-name";

/// How a store fails.
#[derive(Clone, Copy)]
enum How {
    Unavailable,
    Refused,
    Panics,
}

struct BrokenDocuments(How);

impl BrokenDocuments {
    fn fail<T>(&self) -> Result<T, DocumentsError> {
        let what = SECRET.to_owned();
        match self.0 {
            How::Unavailable => Err(DocumentsError::Unavailable { what }),
            How::Refused => Err(DocumentsError::Refused { what }),
            How::Panics => panic!("a bug"),
        }
    }
}

#[async_trait]
impl Documents for BrokenDocuments {
    async fn get(
        &self,
        _tenant: &str,
        _kind: DocumentKind,
        _id: &str,
    ) -> Result<Option<Document>, DocumentsError> {
        self.fail()
    }

    async fn put(&self, _document: &Document, _expect: Expect) -> Result<(), DocumentsError> {
        self.fail()
    }

    async fn list(
        &self,
        _tenant: &str,
        _kind: DocumentKind,
        _query: &ListDocuments,
    ) -> Result<Page<Document>, DocumentsError> {
        self.fail()
    }

    async fn delete(
        &self,
        _tenant: &str,
        _kind: DocumentKind,
        _id: &str,
    ) -> Result<(), DocumentsError> {
        self.fail()
    }

    async fn delete_at(
        &self,
        _tenant: &str,
        _kind: DocumentKind,
        _id: &str,
        _revision: u64,
    ) -> Result<(), DocumentsError> {
        self.fail()
    }
}

/// A log that fails its next `failures` calls of any kind, and works but for that.
struct ShakyLog {
    log: Arc<dyn Log>,
    failures: AtomicU32,
    error: fn() -> LogError,
}

impl ShakyLog {
    fn shake(&self) -> Result<(), LogError> {
        let left = self.failures.load(Ordering::SeqCst);
        if left == 0 {
            return Ok(());
        }
        self.failures.store(left - 1, Ordering::SeqCst);
        Err((self.error)())
    }
}

#[async_trait]
impl Log for ShakyLog {
    async fn head(&self, key: &SessionKey) -> Result<Option<Head>, LogError> {
        self.shake()?;
        self.log.head(key).await
    }

    async fn read(
        &self,
        key: &SessionKey,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Entry>, LogError> {
        self.shake()?;
        self.log.read(key, after, limit).await
    }

    async fn append(
        &self,
        key: &SessionKey,
        entry: &Entry,
        head: &Head,
        projection: Projection,
    ) -> Result<Appended, LogError> {
        self.shake()?;
        self.log.append(key, entry, head, projection).await
    }

    async fn project(&self, key: &SessionKey, head: &Head) -> Result<(), LogError> {
        self.log.project(key, head).await
    }

    async fn beat(
        &self,
        key: &SessionKey,
        intent: Seq,
        due_at_ms: UnixMs,
    ) -> Result<Seq, LogError> {
        self.log.beat(key, intent, due_at_ms).await
    }

    async fn changed(&self, key: &SessionKey, after: Seq, wait_ms: u64) -> Result<(), LogError> {
        self.shake()?;
        self.log.changed(key, after, wait_ms).await
    }

    async fn due(&self, until_ms: UnixMs, limit: usize) -> Result<Vec<SessionKey>, LogError> {
        self.log.due(until_ms, limit).await
    }

    async fn list(&self, tenant: &str, query: &ListSessions) -> Result<Page<Head>, LogError> {
        self.shake()?;
        self.log.list(tenant, query).await
    }

    async fn purge(&self, key: &SessionKey) -> Result<(), LogError> {
        self.log.purge(key).await
    }
}

async fn body(response: Response<Body>) -> Value {
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).header("x-api-key", "key-of-one").body(Body::empty()).unwrap()
}

#[tokio::test]
async fn broken_documents_are_told_apart_and_not_described() {
    let bench = Bench::new().await;
    for (how, status, retry_after) in
        [(How::Unavailable, 503, true), (How::Refused, 500, false), (How::Panics, 500, false)]
    {
        let app = App { documents: Arc::new(BrokenDocuments(how)), ..bench.app.clone() };
        // With a key to look up, and without.
        for router in [router(app.clone()), router_for(app.clone(), "one")] {
            let response = router.oneshot(get("/v1/agents")).await.unwrap();
            assert_eq!(response.status(), status);
            assert_eq!(response.headers().contains_key("retry-after"), retry_after);
            let request_id = response.headers()["request-id"].to_str().unwrap().to_owned();
            let said = body(response).await;
            assert_eq!(said["error"]["type"], "api_error");
            assert_eq!(said["request_id"], request_id.as_str());
            assert!(!said.to_string().contains("secret-name"), "{said}");
        }
    }
}

#[tokio::test]
async fn a_log_out_of_reach_is_503_and_a_broken_one_500() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let unavailable = || LogError::Unavailable { what: SECRET.to_owned() };
    let corrupt = || LogError::Corrupt { session: "s".to_owned(), seq: 3, what: SECRET.to_owned() };
    for (error, status) in [(unavailable as fn() -> LogError, 503), (corrupt, 500)] {
        let log = Arc::new(ShakyLog { log: bench.log.clone(), failures: 1.into(), error });
        let mut app = bench.app.clone();
        app.runtime.log = log.clone();
        let router = router(app);
        for path in [
            "/v1/sessions".to_owned(),
            format!("/v1/sessions/{session}"),
            format!("/v1/sessions/{session}/events"),
            format!("/v1/sessions/{session}/events/stream"),
        ] {
            log.failures.store(1, Ordering::SeqCst);
            let response = router.clone().oneshot(get(&path)).await.unwrap();
            assert_eq!(response.status(), status, "{path}");
            let said = body(response).await;
            assert!(!said.to_string().contains("secret-name"), "{said}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_outlives_a_log_that_is_out_of_reach_for_a_moment() {
    use http_body_util::BodyExt;

    let bench = Bench::new().await;
    let session = bench.session().await;
    let error = || LogError::Unavailable { what: SECRET.to_owned() };
    let log = Arc::new(ShakyLog { log: bench.log.clone(), failures: 0.into(), error });
    let mut app = bench.app.clone();
    app.runtime.log = log.clone();
    let router = router(app);
    let path = format!("/v1/sessions/{session}/events/stream");
    for (failures, sees) in [(5, "event: user.interrupt"), (1_000, "event: error")] {
        let mut stream = router.clone().oneshot(get(&path)).await.unwrap().into_body();
        log.failures.store(failures, Ordering::SeqCst);
        let interrupt = serde_json::json!({"events": [{"type": "user.interrupt"}]});
        bench.post(&format!("/v1/sessions/{session}/events"), &interrupt).await.ok();
        let mut seen = String::new();
        while !seen.contains(sees) {
            let frame = stream.frame().await.unwrap().unwrap().into_data().unwrap();
            seen.push_str(std::str::from_utf8(&frame).unwrap());
        }
        assert!(!seen.contains("secret-name"));
        log.failures.store(0, Ordering::SeqCst);
        if sees == "event: error" {
            assert!(seen.contains("api_error"), "{seen}");
            assert!(stream.frame().await.is_none(), "an error ends the stream");
        }
    }
}

/// The first wake-up is lost: the client gets an error, tries again, and the session wakes.
struct ForgetfulQueue {
    queue: Arc<dyn Queue>,
    losses: AtomicU32,
}

#[async_trait]
impl Queue for ForgetfulQueue {
    async fn send(&self, wake: &Wake, delay_ms: u64) -> Result<(), QueueError> {
        if self.losses.swap(0, Ordering::SeqCst) > 0 {
            return Err(QueueError::Unavailable { what: SECRET.to_owned() });
        }
        self.queue.send(wake, delay_ms).await
    }

    async fn receive(&self, max: usize, wait_ms: u64) -> Result<Vec<Delivery>, QueueError> {
        self.queue.receive(max, wait_ms).await
    }

    async fn ack(&self, delivery: &Delivery) -> Result<(), QueueError> {
        self.queue.ack(delivery).await
    }

    async fn hide(&self, delivery: &Delivery, hidden_ms: u64) -> Result<(), QueueError> {
        self.queue.hide(delivery, hidden_ms).await
    }
}

#[tokio::test]
async fn a_send_whose_wake_up_was_lost_is_mended_by_its_retry() {
    let bench = Bench::new().await;
    let session = bench.session().await;
    let mut app = bench.app.clone();
    app.runtime.queue =
        Arc::new(ForgetfulQueue { queue: bench.runtime.queue.clone(), losses: 1.into() });
    let router = router(app);
    let send = |retry: &str| {
        Request::post(format!("/v1/sessions/{session}/events"))
            .header("x-api-key", "key-of-one")
            .header("x-stainless-retry-count", retry)
            .body(Body::from(message("hi").to_string()))
            .unwrap()
    };
    let first = router.clone().oneshot(send("0")).await.unwrap();
    assert_eq!(first.status(), 503);
    assert!(!bench.step().await, "nothing woke the session");
    let second = router.oneshot(send("1")).await.unwrap();
    assert_eq!(second.status(), 200);
    bench.settle().await;
    let history = bench.history(&session).await;
    let said = history.iter().filter(|event| event["type"] == "user.message").count();
    assert_eq!(said, 1);
    assert_eq!(history.last().unwrap()["type"], "session.status_idle");
}
