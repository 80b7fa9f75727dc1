//! Wake-ups from a change stream on the deliveries.
//!
//! The server tells inserts with their handler, and updates only by what they changed, without a look at the document:
//! so an update wakes the workers of all handlers when it makes its delivery pending. Completions are left out, though
//! they may free the next delivery of a key: who completes one claims again by itself. What the server sends is an event
//! with nothing in it, however large the delivery.
//!
//! The driver resumes the stream after lost connections and elections. When it cannot, because the server has no more
//! history that far back, the collection is gone or the user may not watch it, the stream ends with the reason.

use futures_util::future;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use mongodb::bson::{Document, doc};
use mongodb::change_stream::ChangeStream;

use super::MongoStore;
use super::error::classify;
use crate::store::{ErrorKind, Result, StoreError};

const DOING: &str = "waiting for new deliveries";

/// See [`Store::wake_ups`](crate::store::Store::wake_ups).
pub(super) fn wake_ups(store: &MongoStore, handlers: &[String]) -> BoxStream<'static, Result<()>> {
    let opening = open(store.clone(), handlers.to_vec());
    let listening = stream::once(opening).flat_map(|opened| match opened {
        Ok(changes) => listened(changes),
        Err(error) => stream::once(future::ready(Err(error))).boxed(),
    });
    listening.boxed()
}

async fn open(store: MongoStore, handlers: Vec<String>) -> Result<ChangeStream<Document>> {
    let deliveries = store.database().collection::<Document>(&store.names.deliveries);
    let watch = deliveries.watch().pipeline(pipeline(&handlers));
    Ok(watch.await.map_err(|error| classify(DOING, error))?.with_type())
}

/// One item for the open stream, one for each change, and the reason why there are no more.
fn listened(changes: ChangeStream<Document>) -> BoxStream<'static, Result<()>> {
    let is_listening = stream::once(future::ready(Ok(())));
    let changes = changes.map(|change| change.map(drop).map_err(|error| classify(DOING, error)));
    let end = stream::once(future::ready(Err(ended())));
    let mut is_over = false;
    let until_first_error = move |item: &Result<()>| {
        let goes_on = !is_over;
        is_over |= item.is_err();
        future::ready(goes_on)
    };
    is_listening.chain(changes).chain(end).take_while(until_first_error).boxed()
}

fn ended() -> StoreError {
    let message = format!("{DOING} failed: the collection was dropped or renamed");
    StoreError::new(ErrorKind::Unavailable, message)
}

/// Inserts and updates that make a delivery wait for a worker. The driver needs `_id`, the resume token.
fn pipeline(handlers: &[String]) -> Vec<Document> {
    let inserted = doc! {
        "operationType": { "$in": ["insert", "replace"] },
        "fullDocument.handler": { "$in": handlers },
        "fullDocument.status": "pending",
    };
    let updated = doc! { "operationType": "update", "updateDescription.updatedFields.status": "pending" };
    vec![doc! { "$match": { "$or": [inserted, updated] } }, doc! { "$project": { "_id": 1 } }]
}
