//! Between JSON values and raw BSON, faithfully in both directions.
//!
//! The document library's own conversions read look-alikes of extended JSON: `{"$oid": "..."}` in a payload would come
//! back as an ObjectId, or not at all. These two functions never interpret: a member is a member.

use mongodb::bson::{Bson, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, raw::CString};
use serde_json::{Map, Value, json};

use crate::model::{InvalidInput, Timestamp, json::number_from_f64};

/// The BSON form of a JSON value: integers as int32 where they fit, as Node services write them, else int64.
///
/// # Errors
/// Refuses what [`NewEvent::checked`](crate::model::NewEvent::checked) refuses; a checked event always passes.
pub(super) fn to_bson(value: &Value) -> Result<RawBson, InvalidInput> {
    Ok(match value {
        Value::Null => RawBson::Null,
        Value::Bool(flag) => RawBson::Boolean(*flag),
        Value::Number(number) => number_to_bson(number)?,
        Value::String(text) => RawBson::String(text.clone()),
        Value::Array(items) => {
            let mut array = RawArrayBuf::new();
            for item in items {
                array.push(to_bson(item)?);
            }
            RawBson::Array(array)
        }
        Value::Object(members) => RawBson::Document(to_document(members)?),
    })
}

/// The BSON document of a JSON object, keys in their order.
pub(super) fn to_document(members: &Map<String, Value>) -> Result<RawDocumentBuf, InvalidInput> {
    let mut document = RawDocumentBuf::new();
    for (key, member) in members {
        let name = CString::try_from(key.as_str())
            .map_err(|_| refuse(key, "has a NUL character in its field name"))?;
        document.append(&name, to_bson(member)?);
    }
    Ok(document)
}

fn number_to_bson(number: &serde_json::Number) -> Result<RawBson, InvalidInput> {
    if let Some(integer) = number.as_i64() {
        return Ok(integer_to_bson(integer));
    }
    let outside = || refuse(&number.to_string(), "is an integer outside the signed 64-bit range");
    if number.is_u64() { Err(outside()) } else { number.as_f64().map(RawBson::Double).ok_or_else(outside) }
}

/// An integer as int32 where it fits, else int64.
pub(super) fn integer_to_bson(integer: i64) -> RawBson {
    i32::try_from(integer).map_or(RawBson::Int64(integer), RawBson::Int32)
}

fn refuse(what: &str, reason: &str) -> InvalidInput {
    InvalidInput { what: what.to_owned(), reason: reason.to_owned() }
}

/// The JSON form of a stored value. What JSON lacks (ObjectId, dates, Decimal128, binary, NaN and the like) stands as
/// relaxed extended JSON.
///
/// # Errors
/// When the bytes are not valid BSON.
pub(super) fn from_bson(value: RawBsonRef<'_>) -> Result<Value, mongodb::bson::error::Error> {
    Ok(match value {
        RawBsonRef::Null => Value::Null,
        RawBsonRef::Boolean(flag) => Value::Bool(flag),
        RawBsonRef::Int32(integer) => Value::from(integer),
        RawBsonRef::Int64(integer) => Value::from(integer),
        RawBsonRef::Double(number) => {
            number_from_f64(number).map_or_else(|| non_finite(number), Value::Number)
        }
        RawBsonRef::String(text) => Value::from(text),
        RawBsonRef::Array(items) => {
            let items = items.into_iter().map(|item| from_bson(item?));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        RawBsonRef::Document(document) => Value::Object(from_document(document)?),
        RawBsonRef::DateTime(date) => date_to_json(Timestamp::from_millis(date.timestamp_millis())),
        other => Bson::try_from(RawBson::from(other))?.into_relaxed_extjson(),
    })
}

fn from_document(document: &RawDocument) -> Result<Map<String, Value>, mongodb::bson::error::Error> {
    let members = document.into_iter().map(|element| {
        let (key, value) = element?;
        Ok((key.as_str().to_owned(), from_bson(value)?))
    });
    members.collect()
}

fn non_finite(number: f64) -> Value {
    let word = match number {
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => "NaN",
    };
    json!({ "$numberDouble": word })
}

/// Relaxed extended JSON writes the years 1970 to 9999 as text, without an empty fraction, and others in milliseconds
/// (<https://github.com/mongodb/specifications/blob/master/source/extended-json/extended-json.md>).
fn date_to_json(date: Timestamp) -> Value {
    const YEAR_10000: i64 = 253_402_300_800_000;
    if (0..YEAR_10000).contains(&date.as_millis()) {
        json!({ "$date": date.to_string().replace(".000Z", "Z") })
    } else {
        json!({ "$date": { "$numberLong": date.as_millis().to_string() } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::{Binary, DateTime, Decimal128, oid::ObjectId, rawdoc, spec::BinarySubtype};

    fn round_trip(text: &str) -> String {
        let value = crate::model::json::parse("payload", text).unwrap();
        let stored = to_bson(&value).unwrap();
        from_bson(stored.as_raw_bson_ref()).unwrap().to_string()
    }

    #[test]
    fn data_that_looks_like_extended_json_stays_data() {
        for text in [
            r#"{"$oid":"5f0000000000000000000000"}"#,
            r#"{"$date":{"$numberLong":"1"}}"#,
            r#"{"$numberLong":"7"}"#,
            r#"{"$binary":{"base64":"AA==","subType":"00"}}"#,
            r#"{"$oid":1,"extra":{"$undefined":true}}"#,
            r#"[{"z":1,"a.b":{"":null},"$where":"x"},[],{}]"#,
        ] {
            assert_eq!(round_trip(text), text);
        }
    }

    #[test]
    fn numbers_are_exact() {
        let text = "[9223372036854775807,-9223372036854775808,9007199254740993,2147483648,0.1,1e+300,-0.0]";
        assert_eq!(round_trip(text), text);
        assert!(matches!(to_bson(&json!(7)).unwrap(), RawBson::Int32(7)));
        assert!(matches!(to_bson(&json!(5_000_000_000_i64)).unwrap(), RawBson::Int64(_)));
    }

    #[test]
    fn foreign_types_stand_as_relaxed_extended_json() {
        let stored = rawdoc! {
            "oid": ObjectId::from_bytes([1; 12]),
            "date": DateTime::from_millis(1_764_528_000_120),
            "second": DateTime::from_millis(0),
            "far": DateTime::from_millis(253_402_300_800_000),
            "decimal": "12345678901234567890.123456789".parse::<Decimal128>().unwrap(),
            "binary": Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2] },
            "nan": f64::NAN,
            "infinite": f64::NEG_INFINITY,
            "whole": 9_007_199_254_740_994.0,
        };
        let shown = Value::Object(from_document(&stored).unwrap()).to_string();
        let expected = concat!(
            r#"{"oid":{"$oid":"010101010101010101010101"},"date":{"$date":"2025-11-30T18:40:00.120Z"},"#,
            r#""second":{"$date":"1970-01-01T00:00:00Z"},"far":{"$date":{"$numberLong":"253402300800000"}},"#,
            r#""decimal":{"$numberDecimal":"12345678901234567890.123456789"},"#,
            r#""binary":{"$binary":{"base64":"AQI=","subType":"00"}},"nan":{"$numberDouble":"NaN"},"#,
            r#""infinite":{"$numberDouble":"-Infinity"},"whole":9007199254740994}"#
        );
        assert_eq!(shown, expected);
    }
}
