//! The leases that a store took and of which no outcome was reported through it yet.
//!
//! Whoever reports the outcome of such a lease reports it for the first time. That spares a look at the delivery before the
//! write: see [`settle`](super::settle).

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::model::{DeliveryId, Lease, LeaseToken};

/// Leases that are remembered, at most: a worker that never reports outcomes shall not fill the memory.
const LIMIT: usize = 100_000;

/// See the [module](self). Shared by the clones of a store.
#[derive(Default)]
pub(super) struct Leases(Mutex<HashMap<DeliveryId, LeaseToken>>);

impl Leases {
    fn map(&self) -> MutexGuard<'_, HashMap<DeliveryId, LeaseToken>> {
        // No code that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These were taken, or go on.
    pub(super) fn note<'l>(&self, leases: impl IntoIterator<Item = &'l Lease>) {
        let mut map = self.map();
        for lease in leases {
            if map.len() >= LIMIT {
                map.clear();
            }
            map.insert(lease.delivery_id.clone(), lease.token.clone());
        }
    }

    /// An outcome of these is reported; returns whether it is the first of each.
    pub(super) fn are_first<'l>(&self, leases: impl IntoIterator<Item = &'l Lease>) -> bool {
        let mut map = self.map();
        let mut are_first = true;
        for lease in leases {
            are_first &= map.remove(&lease.delivery_id).is_some_and(|token| token == lease.token);
        }
        are_first
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leases")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(id: &str, token: &str) -> Lease {
        Lease { delivery_id: id.into(), token: LeaseToken::from(token) }
    }

    #[test]
    fn the_first_report_of_a_lease_is_told_from_a_second() {
        let leases = Leases::default();
        leases.note([&lease("a", "1"), &lease("b", "1")]);
        assert!(leases.are_first([&lease("a", "1")]));
        assert!(!leases.are_first([&lease("a", "1")]));
        assert!(!leases.are_first([&lease("a", "1"), &lease("b", "1")]));
        assert!(!leases.are_first([&lease("b", "1")]));
    }

    #[test]
    fn the_token_counts() {
        let leases = Leases::default();
        leases.note([&lease("a", "1")]);
        assert!(!leases.are_first([&lease("a", "2")]));
    }

    #[test]
    fn a_lease_too_many_makes_it_forget() {
        let leases = Leases::default();
        let many: Vec<Lease> = (0..=LIMIT).map(|n| lease(&n.to_string(), "1")).collect();
        leases.note(&many);
        assert!(!leases.are_first([&many[0]]));
        assert!(leases.are_first([&many[LIMIT]]));
    }
}
