//! Deliveries for a handler that came later than its events.
//!
//! Every event has a delivery, so that the indexes of the deliveries find events too. Of the deliveries of an event, the one
//! whose handler comes first by name stands for it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::TryStreamExt as _;
use mongodb::ClientSession;
use mongodb::bson::{RawDocumentBuf, doc};
use mongodb::options::Hint;
use tokio::sync::Mutex;

use super::append::{find_fields, insert, touch_events};
use super::documents::{DeliveryOrigin, delivery_document, read_event};
use super::error::{classify, corrupt};
use super::transaction::session_of;
use super::{ALL_AT_ONCE, MongoStore, filter, key_order, schema, transaction};
use crate::model::{DeliveryId, Event, EventId, Filter, IdKind, KeyPlace, Timestamp};
use crate::store::{BackfillPage, BackfillRequest, Extended, Result};

const LOOKING: &str = "looking for events without a delivery";
const ADDING: &str = "adding deliveries to events";

/// Events that are looked up in one query.
const LOOKED_UP: usize = 1_000;

/// See [`Store::events_without`](crate::store::Store::events_without).
pub(super) async fn events_without(store: &MongoStore, request: &BackfillRequest) -> Result<BackfillPage> {
    // A delivery is not created before its event. The other end is one of events alone: a delivery may come later.
    let filter =
        Filter { event_type: Some(request.event_type.clone()), since: request.since, ..Filter::default() };
    let (deliveries, last) = candidates(store, &filter, request.after.as_ref()).await?;
    let mut events = Vec::new();
    for deliveries in deliveries.chunks(LOOKED_UP) {
        events.extend(lacking(store, request, deliveries).await?);
    }
    Ok(BackfillPage { events, last })
}

/// Deliveries in order, and where to go on if there are more.
async fn candidates(
    store: &MongoStore,
    filter: &Filter,
    after: Option<&KeyPlace>,
) -> Result<(Vec<RawDocumentBuf>, Option<KeyPlace>)> {
    let fields = doc! { "key": 1, "sequence": 1, "eventId": 1, "handler": 1 };
    if after.is_none()
        && let Some(few) = key_order::if_few(store, LOOKING, filter, fields.clone()).await?
    {
        return Ok((few, None));
    }
    let page = key_order::page(store, LOOKING, filter::conditions(filter), after, fields).await?;
    let last = page.last().filter(|_| page.len() == key_order::FEW).map(key_order::place_of);
    // A place that cannot be read would lead back to where the page began.
    match last.as_ref().is_some_and(|last| Some(last) <= after) {
        true => {
            Err(corrupt("the order of keys", format!("deliveries behind {after:?} have odd keys or ids")))
        }
        false => Ok((page, last)),
    }
}

/// The events of these deliveries that match and lack one for the handler, in their order.
async fn lacking(
    store: &MongoStore,
    request: &BackfillRequest,
    deliveries: &[RawDocumentBuf],
) -> Result<Vec<EventId>> {
    let pairs: Vec<(&str, &str)> = deliveries
        .iter()
        .filter_map(|delivery| Some((delivery.get_str("eventId").ok()?, delivery.get_str("handler").ok()?)))
        .collect();
    let handlers = handlers(store, pairs.iter().map(|(event, _)| *event).collect()).await?;
    let stands_for = |(event, handler): &(&str, &str)| {
        let handlers = handlers.get(*event)?;
        let lacks = !handlers.contains(&request.handler);
        (lacks && handlers.iter().min()? == handler).then_some((*event).to_owned())
    };
    let lacking: Vec<String> = pairs.iter().filter_map(stands_for).collect();
    let meant = meant(store, request, &lacking).await?;
    Ok(lacking.into_iter().filter(|event| meant.contains(event)).map(EventId::from).collect())
}

/// The handlers that events have a delivery for.
async fn handlers(store: &MongoStore, events: HashSet<&str>) -> Result<HashMap<String, Vec<String>>> {
    let failed = |error| classify(LOOKING, error);
    let events: Vec<&str> = events.into_iter().collect();
    let deliveries = store.deliveries();
    let find = deliveries.find(doc! { "eventId": { "$in": events } }).batch_size(ALL_AT_ONCE);
    let find = find.projection(doc! { "_id": 0, "eventId": 1, "handler": 1 });
    let mut cursor = find.hint(Hint::Name(schema::EVENT_HANDLER.to_owned())).await.map_err(failed)?;
    let mut handlers: HashMap<String, Vec<String>> = HashMap::new();
    while let Some(delivery) = cursor.try_next().await.map_err(failed)? {
        if let (Ok(event), Ok(handler)) = (delivery.get_str("eventId"), delivery.get_str("handler")) {
            handlers.entry(event.to_owned()).or_default().push(handler.to_owned());
        }
    }
    Ok(handlers)
}

/// Which of these events are of the types and of the time that are asked for, by what they say themselves.
async fn meant(store: &MongoStore, request: &BackfillRequest, events: &[String]) -> Result<HashSet<String>> {
    let failed = |error| classify(LOOKING, error);
    let collection = store.event_collection();
    let find = collection.find(doc! { "_id": { "$in": events } }).batch_size(ALL_AT_ONCE);
    let mut cursor = find.projection(doc! { "type": 1, "createdAt": 1 }).await.map_err(failed)?;
    let mut meant = HashSet::new();
    while let Some(document) = cursor.try_next().await.map_err(failed)? {
        let event = read_event(&document)?;
        let is_of_time =
            request.since.is_none_or(|since| event.created_at >= since) && event.created_at < request.until;
        if is_of_time && request.event_type.matches(&event.event_type) {
            meant.insert(event.id.to_string());
        }
    }
    Ok(meant)
}

/// See [`Store::extend`](crate::store::Store::extend).
pub(super) async fn extend(
    store: &MongoStore,
    events: &[EventId],
    handler: &str,
    now: Timestamp,
) -> Result<Extended> {
    let (store, events, handler) = (store.clone(), events.to_vec(), handler.to_owned());
    transaction::to_the_end(async move {
        let extended = Arc::new(Mutex::new(Extended::default()));
        let events = Arc::new(events);
        transaction::run(&store, &mut |transaction| {
            let (store, events, handler) = (store.clone(), events.clone(), handler.clone());
            let extended = extended.clone();
            Box::pin(async move {
                let session = session_of(transaction)?;
                *extended.lock().await = extend_in(&store, session, &events, &handler, now).await?;
                Ok(())
            })
        })
        .await?;
        store.memory.forget();
        let extended = *extended.lock().await;
        Ok(extended)
    })
    .await
}

async fn extend_in(
    store: &MongoStore,
    session: &mut ClientSession,
    events: &[EventId],
    handler: &str,
    now: Timestamp,
) -> Result<Extended> {
    let (there, mut delivered) = what_is_there(store, session, events, handler).await?;
    let mut extended = Extended::default();
    let mut new = Vec::new();
    for id in events {
        match there.get(id) {
            None => extended.missing += 1,
            Some(_) if !delivered.insert(id.to_string()) => extended.existing += 1,
            Some(event) => new.push(event),
        }
    }
    extended.created = new.len() as u64;
    let documents = new.iter().map(|event| new_delivery(store, event, handler, now));
    insert(ADDING, &store.deliveries(), session, documents.collect::<Result<_>>()?).await?;
    let touched = touch_events(store, session, new.iter().map(|event| event.id.as_str()).collect()).await;
    touched.map_err(|error| classify(ADDING, error))?;
    Ok(extended)
}

/// Those of the events that are there, without their contents, and which of them have a delivery for the handler.
async fn what_is_there(
    store: &MongoStore,
    session: &mut ClientSession,
    events: &[EventId],
    handler: &str,
) -> Result<(HashMap<EventId, Event>, HashSet<String>)> {
    let ids: Vec<&str> = events.iter().map(EventId::as_str).collect();
    let fields = doc! { "type": 1, "key": 1, "sequence": 1, "createdAt": 1 };
    let filter = doc! { "_id": { "$in": &ids } };
    let mut there = HashMap::new();
    for event in find_fields(ADDING, &store.event_collection(), session, filter, fields).await? {
        let event = read_event(&event)?;
        there.insert(event.id.clone(), event);
    }
    let filter = doc! { "eventId": { "$in": &ids }, "handler": handler };
    let delivered = find_fields(ADDING, &store.deliveries(), session, filter, doc! { "eventId": 1 }).await?;
    let event_of = |delivery: &RawDocumentBuf| delivery.get_str("eventId").ok().map(str::to_owned);
    Ok((there, delivered.iter().filter_map(event_of).collect()))
}

fn new_delivery(store: &MongoStore, event: &Event, handler: &str, now: Timestamp) -> Result<RawDocumentBuf> {
    let origin = DeliveryOrigin {
        event_id: &event.id,
        event_type: &event.event_type,
        key: event.key.as_deref(),
        sequence: event.sequence,
        max_attempts: None,
        available_at: now,
    };
    let id = DeliveryId::from(store.ids.next(IdKind::Delivery, now));
    let document = delivery_document(&id, handler, &origin, now);
    RawDocumentBuf::try_from(&document).map_err(|error| corrupt("the new delivery", error))
}
