//! Documents as they are stored, read leniently and written exactly.
//!
//! Absent and null mean the same. What another client left out or added is no reason to refuse a document: only the
//! fields without which a delivery makes no sense are required.

use mongodb::bson::{Bson, DateTime, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc, raw::cstr};
use serde_json::Value;

use super::error::corrupt;
use super::json;
use crate::model::{
    AttemptError, Delivery, DeliveryId, Event, EventId, FailureKind, KeySequence, Lane, LeaseToken,
    MAX_ERROR_HISTORY, NewEvent, Status, Timestamp,
};
use crate::store::{Result, StoreError};

/// The BSON date of an instant.
pub(super) fn date(instant: Timestamp) -> DateTime {
    DateTime::from_millis(instant.as_millis())
}

/// An integer in the smallest BSON type that holds it.
pub(super) fn integer(integer: i64) -> Bson {
    i32::try_from(integer).map_or(Bson::Int64(integer), Bson::Int32)
}

/// A document read field by field.
struct Fields<'a> {
    what: &'static str,
    document: &'a RawDocument,
}

impl<'a> Fields<'a> {
    /// The value of a field; `None` when it is absent or null.
    fn value(&self, name: &str) -> Result<Option<RawBsonRef<'a>>> {
        match self.document.get(name) {
            Ok(None | Some(RawBsonRef::Null | RawBsonRef::Undefined)) => Ok(None),
            Ok(value) => Ok(value),
            Err(error) => Err(self.corrupt(error)),
        }
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        match self.value(name)? {
            None => Ok(None),
            Some(RawBsonRef::String(text)) => Ok(Some(text.to_owned())),
            Some(_) => Err(self.corrupt(format!("`{name}` is not a string"))),
        }
    }

    fn required_text(&self, name: &str) -> Result<String> {
        self.text(name)?.ok_or_else(|| self.corrupt(format!("`{name}` is missing")))
    }

    /// Other clients write integers as int32, int64 or double.
    fn integer(&self, name: &str) -> Result<Option<i64>> {
        match self.value(name)? {
            None => Ok(None),
            Some(RawBsonRef::Int32(integer)) => Ok(Some(i64::from(integer))),
            Some(RawBsonRef::Int64(integer)) => Ok(Some(integer)),
            Some(RawBsonRef::Double(number)) if number.fract() == 0.0 => Ok(Some(number as i64)),
            Some(_) => Err(self.corrupt(format!("`{name}` is not an integer"))),
        }
    }

    fn counter(&self, name: &str) -> Result<Option<u32>> {
        Ok(self.integer(name)?.map(|integer| u32::try_from(integer.max(0)).unwrap_or(u32::MAX)))
    }

    fn date(&self, name: &str) -> Result<Option<Timestamp>> {
        match self.value(name)? {
            None => Ok(None),
            Some(RawBsonRef::DateTime(date)) => Ok(Some(Timestamp::from_millis(date.timestamp_millis()))),
            Some(_) => Err(self.corrupt(format!("`{name}` is not a date"))),
        }
    }

    fn json(&self, name: &str) -> Result<Option<Value>> {
        self.value(name)?.map(|value| json::from_bson(value).map_err(|error| self.corrupt(error))).transpose()
    }

    fn corrupt(&self, reason: impl std::fmt::Display) -> StoreError {
        let id = match self.document.get("_id") {
            Ok(Some(RawBsonRef::String(id))) => format!("{} {id}", self.what),
            Ok(Some(id)) => {
                json::from_bson(id).map_or(self.what.to_owned(), |id| format!("{} {id}", self.what))
            }
            _ => self.what.to_owned(),
        };
        corrupt(&id, reason)
    }
}

/// Reads a delivery.
///
/// # Errors
/// `Corrupt`, naming the delivery and the field, when a field has a type that makes no sense.
pub(super) fn read_delivery(document: &RawDocument) -> Result<Delivery> {
    let fields = Fields { what: "delivery", document };
    let status: Status = fields.required_text("status")?.parse().map_err(|error| fields.corrupt(error))?;
    let lane =
        fields.text("lane")?.map(|word| word.parse().map_err(|error| fields.corrupt(error))).transpose()?;
    let due_at = fields.date("dueAt")?;
    let created_at = fields.date("createdAt")?.or(due_at).unwrap_or(Timestamp::EPOCH);
    Ok(Delivery {
        id: DeliveryId::from(fields.required_text("_id")?),
        event_id: EventId::from(fields.required_text("eventId")?),
        event_type: fields.text("eventType")?.unwrap_or_default(),
        handler: fields.required_text("handler")?,
        key: fields.text("key")?,
        sequence: fields.integer("sequence")?,
        status,
        lane: lane.unwrap_or(Lane::Ready),
        attempts: fields.counter("attempts")?.unwrap_or(0),
        max_attempts: fields.counter("maxAttempts")?,
        available_at: fields.date("availableAt")?.or(due_at).unwrap_or(created_at),
        lease_expires_at: fields.date("leaseExpiresAt")?,
        lease_token: fields.text("leaseToken")?.map(LeaseToken::from),
        lease_owner: fields.text("leaseOwner")?,
        due_at,
        created_at,
        updated_at: fields.date("updatedAt")?.unwrap_or(created_at),
        completed_at: fields.date("completedAt")?,
        last_error: read_last_error(&fields)?,
        errors: read_errors(&fields)?,
        requeues: fields.counter("requeues")?.unwrap_or(0),
    })
}

/// A message, or whatever another client stored in its place.
fn read_last_error(fields: &Fields<'_>) -> Result<Option<String>> {
    Ok(match fields.json("lastError")? {
        None => None,
        Some(Value::String(message)) => Some(message),
        Some(Value::Object(error)) => match error.get("message") {
            Some(Value::String(message)) => Some(message.clone()),
            _ => Some(Value::Object(error).to_string()),
        },
        Some(other) => Some(other.to_string()),
    })
}

/// The latest entries of the history; those that make no sense are left out, as they explain nothing. A claim may have left
/// one entry more than are kept: see [`claim`](super::claim).
fn read_errors(fields: &Fields<'_>) -> Result<Vec<AttemptError>> {
    let Some(RawBsonRef::Array(entries)) = fields.value("errors")? else { return Ok(Vec::new()) };
    let entries = entries.into_iter().filter_map(|entry| match entry {
        Ok(RawBsonRef::Document(document)) => read_error(&Fields { what: "error", document }).ok(),
        _ => None,
    });
    let mut entries: Vec<AttemptError> = entries.collect();
    entries.drain(..entries.len().saturating_sub(MAX_ERROR_HISTORY));
    Ok(entries)
}

fn read_error(fields: &Fields<'_>) -> Result<AttemptError> {
    Ok(AttemptError {
        attempt: fields.counter("attempt")?.unwrap_or(0),
        at: fields.date("at")?.unwrap_or(Timestamp::EPOCH),
        kind: FailureKind::from(fields.text("kind")?.unwrap_or_else(|| "failed".to_owned())),
        message: fields.text("message")?.unwrap_or_default(),
    })
}

/// Reads an event.
///
/// # Errors
/// `Corrupt`, naming the event and the field.
pub(super) fn read_event(document: &RawDocument) -> Result<Event> {
    let fields = Fields { what: "event", document };
    Ok(Event {
        id: EventId::from(fields.required_text("_id")?),
        event_type: fields.text("type")?.unwrap_or_default(),
        payload: fields.json("payload")?.unwrap_or(Value::Null),
        headers: fields.json("headers")?.unwrap_or_else(|| Value::Object(Default::default())),
        key: fields.text("key")?,
        sequence: fields.integer("sequence")?,
        correlation_id: fields.text("correlationId")?,
        causation_id: fields.text("causationId")?,
        aggregate_id: fields.text("aggregateId")?,
        metadata: fields.json("metadata")?,
        created_at: fields.date("createdAt")?.unwrap_or(Timestamp::EPOCH),
    })
}

/// Reads the counter of a key.
pub(super) fn read_key_sequence(document: &RawDocument) -> Result<KeySequence> {
    let fields = Fields { what: "key sequence", document };
    Ok(KeySequence { key: fields.required_text("_id")?, value: fields.integer("value")?.unwrap_or(0) })
}

/// The document of a new event. `event` is checked.
pub(super) fn event_document(
    id: &EventId,
    event: &NewEvent,
    sequence: Option<i64>,
    now: Timestamp,
) -> Result<RawDocumentBuf> {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("_id"), id.as_str());
    document.append(cstr!("type"), event.event_type.as_str());
    document.append(cstr!("payload"), json::to_bson(&event.payload)?);
    document.append(cstr!("headers"), json::to_document(&event.headers)?);
    if let Some(key) = &event.key {
        document.append(cstr!("key"), key.as_str());
    }
    if let Some(sequence) = sequence {
        document.append(cstr!("sequence"), sequence);
    }
    if let Some(id) = &event.correlation_id {
        document.append(cstr!("correlationId"), id.as_str());
    }
    if let Some(id) = &event.causation_id {
        document.append(cstr!("causationId"), id.as_str());
    }
    if let Some(id) = &event.aggregate_id {
        document.append(cstr!("aggregateId"), id.as_str());
    }
    if let Some(metadata) = &event.metadata {
        document.append(cstr!("metadata"), json::to_bson(metadata)?);
    }
    document.append(cstr!("createdAt"), date(now));
    Ok(document)
}

/// What a new delivery takes from its event.
pub(super) struct DeliveryOrigin<'a> {
    pub(super) event_id: &'a EventId,
    pub(super) event_type: &'a str,
    pub(super) key: Option<&'a str>,
    pub(super) sequence: Option<i64>,
    pub(super) max_attempts: Option<u32>,
    pub(super) available_at: Timestamp,
}

/// The document of a new delivery.
pub(super) fn delivery_document(
    id: &DeliveryId,
    handler: &str,
    origin: &DeliveryOrigin<'_>,
    now: Timestamp,
) -> Document {
    let mut document = doc! {
        "_id": id.as_str(),
        "eventId": origin.event_id.as_str(),
        "eventType": origin.event_type,
        "handler": handler,
    };
    if let Some(key) = origin.key {
        document.insert("key", key);
        document.insert("sequence", origin.sequence);
    }
    document.extend(doc! {
        "status": Status::Pending.as_str(),
        "lane": Lane::Ready.as_str(),
        "attempts": 0,
        "availableAt": date(origin.available_at),
        "dueAt": date(origin.available_at),
        "createdAt": date(now),
        "updatedAt": date(now),
    });
    if let Some(max_attempts) = origin.max_attempts {
        document.insert("maxAttempts", integer(i64::from(max_attempts)));
    }
    document
}
