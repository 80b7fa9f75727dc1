//! In which order deliveries of one key are brought back.
//!
//! A repair walks by creation, the oldest first. Within a key that is the order of its sequence, unless those who appended
//! had clocks that differed, or ids that say nothing of the order within a millisecond. A later delivery that is
//! requeued before an earlier one of its key might run before it, since what is dead blocks nothing.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;

use futures_util::StreamExt as _;

use crate::model::{Delivery, DeliveryId, ListQuery, Selection};
use crate::store::{ErrorKind, Repair, Result, Store};

/// A key of a handler, as a hash: two that are taken for one are held back in vain, and no more. A selection may have a
/// million of them.
type KeyHash = u64;

/// The keys of a selection whose deliveries do not come in their order in a walk by creation.
#[derive(Default)]
pub(super) struct Order {
    hasher: RandomState,
    disordered: HashSet<KeyHash>,
}

/// The place of a delivery among those of its key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    key: KeyHash,
    sequence: i64,
}

impl Order {
    /// Walks along the selection to find them. Only a requeue needs to know: what is buried never runs.
    pub(super) async fn of(store: &dyn Store, selection: &Selection, repair: &Repair) -> Result<Self> {
        let mut order = Order::default();
        if matches!(repair, Repair::Bury { .. }) {
            return Ok(order);
        }
        let query =
            ListQuery { filter: selection.filter.clone(), without_history: true, ..ListQuery::default() };
        let mut listing = store.list(&query);
        let mut latest: HashMap<KeyHash, i64> = HashMap::new();
        while let Some(delivery) = listing.next().await {
            match delivery {
                Ok(delivery) => {
                    let Some(Place { key, sequence }) = order.place(&delivery) else { continue };
                    let latest = latest.entry(key).or_insert(sequence);
                    if sequence < *latest {
                        order.disordered.insert(key);
                    }
                    *latest = sequence.max(*latest);
                }
                // It has no place; the repair reports it.
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                Err(error) => return Err(error),
            }
        }
        Ok(order)
    }

    /// The place of a delivery that has to be held back until the walk is over; `None` if it has not.
    pub(super) fn place_of(&self, delivery: &Delivery) -> Option<Place> {
        self.place(delivery).filter(|place| self.disordered.contains(&place.key))
    }

    fn place(&self, delivery: &Delivery) -> Option<Place> {
        let key = self.hasher.hash_one((&delivery.handler, delivery.key.as_ref()?));
        Some(Place { key, sequence: delivery.sequence? })
    }
}

/// Deliveries that are held back.
#[derive(Default)]
pub(super) struct Held(Vec<(Place, DeliveryId)>);

impl Held {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, place: Place, id: DeliveryId) {
        self.0.push((place, id));
    }

    pub(super) fn take_over(&mut self, mut others: Held) {
        self.0.append(&mut others.0);
    }

    /// All of them, those of a key in the order of its sequence.
    pub(super) fn in_order(mut self) -> Vec<DeliveryId> {
        self.0.sort_by_key(|(place, _)| *place);
        self.0.into_iter().map(|(_, id)| id).collect()
    }
}
