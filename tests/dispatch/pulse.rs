//! What a worker shows of itself: that its loop turns, what runs, and what keeps it from its work.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use relayctl::clock::Clock as _;
use relayctl::dispatch::{
    DispatchEvent, DispatchOptions, Dispatcher, Obstacle, Pulse, Signals, StopWhen, Timing,
};
use relayctl::handler::{Handler, Outcome, handler_fn};
use relayctl::model::NewEvent;
use relayctl::store::ClaimRequest;
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio::time::{advance, sleep};

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, options, subscription, until};

const HOUR: Duration = Duration::from_secs(3_600);

fn succeeding() -> impl Handler {
    handler_fn(|_| async { Outcome::Succeeded })
}

/// A worker of one handler that has not begun, and its pulse.
fn worker(bench: &Bench, options: DispatchOptions) -> (Dispatcher, Pulse) {
    let subscriptions = vec![subscription("mail", succeeding())];
    let dispatcher =
        Dispatcher::new(bench.store.clone(), bench.clock.clone(), subscriptions, options).unwrap();
    let pulse = dispatcher.pulse();
    (dispatcher, pulse)
}

#[tokio::test(start_paused = true)]
async fn an_idle_loop_turns_however_long_the_poll_interval() {
    let bench = Bench::new();
    let (dispatcher, pulse) = worker(&bench, DispatchOptions { poll_interval: HOUR, ..options() });
    let signals = Signals::default();
    let (sender, mut events) = mpsc::channel(64);
    let running = tokio::spawn(dispatcher.run(signals.clone(), sender));
    while !matches!(events.recv().await, Some(DispatchEvent::Ready)) {}
    for _ in 0..100 {
        sleep(HOUR / 90).await;
        assert_eq!((pulse.check_alive(), pulse.check_ready()), (Ok(()), Ok(())));
    }
    signals.drain.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(pulse.check_alive(), Err(Obstacle::Ended));
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_is_not_run_any_more_is_stuck_until_it_is() {
    let bench = Bench::new();
    let (dispatcher, pulse) = worker(&bench, options());
    let (sender, mut events) = mpsc::channel(64);
    let mut running = pin!(dispatcher.run(Signals::default(), sender));
    let ready = async { while !matches!(events.recv().await, Some(DispatchEvent::Ready)) {} };
    tokio::select! {
        _ = &mut running => panic!("it does not end by itself"),
        () = ready => {}
    }
    assert_eq!(pulse.check_ready(), Ok(()));
    // Nobody polls it meanwhile, as when the thread that should is blocked.
    advance(Duration::from_secs(11)).await;
    assert!(matches!(pulse.check_alive(), Err(Obstacle::Stuck(still)) if still >= Duration::from_secs(10)));
    tokio::select! {
        _ = &mut running => panic!("it does not end by itself"),
        () = sleep(Duration::from_millis(1)) => {}
    }
    assert_eq!(pulse.check_alive(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_an_obstacle_long_before_it_is_an_error() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    let (dispatcher, pulse) = worker(&bench, options());
    let (sender, mut events) = mpsc::channel(64);
    let _running = tokio::spawn(dispatcher.run(Signals::default(), sender));
    while !matches!(events.recv().await, Some(DispatchEvent::Ready)) {}
    *store.claim_takes.lock().unwrap() = Duration::from_secs(15);
    until(async || matches!(pulse.check_ready(), Err(Obstacle::StoreSilent(_)))).await;
    assert_eq!(pulse.check_alive(), Ok(()));
    assert!(events.try_recv().is_err(), "nothing failed yet");
    *store.claim_takes.lock().unwrap() = Duration::ZERO;
    until(async || pulse.check_ready().is_ok()).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_an_obstacle_and_each_failed_call_is_told() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    store.pauses_fail.store(true, Ordering::SeqCst);
    let (dispatcher, pulse) = worker(&bench, options());
    let (sender, mut events) = mpsc::channel(64);
    let _running = tokio::spawn(dispatcher.run(Signals::default(), sender));
    let (mut failed, mut outages) = (0, 0);
    while failed < 5 {
        match events.recv().await.unwrap() {
            DispatchEvent::CallFailed { .. } => failed += 1,
            DispatchEvent::StoreFailing { .. } => outages += 1,
            DispatchEvent::Ready => panic!("the store never answered"),
            _ => {}
        }
    }
    assert_eq!(outages, 1);
    assert!(matches!(pulse.check_ready(), Err(Obstacle::StoreSilent(_))));
    store.pauses_fail.store(false, Ordering::SeqCst);
    while !matches!(events.recv().await, Some(DispatchEvent::Ready)) {}
    until(async || pulse.check_ready().is_ok()).await;
}

#[tokio::test]
async fn what_runs_is_counted_by_handler_and_a_drain_is_an_obstacle() {
    let bench = Bench::new();
    bench.publish_many("slow", 3).await;
    let go = Arc::new(Notify::new());
    let waiting = go.clone();
    let slow = handler_fn(move |_| {
        let go = waiting.clone();
        async move {
            go.notified().await;
            Outcome::Succeeded
        }
    });
    let subscriptions = vec![subscription("mail", succeeding()), subscription("slow", slow).concurrency(2)];
    let dispatcher =
        Dispatcher::new(bench.store.clone(), bench.clock.clone(), subscriptions, options()).unwrap();
    let pulse = dispatcher.pulse();
    let signals = Signals::default();
    let (sender, mut events) = mpsc::channel(64);
    let running = tokio::spawn(dispatcher.run(signals.clone(), sender));
    let reading = tokio::spawn(async move { while events.recv().await.is_some() {} });
    let counts = || pulse.running().into_iter().map(|(_, count)| count).collect::<Vec<_>>();
    assert_eq!(*pulse.handlers(), ["mail".to_owned(), "slow".to_owned()]);
    until(async || counts() == [0, 2]).await;
    signals.drain.cancel();
    until(async || pulse.check_ready() == Err(Obstacle::Draining)).await;
    assert_eq!(pulse.check_alive(), Ok(()));
    go.notify_one();
    until(async || counts() == [0, 1]).await;
    go.notify_one();
    running.await.unwrap().unwrap();
    reading.await.unwrap();
}

#[tokio::test]
async fn a_worker_that_nobody_reads_is_alive_and_not_ready() {
    let bench = Bench::new();
    bench.publish_many("mail", 3_000).await;
    let (dispatcher, pulse) = worker(&bench, options());
    let (sender, _unread) = mpsc::channel(1);
    let _running = tokio::spawn(dispatcher.run(Signals::default(), sender));
    until(async || pulse.check_ready() == Err(Obstacle::Unread)).await;
    assert_eq!(pulse.check_alive(), Ok(()));
}

#[tokio::test]
async fn claims_are_told_by_handler() {
    let bench = Bench::new();
    bench.publish_many("mail", 3).await;
    bench.publish_many("print", 2).await;
    let subscriptions = vec![
        subscription("mail", succeeding()).concurrency(8),
        subscription("print", succeeding()).concurrency(8),
        subscription("idle", succeeding()),
    ];
    let mut worker = bench.start(subscriptions, StopWhen::NothingUnfinished);
    let mut claimed: BTreeMap<String, usize> = BTreeMap::new();
    while let Some(event) = worker.events.recv().await {
        if let DispatchEvent::Claimed { handler, count } = event {
            *claimed.entry(handler).or_default() += count;
        }
    }
    assert_eq!(claimed, BTreeMap::from([("mail".into(), 3), ("print".into(), 2)]));
}

#[tokio::test]
async fn an_attempt_tells_how_long_it_waited_and_ran() {
    let bench = Bench::new();
    bench.publish_many("mail", 1).await;
    bench.clock.advance(Duration::from_secs(90));
    let (_, finished) = bench.run(vec![subscription("mail", succeeding())], StopWhen::NothingDue).await;
    let Some(Timing { waited, ran }) = finished[0].timing else { panic!("{finished:?}") };
    assert_eq!(waited, Duration::from_secs(90));
    assert!(ran <= finished[0].elapsed);
}

#[tokio::test]
async fn one_that_was_given_up_unseen_passed_no_time() {
    let bench = Bench::new();
    let id = bench.publish(NewEvent::new("order.placed.v1", json!({})).handler("mail")).await;
    let lost = ClaimRequest {
        handlers: vec!["mail".into()],
        limit: 1,
        lease: Duration::from_secs(1),
        owner: "crashed:1".into(),
        now: bench.clock.now(),
    };
    bench.store.claim(&lost).await.unwrap();
    bench.clock.advance(Duration::from_secs(2));
    let strict = subscription("mail", succeeding()).max_attempts(1);
    let (_, finished) = bench.run(vec![strict], StopWhen::NothingDue).await;
    assert_eq!((&finished[0].delivery_id, finished[0].timing), (&id, None));
}
