//! Exports and imports of what only MongoDB has: documents of other clients, races between servers' clients, long walks.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, TryStreamExt as _};
use mongodb::Collection;
use mongodb::bson::{
    Binary, Bson, DateTime, Decimal128, Document, RawDocumentBuf, doc, oid::ObjectId, rawdoc,
    spec::BinarySubtype,
};
use relayctl::model::{ExportLine, Filter, NewEvent, Timestamp, parse_export_line};
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{BackfillRequest, ErrorKind, Imported, Store};
use serde_json::json;

use crate::fixture::{Fixture, NOW, event, later, minimal, uri};

/// The store of another prefix in the same database, reached by a client of its own.
async fn elsewhere(fixture: &Fixture) -> MongoStore {
    let options = MongoOptions {
        database: Some(fixture.database.clone()),
        prefix: "elsewhere_".to_owned(),
        ..MongoOptions::default()
    };
    let store = MongoStore::connect(&uri(), options).await.unwrap();
    store.setup().await.unwrap();
    store
}

async fn export(store: &MongoStore) -> Vec<ExportLine> {
    store.export(&Filter::default(), later(600)).map(|line| line.unwrap()).collect().await
}

/// Through text, as through a file.
async fn export_and_import(from: &MongoStore, to: &MongoStore) -> Vec<Imported> {
    let lines = export(from).await;
    let read = lines.iter().map(|line| parse_export_line(&serde_json::to_string(line).unwrap()).unwrap());
    to.import(&read.collect::<Vec<_>>(), false).await.unwrap()
}

/// The documents of a collection by id, to the last byte.
async fn documents(store: &MongoStore, collection: &str) -> BTreeMap<String, Vec<u8>> {
    let collection: Collection<RawDocumentBuf> = store.database().collection(collection);
    let all: Vec<RawDocumentBuf> = collection.find(doc! {}).await.unwrap().try_collect().await.unwrap();
    all.into_iter()
        .map(|document| (document.get_str("_id").unwrap().to_owned(), document.into_bytes()))
        .collect()
}

async fn assert_reproduced(from: &MongoStore, to: &MongoStore) {
    for collection in ["events", "deliveries", "key_sequences"] {
        let (ours, theirs) = (format!("relaybus_{collection}"), format!("elsewhere_{collection}"));
        let before = documents(from, &ours).await;
        assert!(!before.is_empty(), "{collection}");
        assert_eq!(documents(to, &theirs).await, before, "{collection}");
    }
}

/// What JSON has no type for, what only looks like it, and numbers of every width.
fn treasure() -> Document {
    let id = ObjectId::from_bytes([7; 12]);
    doc! {
        "zeta first": 1,
        "real": { "id": id, "at": DateTime::from_millis(1_764_528_000_120), "long": 5_i64, "double": 5.0 },
        "data": { "id": { "$oid": id.to_hex() }, "at": { "$date": "2025-11-30T18:40:00.120Z" } },
        "more data": [{ "$numberLong": "5" }, { "$numberDecimal": "1.0" }, { "$binary": { "base64": "AA==", "subType": "00" } }],
        "price": "12345678901234567890.1234567890".parse::<Decimal128>().unwrap(),
        "bytes": Binary { subtype: BinarySubtype::Generic, bytes: (0..=255).collect() },
        "large": 9_007_199_254_740_993_i64,
        "a.b": { "$where": { "": [null, f64::NAN, -0.0, Bson::MaxKey, Bson::Undefined] } },
        "alpha last": "2026-03-01T09:30:00Z",
    }
}

#[tokio::test]
async fn a_round_trip_reproduces_documents_of_every_client_to_the_last_byte() {
    let fixture = Fixture::new().await;
    let rich = NewEvent { metadata: Some(json!({"$oid": "x"})), max_attempts: Some(3), ..event().key("k") };
    fixture.append(&[rich, event().key("k"), event()]).await;
    fixture.claim(1, NOW).await;
    fixture.store.recover(&[], later(60)).await.unwrap();
    let at = DateTime::from_millis(NOW.as_millis());
    let event = doc! {
        "_id": "theirs", "type": "t", "payload": treasure(), "headers": { "id": ObjectId::new() }, "id": "no _id",
        "key": "k", "sequence": 7.0, "metadata": [treasure()], "createdAt": at, "tenant": { "id": 9_i64 }, "nothing": null,
    };
    fixture.raw("events").insert_one(event).await.unwrap();
    let mut delivery = minimal("of another client");
    delivery.extend(doc! {
        "eventId": "theirs", "key": "k", "sequence": 7.0, "attempts": 2.0, "updatedAt": at, "lastError": { "code": 5_i64 },
        "errors": [{ "attempt": 1_i64, "at": at, "kind": "odd", "message": "m", "stack": ["a"] }], "lease": ObjectId::new(),
    });
    fixture.insert(delivery).await;
    let event = doc! { "_id": "event of bare", "payload": Decimal128::from_bytes([0; 16]) };
    fixture.raw("events").insert_one(event).await.unwrap();
    fixture.insert(minimal("bare")).await;
    fixture
        .raw("key_sequences")
        .update_one(doc! { "_id": "k" }, doc! { "$set": { "value": 7_i64 } })
        .await
        .unwrap();

    let other = elsewhere(&fixture).await;
    let imported = export_and_import(&fixture.store, &other).await;
    assert_eq!(imported, vec![Imported::Created { event: true }; 5]);
    assert_reproduced(&fixture.store, &other).await;
    assert_eq!(export_and_import(&fixture.store, &other).await, vec![Imported::Existing; 5]);
    assert_reproduced(&fixture.store, &other).await;
    other.close().await;
    fixture.end().await;
}

#[tokio::test]
async fn what_another_type_stands_for_is_another_content() {
    let fixture = Fixture::new().await;
    let other = elsewhere(&fixture).await;
    fixture.append(&[event().id("e")]).await;
    export_and_import(&fixture.store, &other).await;
    let id = ObjectId::new();
    for payload in [doc! { "id": id }, doc! { "id": { "$oid": id.to_hex() } }] {
        fixture.raw("events").update_one(doc! {}, doc! { "$set": { "payload": payload } }).await.unwrap();
        let reason = "event e is there already with another payload".to_owned();
        assert_eq!(export_and_import(&fixture.store, &other).await, [Imported::Refused { reason }]);
        other.database().collection::<Document>("elsewhere_events").delete_many(doc! {}).await.unwrap();
        other.database().collection::<Document>("elsewhere_deliveries").delete_many(doc! {}).await.unwrap();
        assert_eq!(export_and_import(&fixture.store, &other).await, [Imported::Created { event: true }]);
    }
    other.close().await;
    fixture.end().await;
}

#[tokio::test]
async fn what_cannot_be_exported_is_told_and_hides_nothing() {
    let fixture = Fixture::new().await;
    fixture.append(&[event().id("before").key("a"), event().id("behind").key("z")]).await;
    fixture.insert(minimal("orphan")).await;
    let mut odd = minimal("odd");
    odd.insert("status", "lost");
    fixture.insert(odd).await;
    let twice = rawdoc! { "_id": "event of twice", "payload": {} };
    let mut payload = RawDocumentBuf::new();
    payload.append(mongodb::bson::raw::cstr!("a"), 1);
    payload.append(mongodb::bson::raw::cstr!("a"), 2);
    let twice = twice.iter().fold(RawDocumentBuf::new(), |mut document, element| {
        let (name, value) = element.unwrap();
        match name.as_str() {
            "payload" => document.append(name, payload.clone()),
            _ => document.append(name, value),
        }
        document
    });
    let events: Collection<RawDocumentBuf> = fixture.store.database().collection("relaybus_events");
    events.insert_one(twice).await.unwrap();
    fixture.insert(minimal("twice")).await;
    let mut items: Vec<_> = fixture.store.export(&Filter::default(), later(600)).collect().await;
    let exported = items.iter().filter(|item| item.is_ok()).count();
    items.retain(|item| item.is_err());
    let told: Vec<String> = items.into_iter().map(|item| item.unwrap_err().to_string()).collect();
    assert_eq!(exported, 2, "{told:?}");
    assert_eq!(
        told,
        [
            "delivery odd cannot be understood: `lost` is not one of pending, processing, completed, dead",
            "delivery orphan cannot be understood: its event event of orphan is not there",
            "delivery twice cannot be understood: /event/payload: has two members of the name \"a\", which JSON cannot tell \
             apart",
        ]
    );
    fixture.end().await;
}

/// Two clients give one place in a key to two events, again and again: they write no common document but the counter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_a_key_goes_to_one_event_of_two() {
    let fixture = Fixture::new().await;
    let other = elsewhere(&fixture).await;
    let options = MongoOptions { database: Some(fixture.database.clone()), ..MongoOptions::default() };
    let rival = MongoStore::connect(&uri(), options).await.unwrap();
    // The counter is ahead of all of them, so that none of the two would change it.
    other.append(&vec![event().key("k"); 40], NOW).await.unwrap();
    let lines = export(&other).await;
    fixture.store.import(&lines[39..], false).await.unwrap();
    for line in &lines[..39] {
        let mut twin = line.clone();
        for (document, field) in [(&mut twin.event, "id"), (&mut twin.delivery, "eventId")] {
            document.insert(field.into(), format!("twin of {}", line.event["id"]).into());
        }
        twin.delivery.insert("id".into(), format!("twin of {}", line.delivery["id"]).into());
        let (one, two) = tokio::join!(
            fixture.store.import(std::slice::from_ref(line), false),
            rival.import(std::slice::from_ref(&twin), false)
        );
        let both = [one.unwrap().remove(0), two.unwrap().remove(0)];
        let created = both.iter().filter(|imported| **imported == Imported::Created { event: true }).count();
        assert_eq!(created, 1, "{both:?}");
        assert!(both.iter().any(|imported| matches!(imported, Imported::Refused { .. })), "{both:?}");
    }
    let counter = fixture.raw("key_sequences").find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(counter, doc! { "_id": "k", "value": 40_i64 });
    rival.close().await;
    other.close().await;
    fixture.end().await;
}

/// More than is ever put in order in memory: two pages and a bit, a third of them without a key.
#[tokio::test]
async fn heavy_a_long_walk_meets_each_delivery_once_and_in_order() {
    const EVENTS: i64 = 21_000;
    let fixture = Fixture::new().await;
    let at = |n: i64| DateTime::from_millis(NOW.as_millis() - n);
    let key = |n: i64| (n % 3 > 0).then(|| format!("k{}", n % 100));
    let events: Vec<Document> = (0..EVENTS)
        .map(|n| doc! { "_id": format!("e{n:05}"), "type": "t", "payload": n, "key": key(n), "sequence": n, "createdAt": at(n) })
        .collect();
    let deliveries: Vec<Document> = (0..EVENTS)
        .map(|n| {
            let mut delivery = minimal(&format!("d{n:05}"));
            delivery.extend(doc! {
                "eventId": format!("e{n:05}"), "eventType": "t", "key": key(n), "sequence": n, "createdAt": at(n),
            });
            delivery
        })
        .collect();
    fixture.raw("events").insert_many(events).await.unwrap();
    fixture.deliveries().insert_many(deliveries).await.unwrap();

    let place = |line: &ExportLine| {
        let sequence = line.delivery["sequence"].as_i64().unwrap();
        (line.delivery_text("key").map(str::to_owned), sequence)
    };
    let every: Vec<_> = export(&fixture.store).await.iter().map(place).collect();
    assert_eq!(every.len() as i64, EVENTS);
    assert!(every.windows(2).all(|pair| pair[0] < pair[1]), "in order, and each once");

    let mut request = BackfillRequest {
        handler: "late".into(),
        event_type: "t".parse().unwrap(),
        since: Some(Timestamp::from_millis(NOW.as_millis() - EVENTS)),
        until: later(1),
        after: None,
    };
    let (mut found, mut pages) = (Vec::new(), 0);
    loop {
        let page = fixture.store.events_without(&request).await.unwrap();
        found.extend(page.events);
        pages += 1;
        request.after = page.last;
        if request.after.is_none() {
            break;
        }
    }
    let in_order: Vec<String> = every.iter().map(|(_, sequence)| format!("e{sequence:05}")).collect();
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), in_order);
    assert_eq!(pages, 3);
    fixture.end().await;
}

#[tokio::test]
async fn an_export_whose_index_is_missing_says_so() {
    let fixture = Fixture::new().await;
    fixture.append(&[event()]).await;
    fixture.deliveries().drop_index("key_order").await.unwrap();
    let error = fixture.store.export(&Filter::default(), NOW).next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.hint().unwrap().contains("relayctl setup"), "{error:?}");
    fixture.end().await;
}
