//! Reading: by id, in order, counted; always by an index and never by a sort in memory.

use futures_util::future::ready;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::options::Hint;

use super::documents::{date, read_delivery, read_event, read_key_sequence};
use super::error::classify;

use super::{ALL_AT_ONCE, BEGINNING, MongoStore, filter, groups, schema};
use crate::model::{
    Cursor, Delivery, DeliveryId, Event, EventId, Filter, KeySequence, ListQuery, Selection, SortBy, Status,
    TypePattern,
};
use crate::store::{Result, StoreError};

const DOING: &str = "listing deliveries";

/// Events fetched by one query; a reply holds 16 MiB, and the server splits larger ones.
const EVENTS_PER_QUERY: usize = 1_000;

pub(super) async fn get(store: &MongoStore, id: &DeliveryId) -> Result<Option<Delivery>> {
    let found = store.deliveries().find_one(doc! { "_id": id.as_str() }).await;
    let found = found.map_err(|error| classify("reading a delivery", error))?;
    found.map(|document| read_delivery(&document)).transpose()
}

pub(super) async fn events(store: &MongoStore, ids: &[EventId]) -> Result<Vec<Event>> {
    let failed = |error| classify("reading events", error);
    let mut events = Vec::with_capacity(ids.len());
    for ids in ids.chunks(EVENTS_PER_QUERY) {
        let ids: Vec<&str> = ids.iter().map(EventId::as_str).collect();
        let collection = store.event_collection();
        let find = collection.find(doc! { "_id": { "$in": ids } }).batch_size(ALL_AT_ONCE);
        let mut cursor = find.await.map_err(failed)?;
        while let Some(document) = cursor.try_next().await.map_err(failed)? {
            events.push(read_event(&document)?);
        }
    }
    Ok(events)
}

/// See [`Store::list`](crate::store::Store::list).
pub(super) fn list(store: &MongoStore, query: ListQuery) -> BoxStream<'_, Result<Delivery>> {
    if let Err(error) = query.check_cursor() {
        return stream::once(async { Err(StoreError::from(error)) }).boxed();
    }
    match &query.filter.event {
        Some(_) => stream::once(of_one_event(store, query)).try_flatten().boxed(),
        None => stream::once(open_listing(store, query)).try_flatten().boxed(),
    }
}

/// The query behind a listing.
pub(super) struct Plan {
    pub(super) index: &'static str,
    pub(super) filter: Document,
    pub(super) sort: Document,
}

/// Chooses the index that has the order of the listing, and reads the least.
///
/// The statuses that few deliveries have are worth more than handler, type or key; the index on key more than that on
/// handler, and that more than the one on type.
pub(super) fn plan(query: &ListQuery) -> Plan {
    let filter = &query.filter;
    let index = match query.sort {
        SortBy::Due => schema::DUE,
        SortBy::Updated => schema::STATUS_UPDATED,
        SortBy::Created if filter.key.is_some() => schema::KEY_CREATED,
        SortBy::Created if has_rare_statuses(filter) => schema::STATUS_CREATED,
        SortBy::Created if filter.handler.is_some() => schema::HANDLER_CREATED,
        SortBy::Created if matches!(filter.event_type, Some(TypePattern::Exact(_))) => schema::TYPE_CREATED,
        SortBy::Created => schema::STATUS_CREATED,
    };
    let field = sort_field(query.sort);
    let mut conditions = vec![filter::conditions(filter)];
    if query.sort == SortBy::Due {
        conditions.push(doc! { "dueAt": { "$gte": BEGINNING } });
    }
    conditions.extend(query.after.as_ref().map(|cursor| behind(field, cursor)));
    let direction = if query.descending { -1 } else { 1 };
    Plan { index, filter: doc! { "$and": conditions }, sort: doc! { field: direction, "_id": direction } }
}

const fn sort_field(sort: SortBy) -> &'static str {
    match sort {
        SortBy::Created => "createdAt",
        SortBy::Updated => "updatedAt",
        SortBy::Due => "dueAt",
    }
}

fn has_rare_statuses(filter: &Filter) -> bool {
    let is_rare = |status: &Status| matches!(status, Status::Processing | Status::Dead);
    !filter.statuses.is_empty() && filter.statuses.iter().all(is_rare)
}

/// Behind a place: a bound on the time for the index, and the tie broken by id.
fn behind(field: &str, cursor: &Cursor) -> Document {
    let (beyond, from) = if cursor.descending { ("$lt", "$lte") } else { ("$gt", "$gte") };
    let time = date(cursor.time);
    let tie = doc! { field: time, "_id": { beyond: cursor.id.as_str() } };
    doc! { "$and": [{ field: { from: time } }, { "$or": [{ field: { beyond: time } }, tie] }] }
}

async fn open_listing(
    store: &MongoStore,
    query: ListQuery,
) -> Result<impl Stream<Item = Result<Delivery>> + use<>> {
    let plan = plan(&query);
    let deliveries = store.deliveries();
    let mut find = deliveries.find(plan.filter).sort(plan.sort).hint(Hint::Name(plan.index.to_owned()));
    let limit = query.limit.map_or(i64::MAX, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
    if limit == 0 {
        return Ok(stream::empty().boxed());
    }
    if query.limit.is_some() && query.filter.groups.is_empty() {
        find = find.limit(limit);
    }
    if query.without_history {
        find = find.projection(doc! { "errors": { "$slice": -1 } });
    }
    let cursor = find.await.map_err(|error| classify(DOING, error))?;
    let items = cursor.map(read_item).filter(move |item| ready(belongs(item, &query.filter)));
    Ok(items.take(usize::try_from(limit).unwrap_or(usize::MAX)).boxed())
}

/// One that cannot be understood may belong to a group.
fn belongs(item: &Result<Delivery>, filter: &Filter) -> bool {
    item.as_ref().map_or(true, |delivery| filter.matches_group(delivery))
}

fn read_item(document: mongodb::error::Result<RawDocumentBuf>) -> Result<Delivery> {
    read_delivery(&document.map_err(|error| classify(DOING, error))?)
}

/// An event has as many deliveries as handlers: few enough to be put in order here, where no index has that order.
async fn of_one_event(
    store: &MongoStore,
    query: ListQuery,
) -> Result<impl Stream<Item = Result<Delivery>> + use<>> {
    let plan = plan(&query);
    let deliveries = store.deliveries();
    let mut find = deliveries.find(plan.filter).hint(Hint::Name(schema::EVENT_HANDLER.to_owned()));
    if query.without_history {
        find = find.projection(doc! { "errors": { "$slice": -1 } });
    }
    let cursor = find.await.map_err(|error| classify(DOING, error))?;
    let items = cursor.map(read_item).filter(|item| ready(belongs(item, &query.filter)));
    let mut found: Vec<Result<Delivery>> = items.collect().await;
    let place = |item: &Result<Delivery>| {
        let delivery = item.as_ref().ok()?;
        Some((query.sort.time_of(delivery)?, delivery.id.clone()))
    };
    found.sort_by(|a, b| if query.descending { place(b).cmp(&place(a)) } else { place(a).cmp(&place(b)) });
    found.truncate(query.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)));
    Ok(stream::iter(found))
}

/// See [`Store::count`](crate::store::Store::count).
pub(super) async fn count(store: &MongoStore, selection: &Selection) -> Result<u64> {
    let deliveries = store.deliveries();
    let index = match selection.filter.event {
        Some(_) => schema::EVENT_HANDLER,
        None => count_index(&selection.filter),
    };
    if !selection.filter.groups.is_empty() {
        return groups::count(store, selection, index).await;
    }
    let count = deliveries.count_documents(filter::selection(selection)).hint(Hint::Name(index.to_owned()));
    count.await.map_err(|error| classify("counting deliveries", error))
}

/// Counting needs no order: the cut-off on `updatedAt` makes that index the best for all but a key.
pub(super) fn count_index(filter: &Filter) -> &'static str {
    match filter {
        Filter { key: Some(_), .. } => schema::KEY_CREATED,
        Filter { handler: Some(_), .. } if !has_rare_statuses(filter) => schema::HANDLER_CREATED,
        _ => schema::STATUS_UPDATED,
    }
}

/// See [`Store::key_sequences`](crate::store::Store::key_sequences).
pub(super) fn key_sequences<'a>(
    store: &'a MongoStore,
    prefix: Option<&str>,
) -> BoxStream<'a, Result<KeySequence>> {
    let mut range = doc! { "$gte": prefix.unwrap_or_default() };
    if let Some(bound) = prefix.and_then(TypePattern::upper_bound) {
        range.insert("$lt", bound);
    }
    let failed = |error| classify("listing keys", error);
    let listing = async move {
        let cursor = store
            .key_collection()
            .find(doc! { "_id": range })
            .sort(doc! { "_id": 1 })
            .await
            .map_err(failed)?;
        Ok::<_, StoreError>(cursor.map(move |document| read_key_sequence(&document.map_err(failed)?)))
    };
    stream::once(listing).try_flatten().boxed()
}
