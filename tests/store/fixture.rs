//! One store in a fresh database, a clock that stands still, and the sentences that cases are made of.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use relayctl::clock::{Clock as _, ManualClock};
use relayctl::model::{
    Appended, Delivery, DeliveryId, Event, EventId, Failure, FailureKind, Filter, KeySequence, Lane,
    ListQuery, NewEvent, Selection, SortBy, Status, Timestamp, UuidV7,
};
use relayctl::store::{
    ClaimRequest, Claimed, Fenced, Outcome, PurgeRequest, Repair, RepairOutcome, Result, Store,
};
use serde_json::json;

use crate::backend::{Backend, ByHand, Kind};

/// When every case begins.
pub const START: Timestamp = Timestamp::from_millis(1_767_225_600_000);
/// The handler of a case that needs only one.
pub const HANDLER: &str = "projector";
/// Another one.
pub const OTHER_HANDLER: &str = "mailer";
/// How long the leases of [`Fixture::claim`] last.
pub const LEASE: Duration = Duration::from_secs(30);

pub const MILLISECOND: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const HOUR: Duration = Duration::from_secs(3_600);

/// Runs a case on a store of its own, which is gone afterwards even if the case panics.
pub async fn run(kind: Kind, case: impl AsyncFnOnce(&Fixture)) {
    let fixture = Fixture::new(kind).await;
    let verdict = AssertUnwindSafe(case(&fixture)).catch_unwind().await;
    fixture.backend.tear_down().await;
    if let Err(panic) = verdict {
        resume_unwind(panic);
    }
}

/// An event for [`HANDLER`].
pub fn event() -> NewEvent {
    NewEvent::new("order.placed.v1", json!({"total": 12})).handler(HANDLER)
}

/// An event for [`HANDLER`], with an ordering key.
pub fn keyed(key: &str) -> NewEvent {
    event().key(key)
}

/// An event that is not due before `at`.
pub fn delayed(event: NewEvent, at: Timestamp) -> NewEvent {
    NewEvent { available_at: Some(at), ..event }
}

/// What a handler reports when it failed.
pub fn failure() -> Failure {
    Failure::new(FailureKind::Failed, "the printer is on fire")
}

/// The outcome after which an operator has something to requeue.
pub fn bury() -> Outcome {
    Outcome::Bury { failure: failure() }
}

/// One of each outcome that a worker can report.
pub fn every_outcome(now: Timestamp) -> [Outcome; 6] {
    [
        Outcome::Complete,
        Outcome::Reschedule { available_at: now, failure: failure() },
        Outcome::Release,
        Outcome::Snooze { available_at: now },
        bury(),
        Outcome::ExtendLease { expires_at: now.saturating_add(HOUR) },
    ]
}

/// The ids of what was claimed, in the order of the claim.
pub fn ids(claimed: &[Claimed]) -> Vec<DeliveryId> {
    claimed.iter().map(|claimed| claimed.delivery.id.clone()).collect()
}

/// The sequences of what was claimed, in the order of the claim.
pub fn sequences(claimed: &[Claimed]) -> Vec<i64> {
    claimed.iter().filter_map(|claimed| claimed.delivery.sequence).collect()
}

/// What every case is given.
pub struct Fixture {
    pub store: Arc<dyn Store>,
    pub clock: ManualClock,
    backend: Box<dyn Backend>,
}

impl Fixture {
    async fn new(kind: Kind) -> Self {
        let backend = kind.open(Arc::new(UuidV7::default())).await;
        Fixture { store: backend.store(), clock: ManualClock::at(START), backend }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The instant so much later than now.
    pub fn later(&self, by: Duration) -> Timestamp {
        self.now().saturating_add(by)
    }

    pub async fn begin(&self) -> Box<dyn ByHand> {
        self.backend.begin().await
    }

    pub async fn not_begun(&self) -> Box<dyn ByHand> {
        self.backend.not_begun().await
    }

    // ---- append

    pub async fn append(&self, events: &[NewEvent]) -> Vec<Appended> {
        self.store.append(events, self.now()).await.unwrap()
    }

    /// Appends one event, and returns its only, or first, delivery.
    pub async fn publish(&self, event: NewEvent) -> DeliveryId {
        self.append(&[event]).await[0].deliveries[0].id.clone()
    }

    /// Appends `count` events like this one in a batch, and returns their first deliveries.
    pub async fn publish_many(&self, event: NewEvent, count: usize) -> Vec<DeliveryId> {
        let appended = self.append(&vec![event; count]).await;
        appended.into_iter().map(|appended| appended.deliveries[0].id.clone()).collect()
    }

    /// Publishes an event and lets a worker bury it.
    pub async fn publish_dead(&self, event: NewEvent) -> DeliveryId {
        let id = self.publish(event).await;
        let claimed = self.claim(usize::MAX).await;
        let claimed = claimed.iter().find(|claimed| claimed.delivery.id == id).unwrap();
        assert_eq!(self.settle(claimed, bury()).await, Fenced::Applied);
        id
    }

    // ---- claim and settle

    /// A claim for [`HANDLER`] now.
    pub fn request(&self, limit: usize) -> ClaimRequest {
        ClaimRequest {
            handlers: vec![HANDLER.to_owned()],
            limit,
            lease: LEASE,
            owner: "worker:1".to_owned(),
            now: self.now(),
        }
    }

    pub async fn claim(&self, limit: usize) -> Vec<Claimed> {
        self.store.claim(&self.request(limit)).await.unwrap()
    }

    pub async fn claim_for(&self, handlers: &[&str], limit: usize) -> Vec<Claimed> {
        let handlers = handlers.iter().map(|&handler| handler.to_owned()).collect();
        self.store.claim(&ClaimRequest { handlers, ..self.request(limit) }).await.unwrap()
    }

    /// Claims what has to be the only delivery that can be claimed.
    pub async fn claim_only(&self) -> Claimed {
        let claimed = self.claim(usize::MAX).await;
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        claimed.into_iter().next().unwrap()
    }

    pub async fn settle(&self, claimed: &Claimed, outcome: Outcome) -> Fenced {
        self.store.settle_one(&claimed.lease, outcome, self.now()).await.unwrap()
    }

    pub async fn complete(&self, claimed: &Claimed) {
        assert_eq!(self.settle(claimed, Outcome::Complete).await, Fenced::Applied);
    }

    pub async fn complete_all(&self, claimed: &[Claimed]) {
        for claimed in claimed {
            self.complete(claimed).await;
        }
    }

    /// Claims and completes until nothing due is left; returns the deliveries in the order in which they ran.
    pub async fn drain(&self, limit: usize) -> Vec<Delivery> {
        let mut ran = Vec::new();
        loop {
            let claimed = self.claim(limit).await;
            if claimed.is_empty() {
                return ran;
            }
            assert!(claimed.len() <= limit);
            self.complete_all(&claimed).await;
            ran.extend(claimed.into_iter().map(|claimed| claimed.delivery));
        }
    }

    // ---- look

    pub async fn get(&self, id: &DeliveryId) -> Delivery {
        self.store.get(id).await.unwrap().unwrap()
    }

    pub async fn status(&self, id: &DeliveryId) -> Status {
        self.get(id).await.status
    }

    pub async fn list(&self, query: &ListQuery) -> Vec<Delivery> {
        self.store.list(query).try_collect().await.unwrap()
    }

    pub async fn all(&self) -> Vec<Delivery> {
        self.list(&ListQuery::default()).await
    }

    pub async fn parked(&self) -> usize {
        let filter = Filter { lane: Some(Lane::Parked), ..Filter::default() };
        self.list(&ListQuery { filter, ..ListQuery::default() }).await.len()
    }

    pub async fn count(&self, filter: Filter) -> u64 {
        self.store.count(&self.select(filter)).await.unwrap()
    }

    pub async fn events(&self, ids: &[EventId]) -> Vec<Event> {
        self.store.events(ids).await.unwrap()
    }

    /// The event of an id that must be there.
    pub async fn event(&self, id: &EventId) -> Event {
        let events = self.events(std::slice::from_ref(id)).await;
        assert_eq!(events.len(), 1, "{id}");
        events.into_iter().next().unwrap()
    }

    pub async fn key_sequences(&self, prefix: Option<&str>) -> Vec<KeySequence> {
        self.store.key_sequences(prefix).try_collect().await.unwrap()
    }

    /// The value of a key's counter, if there is one.
    pub async fn counter(&self, key: &str) -> Option<i64> {
        let counters = self.key_sequences(Some(key)).await;
        counters.into_iter().find(|counter| counter.key == key).map(|counter| counter.value)
    }

    // ---- operate

    /// The deliveries that match and did not change after now.
    pub fn select(&self, filter: Filter) -> Selection {
        Selection { filter, cutoff: self.now() }
    }

    pub fn requeue_now(&self) -> Repair {
        Repair::Requeue { available_at: self.now() }
    }

    pub async fn requeue(&self, id: &DeliveryId) {
        let outcome = self.store.repair(id, &self.requeue_now(), self.now()).await.unwrap();
        assert_eq!(outcome, RepairOutcome::Changed);
    }

    pub async fn bury(&self, id: &DeliveryId) {
        let repair = Repair::Bury { reason: "not today".to_owned() };
        let outcome = self.store.repair(id, &repair, self.now()).await.unwrap();
        assert_eq!(outcome, RepairOutcome::Changed);
    }

    /// A purge of all that finished before now.
    pub fn purge_request(&self, batch: u32) -> PurgeRequest {
        let now = Some(self.now());
        PurgeRequest { completed_before: now, dead_before: now, batch }
    }

    /// Sees to it that `ids`, blocked deliveries of one key, are in lane parked.
    pub async fn park(&self, ids: &[DeliveryId]) {
        self.backend.park(ids).await;
        assert_eq!(self.parked().await, ids.len());
    }

    // ---- hold the store to its references

    /// No delivery without its event and, of the events `appended`, none without a delivery.
    ///
    /// An append may still commit meanwhile: what is looked for is always read behind what it is looked for by.
    pub async fn assert_references(&self, appended: &[EventId]) {
        let kept = self.events(appended).await;
        let deliveries = self.all().await;
        let needed: Vec<EventId> = deliveries.iter().map(|delivery| delivery.event_id.clone()).collect();
        let present: Vec<EventId> = self.events(&needed).await.into_iter().map(|event| event.id).collect();
        let orphan = deliveries.iter().find(|delivery| !present.contains(&delivery.event_id));
        assert_eq!(orphan, None, "a delivery without event");
        let left_behind = kept.iter().find(|event| !needed.contains(&event.id));
        assert_eq!(left_behind, None, "an event without delivery");
    }
}

/// A listing in this order.
pub fn sorted_by(sort: SortBy, descending: bool) -> ListQuery {
    ListQuery { sort, descending, ..ListQuery::default() }
}

/// The items of a listing up to its first error, and that error.
pub async fn collect_until_error(
    store: &dyn Store,
    query: &ListQuery,
) -> (Vec<Delivery>, Option<relayctl::store::StoreError>) {
    let mut stream = store.list(query);
    let mut listed = Vec::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(delivery) => listed.push(delivery),
            Err(error) => return (listed, Some(error)),
        }
    }
    (listed, None)
}

/// The error of a call that has to fail.
pub fn refused<T: std::fmt::Debug>(result: Result<T>) -> relayctl::store::StoreError {
    result.expect_err("it should have been refused")
}
