//! A store that fails when it is told to.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt as _};
use relayctl::clock::Clock;
use relayctl::model::{
    Appended, Delivery, DeliveryId, Event, EventId, ExportLine, Filter, HandlerActivity, KeySequence,
    KeyState, ListQuery, NewEvent, Pause, QueueDepth, Selection, Statistics, Timestamp, TrippedBreaker,
};
use relayctl::store::memory::MemoryStore;
use relayctl::store::{
    BackfillPage, BackfillRequest, Capabilities, ClaimRequest, Claimed, ErrorKind, Extended, Fenced,
    Imported, Outcome, PruneBatch, PruneRequest, PurgeBatch, PurgeRequest, Repair, RepairOutcome, Result,
    Settlement, SetupFinding, SetupReport, Store, StoreError, TransactionWork,
};

/// The memory store with faults in front of it, and a record of what a worker asked for.
#[derive(Debug, Default)]
pub struct FaultyStore {
    inner: MemoryStore,
    /// Claims fail.
    pub claims_fail: AtomicBool,
    /// Events cannot be read.
    pub events_fail: AtomicBool,
    /// Nothing can be recorded.
    pub settling_fails: AtomicBool,
    /// What is recorded is recorded, but the answer is lost.
    pub answers_are_lost: AtomicBool,
    /// This event cannot be understood.
    pub corrupt_event: Mutex<Option<EventId>>,
    /// An operator buries this delivery just before a transaction begins.
    pub buried_before_transactions: Mutex<Option<DeliveryId>>,
    /// What happens to the next transactions, one after the other.
    pub transaction_faults: Mutex<VecDeque<TransactionFault>>,
    /// Transactions that were asked for.
    pub transactions: AtomicUsize,
    /// Claims that were asked for: their handlers and limit.
    pub claims: Mutex<Vec<(Vec<String>, usize)>>,
    /// Renewals that were applied.
    pub renewals: AtomicUsize,
    /// How many outcomes and renewals each write recorded.
    pub writes: Mutex<Vec<usize>>,
    /// How long a claim takes.
    pub claim_takes: Mutex<Duration>,
    /// How long it takes until a listing begins.
    pub listing_takes: Mutex<Duration>,
    /// How long it takes to record outcomes.
    pub settling_takes: Mutex<Duration>,
    /// Nobody can be woken: the stream ends at once, or with the next wake-up, with a reason.
    pub wake_ups_fail: Arc<AtomicBool>,
    /// How long it takes until one who listens hears anything.
    pub listening_takes: Mutex<Duration>,
    /// How often somebody began to listen to wake-ups.
    pub listened: AtomicUsize,
    /// Nobody can tell which handlers are paused.
    pub pauses_fail: AtomicBool,
    /// How often that was asked for.
    pub pauses_read: AtomicUsize,
    /// The clock of its server, if it has one.
    pub server_clock: Mutex<Option<Arc<dyn Clock>>>,
    /// Nobody can tell what time it is there.
    pub time_fails: AtomicBool,
    /// How often that was asked for.
    pub time_asked: AtomicUsize,
    /// How long it takes to tell.
    pub telling_time_takes: Mutex<Duration>,
    /// Nobody can tell how deep the queues are.
    pub depths_fail: AtomicBool,
    /// How long it takes to tell.
    pub depths_take: Mutex<Duration>,
    /// How often that was asked for.
    pub depths_read: AtomicUsize,
    /// Alive as often as somebody listens, beside this one.
    pub listener: Arc<()>,
}

/// What can happen to a transaction.
#[derive(Clone, Copy, Debug)]
pub enum TransactionFault {
    /// It does not begin.
    NoAnswer,
    /// It is committed, but nobody hears of it.
    AnswerIsLost,
    /// It never ends.
    Hang,
}

impl FaultyStore {
    /// How many listen to wake-ups now.
    pub fn listeners(&self) -> usize {
        Arc::strong_count(&self.listener) - 1
    }
}

async fn take(time: &Mutex<Duration>) {
    let time = *time.lock().unwrap();
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

impl FaultyStore {
    fn check(&self, fault: &AtomicBool) -> Result<()> {
        if fault.load(Ordering::SeqCst) {
            return Err(StoreError::new(ErrorKind::Unavailable, "the server is on fire"));
        }
        Ok(())
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>> {
        self.claims.lock().unwrap().push((request.handlers.clone(), request.limit));
        self.check(&self.claims_fail)?;
        take(&self.claim_takes).await;
        self.inner.claim(request).await
    }

    fn wake_ups(&self, handlers: &[String]) -> Option<BoxStream<'static, Result<()>>> {
        self.listened.fetch_add(1, Ordering::SeqCst);
        let (fail, listener) = (self.wake_ups_fail.clone(), self.listener.clone());
        let refuse = move |item| {
            let _ = &listener;
            match fail.load(Ordering::SeqCst) {
                true => Err(StoreError::new(ErrorKind::Unavailable, "the history is lost")),
                false => item,
            }
        };
        let (opening, inner) = (*self.listening_takes.lock().unwrap(), self.inner.clone());
        let handlers = handlers.to_vec();
        let opened = async move {
            take(&Mutex::new(opening)).await;
            inner.wake_ups(&handlers).expect("the memory store has them")
        };
        Some(opened.flatten_stream().map(refuse).boxed())
    }

    async fn events(&self, ids: &[EventId]) -> Result<Vec<Event>> {
        self.check(&self.events_fail)?;
        let corrupt = self.corrupt_event.lock().unwrap().clone();
        if let Some(id) = corrupt.filter(|id| ids.contains(id)) {
            return Err(StoreError::new(ErrorKind::Corrupt, format!("event {id}: payload is missing")));
        }
        self.inner.events(ids).await
    }

    async fn settle(&self, settlements: &[Settlement], now: Timestamp) -> Result<Vec<Fenced>> {
        self.check(&self.settling_fails)?;
        take(&self.settling_takes).await;
        self.writes.lock().unwrap().push(settlements.len());
        let fenced = self.inner.settle(settlements, now).await?;
        let is_renewal = |one: &&Settlement| matches!(one.outcome, Outcome::ExtendLease { .. });
        self.renewals.fetch_add(settlements.iter().filter(is_renewal).count(), Ordering::SeqCst);
        self.check(&self.answers_are_lost)?;
        Ok(fenced)
    }

    async fn server_time(&self) -> Result<Option<Timestamp>> {
        self.time_asked.fetch_add(1, Ordering::SeqCst);
        self.check(&self.time_fails)?;
        take(&self.telling_time_takes).await;
        Ok(self.server_clock.lock().unwrap().as_ref().map(|clock| clock.now()))
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn setup(&self) -> Result<SetupReport> {
        self.inner.setup().await
    }

    async fn check_setup(&self) -> Result<Vec<SetupFinding>> {
        self.inner.check_setup().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }

    async fn transaction(&self, work: &mut TransactionWork<'_>) -> Result<()> {
        let target = self.buried_before_transactions.lock().unwrap().clone();
        if let Some(id) = target {
            let bury = Repair::Bury { reason: "wrong customer".into() };
            self.inner.repair(&id, &bury, Timestamp::EPOCH).await?;
        }
        self.transactions.fetch_add(1, Ordering::Relaxed);
        let fault = self.transaction_faults.lock().unwrap().pop_front();
        let lost = || StoreError::new(ErrorKind::Unavailable, "connection lost");
        match fault {
            None => self.inner.transaction(work).await,
            Some(TransactionFault::NoAnswer) => Err(lost()),
            Some(TransactionFault::AnswerIsLost) => self.inner.transaction(work).await.and(Err(lost())),
            Some(TransactionFault::Hang) => std::future::pending().await,
        }
    }

    async fn append(&self, events: &[NewEvent], now: Timestamp) -> Result<Vec<Appended>> {
        self.inner.append(events, now).await
    }

    async fn get(&self, id: &DeliveryId) -> Result<Option<Delivery>> {
        self.inner.get(id).await
    }

    fn list(&self, query: &ListQuery) -> BoxStream<'_, Result<Delivery>> {
        let listing = self.inner.list(query);
        async { take(&self.listing_takes).await }.map(|()| listing).flatten_stream().boxed()
    }

    async fn count(&self, selection: &Selection) -> Result<u64> {
        self.inner.count(selection).await
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.inner.statistics().await
    }

    async fn queue_depths(&self, handlers: &[String]) -> Result<Vec<QueueDepth>> {
        self.depths_read.fetch_add(1, Ordering::SeqCst);
        take(&self.depths_take).await;
        self.check(&self.depths_fail)?;
        self.inner.queue_depths(handlers).await
    }

    async fn key_state(&self, handler: &str, key: &str, now: Timestamp) -> Result<KeyState> {
        self.inner.key_state(handler, key, now).await
    }

    async fn waiting_behind(&self, handler: &str, key: &str, sequence: i64) -> Result<u64> {
        self.inner.waiting_behind(handler, key, sequence).await
    }

    async fn handler_activity(&self, handler: &str, now: Timestamp) -> Result<HandlerActivity> {
        self.inner.handler_activity(handler, now).await
    }

    async fn repair(&self, id: &DeliveryId, repair: &Repair, now: Timestamp) -> Result<RepairOutcome> {
        self.inner.repair(id, repair, now).await
    }

    async fn repair_selected(
        &self,
        ids: &[DeliveryId],
        selection: &Selection,
        repair: &Repair,
        now: Timestamp,
    ) -> Result<u64> {
        self.inner.repair_selected(ids, selection, repair, now).await
    }

    async fn recover(&self, handlers: &[String], now: Timestamp) -> Result<u64> {
        self.inner.recover(handlers, now).await
    }

    async fn purge_batch(&self, request: &PurgeRequest) -> Result<PurgeBatch> {
        self.inner.purge_batch(request).await
    }

    async fn count_purgeable(&self, request: &PurgeRequest) -> Result<u64> {
        self.inner.count_purgeable(request).await
    }

    fn export(&self, filter: &Filter, cutoff: Timestamp) -> BoxStream<'_, Result<ExportLine>> {
        self.inner.export(filter, cutoff)
    }

    async fn import(&self, lines: &[ExportLine], dry_run: bool) -> Result<Vec<Imported>> {
        self.inner.import(lines, dry_run).await
    }

    async fn events_without(&self, request: &BackfillRequest) -> Result<BackfillPage> {
        self.inner.events_without(request).await
    }

    async fn extend(&self, events: &[EventId], handler: &str, now: Timestamp) -> Result<Extended> {
        self.inner.extend(events, handler, now).await
    }

    fn key_sequences(&self, prefix: Option<&str>) -> BoxStream<'_, Result<KeySequence>> {
        self.inner.key_sequences(prefix)
    }

    async fn prune_keys(&self, request: &PruneRequest) -> Result<PruneBatch> {
        self.inner.prune_keys(request).await
    }

    async fn pauses(&self, now: Timestamp) -> Result<Vec<Pause>> {
        self.pauses_read.fetch_add(1, Ordering::SeqCst);
        self.check(&self.pauses_fail)?;
        self.inner.pauses(now).await
    }

    async fn pause(&self, pause: &Pause) -> Result<Option<Pause>> {
        self.inner.pause(pause).await
    }

    async fn resume(&self, handler: &str, now: Timestamp) -> Result<Option<Pause>> {
        self.inner.resume(handler, now).await
    }

    async fn tripped_breakers(&self, now: Timestamp) -> Result<Vec<TrippedBreaker>> {
        self.inner.tripped_breakers(now).await
    }

    async fn report_breaker(&self, breaker: &TrippedBreaker, now: Timestamp) -> Result<()> {
        self.inner.report_breaker(breaker, now).await
    }

    async fn forget_breaker(&self, handler: &str, worker: &str) -> Result<()> {
        self.inner.forget_breaker(handler, worker).await
    }
}
