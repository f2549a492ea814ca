//! Everything that can go wrong in a run, by name. A run draws which of these are on (a *swarm*:
//! some failures only show when others are absent), and every injection is counted, so that a class
//! that never fires is seen.

macro_rules! faults {
    ($($(#[doc = $doc:literal])* $name:ident = $rate:literal,)*) => {
        /// One way in which the world misbehaves.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[doc = $doc])* $name,)*
        }

        impl Fault {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// How often it strikes where it can, in a run of middling intensity; per 10,000.
            pub fn rate(self) -> u64 {
                match self {
                    $(Self::$name => $rate,)*
                }
            }

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

faults! {
    /// An append is refused by a busy store and not applied.
    AppendFailsBefore = 150,
    /// An append is applied and its answer is lost.
    AppendFailsAfter = 200,
    /// The whole log store is out of reach for a while.
    LogOutage = 600,
    /// One read fails.
    ReadFails = 60,
    /// A head read shows an older projection (with the present lease).
    HeadStale = 800,
    /// The head is not written after the record.
    FollowLost = 1_000,
    /// Writing a head by itself fails.
    ProjectFails = 500,
    /// A beat fails.
    BeatFails = 300,
    /// Waiting for a change returns at once, without one.
    ChangedEarly = 800,
    /// Waiting for a change fails.
    ChangedFails = 200,
    /// The list of overdue sessions misses some.
    DueLags = 3_000,
    /// A write of a dropped call reaches its store all the same, later.
    LateWrite = 5_000,
    /// A sent message is never seen again.
    MessageLost = 400,
    MessageDoubled = 400,
    /// A message comes up to two minutes late.
    MessageLate = 300,
    /// Messages overtake one another.
    MessageReordered = 3_000,
    /// A copy of a message comes again much later.
    MessageRedriven = 150,
    /// A message that nobody sent, old observations included.
    MessageSpurious = 2_500,
    /// A message is taken out of the queue after too many receipts.
    MessageDeadLettered = 10_000,
    SendFailsBefore = 200,
    SendFailsAfter = 200,
    ReceiveFails = 100,
    AckFails = 400,
    HideFails = 400,
    /// A worker dies between two instructions.
    WorkerCrash = 60,
    /// A worker stands still for longer than its lease, and goes on as if nothing had been.
    WorkerStall = 12,
    /// A worker stands still between its decision to try again, or to take over, and the record.
    AgainDelayed = 2_500,
    /// A worker is killed at its function's time limit.
    WorkerTimeout = 10_000,
    /// The process that serves a client's request dies.
    ApiCrash = 250,
    /// A client gives up waiting and sends its request again while the first is still under way.
    ClientTimeout = 2_500,
    /// The sweeper does not run.
    SweeperDead = 6_000,
    /// Machines' clocks differ.
    ClockSkew = 10_000,
    /// A machine's clock jumps.
    ClockStep = 2_000,
    /// One call of a store takes seconds.
    LatencySpike = 20,
    ModelOverloaded = 700,
    ModelRateLimited = 500,
    ModelInterrupted = 300,
    /// The provider refuses the request for good.
    ModelRejected = 150,
    /// The model thinks for longer than a lease.
    ModelSlow = 600,
    HandsLost = 400,
    HandsUnavailable = 300,
    /// A tool goes on running after its worker died.
    HandsOutliveWorker = 5_000,
    /// A tool runs for longer than a lease.
    ToolSlow = 10_000,
    /// A user stops the turn.
    UserInterrupts = 10_000,
    /// A user sends while the agent is at work.
    UserInterjects = 10_000,
    /// A user archives the session.
    UserArchives = 10_000,
}
