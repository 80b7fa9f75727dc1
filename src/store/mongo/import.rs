//! Deliveries with their events from another store.
//!
//! As in an append, what is there is read in the transaction's snapshot and what is new is inserted, so that a race for an
//! id is a conflict. Each key that gets an event has its counter written, changed or not: of two transactions that give the
//! same place in a key to different events, one starts again and finds it taken.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::TryStreamExt as _;
use mongodb::ClientSession;
use mongodb::bson::{Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use mongodb::options::Hint;
use tokio::sync::Mutex;

use super::append::{find, insert, touch_events};
use super::documents::{read_delivery, read_event};
use super::error::classify;
use super::transaction::session_of;
use super::{ALL_AT_ONCE, MongoStore, exact, schema, settle, transaction, write};
use crate::model::{Delivery, ExportLine, check_importable};
use crate::store::{Imported, Result};

const DOING: &str = "importing deliveries";

/// See [`Store::import`](crate::store::Store::import).
pub(super) async fn import(store: &MongoStore, lines: &[ExportLine], dry_run: bool) -> Result<Vec<Imported>> {
    let candidates = lines.iter().map(Candidate::of).collect();
    transaction::to_the_end(import_all(store.clone(), Arc::new(candidates), dry_run)).await
}

type Candidates = Vec<Result<Candidate, String>>;

async fn import_all(store: MongoStore, candidates: Arc<Candidates>, dry_run: bool) -> Result<Vec<Imported>> {
    let keys = readable(&candidates).filter_map(|candidate| candidate.delivery.key.as_deref());
    let _turn = store.key_locks.acquire(keys.collect()).await;
    let imported = Arc::new(Mutex::new(Vec::new()));
    transaction::run(&store, &mut |transaction| {
        let (store, candidates, imported) = (store.clone(), candidates.clone(), imported.clone());
        Box::pin(async move {
            let session = session_of(transaction)?;
            let known = Known::read(&store, session, &candidates).await?;
            let plan = Plan::new(known, &candidates);
            if !dry_run {
                plan.write(&store, session).await?;
            }
            *imported.lock().await = plan.imported;
            Ok(())
        })
    })
    .await?;
    store.memory.forget();
    let imported = std::mem::take(&mut *imported.lock().await);
    Ok(imported)
}

fn readable(candidates: &Candidates) -> impl Iterator<Item = &Candidate> {
    candidates.iter().filter_map(|candidate| candidate.as_ref().ok())
}

/// A line that makes sense by itself, as it will be stored.
struct Candidate {
    delivery: Delivery,
    event_document: RawDocumentBuf,
    delivery_document: RawDocumentBuf,
}

impl Candidate {
    fn of(line: &ExportLine) -> Result<Self, String> {
        let (event_document, delivery_document) =
            exact::documents_of(line).map_err(|error| error.to_string())?;
        let event = read_event(&event_document).map_err(|error| error.to_string())?;
        let delivery = read_delivery(&delivery_document).map_err(|error| error.to_string())?;
        check_importable(&event, &delivery).map_err(|error| error.to_string())?;
        write::check_size(event_document.as_bytes().len()).map_err(|reason| format!("event: {reason}"))?;
        write::check_size(delivery_document.as_bytes().len())
            .map_err(|reason| format!("delivery: {reason}"))?;
        Ok(Candidate { delivery, event_document, delivery_document })
    }

    fn event_id(&self) -> &str {
        self.delivery.event_id.as_str()
    }

    /// Its place among the events of its key, if it has one.
    fn place(&self) -> Option<(String, i64)> {
        Some((self.delivery.key.clone()?, self.delivery.sequence?))
    }
}

/// What is there of what is to be imported.
#[derive(Default)]
struct Known {
    events: HashMap<String, RawDocumentBuf>,
    deliveries: HashMap<String, Delivery>,
    /// The event and the handler of each delivery of these events.
    pairs: HashMap<(String, String), String>,
    /// The event that has a place in a key.
    places: HashMap<(String, i64), String>,
}

impl Known {
    async fn read(store: &MongoStore, session: &mut ClientSession, candidates: &Candidates) -> Result<Self> {
        let mut known = Known::default();
        let events: Vec<&str> = readable(candidates).map(Candidate::event_id).collect();
        if events.is_empty() {
            return Ok(known);
        }
        for event in
            find(DOING, &store.event_collection(), session, doc! { "_id": { "$in": &events } }).await?
        {
            known.events.insert(event.get_str("_id").unwrap_or_default().to_owned(), event);
        }
        let ids: Vec<&str> = readable(candidates).map(|candidate| candidate.delivery.id.as_str()).collect();
        let filter = doc! { "$or": [{ "_id": { "$in": ids } }, { "eventId": { "$in": events } }] };
        for delivery in find(DOING, &store.deliveries(), session, filter).await? {
            known.note(read_delivery(&delivery)?);
        }
        known.read_places(store, session, candidates).await?;
        Ok(known)
    }

    /// Which places in their keys are taken. Keys of which the same sequences are asked for share a range of the index.
    async fn read_places(
        &mut self,
        store: &MongoStore,
        session: &mut ClientSession,
        candidates: &Candidates,
    ) -> Result<()> {
        let mut by_key: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        let new = readable(candidates).filter(|candidate| !self.events.contains_key(candidate.event_id()));
        for (key, sequence) in new.filter_map(Candidate::place) {
            by_key.entry(key).or_default().push(sequence);
        }
        let mut by_sequences: BTreeMap<Vec<i64>, Vec<String>> = BTreeMap::new();
        for (key, sequences) in by_key {
            by_sequences.entry(sequences).or_default().push(key);
        }
        let ranges = by_sequences
            .into_iter()
            .map(|(sequences, keys)| doc! { "key": { "$in": keys }, "sequence": { "$in": sequences } });
        for range in ranges {
            for taken in taken_places(store, session, range).await? {
                self.note_place(&read_delivery(&taken)?);
            }
        }
        Ok(())
    }

    fn note(&mut self, delivery: Delivery) {
        let pair = (delivery.event_id.to_string(), delivery.handler.clone());
        self.pairs.insert(pair, delivery.id.to_string());
        self.note_place(&delivery);
        self.deliveries.insert(delivery.id.to_string(), delivery);
    }

    fn note_place(&mut self, delivery: &Delivery) {
        if let (Some(key), Some(sequence)) = (&delivery.key, delivery.sequence) {
            self.places.insert((key.clone(), sequence), delivery.event_id.to_string());
        }
    }

    /// What the line says that is not what is there.
    fn contradiction(&self, candidate: &Candidate) -> Option<String> {
        let delivery = &candidate.delivery;
        let there = self.deliveries.get(delivery.id.as_str());
        if let Some(field) = there.and_then(|there| delivery.difference_from(there)) {
            return Some(format!("delivery {} is there already with another {field}", delivery.id));
        }
        let event = candidate.event_id();
        if let Some(there) = self.events.get(event) {
            let field = field_that_differs(there, &candidate.event_document)?;
            return Some(format!("event {event} is there already with another {field}"));
        }
        let (key, sequence) = candidate.place()?;
        let owner = self.places.get(&(key.clone(), sequence)).filter(|owner| *owner != event)?;
        Some(format!("place {sequence} of key {key} is taken by event {owner}"))
    }
}

async fn taken_places(
    store: &MongoStore,
    session: &mut ClientSession,
    range: Document,
) -> Result<Vec<RawDocumentBuf>> {
    let failed = |error| classify(DOING, error);
    let deliveries = store.deliveries();
    let find = deliveries.find(range).hint(Hint::Name(schema::KEY_ORDER.to_owned())).batch_size(ALL_AT_ONCE);
    let mut cursor = find.session(&mut *session).await.map_err(failed)?;
    cursor.stream(session).try_collect().await.map_err(failed)
}

/// To the last bit; only null is as absent.
fn field_that_differs(there: &RawDocument, new: &RawDocument) -> Option<String> {
    let value = |document: &RawDocument, name: &str| match document.get(name) {
        Ok(None | Some(RawBsonRef::Null)) => None,
        Ok(Some(value)) => Some(exact::bytes_of(value)),
        Err(_) => None,
    };
    let names = there.iter().chain(new.iter()).filter_map(|element| Some(element.ok()?.0.as_str()));
    names.into_iter().find(|name| value(there, name) != value(new, name)).map(str::to_owned)
}

/// What is to be written, and what becomes of each line by that.
struct Plan<'a> {
    known: Known,
    events: Vec<&'a RawDocumentBuf>,
    deliveries: Vec<&'a RawDocumentBuf>,
    /// Events that are there and get another delivery.
    extended: Vec<&'a str>,
    /// The highest new sequence of each key.
    counters: BTreeMap<String, i64>,
    imported: Vec<Imported>,
}

impl<'a> Plan<'a> {
    fn new(known: Known, candidates: &'a Candidates) -> Self {
        let (events, deliveries, extended) = Default::default();
        let mut plan =
            Plan { known, events, deliveries, extended, counters: BTreeMap::new(), imported: Vec::new() };
        for candidate in candidates {
            let imported = match candidate {
                Ok(candidate) => plan.take(candidate),
                Err(reason) => Imported::Refused { reason: reason.clone() },
            };
            plan.imported.push(imported);
        }
        plan
    }

    fn take(&mut self, candidate: &'a Candidate) -> Imported {
        if let Some(reason) = self.known.contradiction(candidate) {
            return Imported::Refused { reason };
        }
        let Candidate { delivery, event_document, delivery_document } = candidate;
        let pair = (delivery.event_id.to_string(), delivery.handler.clone());
        if self.known.deliveries.contains_key(delivery.id.as_str()) || self.known.pairs.contains_key(&pair) {
            return Imported::Existing;
        }
        let is_new = !self.known.events.contains_key(candidate.event_id());
        if is_new {
            self.events.push(event_document);
            self.known.events.insert(candidate.event_id().to_owned(), event_document.clone());
            if let Some((key, sequence)) = candidate.place() {
                let highest = self.counters.entry(key).or_insert(sequence);
                *highest = sequence.max(*highest);
            }
        } else {
            self.extended.push(candidate.event_id());
        }
        self.deliveries.push(delivery_document);
        self.known.note(delivery.clone());
        Imported::Created { event: is_new }
    }

    async fn write(&self, store: &MongoStore, session: &mut ClientSession) -> Result<()> {
        self.raise_counters(store, session).await?;
        let documents = |of: &[&RawDocumentBuf]| of.iter().map(|&document| document.clone()).collect();
        insert(DOING, &store.event_collection(), session, documents(&self.events)).await?;
        insert(DOING, &store.deliveries(), session, documents(&self.deliveries)).await?;
        let extended = touch_events(store, session, self.extended.clone()).await;
        extended.map_err(|error| classify(DOING, error))
    }

    /// Sets the counters to what was imported, unless they are ahead of it. That a value is written which is there already
    /// would be no write: the second statement takes away what the first one adds.
    async fn raise_counters(&self, store: &MongoStore, session: &mut ClientSession) -> Result<()> {
        if self.counters.is_empty() {
            return Ok(());
        }
        let statements = self.counters.iter().flat_map(|(key, sequence)| {
            let there = doc! { "$toLong": { "$ifNull": ["$value", 0_i64] } };
            let raised = doc! { "value": { "$max": [there, *sequence] }, "relayctlTouch": true };
            let raise = doc! { "q": { "_id": key }, "u": [{ "$set": raised }], "upsert": true };
            [raise, doc! { "q": { "_id": key }, "u": [{ "$unset": "relayctlTouch" }] }]
        });
        let statements: Vec<Document> = statements.collect();
        let command = doc! { "update": &store.names.key_sequences, "updates": statements };
        let reply = store.database.run_command(command).session(session).await;
        settle::changed_by(DOING, reply.map_err(|error| classify(DOING, error))?)?;
        Ok(())
    }
}
