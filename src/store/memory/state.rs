//! What the store holds, and the questions and changes that concern single deliveries.

use std::collections::BTreeMap;

use crate::model::{
    Delivery, DeliveryId, Event, EventId, HandlerActivity, HandlerStatistics, IllegalTransition, KeySequence,
    KeyState, Lane, Lease, ListQuery, Pause, Statistics, Status, Timestamp, Transition, TrippedBreaker,
    apply,
};
use crate::store::Fenced;

/// The four collections of an outbox.
#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) events: BTreeMap<EventId, Event>,
    pub(super) deliveries: BTreeMap<DeliveryId, Delivery>,
    /// The sequence of the latest event of each key.
    pub(super) key_sequences: BTreeMap<String, i64>,
    /// The latest pause of each handler, over or not.
    pub(super) pauses: BTreeMap<String, Pause>,
    /// The latest report of each handler and worker.
    pub(super) breakers: BTreeMap<(String, String), TrippedBreaker>,
}

impl State {
    /// Makes a transition if the delivery's state allows it; `None` when there is no such delivery. Every change of a
    /// delivery goes through here.
    pub(super) fn change(
        &mut self,
        id: &DeliveryId,
        transition: &Transition,
        now: Timestamp,
    ) -> Option<Result<(), IllegalTransition>> {
        let delivery = self.deliveries.get_mut(id)?;
        Some(apply(delivery, transition, now).map(|changed| *delivery = changed))
    }

    /// Makes a transition of each delivery whose state allows it; returns how many changed.
    pub(super) fn change_all(&mut self, ids: &[DeliveryId], transition: &Transition, now: Timestamp) -> u64 {
        ids.iter().filter(|id| matches!(self.change(id, transition, now), Some(Ok(())))).count() as u64
    }

    /// Makes a transition that needs a lease. The token alone decides: a lease that ran out is as good as a live one
    /// as long as no other claim has replaced its token.
    pub(super) fn change_leased(&mut self, lease: &Lease, transition: &Transition, now: Timestamp) -> Fenced {
        let recorded = self.deliveries.get(&lease.delivery_id).and_then(Delivery::lease);
        if recorded.as_ref() != Some(lease) {
            return Fenced::LeaseLost;
        }
        match self.change(&lease.delivery_id, transition, now) {
            Some(Ok(())) => Fenced::Applied,
            _ => Fenced::LeaseLost,
        }
    }

    /// The ids of the deliveries of which `condition` holds.
    pub(super) fn ids_where(&self, condition: impl Fn(&Delivery) -> bool) -> Vec<DeliveryId> {
        let matching = self.deliveries.values().filter(|delivery| condition(delivery));
        matching.map(|delivery| delivery.id.clone()).collect()
    }

    pub(super) fn list(&self, query: &ListQuery) -> Vec<Delivery> {
        let place = |delivery: &Delivery| Some((query.sort.time_of(delivery)?, delivery.id.clone()));
        let start = query.after.as_ref().map(|cursor| (cursor.time, cursor.id.clone()));
        let is_behind_start = |place: &(Timestamp, DeliveryId)| match &start {
            None => true,
            Some(start) if query.descending => place < start,
            Some(start) => place > start,
        };
        let matching = self.deliveries.values().filter(|delivery| query.filter.matches(delivery));
        let mut listed: BTreeMap<_, _> = matching
            .filter_map(|delivery| Some((place(delivery)?, delivery)))
            .filter(|(place, _)| is_behind_start(place))
            .collect();
        let limit = query.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let next = || if query.descending { listed.pop_last() } else { listed.pop_first() };
        let shown = |(_, delivery): (_, &Delivery)| match query.without_history {
            true => {
                Delivery { errors: delivery.errors.last().cloned().into_iter().collect(), ..delivery.clone() }
            }
            false => delivery.clone(),
        };
        std::iter::from_fn(next).map(shown).take(limit).collect()
    }

    pub(super) fn statistics(&self) -> Statistics {
        let mut handlers: BTreeMap<&str, HandlerStatistics> = BTreeMap::new();
        for delivery in self.deliveries.values() {
            count_in(handlers.entry(&delivery.handler).or_default(), delivery);
        }
        Statistics::from_handlers(handlers.into_values().collect())
    }

    pub(super) fn key_state(&self, handler: &str, key: &str, now: Timestamp) -> KeyState {
        let of_key = |delivery: &&Delivery| {
            delivery.handler == handler
                && delivery.key.as_deref() == Some(key)
                && delivery.status.is_unfinished()
        };
        let mut unfinished: Vec<Delivery> = self.deliveries.values().filter(of_key).cloned().collect();
        unfinished.sort_by_key(|delivery| delivery.sequence);
        KeyState::of(&unfinished, now)
    }

    pub(super) fn waiting_behind(&self, handler: &str, key: &str, sequence: i64) -> u64 {
        let waits = |delivery: &&Delivery| {
            delivery.handler == handler
                && delivery.key.as_deref() == Some(key)
                && delivery.sequence > Some(sequence)
                && delivery.status.is_unfinished()
        };
        self.deliveries.values().filter(waits).count() as u64
    }

    pub(super) fn handler_activity(&self, handler: &str, now: Timestamp) -> HandlerActivity {
        let mut activity = HandlerActivity::default();
        for delivery in self.deliveries.values().filter(|delivery| delivery.handler == handler) {
            activity.examine(delivery);
            if delivery.is_running(now) {
                activity.running = Some(delivery.clone());
            }
        }
        activity
    }

    pub(super) fn pause(&mut self, pause: &Pause) -> Option<Pause> {
        let before = self.resume(&pause.handler, pause.paused_at);
        let paused_at = before.as_ref().map_or(pause.paused_at, |before| before.paused_at);
        self.pauses.insert(pause.handler.clone(), Pause { paused_at, ..pause.clone() });
        before
    }

    pub(super) fn resume(&mut self, handler: &str, now: Timestamp) -> Option<Pause> {
        self.pauses.remove(handler).filter(|pause| pause.holds_at(now))
    }

    pub(super) fn report_breaker(&mut self, breaker: &TrippedBreaker, now: Timestamp) {
        self.breakers.retain(|(handler, _), one| *handler != breaker.handler || now < one.expires_at);
        self.breakers.insert((breaker.handler.clone(), breaker.worker.clone()), breaker.clone());
    }

    pub(super) fn key_sequences(&self, prefix: &str) -> Vec<KeySequence> {
        let matching = self.key_sequences.iter().filter(|(key, _)| key.starts_with(prefix));
        matching.map(|(key, value)| KeySequence { key: key.clone(), value: *value }).collect()
    }
}

fn count_in(statistics: &mut HandlerStatistics, delivery: &Delivery) {
    statistics.handler.clone_from(&delivery.handler);
    statistics.total += 1;
    match delivery.status {
        Status::Pending => statistics.pending += 1,
        Status::Processing => statistics.processing += 1,
        Status::Completed => statistics.completed += 1,
        Status::Dead => statistics.dead += 1,
    }
    if delivery.status == Status::Pending && delivery.lane == Lane::Parked {
        statistics.parked += 1;
    }
    let due = [statistics.oldest_due_at, delivery.due_at];
    statistics.oldest_due_at = due.into_iter().flatten().min();
}
