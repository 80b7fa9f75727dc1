//! Claiming, under the lock that makes half of its rules hold by themselves.
//!
//! Of the rules on [`Store::claim`](crate::store::Store::claim), *one winner* (3) and the *second look with its undo*
//! (4) answer to races that cannot happen here: nothing changes between the look and the write.

use std::collections::BTreeMap;

use super::state::State;
use crate::model::{Delivery, DeliveryId, IdKind, IdSource, Lane, LeaseToken, Timestamp, Transition};
use crate::store::{ClaimRequest, Claimed, PARKING_THRESHOLD};

pub(super) fn claim(state: &mut State, request: &ClaimRequest, ids: &dyn IdSource) -> Vec<Claimed> {
    unpark(state, request);
    let queues = queues(state, request);
    let mut blocked: BTreeMap<QueueName, Vec<DeliveryId>> = BTreeMap::new();
    let mut token = None;
    let mut claimed = Vec::new();
    for id in due(state, request) {
        if claimed.len() >= request.limit {
            break;
        }
        if let Some(name) = state.deliveries.get(&id).and_then(|delivery| waits_in(&queues, delivery)) {
            blocked.entry(name).or_default().push(id);
            continue;
        }
        let token = token.get_or_insert_with(|| fresh_token(ids, request.now));
        claimed.extend(take(state, &id, token, request));
    }
    park(state, blocked, request.now);
    claimed
}

/// A handler and a key: what the order of deliveries is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct QueueName {
    handler: String,
    key: String,
}

impl QueueName {
    /// Where the delivery queues; `None` without a key.
    fn of(delivery: &Delivery) -> Option<Self> {
        Some(QueueName { handler: delivery.handler.clone(), key: delivery.key.clone()? })
    }
}

/// The unfinished deliveries of one handler and key, as far as they decide who may run.
struct Queue {
    /// The lowest sequence.
    head: Option<i64>,
    /// Whether one runs under a live lease.
    running: bool,
    /// The lowest sequence in lane parked, and its delivery.
    parked: Option<(Option<i64>, DeliveryId)>,
}

impl Queue {
    /// Rule 2: an earlier one is unfinished, or one runs, which is another one since `due` does not run. Only the head
    /// passes, so that whatever else the call meets of the queue waits: rule 5, one delivery of a queue in one call.
    fn blocks(&self, due: &Delivery) -> bool {
        self.head < due.sequence || self.running
    }

    fn add(&mut self, delivery: &Delivery, now: Timestamp) {
        self.head = self.head.min(delivery.sequence);
        self.running |= delivery.is_running(now);
        if delivery.lane == Lane::Parked {
            let candidate = (delivery.sequence, delivery.id.clone());
            self.parked = self.parked.take().into_iter().chain([candidate]).min();
        }
    }
}

/// The queues of the handlers that are asked for.
fn queues(state: &State, request: &ClaimRequest) -> BTreeMap<QueueName, Queue> {
    let mut queues = BTreeMap::new();
    for delivery in state.deliveries.values().filter(|delivery| concerns(request, delivery)) {
        let Some(name) = QueueName::of(delivery) else { continue };
        let empty = || Queue { head: delivery.sequence, running: false, parked: None };
        queues.entry(name).or_insert_with(empty).add(delivery, request.now);
    }
    queues
}

/// The queue in which the delivery has to wait, if any.
fn waits_in(queues: &BTreeMap<QueueName, Queue>, delivery: &Delivery) -> Option<QueueName> {
    let name = QueueName::of(delivery)?;
    queues.get(&name)?.blocks(delivery).then_some(name)
}

fn concerns(request: &ClaimRequest, delivery: &Delivery) -> bool {
    delivery.status.is_unfinished() && request.handlers.contains(&delivery.handler)
}

/// Rule 1: the due deliveries in lane ready, oldest first.
fn due(state: &State, request: &ClaimRequest) -> Vec<DeliveryId> {
    let candidates = state.deliveries.values().filter(|delivery| concerns(request, delivery));
    let ready = candidates.filter(|delivery| delivery.lane == Lane::Ready);
    let mut due: Vec<_> = ready
        .filter_map(|delivery| Some((delivery.due_at?, delivery.id.clone())))
        .filter(|(due_at, _)| *due_at <= request.now)
        .collect();
    due.sort_unstable();
    due.into_iter().map(|(_, id)| id).collect()
}

fn fresh_token(ids: &dyn IdSource, now: Timestamp) -> LeaseToken {
    LeaseToken::from(ids.next(IdKind::LeaseToken, now))
}

fn take(state: &mut State, id: &DeliveryId, token: &LeaseToken, request: &ClaimRequest) -> Option<Claimed> {
    let transition = Transition::Claim {
        token: token.clone(),
        owner: request.owner.clone(),
        expires_at: request.now.saturating_add(request.lease),
    };
    state.change(id, &transition, request.now)?.ok()?;
    let delivery = state.deliveries.get(id)?.clone();
    Some(Claimed { lease: delivery.lease()?, delivery })
}

/// Sets aside the queues that made this scan step over many blocked deliveries. Of these only pending ones can be
/// parked: an expired lease stays where claims see it.
fn park(state: &mut State, blocked: BTreeMap<QueueName, Vec<DeliveryId>>, now: Timestamp) {
    for ids in blocked.into_values().filter(|ids| ids.len() >= PARKING_THRESHOLD) {
        state.change_all(&ids, &Transition::Park, now);
    }
}

/// Brings back the lowest parked delivery of each queue in which nothing unfinished comes before it.
fn unpark(state: &mut State, request: &ClaimRequest) {
    let queues = queues(state, request).into_values();
    let movable = queues.filter_map(|queue| queue.parked.filter(|(sequence, _)| *sequence == queue.head));
    let ids: Vec<_> = movable.map(|(_, id)| id).collect();
    state.change_all(&ids, &Transition::Unpark, request.now);
}
