//! Outcomes of attempts, each fenced by its lease.

use std::collections::{HashMap, HashSet};

use futures_util::TryStreamExt as _;
use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::options::UpdateModifications;

use super::documents::{date, read_delivery};
use super::error::classify;
use super::{ALL_AT_ONCE, MongoStore};
use crate::model::{
    CRASH_MESSAGE, Delivery, DeliveryId, Failure, FailureKind, Lease, LeaseToken, MAX_ERROR_HISTORY, Status,
    Timestamp, UNKNOWN_WORKER, apply,
};
use crate::store::{ErrorKind, Fenced, Outcome, Result, Settlement, StoreError};

const DOING: &str = "recording an outcome";

/// See [`Store::settle`](crate::store::Store::settle).
///
/// Several settlements are one update command, which the server answers with a sum. When the sum is that of the leases that
/// were held a moment before, each of these was applied and no other.
pub(super) async fn settle(
    store: &MongoStore,
    settlements: &[Settlement],
    now: Timestamp,
) -> Result<Vec<Fenced>> {
    let mut answers = Vec::with_capacity(settlements.len());
    for batch in batches(settlements) {
        match batch {
            [] => {}
            [settlement] => answers.push(settle_one(store, settlement, now).await?),
            batch => answers.extend(settle_batch(store, batch, now).await?),
        }
    }
    let ended = settlements.iter().filter(|one| !matches!(one.outcome, Outcome::ExtendLease { .. }));
    store.memory.settled(ended.map(|settlement| settlement.lease.delivery_id.as_str()));
    Ok(answers)
}

/// Cuts the settlements where a delivery comes again: what a sum says of two outcomes of one delivery is not clear.
fn batches(settlements: &[Settlement]) -> Vec<&[Settlement]> {
    let mut seen = HashSet::new();
    let mut starts = vec![0];
    for (place, settlement) in settlements.iter().enumerate() {
        if !seen.insert(&settlement.lease.delivery_id) {
            starts.push(place);
            seen = HashSet::from([&settlement.lease.delivery_id]);
        }
    }
    let ends = starts.iter().skip(1).copied().chain([settlements.len()]);
    starts.iter().zip(ends).map(|(&start, end)| &settlements[start..end]).collect()
}

/// Several outcomes are one update command, which the server answers with a sum. Where all of them are the first of leases
/// that this store took, the sum tells by itself when each was applied; others are looked at before.
async fn settle_batch(store: &MongoStore, batch: &[Settlement], now: Timestamp) -> Result<Vec<Fenced>> {
    let leases = || batch.iter().map(|settlement| &settlement.lease);
    let held = match store.leases.are_first(leases()) {
        true => leases().cloned().collect(),
        false => held_leases(store, batch, now).await?,
    };
    let applied = write_outcomes(store, batch, &held, now).await?;
    if applied != held.len() as u64 {
        return tell_apart(store, batch, &held, now).await;
    }
    let extended = batch.iter().filter(|one| matches!(one.outcome, Outcome::ExtendLease { .. }));
    store.leases.note(extended.map(|settlement| &settlement.lease).filter(|lease| held.contains(*lease)));
    let answers = leases().map(|lease| match held.contains(lease) {
        true => Fenced::Applied,
        false => Fenced::LeaseLost,
    });
    Ok(answers.collect())
}

/// Writes the outcomes of those that are held, and returns how many were written.
async fn write_outcomes(
    store: &MongoStore,
    batch: &[Settlement],
    held: &HashSet<Lease>,
    now: Timestamp,
) -> Result<u64> {
    let mut alike: HashMap<(&LeaseToken, &Outcome), Vec<&str>> = HashMap::new();
    for settlement in batch.iter().filter(|settlement| held.contains(&settlement.lease)) {
        let members = alike.entry((&settlement.lease.token, &settlement.outcome)).or_default();
        members.push(settlement.lease.delivery_id.as_str());
    }
    let statements = alike.into_iter().map(|((token, outcome), ids)| {
        let fence = doc! { "_id": { "$in": ids }, "status": "processing", "leaseToken": token.as_str() };
        let condition = conditioned(fence, outcome, now);
        doc! { "q": condition, "u": statement_of(update(outcome, now)), "multi": true, "hint": { "_id": 1 } }
    });
    store.update_deliveries(DOING, statements.collect()).await
}

/// An update as it stands in a command.
pub(super) fn statement_of(update: UpdateModifications) -> Bson {
    match update {
        UpdateModifications::Pipeline(stages) => Bson::from(stages),
        UpdateModifications::Document(document) => Bson::from(document),
        // The driver may learn of other kinds; none is made here.
        _ => Bson::Null,
    }
}

/// The leases of a batch that give their right at this moment. One that does not will never again.
async fn held_leases(store: &MongoStore, batch: &[Settlement], now: Timestamp) -> Result<HashSet<Lease>> {
    let asked: HashMap<&Lease, &Outcome> =
        batch.iter().map(|settlement| (&settlement.lease, &settlement.outcome)).collect();
    let stored = read_leased(store, batch).await?;
    let held = stored.iter().filter_map(|delivery| {
        let lease = delivery.lease()?;
        apply(delivery, &asked.get(&lease)?.transition(), now).ok().map(|_| lease)
    });
    Ok(held.collect())
}

/// Some leases were lost before the update. What was applied shows in the delivery: its new status, and the instant at which
/// the outcome was recorded. (An equal outcome that another worker recorded in the very same millisecond looks the same.)
async fn tell_apart(
    store: &MongoStore,
    batch: &[Settlement],
    held: &HashSet<Lease>,
    now: Timestamp,
) -> Result<Vec<Fenced>> {
    let stored = read_leased(store, batch).await?;
    let stored: HashMap<&DeliveryId, &Delivery> =
        stored.iter().map(|delivery| (&delivery.id, delivery)).collect();
    let answers = batch.iter().map(|settlement| {
        let shows = |delivery: &&Delivery| delivery.updated_at == now && shows_outcome(delivery, settlement);
        let was_held = held.contains(&settlement.lease);
        match was_held && stored.get(&settlement.lease.delivery_id).is_some_and(shows) {
            true => Fenced::Applied,
            false => Fenced::LeaseLost,
        }
    });
    Ok(answers.collect())
}

fn shows_outcome(delivery: &Delivery, settlement: &Settlement) -> bool {
    let shows_failure = |failure: &Failure| delivery.last_error.as_ref() == Some(&failure.message);
    match &settlement.outcome {
        Outcome::Complete => delivery.status == Status::Completed,
        Outcome::Bury { failure } => delivery.status == Status::Dead && shows_failure(failure),
        Outcome::Reschedule { available_at, failure } => {
            let waits = delivery.status == Status::Pending && delivery.available_at == *available_at;
            waits && shows_failure(failure)
        }
        Outcome::Release => delivery.status == Status::Pending,
        Outcome::Snooze { available_at } => {
            delivery.status == Status::Pending && delivery.available_at == *available_at
        }
        Outcome::ExtendLease { expires_at } => {
            let is_held = delivery.lease().as_ref() == Some(&settlement.lease);
            // One that ran out in the millisecond of its claim looks the same, and was not revived.
            let was_live = delivery.key.is_none() || *expires_at > delivery.updated_at;
            is_held && was_live && delivery.lease_expires_at == Some(*expires_at)
        }
    }
}

async fn read_leased(store: &MongoStore, batch: &[Settlement]) -> Result<Vec<Delivery>> {
    let failed = |error| classify(DOING, error);
    let ids: Vec<&str> = batch.iter().map(|settlement| settlement.lease.delivery_id.as_str()).collect();
    let deliveries = store.deliveries();
    let find = deliveries.find(doc! { "_id": { "$in": ids } }).batch_size(ALL_AT_ONCE);
    let cursor = find.await.map_err(failed)?;
    let documents: Vec<RawDocumentBuf> = cursor.try_collect().await.map_err(failed)?;
    documents.iter().map(|document| read_delivery(document)).collect()
}

async fn settle_one(store: &MongoStore, settlement: &Settlement, now: Timestamp) -> Result<Fenced> {
    let is_extension = matches!(settlement.outcome, Outcome::ExtendLease { .. });
    if !is_extension {
        store.leases.are_first([&settlement.lease]);
    }
    let update = update(&settlement.outcome, now);
    let condition = conditioned(fence(&settlement.lease), &settlement.outcome, now);
    let passed = store.update_delivery(DOING, condition, update).await?;
    Ok(if passed { Fenced::Applied } else { Fenced::LeaseLost })
}

/// Completes with the transaction of `session`.
pub(super) async fn complete_in(
    store: &MongoStore,
    session: &mut ClientSession,
    lease: &Lease,
    now: Timestamp,
) -> Result<Fenced> {
    store.leases.are_first([lease]);
    let result = store.deliveries().update_one(fence(lease), completed(now)).session(session).await;
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

/// The fence, and what else an outcome asks of its delivery: a lease of a key that ran out is not revived, as another
/// delivery of the key may have been claimed behind it.
fn conditioned(mut fence: Document, outcome: &Outcome, now: Timestamp) -> Document {
    if matches!(outcome, Outcome::ExtendLease { .. }) {
        fence.insert("$or", vec![doc! { "key": null }, doc! { "dueAt": { "$gt": date(now) } }]);
    }
    fence
}

fn update(outcome: &Outcome, now: Timestamp) -> UpdateModifications {
    match outcome {
        Outcome::Complete => completed(now).into(),
        Outcome::Reschedule { available_at, failure } => {
            let mut set = remembered(failure, now);
            set.extend(waiting(Bson::from(date(*available_at)), now));
            vec![doc! { "$set": set }, drop_lease()].into()
        }
        Outcome::Release => uncounted(Bson::from(doc! { "$ifNull": ["$availableAt", "$dueAt"] }), now),
        Outcome::Snooze { available_at } => uncounted(Bson::from(date(*available_at)), now),
        Outcome::Bury { failure } => buried(failure, now).into(),
        Outcome::ExtendLease { expires_at } => {
            let (expires_at, now) = (date(*expires_at), date(now));
            doc! { "$set": { "leaseExpiresAt": expires_at, "dueAt": expires_at, "updatedAt": now } }.into()
        }
    }
}

/// The update that gives the attempt back and makes the delivery wait until `available_at`, an expression.
fn uncounted(available_at: Bson, now: Timestamp) -> UpdateModifications {
    let mut set = waiting(available_at, now);
    set.insert("attempts", doc! { "$max": [0, { "$subtract": [number("$attempts"), 1] }] });
    vec![doc! { "$set": set }, drop_lease()].into()
}

/// Plain operators: the server applies them in less time than a pipeline.
fn completed(now: Timestamp) -> Document {
    doc! {
        "$set": { "status": "completed", "lane": "ready", "completedAt": date(now), "updatedAt": date(now) },
        "$unset": { "dueAt": "", "leaseToken": "", "leaseOwner": "", "leaseExpiresAt": "" },
    }
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
    history_with(&failure.kind, literal(&failure.message), MAX_ERROR_HISTORY, now)
}

/// The members that keep that the attempt under the recorded lease ended without an outcome. `kept` entries remain.
pub(super) fn crashed(kept: usize, now: Timestamp) -> Document {
    let [before, behind] = CRASH_MESSAGE.map(literal);
    let has_owner = doc! { "$eq": [{ "$type": "$leaseOwner" }, "string"] };
    let owner = doc! { "$cond": [has_owner, "$leaseOwner", literal(UNKNOWN_WORKER)] };
    history_with(&FailureKind::Crashed, doc! { "$concat": [before, owner, behind] }, kept, now)
}

/// The members that keep a failure, with a message that is an expression.
fn history_with(kind: &FailureKind, message: Document, kept: usize, now: Timestamp) -> Document {
    let entry = doc! {
        "attempt": number("$attempts"),
        "at": date(now),
        "kind": literal(kind.as_str()),
        "message": message.clone(),
    };
    let history = doc! { "$cond": [{ "$isArray": "$errors" }, "$errors", []] };
    let latest = doc! { "$slice": [{ "$concatArrays": [history, [entry]] }, -(kept as i32)] };
    doc! { "lastError": message, "errors": latest }
}

/// A number, or 0 where it is absent, null or something else.
pub(super) fn number(field: &str) -> Document {
    doc! { "$cond": [{ "$isNumber": field }, field, 0] }
}

/// Text that is text, whatever it begins with: in an update pipeline a leading `$` would name a field.
pub(super) fn literal(text: &str) -> Document {
    doc! { "$literal": text }
}
