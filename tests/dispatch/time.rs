//! A worker on a host whose clock is wrong, and servers whose clock is another: leases go by the server's time.
//!
//! Time stands still here and moves on only when nothing else can.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use relayctl::clock::{Clock, Host, ServerClock};
use relayctl::dispatch::{DispatchEvent, DispatchOptions, StopWhen};
use relayctl::handler::{Handler, Outcome, handler_fn};
use relayctl::model::{DeliveryId, NewEvent, Status, Timestamp};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, START, Worker, options, subscription};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(60);
const TEN_MINUTES: i64 = 600_000;

/// A clock on a wall: it goes with the time of the runtime, and is off by so many milliseconds.
#[derive(Debug)]
struct Wall {
    began: Instant,
    off_ms: AtomicI64,
}

impl Wall {
    fn off_by(off_ms: i64) -> Arc<Wall> {
        Arc::new(Wall { began: Instant::now(), off_ms: AtomicI64::new(off_ms) })
    }

    fn set(&self, off_ms: i64) {
        self.off_ms.store(off_ms, Ordering::SeqCst);
    }
}

impl Clock for Wall {
    fn now(&self) -> Timestamp {
        let right = START.saturating_add(self.began.elapsed());
        Timestamp::from_millis(right.as_millis() + self.off_ms.load(Ordering::SeqCst))
    }
}

impl Host for Wall {
    fn wall(&self) -> Timestamp {
        self.now()
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// A handler that waits at a gate, and counts its starts.
struct Waiting {
    gate: Arc<Semaphore>,
    starts: Arc<AtomicUsize>,
}

impl Waiting {
    fn new() -> Self {
        Waiting { gate: Arc::new(Semaphore::new(0)), starts: Arc::default() }
    }

    fn handler(&self) -> impl Handler + use<> {
        let (gate, starts) = (self.gate.clone(), self.starts.clone());
        handler_fn(move |_| {
            starts.fetch_add(1, Ordering::SeqCst);
            let gate = gate.clone();
            async move {
                drop(gate.acquire().await.unwrap());
                Outcome::Succeeded
            }
        })
    }

    fn starts(&self) -> usize {
        self.starts.load(Ordering::SeqCst)
    }
}

/// A store whose server has a clock.
struct Scene {
    store: Arc<FaultyStore>,
    server: Arc<Wall>,
    bench: Bench,
}

impl Scene {
    fn new() -> Self {
        let (store, server) = (Arc::new(FaultyStore::default()), Wall::off_by(0));
        *store.server_clock.lock().unwrap() = Some(server.clone());
        Scene { store: store.clone(), server, bench: Bench::with(store) }
    }

    fn start(&self, clock: &ServerClock, work: &Waiting) -> Worker {
        let subscription = subscription("mail", work.handler()).lease(LEASE).timeout(3_600 * SECOND);
        let options = DispatchOptions { stop_when: StopWhen::Never, ..options() };
        self.bench.start_keeping_time(clock.clone(), vec![subscription], options)
    }

    async fn publish(&self) -> DeliveryId {
        self.bench.publish(NewEvent::new("t", json!(1)).handler("mail")).await
    }

    fn asked(&self) -> usize {
        self.store.time_asked.load(Ordering::SeqCst)
    }

    /// How long the lease of a delivery lasts by the server's clock.
    async fn lease_left(&self, id: &DeliveryId) -> Duration {
        let delivery = self.bench.get(id).await;
        assert_eq!(delivery.status, Status::Processing);
        delivery.lease_expires_at.unwrap().since(self.server.now())
    }
}

/// What a worker has told of clocks.
fn told_of_clocks(worker: &mut Worker) -> Vec<String> {
    let mut told = Vec::new();
    while let Ok(event) = worker.events.try_recv() {
        match event {
            DispatchEvent::ClockDiffers { skew } => told.push(format!("host {}", skew.ahead_ms)),
            DispatchEvent::TimeStepped { by_ms } => told.push(format!("server {by_ms}")),
            DispatchEvent::StoreFailing { .. } => told.push("failing".to_owned()),
            _ => {}
        }
    }
    told
}

#[tokio::test(start_paused = true)]
async fn a_host_clock_that_is_wrong_or_jumps_takes_and_loses_no_lease() {
    for (first, then) in [(0, TEN_MINUTES), (0, -TEN_MINUTES), (TEN_MINUTES, 0), (-TEN_MINUTES, TEN_MINUTES)]
    {
        let scene = Scene::new();
        let id = scene.publish().await;
        let (holding, taking) = (Waiting::new(), Waiting::new());
        let hosts = [Wall::off_by(first), Wall::off_by(0)];
        let holder = scene.start(&ServerClock::on(hosts[0].clone()), &holding);
        sleep(SECOND).await;
        assert_eq!(holding.starts(), 1);
        let mut taker = scene.start(&ServerClock::on(hosts[1].clone()), &taking);
        sleep(SECOND).await;
        // Each in turn.
        for host in &hosts {
            host.set(then);
            for _ in 0..30 {
                sleep(5 * SECOND).await;
                let left = scene.lease_left(&id).await;
                assert!(left >= LEASE / 2 && left <= LEASE, "{left:?}");
            }
        }
        assert_eq!((holding.starts(), taking.starts()), (1, 0));
        let expected = if then == 0 { vec![] } else { vec![format!("host {then}")] };
        assert_eq!(told_of_clocks(&mut taker), expected);
        holding.gate.add_permits(1);
        assert_eq!(holder.drain().await.completed, 1);
        taker.drain().await;
        let done = scene.bench.get(&id).await;
        assert_eq!((done.status, done.attempts), (Status::Completed, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_over_before_the_first_measurement_tells_what_was_known_of_the_clock() {
    for off_ms in [TEN_MINUTES, 0] {
        let scene = Scene::new();
        let clock = ServerClock::on(Wall::off_by(off_ms));
        let server_time = async { Ok::<_, std::convert::Infallible>(Some(scene.server.now())) };
        clock.measure(server_time).await.unwrap();
        *scene.store.telling_time_takes.lock().unwrap() = 3 * SECOND;
        let once = DispatchOptions { stop_when: StopWhen::NothingDue, ..options() };
        let mail = vec![subscription("mail", Waiting::new().handler())];
        let mut worker = scene.bench.start_keeping_time(clock, mail, once);
        let mut told = Vec::new();
        while let Some(event) = worker.events.recv().await {
            if let DispatchEvent::ClockDiffers { skew } = event {
                told.push(skew.ahead_ms);
            }
        }
        assert_eq!(told, if off_ms == 0 { vec![] } else { vec![off_ms] });
        worker.end().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_claimed_before_the_server_has_told_the_time() {
    let scene = Scene::new();
    let id = scene.publish().await;
    let (work, host) = (Waiting::new(), Wall::off_by(TEN_MINUTES));
    scene.store.time_fails.store(true, Ordering::SeqCst);
    let mut worker = scene.start(&ServerClock::on(host), &work);
    sleep(20 * SECOND).await;
    assert_eq!(told_of_clocks(&mut worker), ["failing"]);
    assert_eq!(scene.store.claims.lock().unwrap().len(), 0);
    assert_eq!(scene.store.pauses_read.load(Ordering::SeqCst), 0);
    scene.store.time_fails.store(false, Ordering::SeqCst);
    sleep(10 * SECOND).await;
    assert_eq!(work.starts(), 1);
    let left = scene.lease_left(&id).await;
    assert!(left <= LEASE, "{left:?}");
    assert_eq!(told_of_clocks(&mut worker), [format!("host {TEN_MINUTES}")]);
    work.gate.add_permits(1);
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn while_the_server_does_not_tell_the_clock_goes_on_as_it_was_set() {
    let scene = Scene::new();
    let (work, host) = (Waiting::new(), Wall::off_by(0));
    let clock = ServerClock::on(host.clone());
    let mut worker = scene.start(&clock, &work);
    sleep(SECOND).await;
    scene.store.time_fails.store(true, Ordering::SeqCst);
    host.set(TEN_MINUTES);
    sleep(100 * SECOND).await;
    assert_eq!(clock.now(), scene.server.now());
    *scene.store.telling_time_takes.lock().unwrap() = 3_600 * SECOND;
    scene.store.time_fails.store(false, Ordering::SeqCst);
    sleep(100 * SECOND).await;
    assert_eq!(clock.now(), scene.server.now());
    assert_eq!(told_of_clocks(&mut worker), [""; 0]);
    // And it asks again.
    *scene.store.telling_time_takes.lock().unwrap() = Duration::ZERO;
    sleep(20 * SECOND).await;
    assert_eq!(told_of_clocks(&mut worker), [format!("host {TEN_MINUTES}")]);
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn the_server_is_asked_every_ten_seconds_and_more_often_only_for_a_better_answer() {
    let scene = Scene::new();
    let (work, clock) = (Waiting::new(), ServerClock::on(Wall::off_by(0)));
    let worker = scene.start(&clock, &work);
    sleep(95 * SECOND).await;
    assert_eq!(scene.asked(), 10);
    *scene.store.telling_time_takes.lock().unwrap() = Duration::from_millis(100);
    sleep(10 * SECOND).await;
    // What is known since ten seconds is good enough.
    assert_eq!(scene.asked(), 11);
    worker.drain().await;

    let clock = ServerClock::on(Wall::off_by(0));
    let worker = scene.start(&clock, &work);
    sleep(SECOND).await;
    assert_eq!(scene.asked(), 11 + 3);
    assert!(clock.skew().unwrap().error < Duration::from_millis(60));
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_without_a_clock_leaves_the_worker_to_the_hosts() {
    let scene = Scene::new();
    *scene.store.server_clock.lock().unwrap() = None;
    let id = scene.publish().await;
    let (work, host) = (Waiting::new(), Wall::off_by(0));
    let worker = scene.start(&ServerClock::on(host.clone()), &work);
    sleep(100 * SECOND).await;
    assert_eq!((scene.asked(), work.starts()), (1, 1));
    assert!(scene.bench.get(&id).await.lease_expires_at.unwrap() > host.now());
    work.gate.add_permits(1);
    assert_eq!(worker.drain().await.completed, 1);
}

/// Another server has taken over, and its clock is another: to whoever asks it, leases that are held look expired, or as if
/// they never would.
#[tokio::test(start_paused = true)]
async fn leases_are_renewed_at_once_when_the_servers_time_steps() {
    for step in [TEN_MINUTES, -TEN_MINUTES] {
        let scene = Scene::new();
        let id = scene.publish().await;
        let (work, host) = (Waiting::new(), Wall::off_by(0));
        let mut worker = scene.start(&ServerClock::on(host), &work);
        sleep(SECOND).await;
        scene.server.set(step);
        sleep(10 * SECOND).await;
        let left = scene.lease_left(&id).await;
        assert!(left > LEASE - 2 * SECOND && left <= LEASE, "{left:?}");
        assert_eq!(scene.store.renewals.load(Ordering::SeqCst), 1);
        assert_eq!(told_of_clocks(&mut worker), [format!("server {step}"), format!("host {}", -step)]);
        // From there on as ever.
        sleep(15 * SECOND).await;
        assert_eq!(scene.store.renewals.load(Ordering::SeqCst), 1);
        sleep(10 * SECOND).await;
        assert_eq!(scene.store.renewals.load(Ordering::SeqCst), 2);
        assert_eq!(work.starts(), 1);
        work.gate.add_permits(1);
        assert_eq!(worker.drain().await.completed, 1);
    }
}

/// They do not see the step at the same moment.
#[tokio::test(start_paused = true)]
async fn who_sees_a_step_first_leaves_the_others_the_time_to_see_it_too() {
    let scene = Scene::new();
    let id = scene.publish().await;
    let (holding, taking) = (Waiting::new(), Waiting::new());
    let clocks = [0, 0].map(|off| ServerClock::on(Wall::off_by(off)));
    let holder = scene.start(&clocks[0], &holding);
    sleep(5 * SECOND).await;
    let taker = scene.start(&clocks[1], &taking);
    sleep(6 * SECOND).await;
    scene.server.set(TEN_MINUTES);
    sleep(5 * SECOND).await;
    assert_eq!(clocks.map(|clock| clock.now() == scene.server.now()), [false, true]);
    sleep(60 * SECOND).await;
    assert_eq!((holding.starts(), taking.starts()), (1, 0));
    assert!(scene.lease_left(&id).await >= LEASE / 2);
    // It has not forgotten to claim.
    scene.publish().await;
    sleep(SECOND).await;
    assert_eq!(taking.starts(), 1);
    for (worker, work) in [(holder, holding), (taker, taking)] {
        work.gate.add_permits(1);
        assert_eq!(worker.drain().await.completed, 1);
    }
}

/// The claim was sent before the server's time stepped, and is answered behind that.
#[tokio::test(start_paused = true)]
async fn what_was_claimed_by_another_time_is_renewed_as_soon_as_it_runs() {
    let scene = Scene::new();
    let (work, host) = (Waiting::new(), Wall::off_by(0));
    let worker = scene.start(&ServerClock::on(host), &work);
    sleep(5 * SECOND).await;
    *scene.store.claim_takes.lock().unwrap() = 8 * SECOND;
    let id = scene.publish().await;
    sleep(SECOND).await;
    scene.server.set(TEN_MINUTES);
    sleep(8 * SECOND).await;
    assert_eq!(work.starts(), 1);
    let left = scene.lease_left(&id).await;
    assert!(left > LEASE - 3 * SECOND, "{left:?}");
    work.gate.add_permits(1);
    worker.drain().await;
}

/// A clock that is read twice for the pauses and then for a claim, behind which the process is stopped for the most part of a
/// lease.
#[derive(Debug)]
struct Stopping {
    reads: AtomicUsize,
    began: std::time::Instant,
}

impl Clock for Stopping {
    fn now(&self) -> Timestamp {
        let now = START.saturating_add(self.began.elapsed());
        if self.reads.fetch_add(1, Ordering::SeqCst) == 2 {
            std::thread::sleep(Duration::from_millis(800));
        }
        now
    }
}

#[tokio::test]
async fn a_worker_that_was_stopped_between_its_clock_and_its_claim_begins_nothing() {
    let scene = Scene::new();
    scene.publish().await;
    let clock = Stopping { reads: AtomicUsize::new(0), began: std::time::Instant::now() };
    let work = Waiting::new();
    work.gate.add_permits(1);
    let short = subscription("mail", work.handler()).lease(SECOND);
    let mut worker = scene.bench.start_by(Arc::new(clock), vec![short], options());
    let what_became_of_it = |event| match event {
        DispatchEvent::HandedBack { count, .. } => Some(format!("{count} handed back")),
        DispatchEvent::Finished(finished) => Some(format!("{:?}", finished.verdict)),
        _ => None,
    };
    assert_eq!(worker.next(what_became_of_it).await, "1 handed back");
    assert_eq!(worker.next(what_became_of_it).await, "Completed");
    assert_eq!((worker.drain().await.completed, work.starts()), (1, 1));
}
