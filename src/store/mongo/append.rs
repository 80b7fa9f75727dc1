//! Appending events and their deliveries inside a transaction.
//!
//! What exists is read in the transaction's snapshot, and what is new is inserted. An insert that races with another
//! transaction is then a write conflict, which restarts the loser, and never a duplicate key, which would end the
//! caller's transaction: the snapshot has already shown that the id is free.

use std::collections::{BTreeMap, HashMap};

use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::{ClientSession, Collection};

use super::documents::{
    DeliveryOrigin, delivery_document, event_document, read_delivery, read_event, read_key_sequence,
};
use super::error::{classify, corrupt};
use super::{ALL_AT_ONCE, MongoStore, settle};
use crate::model::{Appended, AppendedDelivery, DeliveryId, Event, EventId, IdKind, NewEvent, Timestamp};
use crate::store::{ErrorKind, Result, StoreError};

const DOING: &str = "appending events";

/// See [`Transaction::append`](crate::store::Transaction::append). The session has a started transaction.
pub(super) async fn append(
    store: &MongoStore,
    session: &mut ClientSession,
    events: &[NewEvent],
    now: Timestamp,
) -> Result<Vec<Appended>> {
    let events = events.iter().map(NewEvent::checked).collect::<Result<Vec<_>, _>>()?;
    let known = Known::read(store, session, &events).await?;
    check_contents(&known, &events)?;
    let (mut plan, appended) = Plan::new(store, known, &events, now);
    plan.take_sequences(store, session).await?;
    plan.write(store, session, now).await?;
    Ok(appended)
}

/// What is there of the events that are to be appended.
#[derive(Default)]
struct Known {
    events: HashMap<EventId, Event>,
    deliveries: HashMap<(EventId, String), DeliveryId>,
}

impl Known {
    async fn read(store: &MongoStore, session: &mut ClientSession, events: &[NewEvent]) -> Result<Self> {
        let ids: Vec<&str> =
            events.iter().filter_map(|event| event.id.as_ref().map(EventId::as_str)).collect();
        let mut known = Known::default();
        if ids.is_empty() {
            return Ok(known);
        }
        for document in
            find(DOING, &store.event_collection(), session, doc! { "_id": { "$in": &ids } }).await?
        {
            let event = read_event(&document)?;
            known.events.insert(event.id.clone(), event);
        }
        if known.events.is_empty() {
            return Ok(known);
        }
        for document in find(DOING, &store.deliveries(), session, doc! { "eventId": { "$in": &ids } }).await?
        {
            let delivery = read_delivery(&document)?;
            known.deliveries.insert((delivery.event_id, delivery.handler), delivery.id);
        }
        Ok(known)
    }
}

/// All that match, in the snapshot of the transaction.
pub(super) async fn find(
    doing: &str,
    collection: &Collection<RawDocumentBuf>,
    session: &mut ClientSession,
    filter: Document,
) -> Result<Vec<RawDocumentBuf>> {
    find_fields(doing, collection, session, filter, doc! {}).await
}

/// The same with these fields alone.
pub(super) async fn find_fields(
    doing: &str,
    collection: &Collection<RawDocumentBuf>,
    session: &mut ClientSession,
    filter: Document,
    fields: Document,
) -> Result<Vec<RawDocumentBuf>> {
    let failed = |error| classify(doing, error);
    let find = collection.find(filter).projection(fields).batch_size(ALL_AT_ONCE);
    let mut cursor = find.session(&mut *session).await.map_err(failed)?;
    cursor.stream(session).try_collect().await.map_err(failed)
}

/// Refuses an id that stands for something else, in the store or earlier in the batch.
fn check_contents(known: &Known, events: &[NewEvent]) -> Result<()> {
    let mut earlier: HashMap<&EventId, &NewEvent> = HashMap::new();
    for event in events {
        let Some(id) = &event.id else { continue };
        let difference = match (known.events.get(id), earlier.get(id)) {
            (Some(stored), _) => event.difference_from(stored),
            (None, Some(twin)) => event.difference_from_twin(twin),
            (None, None) => None,
        };
        if let Some(field) = difference {
            let message = format!("event {id} is there already with another {field}; nothing was appended");
            return Err(StoreError::new(ErrorKind::Conflict, message)
                .with_hint("an event id stands for one event for ever; give the new one an id of its own"));
        }
        earlier.entry(id).or_insert(event);
    }
    Ok(())
}

/// The event of a delivery: one that is new, by its place in the plan, or one that is stored.
#[derive(Clone)]
enum Origin {
    New(usize),
    Stored(EventId),
}

/// What is to be written.
struct Plan<'a> {
    stored: HashMap<EventId, Event>,
    events: Vec<PlannedEvent<'a>>,
    deliveries: Vec<PlannedDelivery<'a>>,
}

struct PlannedEvent<'a> {
    id: EventId,
    event: &'a NewEvent,
    sequence: Option<i64>,
}

struct PlannedDelivery<'a> {
    id: DeliveryId,
    handler: &'a str,
    origin: Origin,
    request: &'a NewEvent,
}

impl<'a> Plan<'a> {
    fn new(
        store: &MongoStore,
        known: Known,
        events: &'a [NewEvent],
        now: Timestamp,
    ) -> (Self, Vec<Appended>) {
        let mut plan = Plan { stored: known.events, events: Vec::new(), deliveries: Vec::new() };
        let mut deliveries = known.deliveries;
        let mut places: HashMap<EventId, usize> = HashMap::new();
        let appended = events.iter().map(|event| {
            let id = event.id.clone().unwrap_or_else(|| EventId::from(store.ids.next(IdKind::Event, now)));
            let origin = match places.get(&id) {
                Some(&place) => Origin::New(place),
                None if plan.stored.contains_key(&id) => Origin::Stored(id.clone()),
                None => {
                    places.insert(id.clone(), plan.events.len());
                    plan.events.push(PlannedEvent { id: id.clone(), event, sequence: None });
                    Origin::New(plan.events.len() - 1)
                }
            };
            let is_first =
                matches!(origin, Origin::New(place) if std::ptr::eq(plan.events[place].event, event));
            let handlers = event.handlers.iter().map(|handler| {
                let mut created = false;
                let id = deliveries.entry((id.clone(), handler.clone())).or_insert_with(|| {
                    created = true;
                    let id = DeliveryId::from(store.ids.next(IdKind::Delivery, now));
                    let origin = origin.clone();
                    plan.deliveries.push(PlannedDelivery { id: id.clone(), handler, origin, request: event });
                    id
                });
                AppendedDelivery { id: id.clone(), handler: handler.clone(), created }
            });
            Appended { id: id.clone(), created: is_first, deliveries: handlers.collect() }
        });
        let appended = appended.collect();
        (plan, appended)
    }

    /// One counter update for each key, however many of its events are new.
    ///
    /// A transaction that holds an uncommitted increment makes every other appender of the key conflict, so that a lower
    /// sequence is always committed before a higher one.
    async fn take_sequences(&mut self, store: &MongoStore, session: &mut ClientSession) -> Result<()> {
        let mut by_key: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (place, planned) in self.events.iter().enumerate() {
            if let Some(key) = &planned.event.key {
                by_key.entry(key).or_default().push(place);
            }
        }
        let steps = by_key.iter().map(|(key, places)| (*key, places.len() as i64)).collect();
        for (key, last) in advance_counters(store, session, steps).await? {
            let places = &by_key[key.as_str()];
            let first = last - places.len() as i64 + 1;
            for (sequence, &place) in (first..).zip(places) {
                self.events[place].sequence = Some(sequence);
            }
        }
        Ok(())
    }

    async fn write(&self, store: &MongoStore, session: &mut ClientSession, now: Timestamp) -> Result<()> {
        let events = self
            .events
            .iter()
            .map(|planned| event_document(&planned.id, planned.event, planned.sequence, now));
        insert(DOING, &store.event_collection(), session, events.collect::<Result<_>>()?).await?;
        let deliveries = self.deliveries.iter().map(|planned| self.delivery_document(planned, now));
        insert(DOING, &store.deliveries(), session, deliveries.collect::<Result<_>>()?).await?;
        let extended = self.deliveries.iter().filter_map(|planned| match &planned.origin {
            Origin::Stored(id) => Some(id.as_str()),
            Origin::New(_) => None,
        });
        touch_events(store, session, extended.collect()).await.map_err(|error| classify(DOING, error))
    }

    fn delivery_document(&self, planned: &PlannedDelivery<'_>, now: Timestamp) -> Result<RawDocumentBuf> {
        let (event_id, event_type, key, sequence) = match &planned.origin {
            Origin::New(place) => {
                let PlannedEvent { id, event, sequence } = &self.events[*place];
                (id, &event.event_type, &event.key, *sequence)
            }
            Origin::Stored(id) => {
                let event = &self.stored[id];
                (id, &event.event_type, &event.key, event.sequence)
            }
        };
        let origin = DeliveryOrigin {
            event_id,
            event_type,
            key: key.as_deref(),
            sequence,
            max_attempts: planned.request.max_attempts,
            available_at: planned.request.available_at.unwrap_or(now),
        };
        let document = delivery_document(&planned.id, planned.handler, &origin, now);
        RawDocumentBuf::try_from(&document).map_err(|error| corrupt("the new delivery", error))
    }
}

/// Inserts what may be nothing.
pub(super) async fn insert(
    doing: &str,
    collection: &Collection<RawDocumentBuf>,
    session: &mut ClientSession,
    documents: Vec<RawDocumentBuf>,
) -> Result<()> {
    if documents.is_empty() {
        return Ok(());
    }
    collection.insert_many(documents).session(session).await.map_err(|error| classify(doing, error))?;
    Ok(())
}

/// Adds each step to the counter of its key, all in one command, and returns the new values: int64 whatever number
/// another client stored.
async fn advance_counters(
    store: &MongoStore,
    session: &mut ClientSession,
    steps: BTreeMap<&str, i64>,
) -> Result<Vec<(String, i64)>> {
    if steps.is_empty() {
        return Ok(Vec::new());
    }
    let statements = steps.iter().map(|(key, step)| {
        let before = doc! { "$toLong": { "$ifNull": ["$value", 0_i64] } };
        let advance = doc! { "$set": { "value": { "$add": [before, *step] } } };
        doc! { "q": { "_id": *key }, "u": [advance], "upsert": true }
    });
    let statements: Vec<Document> = statements.collect();
    let command = doc! { "update": &store.names.key_sequences, "updates": statements };
    let reply = store.database.run_command(command).session(&mut *session).await;
    settle::changed_by(DOING, reply.map_err(|error| classify(DOING, error))?)?;
    let keys: Vec<&str> = steps.into_keys().collect();
    let counters = find(DOING, &store.key_collection(), session, doc! { "_id": { "$in": keys } }).await?;
    let counters = counters.iter().map(|document| read_key_sequence(document));
    counters.map(|counter| counter.map(|counter| (counter.key, counter.value))).collect()
}

/// Writes to events without changing them, so that a transaction which deletes them, or does the same, conflicts with
/// this one. An append that adds a delivery to an event and a purge that takes its last delivery away touch no common
/// document otherwise, and both would commit.
pub(super) async fn touch_events(
    store: &MongoStore,
    session: &mut ClientSession,
    ids: Vec<&str>,
) -> mongodb::error::Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    // Setting what is there already is no write; setting and unsetting a member is.
    let events = store.event_collection();
    let filter = doc! { "_id": { "$in": ids } };
    events
        .update_many(filter.clone(), doc! { "$set": { "relayctlTouch": true } })
        .session(&mut *session)
        .await?;
    events.update_many(filter, doc! { "$unset": { "relayctlTouch": "" } }).session(session).await?;
    Ok(())
}
