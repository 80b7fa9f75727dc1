//! Appending events, each with a delivery for each of its handlers.

use std::collections::BTreeMap;
use std::mem;

use serde_json::Value;

use super::state::State;
use crate::model::{
    Appended, AppendedDelivery, Delivery, DeliveryId, Event, EventId, IdKind, IdSource, InvalidInput, Lane,
    NewEvent, Status, Timestamp,
};
use crate::store::{ErrorKind, Result, StoreError};

/// Appends a batch. All that can be refused is looked at before the first write, so that an error leaves no trace.
pub(super) fn append(
    state: &mut State,
    events: &[NewEvent],
    ids: &dyn IdSource,
    now: Timestamp,
) -> Result<Vec<Appended>> {
    let named = events.iter().map(NewEvent::checked).collect::<Result<Vec<_>, InvalidInput>>()?;
    let batch = Batch::of(&named)?;
    batch.distinct.iter().try_for_each(|event| compare_with_stored(state, event))?;
    let mut appended: Vec<_> =
        batch.distinct.iter().map(|event| append_one(state, event, ids, now)).collect();
    let places = batch.places.into_iter();
    Ok(named.iter().zip(places).map(|(event, place)| answer(event, &mut appended[place])).collect())
}

/// A batch in which each id stands once.
struct Batch {
    /// The first event of each id, with the handlers of all.
    distinct: Vec<NewEvent>,
    /// For each event that was named, where it is in `distinct`.
    places: Vec<usize>,
}

impl Batch {
    fn of(events: &[NewEvent]) -> Result<Batch> {
        let mut distinct: Vec<NewEvent> = Vec::with_capacity(events.len());
        let mut places = Vec::with_capacity(events.len());
        let mut by_id: BTreeMap<&EventId, usize> = BTreeMap::new();
        for event in events {
            let end = distinct.len();
            let place = event.id.as_ref().map_or(end, |id| *by_id.entry(id).or_insert(end));
            match (distinct.get_mut(place), &event.id) {
                (Some(first), Some(id)) => unite(first, event, id)?,
                _ => distinct.push(event.clone()),
            }
            places.push(place);
        }
        Ok(Batch { distinct, places })
    }
}

fn unite(first: &mut NewEvent, repeated: &NewEvent, id: &EventId) -> Result<()> {
    refuse_difference(repeated, &event_of(first, id.clone(), None, Timestamp::EPOCH))?;
    for handler in &repeated.handlers {
        if !first.handlers.contains(handler) {
            first.handlers.push(handler.clone());
        }
    }
    Ok(())
}

fn compare_with_stored(state: &State, event: &NewEvent) -> Result<()> {
    let stored = event.id.as_ref().and_then(|id| state.events.get(id));
    stored.map_or(Ok(()), |stored| refuse_difference(event, stored))
}

fn refuse_difference(event: &NewEvent, other: &Event) -> Result<()> {
    let Some(field) = event.difference_from(other) else { return Ok(()) };
    let message = format!("event id `{}` already stands for an event with another {field}", other.id);
    Err(StoreError::new(ErrorKind::Conflict, message)
        .with_hint("give the new event an id of its own, or repeat the event as it was"))
}

/// What the append did with `event`. Where its id is repeated, the first to name something is said to have created it.
fn answer(event: &NewEvent, appended: &mut Appended) -> Appended {
    let delivery_of = |handler: &String| {
        let delivery = appended.deliveries.iter_mut().find(|delivery| delivery.handler == *handler)?;
        let created = mem::take(&mut delivery.created);
        Some(AppendedDelivery { created, ..delivery.clone() })
    };
    let deliveries = event.handlers.iter().filter_map(delivery_of).collect();
    Appended { id: appended.id.clone(), created: mem::take(&mut appended.created), deliveries }
}

fn append_one(state: &mut State, event: &NewEvent, ids: &dyn IdSource, now: Timestamp) -> Appended {
    let stored = event.id.as_ref().and_then(|id| state.events.get(id)).cloned();
    let created = stored.is_none();
    let stored = stored.unwrap_or_else(|| store_event(state, event, ids, now));
    let deliver = |handler: &String| match delivery_for(state, &stored.id, handler) {
        Some(id) => AppendedDelivery { id, handler: handler.clone(), created: false },
        None => {
            let id = DeliveryId::from(ids.next(IdKind::Delivery, now));
            state.deliveries.insert(id.clone(), delivery_of(event, &stored, id.clone(), handler, now));
            AppendedDelivery { id, handler: handler.clone(), created: true }
        }
    };
    Appended { id: stored.id.clone(), created, deliveries: event.handlers.iter().map(deliver).collect() }
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

fn delivery_for(state: &State, event: &EventId, handler: &str) -> Option<DeliveryId> {
    let is_it = |delivery: &&Delivery| delivery.event_id == *event && delivery.handler == handler;
    state.deliveries.values().find(is_it).map(|delivery| delivery.id.clone())
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

/// A delivery takes its place in its key from the stored event, also when it is added later.
fn delivery_of(event: &NewEvent, stored: &Event, id: DeliveryId, handler: &str, now: Timestamp) -> Delivery {
    let available_at = event.available_at.unwrap_or(now);
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
        max_attempts: event.max_attempts,
        available_at,
        lease_expires_at: None,
        lease_token: None,
        lease_owner: None,
        due_at: Some(available_at),
        created_at: now,
        updated_at: now,
        completed_at: None,
        last_error: None,
        errors: Vec::new(),
        requeues: 0,
    }
}
