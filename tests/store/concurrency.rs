//! The invariant under load: workers that finish, fail, hand back and crash, beside an operator who requeues, beside
//! appends to the same few keys. An observer writes down what it is certain of, and objects to what contradicts it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use relayctl::model::{Delivery, DeliveryId, Filter, ListQuery, Status};
use relayctl::store::{ClaimRequest, Claimed, Fenced, Outcome, RepairOutcome};

use crate::fixture::{Fixture, HOUR, LEASE, SECOND, bury, event, failure, keyed};

conformance![
    hot_keys_keep_the_invariant,
    one_hot_key_keeps_the_invariant,
    requeues_race_claims_of_their_keys,
    claims_that_are_dropped_delay_and_strand_nothing,
    appends_that_are_dropped_are_whole_or_nothing,
];

async fn hot_keys_keep_the_invariant(fixture: &Fixture) {
    Load { seed: 1, keys: 6, events: 90, workers: 8, requeues: 40 }.run(fixture).await;
}

async fn one_hot_key_keeps_the_invariant(fixture: &Fixture) {
    Load { seed: 2, keys: 1, events: 45, workers: 6, requeues: 30 }.run(fixture).await;
}

/// Longer than any test: a lease that runs out while its claim is not yet confirmed is not put back.
const ENDLESS: Duration = Duration::from_secs(365 * 86_400);

/// So many claims of one worker in a row do not come back empty while the others get on.
const STANDSTILL: usize = 5_000;

/// How much is thrown at the store.
struct Load {
    seed: u64,
    keys: usize,
    events: usize,
    workers: u64,
    requeues: usize,
}

impl Load {
    async fn run(&self, fixture: &Fixture) {
        let scene = Scene { fixture, observer: Observer::default(), over: Cell::new(false) };
        let workers = join_all((0..self.workers).map(|n| scene.work(self.seed * 100 + n)));
        let direction = async {
            futures_util::join!(scene.append(self.events, self.keys), scene.requeue(self));
            while !scene.observer.all_finished() {
                tokio::task::yield_now().await;
            }
            scene.over.set(true);
        };
        futures_util::join!(workers, direction);
        scene.assert_all_is_done(self.events).await;
    }
}

struct Scene<'f> {
    fixture: &'f Fixture,
    observer: Observer,
    over: Cell<bool>,
}

impl Scene<'_> {
    async fn append(&self, events: usize, keys: usize) {
        for n in 0..events {
            let event = if n % 9 == 8 { event() } else { keyed(&format!("key-{}", n % keys)) };
            let id = self.fixture.publish(event).await;
            self.observer.appended(&self.fixture.get(&id).await);
        }
    }

    /// The one operator: as nobody else requeues, it knows how often each delivery was.
    async fn requeue(&self, load: &Load) {
        let mut random = fastrand::Rng::with_seed(load.seed);
        let mut budget = load.requeues;
        let dead = Filter { statuses: vec![Status::Dead], ..Filter::default() };
        let dead = ListQuery { filter: dead, ..ListQuery::default() };
        while budget > 0 && !(self.observer.knows(load.events) && self.observer.all_finished()) {
            for delivery in self.fixture.list(&dead).await {
                if budget == 0 || random.bool() {
                    continue;
                }
                let (repair, now) = (self.fixture.requeue_now(), self.fixture.now());
                let outcome = self.fixture.store.repair(&delivery.id, &repair, now).await.unwrap();
                assert_eq!(outcome, RepairOutcome::Changed);
                self.observer.requeued(&delivery);
                budget -= 1;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn work(&self, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut empty_answers = 0;
        while !self.over.get() {
            let request = ClaimRequest { lease: ENDLESS, ..self.fixture.request(random.usize(1..=4)) };
            let before = self.observer.unfinished();
            let claimed = self.fixture.store.claim(&request).await.unwrap();
            for one in &claimed {
                self.observer.started(&before, &one.delivery);
            }
            for one in &claimed {
                self.finish(one, &mut random).await;
            }
            empty_answers = if claimed.is_empty() { empty_answers + 1 } else { 0 };
            assert!(empty_answers < STANDSTILL, "everything stands still");
            if claimed.is_empty() {
                self.fixture.clock.advance(SECOND);
                tokio::task::yield_now().await;
            }
        }
    }

    async fn finish(&self, claimed: &Claimed, random: &mut fastrand::Rng) {
        for _ in 0..random.u8(..4) {
            tokio::task::yield_now().await;
        }
        let retry = Outcome::Reschedule { available_at: self.fixture.later(SECOND), failure: failure() };
        // A lease that runs out at once is what a worker leaves that crashes.
        let crash = Outcome::ExtendLease { expires_at: self.fixture.now() };
        let snooze = Outcome::Snooze { available_at: self.fixture.later(SECOND) };
        let outcome = match random.u8(..13) {
            0..6 => Outcome::Complete,
            6..8 => bury(),
            8 => Outcome::Release,
            9 => retry,
            10 => snooze,
            _ => crash,
        };
        self.observer.ends(&claimed.delivery.id, &outcome);
        assert_eq!(self.fixture.settle(claimed, outcome).await, Fenced::Applied);
    }

    async fn assert_all_is_done(&self, events: usize) {
        let all = self.fixture.all().await;
        assert_eq!(all.len(), events);
        for delivery in all {
            assert!(!delivery.status.is_unfinished(), "{delivery:?}");
            assert_eq!(delivery.attempts, self.observer.attempts_of(&delivery.id), "{delivery:?}");
        }
    }
}

/// What is certain of one delivery: the store can be ahead of it, never behind.
#[derive(Clone, Debug)]
struct Record {
    key: Option<String>,
    sequence: Option<i64>,
    requeues: u32,
    attempts: u32,
    unfinished: bool,
    running: bool,
}

/// Deliveries that were unfinished at an instant, and how often each had been requeued by then.
type Unfinished = BTreeMap<DeliveryId, u32>;

#[derive(Default)]
struct Observer {
    records: RefCell<BTreeMap<DeliveryId, Record>>,
}

impl Observer {
    fn appended(&self, delivery: &Delivery) {
        self.records.borrow_mut().entry(delivery.id.clone()).or_insert_with(|| Record::of(delivery));
    }

    fn unfinished(&self) -> Unfinished {
        let records = self.records.borrow();
        let unfinished = records.iter().filter(|(_, record)| record.unfinished);
        unfinished.map(|(id, record)| (id.clone(), record.requeues)).collect()
    }

    /// A claim that began when `before` was certain has returned this delivery.
    fn started(&self, before: &Unfinished, delivery: &Delivery) {
        self.appended(delivery);
        let mut records = self.records.borrow_mut();
        let beside = records.values().find(|other| other.running && other.shares_key_with(delivery));
        assert!(beside.is_none(), "{delivery:?} runs beside {beside:?}");
        let overtaken = records.iter().find(|(id, other)| {
            let was_unfinished_throughout = other.unfinished && before.get(id) == Some(&other.requeues);
            was_unfinished_throughout && other.shares_key_with(delivery) && other.sequence < delivery.sequence
        });
        assert!(overtaken.is_none(), "{delivery:?} overtakes {overtaken:?}");
        if let Some(record) = records.get_mut(&delivery.id) {
            record.start(delivery);
        }
    }

    /// The worker is about to report this outcome.
    fn ends(&self, id: &DeliveryId, outcome: &Outcome) {
        self.update(id, |record| {
            record.running = false;
            match outcome {
                Outcome::Complete | Outcome::Bury { .. } => record.unfinished = false,
                Outcome::Release | Outcome::Snooze { .. } => record.attempts -= 1,
                Outcome::Reschedule { .. } | Outcome::ExtendLease { .. } => {}
            }
        });
    }

    /// The operator has requeued what was this delivery; a worker may have started it meanwhile.
    fn requeued(&self, dead: &Delivery) {
        self.update(&dead.id, |record| record.see_requeues(dead.requeues + 1));
    }

    fn update(&self, id: &DeliveryId, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.records.borrow_mut().get_mut(id) {
            change(record);
        }
    }

    fn knows(&self, events: usize) -> bool {
        self.records.borrow().len() == events
    }

    fn all_finished(&self) -> bool {
        self.records.borrow().values().all(|record| !record.unfinished)
    }

    fn attempts_of(&self, id: &DeliveryId) -> u32 {
        self.records.borrow()[id].attempts
    }
}

impl Record {
    fn of(delivery: &Delivery) -> Self {
        Record {
            key: delivery.key.clone(),
            sequence: delivery.sequence,
            requeues: 0,
            attempts: 0,
            unfinished: true,
            running: false,
        }
    }

    fn shares_key_with(&self, delivery: &Delivery) -> bool {
        self.key.is_some() && self.key == delivery.key
    }

    fn see_requeues(&mut self, requeues: u32) {
        if requeues > self.requeues {
            (self.requeues, self.attempts, self.unfinished) = (requeues, 0, true);
        }
    }

    /// Attempts are exact: each claim counts one, and a lease that was taken back within a claim none.
    fn start(&mut self, delivery: &Delivery) {
        self.see_requeues(delivery.requeues);
        self.attempts += 1;
        assert_eq!(delivery.attempts, self.attempts, "{delivery:?}");
        self.running = true;
    }
}

/// The future of a claim is dropped before it has returned. What it took runs out; nothing is lost or overtaken.
async fn claims_that_are_dropped_delay_and_strand_nothing(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 10).await;
    fixture.publish_many(event(), 10).await;
    let mut ran = Vec::new();
    for _ in 0..10 {
        let _ = fixture.claim(3).now_or_never();
        tokio::task::yield_now().await;
        let claimed = fixture.claim(2).await;
        fixture.complete_all(&claimed).await;
        ran.extend(claimed.into_iter().map(|claimed| claimed.delivery));
    }
    fixture.clock.advance(LEASE);
    ran.extend(fixture.drain(10).await);
    let in_order: Vec<_> = ran.iter().filter_map(|delivery| delivery.sequence).collect();
    assert_eq!((ran.len(), in_order), (20, (1..=10).collect::<Vec<_>>()));
    assert_eq!(fixture.claim(10).await, []);
}

async fn appends_that_are_dropped_are_whole_or_nothing(fixture: &Fixture) {
    let batch_of = |n: usize| [0, 1, 2].map(|place| keyed("a").id(format!("e-{n}-{place}")));
    for n in 0..10 {
        let _ = fixture.append(&batch_of(n)).now_or_never();
        fixture.append(&[keyed("a")]).await;
    }
    let ids: Vec<_> = (0..10).flat_map(batch_of).filter_map(|event| event.id).collect();
    fixture.clock.advance(HOUR);
    fixture.assert_references(&ids).await;
    for batch in ids.chunks(3) {
        assert!([0, 3].contains(&fixture.events(batch).await.len()));
    }
    let ran: Vec<_> = fixture.drain(10).await.iter().filter_map(|delivery| delivery.sequence).collect();
    assert_eq!(ran, (1..=ran.len() as i64).collect::<Vec<_>>());
    assert!(ran.len() >= 10);
}

/// Of each key the first delivery is requeued while the second is being claimed. Each claim may have looked before the
/// requeue and taken after it; still no two of a key run, as nothing ends before all claims have returned.
async fn requeues_race_claims_of_their_keys(fixture: &Fixture) {
    const ROUNDS: usize = 25;
    const KEYS: usize = 8;
    for round in 0..ROUNDS {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("key-{round}-{key}")).collect();
        let first = join_all(keys.iter().map(|key| dead_before_another(fixture, key))).await;
        let requeues = join_all(first.iter().enumerate().map(|(place, id)| async move {
            // Each look at the store lets the claims get on a little.
            for _ in 0..(round + place) % 4 {
                fixture.get(id).await;
            }
            fixture.requeue(id).await;
        }));
        let claims = join_all((0..6).map(|claimer| async move {
            let mut claimed = Vec::new();
            for limit in [1 + claimer % 3, KEYS, KEYS] {
                claimed.extend(fixture.claim(limit).await);
            }
            claimed
        }));
        let (_, claimed) = futures_util::join!(requeues, claims);
        let running: Vec<Claimed> = claimed.into_iter().flatten().collect();
        let distinct: BTreeSet<_> = running.iter().map(|one| one.delivery.key.as_deref()).collect();
        assert_eq!(distinct.len(), running.len(), "two of a key run: {running:#?}");
        fixture.complete_all(&running).await;
        assert_eq!(running.len() + fixture.drain(KEYS).await.len(), 2 * KEYS);
    }
}

/// Publishes two events of a key, of which the first is dead.
async fn dead_before_another(fixture: &Fixture, key: &str) -> DeliveryId {
    let published = fixture.publish_many(keyed(key), 2).await;
    fixture.bury(&published[0]).await;
    published[0].clone()
}
