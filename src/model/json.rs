//! JSON as the outbox keeps it: key order, exact 64-bit integers, and a path in every refusal.

use std::fmt::Write as _;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::text::InvalidInput;

/// The deepest nesting of arrays and objects that is accepted; the server refuses documents beyond about 180.
pub const MAX_DEPTH: usize = 100;

/// Reads JSON text without rounding or repairing anything.
///
/// Where a key stands twice, the last value wins. Integers outside the signed 64-bit range, numbers outside the
/// range of a double, lone surrogates, NUL in a field name and nesting beyond [`MAX_DEPTH`] are refused with an
/// error that names the path, which starts with `root`.
pub fn parse(root: &str, text: &str) -> Result<Value, InvalidInput> {
    parse_within(root, text, MAX_DEPTH)
}

/// Reads the same, with arrays and objects nested as deep as `max_depth`.
pub(crate) fn parse_within(root: &str, text: &str, max_depth: usize) -> Result<Value, InvalidInput> {
    let raw: &RawValue =
        serde_json::from_str(text).map_err(|error| InvalidInput::new(root, not_json(&error)))?;
    read(raw, &mut Path { max_depth, ..Path::new(root) }, 0)
}

/// Checks a value that was built in memory, and gives it the form in which every store returns it: integral
/// numbers as integers, the rest untouched. Refuses what [`parse`] refuses.
pub fn normalise(root: &str, value: &Value) -> Result<Value, InvalidInput> {
    normalise_at(value, &mut Path::new(root), 0)
}

/// The double `number` as JSON: an integer where it is integral and fits 64 bits, as other clients store large
/// integers as doubles. `None` for NaN and infinities, which JSON cannot write.
pub fn number_from_f64(number: f64) -> Option<Number> {
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    let is_negative_zero = number == 0.0 && number.is_sign_negative();
    if number.fract() == 0.0 && number.abs() < TWO_TO_63 && !is_negative_zero {
        return Some(Number::from(number as i64));
    }
    Number::from_f64(number)
}

/// The bytes that `value` takes as a BSON element's value (<https://bsonspec.org/spec.html>), the measure of an
/// event's size on every store.
pub fn bson_size(value: &Value) -> usize {
    const DOCUMENT_FRAME: usize = 4 + 1;
    const TYPE_AND_NUL: usize = 2;
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(number) => number.as_i64().map_or(8, |n| if i32::try_from(n).is_ok() { 4 } else { 8 }),
        Value::String(text) => 4 + text.len() + 1,
        Value::Array(items) => {
            let indexed = items.iter().enumerate();
            DOCUMENT_FRAME
                + indexed.map(|(i, item)| TYPE_AND_NUL + decimal_digits(i) + bson_size(item)).sum::<usize>()
        }
        Value::Object(members) => {
            DOCUMENT_FRAME + members.iter().map(|(k, v)| TYPE_AND_NUL + k.len() + bson_size(v)).sum::<usize>()
        }
    }
}

fn decimal_digits(n: usize) -> usize {
    n.checked_ilog10().unwrap_or(0) as usize + 1
}

/// A JSON path under construction, such as `payload.items[3].price`.
struct Path {
    text: String,
    /// How deep arrays and objects may be nested below the root.
    max_depth: usize,
}

impl Path {
    fn new(root: &str) -> Self {
        Path { text: root.to_owned(), max_depth: MAX_DEPTH }
    }

    fn member<T>(&mut self, key: &str, visit: impl FnOnce(&mut Path) -> T) -> T {
        let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
        let step = if plain { format!(".{key}") } else { format!("[{}]", Value::from(key)) };
        self.step(&step, visit)
    }

    fn index<T>(&mut self, index: usize, visit: impl FnOnce(&mut Path) -> T) -> T {
        self.step(&format!("[{index}]"), visit)
    }

    fn step<T>(&mut self, step: &str, visit: impl FnOnce(&mut Path) -> T) -> T {
        let length = self.text.len();
        let _ = self.text.write_str(step);
        let result = visit(self);
        self.text.truncate(length);
        result
    }

    fn refuse<T>(&self, reason: impl Into<String>) -> Result<T, InvalidInput> {
        Err(InvalidInput::new(self.text.clone(), reason))
    }
}

fn not_json(error: &serde_json::Error) -> String {
    format!("is not valid JSON: {error}")
}

fn read(raw: &RawValue, path: &mut Path, depth: usize) -> Result<Value, InvalidInput> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            check_depth(path, depth)?;
            let Members(members) =
                serde_json::from_str(text).or_else(|error| path.refuse(not_json(&error)))?;
            let mut object = Map::with_capacity(members.len());
            for (key, member) in members {
                let value = path.member(&key, |path| {
                    check_field_name(path, &key)?;
                    read(member, path, depth + 1)
                })?;
                object.insert(key, value);
            }
            Ok(Value::Object(object))
        }
        Some(b'[') => {
            check_depth(path, depth)?;
            let items: Vec<&RawValue> =
                serde_json::from_str(text).or_else(|error| path.refuse(not_json(&error)))?;
            let values = items.into_iter().enumerate();
            values
                .map(|(i, item)| path.index(i, |path| read(item, path, depth + 1)))
                .collect::<Result<_, _>>()
                .map(Value::Array)
        }
        Some(b'-' | b'0'..=b'9') => read_number(text, path),
        _ => serde_json::from_str(text).or_else(|error| path.refuse(not_json(&error))),
    }
}

fn read_number(text: &str, path: &Path) -> Result<Value, InvalidInput> {
    if !text.contains(['.', 'e', 'E']) {
        return match text.parse::<i64>() {
            Ok(number) => Ok(Value::from(number)),
            Err(_) => path.refuse(OUTSIDE_64_BITS),
        };
    }
    match text.parse::<f64>().ok().and_then(number_from_f64) {
        Some(number) => Ok(Value::Number(number)),
        None => path.refuse("is a number outside the range of a double"),
    }
}

const OUTSIDE_64_BITS: &str = "is an integer outside the signed 64-bit range; send it as a string";

fn normalise_at(value: &Value, path: &mut Path, depth: usize) -> Result<Value, InvalidInput> {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(value.clone()),
        Value::Number(number) => normalise_number(number, path),
        Value::Array(items) => {
            check_depth(path, depth)?;
            let items = items.iter().enumerate();
            let items = items.map(|(i, item)| path.index(i, |path| normalise_at(item, path, depth + 1)));
            items.collect::<Result<_, _>>().map(Value::Array)
        }
        Value::Object(members) => {
            check_depth(path, depth)?;
            let members = members.iter().map(|(key, member)| {
                path.member(key, |path| {
                    check_field_name(path, key)?;
                    Ok((key.clone(), normalise_at(member, path, depth + 1)?))
                })
            });
            members.collect::<Result<_, _>>().map(Value::Object)
        }
    }
}

fn normalise_number(number: &Number, path: &Path) -> Result<Value, InvalidInput> {
    if number.is_i64() {
        return Ok(Value::Number(number.clone()));
    }
    if number.is_u64() {
        return path.refuse(OUTSIDE_64_BITS);
    }
    match number.as_f64().and_then(number_from_f64) {
        Some(number) => Ok(Value::Number(number)),
        None => path.refuse("is not a finite number"),
    }
}

fn check_depth(path: &Path, depth: usize) -> Result<(), InvalidInput> {
    if depth >= path.max_depth {
        return path.refuse(format!("is nested more than {} levels deep", path.max_depth));
    }
    Ok(())
}

fn check_field_name(path: &Path, key: &str) -> Result<(), InvalidInput> {
    if key.contains('\0') {
        return path.refuse("has a NUL character in its field name");
    }
    Ok(())
}

/// The members of an object in their order, not yet read, duplicates included.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> serde::Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    members.push(entry);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(text: &str) -> String {
        parse("payload", text).unwrap_err().to_string()
    }

    #[test]
    fn keeps_key_order_odd_keys_and_look_alikes() {
        let text = r#"{"z":1,"a.b":{"$oid":"x"},"":[],"$where":null,"a":2}"#;
        assert_eq!(parse("payload", text).unwrap().to_string(), text);
    }

    #[test]
    fn the_last_of_duplicate_keys_wins() {
        assert_eq!(parse("payload", r#"{"a":1,"b":2,"a":3}"#).unwrap().to_string(), r#"{"a":3,"b":2}"#);
    }

    #[test]
    fn integers_are_exact_to_both_ends() {
        let text = "[9223372036854775807,-9223372036854775808,9007199254740993]";
        assert_eq!(parse("payload", text).unwrap().to_string(), text);
    }

    #[test]
    fn integers_outside_64_bits_are_refused_with_their_path() {
        for number in [
            "9223372036854775808",
            "18446744073709551616",
            "-9223372036854775809",
            "123456789012345678901234567890",
        ] {
            let refused = refusal(&format!(r#"{{"items":[0,{{"a b":{number}}}]}}"#));
            assert_eq!(refused, format!(r#"payload.items[1]["a b"]: {OUTSIDE_64_BITS}"#));
        }
    }

    #[test]
    fn doubles_survive_and_integral_ones_lose_their_point() {
        assert_eq!(parse("p", "[0.1,1.0,1e3,-0.0,1e300]").unwrap().to_string(), "[0.1,1,1000,-0.0,1e+300]");
        assert_eq!(refusal("[1e999]"), "payload[0]: is a number outside the range of a double");
    }

    #[test]
    fn lone_surrogates_nul_names_and_deep_nesting_are_refused_with_their_path() {
        assert!(refusal(r#"{"a":["\ud83d"]}"#).starts_with("payload.a[0]: is not valid JSON: "));
        assert!(refusal(r#"{"a":{"\udc00":1}}"#).starts_with("payload.a: is not valid JSON: "));
        assert_eq!(
            refusal(r#"{"a":{"b\u0000":1}}"#),
            r#"payload.a["b\u0000"]: has a NUL character in its field name"#
        );
        let deep = format!("{}{}", "[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1));
        assert!(refusal(&deep).ends_with("is nested more than 100 levels deep"));
        assert!(parse("p", &deep[1..deep.len() - 1]).is_ok());
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in ["", "NaN", "[Infinity]", "{\"a\":1}x", "{'a':1}", "[1,]"] {
            assert!(parse("payload", text).is_err(), "{text}");
        }
    }

    #[test]
    fn normalise_agrees_with_parse() {
        let value = json!({"a": 1.0, "b": [u64::MAX >> 1, -0.5], "c": "x\u{0}y"});
        let normal = normalise("payload", &value).unwrap();
        assert_eq!(normal.to_string(), r#"{"a":1,"b":[9223372036854775807,-0.5],"c":"x\u0000y"}"#);
        assert_eq!(parse("payload", &normal.to_string()).unwrap(), normal);
        assert_eq!(
            normalise("h", &json!([u64::MAX])).unwrap_err().to_string(),
            format!("h[0]: {OUTSIDE_64_BITS}")
        );
        assert!(normalise("h", &json!({"a\u{0}": 1})).is_err());
    }

    #[test]
    fn size_is_that_of_the_bson_document() {
        assert_eq!(bson_size(&json!({})), 5);
        assert_eq!(bson_size(&json!({"a": "b"})), 5 + 1 + 2 + 6);
        assert_eq!(bson_size(&json!([1, 5_000_000_000_i64, null])), 5 + 3 * 3 + 4 + 8);
    }
}
