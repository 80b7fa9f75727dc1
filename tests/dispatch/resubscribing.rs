//! Other handlers for a worker that runs: nothing that runs notices, and no lease is dropped.
//!
//! Time stands still here, but for children, and moves on only when nothing else can.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use relayctl::clock::Clock as _;
use relayctl::dispatch::{
    BreakerPolicy, DispatchEvent, DispatchOptions, ResubscribeError, Resubscription, StopWhen, Subscription,
    Verdict,
};
use relayctl::handler::{
    Closing, Command, DeadLetterHandler, Handler, HandlerContext, LinesHandler, Outcome, ShellHandler,
};
use relayctl::model::{Envelope, Failure, NewEvent, Pause, Status};
use relayctl::store::Store;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, Marker, RuntimeClock, Worker, options, soon, subscription, until};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A store that records what is asked, and a clock that goes with the runtime's time.
struct Scene {
    store: Arc<FaultyStore>,
    bench: Bench,
    clock: Arc<RuntimeClock>,
    record: Record,
}

impl Scene {
    fn new() -> Self {
        let store = Arc::new(FaultyStore::default());
        let (bench, clock) = (Bench::with(store.clone()), Arc::new(RuntimeClock::new()));
        Scene { store, bench, clock, record: Record::default() }
    }

    fn start(&self, subscriptions: Vec<Subscription>) -> Worker {
        self.start_until(subscriptions, StopWhen::Never)
    }

    fn start_until(&self, subscriptions: Vec<Subscription>, stop_when: StopWhen) -> Worker {
        let options = DispatchOptions { stop_when, ..options() };
        self.bench.start_by(self.clock.clone(), subscriptions, options)
    }

    /// A handler under a definition that has a name, and takes so long.
    fn work(&self, handler: &str, definition: &'static str, takes: Duration) -> Subscription {
        subscription(handler, self.defined(definition, takes, Outcome::Succeeded))
    }

    fn defined(&self, name: &'static str, takes: Duration, outcome: Outcome) -> Defined {
        Defined { name, takes, outcome, record: self.record.clone() }
    }

    fn claims_of(&self, handler: &str) -> usize {
        let claims = self.store.claims.lock().unwrap();
        claims.iter().filter(|(handlers, _)| handlers.iter().any(|one| one == handler)).count()
    }

    /// How many deliveries of a handler have this status.
    async fn count(&self, handler: &str, status: Status) -> usize {
        let all = self.bench.deliveries().await;
        all.iter().filter(|one| one.handler == handler && one.status == status).count()
    }

    /// Until a handler with four slots is in full swing, and far more of its deliveries are leased than run.
    async fn some_wait(&self, handler: &str) {
        sleep(SECOND).await;
        until(async || self.count(handler, Status::Processing).await > 20).await;
    }

    async fn breakers(&self) -> Vec<String> {
        let breakers = self.store.tripped_breakers(self.clock.now()).await.unwrap();
        breakers.into_iter().map(|one| one.handler).collect()
    }
}

/// What handlers did, by their definitions.
#[derive(Clone, Default)]
struct Record {
    starts: Arc<Mutex<Vec<(&'static str, u64)>>>,
    deaths: Arc<Mutex<Vec<&'static str>>>,
    closed: Arc<Mutex<Vec<(&'static str, Instant)>>>,
}

impl Record {
    fn starts_of(&self, definition: &str) -> usize {
        self.starts.lock().unwrap().iter().filter(|(name, _)| *name == definition).count()
    }

    fn closed(&self) -> Vec<&'static str> {
        self.closed.lock().unwrap().iter().map(|(name, _)| *name).collect()
    }
}

/// Its end takes a tenth of an attempt.
struct Defined {
    name: &'static str,
    takes: Duration,
    outcome: Outcome,
    record: Record,
}

#[async_trait]
impl Handler for Defined {
    async fn handle(&self, envelope: &Envelope, _context: &HandlerContext) -> Outcome {
        let number = envelope.payload["number"].as_u64().unwrap_or_default();
        self.record.starts.lock().unwrap().push((self.name, number));
        sleep(self.takes).await;
        self.outcome.clone()
    }

    async fn close(&self, _closing: &Closing) {
        sleep(self.takes / 10).await;
        self.record.closed.lock().unwrap().push((self.name, Instant::now()));
    }
}

#[async_trait]
impl DeadLetterHandler for Defined {
    async fn dead(&self, _: &Envelope, _: &Failure, _: &HandlerContext) -> Result<(), String> {
        self.record.deaths.lock().unwrap().push(self.name);
        Ok(())
    }
}

impl Worker {
    /// Gives it other handlers.
    async fn gets(&self, kept: &[&str], new: Vec<Subscription>) -> Resubscription {
        self.asks(kept, new).await.unwrap()
    }

    async fn asks(&self, kept: &[&str], new: Vec<Subscription>) -> Result<Resubscription, ResubscribeError> {
        let kept = kept.iter().map(|name| name.to_string()).collect();
        soon(self.handle.resubscribe(kept, new)).await
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

// ---- who is claimed for --------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn new_handlers_get_what_waited_for_them_and_removed_ones_nothing_more() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 2).await;
    scene.bench.publish_many("print", 2).await;
    let mut worker =
        scene.start(vec![scene.work("mail", "mail", MILLI), scene.work("audit", "audit", MILLI)]);
    sleep(SECOND).await;
    assert_eq!((scene.count("mail", Status::Completed).await, scene.claims_of("print")), (2, 0));
    let change = worker.gets(&["audit"], vec![scene.work("print", "print", MILLI)]).await;
    let expected = Resubscription {
        added: names(&["print"]),
        removed: names(&["mail"]),
        changed: vec![],
        unchanged: names(&["audit"]),
    };
    assert_eq!(change, expected);
    let told = |event| match event {
        DispatchEvent::Resubscribed(change) => Some(change),
        _ => None,
    };
    assert_eq!(worker.next(told).await, expected);
    let claims = scene.claims_of("mail");
    scene.bench.publish_many("mail", 2).await;
    sleep(SECOND).await;
    assert_eq!(scene.count("print", Status::Completed).await, 2);
    assert_eq!((scene.count("mail", Status::Pending).await, scene.claims_of("mail")), (2, claims));
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_looks_at_once_for_its_new_handlers() {
    let scene = Scene::new();
    scene.store.wake_ups_fail.store(true, Ordering::SeqCst);
    scene.bench.publish_many("print", 1).await;
    let lazy = DispatchOptions { poll_interval: 60 * MINUTE, ..options() };
    let worker = scene.bench.start_by(scene.clock.clone(), vec![scene.work("mail", "mail", MILLI)], lazy);
    sleep(60 * MINUTE).await;
    worker.gets(&["mail"], vec![scene.work("print", "print", MILLI)]).await;
    sleep(100 * MILLI).await;
    assert_eq!(scene.record.starts_of("print"), 1);
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_is_woken_for_its_new_handlers() {
    let scene = Scene::new();
    let lazy = DispatchOptions { poll_interval: 60 * MINUTE, ..options() };
    let worker = scene.bench.start_by(scene.clock.clone(), vec![scene.work("mail", "mail", MILLI)], lazy);
    sleep(MINUTE).await;
    let listened = scene.store.listened.load(Ordering::SeqCst);
    worker.gets(&["mail"], vec![scene.work("print", "print", MILLI)]).await;
    sleep(100 * MILLI).await;
    assert!(scene.store.listened.load(Ordering::SeqCst) > listened, "it listens for the new handlers too");
    scene.bench.publish_many("print", 1).await;
    sleep(100 * MILLI).await;
    assert_eq!(scene.record.starts_of("print"), 1);
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn handlers_that_stay_are_not_disturbed() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 1).await;
    let worker = scene.start(vec![scene.work("mail", "mail", 20 * SECOND)]);
    sleep(SECOND).await;
    let change = worker.gets(&["mail"], vec![]).await;
    assert!(change.is_empty() && change.unchanged == names(&["mail"]));
    sleep(2 * MINUTE).await;
    assert_eq!((scene.count("mail", Status::Completed).await, scene.record.closed()), (1, vec![]));
    worker.drain().await;
    assert_eq!(scene.record.closed(), ["mail"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_handler_that_is_paused_is_not_claimed_for() {
    let scene = Scene::new();
    scene.bench.publish_many("print", 1).await;
    let now = scene.clock.now();
    let pause =
        Pause { handler: "print".into(), paused_at: now, paused_until: None, reason: None, by: "ana".into() };
    scene.store.pause(&pause).await.unwrap();
    let mut worker = scene.start(vec![scene.work("mail", "mail", MILLI)]);
    sleep(SECOND).await;
    worker.gets(&["mail"], vec![scene.work("print", "print", MILLI)]).await;
    worker.next(|event| matches!(event, DispatchEvent::Paused { .. }).then_some(())).await;
    sleep(MINUTE).await;
    assert_eq!(scene.claims_of("print"), 0);
    scene.store.resume("print", scene.clock.now()).await.unwrap();
    sleep(2 * SECOND).await;
    assert_eq!(scene.record.starts_of("print"), 1);
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_by_itself_works_its_new_handlers_off_too() {
    for stop_when in [StopWhen::NothingDue, StopWhen::NothingUnfinished] {
        let scene = Scene::new();
        scene.bench.publish_many("mail", 1).await;
        scene.bench.publish_many("print", 3).await;
        let worker = scene.start_until(vec![scene.work("mail", "mail", 20 * SECOND)], stop_when);
        sleep(SECOND).await;
        worker.gets(&[], vec![scene.work("print", "print", 20 * SECOND)]).await;
        let counts = worker.end().await.unwrap();
        assert_eq!((counts.claimed, counts.completed), (4, 4), "{stop_when:?}");
        assert_eq!(scene.record.starts_of("print"), 3);
    }
}

/// The store has just been asked whether the old handlers have anything left.
#[tokio::test(start_paused = true)]
async fn what_is_known_of_the_old_handlers_says_nothing_about_the_new_ones() {
    let scene = Scene::new();
    *scene.store.listing_takes.lock().unwrap() = SECOND;
    scene.bench.publish_many("print", 1).await;
    let worker = scene.start_until(vec![scene.work("mail", "mail", MILLI)], StopWhen::NothingUnfinished);
    sleep(SECOND / 2).await;
    worker.gets(&[], vec![scene.work("print", "print", MILLI)]).await;
    assert_eq!(worker.end().await.unwrap().completed, 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_handed_back_does_not_count_as_taken_on() {
    let scene = Scene::new();
    *scene.store.claim_takes.lock().unwrap() = SECOND;
    scene.bench.publish_many("mail", 9).await;
    let worker =
        scene.start_until(vec![scene.work("mail", "first", MILLI).concurrency(4)], StopWhen::Deliveries(5));
    sleep(SECOND / 2).await;
    worker.gets(&[], vec![scene.work("mail", "second", MILLI).lease(2 * MINUTE).concurrency(4)]).await;
    let counts = worker.end().await.unwrap();
    assert_eq!((counts.completed, counts.released), (5, 4));
    assert_eq!((scene.record.starts_of("first"), scene.record.starts_of("second")), (0, 5));

    let scene = Scene::new();
    *scene.store.claim_takes.lock().unwrap() = 100 * MILLI;
    scene.bench.publish_many("mail", 5_000).await;
    let work = |definition| scene.work("mail", definition, 10 * MILLI).concurrency(4);
    let mut worker = scene.start_until(vec![work("first")], StopWhen::Deliveries(1_000));
    let (handle, mut events) = (worker.handle.clone(), worker.events);
    let reading = tokio::spawn(async move { while events.recv().await.is_some() {} });
    (_, worker.events) = tokio::sync::mpsc::channel(1);
    scene.some_wait("mail").await;
    handle.resubscribe(vec![], vec![work("second")]).await.unwrap();
    soon(reading).await.unwrap();
    let counts = worker.end().await.unwrap();
    assert!(counts.completed == 1_000 && counts.released > 10, "{counts:?}");
}

// ---- what runs -----------------------------------------------------------------------------------------------------

/// Its time-out, its limit of attempts, its lease, and who is told of its death.
#[tokio::test(start_paused = true)]
async fn what_runs_ends_under_the_definition_that_it_began_with() {
    for removed in [false, true] {
        let scene = Scene::new();
        let id = scene.bench.publish(NewEvent::new("t", json!({})).handler("mail")).await;
        let failing = scene.defined("first", 20 * SECOND, Outcome::failed("no route"));
        let first = subscription("mail", failing).lease(6 * SECOND).max_attempts(1).on_dead(scene.defined(
            "first",
            MILLI,
            Outcome::Succeeded,
        ));
        let mut worker = scene.start(vec![first, scene.work("print", "print", MILLI)]);
        sleep(SECOND).await;
        assert_eq!(scene.record.starts_of("first"), 1);
        let second = scene
            .work("mail", "second", MILLI)
            .timeout(MILLI)
            .lease(2 * MINUTE)
            .max_attempts(9)
            .on_dead(scene.defined("second", MILLI, Outcome::Succeeded));
        let new = if removed { vec![] } else { vec![second] };
        worker.gets(&["print"], new).await;
        let finished = worker.next_finished().await;
        assert!(matches!(finished.verdict, Verdict::Dead { .. }), "{finished:?}");
        assert!(scene.store.renewals.load(Ordering::SeqCst) >= 6, "its lease was renewed all the time");
        assert_eq!(scene.bench.get(&id).await.errors[0].message, "no route");
        worker.drain().await;
        assert_eq!(*scene.record.deaths.lock().unwrap(), ["first"], "removed: {removed}");
    }
}

#[tokio::test(start_paused = true)]
async fn fewer_slots_mean_that_nothing_starts_until_what_runs_fits() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 8).await;
    let worker = scene.start(vec![scene.work("mail", "first", 10 * SECOND).concurrency(4)]);
    sleep(SECOND).await;
    worker.gets(&[], vec![scene.work("mail", "second", 10 * SECOND).concurrency(2)]).await;
    sleep(8 * SECOND).await;
    assert_eq!((scene.record.starts_of("first"), scene.record.starts_of("second")), (4, 0));
    sleep(2 * SECOND).await;
    assert_eq!((scene.count("mail", Status::Completed).await, scene.record.starts_of("second")), (4, 2));
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn what_still_runs_of_a_removed_handler_takes_slots_when_it_comes_back() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 8).await;
    let worker = scene.start(vec![
        scene.work("mail", "first", 10 * SECOND).concurrency(3),
        scene.work("print", "print", MILLI),
    ]);
    sleep(SECOND).await;
    assert_eq!(worker.gets(&["print"], vec![]).await.removed, names(&["mail"]));
    sleep(SECOND).await;
    let back = scene.work("mail", "second", 10 * SECOND).concurrency(4);
    assert_eq!(worker.gets(&["print"], vec![back]).await.added, names(&["mail"]));
    sleep(SECOND).await;
    assert_eq!((scene.record.starts_of("first"), scene.record.starts_of("second")), (3, 1));
    sleep(8 * SECOND).await;
    assert_eq!(scene.record.starts_of("second"), 4);
    worker.drain().await;
}

/// Without a limit for the whole worker.
#[tokio::test(start_paused = true)]
async fn what_still_runs_of_a_removed_handler_holds_no_other_back() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 4).await;
    scene.bench.publish_many("print", 1).await;
    let worker = scene.start(vec![scene.work("mail", "mail", 10 * SECOND).concurrency(4)]);
    sleep(SECOND).await;
    worker.gets(&[], vec![scene.work("print", "print", MILLI)]).await;
    sleep(SECOND).await;
    assert_eq!(scene.count("print", Status::Completed).await, 1);
    assert_eq!(worker.drain().await.completed, 5);
}

// ---- what was claimed ahead ----------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_handler_that_is_changed_or_removed_is_handed_back() {
    for removed in [false, true] {
        let scene = Scene::new();
        *scene.store.claim_takes.lock().unwrap() = 100 * MILLI;
        scene.bench.publish_many("mail", 5_000).await;
        let mut worker = scene.start(vec![
            scene.work("mail", "first", 10 * MILLI).concurrency(4),
            scene.work("print", "print", MILLI),
        ]);
        let (mut events, (tell, mut told)) = (worker.events, tokio::sync::mpsc::unbounded_channel());
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                if let DispatchEvent::HandedBack { count, .. } = event {
                    tell.send(count).unwrap();
                }
            }
        });
        (_, worker.events) = tokio::sync::mpsc::channel(1);
        scene.some_wait("mail").await;
        let hour = scene.work("mail", "second", 60 * MINUTE).timeout(120 * MINUTE);
        worker.gets(&["print"], if removed { vec![] } else { vec![hour] }).await;
        let count = soon(told.recv()).await.unwrap();
        assert!(count > 10, "{count} waited");
        // What a claim under way brought has waited in vain by then, too.
        sleep(2 * SECOND).await;
        let running = scene.count("mail", Status::Processing).await;
        assert_eq!(running, usize::from(!removed), "nothing is hoarded");
        let all = scene.bench.deliveries().await;
        assert!(all.iter().filter(|one| one.status == Status::Pending).all(|one| one.attempts == 0));
        assert!(all.iter().filter(|one| one.status == Status::Completed).all(|one| one.attempts == 1));
        worker.signals.stop.cancel();
    }
}

/// Leases of another length would be renewed too late.
#[tokio::test(start_paused = true)]
async fn a_claim_under_way_is_good_for_the_new_definition_if_its_leases_are_as_long() {
    for (lease, released) in [(MINUTE, 0), (2 * MINUTE, 1)] {
        let scene = Scene::new();
        *scene.store.claim_takes.lock().unwrap() = SECOND;
        let id = scene.bench.publish(NewEvent::new("t", json!({})).handler("mail")).await;
        let worker = scene.start(vec![scene.work("mail", "first", 20 * SECOND)]);
        sleep(SECOND / 2).await;
        worker.gets(&[], vec![scene.work("mail", "second", 20 * SECOND).lease(lease)]).await;
        sleep(5 * SECOND).await;
        assert_eq!((scene.record.starts_of("first"), scene.record.starts_of("second")), (0, 1));
        let delivery = scene.bench.get(&id).await;
        assert_eq!((delivery.status, delivery.attempts), (Status::Processing, 1));
        let left = delivery.lease_expires_at.unwrap().since(scene.clock.now());
        assert!(lease - 10 * SECOND < left && left <= lease, "{left:?} of {lease:?}");
        let counts = worker.drain().await;
        assert_eq!((counts.completed, counts.released, counts.lease_lost), (1, released, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_claim_under_way_brings_for_a_removed_handler_is_handed_back() {
    let scene = Scene::new();
    *scene.store.claim_takes.lock().unwrap() = SECOND;
    scene.bench.publish_many("mail", 1).await;
    let worker = scene.start(vec![scene.work("mail", "mail", MILLI)]);
    sleep(SECOND / 2).await;
    worker.gets(&[], vec![scene.work("print", "print", MILLI)]).await;
    sleep(5 * SECOND).await;
    let [delivery] = scene.bench.deliveries().await.try_into().unwrap();
    assert_eq!((delivery.status, delivery.attempts, delivery.lease_owner), (Status::Pending, 0, None));
    let counts = worker.drain().await;
    assert_eq!((counts.claimed, counts.released, scene.record.starts_of("mail")), (1, 1, 0));
}

// ---- what is kept of a handler --------------------------------------------------------------------------------------

fn breaker() -> BreakerPolicy {
    BreakerPolicy { failures: 3, pause: 10 * MINUTE, max: 20 * MINUTE }
}

async fn breaker_event(worker: &mut Worker) -> String {
    let told = |event| match event {
        DispatchEvent::BreakerOpened { handler, failures, pause, .. } => {
            Some(format!("{handler}: {failures} failures, {} s", pause.as_secs()))
        }
        DispatchEvent::BreakerHalfOpened { handler } => Some(format!("{handler}: half-open")),
        DispatchEvent::BreakerClosed { handler, .. } => Some(format!("{handler}: closed")),
        _ => None,
    };
    worker.next(told).await
}

/// A worker whose handler `mail` has its breaker open.
async fn with_open_breaker(scene: &Scene) -> Worker {
    scene.bench.publish_many("mail", 40).await;
    let failing = scene.defined("first", MILLI, Outcome::failed("no route"));
    let mut worker = scene.start(vec![subscription("mail", failing).breaker(breaker())]);
    assert_eq!(breaker_event(&mut worker).await, "mail: 3 failures, 600 s");
    sleep(SECOND).await;
    assert_eq!(scene.breakers().await, ["mail"]);
    worker
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_stays_keeps_its_breaker_and_a_changed_one_may_try_at_once() {
    let scene = Scene::new();
    let mut worker = with_open_breaker(&scene).await;
    worker.gets(&["mail"], vec![scene.work("print", "print", MILLI)]).await;
    sleep(5 * MINUTE).await;
    assert_eq!(scene.record.starts_of("first"), 3);
    let failing = scene.defined("second", MILLI, Outcome::failed("no route"));
    worker.gets(&["print"], vec![subscription("mail", failing).breaker(breaker())]).await;
    assert_eq!(breaker_event(&mut worker).await, "mail: half-open");
    assert_eq!(breaker_event(&mut worker).await, "mail: 4 failures, 600 s");
    assert_eq!(scene.record.starts_of("second"), 1);
    worker.gets(&["print"], vec![scene.work("mail", "third", MILLI).breaker(breaker())]).await;
    assert_eq!(breaker_event(&mut worker).await, "mail: half-open");
    assert_eq!(breaker_event(&mut worker).await, "mail: closed");
    sleep(MINUTE).await;
    assert_eq!((scene.count("mail", Status::Completed).await, scene.breakers().await), (40, vec![]));
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_hears_of_a_breaker_that_is_not_there_any_more() {
    for new in ["without", "other"] {
        let scene = Scene::new();
        let mut worker = with_open_breaker(&scene).await;
        let new = match new {
            "without" => scene.work("mail", "second", MILLI).breaker(None),
            // It takes the place of the first one.
            _ => scene.work("print", "second", MILLI),
        };
        worker.gets(&[], vec![new]).await;
        assert_eq!(breaker_event(&mut worker).await, "mail: closed");
        sleep(SECOND).await;
        assert_eq!(scene.breakers().await, Vec::<String>::new());
        worker.drain().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_began_under_another_definition_says_nothing_about_this_one() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 8).await;
    let failing = scene.defined("first", 10 * SECOND, Outcome::failed("no route"));
    let one = BreakerPolicy { failures: 1, ..breaker() };
    let work = subscription("mail", failing).concurrency(4).breaker(one);
    let worker = scene.start(vec![work]);
    sleep(SECOND).await;
    worker.gets(&[], vec![scene.work("mail", "second", SECOND).concurrency(4).breaker(one)]).await;
    sleep(MINUTE).await;
    let counts = worker.drain().await;
    assert_eq!((counts.retried, counts.completed), (4, 8), "its breaker never opened");
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_kept_to_across_changes() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 9).await;
    let limited = |definition, concurrency| {
        scene.work("mail", definition, MILLI).concurrency(concurrency).rate("1/m".parse().unwrap())
    };
    let worker = scene.start(vec![limited("first", 1)]);
    sleep(SECOND).await;
    for concurrency in 2..40 {
        worker.gets(&[], vec![limited("second", concurrency)]).await;
        sleep(SECOND).await;
    }
    assert_eq!((scene.record.starts_of("first"), scene.record.starts_of("second")), (1, 0));
    sleep(MINUTE).await;
    assert_eq!(scene.record.starts_of("second"), 1);
    worker.drain().await;
}

// ---- what outlives attempts ----------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn a_former_handler_is_closed_when_nothing_runs_there_any_more() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 2).await;
    let worker = scene.start(vec![
        scene.work("mail", "mail 1", 10 * SECOND).concurrency(2),
        scene.work("idle", "idle", MILLI),
        scene.work("print", "print", MILLI),
    ]);
    let began = Instant::now();
    sleep(SECOND).await;
    worker.gets(&["print"], vec![scene.work("mail", "mail 2", MILLI)]).await;
    sleep(8 * SECOND).await;
    assert_eq!(scene.record.closed(), ["idle"]);
    sleep(3 * SECOND).await;
    assert_eq!(scene.record.closed(), ["idle", "mail 1"]);
    let at = scene.record.closed.lock().unwrap()[1].1 - began;
    assert!((11 * SECOND..12 * SECOND).contains(&at), "{at:?}");
    worker.drain().await;
    let mut closed = scene.record.closed();
    closed.sort_unstable();
    assert_eq!(closed, ["idle", "mail 1", "mail 2", "print"]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_ends_closes_the_former_handlers_too() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 1).await;
    let worker = scene.start(vec![scene.work("mail", "mail", 10 * SECOND)]);
    sleep(SECOND).await;
    worker.gets(&[], vec![scene.work("print", "print", MILLI)]).await;
    assert_eq!(worker.drain().await.completed, 1);
    let mut closed = scene.record.closed();
    closed.sort_unstable();
    assert_eq!(closed, ["mail", "print"]);
}

/// Answers line by line; waits for the file `go` where the payload has a `text`.
const LINES: &str = r#"while IFS= read -r line; do
    id=${line##*\"deliveryId\":\"}; id=${id%%\"*}
    echo $$ >>"$FILE"
    case $line in *'"text"'*) while ! test -e go; do sleep 0.01; done ;; esac
    printf '{"id":"%s","ok":true}\n' "$id"
done; echo bye >>"$FILE""#;

#[tokio::test]
async fn children_that_stay_finish_what_they_have_and_unchanged_handlers_keep_theirs() {
    let (bench, directory, marker) = (Bench::new(), tempfile::tempdir().unwrap(), Marker::new("replaced"));
    let lines = |file: &str| {
        let command = marker.mark(Command::shell(LINES)).workdir(directory.path()).env("FILE", file);
        LinesHandler::new(command)
    };
    let written = |file: &str| -> Vec<String> {
        let text = std::fs::read_to_string(directory.path().join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let event = |handler: &str| NewEvent::new("t", json!({ "number": 1 })).handler(handler);
    let worker = bench.start(
        vec![subscription("mail", lines("first")), subscription("print", lines("print"))],
        StopWhen::Never,
    );
    bench.publish(event("print")).await;
    let held = bench.publish(NewEvent::new("t", json!({ "text": "wait" })).handler("mail")).await;
    until(async || written("first").len() == 1 && written("print").len() == 1).await;
    worker.gets(&["print"], vec![subscription("mail", lines("second")).concurrency(2)]).await;
    bench.publish(event("mail")).await;
    until(async || written("second").len() == 1).await;
    assert_eq!((written("first").len(), bench.get(&held).await.status), (1, Status::Processing));
    std::fs::write(directory.path().join("go"), "").unwrap();
    until(async || written("first").last().is_some_and(|line| line == "bye")).await;
    bench.publish(event("print")).await;
    until(async || written("print").len() == 2).await;
    assert_eq!(written("print")[0], written("print")[1], "it is the same child");
    let delivery = bench.get(&held).await;
    assert_eq!((delivery.status, delivery.attempts), (Status::Completed, 1));
    worker.drain().await;
    assert_eq!(marker.processes(), [0; 0]);
}

#[tokio::test]
async fn the_child_of_a_removed_handler_goes_on_to_its_end() {
    let (bench, directory, marker) = (Bench::new(), tempfile::tempdir().unwrap(), Marker::new("removed"));
    let id = bench.publish(NewEvent::new("t", json!({})).handler("mail")).await;
    let line = "touch ready; while ! test -e go; do sleep 0.01; done; touch done";
    let command = marker.mark(Command::shell(line)).workdir(directory.path());
    let other = ShellHandler::new(Command::shell("true"));
    let worker = bench.start(vec![subscription("mail", ShellHandler::new(command))], StopWhen::Never);
    until(async || directory.path().join("ready").exists()).await;
    worker.gets(&[], vec![subscription("print", other)]).await;
    assert!(!marker.processes().is_empty());
    std::fs::write(directory.path().join("go"), "").unwrap();
    until(async || bench.get(&id).await.status == Status::Completed).await;
    assert!(directory.path().join("done").exists());
    worker.drain().await;
}

// ---- what is refused -----------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn what_makes_no_sense_changes_nothing() {
    let scene = Scene::new();
    let worker = scene.start(vec![scene.work("mail", "mail", MILLI)]);
    let refusal = async |kept: &[&str], new: Vec<Subscription>| match worker.asks(kept, new).await {
        Err(ResubscribeError::Invalid(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let print = || scene.work("print", "print", MILLI);
    assert!(refusal(&[], vec![]).await.contains("at least one"));
    assert!(refusal(&["mail"], vec![scene.work("mail", "x", MILLI)]).await.contains("twice"));
    assert!(refusal(&[], vec![print(), print()]).await.contains("twice"));
    assert!(refusal(&["audit"], vec![print()]).await.contains("handler audit"));
    assert!(refusal(&[], vec![print().lease(MILLI)]).await.contains("lease of handler print"));
    scene.bench.publish_many("mail", 1).await;
    sleep(SECOND).await;
    assert_eq!((scene.record.starts_of("mail"), scene.claims_of("print")), (1, 0));
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_ends_takes_no_other_handlers() {
    let scene = Scene::new();
    scene.bench.publish_many("mail", 1).await;
    scene.bench.publish_many("print", 1).await;
    let worker = scene.start(vec![scene.work("mail", "mail", 10 * SECOND)]);
    sleep(SECOND).await;
    worker.signals.drain.cancel();
    let print = || vec![scene.work("print", "print", MILLI)];
    assert!(matches!(worker.asks(&[], print()).await, Err(ResubscribeError::Ending)));
    let handle = worker.handle.clone();
    assert_eq!(worker.end().await.unwrap().completed, 1);
    assert!(matches!(handle.resubscribe(vec![], print()).await, Err(ResubscribeError::Ending)));
    assert_eq!(scene.count("print", Status::Pending).await, 1);
}

// ---- under load ----------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn however_often_handlers_change_each_delivery_runs_once() {
    const EACH: usize = 1_000;
    let scene = Scene::new();
    *scene.store.claim_takes.lock().unwrap() = 5 * MILLI;
    *scene.store.settling_takes.lock().unwrap() = 3 * MILLI;
    scene.bench.publish_many("mail", EACH).await;
    scene.bench.publish_many("print", EACH).await;
    let mail = |i: u64| {
        let lease = if i.is_multiple_of(3) { MINUTE } else { 2 * MINUTE };
        scene.work("mail", "mail", 7 * MILLI).concurrency(1 + i as usize % 8).lease(lease)
    };
    let print = || scene.work("print", "print", 7 * MILLI).concurrency(4);
    let mut worker = scene.start(vec![mail(0), print()]);
    let (handle, mut events) = (worker.handle.clone(), worker.events);
    let reading = tokio::spawn(async move { while events.recv().await.is_some() {} });
    (_, worker.events) = tokio::sync::mpsc::channel(1);
    let mut has_print = true;
    for i in 1..=200 {
        let kept = if has_print && i % 5 > 0 { names(&["print"]) } else { vec![] };
        let new = match (i % 5, has_print) {
            (0, true) => vec![mail(i)],
            (_, false) => vec![mail(i), print()],
            _ => vec![mail(i)],
        };
        has_print = !kept.is_empty() || new.len() == 2;
        handle.resubscribe(kept, new).await.unwrap();
        sleep(6 * MILLI).await;
    }
    handle.resubscribe(vec![], vec![mail(1), print()]).await.unwrap();
    until(async || scene.bench.deliveries().await.iter().all(|one| one.status == Status::Completed)).await;
    let mut runs = HashMap::new();
    scene.record.starts.lock().unwrap().iter().for_each(|start| *runs.entry(*start).or_insert(0) += 1);
    assert!(runs.len() == 2 * EACH && runs.values().all(|times| *times == 1));
    assert!(scene.bench.deliveries().await.iter().all(|one| one.attempts == 1 && one.errors.is_empty()));
    worker.signals.drain.cancel();
    reading.await.unwrap();
}
