//! Bugs that are planted for good, to show that a checker would find them. Most are played by a port;
//! those that no port can play are compiled into the runtime under the feature `planted-bugs`.

use tailstep_runtime::planted::Planted;

macro_rules! bugs {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug {
            $($(#[doc = $doc])* $name,)*
        }

        impl Bug {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

bugs! {
    /// A record overwrites whatever has its place.
    UnconditionalAppend,
    /// A conflict is answered by taking the next place, without asking `apply` again: a turn ends
    /// although a message came in meanwhile.
    RenumberOnConflict,
    /// An outcome that meets any conflict is thrown away.
    OutcomeDroppedOnConflict,
    /// The nonce is ignored: one's own write, whose answer was lost, looks like a stranger's.
    NonceIgnored,
    /// The tool runs first, its intent is recorded afterwards.
    EffectBeforeIntent,
    /// The model is shown the log as it was read before the intent.
    ContextBeforeIntent,
    /// An outcome is taken for the attempt that is open, whoever made it.
    FenceRemoved,
    /// The holder of a lease does not beat.
    HolderDoesNotBeat,
    /// The taker does not wait for a whole lease.
    TakerDoesNotWait,
    /// The holder does not look whether it still has the session.
    HolderDoesNotLook,
    /// A worker acknowledges its message before it sends the next.
    AckBeforeWake,
    /// A message is hidden for a lease only when the effect is under way: a worker that dies before
    /// leaves it hidden for the queue's whole visibility time.
    HiddenTooLate,
    /// The log does not say which request an input came with.
    RequestNotRecorded,
    /// A client's repeated request is recognised, and wakes nobody.
    NoWakeOnRepeat,
    /// Messages are lost and nobody sweeps.
    NoSweeper,
    /// A head that lags is never repaired.
    HeadNotRepaired,
    /// A beat makes a session due that nobody has to look at.
    BeatMakesIdleDue,
    /// What was decided for one state of a session is recorded in whatever state it is in by then.
    DecisionKept,
    /// A failed model call is tried again at once, whenever the provider asked for.
    RetryAtOnce,
    /// Whoever finds a session at work sends two messages for the one it took.
    MessageStorm,
    /// A short page is taken for the end of the log.
    ShortPageIsTheEnd,
}

impl Bug {
    /// The part that the runtime has to play.
    pub fn in_runtime(self) -> Option<Planted> {
        match self {
            Self::ContextBeforeIntent => Some(Planted::ContextBeforeIntent),
            Self::FenceRemoved => Some(Planted::FenceRemoved),
            Self::RetryAtOnce => Some(Planted::RetryAtOnce),
            Self::DecisionKept => Some(Planted::DecisionKept),
            Self::RequestNotRecorded => Some(Planted::RequestNotRecorded),
            Self::UnconditionalAppend
            | Self::RenumberOnConflict
            | Self::OutcomeDroppedOnConflict
            | Self::NonceIgnored
            | Self::EffectBeforeIntent
            | Self::HolderDoesNotBeat
            | Self::TakerDoesNotWait
            | Self::HolderDoesNotLook
            | Self::AckBeforeWake
            | Self::HiddenTooLate
            | Self::NoWakeOnRepeat
            | Self::NoSweeper
            | Self::HeadNotRepaired
            | Self::BeatMakesIdleDue
            | Self::MessageStorm
            | Self::ShortPageIsTheEnd => None,
        }
    }
}
