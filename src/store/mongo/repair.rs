//! What an operator changes: requeue, bury, recover.

use std::borrow::Cow;

use mongodb::bson::{Bson, Document, doc};

use super::documents::{date, read_delivery};
use super::error::classify;
use super::settle::{buried, crashed, drop_lease, number, waiting};
use super::{MongoStore, filter, groups, schema};
use crate::model::{DeliveryId, Failure, FailureKind, MAX_ERROR_HISTORY, Selection, Timestamp};
use crate::store::{Repair, RepairOutcome, Result};

const DOING: &str = "repairing deliveries";

/// See [`Store::repair`](crate::store::Store::repair).
pub(super) async fn repair(
    store: &MongoStore,
    id: &DeliveryId,
    repair: &Repair,
    now: Timestamp,
) -> Result<RepairOutcome> {
    let condition = doc! { "_id": id.as_str(), "status": { "$in": statuses(repair) } };
    if store.update_delivery(DOING, condition, update(repair, now).into()).await? {
        store.memory.forget();
        return Ok(RepairOutcome::Changed);
    }
    let found = store.deliveries().find_one(doc! { "_id": id.as_str() }).await;
    match found.map_err(|error| classify(DOING, error))? {
        None => Ok(RepairOutcome::Missing),
        Some(document) => Ok(RepairOutcome::Skipped(read_delivery(&document)?.status)),
    }
}

/// See [`Store::repair_selected`](crate::store::Store::repair_selected).
pub(super) async fn repair_selected(
    store: &MongoStore,
    ids: &[DeliveryId],
    selection: &Selection,
    repair: &Repair,
    now: Timestamp,
) -> Result<u64> {
    let members = match selection.filter.groups.is_empty() {
        true => Cow::Borrowed(ids),
        // What belongs to a group goes on to do so until it changes, and then it is behind the cut-off.
        false => Cow::Owned(groups::among(store, ids, &selection.filter).await?),
    };
    let condition =
        doc! { "$and": [{ "status": { "$in": statuses(repair) } }, filter::selection(selection)] };
    let update = update(repair, now);
    // A statement goes by the index on the ids: as many of them can share one as are in its order. Ids that come from the
    // time are, as a rule.
    let statements = members.chunk_by(DeliveryId::lt).map(|ids| {
        let ids: Vec<&str> = ids.iter().map(DeliveryId::as_str).collect();
        let mut query = condition.clone();
        query.insert("_id", doc! { "$in": ids });
        doc! { "q": query, "u": update.clone(), "multi": true, "hint": { "_id": 1 } }
    });
    let changed = store.update_deliveries_in_order(DOING, statements.collect()).await;
    store.memory.forget();
    changed
}

fn statuses(repair: &Repair) -> Vec<&'static str> {
    repair.applies_to().iter().map(|status| status.as_str()).collect()
}

fn update(repair: &Repair, now: Timestamp) -> Vec<Document> {
    match repair {
        Repair::Requeue { available_at } => {
            let mut set = waiting(Bson::from(date(*available_at)), now);
            set.insert("attempts", 0);
            set.insert("requeues", doc! { "$add": [number("$requeues"), 1] });
            vec![doc! { "$set": set }, drop_lease()]
        }
        Repair::Bury { reason } => buried(&Failure::new(FailureKind::Buried, reason.clone()), now),
    }
}

/// See [`Store::recover`](crate::store::Store::recover).
pub(super) async fn recover(store: &MongoStore, handlers: &[String], now: Timestamp) -> Result<u64> {
    let handler = if handlers.is_empty() {
        doc! { "$gte": "" }
    } else {
        doc! { "$in": handlers }
    };
    let mut set = waiting(Bson::from(date(now)), now);
    set.extend(crashed(MAX_ERROR_HISTORY, now));
    let statement = doc! {
        "q": { "handler": handler, "status": "processing", "dueAt": { "$lte": date(now) } },
        "u": vec![doc! { "$set": set }, drop_lease()],
        "multi": true,
        "hint": schema::RUNNING,
    };
    let recovered = store.update_deliveries("recovering deliveries", vec![statement]).await;
    store.memory.forget();
    recovered
}
