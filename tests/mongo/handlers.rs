//! Handlers whose writes and completion commit in one MongoDB transaction.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use mongodb::bson::{Document, doc};
use relayctl::clock::ManualClock;
use relayctl::dispatch::{Counts, DispatchOptions, Dispatcher, Signals, StopWhen, Subscription};
use relayctl::handler::{TransactionalError, TransactionalHandler};
use relayctl::model::{Envelope, Failure, FailureKind};
use relayctl::store::mongo::{MongoStore, MongoTransaction};
use relayctl::store::{Repair, Store, StoreError, Transaction};
use tokio::sync::mpsc;

use crate::fixture::{Fixture, NOW, event};

/// What happens behind the handler's write.
enum Then {
    Succeed,
    Fail,
    /// Another client writes the same document once, before this transaction does.
    MeetAnotherWriter,
    /// An operator buries the delivery meanwhile.
    LoseTheLease,
}

/// Writes a document of the application.
struct Writer {
    store: MongoStore,
    then: Then,
    runs: Arc<AtomicUsize>,
}

#[async_trait]
impl TransactionalHandler for Writer {
    async fn handle(
        &self,
        envelope: &Envelope,
        transaction: &mut dyn Transaction,
    ) -> Result<(), TransactionalError> {
        let run = self.runs.fetch_add(1, Ordering::SeqCst);
        let totals = self.store.database().collection::<Document>("totals");
        let transaction: &mut MongoTransaction = transaction.as_any_mut().downcast_mut().unwrap();
        let session = transaction.session();
        // The first read fixes the snapshot, so that a write from outside behind it is a conflict.
        let _ = totals.find_one(doc! {}).session(&mut *session).await.map_err(StoreError::from)?;
        if run == 0 {
            match self.then {
                Then::MeetAnotherWriter => {
                    totals.update_one(doc! { "_id": 1 }, doc! { "$inc": { "others": 1 } }).await.unwrap();
                }
                Then::LoseTheLease => {
                    let bury = Repair::Bury { reason: "wrong customer".into() };
                    self.store.repair(&envelope.delivery_id, &bury, NOW).await.unwrap();
                }
                Then::Succeed | Then::Fail => {}
            }
        }
        let add = doc! { "$inc": { "total": 1 } };
        totals.update_one(doc! { "_id": 1 }, add).session(session).await.map_err(StoreError::from)?;
        match self.then {
            Then::Fail => Err(Failure::new(FailureKind::Failed, "no paper").into()),
            _ => Ok(()),
        }
    }
}

/// Delivers one event; returns the counts, the delivery's status, the application's document, and how often the
/// handler ran.
async fn deliver(then: Then) -> (Counts, String, Document, usize) {
    let fixture = Fixture::new().await;
    let totals = fixture.store.database().collection::<Document>("totals");
    totals.insert_one(doc! { "_id": 1, "total": 0, "others": 0 }).await.unwrap();
    let [id] = fixture.append(&[event()]).await.try_into().unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let writer = Writer { store: fixture.store.clone(), then, runs: runs.clone() };
    let dispatcher = Dispatcher::new(
        Arc::new(fixture.store.clone()),
        Arc::new(ManualClock::at(NOW)),
        vec![Subscription::transactional("h", writer)],
        DispatchOptions { stop_when: StopWhen::NothingDue, ..DispatchOptions::default() },
    );
    let (events, _) = mpsc::channel(1);
    let running = dispatcher.unwrap().run(Signals::default(), events);
    let counts = tokio::time::timeout(Duration::from_secs(60), running).await.unwrap().unwrap();
    let status = fixture.delivery(&id).await.get_str("status").unwrap().to_owned();
    let total = totals.find_one(doc! { "_id": 1 }).await.unwrap().unwrap();
    fixture.end().await;
    (counts, status, total, runs.load(Ordering::SeqCst))
}

#[tokio::test]
async fn writes_and_completion_are_there_together() {
    let (counts, status, document, runs) = deliver(Then::Succeed).await;
    assert_eq!((counts.completed, &*status, runs), (1, "completed", 1));
    assert_eq!(document, doc! { "_id": 1, "total": 1, "others": 0 });
}

#[tokio::test]
async fn a_failure_takes_the_writes_back() {
    let (counts, status, document, _) = deliver(Then::Fail).await;
    assert_eq!((counts.retried, &*status), (1, "pending"));
    assert_eq!(document, doc! { "_id": 1, "total": 0, "others": 0 });
}

#[tokio::test]
async fn a_conflict_repeats_the_handler_within_the_attempt() {
    let (counts, status, document, runs) = deliver(Then::MeetAnotherWriter).await;
    assert_eq!((counts.completed, &*status, runs), (1, "completed", 2));
    assert_eq!(document, doc! { "_id": 1, "total": 1, "others": 1 });
}

#[tokio::test]
async fn a_lost_lease_takes_the_writes_back() {
    let (counts, status, document, _) = deliver(Then::LoseTheLease).await;
    assert_eq!((counts.lease_lost, &*status), (1, "dead"));
    assert_eq!(document, doc! { "_id": 1, "total": 0, "others": 0 });
}
