//! Handlers whose operations are done in one transaction with the completion, behind their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use relayctl::dispatch::{StopWhen, Subscription, Verdict};
use relayctl::handler::{
    Command, HandlerContext, NumberedOperation, Operation, OperationRules, Outcome, Preparation,
    PreparingHandler, ShellHandler, ShellTransaction,
};
use relayctl::model::{DeliveryId, Envelope, Failure, FailureKind, NewEvent, RetryPolicy, Status};
use serde_json::json;

use crate::faulty_store::{FaultyStore, TransactionFault};
use crate::support::{Bench, RuntimeClock, START, event_id, options, soon};

/// The line that publishes the event `id`.
fn publish(id: &str) -> String {
    let event = json!({"type": "invoice.made", "id": id, "payload": {"total": 4}});
    json!({ "publish": event }).to_string()
}

fn shell(line: &str) -> Subscription {
    let subscribers = |event_type: &str| match event_type {
        "invoice.made" => vec!["archive".to_owned()],
        _ => Vec::new(),
    };
    let rules = OperationRules::new(vec!["invoices".into()], Arc::new(subscribers));
    subscription(ShellTransaction::new(ShellHandler::new(Command::shell(line)), rules))
}

fn subscription(work: impl PreparingHandler + 'static) -> Subscription {
    Subscription::preparing("invoice", work).retry(RetryPolicy::Fixed { delay: Duration::from_secs(10) })
}

async fn order(bench: &Bench) -> DeliveryId {
    bench.publish(NewEvent::new("order.placed", json!({"total": 4})).id("order").handler("invoice")).await
}

async fn is_published(bench: &Bench, id: &str) -> bool {
    !bench.store.events(&[event_id(id)]).await.unwrap().is_empty()
}

/// Handles one order; returns the verdict, the delivery's status, and whether the event `invoice` is there.
async fn handle(bench: &Bench, subscription: Subscription) -> (Verdict, Status, bool) {
    let id = order(bench).await;
    let (_, finished) = bench.run(vec![subscription], StopWhen::NothingDue).await;
    (finished[0].verdict.clone(), bench.get(&id).await.status, is_published(bench, "invoice").await)
}

fn failed(message: &str) -> (Verdict, Status, bool) {
    let failure = Failure::new(FailureKind::Failed, message);
    (Verdict::Retrying { at: START.saturating_add(Duration::from_secs(10)), failure }, Status::Pending, false)
}

/// Prepares the event `invoice` after a while.
struct Slow {
    takes: Duration,
    runs: Arc<AtomicUsize>,
}

#[async_trait]
impl PreparingHandler for Slow {
    async fn prepare(&self, _envelope: &Envelope, _context: &HandlerContext) -> Preparation {
        self.runs.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(self.takes).await;
        let event = NewEvent::new("invoice.made", json!(1)).id("invoice").handler("archive");
        Preparation::Ready(vec![NumberedOperation {
            line: 1,
            operation: Operation::Publish(Box::new(event)),
        }])
    }
}

fn slow(takes: Duration) -> (Subscription, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    (subscription(Slow { takes, runs: runs.clone() }), runs)
}

fn faulty(faults: &[TransactionFault]) -> (Arc<FaultyStore>, Bench) {
    let store = Arc::new(FaultyStore::default());
    store.transaction_faults.lock().unwrap().extend(faults);
    (store.clone(), Bench::with(store))
}

// ---- what a command writes ---------------------------------------------------------------------------------------

#[tokio::test]
async fn operations_and_completion_are_there_together() {
    let bench = Bench::new();
    let line = format!("cat >/dev/null; echo '{}'", publish("invoice"));
    assert_eq!(handle(&bench, shell(&line)).await, (Verdict::Completed, Status::Completed, true));
    let event = bench.store.events(&[event_id("invoice")]).await.unwrap().remove(0);
    assert_eq!(event.causation_id.as_deref(), Some("order"));
    let deliveries = bench.deliveries().await;
    assert!(deliveries.iter().any(|one| one.handler == "archive" && one.status == Status::Pending));
}

#[tokio::test]
async fn a_command_may_have_nothing_to_be_done() {
    assert_eq!(
        handle(&Bench::new(), shell("echo; true")).await,
        (Verdict::Completed, Status::Completed, false)
    );
}

#[tokio::test]
async fn a_line_that_means_nothing_is_a_failure_and_nothing_is_done() {
    let line = format!("echo '{}'; echo; echo done", publish("invoice"));
    let expected = failed("line 3: is not valid JSON: expected value at column 1");
    assert_eq!(handle(&Bench::new(), shell(&line)).await, expected);
}

#[tokio::test]
async fn what_a_command_that_failed_has_written_is_discarded() {
    let line = |code| format!("echo '{}'; echo no paper >&2; exit {code}", publish("invoice"));
    assert_eq!(handle(&Bench::new(), shell(&line(3))).await, failed("exit status 3: no paper"));
    let failure = Failure::new(FailureKind::Rejected, "exit status 65: no paper");
    let rejected = (Verdict::Dead { failure }, Status::Dead, false);
    assert_eq!(handle(&Bench::new(), shell(&line(65))).await, rejected);
}

#[tokio::test]
async fn a_command_that_runs_out_of_time_has_written_for_nothing() {
    let line = format!("echo '{}'; trap 'exit 0' TERM; sleep 60 & wait", publish("invoice"));
    let limited = shell(&line).timeout(Duration::from_millis(200));
    let (verdict, status, is_published) = handle(&Bench::new(), limited).await;
    assert!(
        matches!(&verdict, Verdict::Retrying { failure, .. } if failure.kind == FailureKind::Timeout),
        "{verdict:?}"
    );
    assert_eq!((status, is_published), (Status::Pending, false));
}

#[tokio::test]
async fn an_output_without_bounds_is_a_failure() {
    let line = format!("echo '{}'; echo; head -c 30000000 /dev/zero", publish("invoice"));
    let expected = failed("line 3: goes beyond the 4 MiB that stdout may have");
    assert_eq!(handle(&Bench::new(), shell(&line)).await, expected);
}

#[tokio::test]
async fn an_output_up_to_the_limit_arrives_whole() {
    let line = format!("echo '{}'; head -c 4000000 /dev/zero | tr '\\0' ' '", publish("invoice"));
    assert_eq!(handle(&Bench::new(), shell(&line)).await, (Verdict::Completed, Status::Completed, true));
}

#[tokio::test]
async fn an_output_that_stays_open_is_a_failure() {
    let line = format!("echo '{}'; setsid sleep 3 &", publish("invoice"));
    let expected = failed("stdout was still open when the command was over: lines may be missing");
    assert_eq!(handle(&Bench::new(), shell(&line)).await, expected);
}

#[tokio::test]
async fn what_the_store_refuses_is_told_with_its_line_and_nothing_is_done() {
    let bench = Bench::new();
    let other = NewEvent::new("invoice.made", json!("another")).id("taken").handler("archive");
    bench.publish(other).await;
    let line = format!("echo '{}'; echo '{}'", publish("invoice"), publish("taken"));
    let expected = "line 2: event taken is there already with another payload; nothing was appended";
    assert_eq!(handle(&bench, shell(&line)).await, failed(expected));
    let write = json!({"write": {"collection": "invoices", "op": "insertOne", "document": {}}});
    let line = format!("echo '{}'; echo '{write}'", publish("invoice"));
    let expected = "line 2: this store has no collections but the outbox's own to write to";
    assert_eq!(handle(&Bench::new(), shell(&line)).await, failed(expected));
}

// ---- the lease and the transaction -----------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_while_the_work_runs_and_not_in_the_transaction() {
    let (store, bench) = faulty(&[TransactionFault::NoAnswer; 5]);
    let id = order(&bench).await;
    let (subscription, runs) = slow(Duration::from_secs(13));
    let subscription = subscription.lease(Duration::from_secs(6));
    let mut worker = bench.start_by(Arc::new(RuntimeClock::new()), vec![subscription], options());
    let finished = worker.next_finished().await;
    assert_eq!(finished.verdict, Verdict::Completed);
    // One every two seconds of the work. The next one would have come within the transaction.
    assert!(finished.elapsed > Duration::from_millis(14_500), "{:?}", finished.elapsed);
    assert_eq!(store.renewals.load(Ordering::Relaxed), 6);
    assert_eq!((bench.get(&id).await.status, runs.load(Ordering::Relaxed)), (Status::Completed, 1));
    assert!(is_published(&bench, "invoice").await);
    worker.drain().await;
}

#[tokio::test]
async fn a_lost_lease_leaves_no_trace() {
    let (store, bench) = faulty(&[]);
    let id = order(&bench).await;
    *store.buried_before_transactions.lock().unwrap() = Some(id.clone());
    let (subscription, _) = slow(Duration::ZERO);
    let (_, finished) = bench.run(vec![subscription], StopWhen::NothingDue).await;
    assert_eq!(finished[0].verdict, Verdict::LeaseLost { unrecorded: None });
    assert_eq!(bench.get(&id).await.last_error.as_deref(), Some("wrong customer"));
    assert!(!is_published(&bench, "invoice").await);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_asked_again_without_the_work() {
    let (_, bench) = faulty(&[TransactionFault::NoAnswer, TransactionFault::NoAnswer]);
    let (subscription, runs) = slow(Duration::ZERO);
    assert_eq!(handle(&bench, subscription).await, (Verdict::Completed, Status::Completed, true));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_commit_of_which_the_answer_was_lost_counts() {
    let (store, bench) = faulty(&[TransactionFault::AnswerIsLost]);
    let (subscription, runs) = slow(Duration::ZERO);
    assert_eq!(handle(&bench, subscription).await, (Verdict::Completed, Status::Completed, true));
    assert_eq!((runs.load(Ordering::Relaxed), store.transactions.load(Ordering::Relaxed)), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_does_not_end_is_given_up_before_the_lease_is_over() {
    let (store, bench) = faulty(&[TransactionFault::Hang]);
    let id = order(&bench).await;
    let (subscription, _) = slow(Duration::from_secs(1));
    let subscription = subscription.lease(Duration::from_secs(6));
    let mut worker = bench.start_by(Arc::new(RuntimeClock::new()), vec![subscription], options());
    let finished = worker.next_finished().await;
    let Verdict::Retrying { failure, .. } = &finished.verdict else { panic!("{finished:?}") };
    assert_eq!(failure.kind, FailureKind::Timeout);
    assert!(failure.message.starts_with("the transaction timed out after 2"), "{failure:?}");
    assert!(finished.elapsed < Duration::from_secs(6), "{:?}", finished.elapsed);
    assert_eq!((bench.get(&id).await.attempts, store.renewals.load(Ordering::Relaxed)), (1, 0));
    worker.drain().await;
}

#[tokio::test]
async fn the_second_signal_leaves_no_trace_and_spends_no_attempt() {
    let (store, bench) = faulty(&[TransactionFault::Hang]);
    let id = order(&bench).await;
    let (subscription, _) = slow(Duration::ZERO);
    let subscription = subscription.kill_after(Duration::from_millis(100));
    let worker = bench.start(vec![subscription], StopWhen::Never);
    crate::support::until(async || store.transactions.load(Ordering::Relaxed) == 1).await;
    worker.signals.stop.cancel();
    assert_eq!(soon(worker.end()).await.unwrap().released, 1);
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, delivery.attempts), (Status::Pending, 0));
    assert!(!is_published(&bench, "invoice").await);
}

/// Gives the attempt back.
struct Unwilling;

#[async_trait]
impl PreparingHandler for Unwilling {
    async fn prepare(&self, _envelope: &Envelope, _context: &HandlerContext) -> Preparation {
        Preparation::Ended(Outcome::Released)
    }
}

#[tokio::test]
async fn work_that_ends_otherwise_opens_no_transaction() {
    let (store, bench) = faulty(&[]);
    let id = order(&bench).await;
    let mut worker = bench.start(vec![subscription(Unwilling)], StopWhen::Deliveries(1));
    assert_eq!(worker.next_finished().await.verdict, Verdict::Released);
    worker.signals.stop.cancel();
    worker.end().await.unwrap();
    assert_eq!(
        (bench.get(&id).await.status, store.transactions.load(Ordering::Relaxed)),
        (Status::Pending, 0)
    );
}
