//! What a handler is given: the event and the facts of its delivery in one JSON document.

use serde::Serialize;
use serde_json::Value;

use super::delivery::Delivery;
use super::event::Event;
use super::id::{DeliveryId, EventId};
use super::time::Timestamp;

/// An event on its way to a handler. Field names only ever gain companions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// The event.
    pub event_id: EventId,
    /// Its type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Its content.
    pub payload: Value,
    /// Facts about it.
    pub headers: Value,
    /// The ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Place among the events of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<i64>,
    /// Groups the work of one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// What caused the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<String>,
    /// The domain object that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_id: Option<String>,
    /// Anything else the application kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// When the event was appended.
    pub created_at: Timestamp,
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// The handler that it is for.
    pub handler: String,
    /// Which attempt this is, counted from 1.
    pub attempt: u32,
    /// The attempt after which it is dead.
    pub max_attempts: u32,
}

/// The attempt that an envelope is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// The handler that it is for.
    pub handler: String,
    /// Which attempt it is, counted from 1.
    pub attempt: u32,
    /// The attempt after which it is dead.
    pub max_attempts: u32,
}

impl Envelope {
    /// The envelope of `event` for the leased `delivery`, whose limit is `max_attempts`.
    pub fn new(event: Event, delivery: &Delivery, max_attempts: u32) -> Self {
        let (delivery_id, handler) = (delivery.id.clone(), delivery.handler.clone());
        Envelope::addressed(event, Address { delivery_id, handler, attempt: delivery.attempts, max_attempts })
    }

    /// The envelope of `event` for an attempt.
    pub fn addressed(event: Event, to: Address) -> Self {
        Envelope {
            event_id: event.id,
            event_type: event.event_type,
            payload: event.payload,
            headers: event.headers,
            key: event.key,
            sequence: event.sequence,
            correlation_id: event.correlation_id,
            causation_id: event.causation_id,
            aggregate_id: event.aggregate_id,
            metadata: event.metadata,
            created_at: event.created_at,
            delivery_id: to.delivery_id,
            handler: to.handler,
            attempt: to.attempt,
            max_attempts: to.max_attempts,
        }
    }
}
