//! A store that fails for a while.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use relayctl::dispatch::{DispatchEvent, StopWhen, Verdict};
use relayctl::handler::{Outcome, handler_fn};
use relayctl::store::ErrorKind;

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, subscription, until};

fn succeeding() -> impl relayctl::handler::Handler {
    handler_fn(|_| async { Outcome::Succeeded })
}

#[tokio::test]
async fn a_worker_outlives_an_outage_and_tells_its_begin_and_end_once() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    bench.publish_many("mail", 3).await;
    store.claims_fail.store(true, Ordering::SeqCst);
    let mut worker = bench.start(vec![subscription("mail", succeeding())], StopWhen::Never);
    let failing = |event| match event {
        DispatchEvent::StoreFailing { error } => Some(error),
        _ => None,
    };
    assert_eq!(worker.next(failing).await.kind(), ErrorKind::Unavailable);
    until(async || store.claims.lock().unwrap().len() >= 3).await;
    store.claims_fail.store(false, Ordering::SeqCst);
    let mut failures = 0;
    let recovered = |event| {
        failures += usize::from(matches!(event, DispatchEvent::StoreFailing { .. }));
        matches!(event, DispatchEvent::StoreRecovered { .. }).then_some(())
    };
    worker.next(recovered).await;
    assert_eq!(failures, 0);
    for _ in 0..3 {
        assert_eq!(worker.next_finished().await.verdict, Verdict::Completed);
    }
    assert_eq!(worker.drain().await.completed, 3);
}

#[tokio::test(start_paused = true)]
async fn a_long_outage_is_told_again_now_and_then() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    store.claims_fail.store(true, Ordering::SeqCst);
    let mut worker = bench.start(vec![subscription("mail", succeeding())], StopWhen::Never);
    let mut told = Vec::new();
    while told.len() < 3 {
        let event = worker.events.recv().await.expect("the worker still runs");
        if let DispatchEvent::StoreStillFailing { error, lasting } = event {
            told.push((error.kind(), lasting.as_secs() / 60));
        }
    }
    assert_eq!(told, [1, 3, 7].map(|minutes| (ErrorKind::Unavailable, minutes)));
    worker.drain().await;
}

#[tokio::test]
async fn deliveries_without_their_events_are_given_back_until_the_store_recovers() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    bench.publish_many("mail", 1).await;
    store.events_fail.store(true, Ordering::SeqCst);
    let mut worker = bench.start(vec![subscription("mail", succeeding())], StopWhen::Never);
    for _ in 0..2 {
        assert_eq!(worker.next_finished().await.verdict, Verdict::Released);
    }
    store.events_fail.store(false, Ordering::SeqCst);
    let finished = loop {
        let finished = worker.next_finished().await;
        if finished.verdict != Verdict::Released {
            break finished;
        }
    };
    assert_eq!((finished.verdict, finished.attempt), (Verdict::Completed, 1));
    worker.drain().await;
}

#[tokio::test]
async fn an_outcome_whose_answer_was_lost_is_not_taken_for_a_lost_lease() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    for outcome in [Outcome::Succeeded, Outcome::failed("no"), Outcome::rejected("never")] {
        bench.publish_many("mail", 1).await;
        store.answers_are_lost.store(true, Ordering::SeqCst);
        let handler = handler_fn(move |_| std::future::ready(outcome.clone()));
        let mut worker = bench.start(vec![subscription("mail", handler)], StopWhen::Deliveries(1));
        worker.next(|event| matches!(event, DispatchEvent::StoreFailing { .. }).then_some(())).await;
        store.answers_are_lost.store(false, Ordering::SeqCst);
        let verdict = worker.next_finished().await.verdict;
        assert!(!matches!(verdict, Verdict::LeaseLost { .. }), "{verdict:?}");
        worker.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_run_that_would_end_by_itself_gives_up_on_a_store_that_does_not_come_back() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    store.claims_fail.store(true, Ordering::SeqCst);
    let worker = bench.start(vec![subscription("mail", succeeding())], StopWhen::NothingDue);
    assert_eq!(worker.end().await.unwrap_err().kind(), ErrorKind::Unavailable);
}
