//! Where events and deliveries are kept: one contract, one room for each backend.
//!
//! [`Store`] is written in terms of intentions ("this attempt succeeded, if the lease still holds") and never of
//! queries, so that each backend can do it its own way. [`memory`] is the reference; [`mongo`] the home of the full
//! model. The conformance suite in `tests/store` holds every sentence below on each of them.

mod error;
pub mod memory;
pub mod mongo;
mod open;
mod requests;

use std::any::Any;
use std::fmt;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use crate::model::{
    Appended, Delivery, DeliveryId, Event, EventId, ExportLine, Filter, HandlerActivity, KeySequence,
    KeyState, Lease, ListQuery, NewEvent, Pause, QueueDepth, Selection, Statistics, Timestamp,
    TrippedBreaker,
};

pub use error::{ErrorKind, Result, StoreError};
pub use open::{OpenOptions, open};
pub use requests::{
    BackfillPage, BackfillRequest, Capabilities, ClaimRequest, Claimed, Extended, Fenced, Imported, Outcome,
    PruneBatch, PruneRequest, PurgeBatch, PurgeRequest, Repair, RepairOutcome, Settlement, SetupFinding,
    SetupProblem, SetupReport, WriteChange, WriteOperation,
};

/// Blocked deliveries of one key that one claim has to meet before it parks them.
pub const PARKING_THRESHOLD: usize = 32;

/// Deliveries that [`Store::handler_activity`] looks at in each of its two places.
pub const ACTIVITY_WINDOW: usize = 500;

/// What runs inside a transaction. It may run more than once: see [`Store::transaction`].
pub type TransactionWork<'w> =
    dyn for<'t> FnMut(&'t mut dyn Transaction) -> BoxFuture<'t, Result<()>> + Send + 'w;

/// An outbox store.
///
/// # Time
/// A store uses only the instants that it is given, never a server's or the host's clock. Leases are safe as far as
/// all who use a store agree on the time, which is why they can ask it for one: [`server_time`](Store::server_time).
///
/// # Durability
/// When a call returns, its writes survive the loss of any minority of servers; every read that a decision rests on
/// sees all such writes. No setting in a connection string weakens this.
///
/// # Cancellation
/// Dropping the future of a call leaves the store as if the call had not begun or had ended. A claim that was dropped
/// may have taken leases: they run out.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Where this store is, for people: scheme, hosts, database and names, never a user or password.
    fn location(&self) -> String;

    /// What this store can do beyond the common contract.
    fn capabilities(&self) -> Capabilities;

    /// Creates what is missing of collections, tables and indexes. Idempotent; changes nothing that exists.
    ///
    /// # Errors
    /// `Misconfigured` when something of the same name is in the way, after all the rest was created.
    async fn setup(&self) -> Result<SetupReport>;

    /// Compares what is there with what [`setup`](Store::setup) would create, and changes nothing. Empty when all is well.
    async fn check_setup(&self) -> Result<Vec<SetupFinding>>;

    /// What time it is at the server that decides in this store, for whoever hands instants to the other calls; `None` where
    /// there is none but this process. It was read at some moment between the call and the answer, and costs one round trip.
    ///
    /// Nothing that the store does rests on it: see "Time" above.
    ///
    /// # Errors
    /// `Unavailable` also when the server that answers has ceased to be the one that decides.
    async fn server_time(&self) -> Result<Option<Timestamp>> {
        Ok(None)
    }

    /// Releases connections. A call that is still running may fail.
    async fn close(&self);

    // ---- writing events ----------------------------------------------------------------------------------------

    /// Runs `work` in a transaction and commits it.
    ///
    /// After a conflict with another transaction the whole of `work` runs again from the start, with growing, jittered
    /// pauses; what an abandoned run wrote through the transaction is gone, what it did elsewhere is not. When the
    /// outcome of a commit is unknown the commit alone is repeated. It gives up after 120 seconds with the last error.
    ///
    /// An error of `work` aborts the transaction and is returned.
    async fn transaction(&self, work: &mut TransactionWork<'_>) -> Result<()>;

    /// Whether [`Transaction::write`] may write to these collections, as far as that can be told without asking a server.
    ///
    /// # Errors
    /// `Unsupported` when this store has no collections but its own, `Invalid` when one of them is the outbox's own or
    /// cannot be a collection.
    fn check_writes(&self, _collections: &[String]) -> Result<()> {
        Err(writes_unsupported())
    }

    /// [`Transaction::append`] in a transaction of its own.
    async fn append(&self, events: &[NewEvent], now: Timestamp) -> Result<Vec<Appended>>;

    // ---- the worker's side -------------------------------------------------------------------------------------

    /// Leases up to `limit` deliveries, counting the attempt in the same write that takes the lease.
    ///
    /// 1. A delivery can be taken when it is due (`dueAt <= now`), is in lane ready, and its handler is asked for;
    ///    the oldest by `(dueAt, id)` first.
    /// 2. A keyed delivery waits while an *earlier* delivery of its handler and key is unfinished (pending, even
    ///    delayed; processing, even expired), or while *any other* one of its handler and key is processing under a
    ///    live lease.
    /// 3. Exactly one claimer wins a delivery: the write pins the state that was read.
    /// 4. After a keyed delivery was taken, rule 2 is looked at again; when it fails, the lease is undone exactly
    ///    (status, due time, attempts, a crashed worker's older lease included) and the claim moves on.
    /// 5. One call never takes two deliveries of one handler and key.
    /// 6. Blocked deliveries never starve others: the scan goes on until `limit` is reached or nothing due is left.
    ///
    /// Hence, under every interleaving, crash and requeue: no two deliveries of one handler and key run at once under
    /// live leases, and earlier ones finish before later ones start. Requeued dead letters are excepted from the second
    /// half: they run when no later one is running, and block those not yet claimed.
    ///
    /// *Parking.* When one claim finds [`PARKING_THRESHOLD`] or more blocked deliveries of a key, they may be moved to
    /// lane parked, which the claim scan leaves out. Every claim also considers the lowest parked delivery of every key
    /// without an unfinished predecessor, as if it were in lane ready. This looks at the state and never at an event, so
    /// that a crash at any point can delay a key by one claim and never strand it. Parked deliveries keep their `dueAt`.
    ///
    /// *Backlogs.* Where claims meet little but blocked deliveries, a store may go by what it saw of a handler's keys up to a
    /// second of the given time ago, besides what it changed itself since. Then a delivery of one key may be taken before an
    /// older one of another, and a claim that found some may leave out others that are due; one that would come back empty
    /// looks again. Rules 2 to 5 never rest on what was seen before.
    ///
    /// *Crashes.* The attempt under an expired lease ended without an outcome. The write that takes such a delivery remembers
    /// that in the history, as a failure of kind crashed with the number of that attempt and the owner of its lease.
    ///
    /// When it fails after some were taken, those are returned and the error waits for the next call.
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>>;

    /// The events of these ids, in any order; missing ones are left out.
    async fn events(&self, ids: &[EventId]) -> Result<Vec<Event>>;

    /// Records outcomes of attempts: for each, whether it was applied, in the same order.
    ///
    /// Each changes its delivery only if id, status processing and lease token match. A lease that ran out but that
    /// nobody took since still counts, except that it cannot be extended where the delivery has a key: another one of the
    /// key may have been claimed behind it. `Release` gives the attempt back, and so does `Snooze`, which also moves the
    /// time before which it is not tried again.
    async fn settle(&self, settlements: &[Settlement], now: Timestamp) -> Result<Vec<Fenced>>;

    /// Hints that a delivery of one of these handlers may have become due; `None` where the store cannot tell.
    ///
    /// The first item comes as soon as the store listens: whatever is committed behind it is followed by another one.
    /// A hint may come late, more than once, or for nothing, several commits may be one, and a delivery that is due
    /// because time has passed brings none: who waits for work listens and still looks every so often. An `Err` item
    /// says why there are no more, and is the last. Listening costs the store; dropping the stream ends it.
    fn wake_ups(&self, _handlers: &[String]) -> Option<BoxStream<'static, Result<()>>> {
        None
    }

    // ---- the operator's side -----------------------------------------------------------------------------------

    /// One delivery.
    async fn get(&self, id: &DeliveryId) -> Result<Option<Delivery>>;

    /// Deliveries in order, one at a time as the store yields them; memory does not grow with their number.
    ///
    /// A delivery that cannot be understood is an `Err` item of kind `Corrupt`, and the listing goes on behind it. Any
    /// other `Err` ends the stream.
    fn list(&self, query: &ListQuery) -> BoxStream<'_, Result<Delivery>>;

    /// How many deliveries are selected.
    async fn count(&self, selection: &Selection) -> Result<u64>;

    /// How much of everything there is.
    async fn statistics(&self) -> Result<Statistics>;

    /// What is unfinished of each of these handlers, in their order: what [`statistics`](Store::statistics) says of them,
    /// at the cost of what is unfinished, however much is finished. All of it was so at one moment.
    async fn queue_depths(&self, handlers: &[String]) -> Result<Vec<QueueDepth>> {
        let statistics = self.statistics().await?;
        Ok(handlers.iter().map(|handler| statistics.queue_depth(handler)).collect())
    }

    /// What runs and what waits of one handler and key.
    async fn key_state(&self, handler: &str, key: &str, now: Timestamp) -> Result<KeyState>;

    /// How many unfinished deliveries of a handler and key have a higher sequence than this.
    async fn waiting_behind(&self, handler: &str, key: &str, sequence: i64) -> Result<u64>;

    /// Signs that a worker runs a handler: any delivery of it under a lease that is live at `now`, and the latest outcome
    /// among some of its deliveries.
    ///
    /// Looked at for outcomes are at least the [`ACTIVITY_WINDOW`] created last, where a handler that keeps up is at work,
    /// and as many up to the one in lane ready that is due first, where one with a backlog is. What is older is not looked
    /// for: the cost does not grow with the number of deliveries.
    async fn handler_activity(&self, handler: &str, now: Timestamp) -> Result<HandlerActivity>;

    /// Repairs one delivery by compare-and-set.
    ///
    /// Requeue: dead to pending, due at the given time, attempts 0, error history kept, requeues + 1. Bury: pending or
    /// processing to dead with a reason; a worker that still runs it finds its lease lost.
    async fn repair(&self, id: &DeliveryId, repair: &Repair, now: Timestamp) -> Result<RepairOutcome>;

    /// Repairs those of `ids` that `selection` still selects, in one bulk write; returns how many changed. They change in
    /// the order given: no claim meets one as it is afterwards, and one before it as it was.
    async fn repair_selected(
        &self,
        ids: &[DeliveryId],
        selection: &Selection,
        repair: &Repair,
        now: Timestamp,
    ) -> Result<u64>;

    /// Returns deliveries whose lease has run out to pending, due now; returns how many. All handlers when none is named.
    /// The history remembers each as a crash, as with a claim.
    async fn recover(&self, handlers: &[String], now: Timestamp) -> Result<u64>;

    /// Deletes one batch of finished deliveries, by the time at which they finished, together with the events that no
    /// delivery refers to any more: each event in one transaction with the last delivery that refers to it. Purging is done
    /// when a batch comes back empty.
    ///
    /// An append or requeue that races conflicts with it, and one of the two starts again: there is never a delivery
    /// without its event, nor an event left behind without delivery.
    async fn purge_batch(&self, request: &PurgeRequest) -> Result<PurgeBatch>;

    /// How many deliveries a purge with these limits would delete.
    async fn count_purgeable(&self, request: &PurgeRequest) -> Result<u64>;

    /// The counters of keys, by key.
    fn key_sequences(&self, prefix: Option<&str>) -> BoxStream<'_, Result<KeySequence>>;

    /// Deletes the counters of those keys of a batch of which no delivery remains.
    ///
    /// The deletion pins the value that it read, in a transaction that looks again, so that an append in flight
    /// conflicts with it. A pruned key starts again at 1 and still obeys the invariant.
    async fn prune_keys(&self, request: &PruneRequest) -> Result<PruneBatch>;

    // ---- from store to store -----------------------------------------------------------------------------------

    /// The deliveries that match and were created at or before `cutoff`, each with its event: everything that is stored of
    /// the two, one at a time; memory does not grow with their number.
    ///
    /// They come by key, sequence and id; those without a key first. As nothing changes any of these, a delivery that is
    /// there all the time comes exactly once, whatever workers do meanwhile, and an earlier one of a key before a later one.
    ///
    /// A delivery that cannot be understood, whose event is not there, or that holds what a line cannot tell exactly, is an
    /// `Err` item of kind `Corrupt`, and the export goes on behind it. Any other `Err` ends the stream.
    fn export(&self, filter: &Filter, cutoff: Timestamp) -> BoxStream<'_, Result<ExportLine>>;

    /// Stores deliveries with their events as lines have them, in one transaction; for each line, in the same order, what
    /// became of it. Nothing is written in a dry run.
    ///
    /// A batch is as good as its lines one after the other. A line that is refused leaves the others alone.
    ///
    /// 1. An event that is there stays as it is, and is the same one if all its fields are. So does a delivery: it is the
    ///    same one if event, handler, key and sequence are, wherever it is in its life by now. Where another delivery has the
    ///    event and the handler, that one stays, and there is no second one. An id that stands for something else is
    ///    refused.
    /// 2. A new event takes the sequence that its line has, and its key's counter is afterwards not below it, so that
    ///    what is appended later comes behind. Where an event that is there has that place in the key, the line is refused:
    ///    the two come from different histories of the key, and there is no order between these.
    /// 3. A delivery that is processing is refused: its lease was given by another store.
    /// 4. A line with a field, or a value of a type, that this store cannot keep is refused; numbers are kept as numbers.
    ///
    /// What is imported can be claimed at once. As with requeued dead letters, one that is earlier in its key than others
    /// that have run already runs when no later one is running, and blocks those not yet claimed.
    async fn import(&self, lines: &[ExportLine], dry_run: bool) -> Result<Vec<Imported>>;

    // ---- a handler that came later -----------------------------------------------------------------------------

    /// The next events that match and lack a delivery for the handler, in the order of their keys and within a key by
    /// sequence. A page may be empty although there are more. Each event comes once, as long as its deliveries stay.
    async fn events_without(&self, request: &BackfillRequest) -> Result<BackfillPage>;

    /// Adds to each of these events a delivery for the handler, due now, where it lacks one: all in one transaction. It takes
    /// its place in its key from the event.
    ///
    /// As in an append that extends events, a purge that takes them away at the same time conflicts with it, and one of the
    /// two starts again.
    async fn extend(&self, events: &[EventId], handler: &str, now: Timestamp) -> Result<Extended>;

    // ---- what holds handlers up --------------------------------------------------------------------------------
    //
    // A store keeps these and does not act on them: a claim for a paused handler brings its deliveries, and it is the
    // worker that does not ask. So workers of other implementations are not concerned.

    /// The pauses that hold at `now`, by handler.
    ///
    /// One that was written by other hands is read as far as it can be understood: an end that makes no sense is as
    /// none, so that a pause is never lost.
    async fn pauses(&self, now: Timestamp) -> Result<Vec<Pause>>;

    /// Pauses a handler, whether or not there is one of that name. Returns the pause that held before.
    ///
    /// The pause says when it begins, and that is now. Where one holds already, end, reason and author are replaced,
    /// and its beginning stays.
    async fn pause(&self, pause: &Pause) -> Result<Option<Pause>>;

    /// Ends the pause of a handler; returns the one that held at `now`. What breakers report stays.
    async fn resume(&self, handler: &str, now: Timestamp) -> Result<Option<Pause>>;

    /// What workers report of their breakers, as far as it has not expired at `now`, by handler and worker.
    async fn tripped_breakers(&self, now: Timestamp) -> Result<Vec<TrippedBreaker>>;

    /// Keeps what a worker reports of a breaker, in place of what it reported before, until that expires.
    ///
    /// Reports of the same handler that have expired by `now` are forgotten with it: their workers are gone.
    async fn report_breaker(&self, breaker: &TrippedBreaker, now: Timestamp) -> Result<()>;

    /// Forgets what a worker reported of a breaker, if it did.
    async fn forget_breaker(&self, handler: &str, worker: &str) -> Result<()>;
}

/// An open transaction of a store.
#[async_trait]
pub trait Transaction: Send {
    /// Appends events and a delivery for each of their handlers.
    ///
    /// Idempotent by event id: an event that exists stays as it is, and only the deliveries for handlers that lack one are
    /// added. Race with another append of the same ids is a conflict that restarts the transaction, never an error that
    /// ends it. A keyed event takes the next value of its key's counter, so that order by sequence is order by commit,
    /// without gap or duplicate among the committed events of a key.
    ///
    /// A batch is as good as its events one after the other, and is answered for each of them, in their order.
    ///
    /// # Errors
    /// `Invalid` when an event breaks a limit of the model, `Conflict` when an id is there with another type, key or
    /// payload. Nothing of the call was written then, and the transaction can still commit.
    async fn append(&mut self, events: &[NewEvent], now: Timestamp) -> Result<Vec<Appended>>;

    /// Completes a delivery with the transaction: it is done when the transaction commits, and only then.
    async fn complete(&mut self, lease: &Lease, now: Timestamp) -> Result<Fenced>;

    /// Writes to one of the application's own collections in the store's database: the write is there when the transaction
    /// commits, and only then. That it changes nothing, as where a filter selects no document, is no error.
    ///
    /// The outbox's own collections are out of reach: what the other operations promise rests on nobody else writing
    /// there.
    ///
    /// # Errors
    /// `Unsupported` when this store has no collections but its own. `Invalid` when the collection is the outbox's own, or
    /// a document cannot be written as it stands (a malformed date, say, or one that is too large); nothing was sent then,
    /// and the transaction can still commit. Behind any other error the transaction can only be aborted: `Conflict` when
    /// another writer was faster, which has to reach [`Store::transaction`] as it is, so that the whole is repeated, or when
    /// a unique index refuses the document, which is final; `Invalid` when the server refuses the write for another
    /// reason, such as a validation rule of the collection.
    async fn write(&mut self, _operation: &WriteOperation) -> Result<()> {
        Err(writes_unsupported())
    }

    /// The backend's own transaction, for a handler that writes its data through it, such as
    /// [`mongo::MongoTransaction`].
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

fn writes_unsupported() -> StoreError {
    StoreError::new(ErrorKind::Unsupported, "this store has no collections but the outbox's own to write to")
}

impl dyn Store {
    /// Records that one attempt succeeded, failed, or goes on: [`Store::settle`] for a single lease.
    pub async fn settle_one(&self, lease: &Lease, outcome: Outcome, now: Timestamp) -> Result<Fenced> {
        let settlement = Settlement { lease: lease.clone(), outcome };
        let fenced = self.settle(std::slice::from_ref(&settlement), now).await?;
        Ok(fenced.first().copied().unwrap_or(Fenced::LeaseLost))
    }
}
