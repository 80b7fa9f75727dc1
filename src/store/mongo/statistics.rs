//! Counts by handler, from indexes, at one point in time.

use std::collections::BTreeMap;

use futures_util::TryStreamExt as _;
use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use mongodb::options::Hint;

use super::BEGINNING;
use super::error::classify;
use super::{MongoStore, schema};
use crate::model::{HandlerStatistics, QueueDepth, Statistics, Timestamp};
use crate::store::{Result, StoreError};

/// See [`Store::statistics`](crate::store::Store::statistics).
///
/// Nothing counts completed deliveries one by one: they are what is left of all when unfinished and dead ones are taken
/// away. That is exact, since all counts are read in one snapshot.
pub(super) async fn statistics(store: &MongoStore) -> Result<Statistics> {
    let mut snapshot = Snapshot::of(store).await?;
    let processing = snapshot.by_handler(schema::RUNNING, doc! { "status": "processing" }).await?;
    let dead = snapshot.by_handler(schema::STATUS_CREATED, doc! { "status": "dead" }).await?;
    let parked = snapshot.by_handler(schema::PARKED, doc! { "lane": "parked" }).await?;
    let mut handlers = Vec::new();
    for handler in snapshot.handlers().await? {
        let total = snapshot.count(schema::HANDLER_CREATED, doc! { "handler": &handler }).await?;
        let open = doc! { "handler": &handler, "dueAt": { "$gte": BEGINNING } };
        let unfinished = snapshot.count(schema::OPEN, open).await?;
        let of = |groups: &BTreeMap<String, Group>| groups.get(&handler).copied().unwrap_or_default();
        let (processing, dead, parked) = (of(&processing).count, of(&dead).count, of(&parked));
        let oldest_ready = snapshot.oldest_ready(&handler).await?;
        handlers.push(HandlerStatistics {
            total,
            pending: unfinished.saturating_sub(processing),
            processing,
            completed: total.saturating_sub(unfinished + dead),
            dead,
            parked: parked.count,
            oldest_due_at: oldest_ready.into_iter().chain(parked.oldest_due_at).min(),
            handler,
        });
    }
    Ok(Statistics::from_handlers(handlers))
}

/// See [`Store::queue_depths`](crate::store::Store::queue_depths).
///
/// One look at the index of what is unfinished, which has everything that is wanted of it.
pub(super) async fn queue_depths(store: &MongoStore, handlers: &[String]) -> Result<Vec<QueueDepth>> {
    let mut snapshot = Snapshot::of(store).await?;
    let one_of_them = doc! { "$in": handlers };
    let open = doc! { "handler": &one_of_them, "dueAt": { "$gte": BEGINNING } };
    let unfinished = snapshot.by_handler(schema::OPEN, open).await?;
    let leased = doc! { "handler": one_of_them, "status": "processing" };
    let processing = snapshot.by_handler(schema::RUNNING, leased).await?;
    let depth = |handler: &String| {
        let unfinished = unfinished.get(handler).copied().unwrap_or_default();
        let processing = processing.get(handler).copied().unwrap_or_default().count;
        QueueDepth {
            handler: handler.clone(),
            pending: unfinished.count.saturating_sub(processing),
            processing,
            oldest_due_at: unfinished.oldest_due_at,
        }
    };
    Ok(handlers.iter().map(depth).collect())
}

/// What is known of one handler's deliveries of a kind.
#[derive(Clone, Copy, Default)]
struct Group {
    count: u64,
    oldest_due_at: Option<Timestamp>,
}

/// The deliveries as they were when the first query was answered.
struct Snapshot<'a> {
    store: &'a MongoStore,
    session: ClientSession,
}

impl<'a> Snapshot<'a> {
    async fn of(store: &'a MongoStore) -> Result<Self> {
        let session = store.client().start_session().snapshot(true).await;
        Ok(Snapshot { store, session: session.map_err(failed)? })
    }

    async fn aggregate(&mut self, index: &str, pipeline: Vec<Document>) -> Result<Vec<Document>> {
        let deliveries = self.store.deliveries();
        let aggregate = deliveries.aggregate(pipeline).hint(Hint::Name(index.to_owned()));
        let mut cursor = aggregate.session(&mut self.session).await.map_err(failed)?;
        cursor.stream(&mut self.session).try_collect().await.map_err(failed)
    }

    /// All handlers that ever had a delivery which is still there: a skip scan.
    async fn handlers(&mut self) -> Result<Vec<String>> {
        let pipeline = vec![doc! { "$sort": { "handler": 1 } }, doc! { "$group": { "_id": "$handler" } }];
        let groups = self.aggregate(schema::HANDLER_CREATED, pipeline).await?;
        Ok(groups.iter().filter_map(|group| group.get_str("_id").ok().map(str::to_owned)).collect())
    }

    /// How many deliveries of one handler match; nothing is read but the index.
    async fn count(&mut self, index: &str, filter: Document) -> Result<u64> {
        let pipeline = vec![doc! { "$match": filter }, doc! { "$count": "count" }];
        Ok(self.aggregate(index, pipeline).await?.first().map_or(0, count_of))
    }

    /// Counts what is usually little, for all handlers at once.
    async fn by_handler(&mut self, index: &str, filter: Document) -> Result<BTreeMap<String, Group>> {
        let group = doc! { "_id": "$handler", "count": { "$sum": 1 }, "oldest": { "$min": "$dueAt" } };
        let groups = self.aggregate(index, vec![doc! { "$match": filter }, doc! { "$group": group }]).await?;
        let groups = groups.iter().filter_map(|group| {
            let oldest = group.get_datetime("oldest").ok();
            let oldest_due_at = oldest.map(|date| Timestamp::from_millis(date.timestamp_millis()));
            let found = Group { count: count_of(group), oldest_due_at };
            Some((group.get_str("_id").ok()?.to_owned(), found))
        });
        Ok(groups.collect())
    }

    async fn oldest_ready(&mut self, handler: &str) -> Result<Option<Timestamp>> {
        let ready = doc! { "handler": handler, "lane": "ready", "dueAt": { "$gte": BEGINNING } };
        let deliveries = self.store.deliveries();
        let find = deliveries.find_one(ready).sort(doc! { "dueAt": 1 });
        let find = find.hint(Hint::Name(schema::CLAIM.to_owned())).session(&mut self.session);
        let oldest = find.await.map_err(failed)?;
        let date = oldest.and_then(|delivery| delivery.get_datetime("dueAt").ok());
        Ok(date.map(|date| Timestamp::from_millis(date.timestamp_millis())))
    }
}

fn count_of(group: &Document) -> u64 {
    let count = group.get_i32("count").map(i64::from).or_else(|_| group.get_i64("count")).unwrap_or(0);
    u64::try_from(count).unwrap_or(0)
}

fn failed(error: mongodb::error::Error) -> StoreError {
    classify("counting deliveries", error)
}
