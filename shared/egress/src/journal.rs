//! What was decided, until somebody asks.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use tailstep_core::egress::EgressDecision;

use crate::{
    authority::Host,
    refusal::{GONE, Refusal, shown},
};

const TEXT_CHARS_MAX: usize = 255;

/// Bounded: the oldest are kept, because the first refusal explains the others.
#[derive(Debug)]
pub(crate) struct Journal {
    kept_max: usize,
    state: Mutex<(VecDeque<EgressDecision>, u64)>,
}

/// What a decision is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
}

impl Subject {
    pub(crate) fn tunnel(host: &Host, port: u16) -> Self {
        Self { host: bare(host), port, method: Some("CONNECT".to_owned()), path: None }
    }

    pub(crate) fn request(host: &Host, port: u16, method: &str, target: &str) -> Self {
        let path = target.split('?').next().unwrap_or_default();
        Self {
            host: bare(host),
            port,
            method: Some(method.to_owned()),
            path: Some(path.to_owned()),
        }
    }

    /// Something that is no request: `asked` is what stood in its place.
    pub(crate) fn unread(asked: &str) -> Self {
        Self { host: asked.to_owned(), ..Self::default() }
    }
}

fn bare(host: &Host) -> String {
    match host {
        Host::Name(name) => name.clone(),
        Host::Ip(ip) => ip.to_string(),
    }
}

impl Journal {
    pub(crate) fn new(kept_max: usize) -> Self {
        Self { kept_max, state: Mutex::default() }
    }

    pub(crate) fn allowed(&self, subject: &Subject, why: &str) {
        self.note(subject, Verdict::Allowed, why);
    }

    pub(crate) fn refused(&self, subject: &Subject, why: &str) {
        self.note(subject, Verdict::Refused, why);
    }

    /// What became of a request: a policy's refusal, or an origin that failed although the policy
    /// allowed it.
    pub(crate) fn outcome(&self, subject: &Subject, refusal: &Refusal) {
        match refusal.status {
            GONE => {}
            502 | 504 => self.allowed(subject, &format!("allowed, but {}", refusal.why)),
            _ => self.refused(subject, &refusal.why),
        }
    }

    fn note(&self, subject: &Subject, verdict: Verdict, why: &str) {
        let Subject { host, port, method, path } = subject;
        let text = |text: &String| shown(text, TEXT_CHARS_MAX);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0.len() >= self.kept_max {
            state.1 += 1;
            return;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        state.0.push_back(EgressDecision {
            at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            allowed: matches!(verdict, Verdict::Allowed),
            host: text(host),
            port: *port,
            method: method.as_ref().map(text),
            path: path.as_ref().map(text),
            why: shown(why, 2 * TEXT_CHARS_MAX),
        });
    }

    /// What was decided since the last time, oldest first, and how many more were only counted.
    pub(crate) fn take(&self) -> (Vec<EgressDecision>, u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, dropped) = std::mem::take(&mut *state);
        (kept.into(), dropped)
    }
}

enum Verdict {
    Allowed,
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_kept_and_the_rest_counted() {
        let journal = Journal::new(2);
        for number in 0..5 {
            journal.refused(&Subject::unread(&format!("h{number}\0{}", "x".repeat(999))), "no");
        }
        let (kept, dropped) = journal.take();
        assert_eq!((kept.len(), dropped), (2, 3));
        assert!(kept[0].host.starts_with("h0\u{fffd}x") && kept[0].host.chars().count() == 255);
        assert_eq!(journal.take(), (Vec::new(), 0));
        journal.allowed(&Subject::default(), "rule");
        assert!(journal.take().0[0].allowed);
    }
}
