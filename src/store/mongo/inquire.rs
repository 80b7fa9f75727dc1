//! Why deliveries do not move: what a key waits for, and whether anybody runs a handler.

use futures_util::{TryStreamExt as _, try_join};
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::options::Hint;

use super::documents::{date, read_delivery};
use super::error::classify;
use super::{BEGINNING, MongoStore, schema};
use crate::model::{Delivery, HandlerActivity, KeyState, Timestamp};
use crate::store::{ACTIVITY_WINDOW, ErrorKind, Result, StoreError};

/// See [`Store::key_state`](crate::store::Store::key_state).
pub(super) async fn key_state(
    store: &MongoStore,
    handler: &str,
    key: &str,
    now: Timestamp,
) -> Result<KeyState> {
    let failed = |error| classify("looking at a key", error);
    let deliveries = store.deliveries();
    let open = doc! { "handler": handler, "key": key, "dueAt": { "$gte": BEGINNING } };
    let by_open = || Hint::Name(schema::OPEN.to_owned());
    let order = doc! { "handler": 1, "key": 1, "sequence": 1 };
    let head = deliveries.find_one(open.clone()).sort(order).hint(by_open());
    let live = doc! { "handler": handler, "key": key, "status": "processing", "dueAt": { "$gt": date(now) } };
    let running = deliveries.find_one(live).hint(Hint::Name(schema::RUNNING.to_owned()));
    let unfinished = deliveries.count_documents(open).hint(by_open());
    let (head, running, unfinished) =
        try_join!(head.into_future(), running.into_future(), unfinished.into_future()).map_err(failed)?;
    Ok(KeyState {
        head: head.map(|document| read_delivery(&document)).transpose()?,
        running: running.map(|document| read_delivery(&document)).transpose()?,
        unfinished,
    })
}

/// See [`Store::waiting_behind`](crate::store::Store::waiting_behind).
pub(super) async fn waiting_behind(
    store: &MongoStore,
    handler: &str,
    key: &str,
    sequence: i64,
) -> Result<u64> {
    let behind = doc! {
        "handler": handler, "key": key, "sequence": { "$gt": sequence }, "dueAt": { "$gte": BEGINNING },
    };
    let deliveries = store.deliveries();
    let count = deliveries.count_documents(behind).hint(Hint::Name(schema::OPEN.to_owned()));
    count.await.map_err(|error| classify("counting what waits", error))
}

/// See [`Store::handler_activity`](crate::store::Store::handler_activity).
pub(super) async fn handler_activity(
    store: &MongoStore,
    handler: &str,
    now: Timestamp,
) -> Result<HandlerActivity> {
    let live = doc! { "handler": handler, "status": "processing", "dueAt": { "$gt": date(now) } };
    let mut activity = HandlerActivity {
        running: first(store, live, doc! { "handler": 1, "key": 1, "dueAt": 1 }, schema::RUNNING).await?,
        ..HandlerActivity::default()
    };
    examine(store, doc! { "handler": handler }, &mut activity).await?;
    let ready = doc! { "handler": handler, "lane": "ready", "dueAt": { "$gte": BEGINNING } };
    let order = doc! { "handler": 1, "dueAt": 1, "_id": 1 };
    if let Some(oldest) = first(store, ready, order, schema::CLAIM).await? {
        examine(store, up_to(&oldest), &mut activity).await?;
    }
    Ok(activity)
}

/// Created no later than a delivery of its handler: what one batch appended has one time, and ids that go on.
fn up_to(last: &Delivery) -> Document {
    let time = date(last.created_at);
    let of_its_time = doc! { "createdAt": time, "_id": { "$lte": last.id.as_str() } };
    doc! {
        "handler": &last.handler,
        "createdAt": { "$lte": time },
        "$or": [{ "createdAt": { "$lt": time } }, of_its_time],
    }
}

/// The first delivery in an order that an index has.
async fn first(
    store: &MongoStore,
    filter: Document,
    order: Document,
    index: &str,
) -> Result<Option<Delivery>> {
    let deliveries = store.deliveries();
    let find = deliveries.find_one(filter).sort(order).hint(Hint::Name(index.to_owned()));
    let found = find.await.map_err(failed)?;
    found.map(|document| read_delivery(&document)).transpose()
}

/// Looks at a window of deliveries, those created last, for outcomes. One that cannot be understood tells nothing.
async fn examine(store: &MongoStore, filter: Document, activity: &mut HandlerActivity) -> Result<()> {
    let telling = doc! {
        "eventId": 1, "handler": 1, "status": 1, "createdAt": 1, "completedAt": 1,
        "errors.at": 1, "errors.kind": 1,
    };
    let window = i64::try_from(ACTIVITY_WINDOW).unwrap_or(i64::MAX);
    let deliveries = store.deliveries();
    let find = deliveries
        .find(filter)
        .sort(doc! { "handler": -1, "createdAt": -1, "_id": -1 })
        .limit(window)
        .projection(telling)
        .hint(Hint::Name(schema::HANDLER_CREATED.to_owned()));
    let documents: Vec<RawDocumentBuf> = find.await.map_err(failed)?.try_collect().await.map_err(failed)?;
    for document in documents {
        match read_delivery(&document) {
            Ok(delivery) => activity.examine(&delivery),
            Err(error) if error.kind() == ErrorKind::Corrupt => activity.examined += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn failed(error: mongodb::error::Error) -> StoreError {
    classify("looking for signs of a worker", error)
}
