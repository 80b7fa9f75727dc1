//! Counts by handler, from indexes, at one point in time.

use std::collections::BTreeMap;

use futures_util::TryStreamExt as _;
use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use mongodb::options::Hint;

use super::claim::BEGINNING;
use super::error::classify;
use super::{MongoStore, schema};
use crate::model::{HandlerStatistics, Statistics, Timestamp};
use crate::store::Result;

/// One count by handler: the index that it runs on, and what it counts there.
pub(super) struct Count {
    pub(super) index: &'static str,
    pub(super) filter: fn() -> Document,
}

/// All deliveries.
pub(super) const TOTAL: Count =
    Count { index: schema::HANDLER_CREATED, filter: || doc! { "handler": { "$gte": "" } } };
/// Those that are pending or processing, with the earliest due time.
pub(super) const UNFINISHED: Count = Count {
    index: schema::OPEN,
    filter: || doc! { "handler": { "$gte": "" }, "dueAt": { "$gte": BEGINNING } },
};
/// Those that are leased.
pub(super) const PROCESSING: Count =
    Count { index: schema::RUNNING, filter: || doc! { "handler": { "$gte": "" }, "status": "processing" } };
/// Those that are dead.
pub(super) const DEAD: Count = Count { index: schema::STATUS_CREATED, filter: || doc! { "status": "dead" } };
/// Those that are parked.
pub(super) const PARKED: Count =
    Count { index: schema::PARKED, filter: || doc! { "handler": { "$gte": "" }, "lane": "parked" } };

/// What a count found for a handler.
#[derive(Clone, Copy, Default)]
struct Found {
    count: u64,
    oldest_due_at: Option<Timestamp>,
}

/// See [`Store::statistics`](crate::store::Store::statistics).
///
/// Nothing counts completed deliveries one by one: they are what is left of all when unfinished and dead ones are taken
/// away. That is exact, since all counts are read in one snapshot.
pub(super) async fn statistics(store: &MongoStore) -> Result<Statistics> {
    let session = store.client().start_session().snapshot(true).await;
    let mut session = session.map_err(|error| classify("counting deliveries", error))?;
    let total = count(store, &mut session, &TOTAL).await?;
    let unfinished = count(store, &mut session, &UNFINISHED).await?;
    let processing = count(store, &mut session, &PROCESSING).await?;
    let dead = count(store, &mut session, &DEAD).await?;
    let parked = count(store, &mut session, &PARKED).await?;
    let handlers = total.iter().map(|(handler, total)| {
        let of = |counts: &BTreeMap<String, Found>| counts.get(handler).copied().unwrap_or_default();
        let (unfinished, processing, dead, parked) =
            (of(&unfinished), of(&processing), of(&dead), of(&parked));
        HandlerStatistics {
            handler: handler.clone(),
            total: total.count,
            pending: unfinished.count.saturating_sub(processing.count),
            processing: processing.count,
            completed: total.count.saturating_sub(unfinished.count + dead.count),
            dead: dead.count,
            parked: parked.count,
            oldest_due_at: unfinished.oldest_due_at,
        }
    });
    Ok(Statistics::from_handlers(handlers.collect()))
}

impl Count {
    pub(super) fn pipeline(&self) -> Vec<Document> {
        let group = doc! { "_id": "$handler", "count": { "$sum": 1 }, "oldest": { "$min": "$dueAt" } };
        let group = if self.index == schema::OPEN {
            group
        } else {
            doc! { "_id": "$handler", "count": { "$sum": 1 } }
        };
        vec![doc! { "$match": (self.filter)() }, doc! { "$group": group }]
    }
}

async fn count(
    store: &MongoStore,
    session: &mut ClientSession,
    count: &Count,
) -> Result<BTreeMap<String, Found>> {
    let failed = |error| classify("counting deliveries", error);
    let deliveries = store.database.collection::<Document>(&store.names.deliveries);
    let hint = Hint::Name(count.index.to_owned());
    let cursor = deliveries.aggregate(count.pipeline()).hint(hint).session(&mut *session).await;
    let mut cursor = cursor.map_err(failed)?;
    let groups: Vec<Document> = cursor.stream(session).try_collect().await.map_err(failed)?;
    let found = groups.iter().filter_map(|group| {
        let oldest_due_at =
            group.get_datetime("oldest").ok().map(|date| Timestamp::from_millis(date.timestamp_millis()));
        let count = group.get_i32("count").map(i64::from).or_else(|_| group.get_i64("count")).ok()?;
        Some((
            group.get_str("_id").ok()?.to_owned(),
            Found { count: u64::try_from(count).ok()?, oldest_due_at },
        ))
    });
    Ok(found.collect())
}
