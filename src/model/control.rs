//! What holds a handler up as a whole: an operator's pause, and the circuit breakers of workers.

use serde::{Deserialize, Serialize};

use super::time::Timestamp;

/// A handler that an operator paused, for the whole fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// The handler.
    pub handler: String,
    /// Since when.
    pub paused_at: Timestamp,
    /// When it ends by itself; never when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<Timestamp>,
    /// Why, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who paused it, for people.
    pub by: String,
}

impl Pause {
    /// Whether it holds at this time. Its beginning does not matter: the clock of the one who paused may be ahead.
    pub fn holds_at(&self, now: Timestamp) -> bool {
        self.paused_until.is_none_or(|until| now < until)
    }
}

/// The circuit breaker of one worker for one handler, which is not closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrippedBreaker {
    /// The handler.
    pub handler: String,
    /// The worker, such as `host:pid`.
    pub worker: String,
    /// Since when it has claimed nothing but single probes.
    pub opened_at: Timestamp,
    /// When it probes next, or has begun to.
    pub probe_at: Timestamp,
    /// How many attempts failed in a row.
    pub failures: u32,
    /// What the latest of them said.
    pub last_error: String,
    /// When this report is worth nothing any more: a worker renews it while it is true.
    pub expires_at: Timestamp,
}

/// Everything that holds handlers up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    /// The pauses that hold.
    pub pauses: Vec<Pause>,
    /// The breakers of workers that are not closed.
    pub breakers: Vec<TrippedBreaker>,
}

impl Controls {
    /// The pause of a handler, if it is paused.
    pub fn pause_of(&self, handler: &str) -> Option<&Pause> {
        self.pauses.iter().find(|pause| pause.handler == handler)
    }

    /// The breakers of a handler that are not closed.
    pub fn breakers_of(&self, handler: &str) -> Vec<&TrippedBreaker> {
        self.breakers.iter().filter(|breaker| breaker.handler == handler).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(10_000);

    fn pause(handler: &str, until: Option<i64>) -> Pause {
        let paused_until = until.map(Timestamp::from_millis);
        Pause { handler: handler.into(), paused_at: NOW, paused_until, reason: None, by: "ana@desk".into() }
    }

    #[test]
    fn a_pause_ends_by_itself_and_not_a_moment_before() {
        assert!(pause("a", None).holds_at(Timestamp::from_millis(i64::MAX)));
        assert!(pause("a", Some(10_001)).holds_at(NOW));
        assert!(!pause("a", Some(10_000)).holds_at(NOW));
        assert!(pause("a", None).holds_at(Timestamp::EPOCH));
    }
}
