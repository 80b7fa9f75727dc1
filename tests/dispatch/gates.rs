//! What holds a handler back as a whole: a pause, a circuit breaker, a rate.
//!
//! Time stands still here and moves on only when nothing else can.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use relayctl::clock::Clock as _;
use relayctl::dispatch::{BreakerPolicy, Counts, DispatchEvent, DispatchOptions, StopWhen, Subscription};
use relayctl::handler::{Handler, Outcome, handler_fn};
use relayctl::model::{Failure, FailureKind, Pause, Status};
use relayctl::store::Store;
use tokio::time::{Instant, sleep};

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, RuntimeClock, Worker, options, subscription};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A store that can fail, and a clock that goes with the runtime's time.
struct Scene {
    store: Arc<FaultyStore>,
    bench: Bench,
    clock: Arc<RuntimeClock>,
}

impl Scene {
    fn new() -> Self {
        let store = Arc::new(FaultyStore::default());
        Scene { store: store.clone(), bench: Bench::with(store), clock: Arc::new(RuntimeClock::new()) }
    }

    fn start(&self, subscriptions: Vec<Subscription>, stop_when: StopWhen) -> Worker {
        let options = DispatchOptions { stop_when, ..options() };
        self.bench.start_by(self.clock.clone(), subscriptions, options)
    }

    async fn pause(&self, handler: &str, lasts: Option<Duration>) {
        let now = self.clock.now();
        let pause = Pause {
            handler: handler.into(),
            paused_at: now,
            paused_until: lasts.map(|lasts| now.saturating_add(lasts)),
            reason: None,
            by: "ana@desk".into(),
        };
        self.store.pause(&pause).await.unwrap();
    }

    async fn resume(&self, handler: &str) {
        assert!(self.store.resume(handler, self.clock.now()).await.unwrap().is_some());
    }

    fn claims_of(&self, handler: &str) -> usize {
        let claims = self.store.claims.lock().unwrap();
        claims.iter().filter(|(handlers, _)| handlers.iter().any(|one| one == handler)).count()
    }

    async fn count(&self, status: Status) -> usize {
        self.bench.deliveries().await.iter().filter(|delivery| delivery.status == status).count()
    }

    async fn breakers(&self) -> Vec<(String, String, u32)> {
        let breakers = self.store.tripped_breakers(self.clock.now()).await.unwrap();
        breakers.into_iter().map(|one| (one.handler, one.worker, one.failures)).collect()
    }
}

/// A handler that takes so long, and counts its starts.
fn taking(time: Duration) -> (impl Handler, Arc<AtomicUsize>) {
    let starts = Arc::new(AtomicUsize::new(0));
    let count = starts.clone();
    let handler = handler_fn(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            sleep(time).await;
            Outcome::Succeeded
        }
    });
    (handler, starts)
}

/// A handler that ends so as long as what is behind it is down. Counts its starts.
fn behind_an_outage(outcome: Outcome) -> (impl Handler, Arc<AtomicUsize>, Arc<AtomicBool>) {
    let (starts, is_down) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let (count, down) = (starts.clone(), is_down.clone());
    let handler = handler_fn(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        let outcome = match down.load(Ordering::SeqCst) {
            true => outcome.clone(),
            false => Outcome::Succeeded,
        };
        async move {
            sleep(MILLI).await;
            outcome
        }
    });
    (handler, starts, is_down)
}

fn breaker() -> BreakerPolicy {
    BreakerPolicy { failures: 5, pause: 10 * SECOND, max: 20 * SECOND }
}

/// What the gates of a worker did, in words.
async fn gate_event(worker: &mut Worker) -> String {
    let told = |event| match event {
        DispatchEvent::Paused { pause } => Some(format!("{} paused", pause.handler)),
        DispatchEvent::Resumed { handler } => Some(format!("{handler} resumed")),
        DispatchEvent::PausesUnknown { .. } => Some("unknown".into()),
        DispatchEvent::BreakerOpened { failures, pause, error, .. } => {
            Some(format!("{failures} failures, {} s: {error}", pause.as_secs()))
        }
        DispatchEvent::BreakerHalfOpened { .. } => Some("half-open".into()),
        DispatchEvent::BreakerClosed { after, .. } => Some(format!("closed after {} s", after.as_secs())),
        _ => None,
    };
    worker.next(told).await
}

// ---- pauses --------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_paused_is_never_asked_for_and_others_go_on() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 3).await;
    scene.bench.publish_many("print", 3).await;
    scene.pause("mail", None).await;
    let work = |handler| subscription(handler, taking(MILLI).0);
    let mut worker = scene.start(vec![work("mail"), work("print")], StopWhen::NothingDue);
    assert_eq!(gate_event(&mut worker).await, "mail paused");
    let counts = worker.end().await.unwrap();
    assert_eq!((counts.claimed, counts.completed, scene.claims_of("mail")), (3, 3, 0));
    assert_eq!(scene.count(Status::Pending).await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_obeyed_within_a_second_and_what_waits_is_handed_back() {
    let scene = Scene::new();
    *scene.store.claim_takes.lock().unwrap() = 100 * MILLI;
    scene.bench.publish_many("mail", 5_000).await;
    let (handler, starts) = taking(10 * MILLI);
    let worker = scene.start(vec![subscription("mail", handler).concurrency(4)], StopWhen::Never);
    let mut events = worker.events;
    let reading = tokio::spawn(async move { while events.recv().await.is_some() {} });
    sleep(3 * SECOND).await;
    assert!(starts.load(Ordering::SeqCst) > 500, "it is in full swing");
    scene.pause("mail", None).await;
    sleep(SECOND + 200 * MILLI).await;
    let (started, claims) = (starts.load(Ordering::SeqCst), scene.claims_of("mail"));
    let released: Vec<_> = scene.bench.deliveries().await;
    assert!(released.iter().all(|one| one.status != Status::Processing), "nothing is hoarded");
    assert!(released.iter().filter(|one| one.status == Status::Pending).all(|one| one.attempts == 0));
    sleep(MINUTE).await;
    assert_eq!((starts.load(Ordering::SeqCst), scene.claims_of("mail")), (started, claims));
    scene.resume("mail").await;
    sleep(SECOND + 200 * MILLI).await;
    assert!(starts.load(Ordering::SeqCst) > started);
    worker.signals.drain.cancel();
    reading.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_runs_goes_on() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 2).await;
    let (handler, _) = taking(10 * SECOND);
    let mut worker = scene.start(vec![subscription("mail", handler)], StopWhen::Never);
    worker.next(|event| matches!(event, DispatchEvent::Claimed { .. }).then_some(())).await;
    scene.pause("mail", None).await;
    worker.next_finished().await;
    assert_eq!((scene.count(Status::Completed).await, scene.count(Status::Pending).await), (1, 1));
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_by_itself_to_the_moment() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 1).await;
    scene.pause("mail", Some(5 * SECOND)).await;
    let began = Instant::now();
    let mut worker = scene.start(vec![subscription("mail", taking(MILLI).0)], StopWhen::Never);
    assert_eq!(gate_event(&mut worker).await, "mail paused");
    assert_eq!(gate_event(&mut worker).await, "mail resumed");
    worker.next_finished().await;
    let elapsed = began.elapsed();
    assert!((5 * SECOND..5 * SECOND + 100 * MILLI).contains(&elapsed), "{elapsed:?}");
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn while_the_store_cannot_tell_the_pauses_stay_as_they_were() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 1).await;
    scene.pause("mail", Some(20 * SECOND)).await;
    let began = Instant::now();
    let mut worker = scene.start(vec![subscription("mail", taking(MILLI).0)], StopWhen::Never);
    assert_eq!(gate_event(&mut worker).await, "mail paused");
    scene.store.pauses_fail.store(true, Ordering::SeqCst);
    assert_eq!(gate_event(&mut worker).await, "unknown");
    assert_eq!(gate_event(&mut worker).await, "mail resumed");
    assert!(began.elapsed() >= 20 * SECOND);
    worker.next_finished().await;
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_before_it_is_known_what_is_paused() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 1).await;
    scene.store.pauses_fail.store(true, Ordering::SeqCst);
    let mut worker = scene.start(vec![subscription("mail", taking(MILLI).0)], StopWhen::Never);
    worker.next(|event| matches!(event, DispatchEvent::StoreFailing { .. }).then_some(())).await;
    sleep(MINUTE).await;
    assert_eq!(scene.claims_of("mail"), 0);
    scene.store.pauses_fail.store(false, Ordering::SeqCst);
    worker.next_finished().await;
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_by_itself_does_not_wait_for_ever_to_know_what_is_paused() {
    let scene = Scene::new();
    scene.store.pauses_fail.store(true, Ordering::SeqCst);
    let worker = scene.start(vec![subscription("mail", taking(MILLI).0)], StopWhen::NothingDue);
    assert!(worker.end().await.unwrap_err().to_string().contains("on fire"));
}

#[tokio::test(start_paused = true)]
async fn pauses_are_looked_for_about_once_a_second_and_less_often_while_idle() {
    let scene = Scene::new();
    let reads = || scene.store.pauses_read.swap(0, Ordering::SeqCst);
    let idle = DispatchOptions { poll_interval: 10 * SECOND, ..options() };
    let worker =
        scene.bench.start_by(scene.clock.clone(), vec![subscription("mail", taking(MINUTE).0)], idle);
    sleep(2 * SECOND).await;
    reads();
    sleep(90 * SECOND).await;
    let while_idle = reads();
    assert!((9..=11).contains(&while_idle), "{while_idle}");
    scene.bench.publish_many("mail", 1).await;
    sleep(10 * MILLI).await;
    // One that finds work looks at once.
    assert_eq!(reads(), 1);
    sleep(25 * SECOND).await;
    let while_busy = reads();
    assert!((25..=28).contains(&while_busy), "{while_busy}");
    worker.drain().await;
}

// ---- the circuit breaker -------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn an_outage_behind_a_handler_costs_no_dead_letters() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 40).await;
    let (handler, starts, is_down) = behind_an_outage(Outcome::failed("no route"));
    let work = subscription("mail", handler).breaker(breaker()).max_attempts(3);
    let mut worker = scene.start(vec![work], StopWhen::Never);
    assert_eq!(gate_event(&mut worker).await, "5 failures, 10 s: no route");
    assert_eq!(gate_event(&mut worker).await, "half-open");
    assert_eq!(gate_event(&mut worker).await, "6 failures, 20 s: no route");
    assert_eq!(gate_event(&mut worker).await, "half-open");
    assert_eq!(gate_event(&mut worker).await, "7 failures, 20 s: no route");
    assert_eq!(starts.load(Ordering::SeqCst), 7);
    is_down.store(false, Ordering::SeqCst);
    assert_eq!(gate_event(&mut worker).await, "half-open");
    assert_eq!(gate_event(&mut worker).await, "closed after 50 s");
    sleep(MINUTE).await;
    let Counts { completed, retried, dead, .. } = worker.drain().await;
    assert_eq!((completed, retried, dead), (40, 7, 0));
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_is_seen_from_outside_as_long_as_it_is_true() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 40).await;
    let (handler, _, is_down) = behind_an_outage(Outcome::failed("no route"));
    let work = || BreakerPolicy { pause: 10 * MINUTE, max: 10 * MINUTE, ..breaker() };
    let mut worker = scene.start(vec![subscription("mail", handler).breaker(work())], StopWhen::Never);
    gate_event(&mut worker).await;
    let seen = |failures| vec![("mail".to_owned(), "here:1".to_owned(), failures)];
    sleep(SECOND).await;
    assert_eq!(scene.breakers().await, seen(5));
    // A report is renewed while it is true.
    sleep(9 * MINUTE).await;
    assert_eq!(scene.breakers().await, seen(5));
    is_down.store(false, Ordering::SeqCst);
    sleep(2 * MINUTE).await;
    assert_eq!(scene.breakers().await, []);
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_ends_takes_its_reports_back() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 9).await;
    let (handler, _, _) = behind_an_outage(Outcome::failed("no route"));
    let mut worker = scene.start(vec![subscription("mail", handler).breaker(breaker())], StopWhen::Never);
    gate_event(&mut worker).await;
    sleep(SECOND).await;
    assert_eq!(scene.breakers().await.len(), 1);
    worker.drain().await;
    assert_eq!(scene.breakers().await, []);
}

#[tokio::test(start_paused = true)]
async fn rejections_count_so_that_a_broken_handler_does_not_bury_everything() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 40).await;
    let rejected = Outcome::Rejected(Failure::new(FailureKind::Rejected, "exit status 78"));
    let (handler, _, _) = behind_an_outage(rejected);
    let mut worker = scene.start(vec![subscription("mail", handler).breaker(breaker())], StopWhen::Never);
    assert_eq!(gate_event(&mut worker).await, "5 failures, 10 s: exit status 78");
    sleep(5 * SECOND).await;
    assert_eq!((scene.count(Status::Dead).await, scene.count(Status::Pending).await), (5, 35));
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_breaker_every_delivery_is_tried() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 40).await;
    let (handler, starts, _) = behind_an_outage(Outcome::failed("no route"));
    let work = subscription("mail", handler).breaker(None).max_attempts(1);
    let (counts, _) = scene.bench.run(vec![work], StopWhen::NothingDue).await;
    assert_eq!((counts.dead, starts.load(Ordering::SeqCst)), (40, 40));
}

/// What another worker may have is not waited for: cron comes again.
#[tokio::test(start_paused = true)]
async fn a_run_until_nothing_is_due_ends_with_an_open_breaker() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 40).await;
    let (handler, _, _) = behind_an_outage(Outcome::failed("no route"));
    let worker = scene.start(vec![subscription("mail", handler).breaker(breaker())], StopWhen::NothingDue);
    let began = Instant::now();
    let counts = worker.end().await.unwrap();
    assert_eq!((counts.retried, counts.dead), (5, 0));
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
}

/// Deliveries that are given up unseen say nothing about the handler.
#[tokio::test(start_paused = true)]
async fn what_was_never_handed_to_the_handler_does_not_count() {
    let scene = Scene::new();
    scene.store.events_fail.store(true, Ordering::SeqCst);
    scene.bench.publish_many("mail", 10).await;
    let one = BreakerPolicy { failures: 1, ..breaker() };
    let (handler, starts) = taking(MILLI);
    let mut worker = scene.start(vec![subscription("mail", handler).breaker(one)], StopWhen::Never);
    worker.next_finished().await;
    scene.store.events_fail.store(false, Ordering::SeqCst);
    sleep(20 * SECOND).await;
    assert_eq!(starts.load(Ordering::SeqCst), 10);
    worker.drain().await;
}

// ---- the rate ------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn starts_keep_to_the_rate_and_claims_to_the_starts() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 50).await;
    let work = subscription("mail", taking(MILLI).0).concurrency(8).rate("10/s".parse().unwrap());
    let began = Instant::now();
    let counts = scene.start(vec![work], StopWhen::NothingDue).end().await.unwrap();
    assert_eq!((counts.completed, counts.released), (50, 0));
    // The first one at once, and another every tenth of a second.
    let elapsed = began.elapsed();
    assert!((4_900 * MILLI..5_200 * MILLI).contains(&elapsed), "{elapsed:?}");
    assert!(scene.store.claims.lock().unwrap().iter().all(|(_, limit)| *limit == 1));
}

#[tokio::test(start_paused = true)]
async fn a_high_rate_is_reached_and_a_slow_neighbour_holds_nobody_back() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 2_000).await;
    scene.bench.publish_many("report", 2).await;
    let quick = subscription("mail", taking(MILLI).0).concurrency(4).rate("1000/s".parse().unwrap());
    let slow = subscription("report", taking(MILLI).0).rate("60/m".parse().unwrap());
    let began = Instant::now();
    let counts = scene.start(vec![quick, slow], StopWhen::NothingDue).end().await.unwrap();
    assert_eq!((counts.completed, counts.released), (2_002, 0));
    let elapsed = began.elapsed();
    assert!((1_900 * MILLI..2_300 * MILLI).contains(&elapsed), "{elapsed:?}");
}
