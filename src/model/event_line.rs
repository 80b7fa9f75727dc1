//! Events as JSON: one object for each, read without guessing.

use serde_json::{Map, Value};

use super::event::NewEvent;
use super::id::EventId;
use super::json;
use super::text::InvalidInput;
use super::time::Timestamp;

/// Who receives an event of a type when the event itself does not say.
pub type HandlersOf<'a> = dyn Fn(&str) -> Vec<String> + Send + Sync + 'a;

/// One event of a stream, with the handlers that its line names.
#[derive(Debug, Clone, PartialEq)]
pub struct EventLine {
    /// The event; its handlers are those of the line, or none.
    pub event: NewEvent,
    /// Whether the line names handlers at all.
    pub names_handlers: bool,
}

impl EventLine {
    /// The event in the form in which it is stored, for the handlers that its line names, or else for those that
    /// `handlers_of` names for its type.
    ///
    /// # Errors
    /// When nobody would receive it, or it breaks a limit.
    pub fn resolve(self, handlers_of: &HandlersOf<'_>) -> Result<NewEvent, InvalidInput> {
        let event = if self.names_handlers { self.event } else { with_handlers(self.event, handlers_of)? };
        event.checked()
    }
}

/// Reads one line: `{type, payload, key?, id?, handlers?, headers?, metadata?, correlationId?, causationId?,
/// aggregateId?, availableAt?, maxAttempts?}`. Null means absent, except for the payload.
///
/// # Errors
/// Names the member or JSON path that is refused, and why. Members of other names are refused: a misspelt `key` would
/// silently lose the order of events.
pub fn parse_event_line(line: &str) -> Result<EventLine, InvalidInput> {
    read_event(json::parse(ROOT, line).map_err(|error| error.below(ROOT))?)
}

/// Reads the same from a value that [`json::parse`] has accepted.
///
/// # Errors
/// Those of [`parse_event_line`].
pub fn read_event(value: Value) -> Result<EventLine, InvalidInput> {
    let Value::Object(members) = value else {
        return Err(InvalidInput::new(ROOT, "must be a JSON object"));
    };
    let mut event = NewEvent::new(String::new(), Value::Null);
    let mut required = Required::default();
    let mut names_handlers = false;
    for (name, value) in members {
        if value.is_null() && name != "payload" && KNOWN.contains(&name.as_str()) {
            continue;
        }
        match name.as_str() {
            "type" => {
                event.event_type = text("type", value)?;
                required.event_type = true;
            }
            "payload" => {
                event.payload = value;
                required.payload = true;
            }
            "handlers" => {
                event.handlers = texts("handlers", value)?;
                names_handlers = true;
            }
            "id" => event.id = Some(EventId::from(text("id", value)?)),
            "key" => event.key = Some(text("key", value)?),
            "headers" => event.headers = object("headers", value)?,
            "metadata" => event.metadata = Some(value),
            "correlationId" => event.correlation_id = Some(text("correlationId", value)?),
            "causationId" => event.causation_id = Some(text("causationId", value)?),
            "aggregateId" => event.aggregate_id = Some(text("aggregateId", value)?),
            "availableAt" => event.available_at = Some(instant("availableAt", value)?),
            "maxAttempts" => event.max_attempts = Some(count("maxAttempts", value)?),
            _ => return Err(unknown(&name)),
        }
    }
    required.check()?;
    Ok(EventLine { event, names_handlers })
}

/// What paths begin with while a line is read as a whole.
pub(crate) const ROOT: &str = "event";

const KNOWN: [&str; 12] = [
    "type",
    "payload",
    "key",
    "id",
    "handlers",
    "headers",
    "metadata",
    "correlationId",
    "causationId",
    "aggregateId",
    "availableAt",
    "maxAttempts",
];

#[derive(Default)]
struct Required {
    event_type: bool,
    payload: bool,
}

impl Required {
    fn check(&self) -> Result<(), InvalidInput> {
        let missing = |name| Err(InvalidInput::new(name, "is missing"));
        match (self.event_type, self.payload) {
            (false, _) => missing("type"),
            (_, false) => missing("payload"),
            _ => Ok(()),
        }
    }
}

fn unknown(name: &str) -> InvalidInput {
    let reason = format!("is no member of an event; those are {}", KNOWN.join(", "));
    InvalidInput::new(Value::from(name).to_string(), reason)
}

fn text(name: &str, value: Value) -> Result<String, InvalidInput> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(InvalidInput::new(name, "must be a string")),
    }
}

fn texts(name: &str, value: Value) -> Result<Vec<String>, InvalidInput> {
    let Value::Array(items) = value else {
        return Err(InvalidInput::new(name, "must be an array of strings"));
    };
    items.into_iter().enumerate().map(|(i, item)| text(&format!("{name}[{i}]"), item)).collect()
}

fn object(name: &str, value: Value) -> Result<Map<String, Value>, InvalidInput> {
    match value {
        Value::Object(members) => Ok(members),
        _ => Err(InvalidInput::new(name, "must be an object")),
    }
}

fn instant(name: &str, value: Value) -> Result<Timestamp, InvalidInput> {
    let refuse =
        || InvalidInput::new(name, "must be an RFC 3339 time with an offset, such as 2026-03-01T09:30:00Z");
    value.as_str().and_then(|text| text.parse().ok()).ok_or_else(refuse)
}

fn count(name: &str, value: Value) -> Result<u32, InvalidInput> {
    let refuse = || InvalidInput::new(name, format!("must be a whole number from 1 to {}", u32::MAX));
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.filter(|&number| number > 0).ok_or_else(refuse)
}

/// The event with the handlers that `handlers_of` names for its type, unless it has some of its own.
///
/// # Errors
/// When nobody would receive it.
pub fn with_handlers(event: NewEvent, handlers_of: &HandlersOf<'_>) -> Result<NewEvent, InvalidInput> {
    if !event.handlers.is_empty() {
        return Ok(event);
    }
    let handlers = handlers_of(&event.event_type);
    if handlers.is_empty() {
        let reason = format!("none is named, and none is known to subscribe to `{}`", event.event_type);
        return Err(InvalidInput::new("handlers", reason));
    }
    Ok(NewEvent { handlers, ..event })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(line: &str) -> String {
        parse_event_line(line).unwrap_err().to_string()
    }

    #[test]
    fn reads_every_member() {
        let line = r#"{"type":"t","payload":[1],"key":"k","id":"e","handlers":["a","b"],"headers":{"h":1},
            "metadata":null,"correlationId":"c1","causationId":"c2","aggregateId":"g",
            "availableAt":"2026-03-01T09:30:00+01:00","maxAttempts":3}"#;
        let EventLine { event, names_handlers } = parse_event_line(line).unwrap();
        assert!(names_handlers);
        let mut expected = NewEvent::new("t", json!([1])).key("k").id("e").handler("a").handler("b");
        expected.headers.insert("h".to_owned(), json!(1));
        expected.correlation_id = Some("c1".to_owned());
        expected.causation_id = Some("c2".to_owned());
        expected.aggregate_id = Some("g".to_owned());
        expected.available_at = Some("2026-03-01T08:30:00Z".parse().unwrap());
        expected.max_attempts = Some(3);
        assert_eq!(event, expected);
    }

    #[test]
    fn null_means_absent_except_for_the_payload() {
        let line = parse_event_line(r#"{"type":"t","payload":null,"key":null,"handlers":null}"#).unwrap();
        assert_eq!(line, EventLine { event: NewEvent::new("t", Value::Null), names_handlers: false });
    }

    #[test]
    fn numbers_stay_exact_or_are_refused_with_their_path() {
        let line = parse_event_line(r#"{"type":"t","payload":{"n":9223372036854775807}}"#).unwrap();
        assert_eq!(line.event.payload.to_string(), r#"{"n":9223372036854775807}"#);
        assert_eq!(
            refusal(r#"{"type":"t","payload":{"items":[{"n":9223372036854775808}]}}"#),
            "payload.items[0].n: is an integer outside the signed 64-bit range; send it as a string"
        );
    }

    #[test]
    fn refusals_name_the_member() {
        let refused = [
            (r#"[]"#, "event: must be a JSON object"),
            (r#"{"payload":1}"#, "type: is missing"),
            (r#"{"type":null,"payload":1}"#, "type: is missing"),
            (r#"{"type":"t"}"#, "payload: is missing"),
            (r#"{"type":1,"payload":1}"#, "type: must be a string"),
            (r#"{"type":"t","payload":1,"handlers":"a"}"#, "handlers: must be an array of strings"),
            (r#"{"type":"t","payload":1,"handlers":["a",1]}"#, "handlers[1]: must be a string"),
            (r#"{"type":"t","payload":1,"headers":[]}"#, "headers: must be an object"),
            (r#"{"type":"t","payload":1,"maxAttempts":0}"#, "maxAttempts: must be a whole number from 1"),
            (r#"{"type":"t","payload":1,"maxAttempts":1.5}"#, "maxAttempts: must be a whole number from 1"),
            (
                r#"{"type":"t","payload":1,"availableAt":"2026-03-01T09:30:00"}"#,
                "availableAt: must be an RFC",
            ),
            (r#"{"type":"t","payload":1,"Key":"k"}"#, r#""Key": is no member of an event; those are type,"#),
            (r#"{"type":"t","payload":1"#, "event: is not valid JSON: EOF while parsing an object at column"),
        ];
        for (line, expected) in refused {
            assert!(refusal(line).starts_with(expected), "{line}: {}", refusal(line));
        }
    }
}
