//! Outcomes of attempts, each fenced by its lease.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::UpdateModifications;

use super::MongoStore;
use super::documents::date;
use super::error::classify;
use crate::model::{Failure, Lease, MAX_ERROR_HISTORY, Timestamp};
use crate::store::{ErrorKind, Fenced, Outcome, Result, Settlement, StoreError};

const DOING: &str = "recording an outcome";

/// Settlements in flight at once.
const WIDTH: usize = 16;

/// See [`Store::settle`](crate::store::Store::settle).
pub(super) async fn settle(
    store: &MongoStore,
    settlements: &[Settlement],
    now: Timestamp,
) -> Result<Vec<Fenced>> {
    let calls: Vec<_> = settlements.iter().map(|settlement| settle_one(store, settlement, now)).collect();
    stream::iter(calls).buffered(WIDTH).try_collect().await
}

async fn settle_one(store: &MongoStore, settlement: &Settlement, now: Timestamp) -> Result<Fenced> {
    let update = update(&settlement.outcome, now);
    let passed = store.update_delivery(DOING, fence(&settlement.lease), update).await?;
    Ok(if passed { Fenced::Applied } else { Fenced::LeaseLost })
}

/// Completes with the transaction of `session`.
pub(super) async fn complete_in(
    store: &MongoStore,
    session: &mut ClientSession,
    lease: &Lease,
    now: Timestamp,
) -> Result<Fenced> {
    let update = UpdateModifications::Pipeline(completed(now));
    let result = store.deliveries().update_one(fence(lease), update).session(session).await;
    let matched = result.map_err(|error| classify(DOING, error))?.matched_count;
    Ok(if matched == 0 { Fenced::LeaseLost } else { Fenced::Applied })
}

/// How many documents a reply to an update command says were matched, or the error that it carries.
pub(super) fn changed_by(doing: &str, reply: Document) -> Result<u64> {
    let failure =
        |message: &str| StoreError::new(ErrorKind::Unavailable, format!("{doing} failed: {message}"));
    if let Ok(errors) = reply.get_array("writeErrors") {
        let first = errors.first().and_then(Bson::as_document);
        return Err(failure(
            first.and_then(|error| error.get_str("errmsg").ok()).unwrap_or("a write was refused"),
        ));
    }
    if let Ok(error) = reply.get_document("writeConcernError") {
        return Err(failure(error.get_str("errmsg").unwrap_or("a majority did not confirm the write")));
    }
    let matched = reply.get_i32("n").map(i64::from).or_else(|_| reply.get_i64("n")).unwrap_or(0);
    Ok(u64::try_from(matched).unwrap_or(0))
}

/// The filter that lets only the holder of the lease through.
fn fence(lease: &Lease) -> Document {
    doc! { "_id": lease.delivery_id.as_str(), "status": "processing", "leaseToken": lease.token.as_str() }
}

fn update(outcome: &Outcome, now: Timestamp) -> Vec<Document> {
    match outcome {
        Outcome::Complete => completed(now),
        Outcome::Reschedule { available_at, failure } => {
            let mut set = remembered(failure, now);
            set.extend(waiting(Bson::from(date(*available_at)), now));
            vec![doc! { "$set": set }, drop_lease()]
        }
        Outcome::Release => {
            let attempts = doc! { "$max": [0, { "$subtract": [number("$attempts"), 1] }] };
            let available_at = doc! { "$ifNull": ["$availableAt", "$dueAt"] };
            let mut set = waiting(Bson::from(available_at), now);
            set.insert("attempts", attempts);
            vec![doc! { "$set": set }, drop_lease()]
        }
        Outcome::Bury { failure } => buried(failure, now),
        Outcome::ExtendLease { expires_at } => vec![doc! { "$set": {
            "leaseExpiresAt": date(*expires_at),
            "dueAt": date(*expires_at),
            "updatedAt": date(now),
        } }],
    }
}

fn completed(now: Timestamp) -> Vec<Document> {
    let set =
        doc! { "status": "completed", "lane": "ready", "completedAt": date(now), "updatedAt": date(now) };
    vec![doc! { "$set": set }, finished()]
}

/// The update that makes a delivery dead with a failure.
pub(super) fn buried(failure: &Failure, now: Timestamp) -> Vec<Document> {
    let mut set = remembered(failure, now);
    set.extend(doc! { "status": "dead", "lane": "ready", "updatedAt": date(now) });
    vec![doc! { "$set": set }, finished()]
}

/// The members of a delivery that waits until `available_at`, an expression.
pub(super) fn waiting(available_at: Bson, now: Timestamp) -> Document {
    doc! {
        "status": "pending",
        "lane": "ready",
        "availableAt": available_at.clone(),
        "dueAt": available_at,
        "updatedAt": date(now),
    }
}

/// The stage that takes the lease away.
pub(super) fn drop_lease() -> Document {
    doc! { "$unset": ["leaseToken", "leaseOwner", "leaseExpiresAt"] }
}

fn finished() -> Document {
    doc! { "$unset": ["dueAt", "leaseToken", "leaseOwner", "leaseExpiresAt"] }
}

/// The members that keep a failure: the message, and the latest entries of the history.
fn remembered(failure: &Failure, now: Timestamp) -> Document {
    let message = literal(&failure.message);
    let entry = doc! {
        "attempt": number("$attempts"),
        "at": date(now),
        "kind": literal(failure.kind.as_str()),
        "message": message.clone(),
    };
    let history = doc! { "$cond": [{ "$isArray": "$errors" }, "$errors", []] };
    let latest = doc! { "$slice": [{ "$concatArrays": [history, [entry]] }, -(MAX_ERROR_HISTORY as i32)] };
    doc! { "lastError": message, "errors": latest }
}

/// A number, or 0 where it is absent, null or something else.
pub(super) fn number(field: &str) -> Document {
    doc! { "$cond": [{ "$isNumber": field }, field, 0] }
}

/// Text that is text, whatever it begins with: in an update pipeline a leading `$` would name a field.
fn literal(text: &str) -> Document {
    doc! { "$literal": text }
}
