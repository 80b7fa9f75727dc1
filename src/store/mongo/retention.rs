//! What is over goes away: finished deliveries with their events, and counters that nothing refers to.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::options::Hint;
use mongodb::{ClientSession, Collection};
use tokio::sync::Mutex;

use super::append::touch_events;
use super::documents::{date, read_key_sequence};
use super::error::classify;
use super::transaction::session_of;
use super::{ALL_AT_ONCE, MongoStore, schema, transaction};
use crate::model::KeySequence;
use crate::store::{PruneBatch, PruneRequest, PurgeBatch, PurgeRequest, Result};

const PURGING: &str = "purging deliveries";
const PRUNING: &str = "pruning keys";

/// Batches of this size and more are deleted in two transactions beside each other. For each document that a transaction
/// deletes, the server (6.0) reads the catalogue entry of each unique index again, which makes such a delete about twice
/// as dear as one without transaction; it does so on one core for each transaction.
const SPLIT_FROM: usize = 100;

/// See [`Store::purge_batch`](crate::store::Store::purge_batch).
pub(super) async fn purge_batch(store: &MongoStore, request: &PurgeRequest) -> Result<PurgeBatch> {
    loop {
        let old = finished(store, request).await?;
        if old.is_empty() {
            return Ok(PurgeBatch::default());
        }
        let delete = |old| transaction::to_the_end(delete(store.clone(), *request, old));
        let (one, other) = halves(old);
        let (one, other) = tokio::join!(delete(one), delete(other));
        let batch = sum(one, other)?;
        // Where all of them moved meanwhile, the batch is read again: an empty one would mean that nothing is left.
        if batch.deliveries > 0 {
            return Ok(batch);
        }
    }
}

/// A finished delivery and its event.
type Old = (String, String);

/// Two parts that share no event, so that their transactions have nothing to conflict about. A small batch stays whole.
fn halves(mut old: Vec<Old>) -> (Vec<Old>, Vec<Old>) {
    if old.len() < SPLIT_FROM {
        return (old, Vec::new());
    }
    old.sort_unstable_by(|(_, one), (_, other)| one.cmp(other));
    let middle = old[old.len() / 2].1.clone();
    let behind = old.split_off(old.partition_point(|(_, event)| *event < middle));
    (old, behind)
}

/// What one half deleted is told even where the other one failed: if that was not by chance, the next batch fails too.
fn sum(one: Result<PurgeBatch>, other: Result<PurgeBatch>) -> Result<PurgeBatch> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok(PurgeBatch {
            deliveries: one.deliveries + other.deliveries,
            events: one.events + other.events,
        }),
        (Ok(done), Err(_)) | (Err(_), Ok(done)) if done.deliveries > 0 => Ok(done),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// The deliveries that finished first, completed ones before dead ones.
async fn finished(store: &MongoStore, request: &PurgeRequest) -> Result<Vec<Old>> {
    let mut old = Vec::new();
    for purge in purges(request) {
        let missing = i64::from(request.batch) - old.len() as i64;
        if missing <= 0 {
            break;
        }
        let deliveries = store.deliveries();
        let find = deliveries.find(purge.filter).sort(purge.sort).hint(Hint::Name(purge.index.to_owned()));
        let find = find.projection(doc! { "eventId": 1 }).limit(missing).batch_size(ALL_AT_ONCE);
        let cursor = find.await.map_err(|error| classify(PURGING, error))?;
        let documents: Vec<RawDocumentBuf> =
            cursor.try_collect().await.map_err(|error| classify(PURGING, error))?;
        old.extend(documents.iter().filter_map(|document| {
            Some((document.get_str("_id").ok()?.to_owned(), document.get_str("eventId").ok()?.to_owned()))
        }));
    }
    Ok(old)
}

/// One of the two ways in which deliveries finish.
pub(super) struct Purge {
    pub(super) index: &'static str,
    pub(super) filter: Document,
    pub(super) sort: Document,
}

pub(super) fn purges(request: &PurgeRequest) -> Vec<Purge> {
    let completed = request.completed_before.map(|time| Purge {
        index: schema::COMPLETED,
        filter: doc! { "status": "completed", "completedAt": { "$lt": date(time) } },
        sort: doc! { "completedAt": 1 },
    });
    let dead = request.dead_before.map(|time| Purge {
        index: schema::STATUS_UPDATED,
        filter: doc! { "status": "dead", "updatedAt": { "$lt": date(time) } },
        sort: doc! { "updatedAt": 1 },
    });
    completed.into_iter().chain(dead).collect()
}

/// Deletes in one transaction.
async fn delete(store: MongoStore, request: PurgeRequest, old: Vec<Old>) -> Result<PurgeBatch> {
    if old.is_empty() {
        return Ok(PurgeBatch::default());
    }
    let deleted = Arc::new(Mutex::new(PurgeBatch::default()));
    let old = Arc::new(old);
    transaction::run(&store, &mut |transaction| {
        let (store, old, deleted) = (store.clone(), old.clone(), deleted.clone());
        Box::pin(async move {
            let session = session_of(transaction)?;
            let batch = delete_in(&store, session, &request, &old).await;
            *deleted.lock().await = batch.map_err(|error| classify(PURGING, error))?;
            Ok(())
        })
    })
    .await?;
    let deleted = *deleted.lock().await;
    Ok(deleted)
}

/// Deletes those that still qualify, and the events that nothing refers to any more. Events that other deliveries still
/// refer to are touched: two purges that each leave the other's delivery standing would otherwise both leave the event.
async fn delete_in(
    store: &MongoStore,
    session: &mut ClientSession,
    request: &PurgeRequest,
    old: &[Old],
) -> mongodb::error::Result<PurgeBatch> {
    let ids: Vec<&str> = old.iter().map(|(id, _)| id.as_str()).collect();
    let still = purges(request).into_iter().map(|purge| purge.filter).collect::<Vec<_>>();
    let filter = doc! { "_id": { "$in": ids }, "$or": still };
    let deliveries = store.deliveries();
    let gone =
        deliveries.delete_many(filter).hint(Hint::Keys(doc! { "_id": 1 })).session(&mut *session).await?;
    let events: HashSet<&str> = old.iter().map(|(_, event)| event.as_str()).collect();
    let referred = still_referred(&deliveries, session, &events).await?;
    let (kept, orphaned): (Vec<&str>, Vec<&str>) =
        events.into_iter().partition(|event| referred.contains(*event));
    touch_events(store, session, kept).await?;
    let filter = doc! { "_id": { "$in": orphaned } };
    let orphaned = store.event_collection().delete_many(filter).session(session).await?;
    Ok(PurgeBatch { deliveries: gone.deleted_count, events: orphaned.deleted_count })
}

async fn still_referred(
    deliveries: &Collection<RawDocumentBuf>,
    session: &mut ClientSession,
    events: &HashSet<&str>,
) -> mongodb::error::Result<HashSet<String>> {
    let events: Vec<&str> = events.iter().copied().collect();
    let find =
        deliveries.find(doc! { "eventId": { "$in": events } }).projection(doc! { "_id": 0, "eventId": 1 });
    let mut cursor = find.hint(Hint::Name(schema::EVENT_HANDLER.to_owned())).session(&mut *session).await?;
    let documents: Vec<RawDocumentBuf> = cursor.stream(session).try_collect().await?;
    Ok(documents.iter().filter_map(|document| document.get_str("eventId").ok().map(str::to_owned)).collect())
}

/// See [`Store::count_purgeable`](crate::store::Store::count_purgeable).
pub(super) async fn count_purgeable(store: &MongoStore, request: &PurgeRequest) -> Result<u64> {
    let mut count = 0;
    for purge in purges(request) {
        let deliveries = store.deliveries();
        let counted = deliveries.count_documents(purge.filter).hint(Hint::Name(purge.index.to_owned())).await;
        count += counted.map_err(|error| classify("counting deliveries", error))?;
    }
    Ok(count)
}

/// See [`Store::prune_keys`](crate::store::Store::prune_keys).
pub(super) async fn prune_keys(store: &MongoStore, request: &PruneRequest) -> Result<PruneBatch> {
    if request.batch == 0 {
        // To the server a limit of 0 is none.
        return Ok(PruneBatch::default());
    }
    let counters = counters(store, request).await?;
    let examined = counters.len() as u64;
    let is_last = counters.len() < request.batch as usize;
    let last = counters.last().filter(|_| !is_last).map(|counter| counter.key.clone());
    let idle = idle(store, counters).await?;
    let pruned = match idle.is_empty() || request.dry_run {
        true => idle.len() as u64,
        false => transaction::to_the_end(delete_counters(store.clone(), idle)).await?,
    };
    Ok(PruneBatch { examined, pruned, last })
}

async fn counters(store: &MongoStore, request: &PruneRequest) -> Result<Vec<KeySequence>> {
    let behind = match &request.after {
        Some(key) => doc! { "_id": { "$gt": key } },
        None => doc! { "_id": { "$gte": "" } },
    };
    let keys = store.key_collection();
    let find = keys.find(behind).sort(doc! { "_id": 1 }).limit(i64::from(request.batch));
    let cursor = find.batch_size(ALL_AT_ONCE).await;
    let cursor = cursor.map_err(|error| classify(PRUNING, error))?;
    let documents: Vec<RawDocumentBuf> =
        cursor.try_collect().await.map_err(|error| classify(PRUNING, error))?;
    documents.iter().map(|document| read_key_sequence(document)).collect()
}

/// The counters of keys without deliveries.
async fn idle(store: &MongoStore, counters: Vec<KeySequence>) -> Result<Vec<KeySequence>> {
    let keys: Vec<&str> = counters.iter().map(|counter| counter.key.as_str()).collect();
    let deliveries = store.deliveries();
    let cursor =
        deliveries.aggregate(used_keys(&keys)).hint(Hint::Name(schema::KEY_CREATED.to_owned())).await;
    let cursor = cursor.map_err(|error| classify(PRUNING, error))?;
    let used: Vec<Document> = cursor.try_collect().await.map_err(|error| classify(PRUNING, error))?;
    let used: HashSet<&str> = used.iter().filter_map(|group| group.get_str("_id").ok()).collect();
    let idle = counters.iter().filter(|counter| !used.contains(counter.key.as_str())).cloned();
    Ok(idle.collect())
}

/// Which of these keys have deliveries: a skip scan of the index on key.
pub(super) fn used_keys(keys: &[&str]) -> Vec<Document> {
    vec![
        doc! { "$match": { "key": { "$in": keys } } },
        doc! { "$sort": { "key": 1, "createdAt": 1 } },
        doc! { "$group": { "_id": "$key", "first": { "$first": "$createdAt" } } },
    ]
}

async fn delete_counters(store: MongoStore, idle: Vec<KeySequence>) -> Result<u64> {
    let deleted = Arc::new(Mutex::new(0));
    let idle = Arc::new(idle);
    transaction::run(&store, &mut |transaction| {
        let (store, idle, deleted) = (store.clone(), idle.clone(), deleted.clone());
        Box::pin(async move {
            let session = session_of(transaction)?;
            let count = delete_counters_in(&store, session, &idle).await;
            *deleted.lock().await = count.map_err(|error| classify(PRUNING, error))?;
            Ok(())
        })
    })
    .await?;
    let deleted = *deleted.lock().await;
    Ok(deleted)
}

/// Looks again in the transaction's snapshot. An append in flight holds the counter, and conflicts with the deletion; one
/// that committed since has moved the counter away from the value that is pinned.
async fn delete_counters_in(
    store: &MongoStore,
    session: &mut ClientSession,
    idle: &[KeySequence],
) -> mongodb::error::Result<u64> {
    let keys: Vec<&str> = idle.iter().map(|counter| counter.key.as_str()).collect();
    let deliveries = store.deliveries();
    let find = deliveries.find(doc! { "key": { "$in": keys } });
    let hint = Hint::Name(schema::KEY_CREATED.to_owned());
    let mut cursor = find.projection(doc! { "_id": 0, "key": 1 }).hint(hint).session(&mut *session).await?;
    let documents: Vec<RawDocumentBuf> = cursor.stream(&mut *session).try_collect().await?;
    let used: HashSet<&str> = documents.iter().filter_map(|document| document.get_str("key").ok()).collect();
    let mut by_value: HashMap<i64, Vec<&str>> = HashMap::new();
    for counter in idle.iter().filter(|counter| !used.contains(counter.key.as_str())) {
        by_value.entry(counter.value).or_default().push(&counter.key);
    }
    let mut deleted = 0;
    for (value, keys) in by_value {
        let filter = doc! { "_id": { "$in": keys }, "value": value };
        deleted += store.key_collection().delete_many(filter).session(&mut *session).await?.deleted_count;
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ErrorKind, StoreError};

    fn old(events: &[usize]) -> Vec<Old> {
        let delivery = |(number, event)| (format!("d-{number}"), format!("e-{event:04}"));
        events.iter().enumerate().map(delivery).collect()
    }

    #[test]
    fn halves_share_no_event() {
        for events in [1, 2, 3, 50, 1_000] {
            let all = old(&(0..500).map(|number| number * 7 % events).collect::<Vec<_>>());
            let (one, other) = halves(all.clone());
            let events = |half: &[Old]| half.iter().map(|(_, event)| event.clone()).collect::<HashSet<_>>();
            assert!(events(&one).is_disjoint(&events(&other)));
            let together: HashSet<Old> = one.into_iter().chain(other).collect();
            assert_eq!(together, all.into_iter().collect());
        }
    }

    #[test]
    fn halves_are_of_one_size_where_events_allow_it() {
        let sizes = |events: Vec<usize>| {
            let (one, other) = halves(old(&events));
            (one.len(), other.len())
        };
        assert_eq!(sizes((0..500).collect()), (250, 250));
        assert_eq!(sizes((0..500).map(|number| number / 2).collect()), (250, 250));
        assert_eq!(sizes((0..SPLIT_FROM - 1).collect()), (SPLIT_FROM - 1, 0));
        assert_eq!(sizes(vec![1; 500]), (0, 500));
    }

    #[test]
    fn what_was_deleted_is_told_and_a_failure_too_when_nothing_was() {
        let done = |deliveries| Ok(PurgeBatch { deliveries, events: 1 });
        let failed = || Err(StoreError::new(ErrorKind::Conflict, "others were faster"));
        assert_eq!(sum(done(2), done(3)).unwrap(), PurgeBatch { deliveries: 5, events: 2 });
        assert_eq!(sum(done(2), failed()).unwrap(), done(2).unwrap());
        assert_eq!(sum(failed(), done(3)).unwrap(), done(3).unwrap());
        assert!(sum(done(0), failed()).is_err() && sum(failed(), failed()).is_err());
    }
}
