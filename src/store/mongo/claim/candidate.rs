//! A delivery that may be taken, as it was read.

use mongodb::bson::{Bson, DateTime, Document, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, doc};

use super::super::documents::read_delivery;
use crate::model::{Delivery, Lease, LeaseToken, MAX_ERROR_HISTORY, Status, Timestamp, Transition, apply};
use crate::store::Claimed;

/// A handler and a key.
pub(super) type HandlerKey = (String, String);

/// A place in the order of claims: due time, and id.
pub(super) type Place = (DateTime, String);

/// The fields that a take changes, but for [`UNREAD_FIELD`].
pub(super) const TAKEN_FIELDS: [&str; 9] = [
    "status",
    "lane",
    "attempts",
    "dueAt",
    "updatedAt",
    "leaseToken",
    "leaseOwner",
    "leaseExpiresAt",
    "lastError",
];

/// Entries of a history that a take leaves behind a crash: one more than are kept, so that an undo, which has not read them,
/// need only cut the last one off. The next failure cuts them to their number, and so does every reader.
pub(super) const HISTORY_BEHIND_A_CRASH: usize = MAX_ERROR_HISTORY + 1;

/// The one field that is not read for a candidate, as it may be long: the history of failed attempts.
pub(super) const UNREAD_FIELD: &str = "errors";

/// What a candidate was like when it was read.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) id: String,
    pub(super) handler: String,
    pub(super) key: Option<String>,
    pub(super) due_at: DateTime,
    /// All of it but [`UNREAD_FIELD`].
    document: RawDocumentBuf,
}

/// What the write of a lease pins. Absent and null are one.
///
/// Every change of a delivery that is not a take of its own shows in one of these, but for the release of a lease, which
/// restores what was, for a snooze, which moves the due time that a take looks at too, and for parking, which a take undoes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pin {
    pub(super) status: Bson,
    pub(super) attempts: Bson,
    pub(super) requeues: Bson,
    /// Whose lease ran out, where one did. A release that comes late, and a take behind it, lead back to the same status and
    /// number of attempts under another lease; putting back would revive the old one.
    pub(super) lease_token: Bson,
}

impl Pin {
    /// Whether what was seen is an attempt that has ended without an outcome, given that it is due.
    pub(super) fn is_crash(&self) -> bool {
        self.status.as_str() == Some(Status::Processing.as_str())
    }

    /// The number of attempts that was seen.
    pub(super) fn attempts(&self) -> i64 {
        match self.attempts {
            Bson::Int32(attempts) => i64::from(attempts),
            Bson::Int64(attempts) => attempts,
            Bson::Double(attempts) => attempts as i64,
            _ => 0,
        }
    }
}

impl Candidate {
    /// `None` for a document that no claim could have written back.
    pub(super) fn read(document: RawDocumentBuf) -> Option<Self> {
        let key = match document.get("key").ok()? {
            Some(RawBsonRef::String(key)) => Some(key.to_owned()),
            None | Some(RawBsonRef::Null) => None,
            Some(_) => return None,
        };
        Some(Candidate {
            id: document.get_str("_id").ok()?.to_owned(),
            handler: document.get_str("handler").ok()?.to_owned(),
            key,
            due_at: document.get_datetime("dueAt").ok()?,
            document,
        })
    }

    /// The oldest first.
    pub(super) fn by_age(a: &Self, b: &Self) -> std::cmp::Ordering {
        (a.due_at, &a.id).cmp(&(b.due_at, &b.id))
    }

    pub(super) fn place(&self) -> Place {
        (self.due_at, self.id.clone())
    }

    pub(super) fn handler_key(&self) -> Option<HandlerKey> {
        self.key.clone().map(|key| (self.handler.clone(), key))
    }

    pub(super) fn pin(&self) -> Pin {
        let seen = |field| value(&self.document, field).unwrap_or(Bson::Null);
        Pin {
            status: seen("status"),
            attempts: seen("attempts"),
            requeues: seen("requeues"),
            lease_token: seen("leaseToken"),
        }
    }

    /// Whether nothing of it was left unread: it has no history.
    pub(super) fn is_whole(&self) -> bool {
        let is_absent = |field| matches!(self.document.get(field), Ok(None | Some(RawBsonRef::Null)));
        self.pin().attempts() == 0
            && !self.pin().is_crash()
            && is_absent("requeues")
            && is_absent("lastError")
    }

    /// What it is under a lease, given that it was taken as it was read. `None` when the document makes no sense.
    pub(super) fn claimed(&self, token: &LeaseToken, grant: &Grant<'_>) -> Option<Claimed> {
        let delivery = read_delivery(&self.document).ok()?;
        let (owner, expires_at) = (grant.owner.to_owned(), grant.expires_at);
        let claim = Transition::Claim { token: token.clone(), owner, expires_at };
        Some(with_lease(apply(&delivery, &claim, grant.now).ok()?, token))
    }

    /// The statement that puts it back as it was, as long as the lease is ours.
    ///
    /// The due time of a pending delivery is its `availableAt`, which a take leaves alone: it may have been requeued
    /// between look and take.
    pub(super) fn undo(&self, token: &LeaseToken) -> Document {
        let (mut set, mut absent) = (Document::new(), Vec::new());
        for field in TAKEN_FIELDS {
            match value(&self.document, field) {
                Some(value) => drop(set.insert(field, doc! { "$literal": value })),
                None => absent.push(field),
            }
        }
        if self.document.get_str("status").is_ok_and(|status| status == "pending") {
            set.insert("dueAt", doc! { "$ifNull": ["$availableAt", self.due_at] });
        }
        if self.pin().is_crash() {
            set.insert(UNREAD_FIELD, without_the_last());
        }
        let mut update = vec![doc! { "$set": set }];
        if !absent.is_empty() {
            update.push(doc! { "$unset": absent });
        }
        let fence = doc! { "_id": &self.id, "status": "processing", "leaseToken": token.as_str() };
        doc! { "q": fence, "u": update, "hint": { "_id": 1 } }
    }
}

/// What a lease grants, and to whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant<'a> {
    pub(super) owner: &'a str,
    pub(super) expires_at: Timestamp,
    pub(super) now: Timestamp,
}

pub(super) fn with_lease(delivery: Delivery, token: &LeaseToken) -> Claimed {
    Claimed { lease: Lease { delivery_id: delivery.id.clone(), token: token.clone() }, delivery }
}

/// The history without its last entry; none at all where nothing remains.
fn without_the_last() -> Document {
    let length = doc! { "$size": "$errors" };
    let but_one = doc! { "$slice": ["$errors", { "$subtract": [length.clone(), 1] }] };
    doc! { "$cond": [{ "$gt": [length, 1] }, but_one, "$$REMOVE"] }
}

fn value(document: &RawDocument, field: &str) -> Option<Bson> {
    Bson::try_from(RawBson::from(document.get(field).ok()??)).ok()
}
