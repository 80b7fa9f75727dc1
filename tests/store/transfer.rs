//! From store to store: what is exported, in which order, and what an import makes of it.

use futures_util::StreamExt as _;
use relayctl::model::{
    ErrorGroupId, EventId, ExportLine, Failure, FailureKind, Filter, NewEvent, Status, Timestamp, Types,
    parse_export_line,
};
use relayctl::store::{Fenced, Imported, Outcome};
use serde_json::{Value, json};

use crate::fixture::{
    Fixture, HANDLER, HOUR, MILLISECOND, OTHER_HANDLER, SECOND, bury, delayed, event, failure, keyed,
};

conformance![
    an_export_has_every_field_of_delivery_and_event,
    keys_come_together_and_in_the_order_of_their_sequence,
    an_export_keeps_to_its_filter_and_cut_off,
    a_round_trip_reproduces_deliveries_events_and_counters,
    importing_twice_changes_nothing,
    what_moved_on_since_stays_as_it_is,
    a_batch_is_as_good_as_its_lines_one_after_the_other,
    an_id_that_stands_for_something_else_is_refused_and_the_others_are_imported,
    there_is_one_delivery_of_an_event_for_a_handler,
    a_delivery_joins_an_event_that_is_there,
    counters_are_raised_and_never_lowered,
    a_place_that_another_event_has_is_refused,
    an_event_returns_to_its_place_after_a_purge,
    imported_deliveries_run_in_order_and_before_later_appends,
    a_lease_of_another_store_is_refused,
    what_contradicts_itself_is_refused,
    fields_and_types_are_kept_or_refused_and_never_dropped,
    a_dry_run_tells_the_same_and_writes_nothing,
    two_imports_at_once_store_everything_once,
    an_import_and_appends_at_once_share_the_places_of_a_key,
];

async fn export_of(fixture: &Fixture, filter: Filter) -> Vec<ExportLine> {
    let lines = fixture.store.export(&filter, fixture.now());
    lines.map(|line| line.unwrap()).collect().await
}

async fn export(fixture: &Fixture) -> Vec<ExportLine> {
    export_of(fixture, Filter::default()).await
}

async fn import(fixture: &Fixture, lines: &[ExportLine]) -> Vec<Imported> {
    fixture.store.import(lines, false).await.unwrap()
}

/// Imports a line that has to be refused, and returns why.
async fn refusal(fixture: &Fixture, line: &ExportLine) -> String {
    let before = export(fixture).await;
    let mut imported = import(fixture, std::slice::from_ref(line)).await;
    assert_eq!(export(fixture).await, before);
    match imported.remove(0) {
        Imported::Refused { reason } => reason,
        other => panic!("{other:?}"),
    }
}

const NEW: Imported = Imported::Created { event: true };

/// A line as its text is read again.
fn reread(line: &ExportLine) -> ExportLine {
    parse_export_line(&serde_json::to_string(line).unwrap()).unwrap()
}

/// A pending delivery of an event, as another store may have it.
fn line(event: &str, key: Option<(&str, i64)>) -> ExportLine {
    let mut fields = json!({
        "id": event, "type": "order.placed.v1", "payload": {"total": 12}, "headers": {},
        "createdAt": "2026-01-01T00:00:00.000Z",
    });
    let mut delivery = json!({
        "id": format!("of {event}"), "eventId": event, "eventType": "order.placed.v1", "handler": HANDLER,
        "status": "pending", "lane": "ready", "attempts": 0, "availableAt": "2026-01-01T00:00:00.000Z",
        "dueAt": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z",
        "updatedAt": "2026-01-01T00:00:00.000Z",
    });
    if let Some((key, sequence)) = key {
        for document in [&mut fields, &mut delivery] {
            document["key"] = key.into();
            document["sequence"] = sequence.into();
        }
    }
    let members = |value: Value| value.as_object().unwrap().clone();
    ExportLine { event: members(fields), delivery: members(delivery), types: Types::new() }
}

fn keyed_line(event: &str, key: &str, sequence: i64) -> ExportLine {
    line(event, Some((key, sequence)))
}

/// Deletes everything that can be deleted, counters included.
async fn empty(fixture: &Fixture) {
    for delivery in fixture.all().await.iter().filter(|delivery| delivery.status.is_unfinished()) {
        fixture.bury(&delivery.id).await;
    }
    fixture.clock.advance(MILLISECOND);
    while fixture.store.purge_batch(&fixture.purge_request(1_000)).await.unwrap().deliveries > 0 {}
    let request = relayctl::store::PruneRequest { after: None, batch: 1_000, dry_run: false };
    fixture.store.prune_keys(&request).await.unwrap();
    assert_eq!((fixture.all().await, fixture.key_sequences(None).await), (Vec::new(), Vec::new()));
}

/// Deliveries in every state but processing, of several keys and handlers.
async fn assorted(fixture: &Fixture) {
    let odd = json!({"z": [9_007_199_254_740_993_i64, -0.0, 0.1], "$oid": "5f0000000000000000000000", "a.b": {"": null}});
    let mut rich =
        NewEvent { payload: odd, metadata: Some(json!({"by": "ana"})), ..keyed("k").handler(OTHER_HANDLER) };
    rich.headers.insert("traceparent".into(), json!("00-1"));
    rich.correlation_id = Some("c".into());
    rich.max_attempts = Some(3);
    fixture.append(&[rich, event(), keyed("k"), keyed("other")]).await;
    let claimed = fixture.claim(10).await;
    fixture.complete(&claimed[0]).await;
    fixture.clock.advance(SECOND);
    let retry = Outcome::Reschedule { available_at: fixture.later(HOUR), failure: failure() };
    let _ = fixture.settle(&claimed[1], retry).await;
    for claimed in &claimed[2..] {
        let _ = fixture.settle(claimed, bury()).await;
    }
    fixture.append(&[delayed(keyed("k"), fixture.later(HOUR))]).await;
}

async fn an_export_has_every_field_of_delivery_and_event(fixture: &Fixture) {
    let rich = NewEvent { metadata: Some(json!([1])), ..keyed("k").id("e") };
    let id = fixture.publish(rich).await;
    let claimed = fixture.claim_only().await;
    let retry = Outcome::Reschedule { available_at: fixture.later(HOUR), failure: failure() };
    let _ = fixture.settle(&claimed, retry).await;
    let lines = export(fixture).await;
    assert_eq!(lines.len(), 1);
    let text = serde_json::to_string(&lines[0]).unwrap();
    let (delivery, event) = (fixture.get(&id).await, fixture.event(&"e".into()).await);
    let read: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(read["version"], 1);
    assert_eq!(
        serde_json::from_value::<relayctl::model::Delivery>(read["delivery"].clone()).unwrap(),
        delivery
    );
    assert_eq!(serde_json::from_value::<relayctl::model::Event>(read["event"].clone()).unwrap(), event);
    assert_eq!(read["delivery"]["availableAt"], delivery.available_at.to_string());
    assert_eq!(read["delivery"]["errors"][0]["at"], fixture.now().to_string());
    assert_eq!(read.get("types"), None, "{text}");
}

async fn keys_come_together_and_in_the_order_of_their_sequence(fixture: &Fixture) {
    // Clocks of those who append disagree: later events were created earlier.
    for (back, key) in [(0, "b"), (5_000, "a"), (1_000, "b"), (9_000, "b"), (2_000, "a"), (3_000, "")] {
        let at = Timestamp::from_millis(fixture.now().as_millis() - back);
        let event = if key.is_empty() { event() } else { keyed(key) };
        fixture.store.append(&[event.handler(OTHER_HANDLER)], at).await.unwrap();
    }
    let order = |lines: &[ExportLine]| -> Vec<(String, i64)> {
        let place = |line: &ExportLine| {
            let sequence = line.delivery.get("sequence").and_then(Value::as_i64);
            (line.delivery_text("key").unwrap_or_default().to_owned(), sequence.unwrap_or(0))
        };
        lines.iter().map(place).collect()
    };
    let expected =
        [("", 0), ("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3)].map(|(k, s)| (k.to_owned(), s));
    let both: Vec<_> = expected.iter().flat_map(|place| [place.clone(), place.clone()]).collect();
    assert_eq!(order(&export(fixture).await), both);
    let of_handler = Filter { handler: Some(HANDLER.into()), ..Filter::default() };
    assert_eq!(order(&export_of(fixture, of_handler).await), expected);
    let of_key = Filter { key: Some("b".into()), handler: Some(HANDLER.into()), ..Filter::default() };
    assert_eq!(order(&export_of(fixture, of_key).await), expected[3..]);
}

async fn an_export_keeps_to_its_filter_and_cut_off(fixture: &Fixture) {
    fixture.publish_dead(keyed("k").id("dead")).await;
    fixture.publish(event().id("pending")).await;
    let exported = async |filter| -> Vec<String> {
        let lines = export_of(fixture, filter).await;
        lines.iter().map(|line| line.delivery_text("eventId").unwrap().to_owned()).collect()
    };
    let dead = Filter { statuses: vec![Status::Dead], ..Filter::default() };
    assert_eq!(exported(dead.clone()).await, ["dead"]);
    let one = Filter { event: Some(EventId::from("pending")), ..Filter::default() };
    assert_eq!(exported(one).await, ["pending"]);
    let none = Filter { error: Some("no such error".into()), ..Filter::default() };
    assert!(exported(none).await.is_empty());
    fixture.publish(event().id("unlike")).await;
    let claimed = fixture.claim_for(&[HANDLER], 9).await;
    let unlike = claimed.iter().find(|claimed| claimed.delivery.event_id.as_str() == "unlike").unwrap();
    let outcome = Outcome::Bury { failure: Failure::new(FailureKind::Failed, "line 12 is unlike") };
    assert_eq!(fixture.settle(unlike, outcome).await, Fenced::Applied);
    let alike = Filter { groups: vec![ErrorGroupId::of(HANDLER, "line <n> is unlike")], ..Filter::default() };
    assert_eq!(exported(alike.clone()).await, ["unlike"], "the dead one has another group");
    assert_eq!(exported(Filter { key: Some("k".into()), ..alike }).await, Vec::<String>::new());
    let before = fixture.now();
    fixture.clock.advance(MILLISECOND);
    fixture.publish(event().id("later")).await;
    for filter in [Filter::default(), Filter { handler: Some(HANDLER.into()), ..Filter::default() }] {
        assert_eq!(fixture.store.export(&filter, before).collect::<Vec<_>>().await.len(), 3);
        assert_eq!(exported(filter).await.len(), 4);
    }
}

async fn a_round_trip_reproduces_deliveries_events_and_counters(fixture: &Fixture) {
    assorted(fixture).await;
    let lines = export(fixture).await;
    let read: Vec<ExportLine> = lines.iter().map(reread).collect();
    assert_eq!(read, lines);
    let (deliveries, counters) = (fixture.all().await, fixture.key_sequences(None).await);
    let statistics = fixture.store.statistics().await.unwrap();
    let events: Vec<EventId> = deliveries.iter().map(|delivery| delivery.event_id.clone()).collect();
    let mut before = fixture.events(&events).await;
    empty(fixture).await;
    let imported = import(fixture, &read).await;
    assert_eq!(imported.iter().filter(|imported| **imported == NEW).count(), 5);
    assert_eq!(imported.len(), deliveries.len());
    assert_eq!(fixture.all().await, deliveries);
    assert_eq!(fixture.key_sequences(None).await, counters);
    assert_eq!(fixture.store.statistics().await.unwrap(), statistics);
    let mut after = fixture.events(&events).await;
    before.sort_by(|a, b| a.id.cmp(&b.id));
    after.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(after, before);
    assert_eq!(export(fixture).await, lines);
}

async fn importing_twice_changes_nothing(fixture: &Fixture) {
    let lines = [keyed_line("e1", "k", 1), keyed_line("e2", "k", 2), line("e3", None)];
    assert_eq!(import(fixture, &lines).await, [NEW, NEW, NEW]);
    let first = (export(fixture).await, fixture.key_sequences(None).await);
    let existing = Imported::Existing;
    assert_eq!(import(fixture, &lines).await, [existing.clone(), existing.clone(), existing]);
    assert_eq!((export(fixture).await, fixture.key_sequences(None).await), first);
}

async fn what_moved_on_since_stays_as_it_is(fixture: &Fixture) {
    let lines = [line("e1", None), line("e2", None)];
    import(fixture, &lines[..1]).await;
    fixture.complete(&fixture.claim_only().await).await;
    assert_eq!(import(fixture, &lines).await, [Imported::Existing, NEW]);
    assert_eq!(fixture.status(&"of e1".into()).await, Status::Completed);
    assert_eq!(fixture.drain(10).await.len(), 1);
}

async fn a_batch_is_as_good_as_its_lines_one_after_the_other(fixture: &Fixture) {
    let other_handler = |event: &str| {
        let mut line = keyed_line(event, "k", 1);
        line.change_handler(OTHER_HANDLER);
        line
    };
    let mut other_payload = line("e2", None);
    other_payload.event["payload"] = json!("other");
    other_payload.change_handler(OTHER_HANDLER);
    let batch = [
        keyed_line("e1", "k", 1),
        keyed_line("e1", "k", 1),
        other_handler("e1"),
        keyed_line("late", "k", 1),
        line("e2", None),
        other_payload,
    ];
    let refused = |reason: &str| Imported::Refused { reason: reason.into() };
    let expected = [
        NEW,
        Imported::Existing,
        Imported::Created { event: false },
        refused("place 1 of key k is taken by event e1"),
        NEW,
        refused("event e2 is there already with another payload"),
    ];
    assert_eq!(import(fixture, &batch).await, expected);
    assert_eq!(fixture.all().await.len(), 3);
}

async fn an_id_that_stands_for_something_else_is_refused_and_the_others_are_imported(fixture: &Fixture) {
    let original = keyed_line("e", "k", 1);
    import(fixture, std::slice::from_ref(&original)).await;
    for (field, value) in [
        ("payload", json!({"total": 13})),
        ("payload", json!({"total": 12.5})),
        ("headers", json!({"h": 1})),
        ("type", json!("other")),
        ("metadata", json!(1)),
        ("createdAt", json!("2026-01-01T00:00:00.001Z")),
    ] {
        for is_same_delivery in [true, false] {
            let mut changed = original.clone();
            changed.event.insert(field.into(), value.clone());
            if !is_same_delivery {
                changed.change_handler(OTHER_HANDLER);
            }
            let expected = format!("event e is there already with another {field}");
            assert_eq!(refusal(fixture, &changed).await, expected);
        }
    }
    let mut another_event = line("e2", None);
    another_event.delivery["id"] = json!("of e");
    let refused = "delivery of e is there already with another eventId";
    assert_eq!(refusal(fixture, &another_event).await, refused);
    let batch = [another_event, line("e3", None)];
    assert_eq!(import(fixture, &batch).await, [Imported::Refused { reason: refused.into() }, NEW]);
    assert_eq!(fixture.all().await.len(), 2);
}

async fn there_is_one_delivery_of_an_event_for_a_handler(fixture: &Fixture) {
    import(fixture, &[line("e", None)]).await;
    let mut again = line("e", None);
    again.delivery["id"] = json!("another id");
    assert_eq!(import(fixture, &[again]).await, [Imported::Existing]);
    assert_eq!(fixture.all().await.len(), 1);
}

async fn a_delivery_joins_an_event_that_is_there(fixture: &Fixture) {
    fixture.publish(keyed("k").id("e")).await;
    let mut lines = export(fixture).await;
    lines[0].change_handler(OTHER_HANDLER);
    assert_eq!(import(fixture, &lines).await, [Imported::Created { event: false }]);
    assert_eq!(import(fixture, &lines).await, [Imported::Existing]);
    assert_eq!(fixture.counter("k").await, Some(1));
    let claimed = fixture.claim_for(&[OTHER_HANDLER], 10).await;
    assert_eq!(claimed[0].delivery.id.as_str(), lines[0].delivery_text("id").unwrap());
    assert_eq!(claimed[0].delivery.sequence, Some(1));
}

async fn counters_are_raised_and_never_lowered(fixture: &Fixture) {
    import(fixture, &[keyed_line("e7", "k", 7), keyed_line("e3", "k", 3), keyed_line("o", "other", 2)]).await;
    assert_eq!((fixture.counter("k").await, fixture.counter("other").await), (Some(7), Some(2)));
    import(fixture, &[keyed_line("e5", "k", 5)]).await;
    assert_eq!(fixture.counter("k").await, Some(7));
    let appended = fixture.publish(keyed("k")).await;
    assert_eq!(fixture.get(&appended).await.sequence, Some(8));
}

async fn a_place_that_another_event_has_is_refused(fixture: &Fixture) {
    fixture.append(&[keyed("k").id("own-1"), keyed("k").id("own-2")]).await;
    let refused = refusal(fixture, &keyed_line("foreign", "k", 2)).await;
    assert_eq!(refused, "place 2 of key k is taken by event own-2");
    assert_eq!(import(fixture, &[keyed_line("foreign", "k", 3)]).await, [NEW]);
    assert_eq!(fixture.counter("k").await, Some(3));
}

async fn an_event_returns_to_its_place_after_a_purge(fixture: &Fixture) {
    fixture.publish(keyed("k").id("e1")).await;
    let lines = export(fixture).await;
    fixture.complete(&fixture.claim_only().await).await;
    fixture.publish(keyed("k").id("e2")).await;
    fixture.clock.advance(MILLISECOND);
    assert_eq!(fixture.store.purge_batch(&fixture.purge_request(10)).await.unwrap().events, 1);
    assert_eq!(import(fixture, &lines).await, [NEW]);
    assert_eq!(fixture.counter("k").await, Some(2));
    let ran: Vec<_> = fixture.drain(1).await.iter().map(|delivery| delivery.sequence).collect();
    assert_eq!(ran, [Some(1), Some(2)]);
}

async fn imported_deliveries_run_in_order_and_before_later_appends(fixture: &Fixture) {
    let lines = [keyed_line("e2", "k", 2), keyed_line("e1", "k", 1)];
    import(fixture, &lines).await;
    fixture.publish(keyed("k")).await;
    let ran: Vec<_> = fixture.drain(10).await.iter().map(|delivery| delivery.sequence).collect();
    assert_eq!(ran, [Some(1), Some(2), Some(3)]);
}

async fn a_lease_of_another_store_is_refused(fixture: &Fixture) {
    fixture.publish(event()).await;
    fixture.claim_only().await;
    let mut line = export(fixture).await.remove(0);
    assert_eq!(line.delivery_text("status"), Some("processing"));
    line.change_handler(OTHER_HANDLER);
    let refused = refusal(fixture, &line).await;
    assert_eq!(refused, "delivery.status: is processing, under a lease that another store gave");
    line.release(fixture.now());
    assert_eq!(import(fixture, &[line]).await, [Imported::Created { event: false }]);
    let claimed = fixture.claim_for(&[OTHER_HANDLER], 10).await;
    assert_eq!(claimed[0].delivery.attempts, 1);
}

async fn what_contradicts_itself_is_refused(fixture: &Fixture) {
    let changes: [(&str, Value, &str); 8] = [
        ("eventId", json!("other"), "delivery.eventId: is not the id of the event"),
        ("key", json!("other"), "delivery.key: is not that of the event"),
        ("sequence", json!(2), "delivery.sequence: is not that of the event"),
        ("handler", json!(""), "delivery.handler: must not be empty"),
        ("dueAt", Value::Null, "delivery.dueAt: is missing, and a pending delivery would never be due"),
        ("status", json!("dead"), "delivery.dueAt: is there, and a finished delivery would become due again"),
        ("status", json!("lost"), "lost"),
        ("attempts", json!("many"), ""),
    ];
    for (field, value, expected) in changes {
        let mut line = keyed_line("e", "k", 1);
        line.delivery.insert(field.to_owned(), value);
        let refused = refusal(fixture, &line).await;
        assert!(refused.contains(expected), "{refused}");
    }
    for missing in ["id", "eventId", "handler", "status"] {
        let mut line = line("e", None);
        line.delivery.shift_remove(missing);
        let refused = refusal(fixture, &line).await;
        assert!(refused.contains(missing) || missing == "id", "{missing}: {refused}");
    }
    let far = refusal(fixture, &keyed_line("e", "k", i64::MAX)).await;
    assert_eq!(far, "delivery.sequence: is larger than 2^53, which no counter reaches");
    assert_eq!(fixture.key_sequences(None).await, []);
}

async fn fields_and_types_are_kept_or_refused_and_never_dropped(fixture: &Fixture) {
    let mut extra = line("extra", None);
    extra.delivery.insert("tenant".into(), json!({"id": "x", "n": 1}));
    let mut typed = line("typed", None);
    typed.event["payload"] = json!({"$oid": "5f0000000000000000000000"});
    typed.types.insert("/event/payload".into(), "objectId".into());
    let mut number = line("number", None);
    number.types.insert("/event/payload/total".into(), "long".into());
    for line in [extra, typed] {
        match import(fixture, std::slice::from_ref(&line)).await.remove(0) {
            Imported::Refused { reason } => {
                assert!(reason.contains("this store does not have"), "{reason}");
                assert_eq!(fixture.all().await, []);
            }
            _ => {
                let id =
                    Filter { event: Some(line.event["id"].as_str().unwrap().into()), ..Filter::default() };
                assert_eq!(export_of(fixture, id).await, [line]);
            }
        }
    }
    assert_eq!(import(fixture, &[number]).await, [NEW]);
}

async fn a_dry_run_tells_the_same_and_writes_nothing(fixture: &Fixture) {
    import(fixture, &[keyed_line("e1", "k", 1)]).await;
    let before = (export(fixture).await, fixture.key_sequences(None).await);
    let lines =
        [keyed_line("e1", "k", 1), keyed_line("e2", "k", 2), keyed_line("x", "k", 1), line("e3", None)];
    let would = fixture.store.import(&lines, true).await.unwrap();
    assert_eq!((export(fixture).await, fixture.key_sequences(None).await), before);
    assert_eq!(import(fixture, &lines).await, would);
    assert_eq!(would.iter().filter(|imported| **imported == NEW).count(), 2);
}

async fn two_imports_at_once_store_everything_once(fixture: &Fixture) {
    let lines: Vec<_> = (1..=60).map(|n| keyed_line(&format!("e{n}"), &format!("k{}", n % 3), n)).collect();
    let run = async || {
        let mut created = 0;
        for batch in lines.chunks(7) {
            let imported = import(fixture, batch).await;
            assert!(
                !imported.iter().any(|imported| matches!(imported, Imported::Refused { .. })),
                "{imported:?}"
            );
            created += imported.iter().filter(|imported| **imported == NEW).count();
        }
        created
    };
    let (one, two) = tokio::join!(run(), run());
    assert_eq!(one + two, 60);
    assert_eq!(fixture.all().await.len(), 60);
    let ids: Vec<EventId> = lines.iter().map(|line| line.event["id"].as_str().unwrap().into()).collect();
    fixture.assert_references(&ids).await;
}

async fn an_import_and_appends_at_once_share_the_places_of_a_key(fixture: &Fixture) {
    let append = async {
        for n in 0..20 {
            fixture.append(&[keyed("k").id(format!("own-{n}"))]).await;
        }
    };
    let import_all = async {
        let mut created = 0;
        for n in 1..=30 {
            let imported = import(fixture, &[keyed_line(&format!("foreign-{n}"), "k", n)]).await;
            created += usize::from(imported[0] == NEW);
        }
        created
    };
    let ((), created) = tokio::join!(append, import_all);
    let mut sequences: Vec<_> =
        fixture.all().await.iter().map(|delivery| delivery.sequence.unwrap()).collect();
    sequences.sort_unstable();
    let count = sequences.len();
    assert_eq!(count, 20 + created);
    sequences.dedup();
    assert_eq!(sequences.len(), count, "no place is taken twice");
    assert!(fixture.counter("k").await >= sequences.last().copied());
}
