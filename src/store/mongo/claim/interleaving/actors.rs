//! Who acts: processes with workers, an operator, and services that append.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};

use super::super::super::documents::date;
use super::super::backlog::Memory;
use super::super::claim_by;
use super::super::limits::Limits;
use super::judge::has;
use super::published::Published;
use super::server::{Purpose, Server, Write};
use crate::model::{IdKind, IdSource, Timestamp};
use crate::store::{ClaimRequest, Claimed, Result};

/// How long leases last.
pub(super) const LEASE: Duration = Duration::from_secs(8);

/// Tokens that are foretold.
#[derive(Debug, Default)]
struct Tokens(AtomicU64);

impl IdSource for Tokens {
    fn next(&self, _kind: IdKind, _now: Timestamp) -> String {
        format!("t{}", self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// A process that claims.
pub(super) struct Process {
    pub(super) is_ours: bool,
    /// What its claims remember; gone when the process is.
    pub(super) memory: RefCell<Rc<Memory>>,
    pub(super) limits: Limits,
    /// How far its clock is ahead of the true time, in milliseconds.
    pub(super) offset: std::cell::Cell<i64>,
}

/// Everything that a schedule acts on.
pub(super) struct Scene {
    pub(super) server: Server,
    pub(super) handlers: Vec<String>,
    pub(super) keys: Vec<String>,
    pub(super) processes: Vec<Process>,
    tokens: Tokens,
    /// The last sequence of each key, and the number of events.
    counters: RefCell<(Vec<i64>, usize)>,
}

impl Scene {
    pub(super) fn new(server: Server, handlers: usize, keys: usize, processes: Vec<Process>) -> Self {
        let handlers = (0..handlers).map(|n| format!("h{n}")).collect();
        let counters = RefCell::new((vec![0; keys], 0));
        let keys = (0..keys).map(|n| format!("k{n}")).collect();
        Scene { server, handlers, keys, processes, tokens: Tokens::default(), counters }
    }

    // ---- events ------------------------------------------------------------------------------------------------

    /// An event is committed: a delivery for each handler. Returns the key.
    pub(super) fn append(&self, key: Option<usize>, due_at: Timestamp) -> Vec<String> {
        let mut counters = self.counters.borrow_mut();
        counters.1 += 1;
        let event = counters.1;
        let sequence = key.map(|key| {
            counters.0[key] += 1;
            counters.0[key]
        });
        let mut ids = Vec::new();
        for handler in &self.handlers {
            // Ids do not sort by age: those of other clients need not.
            let id = format!("{}{event}-{handler}", ["c", "a", "b"][event % 3]);
            let mut delivery =
                doc! { "_id": &id, "eventId": format!("e{event}"), "eventType": "t", "handler": handler };
            if let (Some(key), Some(sequence)) = (key, sequence) {
                delivery.extend(doc! { "key": &self.keys[key], "sequence": sequence });
            }
            delivery.extend(doc! {
                "status": "pending", "lane": "ready", "attempts": 0,
                "availableAt": date(due_at), "dueAt": date(due_at),
                "createdAt": date(due_at), "updatedAt": date(due_at),
            });
            self.server.trace.note(|| {
                format!("append {id}: {:?} {:?} due at {due_at:?}", key.map(|key| &self.keys[key]), sequence)
            });
            self.server.deliveries.borrow_mut().insert(id.clone(), delivery);
            ids.push(id);
        }
        ids
    }

    pub(super) fn random_key(&self) -> Option<usize> {
        match self.server.chance(5) {
            true => None,
            false => Some(self.server.below(self.keys.len())),
        }
    }

    /// A process appends some events, and remembers the keys.
    pub(super) async fn publish(&self, process: usize, events: usize) {
        for _ in 0..events {
            self.server.dawdle(12).await;
            let key = self.random_key();
            self.append(key, self.server.now());
            self.server.pause().await;
            self.remember_append(process, key);
        }
    }

    pub(super) fn remember_append(&self, process: usize, key: Option<usize>) {
        if let Some(key) = key {
            let keys = self.handlers.iter().map(|handler| (handler.clone(), self.keys[key].clone()));
            self.processes[process].memory.borrow().moved(keys);
        }
    }

    // ---- the operator ------------------------------------------------------------------------------------------

    /// Buries what is unfinished and requeues what is dead.
    pub(super) async fn operate(&self, process: usize, repairs: usize) {
        for _ in 0..repairs {
            self.server.dawdle(16).await;
            let is_burial = self.server.chance(4);
            let ids = self.ids_of_dead(!is_burial);
            let Some(id) = ids.get(self.server.below(ids.len())) else { continue };
            let repair = if is_burial { self.bury(id) } else { self.requeue(id) };
            let result = self.server.command(vec![repair]).await;
            if result.is_ok_and(|changed| changed > 0) && self.server.chance(2) {
                // It is a process of its own, or one that claims as well.
                self.processes[process].memory.borrow().forget();
            }
        }
    }

    fn ids_of_dead(&self, is_dead: bool) -> Vec<String> {
        let deliveries = self.server.deliveries.borrow();
        let alike = deliveries.iter().filter(|(_, one)| has(one, "status", "dead") == is_dead);
        alike.map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn requeue(&self, id: &str) -> Write {
        // An instant of its own: the published pin takes two requeues to one instant for one.
        self.server.advance(1);
        let now = self.server.now();
        let dead = doc! { "_id": id, "status": "dead" };
        Write::new(Purpose::Repair, dead, move |delivery| {
            wait_until(delivery, now, now);
            delivery.insert("attempts", 0);
            let requeues = delivery.get_i32("requeues").unwrap_or_default();
            delivery.insert("requeues", requeues + 1);
        })
    }

    fn bury(&self, id: &str) -> Write {
        let now = self.server.now();
        let unfinished = doc! { "_id": id, "status": { "$in": ["pending", "processing"] } };
        Write::new(Purpose::Repair, unfinished, move |delivery| finish(delivery, "dead", now))
    }

    // ---- workers -----------------------------------------------------------------------------------------------

    pub(super) fn now_of(&self, process: usize) -> Timestamp {
        Timestamp::from_millis(self.server.now().as_millis() + self.processes[process].offset.get())
    }

    pub(super) fn request(&self, process: usize, limit: usize) -> ClaimRequest {
        ClaimRequest {
            handlers: self.handlers.clone(),
            limit,
            lease: LEASE,
            owner: format!("p{process}"),
            now: self.now_of(process),
        }
    }

    /// One claim of a process, by its algorithm.
    pub(super) async fn claim(&self, process: usize, request: &ClaimRequest) -> Result<Vec<Claimed>> {
        let server = &self.server;
        server.trace.note(|| format!("p{process} claims {} at {:?}", request.limit, request.now));
        let result = match self.processes[process].is_ours {
            true => {
                let memory = self.processes[process].memory.borrow().clone();
                claim_by(server, &memory, &self.tokens, request).await
            }
            false => {
                let token = self.tokens.next(IdKind::LeaseToken, request.now);
                Published::new(server, request, token).claim().await
            }
        };
        server.trace.note(|| match &result {
            Ok(claimed) => {
                let ids: Vec<&str> = claimed.iter().map(|one| one.delivery.id.as_str()).collect();
                format!("p{process} has claimed {ids:?}")
            }
            Err(error) => format!("p{process} has failed to claim: {error}"),
        });
        result
    }

    /// Claims, runs, and reports.
    pub(super) async fn work(&self, process: usize, claims: usize) {
        for _ in 0..claims {
            let request = self.request(process, 1 + self.server.below(4));
            let Ok(claimed) = self.claim(process, &request).await else { continue };
            let runs = Runs::start(self, process, &claimed, request.limit);
            for one in &claimed {
                // Some run for as long as a claim takes, or several.
                self.server.dawdle(if self.server.chance(2) { 120 } else { 8 }).await;
                let now = self.now_of(process);
                let outcome = self.random_outcome(now);
                runs.ended(one);
                self.settle(process, one, outcome, now).await;
            }
        }
    }

    pub(super) fn random_outcome(&self, now: Timestamp) -> Outcome {
        match self.server.below(16) {
            0..7 => Outcome::Complete,
            7..9 => Outcome::Reschedule { until: now.saturating_add(self.random_delay()) },
            9..11 => Outcome::Release,
            11..14 => Outcome::Bury,
            _ => Outcome::Crash,
        }
    }

    fn random_delay(&self) -> Duration {
        Duration::from_millis(self.server.random.borrow_mut().u64(..3_000))
    }

    pub(super) async fn settle(&self, process: usize, claimed: &Claimed, outcome: Outcome, now: Timestamp) {
        let (id, token) = (claimed.delivery.id.as_str(), claimed.lease.token.as_str());
        self.server.trace.note(|| format!("p{process} settles {id} {token}: {outcome:?}"));
        if matches!(outcome, Outcome::Crash) {
            return;
        }
        let fence = doc! { "_id": id, "status": "processing", "leaseToken": token };
        let write = Write::new(Purpose::Settle, fence, move |delivery| outcome.change(delivery, now));
        if self.server.command(vec![write]).await.is_ok() {
            self.processes[process].memory.borrow().settled([id]);
        }
    }
}

/// What becomes of a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Complete,
    Reschedule {
        until: Timestamp,
    },
    Release,
    Bury,
    /// Nobody reports anything.
    Crash,
}

impl Outcome {
    fn change(self, delivery: &mut Document, now: Timestamp) {
        match self {
            Outcome::Complete => finish(delivery, "completed", now),
            Outcome::Bury => finish(delivery, "dead", now),
            Outcome::Reschedule { until } => {
                wait_until(delivery, until, now);
                delivery.insert("lastError", "boom");
                delivery.insert("errors", vec![doc! { "attempt": 1, "message": "boom" }]);
            }
            Outcome::Release => {
                let attempts = delivery.get_i32("attempts").unwrap_or_default();
                delivery.insert("attempts", attempts - 1);
                let available_at = delivery.get_datetime("availableAt").copied();
                let millis = available_at.map_or(now.as_millis(), |at| at.timestamp_millis());
                wait_until(delivery, Timestamp::from_millis(millis), now);
            }
            Outcome::Crash => {}
        }
    }
}

fn wait_until(delivery: &mut Document, until: Timestamp, now: Timestamp) {
    drop_lease(delivery);
    delivery.extend(doc! {
        "status": "pending", "lane": "ready",
        "availableAt": date(until), "dueAt": date(until), "updatedAt": date(now),
    });
}

fn finish(delivery: &mut Document, status: &str, now: Timestamp) {
    drop_lease(delivery);
    delivery.remove("dueAt");
    delivery.extend(doc! { "status": status, "lane": "ready", "updatedAt": Bson::from(date(now)) });
}

fn drop_lease(delivery: &mut Document) {
    ["leaseToken", "leaseOwner", "leaseExpiresAt"].iter().for_each(|field| drop(delivery.remove(field)));
}

/// Runs of a worker. A worker that crashes runs nothing any more.
pub(super) struct Runs<'s> {
    server: &'s Server,
    leases: Vec<(String, String)>,
}

impl<'s> Runs<'s> {
    pub(super) fn start(scene: &'s Scene, process: usize, claimed: &[Claimed], limit: usize) -> Self {
        let (server, offset) = (&scene.server, scene.processes[process].offset.get());
        let deliveries = server.deliveries.borrow();
        server.judge.borrow_mut().started(claimed, limit, offset, &deliveries, server.now());
        let leases = claimed
            .iter()
            .map(|one| (one.delivery.id.as_str().to_owned(), one.lease.token.as_str().to_owned()));
        Runs { server, leases: leases.collect() }
    }

    pub(super) fn ended(&self, one: &Claimed) {
        self.server.judge.borrow_mut().ended(one.delivery.id.as_str(), one.lease.token.as_str());
    }
}

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        // Where the judge has objected this is dropped on the way out.
        if let Ok(mut judge) = self.server.judge.try_borrow_mut() {
            self.leases.iter().for_each(|(id, token)| judge.ended(id, token));
        }
    }
}
