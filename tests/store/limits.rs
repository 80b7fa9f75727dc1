//! What an append refuses, and that it says where.

use relayctl::model::{MAX_EVENT_BYTES, MAX_NAME_BYTES, NewEvent};
use relayctl::store::ErrorKind;
use serde_json::{Value, json};

use crate::fixture::{Fixture, HANDLER, event, keyed, refused};

conformance![
    names_of_512_bytes_are_kept_whole,
    longer_empty_and_nul_names_are_refused_by_field,
    an_event_needs_a_handler_and_an_attempt,
    fifteen_mebibytes_are_kept_and_more_is_refused,
    integers_outside_64_bits_are_refused_with_their_path,
    a_nul_in_a_field_name_is_refused_with_its_path,
    too_deep_nesting_is_refused,
];

async fn names_of_512_bytes_are_kept_whole(fixture: &Fixture) {
    let long = "é".repeat(MAX_NAME_BYTES / 2);
    let event = NewEvent { handlers: vec![long.clone()], ..NewEvent::new(long.clone(), json!(1)) };
    let appended = fixture.append(&[event.id(long.clone()).key(long.clone())]).await.remove(0);
    assert_eq!(appended.id.as_str(), long);
    let delivery = fixture.get(&appended.deliveries[0].id).await;
    assert_eq!((&delivery.event_type, &delivery.handler, delivery.key.as_ref()), (&long, &long, Some(&long)));
    assert_eq!(fixture.counter(&long).await, Some(1));
}

async fn longer_empty_and_nul_names_are_refused_by_field(fixture: &Fixture) {
    let too_long = "k".repeat(MAX_NAME_BYTES + 1);
    for bad in [too_long.as_str(), "", "a\0b"] {
        let of_type = NewEvent { event_type: bad.into(), ..event() };
        let refusals = [
            ("type", of_type),
            ("id", event().id(bad)),
            ("key", event().key(bad)),
            ("handler", event().handler(bad)),
            ("correlationId", NewEvent { correlation_id: Some(bad.into()), ..event() }),
            ("causationId", NewEvent { causation_id: Some(bad.into()), ..event() }),
            ("aggregateId", NewEvent { aggregate_id: Some(bad.into()), ..event() }),
        ];
        for (field, refused) in refusals {
            assert_refused(fixture, refused, field).await;
        }
    }
}

/// The event is refused with an error that begins with `place`, and takes the rest of its batch with it.
async fn assert_refused(fixture: &Fixture, event: NewEvent, place: &str) {
    let batch = [keyed("counted"), event];
    let error = refused(fixture.store.append(&batch, fixture.now()).await);
    assert_eq!(error.kind(), ErrorKind::Invalid, "{place}: {error}");
    assert!(error.to_string().starts_with(&format!("{place}: ")), "{place}: {error}");
    assert_eq!(fixture.all().await, []);
    assert_eq!(fixture.counter("counted").await, None);
}

async fn an_event_needs_a_handler_and_an_attempt(fixture: &Fixture) {
    assert_refused(fixture, NewEvent { handlers: Vec::new(), ..event() }, "handlers").await;
    assert_refused(fixture, NewEvent { max_attempts: Some(0), ..event() }, "maxAttempts").await;
}

async fn fifteen_mebibytes_are_kept_and_more_is_refused(fixture: &Fixture) {
    let of_size = |bytes: usize| NewEvent::new("t", json!("x".repeat(bytes))).handler(HANDLER);
    assert_refused(fixture, of_size(MAX_EVENT_BYTES), "event").await;
    let large = of_size(MAX_EVENT_BYTES - 512);
    let appended = fixture.append(std::slice::from_ref(&large)).await.remove(0);
    assert!(fixture.event(&appended.id).await.payload == large.payload, "the payload is not the same");
}

async fn integers_outside_64_bits_are_refused_with_their_path(fixture: &Fixture) {
    let too_big = json!({"items": [0, {"a b": u64::MAX}]});
    let place = r#".items[1]["a b"]"#;
    for (root, event) in in_each_root(&too_big) {
        assert_refused(fixture, event, &format!("{root}{place}")).await;
    }
}

async fn a_nul_in_a_field_name_is_refused_with_its_path(fixture: &Fixture) {
    for (root, event) in in_each_root(&json!({"a": {"b\0": 1}})) {
        assert_refused(fixture, event, &format!(r#"{root}.a["b\u0000"]"#)).await;
    }
}

async fn too_deep_nesting_is_refused(fixture: &Fixture) {
    let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let error =
        refused(fixture.store.append(&[NewEvent { payload: nested(101), ..event() }], fixture.now()).await);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let deep = NewEvent { payload: nested(100), ..event() };
    let appended = fixture.append(std::slice::from_ref(&deep)).await.remove(0);
    assert_eq!(fixture.event(&appended.id).await.payload, deep.payload);
}

/// The value as payload, as headers, and as metadata.
fn in_each_root(value: &Value) -> [(&'static str, NewEvent); 3] {
    [
        ("payload", NewEvent { payload: value.clone(), ..event() }),
        ("headers", NewEvent { headers: value.as_object().unwrap().clone(), ..event() }),
        ("metadata", NewEvent { metadata: Some(value.clone()), ..event() }),
    ]
}
