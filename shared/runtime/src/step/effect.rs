//! The two effects, and what each outcome is called in the log. What a model or a tool does wrong is
//! an outcome, not an error.

use std::{future::Future, time::Duration, time::Instant};

use tailstep_core::{
    content::Content,
    event::{Event, HandsReport, ModelAnswered, ModelFailed, Origin, ToolFinished, ToolResult},
    files::Given,
    ids::{Position, Seq, SessionKey},
    limits::Limits,
    model::{Block, FailureKind, ModelAnswer, ModelFailure, Usage},
    raw::RawJson,
    session::Effect,
};

use super::StepOutcome;
use crate::{
    Runtime,
    error::RuntimeError,
    load::{Loaded, read_one},
    ports::{HandsError, ToolOrder},
};

pub(super) enum Ended {
    Outcome(Vec<Event>),
    /// Nothing to record: somebody else has the session.
    Stopped(StepOutcome),
}

/// Has `effect`; never longer than its limit or until `deadline`.
pub(super) async fn run(
    runtime: &Runtime,
    loaded: &Loaded,
    effect: Effect,
    deadline: Option<Instant>,
) -> Result<Ended, RuntimeError> {
    let event = match effect {
        Effect::Model => call_model(runtime, loaded, deadline).await?,
        Effect::Tool { call } => run_tool(runtime, loaded, call, deadline).await?,
    };
    Ok(Ended::Outcome(vec![event]))
}

async fn call_model(
    runtime: &Runtime,
    loaded: &Loaded,
    deadline: Option<Instant>,
) -> Result<Event, RuntimeError> {
    let intent = loaded.session.seq;
    #[cfg(not(feature = "planted-bugs"))]
    let shown = intent;
    #[cfg(feature = "planted-bugs")]
    let shown = crate::planted::shown_seq(intent);
    let context = runtime.prefixes.context(runtime.log.as_ref(), &loaded.key, shown).await?;
    let Some(request) = context.request(&runtime.limits) else {
        return Err(RuntimeError::NotFound { session: loaded.key.session.clone() });
    };
    runtime.prefixes.keep(&loaded.key, intent, context);
    let limit_ms = runtime.limits.model_ms_max;
    let answer = match within(limit_ms, deadline, runtime.model.call(&request)).await {
        Some(answer) => answer.and_then(|answer| bounded(answer, &runtime.limits)),
        None => Err(ModelFailure {
            kind: FailureKind::Interrupted,
            message: "the model did not answer in time".to_owned(),
            retry_after_ms: None,
            usage: Usage::default(),
        }),
    };
    Ok(match answer {
        Ok(answer) => Event::ModelAnswered(ModelAnswered { intent, answer }),
        Err(failure) => failed(runtime, loaded, intent, failure),
    })
}

/// An answer that a log can hold.
fn bounded(answer: ModelAnswer, limits: &Limits) -> Result<ModelAnswer, ModelFailure> {
    let blocks = answer.blocks.len();
    if blocks <= limits.answer_blocks_max {
        return Ok(answer);
    }
    Err(ModelFailure {
        kind: FailureKind::Rejected,
        message: format!(
            "the answer has {blocks} blocks, more than the {} of an answer",
            limits.answer_blocks_max
        ),
        retry_after_ms: None,
        usage: answer.usage,
    })
}

fn failed(runtime: &Runtime, loaded: &Loaded, intent: Seq, failure: ModelFailure) -> Event {
    let failures = loaded.session.turn().map_or(1, |turn| turn.failures.saturating_add(1));
    let again = failure.kind.is_transient() && failures < runtime.limits.model_failures_max;
    let retry_at_ms = again
        .then(|| {
            runtime.limits.retry_at_ms(
                runtime.clock.now_ms(),
                failures,
                failure.retry_after_ms,
                salt(&loaded.key.session, intent),
            )
        })
        .flatten();
    Event::ModelFailed(ModelFailed { intent, failure, retry_at_ms })
}

/// Spreads the retries of many sessions; the same for the same attempt, so that runs can be repeated.
fn salt(session: &str, intent: Seq) -> u64 {
    // FNV-1a.
    session.bytes().chain(intent.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

async fn run_tool(
    runtime: &Runtime,
    loaded: &Loaded,
    call: Position,
    deadline: Option<Instant>,
) -> Result<Event, RuntimeError> {
    let order = order(runtime, loaded, call).await?;
    // The hands keep the limit themselves and say what was cut off; this is for hands that hang.
    let limit_ms = order
        .timeout_ms
        .saturating_add(runtime.limits.collect_ms_max)
        .saturating_add(runtime.limits.deadline_margin_ms);
    let reply = match within(limit_ms, deadline, runtime.hands.execute(&order)).await {
        Some(reply) => reply,
        None => Err(HandsError::Lost { what: "no reply in time".to_owned() }),
    };
    let result = match reply {
        Ok(reply) => ToolResult {
            content: vec![Content::text(reply.text)],
            is_error: reply.is_error,
            origin: Origin::Ran,
            workspace: reply.workspace,
            report: reply.report,
        },
        Err(error) => ToolResult {
            content: vec![Content::text(told(&error))],
            is_error: true,
            origin: Origin::Unknown,
            workspace: None,
            report: HandsReport::default(),
        },
    };
    Ok(Event::ToolFinished(ToolFinished { call, intent: Some(loaded.session.seq), result }))
}

/// What the model is told; the details of the failure are for the operator's log.
fn told(error: &HandsError) -> String {
    tracing::warn!(%error, "a tool call gave no result");
    match error {
        HandsError::Unprepared { told } => told,
        HandsError::Lost { .. } => {
            "the sandbox was lost during this call, which may have run in part; running processes \
             and shell variables are gone"
        }
        HandsError::Unavailable { .. } => "no sandbox is available; the call did not run",
    }
    .to_owned()
}

async fn order(
    runtime: &Runtime,
    loaded: &Loaded,
    call: Position,
) -> Result<ToolOrder, RuntimeError> {
    let gone = || RuntimeError::NotFound { session: loaded.key.session.clone() };
    let record = read_one(runtime.log.as_ref(), &loaded.key, call.seq).await?;
    let (tool, input) = called(&record.events, call).ok_or_else(gone)?;
    let origin = loaded.session.origin.as_ref().ok_or_else(gone)?;
    Ok(ToolOrder {
        key: loaded.key.clone(),
        call,
        tool,
        input,
        timeout_ms: runtime.limits.tool_ms_max,
        environment: origin.environment.clone(),
        given: if origin.has_given { given(runtime, &loaded.key).await? } else { Given::default() },
        workspace: loaded.session.workspace.clone(),
        outputs: loaded.session.outputs.clone(),
    })
}

/// The fold keeps only whether there is something: it is read for tool calls alone, and may be long.
async fn given(runtime: &Runtime, key: &SessionKey) -> Result<Given, RuntimeError> {
    let first = read_one(runtime.log.as_ref(), key, 1).await?;
    match first.events.first() {
        Some(Event::Created(created)) => Ok(created.given()),
        Some(_) | None => Err(RuntimeError::NotFound { session: key.session.clone() }),
    }
}

fn called(events: &[Event], call: Position) -> Option<(String, RawJson)> {
    let Event::ModelAnswered(answered) = events.get(usize::from(call.event))? else { return None };
    let block = usize::from(call.part).checked_sub(1)?;
    let Block::ToolUse { name, input, .. } = answered.answer.blocks.get(block)? else {
        return None;
    };
    Some((name.clone(), input.clone()))
}

/// The future's value, or `None` when it took longer than `limit_ms` or past `deadline`.
async fn within<T>(
    limit_ms: u64,
    deadline: Option<Instant>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let limit = Duration::from_millis(limit_ms);
    // Tokio's clock, so that paused time holds for deadlines too.
    let now = tokio::time::Instant::now().into_std();
    let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
    tokio::time::timeout(left.map_or(limit, |left| left.min(limit)), future).await.ok()
}
