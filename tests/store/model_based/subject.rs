//! A store under comparison, with identifiers that come out alike on every store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::TryStreamExt as _;
use relayctl::model::{Delivery, Event, IdKind, IdSource, KeySequence, Lane, ListQuery, SortBy, Timestamp};
use relayctl::store::{ClaimRequest, Fenced, Outcome, Store};

use super::steps::{HANDLERS, Pilot};
use crate::backend::{Backend, Kind};
use crate::fixture::HOUR;

pub struct Subject {
    pub store: Arc<dyn Store>,
    pub backend: Box<dyn Backend>,
}

/// All that a store holds, lanes left out.
#[derive(Debug, PartialEq)]
pub struct Everything {
    deliveries: Vec<Delivery>,
    events: Vec<Event>,
    counters: Vec<KeySequence>,
}

impl Subject {
    pub async fn open(kind: Kind) -> Self {
        let backend = kind.open(Arc::new(Sequential::default())).await;
        Subject { store: backend.store(), backend }
    }

    pub async fn tear_down(&self) {
        self.backend.tear_down().await;
    }

    /// All deliveries, oldest first, lanes left out.
    pub async fn deliveries(&self) -> Vec<Delivery> {
        let query = ListQuery { sort: SortBy::Created, ..ListQuery::default() };
        let listed: Vec<Delivery> = self.store.list(&query).try_collect().await.unwrap();
        listed.into_iter().map(without_lane).collect()
    }

    pub async fn counters(&self) -> Vec<KeySequence> {
        self.store.key_sequences(None).try_collect().await.unwrap()
    }

    pub async fn everything(&self, pilot: &Pilot) -> Everything {
        let ids: Vec<_> = pilot.events.iter().cloned().collect();
        let mut events = self.store.events(&ids).await.unwrap();
        events.sort_by(|a, b| a.id.cmp(&b.id));
        Everything { deliveries: self.deliveries().await, events, counters: self.counters().await }
    }

    /// With time enough, everything unfinished can be claimed and completed, each key in its order. Returns what ran.
    pub async fn assert_runs_to_completion(&self, pilot: &Pilot) -> Vec<Delivery> {
        let unfinished = self.deliveries().await.into_iter().filter(|d| d.status.is_unfinished()).count();
        let mut now = pilot.now();
        let mut ran: Vec<Delivery> = Vec::new();
        for _ in 0..=unfinished {
            now = now.saturating_add(HOUR);
            ran.extend(self.claim_and_complete(now).await);
        }
        assert_eq!(ran.len(), unfinished, "what is left stands still");
        let mut by_key: BTreeMap<(&str, &str), Vec<i64>> = BTreeMap::new();
        for delivery in &ran {
            if let (Some(key), Some(sequence)) = (&delivery.key, delivery.sequence) {
                by_key.entry((&delivery.handler, key)).or_default().push(sequence);
            }
        }
        assert!(by_key.values().all(|sequences| sequences.is_sorted_by(|a, b| a < b)), "{by_key:?}");
        ran
    }

    async fn claim_and_complete(&self, now: Timestamp) -> Vec<Delivery> {
        let handlers = HANDLERS.map(str::to_owned).to_vec();
        let request = ClaimRequest { handlers, limit: 500, lease: HOUR, owner: "last".into(), now };
        let claimed = self.store.claim(&request).await.unwrap();
        for one in &claimed {
            let fenced = self.store.settle_one(&one.lease, Outcome::Complete, now).await.unwrap();
            assert_eq!(fenced, Fenced::Applied);
        }
        claimed.into_iter().map(|one| without_lane(one.delivery)).collect()
    }
}

pub fn without_lane(delivery: Delivery) -> Delivery {
    Delivery { lane: Lane::Ready, ..delivery }
}

/// Counts identifiers of each kind from 1.
#[derive(Debug, Default)]
struct Sequential {
    events: AtomicU64,
    deliveries: AtomicU64,
    tokens: AtomicU64,
}

impl IdSource for Sequential {
    fn next(&self, kind: IdKind, _now: Timestamp) -> String {
        let (counter, prefix) = match kind {
            IdKind::Event => (&self.events, "event"),
            IdKind::Delivery => (&self.deliveries, "delivery"),
            IdKind::LeaseToken => (&self.tokens, "token"),
        };
        format!("{prefix}-{:05}", counter.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
