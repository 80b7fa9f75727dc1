//! What holds handlers up: pauses, and what workers report of their circuit breakers.
//!
//! ```text
//! { _id: handler, pausedAt, pausedUntil?, reason?, by }
//! { _id: { handler, worker }, openedAt, probeAt, failures, lastError, expiresAt }
//! ```
//!
//! The type of the id tells them apart whatever handlers are called, and keeps what every worker reads every second to a
//! range of the index on it: during an outage there may be a report of every worker and handler.

use futures_util::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{Hint, ReturnDocument};

use super::documents::{date, integer};
use super::error::classify;
use super::{ALL_AT_ONCE, MongoStore};
use crate::model::{Pause, Timestamp, TrippedBreaker};
use crate::store::{ErrorKind, Result};

/// How often a write is tried that others of the same id may race: two upserts may both mean to insert.
const TRIES: u32 = 5;

/// See [`Store::pauses`](crate::store::Store::pauses).
pub(super) async fn pauses(store: &MongoStore, now: Timestamp) -> Result<Vec<Pause>> {
    let documents = find(store, "looking for pauses", doc! { "_id": { "$gte": "" } }).await?;
    Ok(documents.iter().filter_map(read_pause).filter(|pause| pause.holds_at(now)).collect())
}

/// See [`Store::tripped_breakers`](crate::store::Store::tripped_breakers).
pub(super) async fn tripped_breakers(store: &MongoStore, now: Timestamp) -> Result<Vec<TrippedBreaker>> {
    let documents = find(store, "looking for open breakers", doc! { "_id": { "$gte": {} } }).await?;
    Ok(documents.iter().filter_map(read_breaker).filter(|breaker| now < breaker.expires_at).collect())
}

async fn find(store: &MongoStore, doing: &str, filter: Document) -> Result<Vec<Document>> {
    let failed = |error| classify(doing, error);
    let controls = store.control_collection();
    let by_id = doc! { "_id": 1 };
    let find = controls.find(filter).sort(by_id.clone()).hint(Hint::Keys(by_id)).batch_size(ALL_AT_ONCE);
    find.await.map_err(failed)?.try_collect().await.map_err(failed)
}

/// See [`Store::pause`](crate::store::Store::pause).
pub(super) async fn pause(store: &MongoStore, pause: &Pause) -> Result<Option<Pause>> {
    let mut tries = 1;
    loop {
        match try_to_pause(store, pause).await {
            Err(error) if error.kind() == ErrorKind::Conflict && tries < TRIES => tries += 1,
            before => return Ok(before?.filter(|before| before.holds_at(pause.paused_at))),
        }
    }
}

async fn try_to_pause(store: &MongoStore, pause: &Pause) -> Result<Option<Pause>> {
    let controls = store.control_collection();
    let update = controls.find_one_and_update(doc! { "_id": &pause.handler }, pausing(pause));
    let update =
        update.upsert(true).return_document(ReturnDocument::Before).hint(Hint::Keys(doc! { "_id": 1 }));
    let before = update.await.map_err(|error| classify("pausing a handler", error))?;
    Ok(before.as_ref().and_then(read_pause))
}

/// A pipeline, since the beginning of a pause that holds stays. What people wrote is a literal: it may begin with `$`.
fn pausing(pause: &Pause) -> Vec<Document> {
    let now = date(pause.paused_at);
    let is_over = doc! { "$and": [
        { "$eq": [{ "$type": "$pausedUntil" }, "date"] },
        { "$lte": ["$pausedUntil", now] },
    ] };
    let holds = doc! { "$and": [{ "$gt": ["$pausedAt", Bson::Null] }, { "$not": [is_over] }] };
    let mut set = doc! {
        "pausedAt": { "$cond": [holds, "$pausedAt", now] },
        "by": { "$literal": &pause.by },
    };
    let mut unset = Vec::new();
    match pause.paused_until {
        Some(until) => drop(set.insert("pausedUntil", date(until))),
        None => unset.push("pausedUntil"),
    }
    match &pause.reason {
        Some(reason) => drop(set.insert("reason", doc! { "$literal": reason })),
        None => unset.push("reason"),
    }
    let unset = (!unset.is_empty()).then(|| doc! { "$unset": unset });
    std::iter::once(doc! { "$set": set }).chain(unset).collect()
}

/// See [`Store::resume`](crate::store::Store::resume).
pub(super) async fn resume(store: &MongoStore, handler: &str, now: Timestamp) -> Result<Option<Pause>> {
    let controls = store.control_collection();
    let before = controls.find_one_and_delete(doc! { "_id": handler }).await;
    let before = before.map_err(|error| classify("resuming a handler", error))?;
    Ok(before.as_ref().and_then(read_pause).filter(|pause| pause.holds_at(now)))
}

/// See [`Store::report_breaker`](crate::store::Store::report_breaker).
pub(super) async fn report_breaker(
    store: &MongoStore,
    breaker: &TrippedBreaker,
    now: Timestamp,
) -> Result<()> {
    let failed = |error| classify("reporting a breaker", error);
    let controls = store.control_collection();
    let id = breaker_id(&breaker.handler, &breaker.worker);
    let report = doc! {
        "openedAt": date(breaker.opened_at),
        "probeAt": date(breaker.probe_at),
        "failures": integer(i64::from(breaker.failures)),
        "lastError": &breaker.last_error,
        "expiresAt": date(breaker.expires_at),
    };
    controls.update_one(doc! { "_id": id }, doc! { "$set": report }).upsert(true).await.map_err(failed)?;
    let expired = doc! { "_id": breakers_of(&breaker.handler), "expiresAt": { "$lte": date(now) } };
    controls.delete_many(expired).hint(Hint::Keys(doc! { "_id": 1 })).await.map_err(failed)?;
    Ok(())
}

/// See [`Store::forget_breaker`](crate::store::Store::forget_breaker).
pub(super) async fn forget_breaker(store: &MongoStore, handler: &str, worker: &str) -> Result<()> {
    let report = doc! { "_id": breaker_id(handler, worker) };
    let deleted = store.control_collection().delete_one(report).await;
    deleted.map(|_| ()).map_err(|error| classify("forgetting a breaker", error))
}

fn breaker_id(handler: &str, worker: &str) -> Document {
    doc! { "handler": handler, "worker": worker }
}

/// The ids of all breakers of a handler: any document is more than any string.
fn breakers_of(handler: &str) -> Document {
    doc! { "$gte": breaker_id(handler, ""), "$lt": { "handler": handler, "worker": {} } }
}

/// A document without `pausedAt` pauses nothing. What else makes no sense counts as absent.
fn read_pause(document: &Document) -> Option<Pause> {
    let text = |name: &str| document.get_str(name).ok().map(str::to_owned);
    let paused_at = document.get("pausedAt").filter(|value| **value != Bson::Null)?;
    Some(Pause {
        handler: text("_id")?,
        paused_at: instant(paused_at).unwrap_or(Timestamp::EPOCH),
        paused_until: document.get("pausedUntil").and_then(instant),
        reason: text("reason"),
        by: text("by").unwrap_or_default(),
    })
}

/// A report that makes no sense tells nothing.
fn read_breaker(document: &Document) -> Option<TrippedBreaker> {
    let id = document.get_document("_id").ok()?;
    let time = |name: &str| document.get(name).and_then(instant);
    let failures = document.get_i64("failures").or_else(|_| document.get_i32("failures").map(i64::from));
    Some(TrippedBreaker {
        handler: id.get_str("handler").ok()?.to_owned(),
        worker: id.get_str("worker").ok()?.to_owned(),
        opened_at: time("openedAt")?,
        probe_at: time("probeAt")?,
        failures: u32::try_from(failures.unwrap_or(0)).unwrap_or(0),
        last_error: document.get_str("lastError").unwrap_or_default().to_owned(),
        expires_at: time("expiresAt")?,
    })
}

fn instant(value: &Bson) -> Option<Timestamp> {
    value.as_datetime().map(|date| Timestamp::from_millis(date.timestamp_millis()))
}
