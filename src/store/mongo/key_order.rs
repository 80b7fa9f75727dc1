//! Deliveries in the order of their keys: by key, sequence and id.
//!
//! No write changes any of the three. So whatever else happens to a delivery meanwhile, a walk in this order meets it once,
//! and an earlier one of a key before a later one. Deliveries without a key come first.

use futures_util::TryStreamExt as _;
use mongodb::Cursor;
use mongodb::bson::{Document, RawBsonRef, RawDocumentBuf, doc};
use mongodb::options::Hint;

use super::error::classify;
use super::{ALL_AT_ONCE, MongoStore, filter, list, schema};
use crate::model::{Filter, KeyPlace, ListQuery};
use crate::store::Result;

/// So few deliveries are put in order here, rather than found by a walk along all that there are.
pub(super) const FEW: usize = 10_000;

/// By which fields deliveries are ordered, and in which direction.
fn order() -> Document {
    doc! { "key": 1, "sequence": 1, "_id": 1 }
}

/// The place of a stored delivery, as far as its fields have the types that they should.
pub(super) fn place_of(document: &RawDocumentBuf) -> KeyPlace {
    let text = |field| document.get_str(field).ok().map(str::to_owned);
    let sequence = match document.get("sequence") {
        Ok(Some(RawBsonRef::Int64(sequence))) => Some(sequence),
        Ok(Some(RawBsonRef::Int32(sequence))) => Some(sequence.into()),
        Ok(Some(RawBsonRef::Double(sequence))) => Some(sequence as i64),
        _ => None,
    };
    KeyPlace { key: text("key"), sequence, id: text("_id").unwrap_or_default().into() }
}

/// The deliveries that match, all in order, if they are few; `None` if they are not, or if the index of the order is
/// the best for them in any case. Only `fields` of them are read.
pub(super) async fn if_few(
    store: &MongoStore,
    doing: &str,
    filter: &Filter,
    fields: Document,
) -> Result<Option<Vec<RawDocumentBuf>>> {
    if filter.is_empty() || (filter.key.is_some() && filter.event.is_none()) {
        return Ok(None);
    }
    let plan = list::plan(&ListQuery { filter: filter.clone(), ..ListQuery::default() });
    let index = if filter.event.is_some() { schema::EVENT_HANDLER } else { plan.index };
    let deliveries = store.deliveries();
    let find = deliveries.find(plan.filter).projection(fields).hint(Hint::Name(index.to_owned()));
    let find = find.limit(FEW as i64 + 1).batch_size(ALL_AT_ONCE);
    let failed = |error| classify(doing, error);
    let mut found: Vec<RawDocumentBuf> = find.await.map_err(failed)?.try_collect().await.map_err(failed)?;
    if found.len() > FEW {
        return Ok(None);
    }
    sort(&mut found);
    Ok(Some(found))
}

/// Puts deliveries in order.
pub(super) fn sort(deliveries: &mut [RawDocumentBuf]) {
    deliveries.sort_by_cached_key(place_of);
}

/// Walks along the index.
pub(super) async fn walk(
    store: &MongoStore,
    doing: &str,
    filter: Document,
) -> Result<Cursor<RawDocumentBuf>> {
    let deliveries = store.deliveries();
    let find = deliveries.find(filter).sort(order()).hint(Hint::Name(schema::KEY_ORDER.to_owned()));
    find.await.map_err(|error| classify(doing, error))
}

/// The next deliveries of a walk behind a place. Only `fields` of them are read.
pub(super) async fn page(
    store: &MongoStore,
    doing: &str,
    filter: Document,
    after: Option<&KeyPlace>,
    fields: Document,
) -> Result<Vec<RawDocumentBuf>> {
    let deliveries = store.deliveries();
    // The walk begins at the place, with the delivery that was the last one.
    let behind = after.map(|place| doc! { "_id": { "$ne": place.id.as_str() } });
    let conditions: Vec<Document> = [filter].into_iter().chain(behind).collect();
    let mut find = deliveries.find(doc! { "$and": conditions }).sort(order()).projection(fields);
    find = find.hint(Hint::Name(schema::KEY_ORDER.to_owned())).limit(FEW as i64).batch_size(ALL_AT_ONCE);
    if let Some(KeyPlace { key, sequence, id }) = after {
        find = find.min(doc! { "key": key, "sequence": *sequence, "_id": id.as_str() });
    }
    let failed = |error| classify(doing, error);
    find.await.map_err(failed)?.try_collect().await.map_err(failed)
}

/// The conditions of a filter, and none at all for one that is empty: a walk needs no status to bound its index, and meets
/// deliveries in a status of another client's invention too.
pub(super) fn conditions(filter: &Filter) -> Document {
    if filter.is_empty() {
        doc! {}
    } else {
        filter::conditions(filter)
    }
}
