//! One call over HTTP, whichever provider it goes to: the key, the request, refusals, the stream.
//!
//! What is asked and what the events mean is each provider's own module's.

use std::{sync::Arc, time::SystemTime};

use ::http::{HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use bytes::Bytes;
use http_body_util::Full;
use tailstep_core::model::{FailureKind, ModelAnswer, ModelFailure, Usage};
use tailstep_runtime::ports::{Secrets, SecretsError};

use crate::{
    failure::{Complaint, Redactor, failure, interrupted, rejected, retry_after_ms},
    http::{Answer, Body, Broken, Deadline, Http},
    sse::{Data, Fault, Splitter},
};

/// Where a provider is and how it wants its key.
pub(crate) struct Provider {
    /// As users know it.
    pub(crate) label: &'static str,
    pub(crate) url: Uri,
    /// The key's name at the `Secrets` port.
    pub(crate) secret: &'static str,
    /// The variable that local mode takes it from.
    pub(crate) variable: &'static str,
    /// What to look at when the server cannot be reached.
    pub(crate) address: &'static str,
    pub(crate) key_header: HeaderName,
    /// What stands before the key in its header.
    pub(crate) key_prefix: &'static str,
    pub(crate) key_need: KeyNeed,
    pub(crate) headers: &'static [(&'static str, &'static str)],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyNeed {
    Always,
    /// Self-hosted servers often want none.
    IfSet,
}

/// Puts an answer together from its stream's events.
pub(crate) trait Assembly {
    /// Takes the next event in.
    ///
    /// # Errors
    /// The provider reported a failure, or broke its own protocol.
    fn take(&mut self, event: &Data, secrets: &Redactor) -> Result<(), ModelFailure>;

    /// Whether the protocol's end signal has come, so that nothing more is awaited.
    fn is_whole(&self) -> bool;

    /// Whether an orderly end of the body now is an end signal too.
    fn may_end(&self) -> bool;

    /// What the provider said it charged so far.
    fn usage(&self) -> Usage;

    fn answer(self) -> Result<ModelAnswer, ModelFailure>;
}

/// Calls `provider` once. A refused key is fetched anew, and if it has changed, tried once more.
pub(crate) async fn call<A: Assembly>(
    http: &Http,
    secrets: &dyn Secrets,
    provider: &Provider,
    body: Vec<u8>,
    assembly: A,
) -> Result<ModelAnswer, ModelFailure> {
    let deadline = http.deadline();
    let body = Bytes::from(body);
    let mut redactor = Redactor::default();
    let key = key(secrets, provider).await?;
    let mut answer =
        send(http, provider, key.as_deref(), body.clone(), deadline, &mut redactor).await?;
    if answer.status == StatusCode::UNAUTHORIZED && key.is_some() {
        secrets.refresh(provider.secret).await;
        let fresh = self::key(secrets, provider).await?;
        if fresh != key {
            answer = send(http, provider, fresh.as_deref(), body, deadline, &mut redactor).await?;
        }
    }
    if !answer.status.is_success() {
        return Err(refused(provider, answer, key.is_some(), &redactor).await);
    }
    if let Some(found) = not_a_stream(&answer) {
        return Err(rejected(format!(
            "{} answered {found} instead of an event stream; check {}",
            provider.label, provider.address
        )));
    }
    read(provider, answer.body, assembly, &redactor).await
}

async fn key(secrets: &dyn Secrets, provider: &Provider) -> Result<Option<String>, ModelFailure> {
    let secret = provider.secret;
    let found = secrets.get(secret).await.map_err(|error| {
        tracing::warn!(%error, secret, "secret not read");
        match error {
            SecretsError::Unavailable { .. } => interrupted(format!(
                "the key of {} cannot be read now: the secret store is unavailable",
                provider.label
            )),
            SecretsError::Refused { .. } => failure(
                FailureKind::Credentials,
                format!("the secret store refuses to give the secret `{secret}`"),
            ),
        }
    })?;
    let found = found.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
    match (found, provider.key_need) {
        (None, KeyNeed::Always) => Err(no_key(provider)),
        (found, KeyNeed::Always | KeyNeed::IfSet) => Ok(found),
    }
}

fn no_key(provider: &Provider) -> ModelFailure {
    let Provider { label, secret, variable, .. } = provider;
    failure(
        FailureKind::Credentials,
        format!(
            "no key for {label}: set the secret `{secret}` (in local mode the variable {variable})"
        ),
    )
}

async fn send(
    http: &Http,
    provider: &Provider,
    key: Option<&str>,
    body: Bytes,
    deadline: Deadline,
    redactor: &mut Redactor,
) -> Result<Answer, ModelFailure> {
    let mut request = Request::post(provider.url.clone())
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "text/event-stream")
        .header(header::USER_AGENT, concat!("tailstep/", env!("CARGO_PKG_VERSION")));
    for (name, value) in provider.headers {
        request = request.header(*name, *value);
    }
    if let Some(key) = key {
        redactor.add(key);
        let value = format!("{}{key}", provider.key_prefix);
        let mut value = HeaderValue::from_str(&value).map_err(|_| unsendable(provider))?;
        value.set_sensitive(true);
        request = request.header(provider.key_header.clone(), value);
    }
    let request = request.body(Full::new(body)).map_err(|error| {
        tracing::error!(%error, "request not built");
        rejected(format!("the request to {} cannot be built", provider.label))
    })?;
    http.send(request, deadline).await.map_err(|broken| broke(provider, &broken))
}

fn unsendable(provider: &Provider) -> ModelFailure {
    let message = format!("the secret `{}` has characters that no key has", provider.secret);
    failure(FailureKind::Credentials, message)
}

fn broke(provider: &Provider, broken: &Broken) -> ModelFailure {
    tracing::warn!(provider = provider.label, host = provider.url.host(), %broken, "model call");
    let hint = match broken {
        Broken::Connect { .. } => format!(" (check {})", provider.address),
        Broken::Cut { .. } | Broken::Idle { .. } | Broken::Deadline { .. } | Broken::TooLong => {
            String::new()
        }
    };
    interrupted(format!("{} {broken}{hint}", provider.label))
}

/// An answer that is not a success.
async fn refused(
    provider: &Provider,
    mut answer: Answer,
    had_key: bool,
    redactor: &Redactor,
) -> ModelFailure {
    let status = answer.status.as_u16();
    if answer.status == StatusCode::UNAUTHORIZED && !had_key {
        return no_key(provider);
    }
    let complaint = Complaint::read(&answer.body.complaint().await);
    let what = format!("{} answered {status}", provider.label);
    let mut failed = failure(complaint.by_status(status), complaint.message(&what, redactor));
    failed.retry_after_ms = retry_after_ms(&answer.headers, SystemTime::now());
    if answer.status == StatusCode::UNAUTHORIZED {
        failed.message.push_str(&format!(" (check the secret `{}`)", provider.secret));
    }
    failed
}

/// The content type, if it says that the body is no event stream.
fn not_a_stream(answer: &Answer) -> Option<String> {
    let found = answer.headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let kind = found.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    (kind != "text/event-stream").then(|| if kind.is_empty() { "nothing".to_owned() } else { kind })
}

async fn read<A: Assembly>(
    provider: &Provider,
    mut body: Body,
    mut assembly: A,
    redactor: &Redactor,
) -> Result<ModelAnswer, ModelFailure> {
    match stream(provider, &mut body, &mut assembly, redactor).await {
        Ok(()) => {
            body.drain().await;
            let usage = assembly.usage();
            assembly.answer().map_err(|failed| ModelFailure { usage, ..failed })
        }
        Err(failed) => Err(ModelFailure { usage: assembly.usage(), ..failed }),
    }
}

/// Reads until the end signal.
async fn stream<A: Assembly>(
    provider: &Provider,
    body: &mut Body,
    assembly: &mut A,
    redactor: &Redactor,
) -> Result<(), ModelFailure> {
    let faulty = |fault: Fault| {
        let what = match fault {
            Fault::TooLong => "an event that is too long",
            Fault::NotUtf8 => "bytes that are not UTF-8",
        };
        interrupted(format!("{} sent {what}", provider.label))
    };
    let mut splitter = Splitter::default();
    while let Some(piece) = body.next().await.map_err(|broken| broke(provider, &broken))? {
        for event in splitter.push(&piece).map_err(faulty)? {
            assembly.take(&event, redactor)?;
            if assembly.is_whole() {
                return Ok(());
            }
        }
    }
    if let Some(event) = splitter.finish().map_err(faulty)? {
        assembly.take(&event, redactor)?;
    }
    if assembly.is_whole() || assembly.may_end() {
        Ok(())
    } else {
        Err(interrupted(format!("the answer of {} ended before its end signal", provider.label)))
    }
}

/// A provider's face to the router.
pub(crate) struct Line {
    pub(crate) http: Arc<Http>,
    pub(crate) secrets: Arc<dyn Secrets>,
    pub(crate) provider: Provider,
}

impl Line {
    pub(crate) async fn call<A: Assembly>(
        &self,
        body: Vec<u8>,
        assembly: A,
    ) -> Result<ModelAnswer, ModelFailure> {
        call(&self.http, self.secrets.as_ref(), &self.provider, body, assembly).await
    }
}
