//! Claims in random orders on a real server: stores with memories of their own, the published algorithm beside them, an
//! operator, appends, crashes, clocks that disagree.
//!
//! An actor advances only when its schedule polls it, so that any two of their round trips come in any order; what the
//! server makes of commands that arrive together is its own. A schedule is therefore not the same again with its seed, and
//! one that fails prints its trace. Orders that can be repeated are tried in `src/store/mongo/claim/interleaving`.

mod observer;
mod published;

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReadConcern;
use relayctl::model::{Delivery, DeliveryId, Failure, FailureKind, Lease, LeaseToken, NewEvent, Timestamp};
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{ClaimRequest, Fenced, Outcome, Repair, RepairOutcome, Settlement, Store as _};

use self::observer::{MARGIN, Observer, Seen};
use self::published::Published;
use crate::fixture::{Fixture, NOW, event, uri};

const SCHEDULES: u64 = 400;

/// So many schedules share the server: most of the time each waits for it.
const AT_ONCE: usize = 4;

/// Stores, each with connections and a memory of its own.
const STORES: usize = 3;

/// How long leases last.
const LEASE: Duration = Duration::from_secs(10);

/// Blocked deliveries of a hot key: more than the first page of a claim holds, so that the heads are looked for.
const HOT: usize = 80;

/// One schedule: a handler and some keys of its own.
struct Scene<'f> {
    fixture: &'f Fixture,
    stores: &'f [MongoStore],
    seed: u64,
    handler: String,
    random: RefCell<fastrand::Rng>,
    /// The true time, in milliseconds.
    clock: Cell<i64>,
    offsets: Vec<Cell<i64>>,
    observer: RefCell<Observer>,
    trace: RefCell<Vec<String>>,
    tokens: Cell<u64>,
}

impl<'f> Scene<'f> {
    fn new(fixture: &'f Fixture, stores: &'f [MongoStore], seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let half = MARGIN / 2;
        // One more than there are stores: the process that runs the published algorithm.
        let offsets = (0..=STORES).map(|_| Cell::new(random.i64(-half + 1..half))).collect();
        Scene {
            fixture,
            stores,
            seed,
            handler: format!("h{seed}"),
            random: random.into(),
            clock: NOW.as_millis().into(),
            offsets,
            observer: RefCell::default(),
            trace: RefCell::default(),
            tokens: Cell::new(0),
        }
    }

    async fn run(&self) -> usize {
        self.prepare().await;
        self.run_chaos().await;
        self.run_to_the_end().await;
        self.observer.borrow().starts
    }

    // ---- time and chance ---------------------------------------------------------------------------------------

    fn below(&self, bound: usize) -> usize {
        self.random.borrow_mut().usize(..bound.max(1))
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.clock.get())
    }

    fn now_of(&self, process: usize) -> Timestamp {
        Timestamp::from_millis(self.clock.get() + self.offsets[process].get())
    }

    fn advance(&self, millis: i64) {
        self.clock.set(self.clock.get() + millis);
        self.note(|| format!("+ {millis} ms"));
    }

    /// Others have their turns meanwhile.
    async fn dawdle(&self, most: usize) {
        for _ in 0..self.below(most) {
            tokio::task::yield_now().await;
        }
    }

    fn note(&self, step: impl FnOnce() -> String) {
        self.trace.borrow_mut().push(step());
    }

    fn judge(&self, verdict: Result<(), String>) {
        if let Err(objection) = verdict {
            panic!("schedule {} fails:\n{}\n{objection}", self.seed, self.trace.borrow().join("\n"));
        }
    }

    // ---- deliveries --------------------------------------------------------------------------------------------

    /// Some deliveries, a part of them dead, delayed, or parked.
    async fn prepare(&self) {
        // Every other schedule is about one key, the first of which are dead.
        let is_narrow = self.seed % 2 == 1;
        let mut events: Vec<NewEvent> = match is_narrow {
            true => (0..3).map(|_| self.event(Some(0))).collect(),
            false => (0..4 + self.below(5)).map(|_| self.random_event()).collect(),
        };
        if self.seed.is_multiple_of(4) {
            events.extend((0..HOT).map(|_| self.event(Some(0))));
        }
        self.stores[0].append(&events, NOW).await.expect("append");
        let mut stored = self.stored().await;
        stored.sort_by_key(|one| one.get_str("_id").unwrap().to_owned());
        for one in stored.iter().take(10) {
            let id = one.get_str("_id").unwrap();
            let is_first = one.get_i64("sequence").is_ok_and(|sequence| sequence == 1);
            let past = match self.below(6) {
                past if past < 2 || is_narrow && is_first => {
                    doc! { "$set": { "status": "dead" }, "$unset": { "dueAt": 1 } }
                }
                2 => doc! { "$set": { "lane": "parked" } },
                3 => {
                    let due_at = mongodb::bson::DateTime::from_millis(NOW.as_millis() + 2_000);
                    doc! { "$set": { "dueAt": due_at, "availableAt": due_at } }
                }
                _ => continue,
            };
            self.fixture
                .deliveries()
                .update_one(doc! { "_id": id, "key": { "$exists": true } }, past)
                .await
                .unwrap();
        }
        for one in self.stored().await {
            self.observer.borrow_mut().stored(seen(&one), one.contains_key("dueAt"));
        }
    }

    fn event(&self, key: Option<usize>) -> NewEvent {
        let event = NewEvent { handlers: vec![self.handler.clone()], ..event() };
        match key {
            Some(key) => event.key(format!("k{}-{key}", self.seed)),
            None => event,
        }
    }

    fn random_event(&self) -> NewEvent {
        let key = self.below(3);
        self.event((self.below(5) > 0).then_some(key))
    }

    /// As claims read them. What somebody who crashed wrote a moment ago may be there, and not with a majority yet.
    async fn stored(&self) -> Vec<Document> {
        let of_handler = doc! { "handler": &self.handler };
        let deliveries = self.fixture.deliveries();
        let find = deliveries.find(of_handler).read_concern(ReadConcern::majority());
        find.await.unwrap().try_collect().await.unwrap()
    }

    // ---- actors ------------------------------------------------------------------------------------------------

    async fn publish(&self, events: usize) {
        for _ in 0..events {
            self.dawdle(60).await;
            let event = self.random_event();
            self.stores[self.below(STORES)].append(&[event], self.now()).await.expect("append");
        }
    }

    async fn operate(&self, repairs: usize) {
        for _ in 0..repairs {
            self.dawdle(100).await;
            let is_burial = self.below(6) == 0;
            let ids =
                if is_burial { self.observer.borrow().ids() } else { self.observer.borrow().finished() };
            let Some(id) = ids.get(self.below(ids.len())) else { continue };
            if is_burial { self.bury(id).await } else { self.requeue(id).await }
        }
    }

    async fn bury(&self, id: &str) {
        self.note(|| format!("bury {id}"));
        self.observer.borrow_mut().may_be_buried(id);
        let bury = Repair::Bury { reason: "enough".to_owned() };
        let store = &self.stores[self.below(STORES)];
        store.repair(&DeliveryId::from(id), &bury, self.now()).await.expect("bury");
    }

    async fn requeue(&self, id: &str) {
        // An instant of its own: the published pin takes two requeues to one instant for one.
        self.advance(1);
        let store = &self.stores[self.below(STORES)];
        let before = self.observer.borrow().before();
        let id = DeliveryId::from(id);
        let requeue = Repair::Requeue { available_at: self.now() };
        if store.repair(&id, &requeue, self.now()).await.expect("requeue") == RepairOutcome::Changed {
            let stored = self.stored().await;
            let waiting =
                stored.iter().filter(|one| one.get_str("status").is_ok_and(|status| status == "pending"));
            let waiting: Vec<Seen> = waiting.map(seen).collect();
            let requeued = stored.iter().map(seen).find(|one| one.id == id.as_str()).expect("it is there");
            self.note(|| format!("requeued {requeued:?}"));
            self.observer.borrow_mut().requeued(id.as_str(), requeued.requeues, &before, &waiting);
        }
    }

    /// Claims, runs, and reports.
    async fn work(&self, process: usize, claims: usize) {
        for _ in 0..claims {
            let leased = self.claim(process, 1 + self.below(4)).await;
            for one in &leased {
                self.dawdle(if self.below(2) == 0 { 300 } else { 8 }).await;
                let outcome = self.random_outcome(self.now_of(process));
                self.settle(process, one, outcome).await;
            }
        }
    }

    async fn claim(&self, process: usize, limit: usize) -> Vec<Seen> {
        let now = self.now_of(process);
        let owner = format!("p{process}");
        let request = ClaimRequest { handlers: vec![self.handler.clone()], limit, lease: LEASE, owner, now };
        self.note(|| format!("p{process} claims {limit}"));
        let before = self.observer.borrow().before();
        let claimed: Vec<Seen> = match self.stores.get(process) {
            Some(store) => {
                let claimed = store.claim(&request).await.expect("claim");
                claimed.iter().map(|one| seen_delivery(&one.delivery)).collect()
            }
            None => {
                self.tokens.set(self.tokens.get() + 1);
                let token = format!("published {}", self.tokens.get());
                let claim = Published::new(self.fixture.deliveries(), &request, token).claim();
                claim.await.expect("claim").iter().map(seen).collect()
            }
        };
        self.note(|| format!("p{process} has claimed {claimed:?}"));
        assert!(claimed.len() <= limit);
        let (now, offset) = (self.clock.get(), self.offsets[process].get());
        let verdict = self.observer.borrow_mut().started(&before, &claimed, now, offset);
        self.judge(verdict);
        claimed
    }

    fn random_outcome(&self, now: Timestamp) -> Option<Outcome> {
        let failure = || Failure::new(FailureKind::Failed, "boom");
        let later = now.saturating_add(Duration::from_millis(self.below(3_000) as u64));
        match self.below(16) {
            0..8 => Some(Outcome::Complete),
            8..10 => Some(Outcome::Reschedule { available_at: later, failure: failure() }),
            10..12 => Some(Outcome::Release),
            12..15 => Some(Outcome::Bury { failure: failure() }),
            // It crashes, as far as this delivery is concerned.
            _ => None,
        }
    }

    async fn settle(&self, process: usize, one: &Seen, outcome: Option<Outcome>) {
        self.note(|| format!("p{process} ends {} with {outcome:?}", one.id));
        let may_finish = matches!(outcome, Some(Outcome::Complete | Outcome::Bury { .. }));
        self.observer.borrow_mut().ends(&one.id, &one.token, may_finish);
        let Some(outcome) = outcome else { return };
        let is_completion = outcome == Outcome::Complete;
        let lease = Lease {
            delivery_id: DeliveryId::from(one.id.clone()),
            token: LeaseToken::from(one.token.clone()),
        };
        let store = self.stores.get(process).unwrap_or(&self.stores[0]);
        let settlement = Settlement { lease, outcome };
        let fenced = store.settle(&[settlement], self.now_of(process)).await.expect("settle");
        if is_completion && fenced == [Fenced::Applied] {
            let verdict = self.observer.borrow_mut().completed(&one.id);
            self.judge(verdict);
        }
    }

    // ---- the schedule ------------------------------------------------------------------------------------------

    /// Everybody acts at once, until all are through, or have crashed.
    async fn run_chaos(&self) {
        let mut actors = self.everybody();
        let (mut crashes, drowsiness) = (self.below(4), [50, 2_000][self.below(2)]);
        for step in 0.. {
            if actors.is_empty() {
                return;
            }
            let place = self.below(actors.len());
            match self.below(5_000) {
                0..2 => self.advance(self.below(2_500) as i64),
                2..5 if crashes > 0 => {
                    crashes -= 1;
                    self.note(|| "a crash".to_owned());
                    drop(actors.swap_remove(place));
                    actors.push(Actor::new(self.work(self.below(STORES + 1), 1)));
                }
                _ if actors[place].sleeps_until > step => continue,
                _ if self.below(drowsiness) == 0 => actors[place].sleeps_until = step + self.below(1_500),
                _ => {
                    if actors[place].is_through() {
                        drop(actors.swap_remove(place));
                    }
                }
            }
            // The connections get on.
            tokio::task::yield_now().await;
        }
    }

    fn everybody(&self) -> Vec<Actor<'_>> {
        let mut actors: Vec<Actor<'_>> =
            (0..=STORES).map(|process| Actor::new(self.work(process, 2))).collect();
        actors.push(Actor::new(self.work(self.below(STORES), 2)));
        actors.push(Actor::new(self.operate(4 + self.below(6))));
        actors.push(Actor::new(self.publish(self.below(3))));
        actors
    }

    /// No more crashes, and clocks that agree: claims that repeat finish everything, and none comes back
    /// empty before.
    async fn run_to_the_end(&self) {
        self.offsets.iter().for_each(|offset| offset.set(0));
        self.advance(20_000);
        let hot = doc! { "handler": &self.handler, "sequence": { "$gt": 12 } };
        self.fixture.deliveries().delete_many(hot).await.unwrap();
        loop {
            let stored = self.stored().await;
            if stored.iter().all(|one| !one.contains_key("dueAt")) {
                return;
            }
            let process = self.below(STORES);
            let leased = self.claim(process, 1 + self.below(6)).await;
            // A command of somebody who crashed may arrive as late as this, and be in the way of one claim.
            if leased.is_empty() && self.stored().await == stored {
                self.judge(Err(format!("p{process} claims nothing of {stored:#?}")));
            }
            for one in &leased {
                self.settle(process, one, Some(Outcome::Complete)).await;
            }
        }
    }
}

/// Somebody who acts. An actor that sleeps does not even hear the answers that have arrived for it.
struct Actor<'s> {
    future: LocalBoxFuture<'s, ()>,
    /// A step of the schedule.
    sleeps_until: usize,
}

impl<'s> Actor<'s> {
    fn new(future: impl Future<Output = ()> + 's) -> Self {
        Actor { future: Box::pin(future), sleeps_until: 0 }
    }

    /// Lets it get as far as it can; returns whether it has nothing left to do.
    fn is_through(&mut self) -> bool {
        self.future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }
}

fn seen(document: &Document) -> Seen {
    let text = |field| document.get_str(field).ok().map(str::to_owned);
    let expires_at = document.get_datetime("leaseExpiresAt").map_or(0, |at| at.timestamp_millis());
    Seen {
        id: text("_id").expect("an id"),
        key: text("key"),
        sequence: document.get_i64("sequence").ok(),
        requeues: document.get("requeues").and_then(Bson::as_i32).unwrap_or_default() as u32,
        expires_at,
        token: text("leaseToken").unwrap_or_default(),
    }
}

fn seen_delivery(delivery: &Delivery) -> Seen {
    Seen {
        id: delivery.id.as_str().to_owned(),
        key: delivery.key.clone(),
        sequence: delivery.sequence,
        requeues: delivery.requeues,
        expires_at: delivery.lease_expires_at.map_or(0, Timestamp::as_millis),
        token: delivery.lease_token.as_ref().map_or("", LeaseToken::as_str).to_owned(),
    }
}

#[tokio::test]
async fn heavy_hundreds_of_schedules_keep_the_contract() {
    let fixture = Fixture::new().await;
    let mut stores = Vec::new();
    for _ in 0..STORES {
        let options = MongoOptions { database: Some(fixture.database.clone()), ..MongoOptions::default() };
        stores.push(MongoStore::connect(&uri(), options).await.expect("connect"));
    }
    let schedules =
        stream::iter(0..SCHEDULES).map(async |seed| Scene::new(&fixture, &stores, seed).run().await);
    let starts: usize = schedules.buffer_unordered(AT_ONCE).fold(0, async |sum, starts| sum + starts).await;
    assert!(starts > 700, "only {starts} starts");
    for store in &stores {
        relayctl::store::Store::close(store).await;
    }
    fixture.end().await;
}
