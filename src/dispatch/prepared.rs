//! The transaction of a handler that has prepared its operations: they are committed with the completion, or nothing is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::sleep;

use super::attempt::Conclusion;
use super::backoff::Backoff;
use super::executor::Held;
use super::transactional::Abort;
use crate::clock::Clock;
use crate::handler::{NumberedOperation, Operation, Outcome};
use crate::model::{Lease, NewEvent, Status};
use crate::store::{ErrorKind, Fenced, Result, Store, StoreError, Transaction};

/// Does what was prepared, as long as there is hope: a store that does not answer is asked again, until whoever waits for
/// this gives up.
pub(super) fn commit(
    operations: Vec<NumberedOperation>,
    held: &Held,
) -> impl Future<Output = Conclusion> + Send + use<> {
    let (store, clock) = (held.surroundings.store.clone(), held.surroundings.clock.clone());
    let lease = held.lease.clone();
    async move {
        let mut pause = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut in_doubt = false;
        let mut batches = Batches::of(operations);
        loop {
            let commit = Arc::new(Commit::new(batches.clone(), lease.clone(), clock.clone()));
            let error = match store.transaction(&mut |transaction| commit.clone().run(transaction)).await {
                Ok(()) => return Conclusion::Committed,
                Err(error) => error,
            };
            match commit.judge(&error) {
                Judgement::LeaseLost if in_doubt && is_completed(&*store, &lease).await => {
                    return Conclusion::Committed;
                }
                Judgement::LeaseLost => return Conclusion::LeaseLost(None),
                Judgement::Refused(message) => return Conclusion::Outcome(Outcome::failed(message)),
                Judgement::NoAnswer => {
                    in_doubt = true;
                    sleep(pause.next()).await;
                }
                Judgement::LookCloser => batches = batches.one_by_one(),
            }
        }
    }
}

/// Whether a commit of which the answer was lost has completed the delivery, as its lease is not held any more.
async fn is_completed(store: &dyn Store, lease: &Lease) -> bool {
    let found = store.get(&lease.delivery_id).await;
    found.is_ok_and(|found| found.is_some_and(|delivery| delivery.status == Status::Completed))
}

/// What is sent to the store at once: a write, or events.
#[derive(Clone, Debug)]
struct Batch {
    /// The numbers of the first and the last line.
    lines: (u64, u64),
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Write(crate::store::WriteOperation),
    Events(Vec<(u64, NewEvent)>),
}

/// Writes in their order, then the events: together, since a key's counter is held from its first event to the commit.
#[derive(Clone, Debug)]
struct Batches(Arc<[Batch]>);

impl Batches {
    fn of(operations: Vec<NumberedOperation>) -> Self {
        let mut batches = Vec::new();
        let mut events = Vec::new();
        for NumberedOperation { line, operation } in operations {
            match operation {
                Operation::Write(write) => {
                    batches.push(Batch { lines: (line, line), content: Content::Write(write) });
                }
                Operation::Publish(event) => events.push((line, *event)),
            }
        }
        batches.extend(Batch::of_events(events));
        Batches(batches.into())
    }

    /// With each event apart, so that the one that is refused is found.
    fn one_by_one(self) -> Self {
        let apart = self.0.iter().flat_map(|batch| match &batch.content {
            Content::Write(_) => vec![batch.clone()],
            Content::Events(events) => {
                events.iter().filter_map(|event| Batch::of_events(vec![event.clone()])).collect()
            }
        });
        Batches(apart.collect())
    }
}

impl Batch {
    fn of_events(events: Vec<(u64, NewEvent)>) -> Option<Self> {
        let lines = (events.first()?.0, events.last()?.0);
        Some(Batch { lines, content: Content::Events(events) })
    }

    async fn send(&self, transaction: &mut dyn Transaction, clock: &dyn Clock) -> Result<()> {
        match &self.content {
            Content::Write(write) => transaction.write(write).await,
            Content::Events(events) => {
                let events: Vec<_> = events.iter().map(|(_, event)| event.clone()).collect();
                transaction.append(&events, clock.now()).await.map(drop)
            }
        }
    }
}

/// One call of the store, which may run the transaction more than once.
struct Commit {
    batches: Batches,
    /// How many batches the store has taken in the latest run.
    taken: AtomicUsize,
    lease: Lease,
    clock: Arc<dyn Clock>,
}

/// What an error of the transaction means.
enum Judgement {
    LeaseLost,
    Refused(String),
    /// The same may work later.
    NoAnswer,
    /// One of several events was refused.
    LookCloser,
}

impl Commit {
    fn new(batches: Batches, lease: Lease, clock: Arc<dyn Clock>) -> Self {
        Commit { batches, taken: AtomicUsize::new(0), lease, clock }
    }

    /// The store's own errors go on as they are: it tells by them whether to run this again.
    fn run(self: Arc<Self>, transaction: &mut dyn Transaction) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.taken.store(0, Ordering::Relaxed);
            for batch in &*self.batches.0 {
                batch.send(transaction, &*self.clock).await?;
                self.taken.fetch_add(1, Ordering::Relaxed);
            }
            match transaction.complete(&self.lease, self.clock.now()).await? {
                Fenced::Applied => Ok(()),
                Fenced::LeaseLost => Err(StoreError::aborted(Abort::LeaseLost)),
            }
        })
    }

    fn judge(&self, error: &StoreError) -> Judgement {
        let refused = self.batches.0.get(self.taken.load(Ordering::Relaxed));
        match (error.kind(), refused.map(|batch| batch.lines)) {
            (ErrorKind::Aborted, _) => Judgement::LeaseLost,
            (ErrorKind::Unavailable, _) => Judgement::NoAnswer,
            (ErrorKind::Conflict | ErrorKind::Invalid, Some((first, last))) if first < last => {
                Judgement::LookCloser
            }
            (_, Some((line, _))) => Judgement::Refused(format!("line {line}: {error}")),
            (_, None) => Judgement::Refused(error.to_string()),
        }
    }
}
