//! The in-memory store: the contract of [`Store`] in its plainest form, against which the others are tested.
//!
//! Everything is kept in three maps behind one lock. Each call holds the lock from its first read to its last write,
//! and a transaction holds it from begin to commit, so there is never a race to win or to lose: what the other
//! backends do with pinned writes, second looks and restarts happens here by waiting for one's turn.
//!
//! It is meant for tests, demonstrations, and for reading. Its costs grow with the number of deliveries in it.

mod append;
mod backfill;
mod claim;
mod cleanup;
mod state;
mod transaction;
mod transfer;
mod wake_up;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use tokio::sync::{Mutex, MutexGuard};

use super::{
    BackfillPage, BackfillRequest, Capabilities, ClaimRequest, Claimed, Extended, Fenced, Imported,
    PruneBatch, PruneRequest, PurgeBatch, PurgeRequest, Repair, RepairOutcome, Result, Settlement,
    SetupFinding, SetupReport, Store, TransactionWork,
};
use crate::model::{
    Appended, Delivery, DeliveryId, Event, EventId, ExportLine, Filter, HandlerActivity, IdSource,
    KeySequence, KeyState, ListQuery, NewEvent, Pause, Selection, Statistics, Timestamp, Transition,
    TrippedBreaker, UuidV7,
};

use state::State;
pub use transaction::MemoryTransaction;
use wake_up::Changes;

/// A store whose data lives as long as its last handle. Clones are handles to the same data.
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    ids: Arc<dyn IdSource>,
    changes: Arc<Changes>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        MemoryStore::with_ids(Arc::new(UuidV7::default()))
    }

    /// An empty store that takes its identifiers and lease tokens from `ids`.
    pub fn with_ids(ids: Arc<dyn IdSource>) -> Self {
        MemoryStore { state: Arc::default(), ids, changes: Arc::new(Changes::new()) }
    }

    /// Begins a transaction for a caller that commits or aborts it by hand.
    ///
    /// Every other call on this store waits until it has ended; whoever awaits one before that waits for ever.
    pub async fn begin(&self) -> MemoryTransaction {
        let state = Arc::clone(&self.state).lock_owned().await;
        MemoryTransaction::new(state, Arc::clone(&self.ids), Arc::clone(&self.changes))
    }

    async fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().await
    }

    /// Makes a change behind which something may be due, and tells of it once it is made.
    async fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut *self.lock().await);
        self.changes.tell();
        result
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn location(&self) -> String {
        "memory".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { parking: true, durable: false }
    }

    /// There is nothing to set up.
    async fn setup(&self) -> Result<SetupReport> {
        Ok(SetupReport::default())
    }

    async fn check_setup(&self) -> Result<Vec<SetupFinding>> {
        Ok(Vec::new())
    }

    async fn close(&self) {}

    /// As a transaction is alone with the store, `work` runs exactly once.
    ///
    /// `work` uses the transaction only: a call on the store itself would wait for the transaction that it is in.
    async fn transaction(&self, work: &mut TransactionWork<'_>) -> Result<()> {
        let mut transaction = self.begin().await;
        work(&mut transaction).await?;
        transaction.commit()
    }

    async fn append(&self, events: &[NewEvent], now: Timestamp) -> Result<Vec<Appended>> {
        self.change(|state| append::append(state, events, &*self.ids, now)).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>> {
        Ok(claim::claim(&mut *self.lock().await, request, &*self.ids))
    }

    async fn events(&self, ids: &[EventId]) -> Result<Vec<Event>> {
        let state = self.lock().await;
        Ok(ids.iter().filter_map(|id| state.events.get(id)).cloned().collect())
    }

    async fn settle(&self, settlements: &[Settlement], now: Timestamp) -> Result<Vec<Fenced>> {
        let settle = |state: &mut State| {
            let one = |each: &Settlement| state.change_leased(&each.lease, &each.outcome.transition(), now);
            settlements.iter().map(one).collect()
        };
        Ok(self.change(settle).await)
    }

    fn wake_ups(&self, _handlers: &[String]) -> Option<BoxStream<'static, Result<()>>> {
        Some(self.changes.listen())
    }

    async fn get(&self, id: &DeliveryId) -> Result<Option<Delivery>> {
        Ok(self.lock().await.deliveries.get(id).cloned())
    }

    /// What is listed is the state at the moment at which the stream is first polled.
    fn list(&self, query: &ListQuery) -> BoxStream<'_, Result<Delivery>> {
        if let Err(other_order) = query.check_cursor() {
            return stream::iter([Err(other_order.into())]).boxed();
        }
        let query = query.clone();
        let snapshot = async move { stream::iter(self.lock().await.list(&query)).map(Ok) };
        snapshot.flatten_stream().boxed()
    }

    async fn count(&self, selection: &Selection) -> Result<u64> {
        let state = self.lock().await;
        Ok(state.deliveries.values().filter(|delivery| selection.matches(delivery)).count() as u64)
    }

    async fn statistics(&self) -> Result<Statistics> {
        Ok(self.lock().await.statistics())
    }

    async fn key_state(&self, handler: &str, key: &str, now: Timestamp) -> Result<KeyState> {
        Ok(self.lock().await.key_state(handler, key, now))
    }

    async fn waiting_behind(&self, handler: &str, key: &str, sequence: i64) -> Result<u64> {
        Ok(self.lock().await.waiting_behind(handler, key, sequence))
    }

    /// All deliveries of the handler are looked at.
    async fn handler_activity(&self, handler: &str, now: Timestamp) -> Result<HandlerActivity> {
        Ok(self.lock().await.handler_activity(handler, now))
    }

    async fn repair(&self, id: &DeliveryId, repair: &Repair, now: Timestamp) -> Result<RepairOutcome> {
        Ok(match self.change(|state| state.change(id, &repair.transition(), now)).await {
            None => RepairOutcome::Missing,
            Some(Ok(())) => RepairOutcome::Changed,
            Some(Err(illegal)) => RepairOutcome::Skipped(illegal.status),
        })
    }

    async fn repair_selected(
        &self,
        ids: &[DeliveryId],
        selection: &Selection,
        repair: &Repair,
        now: Timestamp,
    ) -> Result<u64> {
        let repair_all = |state: &mut State| {
            let is_selected = |delivery: &Delivery| ids.contains(&delivery.id) && selection.matches(delivery);
            state.change_all(&state.ids_where(is_selected), &repair.transition(), now)
        };
        Ok(self.change(repair_all).await)
    }

    async fn recover(&self, handlers: &[String], now: Timestamp) -> Result<u64> {
        let is_named = |delivery: &Delivery| handlers.is_empty() || handlers.contains(&delivery.handler);
        let recover =
            |state: &mut State| state.change_all(&state.ids_where(is_named), &Transition::Recover, now);
        Ok(self.change(recover).await)
    }

    async fn purge_batch(&self, request: &PurgeRequest) -> Result<PurgeBatch> {
        Ok(cleanup::purge_batch(&mut *self.lock().await, request))
    }

    async fn count_purgeable(&self, request: &PurgeRequest) -> Result<u64> {
        Ok(cleanup::purgeable(&*self.lock().await, request).len() as u64)
    }

    /// What is exported is the state at the moment at which the stream is first polled.
    fn export(&self, filter: &Filter, cutoff: Timestamp) -> BoxStream<'_, Result<ExportLine>> {
        let filter = filter.clone();
        let snapshot = async move { stream::iter(transfer::export(&*self.lock().await, &filter, cutoff)) };
        snapshot.flatten_stream().boxed()
    }

    async fn import(&self, lines: &[ExportLine], dry_run: bool) -> Result<Vec<Imported>> {
        if dry_run {
            return Ok(transfer::import(&mut self.lock().await.clone(), lines));
        }
        Ok(self.change(|state| transfer::import(state, lines)).await)
    }

    async fn events_without(&self, request: &BackfillRequest) -> Result<BackfillPage> {
        Ok(backfill::events_without(&*self.lock().await, request))
    }

    async fn extend(&self, events: &[EventId], handler: &str, now: Timestamp) -> Result<Extended> {
        Ok(self.change(|state| backfill::extend(state, events, handler, &*self.ids, now)).await)
    }

    fn key_sequences(&self, prefix: Option<&str>) -> BoxStream<'_, Result<KeySequence>> {
        let prefix = prefix.unwrap_or_default().to_owned();
        let snapshot = async move { stream::iter(self.lock().await.key_sequences(&prefix)).map(Ok) };
        snapshot.flatten_stream().boxed()
    }

    async fn prune_keys(&self, request: &PruneRequest) -> Result<PruneBatch> {
        Ok(cleanup::prune_keys(&mut *self.lock().await, request))
    }

    async fn pauses(&self, now: Timestamp) -> Result<Vec<Pause>> {
        let state = self.lock().await;
        Ok(state.pauses.values().filter(|pause| pause.holds_at(now)).cloned().collect())
    }

    async fn pause(&self, pause: &Pause) -> Result<Option<Pause>> {
        Ok(self.lock().await.pause(pause))
    }

    async fn resume(&self, handler: &str, now: Timestamp) -> Result<Option<Pause>> {
        Ok(self.lock().await.resume(handler, now))
    }

    async fn tripped_breakers(&self, now: Timestamp) -> Result<Vec<TrippedBreaker>> {
        let state = self.lock().await;
        Ok(state.breakers.values().filter(|breaker| now < breaker.expires_at).cloned().collect())
    }

    async fn report_breaker(&self, breaker: &TrippedBreaker, now: Timestamp) -> Result<()> {
        self.lock().await.report_breaker(breaker, now);
        Ok(())
    }

    async fn forget_breaker(&self, handler: &str, worker: &str) -> Result<()> {
        self.lock().await.breakers.remove(&(handler.to_owned(), worker.to_owned()));
        Ok(())
    }
}
