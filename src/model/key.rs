//! Ordering keys: their counters, and what stands in the way of a delivery.

use serde::{Deserialize, Serialize};

use super::delivery::Delivery;
use super::id::DeliveryId;
use super::time::Timestamp;

/// The counter of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySequence {
    /// The key.
    pub key: String,
    /// The sequence of its latest event.
    pub value: i64,
}

/// A place in the order of keys: by key, sequence and id of the delivery, none of which ever changes. Those without a key
/// come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPlace {
    /// The key.
    pub key: Option<String>,
    /// The sequence.
    pub sequence: Option<i64>,
    /// The delivery.
    pub id: DeliveryId,
}

impl KeyPlace {
    /// The place of `delivery`.
    pub fn of(delivery: &Delivery) -> Self {
        KeyPlace { key: delivery.key.clone(), sequence: delivery.sequence, id: delivery.id.clone() }
    }
}

/// What runs and what waits of one handler and key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The unfinished delivery with the lowest sequence.
    pub head: Option<Delivery>,
    /// A delivery that runs under a live lease, the head or another one.
    pub running: Option<Delivery>,
    /// Unfinished deliveries, the head included.
    pub unfinished: u64,
}

/// Why a due delivery of a key has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// An earlier delivery of its handler and key is unfinished.
    Predecessor(Delivery),
    /// Another delivery of its handler and key runs under a live lease.
    Running(Delivery),
}

impl Blocker {
    /// The delivery that stands in the way.
    pub fn delivery(&self) -> &Delivery {
        match self {
            Blocker::Predecessor(delivery) | Blocker::Running(delivery) => delivery,
        }
    }
}

impl KeyState {
    /// The state of a key whose unfinished deliveries, in order of their sequence, are `unfinished`.
    pub fn of(unfinished: &[Delivery], now: Timestamp) -> Self {
        KeyState {
            head: unfinished.first().cloned(),
            running: unfinished.iter().find(|delivery| delivery.is_running(now)).cloned(),
            unfinished: unfinished.len() as u64,
        }
    }

    /// What keeps `delivery`, which belongs to this key and is unfinished, from being claimed when due.
    pub fn blocker_of(&self, delivery: &Delivery) -> Option<Blocker> {
        let earlier = self.head.as_ref().filter(|head| head.sequence < delivery.sequence);
        let other = self.running.as_ref().filter(|running| running.id != delivery.id);
        earlier.cloned().map(Blocker::Predecessor).or_else(|| other.cloned().map(Blocker::Running))
    }
}
