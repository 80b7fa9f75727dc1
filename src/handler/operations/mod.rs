//! Operations: what a handler that has ended asks to be done in one transaction with the completion of its delivery.
//!
//! # The lines
//! Each line of a command's output is one JSON object with one member, blank lines aside:
//!
//! ```json
//! {"publish": {"type": "invoice.made.v1", "payload": {"invoice": 7}, "key": "order-17"}}
//! {"write": {"collection": "invoices", "op": "insertOne", "document": {"_id": 7, "at": {"$date": "2026-03-01T09:30:00Z"}}}}
//! {"write": {"collection": "orders", "op": "updateOne", "filter": {"_id": 17}, "update": {"$set": {"invoice": 7}}}}
//! ```
//!
//! * `publish` has the members of a line of `relayctl publish --jsonl`. Where it names no `handlers`, those that subscribe to
//!   the type receive it. Its `causationId` is the id of the event at hand, and its `correlationId` that of the event, where
//!   it says nothing else.
//! * `write` has a `collection` that the handler may write to, an `op`, and what the op needs:
//!
//! | op | members |
//! |---|---|
//! | `insertOne` | `document` |
//! | `updateOne`, `updateMany` | `filter`, `update`, `upsert`? |
//! | `replaceOne` | `filter`, `replacement`, `upsert`? |
//! | `deleteOne` | `filter` |
//!
//! Payloads and the like are plain JSON, as ever in the outbox. What a write holds is read as relaxed extended JSON
//! (<https://www.mongodb.com/docs/manual/reference/mongodb-extended-json/>), so that dates and object ids can be written.
//!
//! All of it is done, with the completion, or nothing: a line that means nothing, an operation that the store refuses and
//! a lease that was lost leave no trace. Writes are done in their order, and the events are appended behind them. A write
//! that selects no document is no error.

mod read;

use async_trait::async_trait;

use super::{HandlerContext, Outcome};
use crate::model::{Envelope, NewEvent};
use crate::store::WriteOperation;

pub use read::{InvalidLine, OperationRules};

/// How many operations one attempt may ask for: what a transaction does in a moment.
pub const MAX_OPERATIONS: usize = 1_000;

/// How much one attempt may write to say so, in bytes.
pub const MAX_OPERATIONS_BYTES: usize = 4 * 1024 * 1024;

/// One thing to be done with the completion.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Appends an event.
    Publish(Box<NewEvent>),
    /// Writes to a collection of the application.
    Write(WriteOperation),
}

/// An operation, and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberedOperation {
    /// The number of its line, from 1.
    pub line: u64,
    /// What is to be done.
    pub operation: Operation,
}

/// How a [`PreparingHandler`] ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Preparation {
    /// It succeeded, if all of this can be done with the completion.
    Ready(Vec<NumberedOperation>),
    /// It has nothing to be done: it failed, or was interrupted.
    Ended(Outcome),
}

/// Does the work of one handler before a transaction, and says what is to be done in it.
///
/// Its lease is renewed while it works, however long that takes. The transaction is opened when it has ended, and so is as
/// short as its operations are few.
#[async_trait]
pub trait PreparingHandler: Send + Sync {
    /// Makes one attempt, of which nothing may be seen from outside until its operations are done.
    ///
    /// When the context asks it to stop, it should end soon, as with [`Handler`](super::Handler).
    async fn prepare(&self, envelope: &Envelope, context: &HandlerContext) -> Preparation;
}
