//! Deliveries on their way from one store to another: one JSON object for each, with its event.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeStruct as _, Serializer};
use serde_json::{Map, Value};

use super::delivery::{Delivery, Status};
use super::event::Event;
use super::id::DeliveryId;
use super::json;
use super::text::{InvalidInput, check_name};
use super::time::Timestamp;

/// The form of the lines; a line of another form is refused.
pub const EXPORT_VERSION: u64 = 1;

/// What paths begin with while a line is read as a whole.
const ROOT: &str = "line";

/// What a line adds to the nesting of the documents in it.
const FRAME_DEPTH: usize = 2;

/// The deepest documents that stores of other clients may hold; the server refuses what is deeper
/// (<https://www.mongodb.com/docs/manual/reference/limits/>: 100 levels, of which it checks twice as many).
const MAX_STORED_DEPTH: usize = 200;

/// Up to here clients that count with doubles count exactly.
const MAX_SEQUENCE: i64 = 1 << 53;

/// The names of types where JSON does not tell them, by JSON pointer (RFC 6901) from the line's root.
pub type Types = BTreeMap<String, String>;

/// One delivery with its event: all fields that are stored, those of other clients included.
///
/// The fields have their stored names, but for `id`, which is stored as `_id`; times are RFC 3339. JSON has fewer types
/// than some stores. So a value of a type that JSON lacks stands as relaxed extended JSON, and `types` has its type:
/// `{"$oid": "..."}` with the type `objectId` is an object id, and without a type it is an object with a member `$oid`.
/// `types` has numbers, too, whose type is not the usual one for what is written. The names are those of the operator
/// `$type` of MongoDB.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExportLine {
    /// The fields of the event, in their order.
    pub event: Map<String, Value>,
    /// The fields of the delivery, in their order.
    pub delivery: Map<String, Value>,
    /// The types that the JSON does not tell.
    pub types: Types,
}

impl Serialize for ExportLine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_struct("ExportLine", 4)?;
        line.serialize_field("version", &EXPORT_VERSION)?;
        line.serialize_field("event", &self.event)?;
        line.serialize_field("delivery", &self.delivery)?;
        if !self.types.is_empty() {
            line.serialize_field("types", &self.types)?;
        }
        line.end()
    }
}

impl ExportLine {
    /// A text field of the delivery.
    pub fn delivery_text(&self, field: &str) -> Option<&str> {
        self.delivery.get(field).and_then(Value::as_str)
    }

    /// Makes it a delivery for another handler. Its id follows from the old one and the handler, so that doing it again
    /// makes the same delivery.
    pub fn change_handler(&mut self, handler: &str) {
        if self.delivery_text("handler") == Some(handler) {
            return;
        }
        if let Some(old) = self.delivery_text("id") {
            let id = DeliveryId::derived(old, handler);
            self.set("id", Value::from(id.as_str()));
        }
        self.set("handler", Value::from(handler));
    }

    /// Makes it a delivery that was never tried, due at `now`. The history of its errors stays.
    pub fn reset(&mut self, now: Timestamp) {
        self.set("attempts", Value::from(0));
        self.remove("completedAt");
        self.wait_until(Value::from(now.to_string()), now);
    }

    /// Gives a leased delivery back, with the attempt under way, as a release does: nobody here began it. Others stay as
    /// they are.
    pub fn release(&mut self, now: Timestamp) {
        if self.delivery_text("status") != Some(Status::Processing.as_str()) {
            return;
        }
        if let Some(attempts) = self.delivery.get("attempts").and_then(Value::as_i64) {
            self.set("attempts", Value::from((attempts - 1).max(0)));
        }
        let available_at = self.delivery_text("availableAt").filter(|text| text.parse::<Timestamp>().is_ok());
        let available_at = available_at.map_or_else(|| now.to_string(), str::to_owned);
        self.wait_until(Value::from(available_at), now);
    }

    fn wait_until(&mut self, available_at: Value, now: Timestamp) {
        for field in ["leaseExpiresAt", "leaseToken", "leaseOwner"] {
            self.remove(field);
        }
        self.set("status", Value::from(Status::Pending.as_str()));
        self.set("lane", Value::from("ready"));
        self.set("availableAt", available_at.clone());
        self.set("dueAt", available_at);
        self.set("updatedAt", Value::from(now.to_string()));
    }

    fn set(&mut self, field: &str, value: Value) {
        self.forget_types(field);
        self.delivery.insert(field.to_owned(), value);
    }

    /// The others keep their order.
    fn remove(&mut self, field: &str) {
        self.forget_types(field);
        self.delivery.shift_remove(field);
    }

    fn forget_types(&mut self, field: &str) {
        let place = format!("/delivery/{field}");
        self.types.retain(|pointer, _| {
            pointer.strip_prefix(&place).is_none_or(|rest| !rest.is_empty() && !rest.starts_with('/'))
        });
    }
}

/// Whether a delivery and its event can be stored together as they are.
///
/// # Errors
/// Names the field in which they contradict each other or the life of a delivery, or that breaks a limit.
pub fn check_importable(event: &Event, delivery: &Delivery) -> Result<(), InvalidInput> {
    let refuse = |field: &str, reason: &str| Err(InvalidInput::new(format!("delivery.{field}"), reason));
    check_name("event.id", event.id.as_str())?;
    check_name("delivery.id", delivery.id.as_str())?;
    check_name("delivery.handler", &delivery.handler)?;
    delivery.key.as_deref().map_or(Ok(()), |key| check_name("delivery.key", key))?;
    if delivery.event_id != event.id {
        return refuse("eventId", "is not the id of the event");
    }
    if event.key.is_some() && event.key != delivery.key {
        return refuse("key", "is not that of the event");
    }
    if event.sequence.is_some() && event.sequence != delivery.sequence {
        return refuse("sequence", "is not that of the event");
    }
    if delivery.sequence.is_some_and(|sequence| sequence > MAX_SEQUENCE) {
        return refuse("sequence", "is larger than 2^53, which no counter reaches");
    }
    match (delivery.status, delivery.due_at) {
        (Status::Processing, _) => refuse("status", "is processing, under a lease that another store gave"),
        (Status::Pending, None) => refuse("dueAt", "is missing, and a pending delivery would never be due"),
        (Status::Completed | Status::Dead, Some(_)) => {
            refuse("dueAt", "is there, and a finished delivery would become due again")
        }
        _ => Ok(()),
    }
}

/// Reads one line.
///
/// # Errors
/// Names the member or JSON path that is refused, and why.
pub fn parse_export_line(line: &str) -> Result<ExportLine, InvalidInput> {
    let depth = MAX_STORED_DEPTH + FRAME_DEPTH;
    let value = json::parse_within(ROOT, line, depth).map_err(|error| error.below(ROOT))?;
    let Value::Object(mut members) = value else {
        return Err(InvalidInput::new(ROOT, "must be a JSON object"));
    };
    check_version(members.shift_remove("version"))?;
    let read = ExportLine {
        event: object("event", members.shift_remove("event"))?,
        delivery: object("delivery", members.shift_remove("delivery"))?,
        types: types(members.shift_remove("types"))?,
    };
    match members.keys().next() {
        None => Ok(read),
        Some(name) => {
            let reason = "is no member of an exported line; those are version, event, delivery, types";
            Err(InvalidInput::new(Value::from(name.as_str()).to_string(), reason))
        }
    }
}

fn check_version(version: Option<Value>) -> Result<(), InvalidInput> {
    match version {
        Some(Value::Number(version)) if version.as_u64() == Some(EXPORT_VERSION) => Ok(()),
        None => Err(InvalidInput::new("version", "is missing: this is no line that an export wrote")),
        Some(version) => {
            let reason = format!("is {version}, and this relayctl reads version {EXPORT_VERSION}");
            Err(InvalidInput::new("version", reason))
        }
    }
}

fn object(name: &str, value: Option<Value>) -> Result<Map<String, Value>, InvalidInput> {
    match value {
        Some(Value::Object(members)) => Ok(members),
        Some(_) => Err(InvalidInput::new(name, "must be an object")),
        None => Err(InvalidInput::new(name, "is missing")),
    }
}

fn types(value: Option<Value>) -> Result<Types, InvalidInput> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Types::new()) };
    let each = object("types", Some(value))?.into_iter().map(|(pointer, name)| match name {
        Value::String(name) => Ok((pointer, name)),
        _ => Err(InvalidInput::new("types", "must have the name of a type for each place")),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = concat!(
        r#"{"version":1,"event":{"id":"e","type":"t","payload":{"z":1,"a":{"$oid":"x"}}},"#,
        r#""delivery":{"id":"d","eventId":"e","handler":"h","status":"processing","attempts":3,"#,
        r#""leaseToken":"t","leaseExpiresAt":"2026-03-01T09:30:00.000Z","availableAt":"2026-03-01T09:00:00.000Z","#,
        r#""extra":1},"types":{"/delivery/attempts":"double","/delivery/extra":"long"}}"#
    );

    fn line() -> ExportLine {
        parse_export_line(LINE).unwrap()
    }

    fn delivery(line: &ExportLine) -> String {
        Value::from(line.delivery.clone()).to_string()
    }

    #[test]
    fn a_line_reads_back_as_it_was_written() {
        assert_eq!(serde_json::to_string(&line()).unwrap(), LINE);
        let plain = ExportLine { types: Types::new(), ..line() };
        assert!(!serde_json::to_string(&plain).unwrap().contains("types"));
    }

    #[test]
    fn what_is_no_exported_line_is_refused() {
        let refusal = |text: &str| parse_export_line(text).unwrap_err().to_string();
        for (text, expected) in [
            ("[]", "line: must be a JSON object"),
            ("{", "line: is not valid JSON: EOF while parsing an object at column 1"),
            (r#"{"type":"t","payload":1}"#, "version: is missing: this is no line that an export wrote"),
            (r#"{"version":2}"#, "version: is 2, and this relayctl reads version 1"),
            (r#"{"version":1,"event":{}}"#, "delivery: is missing"),
            (r#"{"version":1,"event":1}"#, "event: must be an object"),
            (
                r#"{"version":1,"event":{},"delivery":{},"x":1}"#,
                r#""x": is no member of an exported line; those are version, event, delivery, types"#,
            ),
            (
                r#"{"version":1,"event":{},"delivery":{},"types":{"/event":1}}"#,
                "types: must have the name of a type for each place",
            ),
            (
                r#"{"version":1,"event":{"payload":[9223372036854775808]}}"#,
                "event.payload[0]: is an integer outside the signed 64-bit range; send it as a string",
            ),
        ] {
            assert_eq!(refusal(text), expected, "{text}");
        }
    }

    #[test]
    fn documents_may_be_as_deep_as_stored_ones() {
        let deep = format!("{}{}", "[".repeat(190), "]".repeat(190));
        let text = format!(r#"{{"version":1,"event":{{"payload":{deep}}},"delivery":{{}}}}"#);
        assert_eq!(parse_export_line(&text).unwrap().event["payload"].to_string(), deep);
    }

    #[test]
    fn another_handler_makes_another_delivery_and_the_same_one_each_time() {
        let (mut one, mut again, mut other) = (line(), line(), line());
        one.change_handler("new");
        again.change_handler("new");
        other.change_handler("newer");
        assert_eq!(one, again);
        assert_eq!(one.delivery_text("handler"), Some("new"));
        let ids: std::collections::BTreeSet<_> =
            [&line(), &one, &other].map(|line| line.delivery_text("id").unwrap().to_owned()).into();
        assert_eq!(ids.len(), 3);
        let mut same = line();
        same.change_handler("h");
        assert_eq!(same, line());
    }

    #[test]
    fn a_lease_is_given_back_with_its_attempt() {
        let mut released = line();
        released.release(Timestamp::EPOCH);
        let expected = concat!(
            r#"{"id":"d","eventId":"e","handler":"h","status":"pending","attempts":2,"#,
            r#""availableAt":"2026-03-01T09:00:00.000Z","extra":1,"lane":"ready","#,
            r#""dueAt":"2026-03-01T09:00:00.000Z","updatedAt":"1970-01-01T00:00:00.000Z"}"#
        );
        assert_eq!(delivery(&released), expected);
        assert_eq!(released.types, Types::from([("/delivery/extra".to_owned(), "long".to_owned())]));
        let mut pending = released.clone();
        pending.release(Timestamp::from_millis(1));
        assert_eq!(pending, released);
    }

    #[test]
    fn a_reset_starts_from_the_beginning() {
        let mut reset = line();
        reset.delivery.insert("completedAt".into(), "2026-03-01T09:31:00.000Z".into());
        reset.delivery.insert("lastError".into(), "boom".into());
        reset.reset(Timestamp::EPOCH);
        let expected = concat!(
            r#"{"id":"d","eventId":"e","handler":"h","status":"pending","attempts":0,"#,
            r#""availableAt":"1970-01-01T00:00:00.000Z","extra":1,"lastError":"boom","lane":"ready","#,
            r#""dueAt":"1970-01-01T00:00:00.000Z","updatedAt":"1970-01-01T00:00:00.000Z"}"#
        );
        assert_eq!(delivery(&reset), expected);
    }
}
