//! Wake-ups from a change stream on the deliveries.
//!
//! The server tells inserts with their handler, and updates only by what they changed, without a look at the document:
//! so an update wakes the workers of all handlers when it makes its delivery pending. Completions are left out, though
//! they may free the next delivery of a key: who completes one claims again by itself. What the server sends is an event
//! with nothing in it, however large the delivery.
//!
//! The driver resumes the stream after lost connections and elections. When it cannot, because the server has no more
//! history that far back, the collection is gone or the user may not watch it, the stream ends with the reason.

use futures_util::stream::{self, BoxStream, StreamExt as _};
use mongodb::bson::{Document, doc};
use mongodb::change_stream::ChangeStream;

use super::MongoStore;
use super::error::classify;
use crate::store::{ErrorKind, Result, StoreError};

const DOING: &str = "waiting for new deliveries";

/// How far a stream of wake-ups is.
enum State {
    Closed(MongoStore, Vec<String>),
    Open(ChangeStream<Document>),
    Over,
}

/// See [`Store::wake_ups`](crate::store::Store::wake_ups).
pub(super) fn wake_ups(store: &MongoStore, handlers: &[String]) -> BoxStream<'static, Result<()>> {
    let closed = State::Closed(store.clone(), handlers.to_vec());
    stream::unfold(closed, |state| async move {
        match next(state).await? {
            Ok(open) => Some((Ok(()), State::Open(open))),
            Err(error) => Some((Err(error), State::Over)),
        }
    })
    .boxed()
}

/// The stream behind its next item: that it is open, or that something changed. `None` behind an error.
async fn next(state: State) -> Option<Result<ChangeStream<Document>>> {
    match state {
        State::Closed(store, handlers) => Some(open(&store, &handlers).await),
        State::Open(mut changes) => Some(match changes.next().await {
            Some(Ok(_)) => Ok(changes),
            Some(Err(error)) => Err(classify(DOING, error)),
            None => Err(ended()),
        }),
        State::Over => None,
    }
}

async fn open(store: &MongoStore, handlers: &[String]) -> Result<ChangeStream<Document>> {
    let deliveries = store.database().collection::<Document>(&store.names.deliveries);
    let watch = deliveries.watch().pipeline(pipeline(handlers));
    Ok(watch.await.map_err(|error| classify(DOING, error))?.with_type())
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
