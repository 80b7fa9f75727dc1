//! Events: what a service appends, and what the store keeps of it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::id::{DeliveryId, EventId};
use super::json;
use super::text::{InvalidInput, check_name};
use super::time::Timestamp;

/// The longest id, type, key or handler name, in bytes.
pub const MAX_NAME_BYTES: usize = 512;

/// The largest event, in bytes of its stored document; MongoDB's own limit for a document is 16 MiB.
pub const MAX_EVENT_BYTES: usize = 15 * 1024 * 1024;

/// What the fields other than payload, headers and metadata may take of a stored event.
const FIELD_OVERHEAD_BYTES: usize = 256;

/// An event to append, with the handlers that shall receive it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// Makes the append idempotent; a fresh one when absent.
    pub id: Option<EventId>,
    /// The type, such as `order.placed.v1`.
    pub event_type: String,
    /// The content.
    pub payload: Value,
    /// Facts about the event that are not part of its content, such as `traceparent`.
    pub headers: Map<String, Value>,
    /// Events of one key are delivered to a handler one at a time, in commit order.
    pub key: Option<String>,
    /// Groups the work that belongs to one request or distributed operation.
    pub correlation_id: Option<String>,
    /// The event or command that caused this one.
    pub causation_id: Option<String>,
    /// The domain object that it is about.
    pub aggregate_id: Option<String>,
    /// Anything else the application wants to keep.
    pub metadata: Option<Value>,
    /// The handlers that get a delivery: at least one.
    pub handlers: Vec<String>,
    /// Not before this time; at once when absent.
    pub available_at: Option<Timestamp>,
    /// Overrides the handlers' own limit.
    pub max_attempts: Option<u32>,
}

impl NewEvent {
    /// An event of a type with a payload, and everything else left out.
    pub fn new(event_type: impl Into<String>, payload: Value) -> Self {
        NewEvent {
            id: None,
            event_type: event_type.into(),
            payload,
            headers: Map::new(),
            key: None,
            correlation_id: None,
            causation_id: None,
            aggregate_id: None,
            metadata: None,
            handlers: Vec::new(),
            available_at: None,
            max_attempts: None,
        }
    }

    /// Sets the id that makes the append idempotent.
    pub fn id(mut self, id: impl Into<EventId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the ordering key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a handler that shall receive the event.
    pub fn handler(mut self, handler: impl Into<String>) -> Self {
        self.handlers.push(handler.into());
        self
    }

    /// Checks every limit of the contract, and returns the event in the form in which it is stored: numbers
    /// normalised, handlers without repetition.
    ///
    /// # Errors
    /// Names the field or JSON path that is refused, and why.
    pub fn checked(&self) -> Result<NewEvent, InvalidInput> {
        check_name("type", &self.event_type)?;
        let names = [("key", &self.key), ("correlationId", &self.correlation_id)];
        let more = [("causationId", &self.causation_id), ("aggregateId", &self.aggregate_id)];
        for (what, name) in names.into_iter().chain(more) {
            name.as_deref().map_or(Ok(()), |name| check_name(what, name))?;
        }
        self.id.as_ref().map_or(Ok(()), |id| check_name("id", id.as_str()))?;
        if self.max_attempts == Some(0) {
            return Err(InvalidInput::new("maxAttempts", "must be at least 1"));
        }
        let mut event = self.clone();
        event.handlers = distinct_handlers(&self.handlers)?;
        event.payload = json::normalise("payload", &self.payload)?;
        event.headers = normalise_headers(&self.headers)?;
        // Null and absent are one when an event is read, and so from the start.
        let metadata = self.metadata.as_ref().filter(|value| !value.is_null());
        event.metadata = metadata.map(|value| json::normalise("metadata", value)).transpose()?;
        event.check_size()?;
        Ok(event)
    }

    fn check_size(&self) -> Result<(), InvalidInput> {
        let headers: usize =
            self.headers.iter().map(|(key, value)| key.len() + 2 + json::bson_size(value)).sum();
        let metadata = self.metadata.as_ref().map_or(0, json::bson_size);
        let ids = [&self.key, &self.correlation_id, &self.causation_id, &self.aggregate_id];
        let names: usize = ids.into_iter().flatten().map(String::len).sum::<usize>() + self.event_type.len();
        let bytes = json::bson_size(&self.payload) + headers + metadata + names + FIELD_OVERHEAD_BYTES;
        if bytes > MAX_EVENT_BYTES {
            let reason = format!("takes {bytes} bytes, and at most {MAX_EVENT_BYTES} (15 MiB) are allowed");
            return Err(InvalidInput::new("event", reason));
        }
        Ok(())
    }

    /// The field in which this event differs from the stored one of the same id, if any.
    ///
    /// Headers and metadata may differ: a caller that repeats an append may well carry another trace.
    pub fn difference_from(&self, stored: &Event) -> Option<&'static str> {
        self.difference((&stored.event_type, &stored.key, &stored.payload))
    }

    /// The field in which this event differs from another one of the same id that is to be appended with it, if any.
    pub fn difference_from_twin(&self, twin: &NewEvent) -> Option<&'static str> {
        self.difference((&twin.event_type, &twin.key, &twin.payload))
    }

    fn difference(
        &self,
        (event_type, key, payload): (&String, &Option<String>, &Value),
    ) -> Option<&'static str> {
        if self.event_type != *event_type {
            Some("type")
        } else if self.key != *key {
            Some("key")
        } else if self.payload != *payload {
            Some("payload")
        } else {
            None
        }
    }
}

fn distinct_handlers(handlers: &[String]) -> Result<Vec<String>, InvalidInput> {
    if handlers.is_empty() {
        return Err(InvalidInput::new(
            "handlers",
            "must name at least one handler, or nobody would ever see the event",
        ));
    }
    let mut distinct = Vec::with_capacity(handlers.len());
    for handler in handlers {
        check_name("handler", handler)?;
        if !distinct.contains(handler) {
            distinct.push(handler.clone());
        }
    }
    Ok(distinct)
}

fn normalise_headers(headers: &Map<String, Value>) -> Result<Map<String, Value>, InvalidInput> {
    match json::normalise("headers", &Value::Object(headers.clone()))? {
        Value::Object(headers) => Ok(headers),
        _ => unreachable!("an object normalises to an object"),
    }
}

/// A stored event. Field names in JSON are those of the stored document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Its identifier.
    pub id: EventId,
    /// The type, such as `order.placed.v1`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The content; types that JSON lacks stand as relaxed extended JSON.
    pub payload: Value,
    /// Facts about the event; an object unless another client stored something else.
    pub headers: Value,
    /// The ordering key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key: Option<String>,
    /// Place among the events of the key, from 1, in commit order.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sequence: Option<i64>,
    /// Groups the work of one request.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub correlation_id: Option<String>,
    /// What caused it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub causation_id: Option<String>,
    /// The domain object that it is about.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub aggregate_id: Option<String>,
    /// Anything else the application kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub metadata: Option<Value>,
    /// When it was appended.
    pub created_at: Timestamp,
}

/// What an append did with one event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Appended {
    /// The event.
    pub id: EventId,
    /// Whether it is new; false when its id was there already.
    pub created: bool,
    /// The deliveries for the handlers that were named, in their order.
    pub deliveries: Vec<AppendedDelivery>,
}

/// What an append did for one handler of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AppendedDelivery {
    /// The delivery.
    pub id: DeliveryId,
    /// Its handler.
    pub handler: String,
    /// Whether it is new.
    pub created: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event() -> NewEvent {
        NewEvent::new("order.placed.v1", json!({"total": 1.0})).handler("a")
    }

    #[test]
    fn a_checked_event_is_normalised() {
        let checked = event().handler("b").handler("a").checked().unwrap();
        assert_eq!(checked.handlers, ["a", "b"]);
        assert_eq!(checked.payload.to_string(), r#"{"total":1}"#);
    }

    #[test]
    fn names_have_one_to_512_bytes() {
        assert!(event().key("k".repeat(512)).checked().is_ok());
        assert_eq!(event().key("k".repeat(513)).checked().unwrap_err().what, "key");
        assert_eq!(event().key("é".repeat(257)).checked().unwrap_err().what, "key");
        assert_eq!(event().key("").checked().unwrap_err().what, "key");
        assert_eq!(event().id("\0").checked().unwrap_err().what, "id");
        assert_eq!(event().handler("").checked().unwrap_err().what, "handler");
        assert_eq!(NewEvent::new("", json!(1)).handler("a").checked().unwrap_err().what, "type");
        assert_eq!(NewEvent::new("t", json!(1)).checked().unwrap_err().what, "handlers");
    }

    #[test]
    fn an_event_has_at_most_15_mib() {
        let large = |bytes| NewEvent::new("t", json!("x".repeat(bytes))).handler("a").checked();
        assert!(large(MAX_EVENT_BYTES - 300).is_ok());
        assert!(large(MAX_EVENT_BYTES).unwrap_err().reason.contains("15 MiB"));
        let mut many = event();
        many.headers.insert("h".into(), json!("x".repeat(MAX_EVENT_BYTES)));
        assert!(many.checked().is_err());
    }
}
