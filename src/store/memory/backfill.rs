//! Deliveries for a handler that came later than its events.

use std::collections::BTreeSet;

use super::append::delivery_of;
use super::state::State;
use crate::model::{Delivery, DeliveryId, Event, EventId, IdKind, IdSource, KeyPlace, Timestamp};
use crate::store::{BackfillPage, BackfillRequest, Extended};

/// How many events a page has at the most.
const PAGE: usize = 1_000;

pub(super) fn events_without(state: &State, request: &BackfillRequest) -> BackfillPage {
    let has_one = |event: &EventId| {
        state.deliveries.values().any(|there| there.event_id == *event && there.handler == request.handler)
    };
    let mut places: Vec<(KeyPlace, &EventId)> = Vec::new();
    let mut seen = BTreeSet::new();
    for delivery in in_order(state) {
        let place = KeyPlace::of(delivery);
        let is_first = seen.insert(&delivery.event_id);
        let is_behind = request.after.as_ref().is_none_or(|after| place > *after);
        let event = state.events.get(&delivery.event_id);
        if is_first
            && is_behind
            && event.is_some_and(|event| is_meant(request, event))
            && !has_one(&delivery.event_id)
        {
            places.push((place, &delivery.event_id));
        }
    }
    let last = places.get(PAGE - 1).filter(|_| places.len() > PAGE).map(|(place, _)| place.clone());
    BackfillPage { events: places.into_iter().take(PAGE).map(|(_, event)| event.clone()).collect(), last }
}

fn in_order(state: &State) -> Vec<&Delivery> {
    let mut deliveries: Vec<&Delivery> = state.deliveries.values().collect();
    deliveries.sort_by_cached_key(|delivery| KeyPlace::of(delivery));
    deliveries
}

fn is_meant(request: &BackfillRequest, event: &Event) -> bool {
    request.event_type.matches(&event.event_type)
        && request.since.is_none_or(|since| event.created_at >= since)
        && event.created_at < request.until
}

pub(super) fn extend(
    state: &mut State,
    events: &[EventId],
    handler: &str,
    ids: &dyn IdSource,
    now: Timestamp,
) -> Extended {
    let mut extended = Extended::default();
    for id in events {
        let Some(event) = state.events.get(id).cloned() else {
            extended.missing += 1;
            continue;
        };
        if state.deliveries.values().any(|there| there.event_id == *id && there.handler == handler) {
            extended.existing += 1;
            continue;
        }
        let id = DeliveryId::from(ids.next(IdKind::Delivery, now));
        state.deliveries.insert(id.clone(), delivery_of(&event, id, handler, now));
        extended.created += 1;
    }
    extended
}
