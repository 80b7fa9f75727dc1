//! Handlers whose writes and completion commit together.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relayctl::dispatch::{StopWhen, Subscription, Verdict};
use relayctl::handler::{TransactionalError, TransactionalHandler};
use relayctl::model::{Envelope, Failure, FailureKind, NewEvent, RetryPolicy, Status};
use relayctl::store::Transaction;
use serde_json::json;
use tokio::sync::Notify;

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, START, event_id};

/// What it does after it has written an event, inside the transaction.
enum Then {
    Succeed,
    Fail(FailureKind),
    Panic,
    HangUntilDropped(Arc<Notify>),
}

/// Appends the event `invoice` as its write.
struct Invoice(Then);

#[async_trait]
impl TransactionalHandler for Invoice {
    async fn handle(
        &self,
        envelope: &Envelope,
        transaction: &mut dyn Transaction,
    ) -> Result<(), TransactionalError> {
        let write = NewEvent::new("invoice.made", envelope.payload.clone()).id("invoice").handler("archive");
        transaction.append(&[write], START).await?;
        match &self.0 {
            Then::Succeed => Ok(()),
            Then::Fail(kind) => Err(Failure::new(kind.clone(), "no paper").into()),
            Then::Panic => panic!("no ink"),
            Then::HangUntilDropped(notify) => {
                notify.notify_one();
                std::future::pending().await
            }
        }
    }
}

async fn run(bench: &Bench, then: Then) -> (Verdict, Status, bool) {
    let order = NewEvent::new("order.placed", json!({"total": 4})).handler("invoice");
    let id = bench.publish(order).await;
    let subscription = subscription(then).timeout(Duration::from_millis(200));
    let (_, finished) = bench.run(vec![subscription], StopWhen::NothingDue).await;
    (finished[0].verdict.clone(), bench.get(&id).await.status, is_written(bench).await)
}

fn subscription(then: Then) -> Subscription {
    let retry = RetryPolicy::Fixed { delay: Duration::from_secs(10) };
    Subscription::transactional("invoice", Invoice(then)).retry(retry)
}

async fn is_written(bench: &Bench) -> bool {
    !bench.store.events(&[event_id("invoice")]).await.unwrap().is_empty()
}

#[tokio::test]
async fn writes_and_completion_are_there_together() {
    assert_eq!(run(&Bench::new(), Then::Succeed).await, (Verdict::Completed, Status::Completed, true));
}

#[tokio::test]
async fn a_failure_takes_the_writes_back_and_is_tried_again() {
    let (verdict, status, is_written) = run(&Bench::new(), Then::Fail(FailureKind::Failed)).await;
    let failure = Failure::new(FailureKind::Failed, "no paper");
    let at = START.saturating_add(Duration::from_secs(10));
    assert_eq!((verdict, status, is_written), (Verdict::Retrying { at, failure }, Status::Pending, false));
}

#[tokio::test]
async fn a_rejection_takes_the_writes_back_and_is_final() {
    let (verdict, status, is_written) = run(&Bench::new(), Then::Fail(FailureKind::Rejected)).await;
    let failure = Failure::new(FailureKind::Rejected, "no paper");
    assert_eq!((verdict, status, is_written), (Verdict::Dead { failure }, Status::Dead, false));
}

#[tokio::test]
async fn a_panic_takes_the_writes_back() {
    let (verdict, status, is_written) = run(&Bench::new(), Then::Panic).await;
    assert!(
        matches!(&verdict, Verdict::Retrying { failure, .. } if failure.message.contains("no ink")),
        "{verdict:?}"
    );
    assert_eq!((status, is_written), (Status::Pending, false));
}

#[tokio::test]
async fn a_time_out_takes_the_writes_back() {
    let (verdict, status, is_written) = run(&Bench::new(), Then::HangUntilDropped(Arc::default())).await;
    let failure = Failure::new(FailureKind::Timeout, "timed out after 200ms");
    let at = START.saturating_add(Duration::from_secs(10));
    assert_eq!((verdict, status, is_written), (Verdict::Retrying { at, failure }, Status::Pending, false));
}

#[tokio::test]
async fn the_second_signal_takes_the_writes_back_and_spends_no_attempt() {
    let bench = Bench::new();
    let id = bench.publish(NewEvent::new("order.placed", json!(1)).handler("invoice")).await;
    let started = Arc::new(Notify::new());
    let subscription = subscription(Then::HangUntilDropped(started.clone()));
    let worker = bench.start(vec![subscription], StopWhen::Never);
    crate::support::soon(started.notified()).await;
    worker.signals.stop.cancel();
    assert_eq!(worker.end().await.unwrap().released, 1);
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, delivery.attempts), (Status::Pending, 0));
    assert!(!is_written(&bench).await);
}

#[tokio::test]
async fn a_lost_lease_takes_the_writes_back() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    let id = bench.publish(NewEvent::new("order.placed", json!(1)).handler("invoice")).await;
    *store.buried_before_transactions.lock().unwrap() = Some(id.clone());
    let (_, finished) = bench.run(vec![subscription(Then::Succeed)], StopWhen::NothingDue).await;
    assert_eq!(finished[0].verdict, Verdict::LeaseLost { unrecorded: None });
    assert_eq!(bench.get(&id).await.last_error.as_deref(), Some("wrong customer"));
    assert!(!is_written(&bench).await);
}
