//! From the lines that a command has written to operations.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{MAX_OPERATIONS, NumberedOperation, Operation};
use crate::model::{Envelope, HandlersOf, InvalidInput, NewEvent, json, read_event};
use crate::store::{WriteChange, WriteOperation};

/// A line that is no operation, or one that the handler may not ask for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct InvalidLine {
    /// Its number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

/// What a handler may ask for, and who receives what it publishes.
#[derive(Clone)]
pub struct OperationRules {
    writes: Vec<String>,
    handlers_of: Arc<HandlersOf<'static>>,
}

impl fmt::Debug for OperationRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationRules").field("writes", &self.writes).finish_non_exhaustive()
    }
}

impl OperationRules {
    /// Writes go to the collections `writes` alone; events that name no handlers are for those of `handlers_of`.
    pub fn new(writes: Vec<String>, handlers_of: Arc<HandlersOf<'static>>) -> Self {
        OperationRules { writes, handlers_of }
    }

    /// Reads what was written while `envelope` was handled.
    ///
    /// # Errors
    /// The first line that cannot be used.
    pub fn read(&self, output: &[u8], envelope: &Envelope) -> Result<Vec<NumberedOperation>, InvalidLine> {
        let mut operations = Vec::new();
        for (line, text) in (1..).zip(output.split(|byte| *byte == b'\n')) {
            if text.trim_ascii().is_empty() {
                continue;
            }
            let refuse = |reason| InvalidLine { line, reason };
            if operations.len() == MAX_OPERATIONS {
                return Err(refuse(format!("at most {MAX_OPERATIONS} operations are allowed")));
            }
            let operation = self.operation(text, envelope).map_err(|error| refuse(reason_of(error)))?;
            operations.push(NumberedOperation { line, operation });
        }
        Ok(operations)
    }

    fn operation(&self, line: &[u8], envelope: &Envelope) -> Result<Operation, InvalidInput> {
        let text = std::str::from_utf8(line).map_err(|error| {
            InvalidInput::new("", format!("is not valid UTF-8 at byte {}", error.valid_up_to() + 1))
        })?;
        let (name, value) = only_member(json::parse("", text)?)?;
        match name.as_str() {
            "publish" => self
                .event(value, envelope)
                .map(|event| Operation::Publish(Box::new(event)))
                .map_err(within_publish),
            "write" => self.write(as_written(text, &name)?, envelope).map(Operation::Write),
            _ => Err(InvalidInput::new(quoted(&name), "is no operation; those are publish and write")),
        }
    }

    fn event(&self, value: Value, envelope: &Envelope) -> Result<NewEvent, InvalidInput> {
        let mut line = read_event(value)?;
        line.event.causation_id.get_or_insert_with(|| envelope.event_id.to_string());
        line.event.correlation_id = line.event.correlation_id.or_else(|| envelope.correlation_id.clone());
        line.resolve(&*self.handlers_of)
    }

    fn write(&self, value: Value, envelope: &Envelope) -> Result<WriteOperation, InvalidInput> {
        let mut members = Members::of(value)?;
        let collection = members.text("collection")?;
        self.check_allowed(&collection, envelope)?;
        let op = members.text("op")?;
        let change = change(&op, &mut members)?;
        members.end(&op)?;
        Ok(WriteOperation { collection, change })
    }

    fn check_allowed(&self, collection: &String, envelope: &Envelope) -> Result<(), InvalidInput> {
        if self.writes.contains(collection) {
            return Ok(());
        }
        let allowed = match self.writes.as_slice() {
            [] => "has none".to_owned(),
            writes => format!("are {}", writes.join(", ")),
        };
        let reason = format!(
            "{} is not among the writes of handler {}, which {allowed}",
            quoted(collection),
            envelope.handler
        );
        Err(InvalidInput::new("write.collection", reason))
    }
}

/// The value of a line's only member, without the outbox's normal form of numbers: in extended JSON `1.0` is a double.
fn as_written(text: &str, name: &str) -> Result<Value, InvalidInput> {
    let not_json = |error: serde_json::Error| InvalidInput::new("", format!("is not valid JSON: {error}"));
    let mut line: Map<String, Value> = serde_json::from_str(text).map_err(not_json)?;
    Ok(line.remove(name).unwrap_or_default())
}

fn only_member(line: Value) -> Result<(String, Value), InvalidInput> {
    let members = match line {
        Value::Object(members) if members.len() == 1 => members.into_iter().next(),
        _ => None,
    };
    members.ok_or_else(|| InvalidInput::new("", r#"has to be {"publish": {...}} or {"write": {...}}"#))
}

fn change(op: &str, members: &mut Members) -> Result<WriteChange, InvalidInput> {
    Ok(match op {
        "insertOne" => WriteChange::InsertOne { document: members.object("document")? },
        "updateOne" | "updateMany" => WriteChange::Update {
            filter: members.object("filter")?,
            update: members.update()?,
            many: op == "updateMany",
            upsert: members.flag("upsert")?,
        },
        "replaceOne" => WriteChange::ReplaceOne {
            filter: members.object("filter")?,
            replacement: members.replacement()?,
            upsert: members.flag("upsert")?,
        },
        "deleteOne" => WriteChange::DeleteOne { filter: members.object("filter")? },
        _ => {
            let known = "insertOne, updateOne, updateMany, replaceOne and deleteOne";
            return Err(refusal("op", format!("{} is none of {known}", quoted(op))));
        }
    })
}

/// The members of a write that are not read yet.
struct Members(Map<String, Value>);

impl Members {
    fn of(value: Value) -> Result<Self, InvalidInput> {
        match value {
            Value::Object(members) => Ok(Members(members)),
            _ => Err(InvalidInput::new("write", "must be an object")),
        }
    }

    fn required(&mut self, name: &str) -> Result<Value, InvalidInput> {
        self.0.remove(name).ok_or_else(|| refusal(name, "is missing"))
    }

    fn text(&mut self, name: &str) -> Result<String, InvalidInput> {
        match self.required(name)? {
            Value::String(text) => Ok(text),
            _ => Err(refusal(name, "must be a string")),
        }
    }

    fn object(&mut self, name: &str) -> Result<Map<String, Value>, InvalidInput> {
        match self.required(name)? {
            Value::Object(members) => Ok(members),
            _ => Err(refusal(name, "must be an object")),
        }
    }

    fn flag(&mut self, name: &str) -> Result<bool, InvalidInput> {
        match self.0.remove(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(refusal(name, "must be true or false")),
        }
    }

    /// A document without operators in their place would lose every other field, which is what replaceOne is for.
    fn update(&mut self) -> Result<Value, InvalidInput> {
        let update = self.required("update")?;
        let is_update = match &update {
            Value::Object(operators) => {
                !operators.is_empty() && operators.keys().all(|key| key.starts_with('$'))
            }
            Value::Array(stages) => !stages.is_empty() && stages.iter().all(Value::is_object),
            _ => false,
        };
        let reason = "must be an object of update operators such as $set, or an array of pipeline stages";
        is_update.then_some(update).ok_or_else(|| refusal("update", reason))
    }

    fn replacement(&mut self) -> Result<Map<String, Value>, InvalidInput> {
        let replacement = self.object("replacement")?;
        if replacement.keys().any(|key| key.starts_with('$')) {
            return Err(refusal("replacement", "must be a document, without update operators"));
        }
        Ok(replacement)
    }

    /// A member that is left means something else than was written: a misspelt `upsert`, say.
    fn end(self, op: &str) -> Result<(), InvalidInput> {
        match self.0.keys().next() {
            Some(name) => {
                Err(InvalidInput::new(format!("write.{}", quoted(name)), format!("is no member of {op}")))
            }
            None => Ok(()),
        }
    }
}

fn refusal(member: &str, reason: impl Into<String>) -> InvalidInput {
    InvalidInput::new(format!("write.{member}"), reason)
}

fn quoted(name: &str) -> String {
    Value::from(name).to_string()
}

/// Paths as the writer of the line sees them. What concerns the event as a whole is named as the event.
fn within_publish(error: InvalidInput) -> InvalidInput {
    let what = if error.what == "event" { "publish".to_owned() } else { format!("publish.{}", error.what) };
    InvalidInput { what, ..error }
}

/// The place within the line, if it is not the whole, and the reason. The only line of the text goes without saying.
fn reason_of(InvalidInput { what, reason }: InvalidInput) -> String {
    let reason = reason.replace(" at line 1 column ", " at column ");
    match what.trim_start_matches('.') {
        "" => reason,
        place => format!("{place}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Delivery, Event};
    use serde_json::json;

    fn envelope() -> Envelope {
        let time = "2026-03-01T09:30:00Z";
        let event = json!({
            "id": "e-1", "type": "order.placed.v1", "payload": 1, "headers": {}, "createdAt": time,
            "correlationId": "request-9",
        });
        let delivery = json!({
            "id": "d-1", "eventId": "e-1", "eventType": "order.placed.v1", "handler": "billing", "status": "processing",
            "lane": "ready", "attempts": 1, "availableAt": time, "createdAt": time, "updatedAt": time,
        });
        let event: Event = serde_json::from_value(event).unwrap();
        Envelope::new(event, &serde_json::from_value::<Delivery>(delivery).unwrap(), 5)
    }

    fn read(output: impl AsRef<[u8]>) -> Result<Vec<NumberedOperation>, String> {
        let handlers_of = |event_type: &str| match event_type {
            "invoice.made" => vec!["archive".to_owned()],
            _ => Vec::new(),
        };
        let rules = OperationRules::new(vec!["invoices".into(), "orders".into()], Arc::new(handlers_of));
        rules.read(output.as_ref(), &envelope()).map_err(|error| error.to_string())
    }

    fn refusal(line: &str) -> String {
        let error = read(line).unwrap_err();
        error.strip_prefix("line 1: ").unwrap_or_else(|| panic!("{error}")).to_owned()
    }

    fn event(line: &str) -> NewEvent {
        match read(line).unwrap().remove(0).operation {
            Operation::Publish(event) => *event,
            other => panic!("{other:?}"),
        }
    }

    fn members(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(members) => members,
            other => panic!("{other}"),
        }
    }

    fn change_of(write: Value) -> WriteChange {
        let line = json!({ "write": write }).to_string();
        match read(line).unwrap().remove(0).operation {
            Operation::Write(write) => write.change,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_keep_their_numbers_and_their_order() {
        let output = concat!(
            "\n{\"write\": {\"collection\": \"invoices\", \"op\": \"deleteOne\", \"filter\": {}}}\r\n \t\n",
            "{\"publish\": {\"type\": \"t\", \"payload\": 1, \"handlers\": [\"h\"]}}"
        );
        let lines: Vec<u64> = read(output).unwrap().iter().map(|one| one.line).collect();
        assert_eq!(lines, [2, 4]);
        assert_eq!(read(""), Ok(vec![]));
    }

    #[test]
    fn an_event_is_for_those_who_subscribe_and_says_where_it_comes_from() {
        let default = event(r#"{"publish": {"type": "invoice.made", "payload": {"n": 1.0}}}"#);
        let mut expected = NewEvent::new("invoice.made", json!({"n": 1})).handler("archive");
        expected.causation_id = Some("e-1".into());
        expected.correlation_id = Some("request-9".into());
        assert_eq!(default, expected);
        let own = event(
            r#"{"publish": {"type": "invoice.made", "payload": 1, "handlers": ["h"], "causationId": "c", "correlationId": "g"}}"#,
        );
        assert_eq!(own.handlers, ["h"]);
        assert_eq!((own.causation_id.as_deref(), own.correlation_id.as_deref()), (Some("c"), Some("g")));
    }

    #[test]
    fn every_write_is_read() {
        let filter = members(json!({"_id": 7}));
        let document = members(json!({"at": {"$date": "2026-03-01T09:30:00Z"}, "total": 1.0}));
        assert_eq!(
            change_of(json!({"collection": "orders", "op": "insertOne", "document": document})),
            WriteChange::InsertOne { document: document.clone() }
        );
        for (op, many) in [("updateOne", false), ("updateMany", true)] {
            for update in [json!({"$set": {"a": 1}}), json!([{"$set": {"a": "$b"}}])] {
                let write = json!({"collection": "orders", "op": op, "filter": filter, "update": update, "upsert": many});
                let filter = filter.clone();
                assert_eq!(change_of(write), WriteChange::Update { filter, update, many, upsert: many });
            }
        }
        assert_eq!(
            change_of(
                json!({"collection": "orders", "op": "replaceOne", "filter": filter, "replacement": document})
            ),
            WriteChange::ReplaceOne { filter: filter.clone(), replacement: document, upsert: false }
        );
        let delete = json!({"collection": "orders", "op": "deleteOne", "filter": filter});
        assert_eq!(change_of(delete), WriteChange::DeleteOne { filter });
    }

    #[test]
    fn a_line_that_is_no_operation_is_refused() {
        let either = r#"has to be {"publish": {...}} or {"write": {...}}"#;
        for line in ["1", "[]", "{}", r#"{"publish": {}, "write": {}}"#] {
            assert_eq!(refusal(line), either, "{line}");
        }
        for (line, reason) in [
            ("done", "is not valid JSON: expected value at column 1"),
            (r#"{"publsh": {}}"#, r#""publsh": is no operation; those are publish and write"#),
            (r#"{"publish": 1}"#, "publish: must be a JSON object"),
            (r#"{"publish": {"type": "t"}}"#, "publish.payload: is missing"),
            (
                r#"{"publish": {"type": "t", "payload": {"n": 9223372036854775808}}}"#,
                "publish.payload.n: is an integer outside",
            ),
            (
                r#"{"publish": {"type": "t", "payload": 1}}"#,
                "publish.handlers: none is named, and none is known to subscribe to `t`",
            ),
            (
                r#"{"publish": {"type": "t", "payload": 1, "handlers": []}}"#,
                "publish.handlers: must name at least one",
            ),
            (
                r#"{"publish": {"type": "", "payload": 1, "handlers": ["h"]}}"#,
                "publish.type: must not be empty",
            ),
            (r#"{"write": 1}"#, "write: must be an object"),
            (r#"{"write": {"op": "deleteOne", "filter": {}}}"#, "write.collection: is missing"),
            (
                r#"{"write": {"collection": "users"}}"#,
                r#"write.collection: "users" is not among the writes of handler billing, which are invoices, orders"#,
            ),
        ] {
            assert!(refusal(line).starts_with(reason), "{line}: {}", refusal(line));
        }
        assert_eq!(read(b"\n{\"a\xff").unwrap_err(), "line 2: is not valid UTF-8 at byte 4");
    }

    #[test]
    fn a_write_has_what_its_op_needs_and_nothing_else() {
        let of = |rest: &str| refusal(&format!(r#"{{"write": {{"collection": "orders", {rest}}}}}"#));
        let operators = "write.update: must be an object of update operators such as $set, or an array of pipeline stages";
        for (rest, reason) in [
            (
                r#""op": "drop""#,
                r#"write.op: "drop" is none of insertOne, updateOne, updateMany, replaceOne and deleteOne"#,
            ),
            (r#""op": 1"#, "write.op: must be a string"),
            (r#""op": "insertOne""#, "write.document: is missing"),
            (r#""op": "insertOne", "document": []"#, "write.document: must be an object"),
            (
                r#""op": "insertOne", "document": {}, "filter": {}"#,
                r#"write."filter": is no member of insertOne"#,
            ),
            (
                r#""op": "deleteOne", "filter": {}, "upsert": true"#,
                r#"write."upsert": is no member of deleteOne"#,
            ),
            (r#""op": "updateOne", "update": {"$set": {}}"#, "write.filter: is missing"),
            (r#""op": "updateOne", "filter": {}, "update": {"a": 1}"#, operators),
            (r#""op": "updateMany", "filter": {}, "update": {}"#, operators),
            (r#""op": "updateOne", "filter": {}, "update": []"#, operators),
            (r#""op": "updateOne", "filter": {}, "update": [1]"#, operators),
            (
                r#""op": "updateOne", "filter": {}, "update": {"$set": {"a": 1}}, "upsert": 1"#,
                "write.upsert: must be true or false",
            ),
            (
                r#""op": "replaceOne", "filter": {}, "replacement": {"$set": {}}"#,
                "write.replacement: must be a document, without update operators",
            ),
        ] {
            assert_eq!(of(rest), reason, "{rest}");
        }
    }

    #[test]
    fn a_double_of_a_write_stays_one() {
        let line = r#"{"write": {"collection": "orders", "op": "insertOne", "document": {"total": 1.0}}}"#;
        let Operation::Write(WriteOperation { change: WriteChange::InsertOne { document }, .. }) =
            read(line).unwrap().remove(0).operation
        else {
            panic!("an insert was expected");
        };
        assert!(document["total"].is_f64(), "{document:?}");
    }

    #[test]
    fn an_attempt_has_so_many_operations() {
        let line = "{\"write\": {\"collection\": \"orders\", \"op\": \"deleteOne\", \"filter\": {}}}\n";
        assert_eq!(read(line.repeat(MAX_OPERATIONS)).unwrap().len(), MAX_OPERATIONS);
        let error = read(line.repeat(MAX_OPERATIONS + 1)).unwrap_err();
        assert_eq!(error, "line 1001: at most 1000 operations are allowed");
    }
}
