//! Errors: what failed, grouped by what it has in common.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use futures_util::StreamExt as _;
use serde::Serialize;

use crate::model::{Delivery, DeliveryId, ErrorGroupId, Filter, ListQuery, Status, Timestamp};
use crate::store::{ErrorKind, Result, Store, StoreError};

/// Groups that are told apart at most, so that memory does not grow with the number of errors.
pub const MAX_GROUPS: usize = 10_000;

/// Deliveries of one handler whose latest errors are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorGroup {
    /// What a filter names it by.
    pub group: ErrorGroupId,
    /// The handler.
    pub handler: String,
    /// How many deliveries.
    pub count: u64,
    /// When the first of them failed.
    pub first_seen_at: Timestamp,
    /// When the last of them failed.
    pub last_seen_at: Timestamp,
    /// The one that failed last.
    pub sample_id: DeliveryId,
    /// What their errors have in common; empty where there is no message.
    pub error: String,
}

impl ErrorGroup {
    fn of(group: ErrorGroupId, error: String, delivery: &Delivery) -> Self {
        let failed_at = delivery.failed_at();
        ErrorGroup {
            group,
            handler: delivery.handler.clone(),
            count: 1,
            first_seen_at: failed_at,
            last_seen_at: failed_at,
            sample_id: delivery.id.clone(),
            error,
        }
    }

    fn add(&mut self, delivery: &Delivery) {
        let failed_at = delivery.failed_at();
        self.count += 1;
        self.first_seen_at = self.first_seen_at.min(failed_at);
        if failed_at >= self.last_seen_at {
            self.last_seen_at = failed_at;
            self.sample_id = delivery.id.clone();
        }
    }
}

/// Deliveries in groups.
#[derive(Debug, Default)]
pub struct ErrorGroups {
    /// The groups, the largest first, and of two that are as large the one seen last.
    pub groups: Vec<ErrorGroup>,
    /// Deliveries that were looked at.
    pub examined: u64,
    /// Deliveries that belong to none of these groups, as [`MAX_GROUPS`] others were met before theirs.
    pub beyond: u64,
    /// Deliveries that cannot be understood.
    pub unreadable: u64,
}

/// Groups those that a filter selects by handler and normalised error; dead ones, unless the filter names a status. What
/// never failed is left out. `progress` is told how many have been looked at, and `unreadable` of each that cannot be
/// understood.
///
/// # Errors
/// Those of the store.
pub async fn error_groups(
    store: &dyn Store,
    mut filter: Filter,
    mut progress: impl FnMut(u64),
    mut unreadable: impl FnMut(&StoreError),
) -> Result<ErrorGroups> {
    if filter.statuses.is_empty() {
        filter.statuses = vec![Status::Dead];
    }
    let mut deliveries = store.list(&ListQuery { filter, without_history: true, ..ListQuery::default() });
    let mut sorting = Sorting::default();
    while let Some(delivery) = deliveries.next().await {
        match delivery {
            Ok(delivery) => sorting.take(&delivery),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                sorting.unreadable += 1;
                unreadable(&error);
            }
            Err(error) => return Err(error),
        }
        progress(sorting.examined + sorting.unreadable);
    }
    Ok(sorting.into_groups())
}

/// Groups while they are made.
#[derive(Default)]
struct Sorting {
    groups: HashMap<ErrorGroupId, ErrorGroup>,
    examined: u64,
    beyond: u64,
    unreadable: u64,
}

impl Sorting {
    fn take(&mut self, delivery: &Delivery) {
        self.examined += 1;
        let Some(error) = delivery.normalised_error() else { return };
        let id = ErrorGroupId::of(&delivery.handler, &error);
        let is_full = self.groups.len() >= MAX_GROUPS;
        match self.groups.entry(id) {
            Entry::Occupied(mut group) => group.get_mut().add(delivery),
            Entry::Vacant(_) if is_full => self.beyond += 1,
            Entry::Vacant(place) => drop(place.insert(ErrorGroup::of(id, error, delivery))),
        }
    }

    fn into_groups(self) -> ErrorGroups {
        let mut groups: Vec<ErrorGroup> = self.groups.into_values().collect();
        groups.sort_by(|a, b| {
            let order = |group: &ErrorGroup| (group.count, group.last_seen_at, group.group);
            order(b).cmp(&order(a))
        });
        let Sorting { examined, beyond, unreadable, .. } = self;
        ErrorGroups { groups, examined, beyond, unreadable }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{Failure, FailureKind};
    use crate::ops::testing::{Bench, Spoilt, go_on};
    use crate::store::Outcome;

    async fn dead_of(bench: &Bench, message: &str) -> DeliveryId {
        let failure = Failure::new(FailureKind::Failed, message);
        bench.settled(1, &Outcome::Bury { failure }).await.remove(0)
    }

    async fn groups(bench: &Bench, filter: &Filter) -> ErrorGroups {
        error_groups(&bench.store, filter.clone(), |_| (), |_| ()).await.unwrap()
    }

    #[tokio::test]
    async fn errors_that_differ_in_values_alone_are_one_group() {
        let bench = Bench::new();
        bench.pending(3).await;
        bench.completed(3).await;
        let first = bench.now();
        for message in ["order 1 unknown", "order 22 unknown"] {
            dead_of(&bench, message).await;
        }
        dead_of(&bench, "connection refused").await;
        bench.clock.advance(Duration::from_secs(60));
        let last = dead_of(&bench, "order 333 unknown").await;
        let found = groups(&bench, &Filter::default()).await;
        let [orders, connection] = found.groups.as_slice() else { panic!("{found:?}") };
        assert_eq!((orders.count, orders.error.as_str()), (3, "order <n> unknown"));
        assert_eq!(orders.group, ErrorGroupId::of("h", "order <n> unknown"));
        assert!(
            orders.first_seen_at >= first
                && orders.last_seen_at.since(orders.first_seen_at) >= Duration::from_secs(60)
        );
        assert_eq!((&orders.sample_id, orders.handler.as_str()), (&last, "h"));
        assert_eq!((connection.count, connection.first_seen_at), (1, connection.last_seen_at));
        assert_eq!((found.examined, found.beyond, found.unreadable), (4, 0, 0));
    }

    #[tokio::test]
    async fn a_named_status_is_looked_at_instead_and_what_never_failed_is_left_out() {
        let bench = Bench::new();
        dead_of(&bench, "dead").await;
        bench.pending(2).await;
        let retry = Outcome::Reschedule {
            available_at: bench.now().saturating_add(Duration::from_secs(3_600)),
            failure: Failure::new(FailureKind::Failed, "busy"),
        };
        let bench_of_retries = Bench::new();
        bench_of_retries.settled(2, &retry).await;
        bench_of_retries.pending(1).await;
        let pending = Filter { statuses: vec![Status::Pending], ..Filter::default() };
        assert_eq!(groups(&bench, &pending).await.groups, []);
        let found = groups(&bench_of_retries, &pending).await;
        assert_eq!((found.groups[0].count, found.groups.len(), found.examined), (2, 1, 3));
    }

    #[tokio::test]
    async fn the_largest_group_comes_first_and_then_the_latest() {
        let bench = Bench::new();
        for message in ["a", "b", "c", "b", "c", "d"] {
            dead_of(&bench, message).await;
        }
        let found = groups(&bench, &Filter::default()).await;
        let order: Vec<_> = found.groups.iter().map(|group| group.error.as_str()).collect();
        assert_eq!(order, ["c", "b", "d", "a"]);
    }

    /// Each text is a kind of its own, and letters are no values.
    fn word(n: usize) -> String {
        n.to_string().bytes().map(|digit| char::from(digit - b'0' + b'k')).collect()
    }

    #[test]
    fn groups_beyond_the_limit_are_counted_and_those_known_go_on() {
        let time = "2026-03-01T09:30:00Z";
        let mut delivery: Delivery = serde_json::from_value(serde_json::json!({
            "id": "d", "eventId": "e", "eventType": "t", "handler": "h", "status": "dead", "lane": "ready",
            "attempts": 1, "availableAt": time, "createdAt": time, "updatedAt": time,
        }))
        .unwrap();
        let mut sorting = Sorting::default();
        let mut take = |n: usize| {
            delivery.last_error = Some(word(n));
            sorting.take(&delivery);
        };
        (0..MAX_GROUPS + 5).for_each(&mut take);
        take(0);
        take(MAX_GROUPS + 1);
        let found = sorting.into_groups();
        assert_eq!(
            (found.groups.len(), found.beyond, found.examined),
            (MAX_GROUPS, 6, MAX_GROUPS as u64 + 7)
        );
        assert_eq!((found.groups[0].count, found.groups[0].error.as_str()), (2, "k"));
    }

    #[tokio::test]
    async fn what_cannot_be_understood_is_counted_and_told() {
        let bench = Bench::new();
        dead_of(&bench, "boom").await;
        let mut store = Spoilt::new(&bench.store, |_| go_on());
        store.unreadable = 3;
        let (mut told, mut looked_at) = (Vec::new(), 0);
        let found = error_groups(
            &store,
            Filter::default(),
            |count| looked_at = count,
            |error| told.push(error.to_string()),
        );
        let found = found.await.unwrap();
        assert_eq!((found.unreadable, found.groups.len()), (3, 1));
        assert_eq!((told.len(), looked_at), (3, 4));
    }
}
