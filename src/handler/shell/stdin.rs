//! What a command gets on stdin.

use serde::Serialize;
use serde_json::{Map, Value};

use super::trace;
use crate::model::{Envelope, Failure};

/// How the event is written on a command's stdin: one line of JSON in each case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stdin {
    /// The envelope: the event and the facts of its delivery.
    #[default]
    Json,
    /// The payload alone.
    Payload,
    /// A CloudEvent 1.0 in the structured JSON format. The event's key is `partitionkey`, its sequence is `sequence` in 19
    /// digits, its aggregate is `subject`. Headers with a name and a value that an attribute may have are attributes too.
    CloudEvents {
        /// Where events come from: with the event's id it has to be unique.
        source: String,
    },
}

impl Stdin {
    /// The line for an event.
    pub(super) fn line(&self, envelope: &Envelope) -> serde_json::Result<Vec<u8>> {
        match self {
            Stdin::Json => line_of(envelope),
            Stdin::Payload => line_of(&envelope.payload),
            Stdin::CloudEvents { source } => line_of(&cloud_event(envelope, source)),
        }
    }
}

/// The line for a delivery that is dead: its envelope, and what went wrong.
pub(super) fn line_of_death(envelope: &Envelope, failure: &Failure) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Dead<'a> {
        #[serde(flatten)]
        envelope: &'a Envelope,
        failure: Reason<'a>,
    }
    #[derive(Serialize)]
    struct Reason<'a> {
        kind: &'a str,
        message: &'a str,
    }
    let failure = Reason { kind: failure.kind.as_str(), message: &failure.message };
    line_of(&Dead { envelope, failure })
}

fn line_of(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Names that a header cannot have as an attribute, besides those that are set.
const RESERVED: [&str; 3] = ["data", "dataschema", "subject"];

/// The longest name of an attribute that every receiver has to understand.
const LONGEST_NAME: usize = 20;

fn cloud_event(envelope: &Envelope, source: &str) -> Map<String, Value> {
    let mut event = Map::new();
    let mut set = |name: &str, value: Option<String>| {
        value.map(|value| event.insert(name.to_owned(), Value::String(value)));
    };
    set("specversion", Some("1.0".to_owned()));
    set("id", Some(envelope.event_id.to_string()));
    set("source", Some(source.to_owned()));
    set("type", Some(envelope.event_type.clone()));
    set("subject", envelope.aggregate_id.clone().filter(|subject| !subject.is_empty()));
    // Instants that RFC 3339 cannot write begin with an @.
    set("time", Some(envelope.created_at.to_string()).filter(|time| !time.starts_with('@')));
    set("datacontenttype", Some("application/json".to_owned()));
    set("partitionkey", envelope.key.clone().filter(|key| !key.is_empty()));
    // In the order of numbers also where it is compared as text.
    set("sequence", envelope.sequence.map(|sequence| format!("{sequence:019}")));
    set("correlationid", envelope.correlation_id.clone());
    set("causationid", envelope.causation_id.clone());
    let traced = trace::context_of(&envelope.headers);
    set("traceparent", traced.as_ref().map(|traced| traced.parent.to_owned()));
    set("tracestate", traced.and_then(|traced| traced.state).map(str::to_owned));
    add_headers(&mut event, &envelope.headers);
    event.insert("data".to_owned(), envelope.payload.clone());
    event
}

fn add_headers(event: &mut Map<String, Value>, headers: &Value) {
    for (name, value) in headers.as_object().into_iter().flatten() {
        let is_trace = ["traceparent", "tracestate"].contains(&name.as_str());
        let is_free = !event.contains_key(name) && !RESERVED.contains(&name.as_str()) && !is_trace;
        if is_free && is_attribute_name(name) && is_attribute_value(value) {
            event.insert(name.clone(), value.clone());
        }
    }
}

fn is_attribute_name(name: &str) -> bool {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    is_plain && (1..=LONGEST_NAME).contains(&name.len())
}

/// Text, a boolean, or an integer of 32 bits.
fn is_attribute_value(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.chars().any(char::is_control),
        Value::Bool(_) => true,
        Value::Number(number) => number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{FailureKind, Timestamp};

    fn envelope() -> Envelope {
        Envelope {
            event_id: "e-1".into(),
            event_type: "order.placed.v1".into(),
            payload: json!({"total": 4}),
            headers: json!({
                "tenant": "acme", "retries": 3, "test": true, "Upper": "x", "with-dash": "x", "nested": {},
                "type": "mine", "subject": "mine", "big": 4_294_967_296_i64, "ctl": "a\nb", "tracestate": "a=1",
                "traceparent": "garbage",
            }),
            key: Some("order-17".into()),
            sequence: Some(3),
            correlation_id: Some("c-1".into()),
            causation_id: None,
            aggregate_id: Some("order/17".into()),
            metadata: Some(json!({"user": 7})),
            created_at: Timestamp::from_millis(1_764_528_000_120),
            delivery_id: "d-1".into(),
            handler: "mailer".into(),
            attempt: 1,
            max_attempts: 5,
        }
    }

    fn written(stdin: &Stdin) -> Value {
        let line = stdin.line(&envelope()).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        serde_json::from_slice(&line).unwrap()
    }

    #[test]
    fn each_format_is_one_line() {
        assert_eq!(written(&Stdin::Json), serde_json::to_value(envelope()).unwrap());
        assert_eq!(written(&Stdin::Payload), json!({"total": 4}));
    }

    #[test]
    fn a_cloud_event_has_the_attributes_of_the_event() {
        let expected = json!({
            "specversion": "1.0",
            "id": "e-1",
            "source": "/shop",
            "type": "order.placed.v1",
            "subject": "order/17",
            "time": "2025-11-30T18:40:00.120Z",
            "datacontenttype": "application/json",
            "partitionkey": "order-17",
            "sequence": "0000000000000000003",
            "correlationid": "c-1",
            "tenant": "acme",
            "retries": 3,
            "test": true,
            "data": {"total": 4},
        });
        assert_eq!(written(&Stdin::CloudEvents { source: "/shop".into() }), expected);
    }

    #[test]
    fn a_death_is_the_envelope_and_the_failure() {
        let failure = Failure::new(FailureKind::Rejected, "no email");
        let dead: Value = serde_json::from_slice(&line_of_death(&envelope(), &failure).unwrap()).unwrap();
        assert_eq!(dead["failure"], json!({"kind": "rejected", "message": "no email"}));
        assert_eq!((&dead["eventId"], &dead["payload"]), (&json!("e-1"), &json!({"total": 4})));
    }
}
