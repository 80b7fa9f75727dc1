//! From the outcome of an attempt to the state of its delivery.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use relayctl::clock::Clock;
use relayctl::dispatch::{StopWhen, Verdict};
use relayctl::handler::{Command, Outcome, ShellHandler, handler_fn};
use relayctl::model::{Failure, FailureKind, NewEvent, RetryPolicy, Status};
use relayctl::store::{ClaimRequest, Repair};
use serde_json::json;

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, START, subscription};

fn event() -> NewEvent {
    NewEvent::new("order.placed.v1", json!({"total": 4})).handler("mail")
}

fn failing() -> impl relayctl::handler::Handler {
    handler_fn(|_| async { Err::<(), _>("no route to host") })
}

#[tokio::test]
async fn a_command_completes_its_delivery() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let command = ShellHandler::new(Command::shell(r#"grep -q '"total":4' && test "$RELAY_ATTEMPT" = 1"#));
    let (counts, finished) = bench.run(vec![subscription("mail", command)], StopWhen::NothingDue).await;
    assert_eq!((counts.claimed, counts.completed), (1, 1));
    assert_eq!(finished[0].verdict, Verdict::Completed);
    assert_eq!((&finished[0].delivery_id, finished[0].attempt, finished[0].max_attempts), (&id, 1, 5));
    assert_eq!(bench.get(&id).await.status, Status::Completed);
}

#[tokio::test]
async fn a_failing_command_retries_with_its_last_words_in_the_history() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let command = ShellHandler::new(Command::shell("echo no route to host >&2; exit 3"));
    bench.run(vec![subscription("mail", command)], StopWhen::NothingDue).await;
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, delivery.attempts), (Status::Pending, 1));
    assert_eq!(delivery.available_at, START.saturating_add(Duration::from_secs(10)));
    assert_eq!(delivery.last_error.as_deref(), Some("exit status 3: no route to host"));
}

#[tokio::test]
async fn failures_back_off_until_the_delivery_is_dead() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let retry = RetryPolicy::Exponential {
        base: Duration::from_secs(10),
        factor: 2.0,
        cap: Duration::from_secs(25),
        jitter: 0.0,
    };
    let mut worker =
        bench.start(vec![subscription("mail", failing()).retry(retry).max_attempts(4)], StopWhen::Never);
    for delay in [10, 20, 25].map(Duration::from_secs) {
        let now = bench.clock.now();
        let Verdict::Retrying { at, failure } = worker.next_finished().await.verdict else { panic!() };
        assert_eq!((at, &*failure.message), (now.saturating_add(delay), "no route to host"));
        bench.clock.advance(delay);
    }
    assert!(matches!(worker.next_finished().await.verdict, Verdict::Dead { .. }));
    let counts = worker.drain().await;
    assert_eq!((counts.claimed, counts.retried, counts.dead), (4, 3, 1));
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, delivery.attempts, delivery.errors.len()), (Status::Dead, 4, 4));
    assert!(delivery.errors.iter().all(|error| error.kind == FailureKind::Failed));
}

#[tokio::test]
async fn an_attempt_before_its_time_is_not_made() {
    let bench = Bench::new();
    bench.publish(event()).await;
    let (counts, _) = bench.run(vec![subscription("mail", failing())], StopWhen::NothingDue).await;
    assert_eq!(counts.claimed, 1);
    bench.clock.advance(Duration::from_millis(9_999));
    let (counts, _) = bench.run(vec![subscription("mail", failing())], StopWhen::NothingDue).await;
    assert_eq!(counts.claimed, 0);
    bench.clock.advance(Duration::from_millis(1));
    let (counts, _) = bench.run(vec![subscription("mail", failing())], StopWhen::NothingDue).await;
    assert_eq!(counts.claimed, 1);
}

#[tokio::test]
async fn the_events_own_limit_of_attempts_wins() {
    let bench = Bench::new();
    let mut event = event();
    event.max_attempts = Some(1);
    let id = bench.publish(event).await;
    let (counts, finished) = bench.run(vec![subscription("mail", failing())], StopWhen::NothingDue).await;
    assert_eq!((counts.dead, finished[0].max_attempts), (1, 1));
    assert_eq!(bench.get(&id).await.status, Status::Dead);
}

#[tokio::test]
async fn a_rejection_is_the_end_at_the_first_attempt() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let command = ShellHandler::new(Command::shell("echo not an order >&2; exit 65"));
    bench.run(vec![subscription("mail", command)], StopWhen::NothingDue).await;
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, delivery.attempts), (Status::Dead, 1));
    assert_eq!(delivery.errors[0].kind, FailureKind::Rejected);
}

#[tokio::test]
async fn a_time_out_is_a_failure_of_its_own_kind() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let command = ShellHandler::new(Command::shell("echo connecting >&2; sleep 300"));
    let subscription = subscription("mail", command).timeout(Duration::from_millis(300));
    bench.run(vec![subscription], StopWhen::NothingDue).await;
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, &delivery.errors[0].kind), (Status::Pending, &FailureKind::Timeout));
    assert_eq!(delivery.last_error.as_deref(), Some("timed out after 300ms: connecting"));
}

#[tokio::test]
async fn a_handler_that_does_not_listen_is_dropped_when_it_ran_out_of_time() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let deaf = handler_fn(|_| std::future::pending::<Outcome>());
    let subscription =
        subscription("mail", deaf).timeout(Duration::from_millis(50)).kill_after(Duration::from_millis(50));
    bench.run(vec![subscription.lease(Duration::from_secs(1))], StopWhen::NothingDue).await;
    assert_eq!(bench.get(&id).await.last_error.as_deref(), Some("timed out after 50ms"));
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt_and_the_worker_lives() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    bench.publish_many("mail", 1).await;
    let handler = handler_fn(|envelope| async move {
        assert!(envelope.payload.get("total").is_none(), "no totals today");
        Outcome::Succeeded
    });
    let (counts, _) = bench.run(vec![subscription("mail", handler)], StopWhen::NothingDue).await;
    assert_eq!((counts.completed, counts.retried), (1, 1));
    assert_eq!(bench.get(&id).await.last_error.as_deref(), Some("the handler panicked: no totals today"));
}

#[tokio::test]
async fn a_delivery_that_is_given_back_keeps_its_attempt() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let handler = handler_fn(|_| async { Outcome::Released });
    let (counts, _) = bench.run(vec![subscription("mail", handler)], StopWhen::Deliveries(3)).await;
    assert_eq!((counts.claimed, counts.released), (3, 3));
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, delivery.attempts, delivery.last_error), (Status::Pending, 0, None));
}

/// Leases the delivery as a worker that dies at once.
async fn crash(bench: &Bench) {
    let lease = Duration::from_secs(60);
    let request = ClaimRequest {
        handlers: vec!["mail".into()],
        limit: 1,
        lease,
        owner: "elsewhere:1".into(),
        now: bench.clock.now(),
    };
    assert_eq!(bench.store.claim(&request).await.unwrap().len(), 1);
    bench.clock.advance(lease);
}

#[tokio::test]
async fn a_delivery_that_its_workers_do_not_survive_is_dead_after_the_last_attempt() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    for _ in 0..5 {
        crash(&bench).await;
    }
    let ran = Arc::new(Mutex::new(false));
    let handler = handler_fn({
        let ran = ran.clone();
        move |_| {
            *ran.lock().unwrap() = true;
            async { Outcome::Succeeded }
        }
    });
    let (counts, _) = bench.run(vec![subscription("mail", handler)], StopWhen::NothingDue).await;
    assert_eq!(counts.dead, 1);
    assert!(!*ran.lock().unwrap());
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, &delivery.errors[0].kind), (Status::Dead, &FailureKind::Crashed));
    let expected = "attempt 5 of 5 ended without an outcome: its worker died, or lost its lease";
    assert_eq!(delivery.last_error.as_deref(), Some(expected));
}

#[tokio::test]
async fn a_crash_before_the_last_attempt_leaves_the_others() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    for _ in 0..4 {
        crash(&bench).await;
    }
    let done = handler_fn(|_| async { Outcome::Succeeded });
    bench.run(vec![subscription("mail", done)], StopWhen::NothingDue).await;
    assert_eq!(bench.get(&id).await.status, Status::Completed);
}

#[tokio::test]
async fn an_event_that_cannot_be_understood_harms_no_other() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    let id = bench.publish(event().id("broken")).await;
    bench.publish_many("mail", 3).await;
    *store.corrupt_event.lock().unwrap() = Some("broken".into());
    let done = handler_fn(|_| async { Outcome::Succeeded });
    let subscription = subscription("mail", done).concurrency(4);
    let (counts, _) = bench.run(vec![subscription], StopWhen::NothingDue).await;
    assert_eq!((counts.completed, counts.retried), (3, 1));
    assert_eq!(bench.get(&id).await.last_error.as_deref(), Some("event broken: payload is missing"));
}

#[tokio::test]
async fn a_delivery_that_an_operator_buried_meanwhile_stays_buried() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let (store, target) = (bench.store.clone(), id.clone());
    let handler = handler_fn(move |_| {
        let (store, target) = (store.clone(), target.clone());
        async move {
            let bury = Repair::Bury { reason: "not today".into() };
            store.repair(&target, &bury, START).await.unwrap();
            Outcome::Succeeded
        }
    });
    let (counts, finished) = bench.run(vec![subscription("mail", handler)], StopWhen::NothingDue).await;
    assert_eq!(counts.lease_lost, 1);
    assert_eq!(finished[0].verdict, Verdict::LeaseLost { unrecorded: Some(Outcome::Succeeded) });
    assert_eq!(bench.get(&id).await.last_error.as_deref(), Some("not today"));
}

#[tokio::test]
async fn an_error_is_a_failure_with_its_causes() {
    let error = std::io::Error::other("disk full");
    let result: Result<(), anyhow::Error> =
        Err(anyhow::Error::new(error).context("cannot write the invoice"));
    let expected = Failure::new(FailureKind::Failed, "cannot write the invoice: disk full");
    assert_eq!(Outcome::from(result), Outcome::Failed(expected));
}
