//! Deleting what is done with: finished deliveries, their events, and the counters of forgotten keys.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::state::State;
use crate::model::{Delivery, DeliveryId, Status, Timestamp};
use crate::store::{PruneBatch, PruneRequest, PurgeBatch, PurgeRequest};

/// The deliveries that a purge may delete, those that finished first before the others.
pub(super) fn purgeable(state: &State, request: &PurgeRequest) -> Vec<DeliveryId> {
    let mut finished: Vec<(Timestamp, DeliveryId)> = state
        .deliveries
        .values()
        .filter_map(|delivery| Some((finished_before_limit(delivery, request)?, delivery.id.clone())))
        .collect();
    finished.sort_unstable();
    finished.into_iter().map(|(_, id)| id).collect()
}

/// When the delivery finished, if that is before the limit for its status.
fn finished_before_limit(delivery: &Delivery, request: &PurgeRequest) -> Option<Timestamp> {
    let limit = match delivery.status {
        Status::Completed => request.completed_before,
        Status::Dead => request.dead_before,
        Status::Pending | Status::Processing => None,
    }?;
    delivery.finished_at().filter(|finished_at| *finished_at < limit)
}

pub(super) fn purge_batch(state: &mut State, request: &PurgeRequest) -> PurgeBatch {
    let batch = purgeable(state, request).into_iter().take(request.batch as usize);
    let deleted: Vec<Delivery> = batch.filter_map(|id| state.deliveries.remove(&id)).collect();
    let still_needed: BTreeSet<_> = state.deliveries.values().map(|delivery| &delivery.event_id).collect();
    let mut events = 0;
    for delivery in &deleted {
        if !still_needed.contains(&delivery.event_id) && state.events.remove(&delivery.event_id).is_some() {
            events += 1;
        }
    }
    PurgeBatch { deliveries: deleted.len() as u64, events }
}

pub(super) fn prune_keys(state: &mut State, request: &PruneRequest) -> PruneBatch {
    let start = request.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
    let behind = state.key_sequences.range::<String, _>((start, Bound::Unbounded)).map(|(key, _)| key);
    let examined: Vec<String> = behind.take(request.batch as usize).cloned().collect();
    let in_use: BTreeSet<_> = state.deliveries.values().filter_map(|d| d.key.as_deref()).collect();
    let unused: Vec<_> = examined.iter().filter(|key| !in_use.contains(key.as_str())).collect();
    if !request.dry_run {
        state.key_sequences.retain(|key, _| !unused.contains(&key));
    }
    PruneBatch {
        examined: examined.len() as u64,
        pruned: unused.len() as u64,
        last: examined.last().filter(|_| examined.len() == request.batch as usize).cloned(),
    }
}
