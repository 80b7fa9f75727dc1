//! The published algorithm, for comparison: optimistic claims of one delivery per round trip, written anew from its
//! description. It shares no code with the store.
//!
//! Each keyed candidate costs two reads before its write (an unfinished predecessor, a live lease) and one behind it;
//! what was learnt about a key answers its later deliveries. Keys of which many deliveries wait behind an unfinished
//! predecessor are parked, and every claim first brings back the lowest parked delivery of each key that has none.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use futures_util::TryStreamExt as _;
use futures_util::stream::{self, StreamExt as _};
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Collection, IndexModel};

use crate::data::{HANDLER, LEASE, NOW, date};

/// Blocked deliveries of a key that one claim meets before it parks them.
const PARKING_THRESHOLD: usize = 32;

/// Creates the published indexes.
pub async fn create_indexes(deliveries: &Collection<Document>) -> Result<()> {
    let unfinished = || doc! { "dueAt": { "$exists": true } };
    let claimable = doc! { "lane": "ready", "dueAt": { "$exists": true } };
    let completed = doc! { "completedAt": { "$exists": true } };
    let order = || doc! { "handler": 1, "key": 1, "sequence": 1 };
    let running = doc! { "handler": 1, "key": 1, "dueAt": 1 };
    let mut indexes = vec![
        partial("claim", doc! { "handler": 1, "dueAt": 1, "_id": 1 }, claimable),
        partial("ordering", order(), unfinished()),
        partial("parked", order(), doc! { "lane": "parked" }),
        partial("running", running, doc! { "status": "processing" }),
        partial("due", doc! { "dueAt": 1 }, unfinished()),
        partial("completed", doc! { "completedAt": 1 }, completed),
    ];
    let unique = IndexOptions::builder().unique(true).build();
    indexes.push(IndexModel::builder().keys(doc! { "eventId": 1, "handler": 1 }).options(unique).build());
    for (field, then) in [
        ("status", "createdAt"),
        ("status", "updatedAt"),
        ("handler", "createdAt"),
        ("eventType", "createdAt"),
    ] {
        indexes.push(IndexModel::builder().keys(doc! { field: 1, then: 1 }).build());
    }
    deliveries.create_indexes(indexes).await?;
    Ok(())
}

fn partial(name: &str, keys: Document, filter: Document) -> IndexModel {
    let options = IndexOptions::builder().name(name.to_owned()).partial_filter_expression(filter).build();
    IndexModel::builder().keys(keys).options(options).build()
}

/// A delivery that was claimed.
#[derive(Clone, Debug)]
pub struct Leased {
    pub id: String,
    token: String,
}

/// Claims up to `limit` deliveries.
pub async fn claim(deliveries: &Collection<Document>, limit: usize) -> Result<Vec<Leased>> {
    unpark(deliveries).await?;
    let mut claim = Claim { deliveries, won: Vec::new(), keys: HashMap::new(), blocked: HashMap::new() };
    let due = doc! { "handler": { "$in": [HANDLER] }, "lane": "ready", "dueAt": { "$lte": date(NOW) } };
    let mut candidates = deliveries.find(due).sort(doc! { "dueAt": 1, "_id": 1 }).await?;
    while claim.won.len() < limit {
        let Some(candidate) = candidates.try_next().await? else { break };
        claim.consider(&candidate).await?;
    }
    claim.park().await?;
    Ok(claim.won)
}

/// Completes deliveries, one update each, `width` of them at a time.
async fn complete(deliveries: &Collection<Document>, leased: Vec<Leased>, width: usize) -> Result<()> {
    let update = doc! {
        "$set": { "status": "completed", "completedAt": date(NOW), "updatedAt": date(NOW) },
        "$unset": { "dueAt": 1, "leaseToken": 1, "leaseOwner": 1, "leaseExpiresAt": 1 },
    };
    let complete_one = async |one: Leased| {
        let fence = doc! { "_id": one.id, "status": "processing", "leaseToken": one.token };
        anyhow::Ok(deliveries.update_one(fence, update.clone()).await?)
    };
    stream::iter(leased).map(complete_one).buffer_unordered(width).try_for_each(async |_| Ok(())).await
}

/// Claims and completes until `count` deliveries are done, with as many slots; returns how many were.
pub async fn work(deliveries: &Collection<Document>, slots: usize, count: usize) -> Result<usize> {
    let mut done = 0;
    while done < count {
        let leased = claim(deliveries, slots).await?;
        ensure!(!leased.is_empty(), "the published algorithm claimed nothing");
        done += leased.len();
        complete(deliveries, leased, slots).await?;
    }
    Ok(done)
}

/// Why no further delivery of a key can be taken by this claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hindrance {
    /// An earlier one is unfinished.
    Predecessor,
    /// One of the key runs, under this claim's lease or another.
    Lease,
}

struct Claim<'a> {
    deliveries: &'a Collection<Document>,
    won: Vec<Leased>,
    /// What was learnt about keys.
    keys: HashMap<String, Hindrance>,
    /// The deliveries of each key that wait behind an unfinished predecessor.
    blocked: HashMap<String, Vec<String>>,
}

impl Claim<'_> {
    async fn consider(&mut self, candidate: &Document) -> Result<()> {
        let id = candidate.get_str("_id")?;
        let Ok(key) = candidate.get_str("key") else {
            return self.take(candidate).await.map(drop);
        };
        let hindrance = match self.keys.get(key) {
            Some(known) => Some(*known),
            None => self.look_up(candidate, key).await?,
        };
        if let Some(hindrance) = hindrance {
            self.keys.insert(key.to_owned(), hindrance);
            if hindrance == Hindrance::Predecessor {
                self.blocked.entry(key.to_owned()).or_default().push(id.to_owned());
            }
        } else if self.take(candidate).await? {
            self.confirm(candidate, key).await?;
        }
        Ok(())
    }

    async fn look_up(&self, candidate: &Document, key: &str) -> Result<Option<Hindrance>> {
        if has_predecessor(self.deliveries, key, candidate.get("sequence")).await? {
            return Ok(Some(Hindrance::Predecessor));
        }
        let live = doc! {
            "handler": HANDLER,
            "key": key,
            "status": "processing",
            "dueAt": { "$gt": date(NOW) },
            "_id": { "$ne": candidate.get_str("_id")? },
        };
        let live = self.deliveries.find_one(live).projection(doc! { "_id": 1 }).await?;
        Ok(live.map(|_| Hindrance::Lease))
    }

    /// Leases a candidate if it is still as it was read.
    async fn take(&mut self, candidate: &Document) -> Result<bool> {
        let id = candidate.get_str("_id")?;
        let token = uuid::Uuid::now_v7().to_string();
        let mut pinned = doc! { "_id": id };
        for field in ["status", "lane", "attempts", "dueAt"] {
            pinned.insert(field, candidate.get(field).cloned().unwrap_or(Bson::Null));
        }
        let expires_at = date(NOW.saturating_add(LEASE));
        let update = doc! {
            "$set": {
                "status": "processing",
                "leaseToken": &token,
                "leaseOwner": "published",
                "leaseExpiresAt": expires_at,
                "dueAt": expires_at,
                "updatedAt": date(NOW),
            },
            "$inc": { "attempts": 1 },
        };
        let taken = self.deliveries.find_one_and_update(pinned, update).await?.is_some();
        if taken {
            self.won.push(Leased { id: id.to_owned(), token });
        }
        Ok(taken)
    }

    /// Looks for a predecessor again behind the take, and puts the delivery back when there is one.
    async fn confirm(&mut self, candidate: &Document, key: &str) -> Result<()> {
        self.keys.insert(key.to_owned(), Hindrance::Lease);
        if !has_predecessor(self.deliveries, key, candidate.get("sequence")).await? {
            return Ok(());
        }
        let Some(lost) = self.won.pop() else { return Ok(()) };
        let fence = doc! { "_id": lost.id, "status": "processing", "leaseToken": lost.token };
        let mut before = candidate.clone();
        before.remove("_id");
        let update = doc! {
            "$set": before,
            "$unset": { "leaseToken": 1, "leaseOwner": 1, "leaseExpiresAt": 1 },
        };
        self.deliveries.update_one(fence, update).await?;
        self.keys.insert(key.to_owned(), Hindrance::Predecessor);
        Ok(())
    }

    async fn park(&self) -> Result<()> {
        for ids in self.blocked.values().filter(|ids| ids.len() >= PARKING_THRESHOLD) {
            let waiting = doc! { "_id": { "$in": ids }, "lane": "ready", "status": "pending" };
            self.deliveries.update_many(waiting, doc! { "$set": { "lane": "parked" } }).await?;
        }
        Ok(())
    }
}

async fn has_predecessor(
    deliveries: &Collection<Document>,
    key: &str,
    sequence: Option<&Bson>,
) -> Result<bool> {
    let earlier = doc! {
        "handler": HANDLER,
        "key": key,
        "sequence": { "$lt": sequence.cloned().unwrap_or(Bson::Null) },
        "dueAt": { "$exists": true },
    };
    Ok(deliveries.find_one(earlier).projection(doc! { "_id": 1 }).await?.is_some())
}

/// Brings back the lowest parked delivery of each key without an unfinished predecessor: two reads for each key.
async fn unpark(deliveries: &Collection<Document>) -> Result<()> {
    let keys = deliveries.distinct("key", doc! { "handler": HANDLER, "lane": "parked" }).await?;
    for key in keys.iter().filter_map(Bson::as_str) {
        let parked = doc! { "handler": HANDLER, "key": key, "lane": "parked" };
        let lowest = deliveries.find_one(parked).sort(doc! { "sequence": 1 }).await?;
        let Some(lowest) = lowest else { continue };
        if !has_predecessor(deliveries, key, lowest.get("sequence")).await? {
            let parked = doc! { "_id": lowest.get_str("_id")?, "lane": "parked" };
            deliveries.update_one(parked, doc! { "$set": { "lane": "ready" } }).await?;
        }
    }
    Ok(())
}
