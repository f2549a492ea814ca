//! Every limit of the loop, with where its number comes from. Reaching one is an event with a name.

use crate::ids::UnixMs;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Model calls in one turn. A runaway loop ends here; a long refactoring stays far below.
    pub model_calls_max: u32,
    /// Answers in a row of which no call could be run. Models correct themselves in one or two.
    pub refused_answers_max: u32,
    /// Answers in a row that the provider paused.
    pub pauses_max: u32,
    /// Failed tries of one model call.
    pub model_failures_max: u32,
    /// Workers that may die in the same step before it is given up as poisonous.
    pub lost_attempts_max: u32,
    /// First wait after a transient failure; it doubles with each further one.
    pub retry_first_ms: u64,
    /// Longest wait that we choose ourselves.
    pub retry_max_ms: u64,
    /// Longest wait that a provider may ask for; beyond it the turn fails by name.
    pub retry_after_max_ms: u64,
    /// Output cap of one model call, in tokens.
    pub output_tokens_max: u32,
    /// Blocks of one answer. Public event ids keep numbers above this for events of their own.
    pub answer_blocks_max: usize,
    /// Ceiling of one tool call.
    pub tool_ms_max: u64,
    /// What a call may take on top of its own time to collect the outputs it left behind: a gigabyte
    /// read, hashed and written to a slow disk.
    pub collect_ms_max: u64,
    /// Ceiling of one model call.
    pub model_ms_max: u64,
    /// A lease is dead when its version has not moved for this long by the observer's clock. Three
    /// missed beats at a third of it; two of these and a queue hop stay below 45 s on AWS.
    pub lease_ms: u64,
    /// Kept back of a worker's own deadline, for recording the outcome and waking the next step.
    pub deadline_margin_ms: u64,
    /// A session that has been due for this long is woken again, in case its wake-up was lost. Longer
    /// than a lease, so that a session at work is left alone.
    pub overdue_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            model_calls_max: 3_000,
            refused_answers_max: 5,
            pauses_max: 10,
            model_failures_max: 8,
            lost_attempts_max: 10,
            retry_first_ms: 1_000,
            retry_max_ms: 300_000,
            retry_after_max_ms: 24 * 3_600_000,
            output_tokens_max: 16_000,
            answer_blocks_max: 1_000,
            tool_ms_max: 150_000,
            collect_ms_max: 60_000,
            model_ms_max: 600_000,
            lease_ms: 15_000,
            deadline_margin_ms: 5_000,
            overdue_ms: 60_000,
        }
    }
}

impl Limits {
    /// When to try a failed model call again: the provider's own time if it gave one, else doubling
    /// waits, with up to a quarter on top chosen by `salt` so that many sessions do not return in the
    /// same second. `None` when the provider asks for longer than we wait.
    pub fn retry_at_ms(
        &self,
        now_ms: UnixMs,
        failures: u32,
        retry_after_ms: Option<u64>,
        salt: u64,
    ) -> Option<UnixMs> {
        let wait_ms = match retry_after_ms {
            Some(asked) if asked > self.retry_after_max_ms => return None,
            Some(asked) => asked,
            None => {
                let doublings = failures.saturating_sub(1).min(20);
                self.retry_first_ms.saturating_mul(1 << doublings).min(self.retry_max_ms)
            }
        };
        let spread_ms = (wait_ms / 4).max(1);
        Some(now_ms.saturating_add(wait_ms).saturating_add(salt % spread_ms))
    }
}

/// Limits of what comes in; the public API names them in its errors.
pub mod input {
    /// Longest request body. Lambda takes 6 MB, and base64 adds a third to binary bodies.
    pub const BODY_BYTES_MAX: usize = 4_500_000;
    /// Events in one send.
    pub const EVENTS_MAX: usize = 50;
    pub const METADATA_PAIRS_MAX: usize = 16;
    pub const METADATA_KEY_CHARS_MAX: usize = 64;
    pub const METADATA_VALUE_CHARS_MAX: usize = 512;
    pub const NAME_CHARS_MAX: usize = 256;
    pub const SYSTEM_CHARS_MAX: usize = 100_000;
    pub const TOOL_ENTRIES_MAX: usize = 128;
    /// Messages that may wait while the agent is busy.
    pub const QUEUED_MESSAGES_MAX: usize = 1_000;
}

/// Limits of what a session leaves in its outputs directory, and of files in general. What passes one
/// is left out, and the manifest says so.
pub mod files {
    /// One uploaded file, where the host takes bodies of any length. The protocol's own limit.
    pub const UPLOAD_BYTES_MAX: u64 = 500 << 20;
    /// Files that one session is given: each is a mount of its own in every sandbox.
    pub const RESOURCES_MAX: usize = 64;
    /// These together. They are copied for each session.
    pub const RESOURCES_BYTES_MAX: u64 = 1 << 30;
    /// One piece of a file: the most that is held in memory at once for one reader or writer, and
    /// few enough of them that the list of the largest file's pieces fits a document.
    pub const CHUNK_BYTES: usize = 8 << 20;
    /// Files of one manifest. Reports, pictures and patches are dozens; a build tree is a mistake, and
    /// belongs into an archive.
    pub const FILES_MAX: usize = 1_000;
    /// One file; the sandbox's own limit for a file is the same.
    pub const FILE_BYTES_MAX: u64 = 512 << 20;
    /// All files of one manifest.
    pub const BYTES_MAX: u64 = 1 << 30;
    /// What all collections of one session may store together. Each change of a file stores it anew,
    /// because the log names what was there before.
    pub const STORED_BYTES_MAX: u64 = 16 << 30;
    /// Directory entries looked at in one collection, whatever they are: what the search tools look
    /// at.
    pub const WALK_ENTRIES_MAX: usize = 50_000;
    /// Directories within each other. Each one under way holds a file descriptor.
    pub const DEPTH_MAX: usize = 32;
    /// One path, from the outputs directory on; file systems take 255 bytes a name.
    pub const PATH_BYTES_MAX: usize = 1_024;
    /// Left-out entries that a manifest names; the rest is counted.
    pub const LEFT_OUT_NAMED_MAX: usize = 100;
}

/// Limits of a sandbox's network; the broker takes them as defaults.
pub mod egress {
    /// Connections at once. Package managers open up to about 20; a browser, six a host.
    pub const CONNECTIONS_MAX: usize = 64;
    /// Bytes one way over one connection. The largest wheels and images are about 3 GB.
    pub const CONNECTION_BYTES_MAX: u64 = 4 << 30;
    /// Bytes both ways over all connections of one sandbox.
    pub const TOTAL_BYTES_MAX: u64 = 16 << 30;
    /// Bytes a second over all connections of one sandbox, both ways: a fast line, and a few
    /// sandboxes do not starve their host.
    pub const RATE_BYTES_PER_S: u64 = 64 << 20;
    /// A request's line and headers, and a TLS greeting. Servers take 8 to 16 KB.
    pub const HEAD_BYTES_MAX: usize = 16 << 10;
    pub const HEADERS_MAX: usize = 100;
    /// From a connection's first byte to the end of the head or of the TLS handshake.
    pub const HEAD_MS: u64 = 10_000;
    /// A connection on which nothing moves for this long is closed.
    pub const IDLE_MS: u64 = 60_000;
    /// Looking a name up, connecting, and the TLS handshake with the origin, together.
    pub const CONNECT_MS: u64 = 10_000;
    /// Decisions kept until somebody asks; further ones are counted.
    pub const DECISIONS_MAX: usize = 200;
    /// Rules of one environment.
    pub const RULES_MAX: usize = 200;
    /// Ports, methods, paths or secrets of one rule.
    pub const RULE_ITEMS_MAX: usize = 32;
    pub const PATH_CHARS_MAX: usize = 1_024;
    /// A value shorter than this could not be told from chance in an answer.
    pub const SECRET_BYTES_MIN: usize = 8;
    pub const SECRET_BYTES_MAX: usize = 4_096;
}
