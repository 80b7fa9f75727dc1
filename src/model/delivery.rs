//! A delivery: the work of one handler for one event, and what became of it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::id::{DeliveryId, EventId, LeaseToken};
use super::time::Timestamp;

/// How many failed attempts a delivery remembers; older ones are forgotten first.
pub const MAX_ERROR_HISTORY: usize = 10;

/// The longest error message that is kept, in bytes, so that no history grows a document without bound.
pub const MAX_ERROR_MESSAGE_BYTES: usize = 8 * 1024;

/// What is remembered of an attempt that ended without an outcome: the name of its worker stands between the two.
pub const CRASH_MESSAGE: [&str; 2] = ["worker ", " died, or lost its lease, without an outcome"];

/// The name of a worker that gave none.
pub const UNKNOWN_WORKER: &str = "unknown";

/// A word that names no status or lane.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not one of {expected}")]
pub struct UnknownWord {
    /// What was given.
    pub word: String,
    /// What would have been understood.
    pub expected: &'static str,
}

/// Where a delivery is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Waiting for its time, its turn, or a worker.
    Pending,
    /// Leased by a worker, alive or not.
    Processing,
    /// Done.
    Completed,
    /// Given up: attempts exhausted, refused by the handler, or buried by an operator.
    Dead,
}

impl Status {
    /// All statuses, in the order of a life.
    pub const ALL: [Status; 4] = [Status::Pending, Status::Processing, Status::Completed, Status::Dead];

    /// The word that is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Processing => "processing",
            Status::Completed => "completed",
            Status::Dead => "dead",
        }
    }

    /// Whether a delivery in this status still has to be run, and so blocks later ones of its key.
    pub const fn is_unfinished(self) -> bool {
        matches!(self, Status::Pending | Status::Processing)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Status {
    type Err = UnknownWord;

    /// Also reads `published` and `failed`, the words of the SQL table.
    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "pending" => Ok(Status::Pending),
            "processing" => Ok(Status::Processing),
            "completed" | "published" => Ok(Status::Completed),
            "dead" | "failed" => Ok(Status::Dead),
            _ => Err(UnknownWord { word: word.to_owned(), expected: "pending, processing, completed, dead" }),
        }
    }
}

/// Whether claims look at a delivery one by one, or leave it aside because its key is long blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    /// Seen by the claim scan.
    Ready,
    /// Left out of the claim scan until its key moves.
    Parked,
}

impl Lane {
    /// The word that is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Lane::Ready => "ready",
            Lane::Parked => "parked",
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Lane {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "ready" => Ok(Lane::Ready),
            "parked" => Ok(Lane::Parked),
            _ => Err(UnknownWord { word: word.to_owned(), expected: "ready, parked" }),
        }
    }
}

/// Why an attempt failed. Kinds that another client stored are kept as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum FailureKind {
    /// The handler reported a failure that a later attempt may overcome.
    Failed,
    /// The handler ran out of time.
    Timeout,
    /// The handler said that no attempt can succeed (exit codes 65 and 78).
    Rejected,
    /// The worker died, or lost its lease, without an outcome.
    Crashed,
    /// The event of the delivery is not there any more.
    Orphaned,
    /// An operator gave it up.
    Buried,
    /// A kind that another client wrote.
    Other(String),
}

impl FailureKind {
    /// The word that is stored and shown.
    pub fn as_str(&self) -> &str {
        match self {
            FailureKind::Failed => "failed",
            FailureKind::Timeout => "timeout",
            FailureKind::Rejected => "rejected",
            FailureKind::Crashed => "crashed",
            FailureKind::Orphaned => "orphaned",
            FailureKind::Buried => "buried",
            FailureKind::Other(word) => word,
        }
    }
}

impl From<String> for FailureKind {
    fn from(word: String) -> Self {
        match word.as_str() {
            "failed" => FailureKind::Failed,
            "timeout" => FailureKind::Timeout,
            "rejected" => FailureKind::Rejected,
            "crashed" => FailureKind::Crashed,
            "orphaned" => FailureKind::Orphaned,
            "buried" => FailureKind::Buried,
            _ => FailureKind::Other(word),
        }
    }
}

impl From<FailureKind> for String {
    fn from(kind: FailureKind) -> Self {
        kind.as_str().to_owned()
    }
}

/// What a worker or an operator reports when an attempt did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    /// The sort of failure.
    pub kind: FailureKind,
    /// What happened, for people; at most [`MAX_ERROR_MESSAGE_BYTES`] bytes.
    pub message: String,
}

impl Failure {
    /// A failure whose message is cut at [`MAX_ERROR_MESSAGE_BYTES`], at a character's border, with a `…`.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_ERROR_MESSAGE_BYTES {
            let end = message.floor_char_boundary(MAX_ERROR_MESSAGE_BYTES - '…'.len_utf8());
            message.truncate(end);
            message.push('…');
        }
        Failure { kind, message }
    }
}

/// One failed attempt in a delivery's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptError {
    /// Which attempt it was, counted from 1; 0 when it never ran.
    pub attempt: u32,
    /// When the failure was recorded.
    pub at: Timestamp,
    /// The sort of failure.
    pub kind: FailureKind,
    /// What happened.
    pub message: String,
}

/// The right to report the outcome of one attempt: a delivery and the token of its lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The leased delivery.
    pub delivery_id: DeliveryId,
    /// The token that the claim wrote.
    pub token: LeaseToken,
}

/// One event for one handler. Field names in JSON are those of the stored document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// Its identifier.
    pub id: DeliveryId,
    /// The event that is delivered.
    pub event_id: EventId,
    /// The event's type.
    pub event_type: String,
    /// The handler that it is for.
    pub handler: String,
    /// Deliveries of one handler and key run one at a time, in the order of their sequence.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key: Option<String>,
    /// Place among the events of the key, from 1, in commit order.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sequence: Option<i64>,
    /// Where it is in its life.
    pub status: Status,
    /// Whether claims look at it.
    pub lane: Lane,
    /// Attempts begun since it was appended or last requeued.
    pub attempts: u32,
    /// Attempts after which it is dead; the handler's own limit when absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_attempts: Option<u32>,
    /// Not before this time.
    pub available_at: Timestamp,
    /// When the lease runs out; present while processing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lease_expires_at: Option<Timestamp>,
    /// The fence of the lease; present while processing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lease_token: Option<LeaseToken>,
    /// Who took the lease; present while processing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lease_owner: Option<String>,
    /// `available_at` while pending, `lease_expires_at` while processing, absent once finished.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub due_at: Option<Timestamp>,
    /// When it was appended.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it was completed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub completed_at: Option<Timestamp>,
    /// The message of the latest failure.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_error: Option<String>,
    /// The latest failures, oldest first, at most [`MAX_ERROR_HISTORY`].
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub errors: Vec<AttemptError>,
    /// How often an operator brought it back from the dead.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub requeues: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Delivery {
    /// The lease that is recorded on it, live or expired.
    pub fn lease(&self) -> Option<Lease> {
        let token = self.lease_token.clone()?;
        Some(Lease { delivery_id: self.id.clone(), token })
    }

    /// Whether it runs under a lease that has not run out at `now`.
    pub fn is_running(&self, now: Timestamp) -> bool {
        self.status == Status::Processing && self.due_at.is_some_and(|expiry| expiry > now)
    }

    /// When it was completed or died; absent while unfinished.
    pub fn finished_at(&self) -> Option<Timestamp> {
        match self.status {
            Status::Completed => self.completed_at.or(Some(self.updated_at)),
            Status::Dead => Some(self.updated_at),
            Status::Pending | Status::Processing => None,
        }
    }

    /// Remembers that the attempt under the lease that is recorded ended without an outcome.
    pub(crate) fn remember_crash(&mut self, now: Timestamp) {
        let [before, behind] = CRASH_MESSAGE;
        let worker = self.lease_owner.as_deref().unwrap_or(UNKNOWN_WORKER);
        let message = format!("{before}{worker}{behind}");
        self.remember(&Failure { kind: FailureKind::Crashed, message }, now);
    }

    /// When a worker last reported an outcome of it, as far as it remembers. What an operator did is none, and neither
    /// is a crash: nobody reported it, and who noted it may have been an operator who recovered what was left.
    pub fn last_outcome_at(&self) -> Option<Timestamp> {
        let by_worker =
            |error: &&AttemptError| !matches!(error.kind, FailureKind::Buried | FailureKind::Crashed);
        let failed_at = self.errors.iter().rev().find(by_worker).map(|error| error.at);
        self.completed_at.max(failed_at)
    }

    /// The field in which this delivery differs from the stored one of the same id, of those that never change, if any.
    pub fn difference_from(&self, stored: &Delivery) -> Option<&'static str> {
        let differences = [
            ("eventId", self.event_id != stored.event_id),
            ("handler", self.handler != stored.handler),
            ("key", self.key != stored.key),
            ("sequence", self.sequence != stored.sequence),
        ];
        differences.into_iter().find_map(|(field, differs)| differs.then_some(field))
    }

    pub(crate) fn remember(&mut self, failure: &Failure, now: Timestamp) {
        self.last_error = Some(failure.message.clone());
        self.errors.push(AttemptError {
            attempt: self.attempts,
            at: now,
            kind: failure.kind.clone(),
            message: failure.message.clone(),
        });
        let surplus = self.errors.len().saturating_sub(MAX_ERROR_HISTORY);
        self.errors.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_read_both_vocabularies() {
        assert_eq!("failed".parse(), Ok(Status::Dead));
        assert_eq!("published".parse(), Ok(Status::Completed));
        assert!("DEAD".parse::<Status>().is_err());
        for status in Status::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
        }
    }

    #[test]
    fn a_long_message_is_cut_at_a_character_and_says_so() {
        let failure = Failure::new(FailureKind::Failed, "é".repeat(MAX_ERROR_MESSAGE_BYTES));
        assert!(failure.message.len() <= MAX_ERROR_MESSAGE_BYTES);
        assert!(failure.message.ends_with("é…"));
    }

    #[test]
    fn foreign_failure_kinds_survive() {
        let kind = FailureKind::from("node-timeout".to_owned());
        assert_eq!(String::from(kind), "node-timeout");
    }
}
