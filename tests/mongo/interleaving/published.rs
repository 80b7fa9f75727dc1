//! The published algorithm over the raw collection, as other clients run it beside ours. Written from its description.

use std::collections::HashMap;

use futures_util::TryStreamExt as _;
use mongodb::Collection;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::error::Result;
use relayctl::model::Timestamp;
use relayctl::store::ClaimRequest;

/// Blocked deliveries of a key that one claim meets before it parks them.
const PARKING_THRESHOLD: usize = 3;

/// The fields that a take changes.
const TAKEN: [&str; 8] =
    ["status", "lane", "attempts", "dueAt", "updatedAt", "leaseToken", "leaseOwner", "leaseExpiresAt"];

fn date(at: Timestamp) -> DateTime {
    DateTime::from_millis(at.as_millis())
}

/// One claim in progress, for one handler.
pub struct Published<'a> {
    deliveries: Collection<Document>,
    request: &'a ClaimRequest,
    handler: &'a str,
    token: String,
    won: Vec<String>,
    /// The lowest sequence of each key that was found held up: it answers for all later ones.
    held_up: HashMap<String, i64>,
    /// What waits behind an unfinished predecessor.
    blocked: HashMap<String, Vec<String>>,
}

impl<'a> Published<'a> {
    pub fn new(deliveries: Collection<Document>, request: &'a ClaimRequest, token: String) -> Self {
        let (won, held_up, blocked) = (Vec::new(), HashMap::new(), HashMap::new());
        Published { deliveries, request, handler: &request.handlers[0], token, won, held_up, blocked }
    }

    /// Returns the documents that were won.
    pub async fn claim(mut self) -> Result<Vec<Document>> {
        self.unpark().await?;
        let due =
            doc! { "handler": self.handler, "lane": "ready", "dueAt": { "$lte": date(self.request.now) } };
        let mut candidates = self.deliveries.find(due).sort(doc! { "dueAt": 1, "_id": 1 }).await?;
        while self.won.len() < self.request.limit {
            let Some(candidate) = candidates.try_next().await? else { break };
            self.consider(&candidate).await?;
        }
        self.park().await?;
        let won = doc! { "_id": { "$in": &self.won }, "leaseToken": &self.token };
        self.deliveries.find(won).await?.try_collect().await
    }

    async fn consider(&mut self, candidate: &Document) -> Result<()> {
        let (Ok(key), Ok(sequence)) = (candidate.get_str("key"), candidate.get_i64("sequence")) else {
            return self.take(candidate).await.map(drop);
        };
        let is_known = self.held_up.get(key).is_some_and(|held_up| sequence > *held_up);
        let is_blocked = is_known || self.has_predecessor(key, sequence).await?;
        if is_blocked {
            self.blocked.entry(key.to_owned()).or_default().push(id(candidate));
        }
        if is_blocked || self.has_running_sibling(key, &id(candidate)).await? {
            self.held_up.entry(key.to_owned()).or_insert(sequence);
        } else if self.take(candidate).await? {
            self.held_up.insert(key.to_owned(), i64::MIN);
            if self.has_predecessor(key, sequence).await? {
                self.undo(candidate).await?;
            }
        }
        Ok(())
    }

    /// Leases a candidate if it is still as it was read.
    async fn take(&mut self, candidate: &Document) -> Result<bool> {
        let mut pinned = doc! { "_id": id(candidate) };
        for field in ["status", "lane", "attempts", "dueAt"] {
            pinned.insert(field, candidate.get(field).cloned().unwrap_or(Bson::Null));
        }
        let expires_at = date(self.request.now.saturating_add(self.request.lease));
        let lease = doc! {
            "status": "processing",
            "leaseToken": &self.token,
            "leaseOwner": &self.request.owner,
            "leaseExpiresAt": expires_at,
            "dueAt": expires_at,
            "updatedAt": date(self.request.now),
        };
        let update = doc! { "$set": lease, "$inc": { "attempts": 1 } };
        let is_taken = self.deliveries.find_one_and_update(pinned, update).await?.is_some();
        if is_taken {
            self.won.push(id(candidate));
        }
        Ok(is_taken)
    }

    async fn undo(&mut self, candidate: &Document) -> Result<()> {
        let lost = self.won.pop();
        let fence = doc! { "_id": lost, "status": "processing", "leaseToken": &self.token };
        let before =
            TAKEN.iter().filter_map(|field| Some(((*field).to_owned(), candidate.get(field)?.clone())));
        let absent = TAKEN.iter().filter(|field| !candidate.contains_key(field));
        let absent: Document = absent.map(|field| ((*field).to_owned(), Bson::from(1))).collect();
        let mut update = doc! { "$set": before.collect::<Document>() };
        if !absent.is_empty() {
            update.insert("$unset", absent);
        }
        self.deliveries.update_one(fence, update).await.map(drop)
    }

    async fn has_predecessor(&self, key: &str, sequence: i64) -> Result<bool> {
        let earlier = doc! {
            "handler": self.handler, "key": key,
            "sequence": { "$lt": sequence }, "dueAt": { "$exists": true },
        };
        Ok(self.deliveries.find_one(earlier).await?.is_some())
    }

    async fn has_running_sibling(&self, key: &str, id: &str) -> Result<bool> {
        let live = doc! {
            "handler": self.handler, "key": key, "_id": { "$ne": id },
            "status": "processing", "dueAt": { "$gt": date(self.request.now) },
        };
        Ok(self.deliveries.find_one(live).await?.is_some())
    }

    async fn park(&self) -> Result<()> {
        for ids in self.blocked.values().filter(|ids| ids.len() >= PARKING_THRESHOLD) {
            let waiting = doc! { "_id": { "$in": ids }, "lane": "ready", "status": "pending" };
            self.deliveries.update_many(waiting, doc! { "$set": { "lane": "parked" } }).await?;
        }
        Ok(())
    }

    /// Brings back the lowest parked delivery of each key that has no unfinished predecessor.
    async fn unpark(&self) -> Result<()> {
        let keys =
            self.deliveries.distinct("key", doc! { "handler": self.handler, "lane": "parked" }).await?;
        for key in keys.iter().filter_map(Bson::as_str) {
            let parked = doc! { "handler": self.handler, "key": key, "lane": "parked" };
            let lowest = self.deliveries.find_one(parked).sort(doc! { "sequence": 1 }).await?;
            let Some(lowest) = lowest else { continue };
            if !self.has_predecessor(key, lowest.get_i64("sequence").unwrap_or_default()).await? {
                let still = doc! { "_id": id(&lowest), "lane": "parked" };
                self.deliveries.update_one(still, doc! { "$set": { "lane": "ready" } }).await?;
            }
        }
        Ok(())
    }
}

fn id(document: &Document) -> String {
    document.get_str("_id").expect("an id").to_owned()
}
