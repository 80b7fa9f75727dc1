//! Documents that other and older clients wrote: claimed, shown, and unharmed by every write.

use futures_util::TryStreamExt as _;
use mongodb::bson::{Binary, Bson, DateTime, Decimal128, Document, doc, oid::ObjectId, spec::BinarySubtype};
use relayctl::model::{
    DeliveryId, EventId, Failure, FailureKind, Filter, ListQuery, NewEvent, Pause, Status, Timestamp,
};
use relayctl::store::{Fenced, Outcome, Repair, RepairOutcome, Store};
use serde_json::json;

use crate::fixture::{Fixture, NOW, event, ids, later, minimal};

/// Claims and fails a delivery, buries it, requeues it, and completes it.
async fn put_through_every_write(fixture: &Fixture, id: &str) {
    let store: &dyn Store = &fixture.store;
    let failure = || Failure::new(FailureKind::Failed, "$boom");
    let take = async |now| {
        let claimed = fixture.claim(1, now).await;
        assert_eq!(ids(&claimed), [id]);
        claimed[0].lease.clone()
    };
    let outcome = Outcome::Reschedule { available_at: NOW, failure: failure() };
    assert_eq!(store.settle_one(&take(NOW).await, outcome, NOW).await.unwrap(), Fenced::Applied);
    assert_eq!(store.settle_one(&take(NOW).await, Outcome::Release, NOW).await.unwrap(), Fenced::Applied);
    let extend = Outcome::ExtendLease { expires_at: later(60) };
    let lease = take(NOW).await;
    assert_eq!(store.settle_one(&lease, extend, NOW).await.unwrap(), Fenced::Applied);
    assert_eq!(store.recover(&[], later(60)).await.unwrap(), 1);
    let outcome = Outcome::Bury { failure: failure() };
    assert_eq!(store.settle_one(&take(later(60)).await, outcome, NOW).await.unwrap(), Fenced::Applied);
    let requeue = Repair::Requeue { available_at: NOW };
    let bury = Repair::Bury { reason: "$because".into() };
    let id = DeliveryId::from(id);
    assert_eq!(store.repair(&id, &requeue, NOW).await.unwrap(), RepairOutcome::Changed);
    assert_eq!(store.repair(&id, &bury, NOW).await.unwrap(), RepairOutcome::Changed);
    assert_eq!(store.repair(&id, &requeue, NOW).await.unwrap(), RepairOutcome::Changed);
    assert_eq!(store.settle_one(&take(NOW).await, Outcome::Complete, NOW).await.unwrap(), Fenced::Applied);
}

#[tokio::test]
async fn missing_optional_fields_are_no_hindrance() {
    let fixture = Fixture::new().await;
    fixture.insert(minimal("d")).await;
    let shown = fixture.store.get(&DeliveryId::from("d")).await.unwrap().unwrap();
    assert_eq!((shown.attempts, shown.requeues, shown.available_at, shown.created_at), (0, 0, NOW, NOW));
    put_through_every_write(&fixture, "d").await;
    let shown = fixture.store.get(&DeliveryId::from("d")).await.unwrap().unwrap();
    let kinds: Vec<_> = shown.errors.iter().map(|error| error.kind.as_str()).collect();
    assert_eq!(kinds, ["failed", "crashed", "failed", "buried"]);
    assert_eq!((shown.status, shown.requeues, shown.attempts), (Status::Completed, 2, 1));
    assert_eq!(shown.last_error.as_deref(), Some("$because"));
    fixture.end().await;
}

#[tokio::test]
async fn nulls_mean_absent() {
    let fixture = Fixture::new().await;
    let mut document = minimal("d");
    for field in [
        "key",
        "sequence",
        "attempts",
        "maxAttempts",
        "availableAt",
        "leaseExpiresAt",
        "leaseToken",
        "leaseOwner",
        "createdAt",
        "updatedAt",
        "completedAt",
        "lastError",
        "errors",
        "requeues",
    ] {
        document.insert(field, Bson::Null);
    }
    fixture.insert(document).await;
    put_through_every_write(&fixture, "d").await;
    let shown = fixture.store.get(&DeliveryId::from("d")).await.unwrap().unwrap();
    assert_eq!((shown.status, shown.errors.len(), shown.requeues), (Status::Completed, 4, 2));
    fixture.end().await;
}

#[tokio::test]
async fn unknown_fields_survive_every_write() {
    let fixture = Fixture::new().await;
    let foreign = doc! {
        "shard": 7_i64,
        "tenant": { "$where": "not a query", "a.b": [1.5, null, { "": true }] },
        "price": "0.10".parse::<Decimal128>().unwrap(),
        "seen": DateTime::from_millis(5),
    };
    let mut document = minimal("d");
    document.extend(foreign.clone());
    fixture.insert(document).await;
    put_through_every_write(&fixture, "d").await;
    let stored = fixture.delivery("d").await;
    for (field, value) in foreign {
        assert_eq!(stored.get(&field), Some(&value), "{field}");
    }
    fixture.end().await;
}

#[tokio::test]
async fn numbers_of_every_type_are_read_and_pinned() {
    let fixture = Fixture::new().await;
    for (id, attempts) in [("d1", Bson::Int32(2)), ("d2", Bson::Int64(2)), ("d3", Bson::Double(2.0))] {
        let mut document = minimal(id);
        document.extend(
            doc! { "attempts": attempts, "maxAttempts": 9.0, "key": id, "sequence": 3.0, "requeues": 1_i64 },
        );
        fixture.insert(document).await;
    }
    let claimed = fixture.claim(10, NOW).await;
    assert_eq!(ids(&claimed), ["d1", "d2", "d3"]);
    for claimed in &claimed {
        let delivery = &claimed.delivery;
        assert_eq!((delivery.attempts, delivery.max_attempts, delivery.sequence), (3, Some(9), Some(3)));
        assert_eq!(fixture.store.settle_one_release(&claimed.lease).await, Fenced::Applied);
    }
    fixture.end().await;
}

trait ReleaseNow {
    async fn settle_one_release(&self, lease: &relayctl::model::Lease) -> Fenced;
}

impl ReleaseNow for relayctl::store::mongo::MongoStore {
    async fn settle_one_release(&self, lease: &relayctl::model::Lease) -> Fenced {
        let store: &dyn Store = self;
        store.settle_one(lease, Outcome::Release, NOW).await.unwrap()
    }
}

#[tokio::test]
async fn payloads_of_other_clients_are_shown_in_full() {
    let fixture = Fixture::new().await;
    let payload = doc! {
        "id": ObjectId::from_bytes([2; 12]),
        "at": DateTime::from_millis(1_764_528_000_120),
        "price": "12345678901234567890.123456789".parse::<Decimal128>().unwrap(),
        "bytes": Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2] },
        "a.b": 1, "$where": "x", "": null, "whole": 3.0, "large": 9_007_199_254_740_993_i64,
    };
    fixture.raw("events").insert_one(doc! { "_id": "e", "type": "t", "payload": payload }).await.unwrap();
    let events = fixture.store.events(&[EventId::from("e")]).await.unwrap();
    let expected = concat!(
        r#"{"id":{"$oid":"020202020202020202020202"},"at":{"$date":"2025-11-30T18:40:00.120Z"},"#,
        r#""price":{"$numberDecimal":"12345678901234567890.123456789"},"#,
        r#""bytes":{"$binary":{"base64":"AQI=","subType":"00"}},"a.b":1,"$where":"x","":null,"#,
        r#""whole":3,"large":9007199254740993}"#
    );
    assert_eq!(events[0].payload.to_string(), expected);
    assert_eq!(events[0].headers, json!({}));
    fixture.end().await;
}

#[tokio::test]
async fn look_alikes_of_extended_json_are_stored_as_data() {
    let fixture = Fixture::new().await;
    let payload =
        json!({ "$oid": "5f0000000000000000000000", "n": { "$numberLong": "7" }, "d": [{ "$date": 0 }] });
    let appended =
        fixture.store.append(&[NewEvent::new("t", payload.clone()).handler("h").id("e")], NOW).await.unwrap();
    let stored = fixture.raw("events").clone_with_type::<mongodb::bson::RawDocumentBuf>();
    let stored = stored.find_one(doc! { "_id": "e" }).await.unwrap().unwrap();
    let inner = stored.get_document("payload").unwrap();
    assert_eq!(inner.get_str("$oid").unwrap(), "5f0000000000000000000000");
    let events = fixture.store.events(&[appended[0].id.clone()]).await.unwrap();
    assert_eq!(events[0].payload.to_string(), payload.to_string());
    fixture.end().await;
}

#[tokio::test]
async fn a_document_that_makes_no_sense_spoils_neither_claim_nor_listing() {
    let fixture = Fixture::new().await;
    for (id, field, value) in [
        ("a", "eventId", Bson::from(5)),
        ("b", "key", Bson::from(doc! { "$ne": 1 })),
        ("c", "createdAt", Bson::from("yesterday")),
    ] {
        let mut document = minimal(id);
        document.insert(field, value);
        fixture.insert(document).await;
    }
    fixture.insert(Document::from_iter(minimal("z"))).await;
    assert_eq!(ids(&fixture.claim(10, NOW).await), ["z"]);
    let mut listed = Vec::new();
    let mut errors = Vec::new();
    let mut listing = fixture.store.list(&ListQuery::default());
    while let Some(item) = futures_util::StreamExt::next(&mut listing).await {
        match item {
            Ok(delivery) => listed.push(delivery.id.to_string()),
            Err(error) => errors.push(error.to_string()),
        }
    }
    drop(listing);
    assert_eq!(listed, ["z"]);
    errors.sort();
    assert_eq!(
        errors,
        [
            "delivery a cannot be understood: `eventId` is not a string",
            "delivery b cannot be understood: `key` is not a string",
            "delivery c cannot be understood: `createdAt` is not a date",
        ]
    );
    fixture.end().await;
}

#[tokio::test]
async fn an_error_of_another_client_is_shown_and_a_history_of_another_shape_replaced() {
    let fixture = Fixture::new().await;
    let mut document = minimal("d");
    document.extend(doc! { "lastError": { "message": "boom", "stack": "..." }, "errors": "none" });
    fixture.insert(document).await;
    let shown = fixture.store.get(&DeliveryId::from("d")).await.unwrap().unwrap();
    assert_eq!(shown.last_error.as_deref(), Some("boom"));
    put_through_every_write(&fixture, "d").await;
    assert_eq!(fixture.delivery("d").await.get_array("errors").unwrap().len(), 4);
    fixture.end().await;
}

#[tokio::test]
async fn parked_deliveries_of_another_client_come_back() {
    let fixture = Fixture::new().await;
    for (id, sequence) in [("d1", 1), ("d2", 2)] {
        let mut document = minimal(id);
        document.extend(doc! { "key": "k", "sequence": sequence, "lane": "parked" });
        fixture.insert(document).await;
    }
    assert_eq!(ids(&fixture.claim(10, NOW).await), ["d1"]);
    assert_eq!(fixture.delivery("d2").await.get_str("lane").unwrap(), "parked");
    fixture.end().await;
}

#[tokio::test]
async fn stored_documents_have_the_published_fields() {
    let fixture = Fixture::new().await;
    let mut new = event().id("e").key("k");
    new.correlation_id = Some("c".into());
    new.max_attempts = Some(3);
    let ids = fixture.append(&[new]).await;
    let date = DateTime::from_millis(NOW.as_millis());
    let stored = fixture.delivery(&ids[0]).await;
    assert_eq!(
        stored,
        doc! {
            "_id": &ids[0], "eventId": "e", "eventType": "order.placed.v1", "handler": "h", "key": "k", "sequence": 1_i64,
            "status": "pending", "lane": "ready", "attempts": 0, "availableAt": date, "dueAt": date, "createdAt": date,
            "updatedAt": date, "maxAttempts": 3,
        }
    );
    let stored = fixture.raw("events").find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(
        stored,
        doc! {
            "_id": "e", "type": "order.placed.v1", "payload": { "orderId": "o-1" }, "headers": {}, "key": "k",
            "sequence": 1_i64, "correlationId": "c", "createdAt": date,
        }
    );
    let stored = fixture.raw("key_sequences").find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(stored, doc! { "_id": "k", "value": 1_i64 });
    fixture.end().await;
}

#[tokio::test]
async fn a_counter_stored_as_double_or_int32_goes_on_as_int64() {
    let fixture = Fixture::new().await;
    let counters =
        [("double", Bson::Double(9_007_199_254_740_992.0)), ("int", Bson::Int32(4)), ("null", Bson::Null)];
    for (key, value) in counters {
        fixture.raw("key_sequences").insert_one(doc! { "_id": key, "value": value }).await.unwrap();
        fixture.append(&[event().key(key), event().key(key)]).await;
    }
    let keys: Vec<_> = fixture.store.key_sequences(None).try_collect().await.unwrap();
    let values: Vec<_> = keys.iter().map(|counter| (counter.key.as_str(), counter.value)).collect();
    assert_eq!(values, [("double", 9_007_199_254_740_994), ("int", 6), ("null", 2)]);
    fixture.end().await;
}

#[tokio::test]
async fn what_a_user_gives_reaches_the_server_as_a_value() {
    let fixture = Fixture::new().await;
    let (client, sent) = crate::fixture::spied_client().await;
    let options = relayctl::store::mongo::MongoOptions {
        database: Some(fixture.database.clone()),
        ..Default::default()
    };
    let store = relayctl::store::mongo::MongoStore::new(&client, options).unwrap();
    let hostile = r#"{"$ne": null}"#;
    let filter = Filter {
        handler: Some(hostile.into()),
        key: Some(r#"{"$where": "true"}"#.into()),
        error: Some("$$ROOT".into()),
        event_type: Some(".*".parse().unwrap()),
        ..Filter::default()
    };
    let listed: Vec<_> = store.list(&ListQuery { filter, ..Default::default() }).try_collect().await.unwrap();
    assert_eq!(listed, []);
    let id = DeliveryId::from(r#"{"$gt":""}"#);
    assert_eq!(store.get(&id).await.unwrap(), None);
    assert_eq!(
        store.repair(&id, &Repair::Requeue { available_at: NOW }, NOW).await.unwrap(),
        RepairOutcome::Missing
    );
    let sent = std::mem::take(&mut *sent.lock().unwrap());
    for value in [
        doc! { "handler": { "$eq": hostile } },
        doc! { "key": { "$eq": r#"{"$where": "true"}"# } },
        doc! { "$literal": "$$root" },
        doc! { "eventType": { "$gte": ".", "$lt": "/" } },
        doc! { "_id": r#"{"$gt":""}"# },
    ] {
        assert!(sent.iter().any(|command| holds(command, &value)), "{value} was not sent: {sent:?}");
    }
    store.close().await;
    fixture.end().await;
}

/// Whether a document with exactly these members stands anywhere in `document`.
fn holds(document: &Document, sought: &Document) -> bool {
    let inside = |value: &Bson| match value {
        Bson::Document(inner) => holds(inner, sought),
        Bson::Array(items) => {
            items.iter().any(|item| item.as_document().is_some_and(|inner| holds(inner, sought)))
        }
        _ => false,
    };
    document == sought || document.values().any(inside)
}

// ---- what holds handlers up ----------------------------------------------------------------------------------------

#[tokio::test]
async fn a_pause_by_another_hand_holds_as_far_as_it_can_be_understood() {
    let fixture = Fixture::new().await;
    let controls = fixture.raw("controls");
    let at = |seconds: u64| DateTime::from_millis(later(seconds).as_millis());
    controls
        .insert_many([
            doc! { "_id": "a", "pausedAt": at(0), "pausedUntil": null, "ticket": 7 },
            doc! { "_id": "b", "pausedAt": "yesterday", "pausedUntil": "tomorrow", "by": 5, "reason": { "x": 1 } },
            doc! { "_id": "c", "pausedAt": at(0), "pausedUntil": at(0) },
            doc! { "_id": "d", "pausedAt": null },
            doc! { "_id": "e", "note": "never paused" },
            doc! { "_id": 7, "pausedAt": at(0) },
            doc! { "_id": { "handler": "a", "worker": 3 }, "openedAt": at(0) },
        ])
        .await
        .unwrap();
    let pauses = fixture.store.pauses(NOW).await.unwrap();
    let found: Vec<_> =
        pauses.iter().map(|one| (one.handler.as_str(), one.paused_at, one.paused_until)).collect();
    assert_eq!(found, [("a", NOW, None), ("b", Timestamp::EPOCH, None)]);
    assert_eq!(fixture.store.tripped_breakers(NOW).await.unwrap(), []);

    let again = Pause { paused_at: later(5), paused_until: Some(later(9)), ..pauses[0].clone() };
    assert_eq!(fixture.store.pause(&again).await.unwrap(), Some(pauses[0].clone()));
    let stored = controls.find_one(doc! { "_id": "a" }).await.unwrap().unwrap();
    assert_eq!(stored, doc! { "_id": "a", "pausedAt": at(0), "pausedUntil": at(9), "ticket": 7, "by": "" });
    fixture.end().await;
}
