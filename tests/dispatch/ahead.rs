//! What is claimed ahead: enough for quick handlers, nothing for slow ones, and never to the harm of others.
//!
//! Time stands still here and moves on only when nothing else can. A claim takes ten milliseconds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use relayctl::dispatch::{DispatchEvent, DispatchOptions, StopWhen, Subscription};
use relayctl::handler::{Handler, Outcome, handler_fn};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, RuntimeClock, options, subscription, until};

const MILLI: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);
const CLAIM: Duration = Duration::from_millis(10);

fn scene() -> (Arc<FaultyStore>, Bench) {
    let store = Arc::new(FaultyStore::default());
    *store.claim_takes.lock().unwrap() = CLAIM;
    (store.clone(), Bench::with(store))
}

/// A handler that takes so long.
fn taking(time: Duration) -> impl Handler {
    handler_fn(move |_| async move {
        sleep(time).await;
        Outcome::Succeeded
    })
}

/// A handler that takes a millisecond for the first `quick` deliveries, and from then on as long as the gate is closed.
/// Counts its starts.
fn turning_slow(quick: usize, gate: &Arc<Semaphore>) -> (impl Handler + use<>, Arc<AtomicUsize>) {
    let (gate, starts) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
    let count = starts.clone();
    let handler = handler_fn(move |_| {
        let (gate, number) = (gate.clone(), count.fetch_add(1, Ordering::SeqCst));
        async move {
            match number < quick {
                true => sleep(MILLI).await,
                false => drop(gate.acquire().await.unwrap()),
            }
            Outcome::Succeeded
        }
    });
    (handler, starts)
}

fn limits(store: &FaultyStore) -> Vec<usize> {
    store.claims.lock().unwrap().iter().map(|(_, limit)| *limit).collect()
}

#[tokio::test(start_paused = true)]
async fn a_quick_handler_does_not_wait_for_claims() {
    let (store, bench) = scene();
    bench.publish_many("mail", 2_000).await;
    let began = Instant::now();
    let subscription = subscription("mail", taking(MILLI)).concurrency(2);
    let (counts, _) = bench.run(vec![subscription], StopWhen::Deliveries(2_000)).await;
    assert_eq!((counts.completed, counts.released), (2_000, 0));
    // Two thousand starts a second are what two slots can do; a claim for each pair would take eleven seconds.
    assert!(began.elapsed() < Duration::from_millis(1_200), "{:?}", began.elapsed());
    // At most twice what starts during a claim is there ahead, and half of it is claimed at a time.
    let largest = limits(&store).into_iter().max().unwrap();
    assert!((10..=25).contains(&largest), "{largest}");
}

/// Recording takes longer than handling, and needs no slot.
#[tokio::test(start_paused = true)]
async fn a_slot_is_free_before_its_outcome_is_recorded() {
    let (store, bench) = scene();
    *store.settling_takes.lock().unwrap() = Duration::from_millis(50);
    bench.publish_many("mail", 500).await;
    let began = Instant::now();
    let (counts, _) = bench.run(vec![subscription("mail", taking(MILLI))], StopWhen::Deliveries(500)).await;
    assert_eq!((counts.completed, counts.released), (500, 0));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn slow_deliveries_are_claimed_one_by_one_and_run_once() {
    let (store, bench) = scene();
    bench.publish_many("mail", 50).await;
    let runs = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    let handler = handler_fn({
        let runs = runs.clone();
        move |envelope| {
            *runs.lock().unwrap().entry(envelope.delivery_id.to_string()).or_default() += 1;
            async {
                sleep(Duration::from_secs(2)).await;
                Outcome::Succeeded
            }
        }
    });
    let subscription = subscription("mail", handler).lease(Duration::from_secs(10));
    let options = DispatchOptions { stop_when: StopWhen::NothingDue, ..options() };
    let worker = bench.start_by(Arc::new(RuntimeClock::new()), vec![subscription], options);
    // Longer than a test waits for a worker otherwise.
    sleep(Duration::from_secs(110)).await;
    let counts = worker.end().await.unwrap();
    assert_eq!((counts.claimed, counts.completed), (50, 50));
    assert!(limits(&store).iter().all(|limit| *limit == 1));
    let runs = runs.lock().unwrap();
    assert!(runs.len() == 50 && runs.values().all(|runs| *runs == 1), "{runs:?}");
}

#[tokio::test(start_paused = true)]
async fn no_worker_hoards() {
    let (_, bench) = scene();
    bench.publish_many("mail", 100).await;
    let work = || subscription("mail", taking(50 * MILLI)).concurrency(4);
    let workers: Vec<_> = (0..4).map(|_| bench.start(vec![work()], StopWhen::NothingDue)).collect();
    let mut shares = Vec::new();
    for worker in workers {
        shares.push(worker.end().await.unwrap().completed);
    }
    assert_eq!(shares.iter().sum::<u64>(), 100);
    assert!(shares.iter().all(|share| *share >= 15), "{shares:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_with_a_backlog_does_not_hold_back_a_quick_one() {
    let (_, bench) = scene();
    bench.publish_many("slow", 500).await;
    bench.publish_many("quick", 1_000).await;
    let subscriptions = vec![
        subscription("slow", taking(Duration::from_secs(5))).concurrency(2),
        subscription("quick", taking(MILLI)).concurrency(2),
    ];
    let began = Instant::now();
    let mut worker = bench.start(subscriptions, StopWhen::Never);
    for _ in 0..1_000 {
        assert_eq!(worker.next_finished().await.handler, "quick");
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_the_worker_holds_for_what_runs() {
    let (_, bench) = scene();
    let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = || {
        let (now, peak) = (now.clone(), peak.clone());
        handler_fn(move |_| {
            let (now, peak) = (now.clone(), peak.clone());
            async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(MILLI).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Outcome::Succeeded
            }
        })
    };
    let names = ["a", "b", "c"];
    for name in names {
        bench.publish_many(name, 300).await;
    }
    let subscriptions = names.map(|name| subscription(name, handler()).concurrency(4));
    let options = DispatchOptions { concurrency: Some(5), stop_when: StopWhen::NothingDue, ..options() };
    let counts = bench.start_with(subscriptions.into(), options).end().await.unwrap();
    assert_eq!((counts.completed, counts.released), (900, 0));
    assert_eq!(peak.load(Ordering::SeqCst), 5);
}

#[tokio::test(start_paused = true)]
async fn what_waits_behind_a_handler_that_turned_slow_is_handed_back_for_others() {
    let (store, bench) = scene();
    bench.publish_many("mail", 600).await;
    let gate = Arc::new(Semaphore::new(0));
    let (handler, starts) = turning_slow(300, &gate);
    let subscription_of = |handler| subscription("mail", handler).concurrency(2).timeout(HOUR);
    let mut worker = bench.start(vec![subscription_of(handler)], StopWhen::Never);
    until(async || starts.load(Ordering::SeqCst) == 302).await;
    let before = bench.store.statistics().await.unwrap().processing;
    assert!(before > 5, "{before} are leased, and nothing waits");
    let stuck_at = Instant::now();
    let handed_back = |event| match event {
        DispatchEvent::HandedBack { count, .. } => Some(count as u64),
        _ => None,
    };
    let count = worker.next(handed_back).await;
    assert!(stuck_at.elapsed() <= Duration::from_secs(1), "{:?}", stuck_at.elapsed());
    let after = bench.store.statistics().await.unwrap();
    assert_eq!((after.processing, after.completed, after.pending), (2, 300, 298));
    // It does not ask for more while its slots are taken.
    let claims = limits(&store).len();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(limits(&store).len(), claims);
    let (counts, finished) = bench.run(vec![subscription("mail", taking(MILLI))], StopWhen::NothingDue).await;
    assert_eq!(counts.completed, 298);
    assert!(finished.iter().all(|one| one.attempt == 1));
    gate.add_permits(2);
    let counts = worker.drain().await;
    assert_eq!((counts.completed, counts.released), (302, count));
}

/// One that is quick and slow in turns claims ahead again only once it is quick again.
#[tokio::test(start_paused = true)]
async fn what_was_handed_back_does_not_come_back_at_once() {
    let (store, bench) = scene();
    bench.publish_many("mail", 400).await;
    let gate = Arc::new(Semaphore::new(0));
    let (handler, starts) = turning_slow(300, &gate);
    let mut worker = bench.start(vec![slot_of(handler)], StopWhen::Never);
    worker.next(|event| matches!(event, DispatchEvent::HandedBack { .. }).then_some(())).await;
    let (claims, started) = (limits(&store).len(), starts.load(Ordering::SeqCst));
    for _ in 0..10 {
        gate.add_permits(1);
        sleep(Duration::from_secs(1)).await;
        gate.forget_permits(1);
    }
    let later = limits(&store).split_off(claims);
    assert!(later.len() <= 20 * (starts.load(Ordering::SeqCst) - started), "{later:?}");
    assert_eq!(later[0], 1);
    gate.add_permits(1_000);
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_deliveries_is_met_exactly_by_claims_ahead() {
    let (_, bench) = scene();
    bench.publish_many("mail", 1_000).await;
    let subscription = subscription("mail", taking(MILLI)).concurrency(4);
    let (counts, finished) = bench.run(vec![subscription], StopWhen::Deliveries(237)).await;
    assert_eq!((counts.claimed, counts.completed, finished.len()), (237, 237, 237));
    assert_eq!(bench.store.statistics().await.unwrap().pending, 763);
}

#[tokio::test(start_paused = true)]
async fn a_drain_hands_back_what_waits_at_once_and_spends_no_attempt() {
    for stops in [false, true] {
        let (_, bench) = scene();
        bench.publish_many("mail", 600).await;
        let gate = Arc::new(Semaphore::new(0));
        let (handler, starts) = turning_slow(300, &gate);
        let worker = bench.start(vec![slot_of(handler)], StopWhen::Never);
        until(async || starts.load(Ordering::SeqCst) == 301).await;
        assert!(bench.store.statistics().await.unwrap().processing > 5);
        let before = Instant::now();
        worker.signals.drain.cancel();
        if stops {
            worker.signals.stop.cancel();
        }
        until(async || bench.store.statistics().await.unwrap().pending >= 299).await;
        assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
        gate.add_permits(1);
        let counts = worker.end().await.unwrap();
        assert!(counts.released > 5 && counts.completed >= 300, "{counts:?}");
        assert_eq!(counts.claimed, counts.completed + counts.released);
        assert!(
            bench.deliveries().await.iter().all(|one| one.attempts == u32::from(!one.status.is_unfinished()))
        );
    }
}

fn slot_of(handler: impl Handler + 'static) -> Subscription {
    subscription("mail", handler).timeout(HOUR).kill_after(MILLI)
}

#[tokio::test(start_paused = true)]
async fn nothing_that_waits_is_started_while_outcomes_cannot_be_recorded() {
    let (store, bench) = scene();
    bench.publish_many("mail", 1_000).await;
    let (handler, starts) = turning_slow(usize::MAX, &Arc::new(Semaphore::new(0)));
    let mut worker =
        bench.start(vec![subscription("mail", handler).concurrency(2)], StopWhen::Deliveries(1_000));
    until(async || starts.load(Ordering::SeqCst) >= 300).await;
    store.settling_fails.store(true, Ordering::SeqCst);
    store.claims_fail.store(true, Ordering::SeqCst);
    worker.next(|event| matches!(event, DispatchEvent::StoreFailing { .. }).then_some(())).await;
    let before = starts.load(Ordering::SeqCst);
    sleep(Duration::from_secs(5)).await;
    // A claim that was under way still gets its answer.
    assert!(starts.load(Ordering::SeqCst) <= before + 10, "{before} {}", starts.load(Ordering::SeqCst));
    store.settling_fails.store(false, Ordering::SeqCst);
    store.claims_fail.store(false, Ordering::SeqCst);
    let counts = worker.end().await.unwrap();
    assert_eq!((counts.completed, counts.lease_lost), (1_000, 0));
    assert_eq!(starts.load(Ordering::SeqCst), 1_000);
}
