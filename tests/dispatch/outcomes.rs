//! From the outcome of an attempt to the state of its delivery.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use relayctl::clock::Clock;
use relayctl::dispatch::{DispatchEvent, StopWhen, Verdict};
use relayctl::handler::{
    Command, DeadLetterHandler, HandlerContext, Outcome, ShellHandler, Wait, handler_fn,
};
use relayctl::model::{DeliveryId, Envelope, Failure, FailureKind, NewEvent, RetryPolicy, Status, Timestamp};
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
    assert_eq!((counts.dead, counts.crashed), (1, 1));
    assert!(!*ran.lock().unwrap());
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, &delivery.errors[0].kind), (Status::Dead, &FailureKind::Crashed));
    let crash = "worker elsewhere:1 died, or lost its lease, without an outcome";
    assert_eq!(delivery.last_error, Some(format!("attempt 5 of 5 was the last: {crash}")));
    let history: Vec<_> = delivery.errors.iter().map(|error| (error.attempt, error.kind.as_str())).collect();
    assert_eq!(history, (1..=6).map(|attempt| (attempt, "crashed")).collect::<Vec<_>>());
    assert!(delivery.errors[..5].iter().all(|error| error.message == crash));
}

#[tokio::test]
async fn a_crash_before_the_last_attempt_leaves_the_others() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    for _ in 0..4 {
        crash(&bench).await;
    }
    let done = handler_fn(|_| async { Outcome::Succeeded });
    let mut worker = bench.start(vec![subscription("mail", done)], StopWhen::NothingDue);
    let found = worker.next(|event| match event {
        DispatchEvent::FoundCrashed(found) => Some(found),
        _ => None,
    });
    let found = found.await;
    assert_eq!((&found.delivery_id, &*found.handler, found.attempt), (&id, "mail", 4));
    assert!(found.message.contains("elsewhere:1"), "{}", found.message);
    let counts = worker.end().await.unwrap();
    assert_eq!((counts.crashed, counts.completed, counts.retried), (1, 1, 0));
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, delivery.errors.len()), (Status::Completed, 4));
}

fn answering(outcome: Outcome) -> impl relayctl::handler::Handler {
    handler_fn(move |_| {
        let outcome = outcome.clone();
        async { outcome }
    })
}

#[tokio::test]
async fn a_handler_may_say_when_it_is_tried_again() {
    let (hour, year) = (Duration::from_secs(3_600), Duration::from_secs(366 * 86_400));
    let (back_off, at) = (START.saturating_add(Duration::from_secs(10)), START.saturating_add(hour));
    for (wait, expected, message) in [
        (Wait::For(hour), at, "busy"),
        (Wait::Until(at), at, "busy"),
        (Wait::Until(START.saturating_sub(hour)), START, "busy"),
        (
            Wait::For(year * 2),
            back_off,
            "ignored `retry-after: 2years 1day 12h`, which is more than a year away; busy",
        ),
    ] {
        let bench = Bench::new();
        let id = bench.publish(event()).await;
        let failure = Failure::new(FailureKind::Failed, "busy");
        let handler = answering(Outcome::RetryAfter { failure, wait });
        let (counts, _) = bench.run(vec![subscription("mail", handler)], StopWhen::Deliveries(1)).await;
        assert_eq!((counts.retried, counts.snoozed), (1, 0));
        let delivery = bench.get(&id).await;
        assert_eq!((delivery.available_at, delivery.attempts, delivery.errors.len()), (expected, 1, 1));
        assert_eq!(delivery.last_error.as_deref(), Some(message));
    }
}

#[tokio::test]
async fn the_last_attempt_has_no_other_after_it() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let failure = Failure::new(FailureKind::Failed, "busy");
    let handler = answering(Outcome::RetryAfter { failure, wait: Wait::For(Duration::from_secs(1)) });
    let subscription = subscription("mail", handler).max_attempts(1);
    let (counts, _) = bench.run(vec![subscription], StopWhen::NothingDue).await;
    assert_eq!((counts.dead, bench.get(&id).await.status), (1, Status::Dead));
}

#[tokio::test]
async fn a_snooze_is_no_failure_however_often() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let command = ShellHandler::new(Command::shell("echo waiting; echo 'snooze: 10m'; exit 75"));
    let subscription = subscription("mail", command).max_attempts(1);
    let mut worker = bench.start(vec![subscription], StopWhen::Never);
    for _ in 0..3 {
        let until = bench.clock.now().saturating_add(Duration::from_secs(600));
        assert_eq!(worker.next_finished().await.verdict, Verdict::Snoozed { until });
        bench.clock.advance(Duration::from_secs(600));
    }
    let counts = worker.drain().await;
    assert!(counts.snoozed >= 3 && counts.dead == 0 && counts.retried == 0, "{counts:?}");
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, delivery.attempts, delivery.last_error), (Status::Pending, 0, None));
}

#[tokio::test]
async fn a_snooze_is_neither_nothing_nor_for_ever() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let handler = answering(Outcome::Snoozed(Wait::For(Duration::ZERO)));
    let (counts, _) = bench.run(vec![subscription("mail", handler)], StopWhen::NothingDue).await;
    assert_eq!(counts.snoozed, 1);
    assert_eq!(bench.get(&id).await.available_at, START.saturating_add(Duration::from_secs(1)));
    bench.clock.advance(Duration::from_secs(1));
    let handler = answering(Outcome::Snoozed(Wait::Until(Timestamp::from_millis(i64::MAX))));
    let (counts, _) = bench.run(vec![subscription("mail", handler)], StopWhen::NothingDue).await;
    assert_eq!((counts.snoozed, counts.retried), (0, 1));
    let delivery = bench.get(&id).await;
    assert_eq!(delivery.attempts, 1);
    assert!(delivery.last_error.unwrap().contains("more than a year away"));
}

/// Keeps what it was told.
#[derive(Clone, Default)]
struct Register(Arc<Mutex<Vec<(DeliveryId, serde_json::Value, Failure)>>>);

#[async_trait::async_trait]
impl DeadLetterHandler for Register {
    async fn dead(
        &self,
        envelope: &Envelope,
        failure: &Failure,
        context: &HandlerContext,
    ) -> Result<(), String> {
        if envelope.payload["hangs"] == true {
            return Err(context.stopped().await.reason.to_string());
        }
        self.0.lock().unwrap().push((
            envelope.delivery_id.clone(),
            envelope.payload.clone(),
            failure.clone(),
        ));
        if envelope.payload["fails"] == true { Err("nobody answers".to_owned()) } else { Ok(()) }
    }
}

#[tokio::test]
async fn the_dead_are_told_of_once() {
    let bench = Bench::new();
    let rejected = bench.publish(event()).await;
    let register = Register::default();
    let subscribe =
        |work: Outcome| subscription("mail", answering(work)).max_attempts(2).on_dead(register.clone());
    bench.run(vec![subscribe(Outcome::rejected("no"))], StopWhen::NothingDue).await;
    let told = vec![(rejected, json!({"total": 4}), Failure::new(FailureKind::Rejected, "no"))];
    assert_eq!(*register.0.lock().unwrap(), told);
    let failing = bench.publish(event()).await;
    bench.run(vec![subscribe(Outcome::failed("busy"))], StopWhen::NothingDue).await;
    assert_eq!(register.0.lock().unwrap().len(), 1);
    bench.clock.advance(Duration::from_secs(10));
    bench.run(vec![subscribe(Outcome::failed("busy"))], StopWhen::NothingDue).await;
    let failure = Failure::new(FailureKind::Failed, "busy");
    assert_eq!(register.0.lock().unwrap()[1..], [(failing, json!({"total": 4}), failure)]);
}

#[tokio::test]
async fn the_dead_stay_dead_whatever_comes_of_telling() {
    for (payload, error) in
        [(json!({"fails": true}), "nobody answers"), (json!({"hangs": true}), "timed out after 50ms")]
    {
        let bench = Bench::new();
        let id = bench.publish(NewEvent::new("order.placed.v1", payload).handler("mail")).await;
        let register = Register::default();
        let subscription = subscription("mail", answering(Outcome::rejected("no"))).on_dead(register);
        let subscription = subscription.timeout(Duration::from_millis(50));
        let mut worker = bench.start(vec![subscription], StopWhen::NothingDue);
        let failed = worker.next(|event| match event {
            DispatchEvent::OnDeadFailed(failed) => Some(failed),
            _ => None,
        });
        let failed = failed.await;
        assert_eq!((&failed.delivery_id, &*failed.error), (&id, error));
        assert_eq!(worker.end().await.unwrap().dead, 1);
        assert_eq!(bench.get(&id).await.last_error.as_deref(), Some("no"));
    }
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
