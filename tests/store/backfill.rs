//! A handler that came later than its events.

use relayctl::model::{EventId, KeyPlace, NewEvent, Status, TypePattern};
use relayctl::store::{BackfillRequest, Extended, Outcome};

use crate::fixture::{Fixture, HANDLER, MILLISECOND, OTHER_HANDLER, SECOND, event, failure, keyed};

conformance![
    events_without_a_delivery_are_found_by_type_and_time,
    each_event_comes_once_however_many_handlers_it_has,
    events_come_by_key_and_sequence,
    a_page_goes_on_behind_its_place,
    an_event_gets_one_delivery_due_now,
    extending_twice_creates_nothing_twice,
    an_event_that_is_gone_is_told,
    a_delivery_takes_its_place_in_its_key,
    two_backfills_at_once_create_everything_once,
    a_backfill_and_a_purge_at_once_leave_no_orphan,
    a_worker_beside_a_backfill_keeps_each_key_in_order,
    a_pruned_counter_is_never_that_of_an_extended_event,
];

/// A handler of which the events know nothing.
const LATE: &str = "late";

fn request(fixture: &Fixture, pattern: &str) -> BackfillRequest {
    BackfillRequest {
        handler: LATE.to_owned(),
        event_type: pattern.parse::<TypePattern>().unwrap(),
        since: None,
        until: fixture.later(MILLISECOND),
        after: None,
    }
}

/// All events that lack a delivery, page by page.
async fn lacking(fixture: &Fixture, request: &BackfillRequest) -> Vec<String> {
    let mut request = request.clone();
    let mut events = Vec::new();
    loop {
        let page = fixture.store.events_without(&request).await.unwrap();
        events.extend(page.events.into_iter().map(|event| event.to_string()));
        if page.last.is_none() {
            return events;
        }
        request.after = page.last;
    }
}

async fn extend(fixture: &Fixture, events: &[&str]) -> Extended {
    let events: Vec<EventId> = events.iter().map(|&event| event.into()).collect();
    fixture.store.extend(&events, LATE, fixture.now()).await.unwrap()
}

fn created(count: u64) -> Extended {
    Extended { created: count, ..Extended::default() }
}

fn of_type(event_type: &str, id: &str) -> NewEvent {
    NewEvent { event_type: event_type.to_owned(), ..event().id(id) }
}

async fn events_without_a_delivery_are_found_by_type_and_time(fixture: &Fixture) {
    fixture.append(&[of_type("order.placed", "e1"), of_type("mail.sent", "e2")]).await;
    fixture.clock.advance(SECOND);
    let second = fixture.now();
    fixture.append(&[of_type("order.paid", "e3"), of_type("order", "e4").handler(LATE)]).await;
    let found = async |request: BackfillRequest| {
        let mut found = lacking(fixture, &request).await;
        found.sort();
        found
    };
    assert_eq!(found(request(fixture, "*")).await, ["e1", "e2", "e3"]);
    assert_eq!(found(request(fixture, "order.*")).await, ["e1", "e3"]);
    assert_eq!(found(request(fixture, "mail.sent")).await, ["e2"]);
    assert!(found(request(fixture, "order")).await.is_empty());
    assert_eq!(found(BackfillRequest { since: Some(second), ..request(fixture, "*") }).await, ["e3"]);
    assert_eq!(found(BackfillRequest { until: second, ..request(fixture, "*") }).await, ["e1", "e2"]);
    // The time is that of the event: a delivery that was added later says nothing.
    fixture.clock.advance(SECOND);
    extend(fixture, &["e1"]).await;
    let other =
        |until| BackfillRequest { handler: OTHER_HANDLER.to_owned(), until, ..request(fixture, "order.*") };
    assert_eq!(found(other(second)).await, ["e1"]);
    assert_eq!(found(BackfillRequest { since: Some(second), ..other(fixture.later(SECOND)) }).await, ["e3"]);
}

async fn each_event_comes_once_however_many_handlers_it_has(fixture: &Fixture) {
    let many = |event: NewEvent| event.handler(OTHER_HANDLER).handler("a").handler("z");
    fixture.append(&[many(event().id("e1")), many(keyed("k").id("e2")), many(event().id("e3"))]).await;
    let mut found = lacking(fixture, &request(fixture, "*")).await;
    found.sort();
    assert_eq!(found, ["e1", "e2", "e3"]);
}

async fn events_come_by_key_and_sequence(fixture: &Fixture) {
    let ids = [("b", "b1"), ("a", "a1"), ("b", "b2"), ("a", "a2"), ("b", "b3")];
    for (back, (key, id)) in ids.into_iter().enumerate() {
        // Later events were created earlier, by the clocks of those who appended them.
        let at = relayctl::model::Timestamp::from_millis(fixture.now().as_millis() - 1_000 * back as i64);
        fixture.store.append(&[keyed(key).id(id)], at).await.unwrap();
    }
    assert_eq!(lacking(fixture, &request(fixture, "order.*")).await, ["a1", "a2", "b1", "b2", "b3"]);
}

async fn a_page_goes_on_behind_its_place(fixture: &Fixture) {
    let events: Vec<_> = ["a", "a", "b", "b", "b"].iter().map(|key| keyed(key)).collect();
    let appended = fixture.append(&events).await;
    let unkeyed: Vec<_> = fixture.append(&[event(), event()]).await;
    let all: Vec<String> = unkeyed.iter().chain(&appended).map(|appended| appended.id.to_string()).collect();
    assert_eq!(lacking(fixture, &request(fixture, "*")).await, all);
    for (n, appended) in unkeyed.iter().chain(&appended).enumerate() {
        let place = KeyPlace::of(&fixture.get(&appended.deliveries[0].id).await);
        let behind = BackfillRequest { after: Some(place), ..request(fixture, "*") };
        assert_eq!(lacking(fixture, &behind).await, all[n + 1..], "{n}");
    }
}

async fn an_event_gets_one_delivery_due_now(fixture: &Fixture) {
    fixture.publish(NewEvent { max_attempts: Some(2), ..event().id("e") }).await;
    fixture.clock.advance(SECOND);
    assert_eq!(extend(fixture, &["e"]).await, created(1));
    assert!(lacking(fixture, &request(fixture, "*")).await.is_empty());
    let claimed = fixture.claim_for(&[LATE], 10).await;
    assert_eq!(claimed.len(), 1);
    let delivery = &claimed[0].delivery;
    assert_eq!((delivery.event_id.as_str(), delivery.attempts, delivery.max_attempts), ("e", 1, None));
    assert_eq!((delivery.created_at, delivery.available_at), (fixture.now(), fixture.now()));
    assert_eq!(delivery.event_type, "order.placed.v1");
}

async fn extending_twice_creates_nothing_twice(fixture: &Fixture) {
    fixture.append(&[event().id("e1"), event().id("e2")]).await;
    assert_eq!(extend(fixture, &["e1", "e1"]).await, Extended { created: 1, existing: 1, missing: 0 });
    assert_eq!(extend(fixture, &["e1", "e2"]).await, Extended { created: 1, existing: 1, missing: 0 });
    assert_eq!(fixture.all().await.len(), 4);
}

async fn an_event_that_is_gone_is_told(fixture: &Fixture) {
    fixture.append(&[event().id("e")]).await;
    assert_eq!(extend(fixture, &["gone", "e"]).await, Extended { created: 1, existing: 0, missing: 1 });
    fixture.assert_references(&["e".into()]).await;
}

async fn a_delivery_takes_its_place_in_its_key(fixture: &Fixture) {
    fixture.append(&[keyed("k").id("e1"), keyed("k").id("e2")]).await;
    fixture.append(&[keyed("k").id("e3").handler(LATE)]).await;
    extend(fixture, &["e2"]).await;
    extend(fixture, &["e1"]).await;
    assert_eq!(fixture.counter("k").await, Some(3));
    let mut ran = Vec::new();
    while let Some(claimed) = fixture.claim_for(&[LATE], 10).await.first() {
        fixture.complete(claimed).await;
        ran.extend(claimed.delivery.sequence);
    }
    assert_eq!(ran, [1, 2, 3]);
}

/// Backfills as the operation does: in batches, in order.
async fn backfill(fixture: &Fixture, batch: usize) -> u64 {
    let events: Vec<EventId> =
        lacking(fixture, &request(fixture, "*")).await.into_iter().map(EventId::from).collect();
    let mut created = 0;
    for events in events.chunks(batch) {
        created += fixture.store.extend(events, LATE, fixture.now()).await.unwrap().created;
    }
    created
}

async fn two_backfills_at_once_create_everything_once(fixture: &Fixture) {
    let events: Vec<_> = (0..60).map(|n| keyed(&format!("k{}", n % 3))).collect();
    fixture.append(&events).await;
    let (one, two) = tokio::join!(backfill(fixture, 7), backfill(fixture, 11));
    assert_eq!(one + two, 60);
    assert_eq!(fixture.all().await.len(), 120);
}

async fn a_backfill_and_a_purge_at_once_leave_no_orphan(fixture: &Fixture) {
    let events: Vec<_> = (0..60).map(|n| event().id(format!("e{n}"))).collect();
    let ids: Vec<EventId> = fixture.append(&events).await.into_iter().map(|appended| appended.id).collect();
    fixture.complete_all(&fixture.claim(100).await).await;
    fixture.clock.advance(MILLISECOND);
    let purge =
        async { while fixture.store.purge_batch(&fixture.purge_request(5)).await.unwrap().deliveries > 0 {} };
    let (created, ()) = tokio::join!(backfill(fixture, 5), purge);
    fixture.assert_references(&ids).await;
    assert_eq!(fixture.all().await.len() as u64, created);
}

async fn a_worker_beside_a_backfill_keeps_each_key_in_order(fixture: &Fixture) {
    let events: Vec<_> = (0..90).map(|n| keyed(&format!("k{}", n % 3))).collect();
    fixture.append(&events).await;
    let work = async {
        let mut ran: Vec<(String, i64)> = Vec::new();
        let mut looked = 0;
        while ran.len() < 90 {
            for claimed in fixture.claim_for(&[LATE], 2).await {
                looked += 1;
                if looked % 7 == 3 {
                    let retry = Outcome::Reschedule { available_at: fixture.now(), failure: failure() };
                    let _ = fixture.settle(&claimed, retry).await;
                    continue;
                }
                fixture.complete(&claimed).await;
                ran.push((claimed.delivery.key.unwrap(), claimed.delivery.sequence.unwrap()));
            }
            tokio::task::yield_now().await;
        }
        ran
    };
    let (one, two, ran) = tokio::join!(backfill(fixture, 4), backfill(fixture, 9), work);
    assert_eq!(one + two, 90);
    for key in ["k0", "k1", "k2"] {
        let sequences: Vec<i64> =
            ran.iter().filter(|(of, _)| of == key).map(|(_, sequence)| *sequence).collect();
        assert_eq!(sequences, (1..=30).collect::<Vec<_>>(), "{key}");
    }
}

async fn a_pruned_counter_is_never_that_of_an_extended_event(fixture: &Fixture) {
    fixture.append(&[keyed("k").id("e1"), keyed("k").id("e2")]).await;
    fixture.complete_all(&[fixture.claim_only().await]).await;
    fixture.complete_all(&[fixture.claim_only().await]).await;
    fixture.clock.advance(MILLISECOND);
    extend(fixture, &["e1"]).await;
    fixture.store.purge_batch(&fixture.purge_request(10)).await.unwrap();
    let request = relayctl::store::PruneRequest { after: None, batch: 10, dry_run: false };
    assert_eq!(fixture.store.prune_keys(&request).await.unwrap().pruned, 0);
    assert_eq!(fixture.counter("k").await, Some(2));
    assert_eq!(fixture.status(&fixture.all().await[0].id).await, Status::Pending);
    let id = fixture.publish(keyed("k")).await;
    assert_eq!(fixture.get(&id).await.sequence, Some(3));
    assert_eq!(fixture.get(&id).await.handler, HANDLER);
}
