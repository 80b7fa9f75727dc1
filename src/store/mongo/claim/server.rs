//! The round trips of a claim, on the server.

use std::collections::{HashMap, HashSet};

use futures_util::TryStreamExt as _;
use futures_util::future::try_join_all;
use mongodb::bson::{Bson, DateTime, Document, RawDocumentBuf, doc};
use mongodb::options::Hint;

use super::super::documents::{date, integer, read_delivery};
use super::super::error::classify;
use super::super::settle::{crashed, literal};
use super::super::{ALL_AT_ONCE, BEGINNING, MongoStore, schema};
use super::DOING;
use super::candidate::{Candidate, HISTORY_BEHIND_A_CRASH, HandlerKey, Pin, UNREAD_FIELD};
use super::rounds::{DueHead, Head, Page, PageRequest, Rounds, Take};
use crate::model::{Delivery, LeaseToken, Timestamp};
use crate::store::{Result, StoreError};

impl Rounds for MongoStore {
    async fn page(&self, request: PageRequest<'_>) -> Result<Page> {
        let documents = oldest(self, page_filter(&request), schema::CLAIM, request.size).await?;
        let is_full = documents.len() == request.size;
        Ok(Page { candidates: read_all(documents), is_full })
    }

    async fn unkeyed(&self, handlers: &[String], now: Timestamp, limit: usize) -> Result<Vec<Candidate>> {
        Ok(read_all(oldest(self, unkeyed_filter(handlers, now), schema::OPEN, limit).await?))
    }

    async fn due_heads(&self, handler: &str, until: Timestamp) -> Result<Vec<DueHead>> {
        let groups = group(self, schema::OPEN, due_heads_pipeline(handler, date(until))).await?;
        let due = groups.into_iter().filter_map(|group| {
            let place = (*group.get_datetime("due").ok()?, group.get_str("head").ok()?.to_owned());
            Some(DueHead { place, key: group.get_str("_id").ok()?.to_owned() })
        });
        Ok(due.collect())
    }

    async fn lowest_parked(&self, handlers: &[String]) -> Result<Vec<(HandlerKey, Bson)>> {
        let scans = handlers.iter().map(|handler| async move {
            let groups = group(self, schema::PARKED, parked_pipeline(handler)).await?;
            let lowest = groups.into_iter().filter_map(|group| {
                let key = group.get_str("_id").ok()?.to_owned();
                Some(((handler.clone(), key), group.get("sequence")?.clone()))
            });
            Ok::<_, StoreError>(lowest.collect::<Vec<_>>())
        });
        Ok(try_join_all(scans).await?.concat())
    }

    async fn heads(&self, keys: &HashSet<HandlerKey>) -> Result<HashMap<HandlerKey, Head>> {
        let scans = by_handler(keys).into_iter().map(|(handler, keys)| async move {
            let groups = group(self, schema::OPEN, head_pipeline(handler, &keys)).await?;
            let heads = groups.into_iter().filter_map(|group| {
                let (id, sequence) = (group.get_str("head").ok()?.to_owned(), group.get("sequence")?.clone());
                Some(((handler.to_owned(), group.get_str("_id").ok()?.to_owned()), Head { id, sequence }))
            });
            Ok::<_, StoreError>(heads.collect::<Vec<_>>())
        });
        Ok(try_join_all(scans).await?.into_iter().flatten().collect())
    }

    async fn whole_heads(&self, keys: &HashSet<HandlerKey>) -> Result<Vec<Candidate>> {
        let scans = by_handler(keys).into_iter().map(|(handler, keys)| async move {
            let pipeline = whole_head_pipeline(handler, &keys);
            let deliveries = self.deliveries();
            let cursor = deliveries.aggregate(pipeline).hint(Hint::Name(schema::OPEN.to_owned()));
            let cursor = cursor.with_type::<RawDocumentBuf>().batch_size(ALL_AT_ONCE).await;
            let cursor = cursor.map_err(|error| classify(DOING, error))?;
            cursor.try_collect::<Vec<_>>().await.map_err(|error| classify(DOING, error))
        });
        Ok(read_all(try_join_all(scans).await?.concat()))
    }

    async fn live(
        &self,
        keys: &HashSet<HandlerKey>,
        now: Timestamp,
    ) -> Result<HashMap<HandlerKey, Vec<String>>> {
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let deliveries = self.deliveries();
        let find = deliveries.find(live_filter(keys, now)).projection(doc! { "handler": 1, "key": 1 });
        let cursor = find.hint(Hint::Name(schema::RUNNING.to_owned())).batch_size(ALL_AT_ONCE).await;
        let cursor = cursor.map_err(|error| classify(DOING, error))?;
        let documents: Vec<RawDocumentBuf> =
            cursor.try_collect().await.map_err(|error| classify(DOING, error))?;
        let mut live: HashMap<HandlerKey, Vec<String>> = HashMap::new();
        for document in &documents {
            let text = |field| document.get_str(field).map(str::to_owned);
            if let (Ok(id), Ok(handler), Ok(key)) = (text("_id"), text("handler"), text("key")) {
                live.entry((handler, key)).or_default().push(id);
            }
        }
        Ok(live)
    }

    async fn candidates(&self, ids: Vec<String>, now: Timestamp) -> Result<Vec<Candidate>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let deliveries = self.deliveries();
        let find = deliveries.find(due_filter(&ids, now)).hint(Hint::Keys(doc! { "_id": 1 }));
        let cursor = find.projection(doc! { UNREAD_FIELD: 0 }).batch_size(ALL_AT_ONCE).await;
        let cursor = cursor.map_err(|error| classify(DOING, error))?;
        Ok(read_all(cursor.try_collect().await.map_err(|error| classify(DOING, error))?))
    }

    async fn take(&self, take: Take<'_>) -> Result<u64> {
        let statements = take.groups.iter().map(|(pin, members)| lease_statement(pin, members, &take));
        self.update_deliveries(DOING, statements.collect()).await
    }

    async fn won(&self, ids: &[&str], token: &LeaseToken) -> Result<Vec<Delivery>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let deliveries = self.deliveries();
        let find = deliveries.find(won_filter(ids, token));
        let cursor = find.batch_size(ALL_AT_ONCE).await;
        let cursor = cursor.map_err(|error| classify(DOING, error))?;
        let documents: Vec<RawDocumentBuf> =
            cursor.try_collect().await.map_err(|error| classify(DOING, error))?;
        Ok(documents.iter().filter_map(|document| read_delivery(document).ok()).collect())
    }

    async fn put_back(&self, candidates: &[&Candidate], token: &LeaseToken) -> Result<()> {
        let statements = candidates.iter().map(|candidate| candidate.undo(token));
        self.update_deliveries("putting deliveries back", statements.collect()).await.map(drop)
    }

    async fn park(&self, ids: &[String]) -> Result<()> {
        self.update_deliveries("parking deliveries", vec![parking_statement(ids)]).await.map(drop)
    }
}

fn read_all(documents: Vec<RawDocumentBuf>) -> Vec<Candidate> {
    documents.into_iter().filter_map(Candidate::read).collect()
}

/// The first in the order of claims that an index holds.
async fn oldest(
    store: &MongoStore,
    filter: Document,
    index: &str,
    limit: usize,
) -> Result<Vec<RawDocumentBuf>> {
    let deliveries = store.deliveries();
    let find =
        deliveries.find(filter).hint(Hint::Name(index.to_owned())).projection(doc! { UNREAD_FIELD: 0 });
    // One batch, and no cursor that has to be closed.
    let find = find.sort(doc! { "dueAt": 1, "_id": 1 }).limit(limit as i64).batch_size(limit as u32 + 1);
    let cursor = find.await.map_err(|error| classify(DOING, error))?;
    cursor.try_collect().await.map_err(|error| classify(DOING, error))
}

pub(super) fn page_filter(request: &PageRequest<'_>) -> Document {
    let mut due = doc! { "$lte": date(request.now) };
    let mut filter = doc! { "handler": { "$in": request.handlers }, "lane": "ready" };
    if let Some((due_at, id)) = request.after {
        due.insert("$gte", *due_at);
        filter.insert("$or", vec![doc! { "dueAt": { "$gt": *due_at } }, doc! { "_id": { "$gt": id } }]);
    }
    filter.insert("dueAt", due);
    filter
}

pub(super) fn unkeyed_filter(handlers: &[String], now: Timestamp) -> Document {
    doc! { "handler": { "$in": handlers }, "key": null, "sequence": null, "dueAt": { "$lte": date(now) } }
}

pub(super) fn due_filter(ids: &[String], now: Timestamp) -> Document {
    doc! { "_id": { "$in": ids }, "dueAt": { "$lte": date(now) } }
}

pub(super) fn won_filter(ids: &[&str], token: &LeaseToken) -> Document {
    doc! { "_id": { "$in": ids }, "leaseToken": token.as_str() }
}

pub(super) fn parking_statement(ids: &[String]) -> Document {
    doc! {
        "q": { "_id": { "$in": ids }, "lane": "ready", "status": "pending" },
        "u": { "$set": { "lane": "parked" } },
        "multi": true,
        "hint": { "_id": 1 },
    }
}

pub(super) fn lease_statement(pin: &Pin, members: &[&Candidate], take: &Take<'_>) -> Document {
    let ids: Vec<&str> = members.iter().map(|candidate| candidate.id.as_str()).collect();
    doc! {
        "q": {
            "_id": { "$in": ids },
            "status": &pin.status,
            "attempts": &pin.attempts,
            "requeues": &pin.requeues,
            "leaseToken": &pin.lease_token,
            "dueAt": { "$lte": date(take.grant.now) },
        },
        "u": lease_update(pin, take),
        "multi": true,
        "hint": { "_id": 1 },
    }
}

/// Plain operators cost the server less than a pipeline, which is needed only to remember a crash.
fn lease_update(pin: &Pin, take: &Take<'_>) -> Bson {
    let (now, expires_at) = (date(take.grant.now), date(take.grant.expires_at));
    let (token, owner) = (take.token.as_str(), take.grant.owner);
    let mut set = doc! {
        "status": "processing",
        "lane": "ready",
        "attempts": integer(pin.attempts().saturating_add(1)),
        "leaseToken": token,
        "leaseOwner": owner,
        "leaseExpiresAt": expires_at,
        "dueAt": expires_at,
        "updatedAt": now,
    };
    if !pin.is_crash() {
        return Bson::from(doc! { "$set": set });
    }
    set.extend(doc! { "leaseToken": literal(token), "leaseOwner": literal(owner) });
    set.extend(crashed(HISTORY_BEHIND_A_CRASH, take.grant.now));
    Bson::from(vec![doc! { "$set": set }])
}

pub(super) fn by_handler(keys: &HashSet<HandlerKey>) -> HashMap<&str, Vec<&str>> {
    let mut by_handler: HashMap<&str, Vec<&str>> = HashMap::new();
    for (handler, key) in keys {
        by_handler.entry(handler).or_default().push(key);
    }
    by_handler
}

/// The unfinished delivery of the lowest sequence of each key: one skip scan of the index, which fetches no document.
/// Every predicate is a bound of the index, or the scan would have to fetch and could not skip.
fn head_pipeline(handler: &str, keys: &[&str]) -> Vec<Document> {
    let mut pipeline = in_order(handler, doc! { "$in": keys });
    pipeline.push(
        doc! { "$group": { "_id": "$key", "head": { "$first": "$_id" }, "sequence": { "$first": "$sequence" } } },
    );
    pipeline
}

/// The same, which fetches the heads and nothing else.
fn whole_head_pipeline(handler: &str, keys: &[&str]) -> Vec<Document> {
    let mut pipeline = in_order(handler, doc! { "$in": keys });
    pipeline.extend([
        doc! { "$group": { "_id": "$key", "head": { "$first": "$$ROOT" } } },
        doc! { "$replaceRoot": { "newRoot": "$head" } },
        doc! { "$unset": UNREAD_FIELD },
    ]);
    pipeline
}

/// The heads of all keys of a handler, those that are due.
fn due_heads_pipeline(handler: &str, until: DateTime) -> Vec<Document> {
    let mut pipeline = in_order(handler, doc! { "$gte": "" });
    pipeline.extend([
        doc! { "$group": { "_id": "$key", "head": { "$first": "$_id" }, "due": { "$first": "$dueAt" } } },
        doc! { "$match": { "due": { "$lte": until } } },
    ]);
    pipeline
}

/// The unfinished deliveries of some keys, by bounds of the index alone.
pub(super) fn open_filter(handler: &str, keys: Document) -> Document {
    doc! { "handler": handler, "key": keys, "dueAt": { "$gte": BEGINNING } }
}

fn in_order(handler: &str, keys: Document) -> Vec<Document> {
    vec![doc! { "$match": open_filter(handler, keys) }, doc! { "$sort": { "key": 1, "sequence": 1 } }]
}

pub(super) fn parked_filter(handler: &str) -> Document {
    doc! { "handler": handler, "lane": "parked" }
}

fn parked_pipeline(handler: &str) -> Vec<Document> {
    vec![
        doc! { "$match": parked_filter(handler) },
        doc! { "$sort": { "key": 1, "sequence": 1 } },
        doc! { "$group": { "_id": "$key", "sequence": { "$first": "$sequence" } } },
    ]
}

async fn group(store: &MongoStore, index: &str, pipeline: Vec<Document>) -> Result<Vec<Document>> {
    let deliveries = store.deliveries();
    let cursor = deliveries.aggregate(pipeline).hint(Hint::Name(index.to_owned())).batch_size(ALL_AT_ONCE);
    let cursor = cursor.await.map_err(|error| classify(DOING, error))?;
    cursor.try_collect().await.map_err(|error| classify(DOING, error))
}

pub(super) fn live_filter(keys: &HashSet<HandlerKey>, now: Timestamp) -> Document {
    let handlers: HashSet<&str> = keys.iter().map(|(handler, _)| handler.as_str()).collect();
    let keys: HashSet<&str> = keys.iter().map(|(_, key)| key.as_str()).collect();
    doc! {
        "handler": { "$in": handlers.into_iter().collect::<Vec<_>>() },
        "key": { "$in": keys.into_iter().collect::<Vec<_>>() },
        "status": "processing",
        "dueAt": { "$gt": date(now) },
    }
}
