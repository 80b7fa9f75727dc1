//! JSON comes out as it went in.

use relayctl::model::{NewEvent, json};
use serde_json::{Value, json};

use crate::fixture::{Fixture, event};

conformance![
    odd_keys_and_look_alikes_are_data,
    members_keep_their_order,
    integers_are_exact_to_both_ends,
    doubles_are_exact_and_integral_ones_are_integers,
    every_sort_of_value_round_trips,
    metadata_of_null_are_none,
    text_is_kept_to_the_last_code_point,
    a_repeat_of_an_odd_payload_is_the_same_event,
];

/// Appends the value as payload, header and metadata, and expects each to come back as the same text.
async fn assert_round_trip(fixture: &Fixture, value: Value) {
    let mut event = NewEvent { payload: value.clone(), metadata: Some(value.clone()), ..event() };
    event.headers.insert("header".into(), value.clone());
    let appended = fixture.append(&[event]).await.remove(0);
    let stored = fixture.event(&appended.id).await;
    assert_eq!(stored.payload.to_string(), value.to_string());
    assert_eq!(stored.metadata.unwrap_or_default().to_string(), value.to_string());
    assert_eq!(stored.headers.to_string(), json!({"header": value}).to_string());
}

fn parsed(text: &str) -> Value {
    json::parse("payload", text).unwrap()
}

const ODD_KEYS: &str = r#"{"a.b":1,"$where":"x","":{"":[]},"$":0,".":0,"$set":{"a.$[].b":1},"_id":5,
    "oid":{"$oid":"x"},"realOid":{"$oid":"65a5f0c8d3b1f2a4e6c7b8a9"},"date":{"$date":"2026-01-01T00:00:00Z"},
    "long":{"$numberLong":"5"},"mixed":{"$numberLong":"5","b":1},"binary":{"$binary":{"base64":"","subType":"00"}},
    "code":{"$code":"f()"},"symbol":{"$symbol":"s"},"regex":{"$regex":".*","$options":"i"},"undefined":{"$undefined":true},
    "decimal":{"$numberDecimal":"NaN"},"min":{"$minKey":1},"ref":{"$ref":"c","$id":1},"__proto__":null}"#;

async fn odd_keys_and_look_alikes_are_data(fixture: &Fixture) {
    assert_round_trip(fixture, parsed(ODD_KEYS)).await;
    assert_round_trip(fixture, json!({"$oid": "65a5f0c8d3b1f2a4e6c7b8a9"})).await;
    assert_round_trip(fixture, json!({"$date": {"$numberLong": "0"}})).await;
}

async fn members_keep_their_order(fixture: &Fixture) {
    assert_round_trip(fixture, parsed(r#"{"z":{"y":1,"x":2,"10":3,"9":4},"a":[{"c":1,"b":2}],"0":null}"#))
        .await;
}

async fn integers_are_exact_to_both_ends(fixture: &Fixture) {
    let text =
        "[9223372036854775807,-9223372036854775808,9007199254740993,2147483647,2147483648,-2147483649,0,-1]";
    assert_round_trip(fixture, parsed(text)).await;
}

async fn doubles_are_exact_and_integral_ones_are_integers(fixture: &Fixture) {
    assert_round_trip(fixture, parsed("[0.1,-0.0,1e300,5e-324,1.7976931348623157e308,123456789.125]")).await;
    let appended = fixture.append(&[NewEvent { payload: json!([1.0, -3e3]), ..event() }]).await.remove(0);
    assert_eq!(fixture.event(&appended.id).await.payload.to_string(), "[1,-3000]");
}

async fn every_sort_of_value_round_trips(fixture: &Fixture) {
    for text in ["null", "true", "0", r#""text""#, "[]", "{}", "[[],{}]", r#"{"a":null}"#, "[null]"] {
        assert_round_trip(fixture, parsed(text)).await;
    }
}

async fn metadata_of_null_are_none(fixture: &Fixture) {
    let null = NewEvent { metadata: Some(Value::Null), ..event() };
    let appended = fixture.append(&[null]).await.remove(0);
    assert_eq!(fixture.event(&appended.id).await.metadata, None);
}

async fn text_is_kept_to_the_last_code_point(fixture: &Fixture) {
    let texts = [
        "",
        "\0",
        "a\0b",
        "\u{1b}[31m",
        "\u{FEFF}",
        "日本語",
        "e\u{301}",
        "\u{1F469}\u{200D}\u{1F680}",
        "\u{10FFFF}",
    ];
    assert_round_trip(fixture, json!(texts)).await;
    assert_round_trip(fixture, json!({"ключ": 1, "e\u{301}": 2, "\u{e9}": 3})).await;
}

async fn a_repeat_of_an_odd_payload_is_the_same_event(fixture: &Fixture) {
    let odd = NewEvent { payload: parsed(ODD_KEYS), ..event().id("e-1") };
    assert!(fixture.append(std::slice::from_ref(&odd)).await[0].created);
    assert!(!fixture.append(std::slice::from_ref(&odd)).await[0].created);
    let integral = |payload| NewEvent { payload, ..event().id("e-2") };
    assert!(fixture.append(&[integral(json!(1.0))]).await[0].created);
    assert!(!fixture.append(&[integral(json!(1))]).await[0].created);
}
