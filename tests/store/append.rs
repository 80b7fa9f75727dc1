//! Appending: idempotence, the deliveries of an event, and the sequences of a key.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use relayctl::model::{Delivery, EventId, Lane, NewEvent, Status};
use relayctl::store::ErrorKind;
use serde_json::json;

use crate::fixture::{Fixture, HANDLER, HOUR, OTHER_HANDLER, SECOND, delayed, event, keyed, refused};

conformance![
    an_event_is_stored_with_every_field,
    an_event_gets_a_pending_delivery_for_each_handler,
    a_delivery_waits_until_its_event_is_available,
    an_empty_batch_appends_nothing,
    an_id_makes_an_append_idempotent,
    a_repeated_append_changes_nothing_that_is_there,
    a_new_handler_adds_just_its_delivery,
    a_new_handler_joins_the_key_at_the_place_of_the_event,
    answers_are_in_the_order_of_events_and_handlers,
    an_id_repeated_in_a_batch_is_one_event,
    an_id_repeated_in_a_batch_for_another_event_is_refused,
    the_same_id_with_another_type_key_or_payload_is_reported,
    a_conflict_leaves_no_trace_of_its_batch,
    events_of_a_key_are_numbered_in_batch_order,
    events_without_key_are_not_numbered,
    each_key_counts_for_itself,
    first_appends_of_a_new_key_race_on_its_counter,
    appends_of_one_id_race_to_one_event,
    appends_of_one_id_for_different_handlers_race_to_one_event_for_all,
    appends_of_one_id_with_different_payloads_have_one_winner,
    sixteen_appenders_leave_no_gap_and_claims_see_them_in_order,
    claims_beside_appends_see_a_key_in_order,
];

async fn an_event_is_stored_with_every_field(fixture: &Fixture) {
    let headers = json!({"traceparent": "00-1-2-01"});
    let whole = NewEvent {
        headers: headers.as_object().unwrap().clone(),
        correlation_id: Some("request-1".into()),
        causation_id: Some("command-2".into()),
        aggregate_id: Some("order-3".into()),
        metadata: Some(json!({"tenant": 7})),
        ..keyed("order-3")
    };
    let appended = fixture.append(&[whole.clone(), event()]).await;
    let stored = fixture.event(&appended[0].id).await;
    assert_eq!((&stored.event_type, &stored.payload), (&whole.event_type, &whole.payload));
    assert_eq!((&stored.headers, &stored.metadata), (&headers, &whole.metadata));
    assert_eq!((stored.key, stored.sequence), (Some("order-3".into()), Some(1)));
    assert_eq!(stored.correlation_id, whole.correlation_id);
    assert_eq!(stored.causation_id, whole.causation_id);
    assert_eq!(stored.aggregate_id, whole.aggregate_id);
    assert_eq!(stored.created_at, fixture.now());

    let plain = fixture.event(&appended[1].id).await;
    assert_eq!((plain.headers, plain.metadata, plain.correlation_id), (json!({}), None, None));
}

async fn an_event_gets_a_pending_delivery_for_each_handler(fixture: &Fixture) {
    let limited = NewEvent { max_attempts: Some(3), ..keyed("a") };
    let appended = fixture.append(&[limited.handler(OTHER_HANDLER)]).await.remove(0);
    assert!(appended.created && appended.deliveries.iter().all(|delivery| delivery.created));
    for (answer, handler) in appended.deliveries.iter().zip([HANDLER, OTHER_HANDLER]) {
        let now = fixture.now();
        let expected = Delivery {
            id: answer.id.clone(),
            event_id: appended.id.clone(),
            event_type: "order.placed.v1".into(),
            handler: handler.into(),
            key: Some("a".into()),
            sequence: Some(1),
            status: Status::Pending,
            lane: Lane::Ready,
            attempts: 0,
            max_attempts: Some(3),
            available_at: now,
            lease_expires_at: None,
            lease_token: None,
            lease_owner: None,
            due_at: Some(now),
            created_at: now,
            updated_at: now,
            completed_at: None,
            last_error: None,
            errors: Vec::new(),
            requeues: 0,
        };
        assert_eq!(fixture.get(&answer.id).await, expected);
    }
    assert_eq!(fixture.all().await.len(), 2);
}

async fn a_delivery_waits_until_its_event_is_available(fixture: &Fixture) {
    let at = fixture.later(HOUR);
    let id = fixture.publish(delayed(event(), at)).await;
    let delivery = fixture.get(&id).await;
    assert_eq!((delivery.available_at, delivery.due_at), (at, Some(at)));
    assert_eq!(delivery.created_at, fixture.now());
}

async fn an_empty_batch_appends_nothing(fixture: &Fixture) {
    assert_eq!(fixture.append(&[]).await, []);
    assert_eq!(fixture.all().await, []);
}

async fn an_id_makes_an_append_idempotent(fixture: &Fixture) {
    let first = fixture.append(&[keyed("a").id("e-1")]).await.remove(0);
    let again = fixture.append(&[keyed("a").id("e-1")]).await.remove(0);
    assert_eq!(first.id, EventId::from("e-1"));
    assert!(first.created && !again.created);
    assert_eq!(again.deliveries[0].id, first.deliveries[0].id);
    assert!(!again.deliveries[0].created);
    assert_eq!(fixture.all().await.len(), 1);
    assert_eq!(fixture.counter("a").await, Some(1));
}

async fn a_repeated_append_changes_nothing_that_is_there(fixture: &Fixture) {
    let id = fixture.publish(event().id("e-1")).await;
    let claimed = fixture.claim_only().await;
    let stored = fixture.event(&EventId::from("e-1")).await;
    fixture.clock.advance(SECOND);
    let mut repeated = delayed(event().id("e-1"), fixture.later(HOUR));
    repeated.headers.insert("traceparent".into(), json!("another"));
    repeated.metadata = Some(json!("another"));
    repeated.max_attempts = Some(1);
    fixture.append(&[repeated]).await;
    assert_eq!(fixture.get(&id).await, claimed.delivery);
    assert_eq!(fixture.event(&EventId::from("e-1")).await, stored);
}

async fn a_new_handler_adds_just_its_delivery(fixture: &Fixture) {
    let old = fixture.publish(event().id("e-1")).await;
    let before = fixture.get(&old).await;
    fixture.clock.advance(SECOND);
    let appended = fixture.append(&[event().id("e-1").handler(OTHER_HANDLER)]).await.remove(0);
    assert!(!appended.created);
    let answers: Vec<_> = appended.deliveries.iter().map(|d| (d.handler.as_str(), d.created)).collect();
    assert_eq!(answers, [(HANDLER, false), (OTHER_HANDLER, true)]);
    assert_eq!(appended.deliveries[0].id, old);
    assert_eq!(fixture.get(&old).await, before);
    let new = fixture.get(&appended.deliveries[1].id).await;
    assert_eq!(
        (new.status, new.created_at, new.due_at),
        (Status::Pending, fixture.now(), Some(fixture.now()))
    );
    assert_eq!(fixture.all().await.len(), 2);
}

async fn a_new_handler_joins_the_key_at_the_place_of_the_event(fixture: &Fixture) {
    fixture.append(&[keyed("a").id("e-1"), keyed("a").id("e-2")]).await;
    fixture.clock.advance(SECOND);
    let late = NewEvent { handlers: vec![OTHER_HANDLER.into()], ..keyed("a").id("e-1") };
    let added = fixture.publish(late).await;
    let delivery = fixture.get(&added).await;
    assert_eq!((delivery.key.as_deref(), delivery.sequence), (Some("a"), Some(1)));
    assert_eq!(fixture.counter("a").await, Some(2));
}

async fn answers_are_in_the_order_of_events_and_handlers(fixture: &Fixture) {
    fixture.append(&[event().id("e-2")]).await;
    let batch = [
        event().id("e-3").handler("z").handler("a"),
        event().id("e-2").handler("a"),
        NewEvent { handlers: vec!["b".into(), "a".into(), "b".into()], ..event().id("e-1") },
    ];
    let appended = fixture.append(&batch).await;
    let ids: Vec<_> = appended.iter().map(|appended| appended.id.as_str()).collect();
    assert_eq!(ids, ["e-3", "e-2", "e-1"]);
    let handlers = |place: usize| -> Vec<_> {
        appended[place].deliveries.iter().map(|delivery| delivery.handler.as_str()).collect()
    };
    assert_eq!(handlers(0), [HANDLER, "z", "a"]);
    assert_eq!(handlers(1), [HANDLER, "a"]);
    assert_eq!(handlers(2), ["b", "a"]);
    for answer in appended.iter().flat_map(|appended| &appended.deliveries) {
        assert_eq!(fixture.get(&answer.id).await.handler, answer.handler);
    }
}

async fn an_id_repeated_in_a_batch_is_one_event(fixture: &Fixture) {
    let other = NewEvent { handlers: vec![OTHER_HANDLER.into(), HANDLER.into()], ..keyed("a").id("e-1") };
    let appended = fixture.append(&[keyed("a").id("e-1"), keyed("a"), other]).await;
    assert_eq!(appended.len(), 3);
    let created: Vec<_> = appended.iter().map(|appended| appended.created).collect();
    assert_eq!(created, [true, true, false]);
    let answers: Vec<_> = appended[2].deliveries.iter().map(|d| (d.handler.as_str(), d.created)).collect();
    assert_eq!(answers, [(OTHER_HANDLER, true), (HANDLER, false)]);
    assert_eq!(appended[2].deliveries[1].id, appended[0].deliveries[0].id);
    assert_eq!(fixture.all().await.len(), 3);
    assert_eq!(fixture.counter("a").await, Some(2));
}

async fn an_id_repeated_in_a_batch_for_another_event_is_refused(fixture: &Fixture) {
    for (field, other) in differing("e-1") {
        let batch = [keyed("a").id("e-1"), event(), other];
        let error = refused(fixture.store.append(&batch, fixture.now()).await);
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains("e-1") && error.to_string().contains(field), "{error}");
    }
    assert_eq!(fixture.all().await, []);
    assert_eq!(fixture.counter("a").await, None);
}

/// Events that differ in one field each from `keyed("a")` of this id.
fn differing(id: &str) -> [(&'static str, NewEvent); 4] {
    let same = || keyed("a").id(id);
    [
        ("type", NewEvent { event_type: "order.cancelled.v1".into(), ..same() }),
        ("key", same().key("b")),
        ("key", NewEvent { key: None, ..same() }),
        ("payload", NewEvent { payload: json!({"total": 13}), ..same() }),
    ]
}

async fn the_same_id_with_another_type_key_or_payload_is_reported(fixture: &Fixture) {
    let id = fixture.publish(keyed("a").id("e-1")).await;
    let before = fixture.get(&id).await;
    for (field, other) in differing("e-1") {
        let error = refused(fixture.store.append(&[other.handler("late")], fixture.now()).await);
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains("e-1") && error.to_string().contains(field), "{error}");
    }
    assert_eq!(fixture.all().await, [before]);
}

async fn a_conflict_leaves_no_trace_of_its_batch(fixture: &Fixture) {
    fixture.publish(keyed("a").id("e-1")).await;
    let batch = [keyed("a").id("e-0"), keyed("b"), event().id("e-1"), keyed("a").id("e-2")];
    refused(fixture.store.append(&batch, fixture.now()).await);
    assert_eq!(fixture.all().await.len(), 1);
    assert_eq!(fixture.events(&["e-0".into(), "e-2".into()]).await, []);
    assert_eq!((fixture.counter("a").await, fixture.counter("b").await), (Some(1), None));
}

async fn events_of_a_key_are_numbered_in_batch_order(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 2).await;
    let batch = [keyed("a"), keyed("b"), event(), keyed("a"), keyed("b"), keyed("a")];
    let mut sequences = Vec::new();
    for appended in fixture.append(&batch).await {
        let event = fixture.event(&appended.id).await;
        let delivery = fixture.get(&appended.deliveries[0].id).await;
        assert_eq!((&event.key, event.sequence), (&delivery.key, delivery.sequence));
        sequences.push(event.sequence);
    }
    assert_eq!(sequences, [Some(3), Some(1), None, Some(4), Some(2), Some(5)]);
    assert_eq!((fixture.counter("a").await, fixture.counter("b").await), (Some(5), Some(2)));
}

async fn events_without_key_are_not_numbered(fixture: &Fixture) {
    fixture.publish_many(event(), 3).await;
    assert!(fixture.all().await.iter().all(|delivery| delivery.sequence.is_none()));
    assert_eq!(fixture.key_sequences(None).await, []);
}

async fn each_key_counts_for_itself(fixture: &Fixture) {
    for key in ["a", "b", "a", "A", "a ", "a"] {
        fixture.publish(keyed(key)).await;
    }
    let counters = fixture.key_sequences(None).await;
    let counters: Vec<_> = counters.iter().map(|counter| (counter.key.as_str(), counter.value)).collect();
    assert_eq!(counters, [("A", 1), ("a", 3), ("a ", 1), ("b", 1)]);
}

async fn first_appends_of_a_new_key_race_on_its_counter(fixture: &Fixture) {
    for round in 0..5 {
        let key = format!("new-{round}");
        let both = [keyed(&key), keyed(&key)];
        join_all(both.iter().map(|event| fixture.append(std::slice::from_ref(event)))).await;
        assert_eq!(sequences_of(fixture, &key).await, [1, 2]);
        assert_eq!(fixture.counter(&key).await, Some(2));
    }
}

/// The sequences of a key's deliveries for [`HANDLER`], in ascending order.
async fn sequences_of(fixture: &Fixture, key: &str) -> Vec<i64> {
    let all = fixture.all().await;
    let of_key = all.iter().filter(|delivery| delivery.key.as_deref() == Some(key));
    let mut sequences: Vec<_> = of_key.filter_map(|delivery| delivery.sequence).collect();
    sequences.sort_unstable();
    sequences
}

async fn appends_of_one_id_race_to_one_event(fixture: &Fixture) {
    for round in 0..5 {
        let event = [keyed("a").id(format!("e-{round}"))];
        let answers = join_all((0..8).map(|_| fixture.append(&event))).await;
        assert_eq!(answers.iter().filter(|answer| answer[0].created).count(), 1);
        let deliveries: BTreeSet<_> = answers.iter().map(|answer| &answer[0].deliveries[0].id).collect();
        assert_eq!(deliveries.len(), 1);
    }
    assert_eq!(sequences_of(fixture, "a").await, [1, 2, 3, 4, 5]);
}

async fn appends_of_one_id_for_different_handlers_race_to_one_event_for_all(fixture: &Fixture) {
    let for_handler = |n: usize| [NewEvent { handlers: vec![format!("h-{n}")], ..keyed("a").id("e-1") }];
    let events: Vec<_> = (0..8).map(for_handler).collect();
    let answers = join_all(events.iter().map(|event| fixture.append(event))).await;
    assert_eq!(answers.iter().filter(|answer| answer[0].created).count(), 1);
    assert!(answers.iter().all(|answer| answer[0].deliveries[0].created));
    let all = fixture.all().await;
    assert!(all.iter().all(|delivery| delivery.sequence == Some(1)));
    let handlers: BTreeSet<_> = all.iter().map(|delivery| delivery.handler.as_str()).collect();
    assert_eq!((all.len(), handlers.len()), (8, 8));
}

async fn appends_of_one_id_with_different_payloads_have_one_winner(fixture: &Fixture) {
    let with_payload = |n: usize| [NewEvent { payload: json!(n), ..keyed("a").id("e-1") }];
    let events: Vec<_> = (0..8).map(with_payload).collect();
    let answers = join_all(events.iter().map(|event| fixture.store.append(event, fixture.now()))).await;
    let winner = answers.iter().position(Result::is_ok).unwrap();
    for (n, answer) in answers.into_iter().enumerate().filter(|(n, _)| *n != winner) {
        assert_eq!(refused(answer).kind(), ErrorKind::Conflict, "{n}");
    }
    assert_eq!(fixture.event(&EventId::from("e-1")).await.payload, json!(winner));
    assert_eq!(sequences_of(fixture, "a").await, [1]);
}

async fn sixteen_appenders_leave_no_gap_and_claims_see_them_in_order(fixture: &Fixture) {
    const APPENDERS: i64 = 16;
    const EVENTS: i64 = 50;
    join_all((0..APPENDERS).map(|_| async {
        for _ in 0..EVENTS {
            fixture.append(&[keyed("hot")]).await;
        }
    }))
    .await;
    let all: Vec<i64> = (1..=APPENDERS * EVENTS).collect();
    assert_eq!(sequences_of(fixture, "hot").await, all);
    let ran: Vec<_> = fixture.drain(10).await.iter().filter_map(|delivery| delivery.sequence).collect();
    assert_eq!(ran, all);
}

/// Were a higher sequence ever committed before a lower one, the claims beside would run it first.
async fn claims_beside_appends_see_a_key_in_order(fixture: &Fixture) {
    const TOTAL: usize = 120;
    const PATIENCE: usize = 10_000;
    let appends = join_all((0..4).map(|_| async {
        for _ in 0..TOTAL / 4 {
            fixture.append(&[keyed("hot")]).await;
        }
    }));
    let claims = async {
        let mut ran = Vec::new();
        for _ in 0..PATIENCE {
            ran.extend(fixture.drain(1).await.iter().filter_map(|delivery| delivery.sequence));
            if ran.len() == TOTAL {
                break;
            }
            tokio::task::yield_now().await;
        }
        ran
    };
    let (_, ran) = futures_util::join!(appends, claims);
    assert_eq!(ran, (1..=TOTAL as i64).collect::<Vec<_>>());
}
