//! The laws of the secrets.

use std::{any::Any, future::Future, sync::Arc};

use tailstep_runtime::ports::Secrets;

use crate::law::laws;

/// A secret store under test.
pub struct Subject {
    pub secrets: Arc<dyn Secrets>,
    /// Names and values that are set.
    pub set: Vec<(String, String)>,
    /// A name that is not.
    pub unset: String,
    /// What has to live as long as the adapter, such as a scratch directory.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// Runs every law of the secrets.
pub async fn all<F>(make: impl Fn() -> F)
where
    F: Future<Output = Subject>,
{
    laws!(
        "secrets",
        make,
        [
            laws::what_is_set_is_found,
            laws::what_is_not_set_is_none,
            laws::refreshing_keeps_what_is_set,
        ]
    );
}

mod laws {
    use super::*;

    pub(super) async fn what_is_set_is_found(s: Subject) {
        assert!(!s.set.is_empty(), "the subject sets something");
        for _ in 0..2 {
            for (name, value) in &s.set {
                assert_eq!(s.secrets.get(name).await.unwrap().as_ref(), Some(value));
            }
        }
    }

    pub(super) async fn what_is_not_set_is_none(s: Subject) {
        assert_eq!(s.secrets.get(&s.unset).await.unwrap(), None);
    }

    pub(super) async fn refreshing_keeps_what_is_set(s: Subject) {
        for (name, value) in &s.set {
            s.secrets.refresh(name).await;
            assert_eq!(s.secrets.get(name).await.unwrap().as_ref(), Some(value));
        }
        s.secrets.refresh(&s.unset).await;
        assert_eq!(s.secrets.get(&s.unset).await.unwrap(), None);
    }
}
