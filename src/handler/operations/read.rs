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
            "publish" => self.event(value, envelope).map(Operation::Publish).map_err(within_publish),
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
