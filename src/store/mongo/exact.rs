//! Stored documents as JSON and back, without a difference.
//!
//! A value goes as the JSON that [`json`] makes of it. Where that is read as another type than the stored one, the name
//! of the type goes beside it, under the value's JSON pointer: object ids, dates and whatever else JSON lacks, and
//! numbers of another width than ours. So data that only looks like extended JSON needs no mark to stay data.

use mongodb::bson::raw::CString;
use mongodb::bson::spec::ElementType;
use mongodb::bson::{
    Bson, DateTime, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf,
    RawJavaScriptCodeWithScope, raw::cstr,
};
use serde_json::{Map, Value};

use super::json;
use crate::model::{ExportLine, InvalidInput, Timestamp, Types};

/// What is usual at a place: the fields that every client knows have their own forms, all others none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Event,
    Delivery,
    /// The history of errors, which has dates in it.
    Errors,
    Error,
    /// A date, written as RFC 3339.
    Instant,
    /// An integer of 64 bits, also when it is small.
    Long,
    Plain,
}

impl Form {
    fn of_member(self, name: &str) -> Form {
        match (self, name) {
            (Form::Event | Form::Delivery, "sequence") => Form::Long,
            (Form::Event | Form::Delivery, "createdAt") | (Form::Error, "at") => Form::Instant,
            (Form::Delivery, "availableAt" | "leaseExpiresAt" | "dueAt" | "updatedAt" | "completedAt") => {
                Form::Instant
            }
            (Form::Delivery, "errors") => Form::Errors,
            _ => Form::Plain,
        }
    }

    fn of_item(self) -> Form {
        if self == Form::Errors { Form::Error } else { Form::Plain }
    }

    /// The name of a stored field in JSON, and the other way round. What a client of its own stored as `id` is `_id`.
    fn translated(self, name: &str) -> &str {
        match (self, name) {
            (Form::Event | Form::Delivery, "_id") => "id",
            (Form::Event | Form::Delivery, "id") => "_id",
            _ => name,
        }
    }

    /// The type as which a JSON value is read here, unless one stands beside it.
    fn usual_type(self, value: &Value) -> ElementType {
        match value {
            Value::Null => ElementType::Null,
            Value::Bool(_) => ElementType::Boolean,
            Value::Number(number) => match number.as_i64() {
                None => ElementType::Double,
                Some(integer) if self != Form::Long && i32::try_from(integer).is_ok() => ElementType::Int32,
                Some(_) => ElementType::Int64,
            },
            Value::String(text) if self == Form::Instant && text.parse::<Timestamp>().is_ok() => {
                ElementType::DateTime
            }
            Value::String(_) => ElementType::String,
            Value::Array(_) => ElementType::Array,
            Value::Object(_) => ElementType::EmbeddedDocument,
        }
    }
}

/// The names of types, as the operator `$type` has them
/// (<https://www.mongodb.com/docs/manual/reference/operator/query/type/>).
const TYPE_NAMES: [(ElementType, &str); 21] = [
    (ElementType::Double, "double"),
    (ElementType::String, "string"),
    (ElementType::EmbeddedDocument, "object"),
    (ElementType::Array, "array"),
    (ElementType::Binary, "binData"),
    (ElementType::Undefined, "undefined"),
    (ElementType::ObjectId, "objectId"),
    (ElementType::Boolean, "bool"),
    (ElementType::DateTime, "date"),
    (ElementType::Null, "null"),
    (ElementType::RegularExpression, "regex"),
    (ElementType::DbPointer, "dbPointer"),
    (ElementType::JavaScriptCode, "javascript"),
    (ElementType::Symbol, "symbol"),
    (ElementType::JavaScriptCodeWithScope, "javascriptWithScope"),
    (ElementType::Int32, "int"),
    (ElementType::Timestamp, "timestamp"),
    (ElementType::Int64, "long"),
    (ElementType::Decimal128, "decimal"),
    (ElementType::MinKey, "minKey"),
    (ElementType::MaxKey, "maxKey"),
];

fn name_of(wanted: ElementType) -> &'static str {
    TYPE_NAMES.iter().find(|(element, _)| *element == wanted).map_or("unknown", |(_, name)| name)
}

fn type_named(wanted: &str) -> Option<ElementType> {
    TYPE_NAMES.iter().find(|(_, name)| *name == wanted).map(|(element, _)| *element)
}

/// An event and a delivery as a line.
///
/// # Errors
/// Says what cannot be written without a difference.
pub(super) fn line_of(event: &RawDocument, delivery: &RawDocument) -> Result<ExportLine, InvalidInput> {
    let mut writer = Writer { place: Place::default(), types: Types::new() };
    let event = writer.at("event", |writer| writer.document(Form::Event, event))?;
    let delivery = writer.at("delivery", |writer| writer.document(Form::Delivery, delivery))?;
    Ok(ExportLine { event, delivery, types: writer.types })
}

/// The event and the delivery of a line, as they are stored.
///
/// # Errors
/// Names the place of what is refused, and why.
pub(super) fn documents_of(line: &ExportLine) -> Result<(RawDocumentBuf, RawDocumentBuf), InvalidInput> {
    let mut reader = Reader { place: Place::default(), types: &line.types, used: 0 };
    let event = reader.at("event", |reader| reader.document(Form::Event, &line.event))?;
    let delivery = reader.at("delivery", |reader| reader.document(Form::Delivery, &line.delivery))?;
    if reader.used < line.types.len() {
        return Err(refuse("types", "names the type of a place where nothing is"));
    }
    Ok((event, delivery))
}

fn refuse(what: &str, reason: impl Into<String>) -> InvalidInput {
    InvalidInput { what: what.to_owned(), reason: reason.into() }
}

/// A JSON pointer (RFC 6901) under construction.
#[derive(Default)]
struct Place(String);

impl Place {
    /// One step down; returns where to go back to.
    fn enter(&mut self, member: &str) -> usize {
        let length = self.0.len();
        self.0.push('/');
        self.0.push_str(&member.replace('~', "~0").replace('/', "~1"));
        length
    }

    fn refuse<T>(&self, reason: impl Into<String>) -> Result<T, InvalidInput> {
        Err(refuse(&self.0, reason))
    }
}

struct Writer {
    place: Place,
    types: Types,
}

impl Writer {
    fn at<T>(&mut self, member: &str, visit: impl FnOnce(&mut Self) -> T) -> T {
        let back = self.place.enter(member);
        let result = visit(self);
        self.place.0.truncate(back);
        result
    }

    fn document(&mut self, form: Form, document: &RawDocument) -> Result<Map<String, Value>, InvalidInput> {
        let mut members = Map::new();
        for element in document {
            let (name, value) = element.or_else(|error| self.place.refuse(error.to_string()))?;
            let stored = name.as_str();
            let name = form.translated(stored);
            let value = self.at(name, |writer| writer.value(form.of_member(stored), value))?;
            if members.insert(name.to_owned(), value).is_some() {
                return self
                    .place
                    .refuse(format!("has two members of the name {name:?}, which JSON cannot tell apart"));
            }
        }
        Ok(members)
    }

    fn value(&mut self, form: Form, value: RawBsonRef<'_>) -> Result<Value, InvalidInput> {
        let json = match value {
            RawBsonRef::Document(document) => Value::Object(self.document(form, document)?),
            RawBsonRef::Array(items) => {
                let items = items.into_iter().enumerate().map(|(index, item)| {
                    let item = item.or_else(|error| self.place.refuse(error.to_string()))?;
                    self.at(&index.to_string(), |writer| writer.value(form.of_item(), item))
                });
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            RawBsonRef::JavaScriptCodeWithScope(code) => {
                let scope = self.at("$scope", |writer| writer.document(Form::Plain, code.scope))?;
                Value::Object(Map::from_iter([
                    ("$code".to_owned(), Value::from(code.code)),
                    ("$scope".to_owned(), Value::Object(scope)),
                ]))
            }
            RawBsonRef::DateTime(date) if form == Form::Instant => {
                Value::from(Timestamp::from_millis(date.timestamp_millis()).to_string())
            }
            scalar => json::from_bson(scalar).or_else(|error| self.place.refuse(error.to_string()))?,
        };
        if form.usual_type(&json) != value.element_type() {
            self.note_type(&json, value)?;
        }
        Ok(json)
    }

    /// Whatever the conversions of the library do to a value: what does not read back to the same bytes is refused here, and
    /// not found out later.
    fn note_type(&mut self, json: &Value, value: RawBsonRef<'_>) -> Result<(), InvalidInput> {
        let element = value.element_type();
        if !matches!(value, RawBsonRef::JavaScriptCodeWithScope(_)) {
            let read = scalar_of(json, element).or_else(|reason| self.place.refuse(reason))?;
            if bytes_of(read.as_raw_bson_ref()) != bytes_of(value) {
                return self
                    .place
                    .refuse(format!("is a {} that JSON cannot write exactly", name_of(element)));
            }
        }
        self.types.insert(self.place.0.clone(), name_of(element).to_owned());
        Ok(())
    }
}

/// What a value is to the last bit.
pub(super) fn bytes_of(value: RawBsonRef<'_>) -> Vec<u8> {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!(""), value);
    document.into_bytes()
}

struct Reader<'a> {
    place: Place,
    types: &'a Types,
    /// How many of the types were met.
    used: usize,
}

impl Reader<'_> {
    fn at<T>(&mut self, member: &str, visit: impl FnOnce(&mut Self) -> T) -> T {
        let back = self.place.enter(member);
        let result = visit(self);
        self.place.0.truncate(back);
        result
    }

    fn document(&mut self, form: Form, members: &Map<String, Value>) -> Result<RawDocumentBuf, InvalidInput> {
        let mut document = RawDocumentBuf::new();
        for (name, value) in members {
            let stored = form.translated(name);
            let value = self.at(name, |reader| reader.value(form.of_member(stored), value))?;
            let Ok(stored) = CString::try_from(stored) else {
                return self.place.refuse("has a NUL character in a field name");
            };
            document.append(&stored, value);
        }
        Ok(document)
    }

    fn value(&mut self, form: Form, value: &Value) -> Result<RawBson, InvalidInput> {
        let Some(name) = self.types.get(&self.place.0) else {
            return self.of_type(form, form.usual_type(value), value);
        };
        self.used += 1;
        match type_named(name) {
            Some(element) => self.of_type(form, element, value),
            None => self.place.refuse(format!("has the type {name:?}, which is none")),
        }
    }

    fn of_type(&mut self, form: Form, element: ElementType, value: &Value) -> Result<RawBson, InvalidInput> {
        match (element, value) {
            (ElementType::EmbeddedDocument, Value::Object(members)) => {
                Ok(RawBson::Document(self.document(form, members)?))
            }
            (ElementType::Array, Value::Array(items)) => {
                let mut array = RawArrayBuf::new();
                for (index, item) in items.iter().enumerate() {
                    array.push(self.at(&index.to_string(), |reader| reader.value(form.of_item(), item))?);
                }
                Ok(RawBson::Array(array))
            }
            (ElementType::JavaScriptCodeWithScope, value) => self.code(value),
            _ => scalar_of(value, element).or_else(|reason| self.place.refuse(reason)),
        }
    }

    fn code(&mut self, value: &Value) -> Result<RawBson, InvalidInput> {
        let (Some(code), Some(Value::Object(scope))) =
            (value.get("$code").and_then(Value::as_str), value.get("$scope"))
        else {
            return self.place.refuse("is no code with a scope");
        };
        let scope = self.at("$scope", |reader| reader.document(Form::Plain, scope))?;
        let code = RawJavaScriptCodeWithScope { code: code.to_owned(), scope };
        Ok(RawBson::JavaScriptCodeWithScope(code))
    }
}

/// A value that holds no others.
fn scalar_of(value: &Value, element: ElementType) -> Result<RawBson, String> {
    let refusal = || format!("is no {}", name_of(element));
    let integer = || value.as_i64().ok_or_else(refusal);
    Ok(match (element, value) {
        (ElementType::Null, Value::Null) => RawBson::Null,
        (ElementType::Boolean, Value::Bool(flag)) => RawBson::Boolean(*flag),
        (ElementType::String, Value::String(text)) => RawBson::String(text.clone()),
        (ElementType::Int64, Value::Number(_)) => RawBson::Int64(integer()?),
        (ElementType::Int32, Value::Number(_)) => {
            RawBson::Int32(i32::try_from(integer()?).map_err(|_| refusal())?)
        }
        (ElementType::Double, Value::Number(number)) => {
            RawBson::Double(double_of(number).ok_or_else(refusal)?)
        }
        (ElementType::DateTime, Value::String(text)) => {
            let instant: Timestamp = text.parse().map_err(|_| refusal())?;
            RawBson::DateTime(DateTime::from_millis(instant.as_millis()))
        }
        (_, Value::Object(_)) => extended(value, element).ok_or_else(refusal)?,
        _ => return Err(refusal()),
    })
}

/// The double that is exactly this number.
fn double_of(number: &serde_json::Number) -> Option<f64> {
    match number.as_i64() {
        None => number.as_f64(),
        Some(integer) => Some(integer as f64).filter(|double| *double as i128 == i128::from(integer)),
    }
}

fn extended(value: &Value, element: ElementType) -> Option<RawBson> {
    let value = RawBson::try_from(Bson::try_from(value.clone()).ok()?).ok()?;
    (value.element_type() == element).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::{
        Binary, Decimal128, Document, Timestamp as Stamp, oid::ObjectId, rawdoc, spec::BinarySubtype,
    };

    /// Writes the documents as a line of text, and reads that back.
    fn round_trip(event: &RawDocument, delivery: &RawDocument) -> (RawDocumentBuf, RawDocumentBuf) {
        let line = line_of(event, delivery).unwrap();
        let text = serde_json::to_string(&line).unwrap();
        let read = crate::model::parse_export_line(&text).unwrap();
        assert_eq!(read, line, "{text}");
        documents_of(&read).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[track_caller]
    fn assert_exact(payload: impl Into<RawBson>) {
        let event = rawdoc! { "_id": "e", "payload": payload.into() };
        let (read, _) = round_trip(&event, &rawdoc! {});
        assert_eq!(read.as_bytes(), event.as_bytes(), "{event:?} is not {read:?}");
    }

    fn extended(text: &str) -> Bson {
        let value: Value = serde_json::from_str(text).unwrap();
        Bson::try_from(value).unwrap()
    }

    fn id() -> ObjectId {
        ObjectId::from_bytes([7; 12])
    }

    #[test]
    fn an_object_id_and_data_that_looks_like_one_stay_apart() {
        assert_exact(id());
        assert_exact(rawdoc! { "$oid": id().to_hex() });
        let event = rawdoc! { "_id": "e", "payload": { "real": id(), "data": { "$oid": id().to_hex() } } };
        let line = line_of(&event, &rawdoc! {}).unwrap();
        assert_eq!(line.event["payload"]["real"], line.event["payload"]["data"]);
        assert_eq!(line.types, Types::from([("/event/payload/real".to_owned(), "objectId".to_owned())]));
    }

    #[test]
    fn every_type_survives() {
        let values: Vec<Bson> = vec![
            Bson::Double(0.1),
            Bson::Double(5.0),
            Bson::Double(-0.0),
            Bson::Double(9_007_199_254_740_994.0),
            Bson::Double(9_223_372_036_854_775_808.0),
            Bson::Double(f64::NAN),
            Bson::Double(f64::INFINITY),
            Bson::Double(f64::NEG_INFINITY),
            Bson::Double(5e-324),
            Bson::Double(f64::MAX),
            Bson::Int32(5),
            Bson::Int64(5),
            Bson::Int64(9_007_199_254_740_993),
            Bson::Int64(i64::MIN),
            Bson::Int64(i64::MAX),
            Bson::String("2026-03-01T09:30:00.000Z".into()),
            Bson::Null,
            Bson::Undefined,
            Bson::Boolean(true),
            Bson::MinKey,
            Bson::MaxKey,
            Bson::ObjectId(id()),
            Bson::DateTime(DateTime::from_millis(0)),
            Bson::DateTime(DateTime::from_millis(1_764_528_000_120)),
            Bson::DateTime(DateTime::from_millis(-1)),
            Bson::DateTime(DateTime::from_millis(i64::MAX)),
            Bson::Timestamp(Stamp { time: 1, increment: 2 }),
            Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: vec![0, 255] }),
            Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: vec![1; 16] }),
            Bson::Binary(Binary { subtype: BinarySubtype::BinaryOld, bytes: vec![3; 5] }),
            Bson::Binary(Binary { subtype: BinarySubtype::UserDefined(0x80), bytes: Vec::new() }),
            Bson::Symbol("s".into()),
            Bson::JavaScriptCode("f()".into()),
            extended(r#"{"$regularExpression":{"pattern":"^a/~","options":"im"}}"#),
        ];
        for value in &values {
            assert_exact(RawBson::try_from(value.clone()).unwrap());
        }
        let all: Document =
            values.iter().enumerate().map(|(n, value)| (format!("a/b~{n}"), value.clone())).collect();
        assert_exact(RawDocumentBuf::try_from(&all).unwrap());
        let all: RawArrayBuf = values.iter().map(|value| RawBson::try_from(value.clone()).unwrap()).collect();
        assert_exact(all);
    }

    #[test]
    fn decimals_survive_to_the_last_zero() {
        for text in
            ["0", "-0", "1.0", "1.00", "1E+3", "NaN", "Infinity", "-Infinity", "1E-6176", "9.99E+6144"]
        {
            assert_exact(text.parse::<Decimal128>().unwrap());
        }
        assert_exact("12345678901234567890.12345678901234".parse::<Decimal128>().unwrap());
    }

    #[test]
    fn look_alikes_stay_data_and_keys_keep_their_order() {
        for text in [
            r#"{"$numberLong":"7"}"#,
            r#"{"$date":{"$numberLong":"1"}}"#,
            r#"{"$code":"f","$scope":{"$oid":"x"}}"#,
            r#"{"$undefined":true}"#,
            r#"[{"z":1,"a.b":{"":null},"$where":"x","/":{"~":1}},[],{}]"#,
        ] {
            let value = crate::model::json::parse("payload", text).unwrap();
            let stored = json::to_bson(&value).unwrap();
            let line = line_of(&rawdoc! { "payload": stored.clone() }, &rawdoc! {}).unwrap();
            assert_eq!(line.event["payload"].to_string(), text);
            assert!(line.types.is_empty());
            assert_exact(stored);
        }
    }

    #[test]
    fn the_scope_of_code_survives() {
        let scope = rawdoc! { "real": id(), "data": { "$oid": id().to_hex() }, "n": 5_i64 };
        assert_exact(RawJavaScriptCodeWithScope { code: "f()".into(), scope });
    }

    #[test]
    fn known_fields_are_written_as_the_contract_has_them() {
        let at = DateTime::from_millis(1_764_528_000_120);
        let event = rawdoc! { "_id": "e", "type": "t", "payload": {}, "sequence": 7_i64, "createdAt": at };
        let delivery = rawdoc! {
            "_id": "d", "eventId": "e", "sequence": 7_i64, "attempts": 2, "dueAt": at,
            "errors": [{ "attempt": 1, "at": at, "kind": "failed", "message": "boom" }],
        };
        let line = line_of(&event, &delivery).unwrap();
        let expected = concat!(
            r#"{"version":1,"event":{"id":"e","type":"t","payload":{},"sequence":7,"createdAt":"2025-11-30T18:40:00.120Z"},"#,
            r#""delivery":{"id":"d","eventId":"e","sequence":7,"attempts":2,"dueAt":"2025-11-30T18:40:00.120Z","#,
            r#""errors":[{"attempt":1,"at":"2025-11-30T18:40:00.120Z","kind":"failed","message":"boom"}]}}"#
        );
        assert_eq!(serde_json::to_string(&line).unwrap(), expected);
        assert_eq!(round_trip(&event, &delivery), (event, delivery));
    }

    #[test]
    fn documents_of_other_clients_survive() {
        let event = rawdoc! { "_id": "e", "id": "theirs", "sequence": 7, "createdAt": "2025-11-30T18:40:00Z", "key": RawBson::Null };
        let delivery = rawdoc! {
            "_id": "d", "attempts": 2.0, "sequence": 7.0, "dueAt": 5_i64, "errors": "none", "more": { "id": 1, "_id": id() },
            "at": DateTime::from_millis(5), "updatedAt": RawBson::Null,
        };
        assert_eq!(round_trip(&event, &delivery), (event, delivery));
    }

    #[test]
    fn two_members_of_one_name_are_told_and_not_dropped() {
        let mut payload = RawDocumentBuf::new();
        payload.append(cstr!("a"), 1);
        payload.append(cstr!("a"), 2);
        let error = line_of(&rawdoc! { "payload": payload }, &rawdoc! {}).unwrap_err();
        assert_eq!(
            error.to_string(),
            "/event/payload: has two members of the name \"a\", which JSON cannot tell apart"
        );
    }

    #[test]
    fn types_that_do_not_fit_are_refused() {
        let refusal = |payload: Value, pointer: &str, name: &str| {
            let event = Map::from_iter([("payload".to_owned(), payload)]);
            let types = Types::from([(pointer.to_owned(), name.to_owned())]);
            documents_of(&ExportLine { event, types, ..ExportLine::default() }).unwrap_err().to_string()
        };
        let place = "/event/payload";
        assert_eq!(refusal(Value::from(1), place, "objectId"), "/event/payload: is no objectId");
        assert_eq!(
            refusal(Value::from("x"), place, "string?"),
            "/event/payload: has the type \"string?\", which is none"
        );
        assert_eq!(refusal(Value::from(1_i64 << 40), place, "int"), "/event/payload: is no int");
        assert_eq!(refusal(Value::from((1_i64 << 53) + 1), place, "double"), "/event/payload: is no double");
        assert_eq!(refusal(Value::from(i64::MAX), place, "double"), "/event/payload: is no double");
        let oid = serde_json::json!({"$oid": "5f"});
        assert_eq!(refusal(oid, place, "objectId"), "/event/payload: is no objectId");
        assert_eq!(
            refusal(Value::from(1), "/event/payload/gone", "long"),
            "types: names the type of a place where nothing is"
        );
    }

    #[test]
    fn a_pointer_of_the_deprecated_kind_survives() {
        let pointer = extended(r#"{"$dbPointer":{"$ref":"c","$id":{"$oid":"5f0000000000000000000000"}}}"#);
        assert!(matches!(pointer, Bson::DbPointer(_)));
        assert_exact(RawBson::try_from(pointer).unwrap());
    }
}
