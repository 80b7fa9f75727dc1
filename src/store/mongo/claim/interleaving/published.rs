//! The published algorithm, as other clients run it beside ours: one delivery after the other, with two reads before each
//! write of a keyed one and one behind it; parking, and bringing back. Written from its description.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, DateTime, Document, doc};

use super::super::super::documents::date;
use super::super::candidate::TAKEN_FIELDS;
use super::matching::matches;
use super::server::{Deliveries, Purpose, Server, Write};
use crate::model::{DeliveryId, Lease, LeaseToken};
use crate::store::{ClaimRequest, Claimed, Result};

/// Blocked deliveries of a key that one claim meets before it parks them.
const PARKING_THRESHOLD: usize = 3;

/// One claim in progress.
pub(super) struct Published<'a> {
    pub(super) server: &'a Server,
    pub(super) request: &'a ClaimRequest,
    pub(super) token: String,
    won: Vec<Claimed>,
    /// The lowest sequence of each handler and key that was found held up: it answers for all later ones.
    held_up: BTreeMap<(String, String), i64>,
    /// What waits behind an unfinished predecessor.
    blocked: BTreeMap<(String, String), Vec<String>>,
}

impl<'a> Published<'a> {
    pub(super) fn new(server: &'a Server, request: &'a ClaimRequest, token: String) -> Self {
        let (held_up, blocked) = (BTreeMap::new(), BTreeMap::new());
        Published { server, request, token, won: Vec::new(), held_up, blocked }
    }

    pub(super) async fn claim(mut self) -> Result<Vec<Claimed>> {
        match self.run().await {
            Err(error) if self.won.is_empty() => Err(error),
            _ => Ok(self.won),
        }
    }

    async fn run(&mut self) -> Result<()> {
        self.unpark().await?;
        let due = doc! {
            "handler": { "$in": &self.request.handlers },
            "lane": "ready",
            "dueAt": { "$lte": date(self.request.now) },
        };
        for candidate in self.server.read("all due", |all| by_age(all, &due)).await? {
            if self.won.len() == self.request.limit {
                return Ok(());
            }
            self.consider(&candidate).await?;
        }
        self.park().await
    }

    async fn consider(&mut self, candidate: &Document) -> Result<()> {
        let Some((key, sequence)) = handler_key(candidate) else {
            return self.take(candidate).await.map(drop);
        };
        let is_known = self.held_up.get(&key).is_some_and(|held_up| sequence > *held_up);
        let is_blocked = is_known || self.has_predecessor(candidate).await?;
        if is_blocked {
            self.blocked.entry(key.clone()).or_default().push(text(candidate, "_id"));
        }
        if is_blocked || self.has_running_sibling(candidate).await? {
            self.held_up.entry(key).or_insert(sequence);
            return Ok(());
        }
        if self.take(candidate).await? {
            self.held_up.insert(key, i64::MIN);
            self.confirm(candidate).await?;
        }
        Ok(())
    }

    /// Leases a candidate if it is still as it was read.
    async fn take(&mut self, candidate: &Document) -> Result<bool> {
        let mut pinned = doc! { "_id": text(candidate, "_id") };
        for field in ["status", "lane", "attempts", "dueAt"] {
            pinned.insert(field, candidate.get(field).cloned().unwrap_or(Bson::Null));
        }
        let lease = self.lease();
        let purpose = Purpose::Take { token: self.token.clone(), now: self.request.now };
        let write = Write::new(purpose, pinned, move |delivery| take_lease(delivery, &lease));
        if self.server.command(vec![write]).await? == 0 {
            return Ok(false);
        }
        let delivery = self.server.judge.borrow().delivery_taken(&text(candidate, "_id"), &self.token);
        let id = DeliveryId::from(text(candidate, "_id"));
        let lease = Lease { delivery_id: id, token: LeaseToken::from(self.token.clone()) };
        self.won.push(Claimed { lease, delivery });
        Ok(true)
    }

    fn lease(&self) -> Document {
        let expires_at = date(self.request.now.saturating_add(self.request.lease));
        doc! {
            "status": "processing",
            "leaseToken": &self.token,
            "leaseOwner": &self.request.owner,
            "leaseExpiresAt": expires_at,
            "dueAt": expires_at,
            "updatedAt": date(self.request.now),
        }
    }

    /// Looks for a predecessor again behind the take, and puts the delivery back when there is one.
    async fn confirm(&mut self, candidate: &Document) -> Result<()> {
        let answer = self.has_predecessor(candidate).await;
        if matches!(answer, Ok(false)) {
            return Ok(());
        }
        // Unconfirmed is not won, whatever the reason.
        self.won.pop();
        answer?;
        let fence = doc! { "_id": text(candidate, "_id"), "status": "processing", "leaseToken": &self.token };
        let before = candidate.clone();
        let purpose = Purpose::Undo { token: self.token.clone() };
        let undo = Write::new(purpose, fence, move |delivery| restore(delivery, &before));
        self.server.command(vec![undo]).await.map(drop)
    }

    async fn has_predecessor(&self, candidate: &Document) -> Result<bool> {
        let earlier = doc! {
            "handler": candidate.get("handler"),
            "key": candidate.get("key"),
            "sequence": { "$lt": candidate.get("sequence") },
            "dueAt": { "$exists": true },
        };
        self.server.read("predecessor", |all| any(all, &earlier)).await
    }

    async fn has_running_sibling(&self, candidate: &Document) -> Result<bool> {
        let live = doc! {
            "handler": candidate.get("handler"),
            "key": candidate.get("key"),
            "status": "processing",
            "dueAt": { "$gt": date(self.request.now) },
            "_id": { "$ne": candidate.get("_id") },
        };
        self.server.read("running sibling", |all| any(all, &live)).await
    }

    async fn park(&self) -> Result<()> {
        for ids in self.blocked.values().filter(|ids| ids.len() >= PARKING_THRESHOLD) {
            let waiting = doc! { "_id": { "$in": ids }, "lane": "ready", "status": "pending" };
            self.server
                .command(vec![Write::new(Purpose::Lane, waiting, |one| set_lane(one, "parked"))])
                .await?;
        }
        Ok(())
    }

    /// Brings back the lowest parked delivery of each key that has no unfinished predecessor.
    async fn unpark(&self) -> Result<()> {
        for handler in &self.request.handlers {
            let parked = doc! { "handler": handler, "lane": "parked" };
            for lowest in self.server.read("parked", |all| lowest_of_keys(all, &parked)).await? {
                if !self.has_predecessor(&lowest).await? {
                    let still = doc! { "_id": text(&lowest, "_id"), "lane": "parked" };
                    let write = Write::new(Purpose::Lane, still, |one| set_lane(one, "ready"));
                    self.server.command(vec![write]).await?;
                }
            }
        }
        Ok(())
    }
}

fn by_age(all: &Deliveries, filter: &Document) -> Vec<Document> {
    let mut found: Vec<Document> = all.values().filter(|one| matches(one, filter)).cloned().collect();
    let due_at = |one: &Document| one.get_datetime("dueAt").copied().unwrap_or(DateTime::MIN);
    found.sort_by_key(|one| (due_at(one), text(one, "_id")));
    found
}

fn lowest_of_keys(all: &Deliveries, filter: &Document) -> Vec<Document> {
    let mut lowest: BTreeMap<(String, String), (i64, &Document)> = BTreeMap::new();
    for one in all.values().filter(|one| matches(one, filter)) {
        let Some((key, sequence)) = handler_key(one) else { continue };
        let entry = lowest.entry(key).or_insert((sequence, one));
        *entry = if sequence < entry.0 { (sequence, one) } else { *entry };
    }
    lowest.into_values().map(|(_, one)| one.clone()).collect()
}

fn any(all: &Deliveries, filter: &Document) -> bool {
    all.values().any(|one| matches(one, filter))
}

fn take_lease(delivery: &mut Document, lease: &Document) {
    let attempts = delivery.get_i32("attempts").unwrap_or_default();
    delivery.insert("attempts", attempts + 1);
    delivery.extend(lease.clone());
}

fn restore(delivery: &mut Document, before: &Document) {
    for field in TAKEN_FIELDS {
        match before.get(field) {
            Some(value) => drop(delivery.insert(field, value.clone())),
            None => drop(delivery.remove(field)),
        }
    }
}

fn set_lane(delivery: &mut Document, lane: &str) {
    delivery.insert("lane", lane);
}

fn text(document: &Document, field: &str) -> String {
    document.get_str(field).unwrap_or_default().to_owned()
}

fn handler_key(document: &Document) -> Option<((String, String), i64)> {
    let key = document.get_str("key").ok()?.to_owned();
    Some(((text(document, "handler"), key), document.get_i64("sequence").ok()?))
}
