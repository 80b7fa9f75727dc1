//! What the tests of this room share: deliveries in every state, and a store whose calls can be watched and spoilt.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock as _, ManualClock};
use crate::model::{
    Appended, Delivery, DeliveryId, Event, EventId, ExportLine, Failure, FailureKind, Filter,
    HandlerActivity, KeySequence, KeyState, ListQuery, NewEvent, Pause, Rate, Selection, Statistics, Status,
    Timestamp, TrippedBreaker,
};
use crate::store::memory::MemoryStore;
use crate::store::{
    BackfillPage, BackfillRequest, Capabilities, ClaimRequest, Claimed, ErrorKind, Extended, Fenced,
    Imported, Outcome, PruneBatch, PruneRequest, PurgeBatch, PurgeRequest, Repair, RepairOutcome, Result,
    Settlement, SetupFinding, SetupReport, Store, StoreError, TransactionWork,
};

use super::control::{Control, silent};
use super::pace::Pace;

/// A store, a clock and a token.
pub(super) struct Bench {
    pub(super) store: MemoryStore,
    pub(super) clock: ManualClock,
    pub(super) cancel: CancellationToken,
}

impl Bench {
    pub(super) fn new() -> Self {
        let clock = ManualClock::at(Timestamp::from_millis(1_000_000_000));
        Bench { store: MemoryStore::new(), clock, cancel: CancellationToken::new() }
    }

    pub(super) fn control(&self) -> Control<'_> {
        Control { clock: &self.clock, cancel: &self.cancel, progress: &silent }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Appends `count` events for handler `h`, and lets a millisecond pass.
    pub(super) async fn pending(&self, count: usize) -> Vec<DeliveryId> {
        let events = vec![NewEvent::new("t", json!({})).handler("h"); count];
        let appended = self.store.append(&events, self.now()).await.unwrap();
        self.clock.advance(Duration::from_millis(1));
        appended.into_iter().map(|event| event.deliveries[0].id.clone()).collect()
    }

    /// Appends `count` events, and lets each of their deliveries end with `outcome`.
    pub(super) async fn settled(&self, count: usize, outcome: &Outcome) -> Vec<DeliveryId> {
        self.pending(count).await;
        let request = ClaimRequest {
            handlers: vec!["h".to_owned()],
            limit: count,
            lease: Duration::from_secs(60),
            owner: "w".to_owned(),
            now: self.now(),
        };
        let claimed = self.store.claim(&request).await.unwrap();
        let settle = |lease| Settlement { lease, outcome: outcome.clone() };
        let settlements: Vec<_> = claimed.into_iter().map(|claimed| settle(claimed.lease)).collect();
        assert_eq!(settlements.len(), count);
        let fenced = self.store.settle(&settlements, self.now()).await.unwrap();
        assert!(fenced.iter().all(|&fenced| fenced == Fenced::Applied));
        self.clock.advance(Duration::from_millis(1));
        settlements.into_iter().map(|settlement| settlement.lease.delivery_id).collect()
    }

    /// `count` dead deliveries.
    pub(super) async fn dead(&self, count: usize) -> Vec<DeliveryId> {
        self.settled(count, &Outcome::Bury { failure: Failure::new(FailureKind::Failed, "boom") }).await
    }

    /// `count` dead deliveries of a key, in the order of their sequences. Each is older than the one before it.
    pub(super) async fn dead_of_key(&self, key: &str, count: usize) -> Vec<DeliveryId> {
        let mut ids = Vec::new();
        for n in (0..count).rev() {
            let event = NewEvent::new("t", json!({})).handler("h").key(key);
            let at = self.now().saturating_add(Duration::from_millis(n as u64));
            ids.push(self.store.append(&[event], at).await.unwrap().remove(0).deliveries.remove(0).id);
        }
        self.clock.advance(Duration::from_millis(count as u64));
        for id in &ids {
            let bury = Repair::Bury { reason: "boom".to_owned() };
            assert_eq!(self.store.repair(id, &bury, self.now()).await.unwrap(), RepairOutcome::Changed);
        }
        self.clock.advance(Duration::from_millis(1));
        ids
    }

    /// `count` completed deliveries.
    pub(super) async fn completed(&self, count: usize) -> Vec<DeliveryId> {
        self.settled(count, &Outcome::Complete).await
    }

    pub(super) async fn count(&self, status: Status) -> usize {
        self.all().await.iter().filter(|delivery| delivery.status == status).count()
    }

    pub(super) async fn all(&self) -> Vec<Delivery> {
        self.store.list(&ListQuery::default()).map(|delivery| delivery.unwrap()).collect().await
    }

    pub(super) async fn status(&self, id: &DeliveryId) -> Status {
        self.store.get(id).await.unwrap().unwrap().status
    }
}

/// A call that a [`Spoilt`] store was about to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Append(usize),
    Repair,
    RepairSelected(usize),
    PurgeBatch(u32),
    PruneKeys,
    Import(usize),
    Extend(usize),
}

type Hook = dyn Fn(Call) -> BoxFuture<'static, Result<()>> + Send + Sync;

/// A memory store that asks before each writing call of an operator, and whose listing has unreadable deliveries at its
/// head.
pub(super) struct Spoilt {
    pub(super) store: MemoryStore,
    pub(super) before: Arc<Hook>,
    pub(super) unreadable: usize,
}

impl Spoilt {
    pub(super) fn new(
        store: &MemoryStore,
        before: impl Fn(Call) -> BoxFuture<'static, Result<()>> + Send + Sync + 'static,
    ) -> Self {
        Spoilt { store: store.clone(), before: Arc::new(before), unreadable: 0 }
    }
}

impl Spoilt {
    /// Fails a repair that comes when a later delivery of a key is pending and an earlier one still dead.
    pub(super) fn in_order_of_keys(store: &MemoryStore) -> Self {
        let watched = store.clone();
        Spoilt::new(store, move |_| {
            let watched = watched.clone();
            Box::pin(async move {
                let all: Vec<Delivery> =
                    watched.list(&ListQuery::default()).map(Result::unwrap).collect().await;
                let is_overtaken = |dead: &Delivery| {
                    let overtakes = |other: &Delivery| {
                        other.status == Status::Pending
                            && other.key == dead.key
                            && other.sequence > dead.sequence
                    };
                    dead.status == Status::Dead && dead.key.is_some() && all.iter().any(overtakes)
                };
                match all.iter().any(is_overtaken) {
                    true => Err(StoreError::new(ErrorKind::Conflict, "a key is out of order")),
                    false => Ok(()),
                }
            })
        })
    }
}

/// A pace without a ramp.
pub(super) fn pace(rate: &str) -> Option<Pace> {
    Some(Pace::from(rate.parse::<Rate>().unwrap()))
}

/// What a hook answers that lets the call happen.
pub(super) fn go_on() -> BoxFuture<'static, Result<()>> {
    Box::pin(async { Ok(()) })
}

/// What a hook answers when the server has gone away.
pub(super) fn gone() -> BoxFuture<'static, Result<()>> {
    Box::pin(async { Err(StoreError::new(ErrorKind::Unavailable, "the server has gone away")) })
}

impl std::fmt::Debug for Spoilt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Spoilt")
    }
}

#[async_trait]
impl Store for Spoilt {
    fn location(&self) -> String {
        self.store.location()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn setup(&self) -> Result<SetupReport> {
        self.store.setup().await
    }

    async fn check_setup(&self) -> Result<Vec<SetupFinding>> {
        self.store.check_setup().await
    }

    async fn close(&self) {
        self.store.close().await;
    }

    async fn transaction(&self, work: &mut TransactionWork<'_>) -> Result<()> {
        self.store.transaction(work).await
    }

    async fn append(&self, events: &[NewEvent], now: Timestamp) -> Result<Vec<Appended>> {
        (self.before)(Call::Append(events.len())).await?;
        self.store.append(events, now).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>> {
        self.store.claim(request).await
    }

    async fn events(&self, ids: &[EventId]) -> Result<Vec<Event>> {
        self.store.events(ids).await
    }

    async fn settle(&self, settlements: &[Settlement], now: Timestamp) -> Result<Vec<Fenced>> {
        self.store.settle(settlements, now).await
    }

    async fn get(&self, id: &DeliveryId) -> Result<Option<Delivery>> {
        self.store.get(id).await
    }

    /// Unreadable deliveries stand at the head of the listing, and count towards its limit as on a real server.
    fn list(&self, query: &ListQuery) -> BoxStream<'_, Result<Delivery>> {
        let unreadable = if query.after.is_none() { self.unreadable } else { 0 };
        let limit = query.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap());
        let corrupt =
            (0..unreadable).map(|n| Err(StoreError::new(ErrorKind::Corrupt, format!("delivery {n}"))));
        let rest = self.store.list(&ListQuery { limit: None, ..query.clone() });
        stream::iter(corrupt).chain(rest).take(limit).boxed()
    }

    async fn count(&self, selection: &Selection) -> Result<u64> {
        self.store.count(selection).await
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.store.statistics().await
    }

    async fn key_state(&self, handler: &str, key: &str, now: Timestamp) -> Result<KeyState> {
        self.store.key_state(handler, key, now).await
    }

    async fn waiting_behind(&self, handler: &str, key: &str, sequence: i64) -> Result<u64> {
        self.store.waiting_behind(handler, key, sequence).await
    }

    async fn handler_activity(&self, handler: &str, now: Timestamp) -> Result<HandlerActivity> {
        self.store.handler_activity(handler, now).await
    }

    async fn repair(&self, id: &DeliveryId, repair: &Repair, now: Timestamp) -> Result<RepairOutcome> {
        (self.before)(Call::Repair).await?;
        self.store.repair(id, repair, now).await
    }

    async fn repair_selected(
        &self,
        ids: &[DeliveryId],
        selection: &Selection,
        repair: &Repair,
        now: Timestamp,
    ) -> Result<u64> {
        (self.before)(Call::RepairSelected(ids.len())).await?;
        self.store.repair_selected(ids, selection, repair, now).await
    }

    async fn recover(&self, handlers: &[String], now: Timestamp) -> Result<u64> {
        self.store.recover(handlers, now).await
    }

    async fn purge_batch(&self, request: &PurgeRequest) -> Result<PurgeBatch> {
        (self.before)(Call::PurgeBatch(request.batch)).await?;
        self.store.purge_batch(request).await
    }

    async fn count_purgeable(&self, request: &PurgeRequest) -> Result<u64> {
        self.store.count_purgeable(request).await
    }

    fn export(&self, filter: &Filter, cutoff: Timestamp) -> BoxStream<'_, Result<ExportLine>> {
        self.store.export(filter, cutoff)
    }

    async fn import(&self, lines: &[ExportLine], dry_run: bool) -> Result<Vec<Imported>> {
        (self.before)(Call::Import(lines.len())).await?;
        self.store.import(lines, dry_run).await
    }

    async fn events_without(&self, request: &BackfillRequest) -> Result<BackfillPage> {
        self.store.events_without(request).await
    }

    async fn extend(&self, events: &[EventId], handler: &str, now: Timestamp) -> Result<Extended> {
        (self.before)(Call::Extend(events.len())).await?;
        self.store.extend(events, handler, now).await
    }

    fn key_sequences(&self, prefix: Option<&str>) -> BoxStream<'_, Result<KeySequence>> {
        self.store.key_sequences(prefix)
    }

    async fn prune_keys(&self, request: &PruneRequest) -> Result<PruneBatch> {
        (self.before)(Call::PruneKeys).await?;
        self.store.prune_keys(request).await
    }

    async fn pauses(&self, now: Timestamp) -> Result<Vec<Pause>> {
        self.store.pauses(now).await
    }

    async fn pause(&self, pause: &Pause) -> Result<Option<Pause>> {
        self.store.pause(pause).await
    }

    async fn resume(&self, handler: &str, now: Timestamp) -> Result<Option<Pause>> {
        self.store.resume(handler, now).await
    }

    async fn tripped_breakers(&self, now: Timestamp) -> Result<Vec<TrippedBreaker>> {
        self.store.tripped_breakers(now).await
    }

    async fn report_breaker(&self, breaker: &TrippedBreaker, now: Timestamp) -> Result<()> {
        self.store.report_breaker(breaker, now).await
    }

    async fn forget_breaker(&self, handler: &str, worker: &str) -> Result<()> {
        self.store.forget_breaker(handler, worker).await
    }
}
