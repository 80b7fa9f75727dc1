//! Events as JSON lines: one object a line, read within bounds and without guessing.

use serde_json::{Map, Value};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

use crate::model::{EventId, InvalidInput, NewEvent, Timestamp, json};

/// The longest line that is read, in bytes. The text of the largest event is longer than its stored form where
/// characters are escaped.
pub const MAX_LINE_BYTES: u64 = 32 * 1024 * 1024;

/// One event of a stream, with the handlers that its line names.
#[derive(Debug, Clone, PartialEq)]
pub struct EventLine {
    /// The event; its handlers are those of the line, or none.
    pub event: NewEvent,
    /// Whether the line names handlers at all.
    pub names_handlers: bool,
}

/// Reads one line: `{type, payload, key?, id?, handlers?, headers?, metadata?, correlationId?, causationId?,
/// aggregateId?, availableAt?, maxAttempts?}`. Null means absent, except for the payload.
///
/// # Errors
/// Names the member or JSON path that is refused, and why. Members of other names are refused: a misspelt `key` would
/// silently lose the order of events.
pub fn parse_event_line(line: &str) -> Result<EventLine, InvalidInput> {
    let Value::Object(members) = json::parse(ROOT, line).map_err(without_root)? else {
        return Err(InvalidInput::new("event", "must be a JSON object"));
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
const ROOT: &str = "event";

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

/// Paths as the writer of the line sees them: `payload.total` instead of `event.payload.total`. The only line of the
/// text goes without saying.
fn without_root(error: InvalidInput) -> InvalidInput {
    let what = error.what.strip_prefix(ROOT).and_then(|path| path.strip_prefix('.')).unwrap_or(&error.what);
    InvalidInput::new(what, error.reason.replace(" at line 1 column ", " at column "))
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

/// The lines of a stream, with their numbers.
#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: R,
    number: u64,
    limit: u64,
}

/// Why a line could not be read.
#[derive(Debug)]
pub(super) enum LineError {
    Invalid(InvalidInput),
    Io(std::io::Error),
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Lines { reader, number: 0, limit: MAX_LINE_BYTES }
    }

    /// The number of the line that was read, or tried, last; the first is 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line that is not blank, without its end.
    pub(super) async fn next(&mut self) -> Result<Option<String>, LineError> {
        loop {
            self.number += 1;
            let mut bytes = Vec::new();
            let mut bounded = (&mut self.reader).take(self.limit + 1);
            let read = bounded.read_until(b'\n', &mut bytes).await.map_err(LineError::Io)?;
            if read == 0 {
                return Ok(None);
            }
            if bytes.last() == Some(&b'\n') {
                bytes.pop();
            }
            if bytes.len() as u64 > self.limit {
                let reason = format!("is longer than {} MiB", self.limit >> 20);
                return Err(LineError::Invalid(InvalidInput::new(ROOT, reason)));
            }
            let line = String::from_utf8(bytes).map_err(|error| LineError::Invalid(not_utf8(&error)))?;
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

fn not_utf8(error: &std::string::FromUtf8Error) -> InvalidInput {
    let at = error.utf8_error().valid_up_to() + 1;
    InvalidInput::new(ROOT, format!("is not valid UTF-8 at byte {at}"))
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

    async fn read_all(bytes: &[u8], limit: u64) -> Vec<Result<(u64, String), String>> {
        let mut lines = Lines { limit, ..Lines::new(bytes) };
        let mut read = Vec::new();
        loop {
            match lines.next().await {
                Ok(Some(line)) => read.push(Ok((lines.number(), line))),
                Ok(None) => return read,
                Err(LineError::Invalid(error)) => {
                    read.push(Err(format!("line {}: {error}", lines.number())));
                    return read;
                }
                Err(LineError::Io(error)) => panic!("{error}"),
            }
        }
    }

    #[tokio::test]
    async fn lines_are_counted_and_blank_ones_left_out() {
        let read = read_all(b"a\n\n \t\r\nb\r\nc", 10).await;
        assert_eq!(read, [Ok((1, "a".to_owned())), Ok((4, "b\r".to_owned())), Ok((5, "c".to_owned()))]);
        assert_eq!(read_all(b"", 10).await, []);
    }

    #[tokio::test]
    async fn a_line_has_a_greatest_length() {
        assert_eq!(read_all(b"1234\n", 4).await, [Ok((1, "1234".to_owned()))]);
        assert_eq!(read_all(b"1234", 4).await, [Ok((1, "1234".to_owned()))]);
        let refused = [Ok((1, "x".to_owned())), Err("line 2: event: is longer than 0 MiB".to_owned())];
        assert_eq!(read_all(b"x\n12345\n", 4).await, refused);
    }

    #[tokio::test]
    async fn a_line_is_utf_8() {
        let read = read_all(b"ok\nab\xffc\n", 10).await;
        assert_eq!(read[1], Err("line 2: event: is not valid UTF-8 at byte 3".to_owned()));
    }
}
