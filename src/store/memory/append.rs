//! Appending events, each with a delivery for each of its handlers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::state::State;
use crate::model::{
    Appended, AppendedDelivery, Delivery, DeliveryId, Event, EventId, IdKind, IdSource, Lane, NewEvent,
    Status, Timestamp,
};
use crate::store::{ErrorKind, Result, StoreError};

/// Appends a batch as if its events came one after the other. All that can be refused is looked at before the first
/// write, so that an error leaves no trace.
pub(super) fn append(
    state: &mut State,
    events: &[NewEvent],
    ids: &dyn IdSource,
    now: Timestamp,
) -> Result<Vec<Appended>> {
    let events = events.iter().map(NewEvent::checked).collect::<Result<Vec<_>, _>>()?;
    check_contents(state, &events)?;
    Ok(events.iter().map(|event| append_one(state, event, ids, now)).collect())
}

/// Refuses an id that stands for something else, in the store or earlier in the batch.
fn check_contents(state: &State, events: &[NewEvent]) -> Result<()> {
    let mut earlier: BTreeMap<&EventId, &NewEvent> = BTreeMap::new();
    for event in events {
        let Some(id) = &event.id else { continue };
        let twin = *earlier.entry(id).or_insert(event);
        let stored = state.events.get(id);
        let difference =
            stored.map_or_else(|| event.difference_from_twin(twin), |stored| event.difference_from(stored));
        difference.map_or(Ok(()), |field| Err(stands_for_another(id, field)))?;
    }
    Ok(())
}

fn stands_for_another(id: &EventId, field: &str) -> StoreError {
    let message = format!("event {id} is there already with another {field}; nothing was appended");
    StoreError::new(ErrorKind::Conflict, message)
        .with_hint("an event id stands for one event for ever; give the new one an id of its own")
}

fn append_one(state: &mut State, event: &NewEvent, ids: &dyn IdSource, now: Timestamp) -> Appended {
    let known = event.id.as_ref().and_then(|id| state.events.get(id)).cloned();
    let created = known.is_none();
    let existing = known.as_ref().map_or_else(BTreeMap::new, |known| deliveries_of(state, &known.id));
    let stored = known.unwrap_or_else(|| store_event(state, event, ids, now));
    let deliver = |handler: &String| match existing.get(handler) {
        Some(id) => AppendedDelivery { id: id.clone(), handler: handler.clone(), created: false },
        None => {
            let id = DeliveryId::from(ids.next(IdKind::Delivery, now));
            let available_at = event.available_at.unwrap_or(now);
            let delivery = delivery_of(&stored, id.clone(), handler, now);
            let (max_attempts, due_at) = (event.max_attempts, Some(available_at));
            state.deliveries.insert(id.clone(), Delivery { max_attempts, available_at, due_at, ..delivery });
            AppendedDelivery { id, handler: handler.clone(), created: true }
        }
    };
    Appended { id: stored.id.clone(), created, deliveries: event.handlers.iter().map(deliver).collect() }
}

/// The deliveries of an event, by handler.
fn deliveries_of(state: &State, event: &EventId) -> BTreeMap<String, DeliveryId> {
    let of_event = state.deliveries.values().filter(|delivery| delivery.event_id == *event);
    of_event.map(|delivery| (delivery.handler.clone(), delivery.id.clone())).collect()
}

fn store_event(state: &mut State, event: &NewEvent, ids: &dyn IdSource, now: Timestamp) -> Event {
    let fresh_id = || EventId::from(ids.next(IdKind::Event, now));
    let id = event.id.clone().unwrap_or_else(fresh_id);
    let sequence = event.key.as_ref().map(|key| next_sequence(state, key));
    let stored = event_of(event, id.clone(), sequence, now);
    state.events.insert(id, stored.clone());
    stored
}

/// Counts one event of the key. As nobody else appends before this transaction ends, sequences are in commit order.
fn next_sequence(state: &mut State, key: &str) -> i64 {
    let latest = state.key_sequences.entry(key.to_owned()).or_default();
    *latest += 1;
    *latest
}

fn event_of(event: &NewEvent, id: EventId, sequence: Option<i64>, now: Timestamp) -> Event {
    Event {
        id,
        event_type: event.event_type.clone(),
        payload: event.payload.clone(),
        headers: Value::Object(event.headers.clone()),
        key: event.key.clone(),
        sequence,
        correlation_id: event.correlation_id.clone(),
        causation_id: event.causation_id.clone(),
        aggregate_id: event.aggregate_id.clone(),
        metadata: event.metadata.clone(),
        created_at: now,
    }
}

/// A delivery that is due now. It takes its place in its key from the stored event, also when it is added later.
pub(super) fn delivery_of(stored: &Event, id: DeliveryId, handler: &str, now: Timestamp) -> Delivery {
    Delivery {
        id,
        event_id: stored.id.clone(),
        event_type: stored.event_type.clone(),
        handler: handler.to_owned(),
        key: stored.key.clone(),
        sequence: stored.sequence,
        status: Status::Pending,
        lane: Lane::Ready,
        attempts: 0,
        max_attempts: None,
        available_at: now,
        lease_expires_at: None,
        lease_token: None,
        lease_owner: None,
        due_at: Some(now),
        created_at: now,
        updated_at: now,
        completed_at: None,
        last_error: None,
        errors: Vec::new(),
        requeues: 0,
    }
}
