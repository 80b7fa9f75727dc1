//! Whether the store answers, and when to ask it again if it does not.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;
use crate::store::{ErrorKind, Result, StoreError};

/// How long a call of the store may take. Longer than a failover, during which the driver itself tries again without
/// doing anything twice.
const CALL_LIMIT: Duration = Duration::from_secs(20);

/// Waits for a call of the store, but not for ever: a server that hangs holds a connection without an error.
///
/// # Errors
/// Those of the call, and `Unavailable` when it took too long; whether it had an effect is unknown then.
pub(super) async fn answer<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(CALL_LIMIT, call).await.unwrap_or_else(|_| {
        let message = format!("the store did not answer within {}", humantime::format_duration(CALL_LIMIT));
        Err(StoreError::new(ErrorKind::Unavailable, message))
    })
}

/// News from those who call the store.
#[derive(Debug)]
pub(super) enum StoreNews {
    Failed(Arc<StoreError>),
    Answered,
}

/// The state of the store as the worker sees it.
#[derive(Debug)]
pub(super) struct Health {
    outage: Option<Outage>,
    backoff: Backoff,
}

#[derive(Clone, Debug)]
struct Outage {
    since: Instant,
    ask_again_at: Instant,
}

impl Health {
    pub(super) fn new() -> Self {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        Health { outage: None, backoff }
    }

    /// Notes a failure; returns whether it is the first of an outage.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        let since = self.outage.as_ref().map_or(now, |outage| outage.since);
        let is_first = self.outage.is_none();
        self.outage = Some(Outage { since, ask_again_at: now + self.backoff.next() });
        is_first
    }

    /// Notes an answer; returns how long an outage was that ends with it.
    pub(super) fn answered(&mut self, now: Instant) -> Option<Duration> {
        self.backoff.reset();
        self.outage.take().map(|outage| now - outage.since)
    }

    /// Whether there is no outage.
    pub(super) fn is_well(&self) -> bool {
        self.outage.is_none()
    }

    /// Since when the store has been failing.
    pub(super) fn failing_since(&self) -> Option<Instant> {
        self.outage.as_ref().map(|outage| outage.since)
    }

    /// When to ask the store again; `None` when it is well.
    pub(super) fn ask_again_at(&self) -> Option<Instant> {
        self.outage.as_ref().map(|outage| outage.ask_again_at)
    }

    /// How long the store has been failing.
    pub(super) fn failing_for(&self, now: Instant) -> Duration {
        self.outage.as_ref().map_or(Duration::ZERO, |outage| now - outage.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_begins_once_and_ends_once() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut health = Health::new();
        assert_eq!(health.answered(start), None);
        assert!(health.failed(start));
        assert!(!health.failed(start + second));
        assert_eq!(health.ask_again_at(), Some(start + second + Duration::from_millis(200)));
        assert_eq!(health.failing_for(start + second), second);
        assert_eq!(health.answered(start + 2 * second), Some(2 * second));
        assert_eq!(health.ask_again_at(), None);
    }
}
