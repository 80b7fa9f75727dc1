//! Deliveries with their events, to the last field.

use std::collections::{HashMap, VecDeque};

use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use mongodb::Cursor;
use mongodb::bson::{Bson, Document, RawBson, RawDocumentBuf, doc};
use mongodb::options::Hint;

use super::documents::{date, read_delivery, read_event};
use super::error::{classify, corrupt};
use super::{ALL_AT_ONCE, MongoStore, exact, key_order};
use crate::model::{Delivery, ExportLine, Filter, Timestamp};
use crate::store::{Result, StoreError};

const DOING: &str = "exporting deliveries";

/// Deliveries whose events are read together.
const CHUNK: usize = 250;

/// Events that are held at a time, in bytes: those of a chunk that are beyond it are read when their turn comes.
const EVENT_BYTES: usize = 16 * 1024 * 1024;

/// See [`Store::export`](crate::store::Store::export).
pub(super) fn export(
    store: &MongoStore,
    filter: Filter,
    cutoff: Timestamp,
) -> BoxStream<'_, Result<ExportLine>> {
    let export = Export {
        store,
        conditions: conditions(&filter, cutoff),
        filter,
        source: None,
        deliveries: VecDeque::new(),
        events: HashMap::new(),
    };
    let lines = stream::unfold(Some(export), |export| async {
        let mut export = export?;
        match export.next().await {
            Ok(line) => Some((line?, Some(export))),
            Err(error) => Some((Err(error), None)),
        }
    });
    lines.boxed()
}

/// Deliveries of other clients may tell no time of creation.
fn conditions(filter: &Filter, cutoff: Timestamp) -> Document {
    doc! { "$and": [key_order::conditions(filter), { "createdAt": { "$not": { "$gt": date(cutoff) } } }] }
}

/// An export under way. Its methods take it for themselves alone, as a cursor cannot be shared.
struct Export<'a> {
    store: &'a MongoStore,
    filter: Filter,
    /// What holds of everything that is exported.
    conditions: Document,
    source: Option<Source>,
    /// The rest of a chunk, and events of it.
    deliveries: VecDeque<RawDocumentBuf>,
    events: HashMap<String, RawDocumentBuf>,
}

/// Where deliveries come from, in order.
enum Source {
    Ids(VecDeque<Bson>),
    Walk(Box<Cursor<RawDocumentBuf>>),
}

impl Export<'_> {
    /// The next line, or why there is none for the next delivery. The outer error ends the export.
    async fn next(&mut self) -> Result<Option<Result<ExportLine>>> {
        loop {
            let Some(document) = self.deliveries.pop_front() else {
                match self.read_chunk().await? {
                    true => continue,
                    false => return Ok(None),
                }
            };
            match read_delivery(&document) {
                Ok(delivery) if !self.filter.matches_group(&delivery) => {}
                Ok(delivery) => return self.line(&document, delivery).await.map(Some),
                Err(error) => return Ok(Some(Err(error))),
            }
        }
    }

    async fn line(&mut self, document: &RawDocumentBuf, delivery: Delivery) -> Result<Result<ExportLine>> {
        if let Some(event) = self.events.get(delivery.event_id.as_str()) {
            return Ok(line_of(event, document, &delivery));
        }
        let event = self.store.event_collection().find_one(doc! { "_id": delivery.event_id.as_str() }).await;
        Ok(match event.map_err(|error| classify(DOING, error))? {
            Some(event) => line_of(&event, document, &delivery),
            None => Err(unwritable(&delivery, format!("its event {} is not there", delivery.event_id))),
        })
    }

    /// Reads the next deliveries, and as many of their events as may be held; false when there are no more.
    async fn read_chunk(&mut self) -> Result<bool> {
        let mut source = match self.source.take() {
            Some(source) => source,
            None => self.open().await?,
        };
        self.deliveries = match &mut source {
            Source::Ids(ids) => self.chunk_of(ids).await?,
            Source::Walk(cursor) => {
                let chunk = cursor.by_ref().take(CHUNK).try_collect().await;
                chunk.map_err(|error| classify(DOING, error))?
            }
        };
        self.source = Some(source);
        self.events = self.read_events().await?;
        Ok(!self.deliveries.is_empty())
    }

    async fn open(&mut self) -> Result<Source> {
        let fields = doc! { "key": 1, "sequence": 1 };
        Ok(match key_order::if_few(self.store, DOING, &self.filter, fields).await? {
            Some(few) => Source::Ids(few.iter().filter_map(id_of).collect()),
            None => {
                let cursor = key_order::walk(self.store, DOING, self.conditions.clone()).await?;
                Source::Walk(Box::new(cursor))
            }
        })
    }

    /// Those of the next ids that still match.
    async fn chunk_of(&mut self, ids: &mut VecDeque<Bson>) -> Result<VecDeque<RawDocumentBuf>> {
        let failed = |error| classify(DOING, error);
        let mut found = Vec::new();
        while found.is_empty() && !ids.is_empty() {
            let next: Vec<Bson> = ids.drain(..CHUNK.min(ids.len())).collect();
            let deliveries = self.store.deliveries();
            let filter = doc! { "$and": [{ "_id": { "$in": next } }, self.conditions.clone()] };
            let find = deliveries.find(filter).hint(Hint::Keys(doc! { "_id": 1 })).batch_size(ALL_AT_ONCE);
            found = find.await.map_err(failed)?.try_collect().await.map_err(failed)?;
        }
        key_order::sort(&mut found);
        Ok(found.into())
    }

    async fn read_events(&mut self) -> Result<HashMap<String, RawDocumentBuf>> {
        let mut events = HashMap::new();
        let ids = self.deliveries.iter().filter_map(|delivery| delivery.get_str("eventId").ok());
        let ids: Vec<&str> = ids.collect();
        if ids.is_empty() {
            return Ok(events);
        }
        let failed = |error| classify(DOING, error);
        let collection = self.store.event_collection();
        let find = collection.find(doc! { "_id": { "$in": ids } }).batch_size(ALL_AT_ONCE);
        let mut cursor = find.await.map_err(failed)?;
        let mut bytes = 0;
        while bytes < EVENT_BYTES {
            let Some(event) = cursor.try_next().await.map_err(failed)? else { break };
            bytes += event.as_bytes().len();
            if let Ok(id) = event.get_str("_id") {
                events.insert(id.to_owned(), event);
            }
        }
        Ok(events)
    }
}

fn id_of(document: &RawDocumentBuf) -> Option<Bson> {
    Bson::try_from(RawBson::from(document.get("_id").ok()??)).ok()
}

fn line_of(event: &RawDocumentBuf, document: &RawDocumentBuf, delivery: &Delivery) -> Result<ExportLine> {
    read_event(event)?;
    exact::line_of(event, document).map_err(|error| unwritable(delivery, error))
}

fn unwritable(delivery: &Delivery, reason: impl std::fmt::Display) -> StoreError {
    corrupt(&format!("delivery {}", delivery.id), reason)
}
