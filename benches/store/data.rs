//! Outboxes with known contents: deterministic documents, loaded with raw inserts, written to with raw updates.

use std::time::Duration;

use anyhow::{Result, ensure};
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::{DatabaseOptions, Hint, ReadConcern, WriteConcern};
use mongodb::{Client, Collection, Database};
use relayctl::model::Timestamp;
use relayctl::store::mongo::{DEFAULT_PREFIX, MongoOptions, MongoStore};
use relayctl::store::{ClaimRequest, Store as _};

use crate::harness::Lab;
use crate::published;

/// The time at which everything is measured; stores and workers are told it.
pub const NOW: Timestamp = Timestamp::from_millis(1_764_528_000_000);

/// The handler of every delivery.
pub const HANDLER: &str = "receipts";

/// The type of every event.
pub const EVENT_TYPE: &str = "order.placed.v1";

/// How long leases last here.
pub const LEASE: Duration = Duration::from_secs(60);

/// The first delivery of an outbox became due so long before [`NOW`], the others one millisecond after another.
const BACKLOG: Duration = Duration::from_secs(3_600);

/// When delayed deliveries are due, and the leases of other workers end, from [`NOW`].
const FAR: Duration = Duration::from_secs(3_600);

/// Documents in one insert, and ids in one update.
const BATCH: usize = 10_000;

/// What a delivery is like when it is loaded. They become due in the order in which they are loaded.
#[derive(Clone, Debug)]
pub struct Seed {
    pub state: State,
    /// The ordering key and the place among its events.
    pub key: Option<(String, i64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Pending and due.
    Due,
    /// Pending, due later.
    Delayed,
    /// Under the live lease of another worker.
    Running,
    Completed,
}

impl Seed {
    pub fn unkeyed(state: State) -> Self {
        Seed { state, key: None }
    }

    pub fn keyed(state: State, key: String, sequence: i64) -> Self {
        Seed { state, key: Some((key, sequence)) }
    }
}

/// Which indexes an outbox has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexes {
    /// Those that setup creates.
    Ours,
    /// Those of the published design.
    Published,
}

/// An outbox in a database of its own.
pub struct Outbox {
    database: Database,
    pub deliveries: Collection<Document>,
    pub events: Collection<Document>,
    /// The ids of the deliveries that were loaded as due, the oldest first.
    due: Vec<String>,
    /// How many of them were handed out as known ids, from the youngest on.
    known: usize,
    /// What was changed since it was loaded, or since the last reset.
    changed: Vec<String>,
}

impl Outbox {
    /// Deliveries alone, which is all that a claim reads.
    pub async fn load(
        lab: &Lab,
        name: &str,
        indexes: Indexes,
        seeds: impl Iterator<Item = Seed>,
    ) -> Result<Self> {
        Self::fill(lab, name, indexes, seeds, false).await
    }

    /// Deliveries with their events, for a worker.
    pub async fn load_with_events(lab: &Lab, name: &str, seeds: impl Iterator<Item = Seed>) -> Result<Self> {
        Self::fill(lab, name, Indexes::Ours, seeds, true).await
    }

    async fn fill(
        lab: &Lab,
        name: &str,
        indexes: Indexes,
        seeds: impl Iterator<Item = Seed>,
        with_events: bool,
    ) -> Result<Self> {
        let mut outbox = Outbox::empty(lab, name);
        let mut seeds = seeds.enumerate().peekable();
        while seeds.peek().is_some() {
            let batch: Vec<(usize, Seed)> = seeds.by_ref().take(BATCH).collect();
            let due = batch.iter().filter(|(_, seed)| seed.state == State::Due);
            outbox.due.extend(due.map(|(number, _)| delivery_id(*number)));
            let deliveries = batch.iter().map(|(number, seed)| delivery_document(*number, seed));
            insert(&outbox.deliveries, deliveries.collect()).await?;
            if with_events {
                insert(
                    &outbox.events,
                    batch.iter().map(|(number, seed)| event_document(*number, seed)).collect(),
                )
                .await?;
            }
        }
        // Indexes that are built over what is there take a fraction of the time.
        match indexes {
            Indexes::Ours => outbox.store()?.setup().await.map(drop)?,
            Indexes::Published => published::create_indexes(&outbox.deliveries).await?,
        }
        settle_down(&lab.client).await?;
        Ok(outbox)
    }

    fn empty(lab: &Lab, name: &str) -> Self {
        let concerns = DatabaseOptions::builder()
            .read_concern(ReadConcern::majority())
            .write_concern(WriteConcern::majority())
            .build();
        let database = lab.client.database_with_options(&lab.database_name(name), concerns);
        let collection = |name| database.collection(&format!("{DEFAULT_PREFIX}{name}"));
        let (deliveries, events) = (collection("deliveries"), collection("events"));
        Outbox { database, deliveries, events, due: Vec::new(), known: 0, changed: Vec::new() }
    }

    /// A store that knows nothing of this outbox yet.
    pub fn store(&self) -> Result<MongoStore> {
        let database = Some(self.database.name().to_owned());
        Ok(MongoStore::new(self.database.client(), MongoOptions { database, ..MongoOptions::default() })?)
    }

    /// Ids of due deliveries, from the youngest on: a claim begins at the other end.
    pub fn take_known(&mut self, count: usize) -> Result<Vec<String>> {
        let end = self.due.len() - self.known;
        ensure!(count <= end, "the outbox has no {count} more deliveries");
        self.known += count;
        Ok(self.due[end - count..end].to_vec())
    }

    /// Ids of due deliveries, from the oldest on, that nothing else hands out; for outboxes without claims.
    pub fn due_in_order(&self) -> &[String] {
        &self.due
    }

    /// Leases known deliveries in one update: the least that a claim has to write.
    pub async fn lease_known(&self, ids: &[String], token: &str) -> Result<()> {
        let now = date(NOW);
        let expires_at = date(NOW.saturating_add(LEASE));
        let filter =
            doc! { "_id": { "$in": ids }, "status": "pending", "attempts": 0, "dueAt": { "$lte": now } };
        let update = doc! { "$set": {
            "status": "processing",
            "lane": "ready",
            "attempts": 1,
            "leaseToken": token,
            "leaseOwner": "floor",
            "leaseExpiresAt": expires_at,
            "dueAt": expires_at,
            "updatedAt": now,
        } };
        let result = self.deliveries.update_many(filter, update).hint(by_id()).await?;
        ensure!(result.matched_count == ids.len() as u64, "the floor leased {}", result.matched_count);
        Ok(())
    }

    /// Completes deliveries that were leased with `token` in one update.
    pub async fn complete_known(&self, ids: &[String], token: &str) -> Result<()> {
        let filter = doc! { "_id": { "$in": ids }, "status": "processing", "leaseToken": token };
        let result = self.deliveries.update_many(filter, completion()).hint(by_id()).await?;
        ensure!(result.matched_count == ids.len() as u64, "the floor completed {}", result.matched_count);
        Ok(())
    }

    /// Completes deliveries whoever holds them, so that a claim is followed by what follows it in life.
    pub async fn finish(&mut self, ids: Vec<String>) -> Result<()> {
        self.deliveries.update_many(doc! { "_id": { "$in": &ids } }, completion()).hint(by_id()).await?;
        self.changed.extend(ids);
        Ok(())
    }

    /// Brings back what was loaded: what was finished, and what was parked.
    pub async fn reset(&mut self) -> Result<()> {
        let parked = doc! { "handler": HANDLER, "lane": "parked" };
        let ready = doc! { "$set": { "lane": "ready" } };
        let parked = self.deliveries.update_many(parked, ready).await?.modified_count;
        for ids in std::mem::take(&mut self.changed).chunks(BATCH) {
            self.deliveries.update_many(doc! { "_id": { "$in": ids } }, restoration()).hint(by_id()).await?;
        }
        self.known = 0;
        if parked > 0 {
            settle_down(self.database.client()).await?;
        }
        Ok(())
    }

    pub async fn count_completed(&self) -> Result<u64> {
        Ok(self.deliveries.count_documents(doc! { "status": "completed" }).await?)
    }
}

async fn insert(collection: &Collection<Document>, documents: Vec<Document>) -> Result<()> {
    let acknowledged = WriteConcern::builder().w(mongodb::options::Acknowledgment::Nodes(1)).build();
    collection.insert_many(documents).ordered(false).write_concern(acknowledged).await?;
    Ok(())
}

/// Writes what was changed to disk now, so that the server does not do it while something is measured.
async fn settle_down(client: &Client) -> Result<()> {
    client.database("admin").run_command(doc! { "fsync": 1 }).await?;
    Ok(())
}

/// A claim for the one handler.
pub fn claim_request(limit: usize) -> ClaimRequest {
    ClaimRequest {
        handlers: vec![HANDLER.to_owned()],
        limit,
        lease: LEASE,
        owner: "bench".to_owned(),
        now: NOW,
    }
}

pub fn date(instant: Timestamp) -> DateTime {
    DateTime::from_millis(instant.as_millis())
}

pub fn by_id() -> Hint {
    Hint::Keys(doc! { "_id": 1 })
}

/// As long as a UUID and in the order of the numbers, as those of version 7 are in the order of time.
pub fn delivery_id(number: usize) -> String {
    format!("00000000-0000-7000-8000-{number:012}")
}

pub fn event_id(number: usize) -> String {
    format!("00000000-0000-7000-9000-{number:012}")
}

/// A delivery as the store would have written it.
pub fn delivery_document(number: usize, seed: &Seed) -> Document {
    let due_at = date(NOW.saturating_sub(BACKLOG).saturating_add(Duration::from_millis(number as u64)));
    let far = date(NOW.saturating_add(FAR));
    let mut document = doc! {
        "_id": delivery_id(number),
        "eventId": event_id(number),
        "eventType": EVENT_TYPE,
        "handler": HANDLER,
    };
    if let Some((key, sequence)) = &seed.key {
        document.extend(doc! { "key": key, "sequence": sequence });
    }
    let available_at = if seed.state == State::Delayed { far } else { due_at };
    document.extend(doc! {
        "status": "pending",
        "lane": "ready",
        "attempts": 0,
        "availableAt": available_at,
        "dueAt": available_at,
        "createdAt": due_at,
        "updatedAt": due_at,
    });
    match seed.state {
        State::Due | State::Delayed => {}
        State::Running => document.extend(doc! {
            "status": "processing",
            "attempts": 1,
            "dueAt": far,
            "leaseExpiresAt": far,
            "leaseToken": format!("token of {number}"),
            "leaseOwner": "another worker",
        }),
        State::Completed => {
            document.extend(doc! { "status": "completed", "attempts": 1, "completedAt": due_at });
            document.remove("dueAt");
        }
    }
    document
}

/// Its event.
pub fn event_document(number: usize, seed: &Seed) -> Document {
    let created_at = date(NOW.saturating_sub(BACKLOG).saturating_add(Duration::from_millis(number as u64)));
    let mut document = doc! {
        "_id": event_id(number),
        "type": EVENT_TYPE,
        "payload": { "orderId": format!("o-{number}"), "total": 4_200, "currency": "EUR" },
        "headers": {},
    };
    if let Some((key, sequence)) = &seed.key {
        document.extend(doc! { "key": key, "sequence": sequence });
    }
    document.insert("createdAt", created_at);
    document
}

fn completion() -> Document {
    doc! {
        "$set": {
            "status": "completed",
            "lane": "ready",
            "completedAt": date(NOW),
            "updatedAt": date(NOW),
        },
        "$unset": { "dueAt": 1, "leaseToken": 1, "leaseOwner": 1, "leaseExpiresAt": 1 },
    }
}

/// Makes deliveries that were loaded as due what they were.
fn restoration() -> Vec<Document> {
    let set = doc! {
        "status": "pending",
        "lane": "ready",
        "attempts": 0,
        "dueAt": "$availableAt",
        "updatedAt": "$createdAt",
    };
    vec![
        doc! { "$set": set },
        doc! { "$unset": ["completedAt", "leaseToken", "leaseOwner", "leaseExpiresAt"] },
    ]
}
