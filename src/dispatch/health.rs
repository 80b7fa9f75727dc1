//! Whether the store answers, and when to ask it again if it does not.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;
use crate::store::{ErrorKind, Result, StoreError};

/// How long a call of the store may take. Longer than a failover, during which the driver itself tries again without
/// doing anything twice.
const CALL_LIMIT: Duration = Duration::from_secs(20);

/// How long after its begin an outage is told again; then twice as long each time.
const REMIND_AFTER: Duration = Duration::from_secs(60);

/// The longest time between two reminders.
const REMIND_EVERY: Duration = Duration::from_secs(3_600);

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
    reminders: Backoff,
}

#[derive(Clone, Debug)]
struct Outage {
    since: Instant,
    ask_again_at: Instant,
    remind_at: Instant,
}

impl Health {
    pub(super) fn new() -> Self {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        Health { outage: None, backoff, reminders: Backoff::new(REMIND_AFTER, REMIND_EVERY) }
    }

    /// Notes a failure; returns how long the outage has lasted when that is to be told: at its begin, and then rarely.
    pub(super) fn failed(&mut self, now: Instant) -> Option<Duration> {
        let ask_again_at = now + self.backoff.next();
        let outage = self.outage.get_or_insert(Outage { since: now, ask_again_at, remind_at: now });
        outage.ask_again_at = ask_again_at;
        if now < outage.remind_at {
            return None;
        }
        outage.remind_at = now + self.reminders.next();
        Some(now - outage.since)
    }

    /// Notes an answer; returns how long an outage was that ends with it.
    pub(super) fn answered(&mut self, now: Instant) -> Option<Duration> {
        self.backoff.reset();
        self.reminders.reset();
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
        assert_eq!(health.failed(start), Some(Duration::ZERO));
        assert_eq!(health.failed(start + second), None);
        assert_eq!(health.ask_again_at(), Some(start + second + Duration::from_millis(200)));
        assert_eq!(health.failing_for(start + second), second);
        assert_eq!(health.answered(start + 2 * second), Some(2 * second));
        assert_eq!(health.ask_again_at(), None);
    }

    #[test]
    fn a_long_outage_is_told_again_and_ever_more_rarely() {
        let start = Instant::now();
        let mut health = Health::new();
        let seconds = (0..4 * 3_600).step_by(5);
        let told = |health: &mut Health| {
            let told =
                seconds.clone().filter_map(|second| health.failed(start + Duration::from_secs(second)));
            told.map(|lasting| lasting.as_secs() / 60).collect::<Vec<_>>()
        };
        assert_eq!(told(&mut health), [0, 1, 3, 7, 15, 31, 63, 123, 183]);
        health.answered(start);
        assert_eq!(told(&mut health)[..3], [0, 1, 3]);
    }
}
