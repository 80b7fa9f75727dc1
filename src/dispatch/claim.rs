//! From a claim to assignments: leases, their events, and what is to be done with each.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use super::health;
use super::subscription::Subscription;
use crate::model::{Delivery, Event, EventId, Failure, FailureKind};
use crate::store::{ClaimRequest, Claimed, ErrorKind, Result, Store, StoreError};

/// What is to be done with a delivery that was leased.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Task {
    /// Make an attempt.
    Run(Arc<Event>),
    /// Give it up unseen.
    Bury(Failure),
    /// Count a failed attempt.
    Fail(Failure),
    /// Give it back unseen.
    Release,
}

/// What a claim brought.
#[derive(Debug)]
pub(super) struct Haul {
    pub(super) leased: Vec<(Claimed, Found)>,
    pub(super) asked: Asked,
    /// Why events could not be read, if they could not.
    pub(super) trouble: Option<Arc<StoreError>>,
}

/// When leases were asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// None of them runs out earlier than its length after this: it was taken before the clock was read, as a process can be
    /// stopped between any two steps.
    pub(super) at: Instant,
    /// Has changed when the time that the clock showed has turned out to be another.
    pub(super) steps: watch::Receiver<()>,
}

/// The event of a delivery, as far as it could be found.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Event(Arc<Event>),
    Missing,
    /// It is there, but cannot be understood.
    Corrupt(Arc<StoreError>),
    /// The store did not answer.
    Unknown,
}

/// Leases deliveries and reads their events.
///
/// # Errors
/// When nothing could be leased. Trouble afterwards is part of the haul.
pub(super) async fn claim(
    store: Arc<dyn Store>,
    request: ClaimRequest,
    asked: Asked,
) -> Result<Haul, Arc<StoreError>> {
    let claimed = health::answer(store.claim(&request)).await.map_err(Arc::new)?;
    let mut ids: Vec<EventId> = claimed.iter().map(|one| one.delivery.event_id.clone()).collect();
    ids.sort();
    ids.dedup();
    let events = find_events(&*store, &ids).await;
    let find = |one: Claimed| {
        let found = match &events {
            Ok(events) => events.get(&one.delivery.event_id).cloned().unwrap_or(Found::Missing),
            Err(_) => Found::Unknown,
        };
        (one, found)
    };
    Ok(Haul { leased: claimed.into_iter().map(find).collect(), asked, trouble: events.err() })
}

/// What is known of each of these events; those that are missing are left out.
async fn find_events(store: &dyn Store, ids: &[EventId]) -> Result<HashMap<EventId, Found>, Arc<StoreError>> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    match health::answer(store.events(ids)).await {
        Ok(events) => Ok(by_id(events).collect()),
        Err(error) if error.kind() == ErrorKind::Corrupt => find_one_by_one(store, ids).await,
        Err(error) => Err(Arc::new(error)),
    }
}

/// An event that cannot be understood must not hide the others.
async fn find_one_by_one(
    store: &dyn Store,
    ids: &[EventId],
) -> Result<HashMap<EventId, Found>, Arc<StoreError>> {
    let mut found = HashMap::new();
    for id in ids {
        match health::answer(store.events(std::slice::from_ref(id))).await {
            Ok(events) => found.extend(by_id(events)),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                found.insert(id.clone(), Found::Corrupt(Arc::new(error)));
            }
            Err(error) => return Err(Arc::new(error)),
        }
    }
    Ok(found)
}

fn by_id(events: Vec<Event>) -> impl Iterator<Item = (EventId, Found)> {
    events.into_iter().map(|event| (event.id.clone(), Found::Event(Arc::new(event))))
}

/// The limit of attempts for `delivery`: its own, or that of its handler.
pub(super) fn max_attempts(delivery: &Delivery, subscription: &Subscription) -> u32 {
    delivery.max_attempts.unwrap_or(subscription.max_attempts)
}

/// What to do with a delivery just leased. The claim has counted the attempt already: one beyond the limit exists only
/// when an earlier attempt ended without an outcome, or when the limit was lowered.
pub(super) fn task_for(delivery: &Delivery, found: Found, max_attempts: u32) -> Task {
    if delivery.attempts > max_attempts {
        return Task::Bury(exhausted(delivery, max_attempts));
    }
    match found {
        Found::Event(event) => Task::Run(event),
        Found::Missing => {
            let message = format!("event {} is not in the store any more", delivery.event_id);
            Task::Bury(Failure::new(FailureKind::Orphaned, message))
        }
        Found::Corrupt(error) => Task::Fail(Failure::new(FailureKind::Failed, error.to_string())),
        Found::Unknown => Task::Release,
    }
}

fn exhausted(delivery: &Delivery, max_attempts: u32) -> Failure {
    let previous = delivery.attempts.saturating_sub(1);
    // After a requeue attempts count from one again, and an old error may have the number of a new attempt.
    let is_telling = delivery.requeues == 0 || previous > max_attempts;
    match delivery.errors.last().filter(|error| is_telling && error.attempt == previous) {
        Some(last) if last.kind == FailureKind::Crashed => {
            let message = format!("attempt {previous} of {max_attempts} was the last: {}", last.message);
            Failure::new(FailureKind::Crashed, message)
        }
        Some(last) => {
            let message = format!(
                "{previous} attempts were made, and the limit is now {max_attempts}: {}",
                last.message
            );
            Failure::new(last.kind.clone(), message)
        }
        None => {
            let message = format!(
                "attempt {previous} of {max_attempts} ended without an outcome: its worker died, or lost its lease"
            );
            Failure::new(FailureKind::Crashed, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn delivery(attempts: u32, errors: &[u32]) -> Delivery {
        let errors: Vec<_> = errors
            .iter()
            .map(|attempt| json!({"attempt": attempt, "at": "2026-03-01T09:30:00Z", "kind": "timeout", "message": "slow"}))
            .collect();
        let time = "2026-03-01T09:30:00Z";
        let document = json!({
            "id": "d", "eventId": "e", "eventType": "t", "handler": "h", "status": "processing", "lane": "ready",
            "attempts": attempts, "availableAt": time, "createdAt": time, "updatedAt": time, "errors": errors,
        });
        serde_json::from_value(document).unwrap()
    }

    fn buried_as(delivery: &Delivery, max_attempts: u32) -> FailureKind {
        match task_for(delivery, Found::Missing, max_attempts) {
            Task::Bury(failure) => failure.kind,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_attempt_beyond_the_limit_means_a_crash_unless_the_limit_was_lowered() {
        assert_eq!(buried_as(&delivery(6, &[]), 5), FailureKind::Crashed);
        assert_eq!(buried_as(&delivery(6, &[3, 4]), 5), FailureKind::Crashed);
        assert_eq!(buried_as(&delivery(4, &[1, 2, 3]), 3), FailureKind::Timeout);
        assert_eq!(buried_as(&delivery(5, &[4]), 2), FailureKind::Timeout);
    }

    #[test]
    fn errors_from_before_a_requeue_do_not_explain_a_crash() {
        let requeued = Delivery { requeues: 1, ..delivery(6, &[4, 5]) };
        assert_eq!(buried_as(&requeued, 5), FailureKind::Crashed);
    }

    #[test]
    fn a_delivery_without_its_event_is_orphaned() {
        assert_eq!(buried_as(&delivery(1, &[]), 5), FailureKind::Orphaned);
        assert_eq!(task_for(&delivery(5, &[]), Found::Unknown, 5), Task::Release);
    }
}
