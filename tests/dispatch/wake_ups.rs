//! Being woken by the store: at once, only while idle, and never in a storm. Time stands still here and moves on only
//! when nothing else can.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use relayctl::dispatch::{DispatchEvent, DispatchOptions, StopWhen};
use relayctl::handler::{Handler, Outcome, handler_fn};
use relayctl::model::NewEvent;
use relayctl::store::Repair;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, RuntimeClock, Worker, options, subscription, until};

const HOUR: Duration = Duration::from_secs(3_600);

fn scene() -> (Arc<FaultyStore>, Bench) {
    let store = Arc::new(FaultyStore::default());
    (store.clone(), Bench::with(store))
}

fn succeeding() -> impl Handler {
    handler_fn(|_| async { Outcome::Succeeded })
}

/// A worker for `mail` that looks by itself every hour at most.
fn start(bench: &Bench, work: impl Handler + 'static, poll_interval: Duration) -> Worker {
    let options = DispatchOptions { poll_interval, stop_when: StopWhen::Never, ..options() };
    bench.start_with(vec![subscription("mail", work).concurrency(2).timeout(HOUR)], options)
}

/// Waits until the worker listens and has looked once more.
async fn rest(store: &FaultyStore) {
    until(async || store.listeners() == 1).await;
    sleep(Duration::from_millis(100)).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_would_sleep_for_an_hour_starts_a_new_delivery_at_once() {
    let (store, bench) = scene();
    let mut worker = start(&bench, succeeding(), HOUR);
    for _ in 0..3 {
        rest(&store).await;
        let before = Instant::now();
        bench.publish_many("mail", 1).await;
        worker.next_finished().await;
        assert_eq!(before.elapsed(), Duration::ZERO);
    }
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_requeue_wakes_as_well() {
    let (store, bench) = scene();
    let id = bench.publish(NewEvent::new("t", json!(1)).handler("mail")).await;
    let bury = Repair::Bury { reason: "wrong customer".into() };
    let _ = bench.store.repair(&id, &bury, crate::support::START).await.unwrap();
    let mut worker = start(&bench, succeeding(), HOUR);
    rest(&store).await;
    let before = Instant::now();
    let requeue = Repair::Requeue { available_at: crate::support::START };
    let _ = bench.store.repair(&id, &requeue, crate::support::START).await.unwrap();
    worker.next_finished().await;
    assert_eq!(before.elapsed(), Duration::ZERO);
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_that_comes_before_it_listens_is_lost() {
    let (store, bench) = scene();
    *store.listening_takes.lock().unwrap() = Duration::from_millis(20);
    let mut worker = start(&bench, succeeding(), HOUR);
    until(async || store.listeners() == 1).await;
    // Behind the first look, which saw nothing, and before anything is heard. The next look would be after 50 ms.
    bench.publish_many("mail", 1).await;
    let before = Instant::now();
    worker.next_finished().await;
    assert!(before.elapsed() <= Duration::from_millis(20), "{:?}", before.elapsed());
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn it_listens_only_while_it_has_nothing_to_do() {
    let (store, bench) = scene();
    let gate = Arc::new(Semaphore::new(0));
    let handler = handler_fn({
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                Outcome::Succeeded
            }
        }
    });
    let mut worker = start(&bench, handler, HOUR);
    rest(&store).await;
    bench.publish_many("mail", 1).await;
    until(async || bench.store.statistics().await.unwrap().processing == 1).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!((store.listeners(), store.listened.load(Ordering::SeqCst)), (0, 1));
    gate.add_permits(1);
    worker.next_finished().await;
    rest(&store).await;
    worker.signals.drain.cancel();
    worker.end().await.unwrap();
    assert_eq!(store.listeners(), 0);
}

/// Time passes without a wake-up.
#[tokio::test(start_paused = true)]
async fn a_retry_is_looked_for_when_it_is_due() {
    let (store, bench) = scene();
    let failing = handler_fn(|_| async { Outcome::failed("not yet") });
    let options = DispatchOptions { poll_interval: HOUR, ..options() };
    let clock = Arc::new(RuntimeClock::new());
    let mut worker = bench.start_by(clock, vec![subscription("mail", failing)], options);
    rest(&store).await;
    bench.publish_many("mail", 1).await;
    worker.next_finished().await;
    let before = Instant::now();
    worker.next_finished().await;
    // Its back-off, to the precision of a timer.
    let waited = before.elapsed().as_millis();
    assert!((10_000..10_010).contains(&waited), "{waited}");
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_ends_when_nothing_is_due_does_not_listen() {
    let (store, bench) = scene();
    bench.publish_many("mail", 3).await;
    let (counts, _) = bench.run(vec![subscription("mail", succeeding())], StopWhen::NothingDue).await;
    assert_eq!((counts.completed, store.listened.load(Ordering::SeqCst)), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn wake_ups_for_nothing_do_not_become_a_storm() {
    let (store, bench) = scene();
    let mut worker = start(&bench, succeeding(), Duration::from_secs(1));
    rest(&store).await;
    let looks = || store.claims.lock().unwrap().len();
    let before = looks();
    for _ in 0..10_000 {
        bench.publish_many("somebody else", 1).await;
        sleep(Duration::from_millis(1)).await;
    }
    // Seven that double, and then one a second.
    assert!((10..=20).contains(&(looks() - before)), "{}", looks() - before);
    bench.publish_many("mail", 1).await;
    worker.next_finished().await;
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_one_wake_up() {
    let (store, bench) = scene();
    let mut worker = start(&bench, succeeding(), HOUR);
    rest(&store).await;
    for _ in 0..100 {
        bench.publish_many("mail", 1).await;
    }
    for _ in 0..100 {
        worker.next_finished().await;
    }
    assert_eq!(store.listened.load(Ordering::SeqCst), 1);
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_told_once_and_the_worker_polls_until_it_is_woken_again() {
    let (store, bench) = scene();
    let reason = |event| match event {
        DispatchEvent::WakeUpsLost { error } => Some(error.to_string()),
        _ => None,
    };
    let mut worker = start(&bench, succeeding(), Duration::from_secs(1));
    rest(&store).await;
    store.wake_ups_fail.store(true, Ordering::SeqCst);
    bench.publish_many("somebody else", 1).await;
    assert_eq!(worker.next(reason).await, "the history is lost");
    // It looks by itself.
    let before = Instant::now();
    bench.publish_many("mail", 1).await;
    worker.next_finished().await;
    assert!(before.elapsed() <= Duration::from_secs(1), "{:?}", before.elapsed());
    assert_eq!(store.listened.load(Ordering::SeqCst), 1);
    // It tries again, less and less often, without a word.
    sleep(Duration::from_secs(100)).await;
    assert_eq!(store.listened.load(Ordering::SeqCst), 3);
    while let Ok(event) = worker.events.try_recv() {
        assert!(!matches!(event, DispatchEvent::WakeUpsLost { .. }));
    }
    store.wake_ups_fail.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(100)).await;
    rest(&store).await;
    let before = Instant::now();
    bench.publish_many("mail", 1).await;
    worker.next_finished().await;
    assert_eq!(before.elapsed(), Duration::ZERO);
    // The next loss is news.
    rest(&store).await;
    store.wake_ups_fail.store(true, Ordering::SeqCst);
    bench.publish_many("somebody else", 1).await;
    assert_eq!(worker.next(reason).await, "the history is lost");
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_ends_when_nothing_is_unfinished_is_woken_as_well() {
    let (store, bench) = scene();
    let delayed = NewEvent::new("t", json!(1)).handler("mail");
    let far = crate::support::START.saturating_add(HOUR);
    let id = bench.publish(NewEvent { available_at: Some(far), ..delayed }).await;
    let options =
        DispatchOptions { poll_interval: HOUR, stop_when: StopWhen::NothingUnfinished, ..options() };
    let worker = bench.start_with(vec![subscription("mail", succeeding())], options);
    rest(&store).await;
    let bury = Repair::Bury { reason: "wrong customer".into() };
    let _ = bench.store.repair(&id, &bury, crate::support::START).await.unwrap();
    let before = Instant::now();
    assert_eq!(worker.end().await.unwrap().completed, 0);
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}
