//! How many run at once, and who waits for whom.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use relayctl::dispatch::{DispatchEvent, DispatchOptions, StopWhen};
use relayctl::handler::{Handler, Outcome, handler_fn};
use relayctl::model::NewEvent;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, options, subscription, until};

/// Counts how many run at once, for each handler and in all.
#[derive(Clone, Default)]
struct Gauge(Arc<Mutex<HashMap<String, (usize, usize)>>>);

impl Gauge {
    fn change(&self, name: &str, by: isize) {
        let mut gauges = self.0.lock().unwrap();
        for name in [name, "all"] {
            let (now, peak) = gauges.entry(name.to_owned()).or_default();
            *now = now.checked_add_signed(by).unwrap();
            *peak = (*peak).max(*now);
        }
    }

    fn now(&self, name: &str) -> usize {
        self.0.lock().unwrap().get(name).map_or(0, |gauge| gauge.0)
    }

    fn peak(&self, name: &str) -> usize {
        self.0.lock().unwrap().get(name).map_or(0, |gauge| gauge.1)
    }

    /// A handler that ends when `gate` lets it.
    fn handler(&self, gate: &Arc<Semaphore>) -> impl Handler + use<> {
        let (gauge, gate) = (self.clone(), gate.clone());
        handler_fn(move |envelope| {
            let (gauge, gate) = (gauge.clone(), gate.clone());
            async move {
                gauge.change(&envelope.handler, 1);
                gate.acquire().await.unwrap().forget();
                gauge.change(&envelope.handler, -1);
                Outcome::Succeeded
            }
        })
    }
}

#[tokio::test]
async fn a_handler_never_runs_more_than_its_limit_and_uses_all_of_it() {
    let (bench, gauge, gate) = (Bench::new(), Gauge::default(), Arc::new(Semaphore::new(0)));
    bench.publish_many("mail", 20).await;
    let subscription = subscription("mail", gauge.handler(&gate)).concurrency(3);
    let worker = bench.start(vec![subscription], StopWhen::NothingDue);
    until(async || gauge.now("mail") == 3).await;
    gate.add_permits(20);
    assert_eq!(worker.end().await.unwrap().completed, 20);
    assert_eq!(gauge.peak("mail"), 3);
}

#[tokio::test]
async fn the_whole_worker_has_a_limit() {
    let (bench, gauge, gate) = (Bench::new(), Gauge::default(), Arc::new(Semaphore::new(0)));
    let names = ["a", "b", "c"];
    for name in names {
        bench.publish_many(name, 5).await;
    }
    let subscriptions = names.map(|name| subscription(name, gauge.handler(&gate)).concurrency(4));
    let options = DispatchOptions { concurrency: Some(5), stop_when: StopWhen::NothingDue, ..options() };
    let worker = bench.start_with(subscriptions.into(), options);
    until(async || gauge.now("all") == 5).await;
    gate.add_permits(15);
    assert_eq!(worker.end().await.unwrap().completed, 15);
    assert_eq!(gauge.peak("all"), 5);
}

#[tokio::test]
async fn no_more_is_leased_than_can_start() {
    let store = Arc::new(FaultyStore::default());
    let (bench, gauge, gate) = (Bench::with(store.clone()), Gauge::default(), Arc::new(Semaphore::new(0)));
    bench.publish_many("a", 10).await;
    bench.publish_many("b", 10).await;
    let subscriptions = vec![
        subscription("a", gauge.handler(&gate)).concurrency(2),
        subscription("b", gauge.handler(&gate)).concurrency(4),
    ];
    let worker = bench.start(subscriptions, StopWhen::NothingDue);
    until(async || gauge.now("all") == 6).await;
    assert_eq!(bench.store.statistics().await.unwrap().processing, 6);
    gate.add_permits(20);
    assert_eq!(worker.end().await.unwrap().released, 0);
    assert_eq!((gauge.peak("a"), gauge.peak("b")), (2, 4));
}

#[tokio::test]
async fn a_slow_handler_does_not_hold_back_a_quick_one() {
    let (bench, gauge) = (Bench::new(), Gauge::default());
    let (closed, open) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(1_000)));
    bench.publish_many("slow", 50).await;
    bench.publish_many("quick", 50).await;
    let subscriptions = vec![
        subscription("slow", gauge.handler(&closed)).concurrency(2),
        subscription("quick", gauge.handler(&open)).concurrency(2),
    ];
    let mut worker = bench.start(subscriptions, StopWhen::Never);
    for _ in 0..50 {
        assert_eq!(worker.next_finished().await.handler, "quick");
    }
    assert_eq!(gauge.now("slow"), 2);
    closed.add_permits(2);
    assert_eq!(worker.drain().await.completed, 52);
}

#[tokio::test]
async fn deliveries_of_a_key_run_one_at_a_time_in_order() {
    let (bench, order) = (Bench::new(), Arc::new(Mutex::new(HashMap::<String, Vec<i64>>::new())));
    let gauge = Gauge::default();
    for i in 0..60 {
        let event = NewEvent::new("t", json!(i)).key(format!("key-{}", i % 3)).handler("mail");
        bench.publish(event).await;
    }
    let handler = handler_fn({
        let (order, gauge) = (order.clone(), gauge.clone());
        move |envelope| {
            let (order, gauge) = (order.clone(), gauge.clone());
            async move {
                let key = envelope.key.unwrap();
                gauge.change(&key, 1);
                order.lock().unwrap().entry(key.clone()).or_default().push(envelope.sequence.unwrap());
                tokio::task::yield_now().await;
                gauge.change(&key, -1);
                Outcome::Succeeded
            }
        }
    });
    let subscription = subscription("mail", handler).concurrency(8);
    let (counts, _) = bench.run(vec![subscription], StopWhen::NothingDue).await;
    assert_eq!(counts.completed, 60);
    for key in ["key-0", "key-1", "key-2"] {
        assert_eq!(gauge.peak(key), 1);
        assert_eq!(order.lock().unwrap()[key], (1..=20).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn it_claims_for_its_own_handlers_only() {
    let store = Arc::new(FaultyStore::default());
    let (bench, gauge, gate) = (Bench::with(store.clone()), Gauge::default(), Arc::new(Semaphore::new(9)));
    bench.publish_many("mail", 2).await;
    bench.publish_many("other", 2).await;
    let (counts, _) = bench.run(vec![subscription("mail", gauge.handler(&gate))], StopWhen::NothingDue).await;
    assert_eq!(counts.claimed, 2);
    assert!(store.claims.lock().unwrap().iter().all(|(handlers, _)| handlers == &["mail"]));
    assert_eq!(bench.store.statistics().await.unwrap().pending, 2);
}

#[tokio::test]
async fn idle_handlers_share_one_look() {
    let store = Arc::new(FaultyStore::default());
    let (bench, gauge, gate) = (Bench::with(store.clone()), Gauge::default(), Arc::new(Semaphore::new(0)));
    let names: Vec<_> = (0..20).map(|i| format!("handler-{i}")).collect();
    let subscriptions = names.iter().map(|name| subscription(name, gauge.handler(&gate)).concurrency(2));
    let worker = bench.start(subscriptions.collect(), StopWhen::NothingDue);
    worker.end().await.unwrap();
    assert_eq!(*store.claims.lock().unwrap(), [(names, 2)]);
}

/// Time stands still here: it moves on only when nothing else can, so that a pause ends when the worker is at rest.
#[tokio::test(start_paused = true)]
async fn nothing_new_is_taken_on_while_nobody_reads_the_events() {
    let (bench, gauge, gate) = (Bench::new(), Gauge::default(), Arc::new(Semaphore::new(100_000)));
    bench.publish_many("mail", 4_000).await;
    let subscription = subscription("mail", gauge.handler(&gate)).concurrency(10);
    let mut worker = bench.start(vec![subscription], StopWhen::NothingDue);
    let mut before = 0;
    // It comes to rest with work left to do.
    until(async || {
        let completed = bench.store.statistics().await.unwrap().completed;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        std::mem::replace(&mut before, completed) == completed && completed > 0
    })
    .await;
    assert!(before < 4_000, "{before}");
    let claimed = |event| matches!(event, DispatchEvent::Claimed { .. }).then_some(());
    worker.next(claimed).await;
    assert_eq!(worker.end().await.unwrap().completed, 4_000);
}
