//! What the operations of a store take and return.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::model::{
    AttemptError, Delivery, EventId, Failure, FailureKind, KeyPlace, Lease, Status, Timestamp, Transition,
    TypePattern,
};

/// What a store can do beyond the common contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// It parks long blocked deliveries.
    pub parking: bool,
    /// Its data is still there when the process ends.
    pub durable: bool,
}

/// Which deliveries a worker asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// For these handlers; nothing is claimed when empty.
    pub handlers: Vec<String>,
    /// At most this many.
    pub limit: usize,
    /// How long the leases last.
    pub lease: Duration,
    /// Who asks, such as `host:pid`; kept for people to read, never compared.
    pub owner: String,
    /// The current time.
    pub now: Timestamp,
}

/// A delivery that was claimed, as it stands under its new lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The right to report its outcome.
    pub lease: Lease,
    /// The delivery.
    pub delivery: Delivery,
}

impl Claimed {
    /// The attempt before this one, if this claim found that it had ended without an outcome.
    pub fn crash(&self) -> Option<&AttemptError> {
        let Delivery { attempts, updated_at, errors, .. } = &self.delivery;
        let is_of_this_claim = |error: &&AttemptError| {
            error.kind == FailureKind::Crashed && error.at == *updated_at && error.attempt + 1 == *attempts
        };
        errors.last().filter(is_of_this_claim)
    }
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The handler succeeded.
    Complete,
    /// The attempt failed, and another follows.
    Reschedule {
        /// Not before this time.
        available_at: Timestamp,
        /// What went wrong.
        failure: Failure,
    },
    /// The worker hands it back unused; the attempt is not counted.
    Release,
    /// The handler puts it off; the attempt is not counted, and nothing went wrong.
    Snooze {
        /// Not before this time.
        available_at: Timestamp,
    },
    /// The worker gives it up.
    Bury {
        /// What went wrong.
        failure: Failure,
    },
    /// The worker needs more time.
    ExtendLease {
        /// When the lease now runs out.
        expires_at: Timestamp,
    },
}

impl Outcome {
    /// The change of state that this outcome means.
    pub fn transition(&self) -> Transition {
        match self.clone() {
            Outcome::Complete => Transition::Complete,
            Outcome::Reschedule { available_at, failure } => Transition::Reschedule { available_at, failure },
            Outcome::Release => Transition::Release,
            Outcome::Snooze { available_at } => Transition::Snooze { available_at },
            Outcome::Bury { failure } => Transition::Bury { failure },
            Outcome::ExtendLease { expires_at } => Transition::ExtendLease { expires_at },
        }
    }
}

/// An outcome, and the lease that gives the right to report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The lease.
    pub lease: Lease,
    /// The outcome.
    pub outcome: Outcome,
}

/// Whether a change that needs a lease was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Fenced {
    /// It was made.
    Applied,
    /// The lease is not held any more, and nothing was changed.
    LeaseLost,
}

/// A write to one of the application's own collections, in a transaction with a completion.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteOperation {
    /// The collection, in the store's database.
    pub collection: String,
    /// What is done to it.
    pub change: WriteChange,
}

/// What a [`WriteOperation`] does. Its JSON is relaxed extended JSON: `{"$date": "2026-03-01T09:30:00Z"}` is a date, and
/// `{"$oid": "..."}` an object id.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteChange {
    /// Adds a document.
    InsertOne {
        /// The document. It gets an id where it has none.
        document: Map<String, Value>,
    },
    /// Changes documents in place.
    Update {
        /// Which ones.
        filter: Map<String, Value>,
        /// Update operators such as `$set`, or the stages of an update pipeline.
        update: Value,
        /// All that the filter selects, instead of the first.
        many: bool,
        /// Adds a document when the filter selects none.
        upsert: bool,
    },
    /// Puts a document in the place of the first one that the filter selects.
    ReplaceOne {
        /// Which one.
        filter: Map<String, Value>,
        /// What it becomes.
        replacement: Map<String, Value>,
        /// Adds the document when the filter selects none.
        upsert: bool,
    },
    /// Removes the first document that the filter selects.
    DeleteOne {
        /// Which one.
        filter: Map<String, Value>,
    },
}

impl WriteChange {
    /// Its name, as drivers and handlers know it.
    pub const fn name(&self) -> &'static str {
        match self {
            WriteChange::InsertOne { .. } => "insertOne",
            WriteChange::Update { many: false, .. } => "updateOne",
            WriteChange::Update { many: true, .. } => "updateMany",
            WriteChange::ReplaceOne { .. } => "replaceOne",
            WriteChange::DeleteOne { .. } => "deleteOne",
        }
    }
}

/// What an operator does to deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Brings dead ones back.
    Requeue {
        /// Not before this time.
        available_at: Timestamp,
    },
    /// Gives up pending and processing ones.
    Bury {
        /// Why.
        reason: String,
    },
}

impl Repair {
    /// The change of state that this repair means.
    pub fn transition(&self) -> Transition {
        match self.clone() {
            Repair::Requeue { available_at } => Transition::Requeue { available_at },
            Repair::Bury { reason } => Transition::OperatorBury { reason },
        }
    }

    /// The statuses that it applies to.
    pub const fn applies_to(&self) -> &'static [Status] {
        match self {
            Repair::Requeue { .. } => &[Status::Dead],
            Repair::Bury { .. } => &[Status::Pending, Status::Processing],
        }
    }
}

/// What a repair did to one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RepairOutcome {
    /// It was changed.
    Changed,
    /// It is in a status to which the repair does not apply.
    Skipped(Status),
    /// There is no such delivery.
    Missing,
}

/// Which finished deliveries to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeRequest {
    /// Completed before this time; none when absent.
    pub completed_before: Option<Timestamp>,
    /// Dead since before this time; none when absent.
    pub dead_before: Option<Timestamp>,
    /// At most this many in one batch.
    pub batch: u32,
}

/// What one batch of a purge deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurgeBatch {
    /// Deliveries.
    pub deliveries: u64,
    /// Events that no delivery referred to any more.
    pub events: u64,
}

/// Which counters to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PruneRequest {
    /// Those of keys behind this one; from the first when absent.
    pub after: Option<String>,
    /// At most this many.
    pub batch: u32,
    /// Count only, and delete nothing.
    pub dry_run: bool,
}

/// What one batch of pruning did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneBatch {
    /// Counters looked at.
    pub examined: u64,
    /// Counters of keys without deliveries: deleted, or only counted in a dry run.
    pub pruned: u64,
    /// The last key looked at; the next batch starts behind it. `None` when there are no more.
    pub last: Option<String>,
}

/// What became of one line of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Imported {
    /// The delivery is new.
    Created {
        /// So is its event.
        event: bool,
    },
    /// It was there before, and stays as it is now.
    Existing,
    /// It cannot be stored, or what it says is not what is there. Nothing of it was written.
    Refused {
        /// Why: what is wrong with it, or in the way.
        reason: String,
    },
}

/// Which events lack a delivery for a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackfillRequest {
    /// The handler.
    pub handler: String,
    /// Events of these types.
    pub event_type: TypePattern,
    /// Created at or after this time; from the first when absent.
    pub since: Option<Timestamp>,
    /// Created before this time.
    pub until: Timestamp,
    /// Behind this place; from the first when absent.
    pub after: Option<KeyPlace>,
}

/// Some events that lack a delivery for a handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackfillPage {
    /// The events, in order.
    pub events: Vec<EventId>,
    /// Where the next page begins; `None` when there are no more.
    pub last: Option<KeyPlace>,
}

/// What an extension of some events did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Events that got a delivery.
    pub created: u64,
    /// Events that had one already.
    pub existing: u64,
    /// Events that are not there any more.
    pub missing: u64,
}

/// What a setup did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SetupReport {
    /// Names of what was created.
    pub created: Vec<String>,
    /// Names of what was there already.
    pub existing: Vec<String>,
}

/// A difference between the store and what a setup would create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetupFinding {
    /// The collection, table or index.
    pub object: String,
    /// What is wrong with it.
    pub problem: SetupProblem,
    /// The evidence, in a sentence.
    pub detail: String,
}

/// What can be wrong with a collection, table or index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SetupProblem {
    /// It is not there.
    Missing,
    /// It is there under another name.
    ForeignName,
    /// Something else has its name.
    Conflicting,
    /// It has to be unique and is not.
    NotUnique,
}
