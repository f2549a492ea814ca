//! The laws of the session log.

mod heads;
mod leases;
mod lists;
mod records;
mod sizes;

use std::{any::Any, future::Future, sync::Arc};

use bytes::Bytes;
use tailstep_core::ids::{Seq, SessionKey};
use tailstep_runtime::ports::{Appended, Entry, Head, Log, LogError, Projection};

use crate::{
    law::{Sabotage, Timing, laws},
    sample,
};

/// A log under test. It may be shared by all laws: each uses tenants of its own.
pub struct Subject {
    pub log: Arc<dyn Log>,
    /// Removes one record from the store, behind the adapter's back; `None` where the adapter would
    /// not see it, because it remembers what it has written.
    pub lose: Option<Sabotage<(SessionKey, Seq)>>,
    pub timing: Timing,
    /// What has to live as long as the adapter, such as a scratch directory.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// Runs every law of the log.
pub async fn all<F>(make: impl Fn() -> F)
where
    F: Future<Output = Subject>,
{
    laws!(
        "log",
        make,
        [
            records::an_unknown_session_is_empty,
            records::records_come_back_in_order,
            records::a_taken_place_is_a_conflict,
            records::the_same_nonce_twice_is_one_record,
            records::one_of_many_writers_wins,
            records::the_winner_may_ask_again,
            records::sessions_do_not_hinder_each_other,
            records::a_lost_record_is_noticed,
            records::a_skipped_place_is_never_read_over,
            records::a_reader_sees_what_was_acknowledged,
            sizes::bodies_of_every_size_come_back,
            sizes::every_byte_comes_back,
            sizes::a_log_of_many_records_is_read_whole,
            sizes::a_log_of_many_megabytes_is_read_whole,
            heads::a_head_comes_back_as_it_was,
            heads::a_lagging_append_leaves_the_head,
            heads::a_following_append_moves_the_head,
            heads::an_atomic_append_moves_the_head,
            heads::a_refused_append_leaves_the_head,
            heads::a_projection_never_goes_back,
            heads::racing_projections_leave_the_newest,
            leases::beats_count_within_an_intent,
            leases::a_projection_keeps_the_lease,
            leases::no_beat_is_lost,
            leases::a_fenced_beat_does_not_take_the_lease,
            leases::a_beat_does_not_make_a_session,
            leases::a_beat_does_not_make_an_idle_session_due,
            lists::due_sessions_come_most_overdue_first,
            lists::a_list_is_in_order_and_paged,
            lists::tenants_do_not_see_each_other,
            lists::a_purged_session_is_gone,
            lists::a_purged_session_may_begin_anew,
            lists::a_waiter_is_told_of_an_append,
            lists::a_waiter_does_not_wait_for_what_is_there,
            lists::a_waiter_gives_up_in_time,
        ]
    );
}

impl Subject {
    /// Appends a small record that must find its place free, with the head that covers it.
    async fn append(&self, key: &SessionKey, seq: Seq, projection: Projection) -> Entry {
        let entry = sample::entry(seq, format!("record {seq}"));
        self.add(key, &entry, &sample::head(key, seq), projection).await;
        entry
    }

    async fn add(&self, key: &SessionKey, entry: &Entry, head: &Head, projection: Projection) {
        let appended = self.log.append(key, entry, head, projection).await;
        assert!(matches!(appended, Ok(Appended::Now)), "append of {}: {appended:?}", entry.seq);
    }

    /// Appends a body at the end of the log; the head follows.
    async fn add_body(&self, key: &SessionKey, seq: Seq, body: Bytes) -> Entry {
        let entry = sample::entry(seq, body);
        self.add(key, &entry, &sample::head(key, seq), Projection::Follow).await;
        entry
    }

    async fn head(&self, key: &SessionKey) -> Option<Head> {
        self.log.head(key).await.unwrap()
    }

    async fn read(&self, key: &SessionKey, after: Seq) -> Vec<Entry> {
        self.log.read(key, after, 100_000).await.unwrap()
    }
}

#[track_caller]
fn assert_conflict(result: Result<Appended, LogError>, at: Seq) {
    match result {
        Err(LogError::Conflict { seq, .. }) => assert_eq!(seq, at, "the conflict names its place"),
        other => panic!("must be a conflict: {other:?}"),
    }
}
