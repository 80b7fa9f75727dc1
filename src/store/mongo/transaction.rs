//! Transactions: run whole, again from the start after a conflict, committed once.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mongodb::ClientSession;
use mongodb::error::{
    ErrorKind as DriverKind, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT,
};
use mongodb::options::{ReadConcern, WriteConcern};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::error::{Cause, classify};
use super::{MongoStore, append, connect, settle, write};
use crate::model::{Appended, Lease, NewEvent, Timestamp};
use crate::store::{ErrorKind, Fenced, Result, StoreError, Transaction, TransactionWork, WriteOperation};

/// Transactions are tried again for this long, the limit that the drivers' specification sets
/// (<https://github.com/mongodb/specifications/blob/master/source/transactions-convenient-api/transactions-convenient-api.md>).
const RETRY_LIMIT: Duration = Duration::from_secs(120);

/// The same specification's pauses: 5 ms growing by half, at most 500 ms, times chance.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const PAUSE_GROWTH: f64 = 1.5;
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// An open transaction. Dropping it aborts.
pub struct MongoTransaction {
    store: MongoStore,
    session: ClientSession,
    touched: Touched,
}

/// What a transaction moves when it commits, for the memory of claims.
#[derive(Default)]
struct Touched {
    keys: HashSet<(String, String)>,
    completed: Vec<String>,
}

impl MongoTransaction {
    pub(super) async fn begin(store: &MongoStore) -> Result<Self> {
        let session =
            store.client().start_session().await.map_err(|error| classify("starting a session", error))?;
        let mut transaction = MongoTransaction { store: store.clone(), session, touched: Touched::default() };
        transaction.start().await?;
        Ok(transaction)
    }

    /// All three settings are explicit: those of a URL would weaken the transaction, or break reads inside it.
    async fn start(&mut self) -> Result<()> {
        let started = self
            .session
            .start_transaction()
            .read_concern(ReadConcern::snapshot())
            .write_concern(WriteConcern::majority())
            .selection_criteria(connect::primary())
            .await;
        started.map_err(|error| classify("starting a transaction", error))
    }

    /// The session, for the application's own reads and writes in this transaction.
    pub fn session(&mut self) -> &mut ClientSession {
        &mut self.session
    }

    /// Commits. While the outcome is unknown the commit is repeated, for at most 120 seconds.
    ///
    /// # Errors
    /// `Conflict` when another transaction was faster and this one has to be run again.
    pub async fn commit(mut self) -> Result<()> {
        self.commit_within(Instant::now() + RETRY_LIMIT).await
    }

    /// Gives the transaction up.
    pub async fn abort(mut self) {
        // An abort that does not arrive is made up for by the server, which ends the transaction after a minute.
        let _ = self.session.abort_transaction().await;
    }

    async fn commit_within(&mut self, deadline: Instant) -> Result<()> {
        let mut pauses = Pauses::default();
        loop {
            let Err(error) = self.session.commit_transaction().await else {
                self.tell_memory();
                return Ok(());
            };
            if !error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) || !pauses.wait_before(deadline).await
            {
                return Err(classify("committing", error));
            }
        }
    }
}

impl MongoTransaction {
    fn tell_memory(&mut self) {
        let Touched { keys, completed } = std::mem::take(&mut self.touched);
        self.store.memory.moved(keys);
        self.store.memory.settled(completed.iter().map(String::as_str));
    }
}

#[async_trait]
impl Transaction for MongoTransaction {
    async fn append(&mut self, events: &[NewEvent], now: Timestamp) -> Result<Vec<Appended>> {
        let keys = events.iter().filter_map(|event| Some((event, event.key.as_ref()?)));
        for (event, key) in keys {
            self.touched.keys.extend(event.handlers.iter().map(|handler| (handler.clone(), key.clone())));
        }
        append::append(&self.store, &mut self.session, events, now).await
    }

    async fn complete(&mut self, lease: &Lease, now: Timestamp) -> Result<Fenced> {
        self.touched.completed.push(lease.delivery_id.to_string());
        settle::complete_in(&self.store, &mut self.session, lease, now).await
    }

    async fn write(&mut self, operation: &WriteOperation) -> Result<()> {
        write::write(&self.store, &mut self.session, operation).await
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// The session of a transaction that this store began.
pub(super) fn session_of(transaction: &mut dyn Transaction) -> Result<&mut ClientSession> {
    let transaction = transaction.as_any_mut().downcast_mut::<MongoTransaction>();
    let foreign = || StoreError::new(ErrorKind::Unsupported, "the transaction is not MongoDB's");
    transaction.map(MongoTransaction::session).ok_or_else(foreign)
}

/// Runs `work` in a transaction: see [`Store::transaction`](crate::store::Store::transaction).
pub(super) async fn run(store: &MongoStore, work: &mut TransactionWork<'_>) -> Result<()> {
    let deadline = Instant::now() + RETRY_LIMIT;
    let mut pauses = Pauses::default();
    let mut transaction = MongoTransaction::begin(store).await?;
    loop {
        let result = match work(&mut transaction).await {
            Ok(()) => transaction.commit_within(deadline).await,
            Err(error) => {
                let _ = transaction.session.abort_transaction().await;
                Err(error)
            }
        };
        match result {
            Err(error) if is_transient(&error) && pauses.wait_before(deadline).await => {
                transaction.start().await?
            }
            result => return result,
        }
    }
}

/// Runs a call to its end even when the caller drops it half-way.
///
/// A command that was abandoned on its way may reach the server after the abort that follows it, and its transaction then
/// holds the documents that it touched until the server gives it up, a minute later.
pub(super) async fn to_the_end<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(call).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Appends in a transaction of its own.
pub(super) async fn append(store: &MongoStore, events: &[NewEvent], now: Timestamp) -> Result<Vec<Appended>> {
    let store = store.clone();
    let events: Arc<[NewEvent]> = events.into();
    to_the_end(async move {
        let keys = events.iter().filter_map(|event| event.key.as_deref());
        let _turn = store.key_locks.acquire(keys.collect()).await;
        let appended = Arc::new(Mutex::new(Vec::new()));
        run(&store, &mut |transaction| {
            let (events, appended) = (events.clone(), appended.clone());
            Box::pin(async move {
                *appended.lock().await = transaction.append(&events, now).await?;
                Ok(())
            })
        })
        .await?;
        let appended = std::mem::take(&mut *appended.lock().await);
        Ok(appended)
    })
    .await
}

/// Whether the transaction as a whole can be run again.
fn is_transient(error: &StoreError) -> bool {
    Cause::of(error).is_some_and(|cause| cause.contains_label(TRANSIENT_TRANSACTION_ERROR))
}

/// Growing pauses between tries.
#[derive(Default)]
struct Pauses {
    taken: i32,
}

impl Pauses {
    /// Waits; false when the time is up.
    async fn wait_before(&mut self, deadline: Instant) -> bool {
        let full = FIRST_PAUSE.mul_f64(PAUSE_GROWTH.powi(self.taken)).min(LONGEST_PAUSE);
        self.taken = (self.taken + 1).min(32);
        let pause = full.mul_f64(fastrand::f64());
        if Instant::now() + pause >= deadline {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }
}

/// Refuses a session without a started transaction.
///
/// The driver does not tell whether a transaction is started, but refuses to start a second one, without talking to the
/// server.
pub(super) async fn require_started(session: &mut ClientSession) -> Result<()> {
    match session.start_transaction().await {
        Err(error) if matches!(error.kind.as_ref(), DriverKind::Transaction { .. }) => Ok(()),
        Err(error) => Err(classify("looking at the session", error)),
        Ok(()) => {
            let _ = session.abort_transaction().await;
            let message = "the session has no started transaction, and every write would stand alone";
            Err(StoreError::new(ErrorKind::Misconfigured, message)
                .with_hint("call start_transaction() on the session first, or use Store::append"))
        }
    }
}
