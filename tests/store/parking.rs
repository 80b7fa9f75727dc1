//! Long blocked keys: set aside or not, they neither hold up others nor are they forgotten.

use relayctl::model::{DeliveryId, NewEvent};
use relayctl::store::{Claimed, Fenced, Outcome, PARKING_THRESHOLD, Repair};

use crate::fixture::{
    Fixture, HANDLER, HOUR, LEASE, OTHER_HANDLER, SECOND, bury, delayed, event, failure, ids, keyed,
    sequences,
};

conformance![
    thirty_one_blocked_ones_do_not_hide_a_ready_one,
    thirty_two_blocked_ones_do_not_hide_a_ready_one,
    thirty_three_blocked_ones_do_not_hide_a_ready_one,
    a_thousand_blocked_ones_do_not_hide_a_hundred_ready_ones,
    parked_ones_keep_their_due_time,
    a_parked_key_runs_on_when_its_head_is_completed,
    a_parked_key_runs_on_when_its_head_dies,
    a_parked_key_runs_on_when_its_head_is_buried_by_an_operator,
    a_parked_key_runs_on_when_its_head_is_buried_and_purged,
    a_parked_key_runs_on_when_its_head_comes_back_late,
    a_parked_key_runs_on_when_its_worker_crashed,
    a_key_parked_after_its_head_was_done_runs_on,
    a_key_parked_to_the_last_runs_on,
    a_parked_key_waits_for_a_requeued_predecessor,
    a_parked_one_that_is_buried_and_requeued_is_in_its_place,
    only_the_lowest_parked_one_comes_back,
    a_parked_key_of_another_handler_is_left_to_it,
    a_requeued_one_parked_beside_a_runner_runs_on,
    parked_ones_are_counted_as_pending,
];

/// More than enough followers to be parked.
const BACKLOG: usize = PARKING_THRESHOLD + 8;

async fn thirty_one_blocked_ones_do_not_hide_a_ready_one(fixture: &Fixture) {
    blocked_beside_ready(fixture, PARKING_THRESHOLD - 1).await;
}

async fn thirty_two_blocked_ones_do_not_hide_a_ready_one(fixture: &Fixture) {
    blocked_beside_ready(fixture, PARKING_THRESHOLD).await;
}

async fn thirty_three_blocked_ones_do_not_hide_a_ready_one(fixture: &Fixture) {
    blocked_beside_ready(fixture, PARKING_THRESHOLD + 1).await;
}

/// Whether B's delivery is younger or older than A's blocked ones, the next call takes it; and the one after that.
async fn blocked_beside_ready(fixture: &Fixture, blocked: usize) {
    fixture.publish(delayed(keyed("a"), fixture.later(HOUR))).await;
    let older = fixture.publish(keyed("b")).await;
    fixture.clock.advance(SECOND);
    fixture.publish_many(keyed("a"), blocked).await;
    fixture.clock.advance(SECOND);
    let younger = fixture.publish(keyed("c")).await;
    assert_eq!(ids(&fixture.claim(1).await), [older]);
    assert_eq!(ids(&fixture.claim(1).await), [younger]);
    let later = fixture.publish(keyed("d")).await;
    assert_eq!(ids(&fixture.claim(1).await), [later]);
    assert_eq!(fixture.claim(10).await, []);

    fixture.clock.advance(HOUR);
    let ran = fixture.drain(100).await;
    let of_a = ran.iter().filter(|delivery| delivery.key.as_deref() == Some("a"));
    let in_order: Vec<_> = of_a.filter_map(|delivery| delivery.sequence).collect();
    assert_eq!(in_order, (1..=blocked as i64 + 1).collect::<Vec<_>>());
}

async fn a_thousand_blocked_ones_do_not_hide_a_hundred_ready_ones(fixture: &Fixture) {
    for key in ["a", "b"] {
        fixture.publish(delayed(keyed(key), fixture.later(HOUR))).await;
        fixture.publish_many(keyed(key), 500).await;
    }
    fixture.clock.advance(SECOND);
    let ready: Vec<_> =
        (0..100).map(|n| if n % 2 == 0 { event() } else { keyed(&format!("k-{n}")) }).collect();
    fixture.append(&ready).await;
    assert_eq!(fixture.claim(60).await.len(), 60);
    assert_eq!(fixture.claim(60).await.len(), 40);
    assert_eq!(fixture.claim(60).await, []);
}

/// A key with a head that runs and a parked backlog behind it.
async fn parked_behind_a_runner(fixture: &Fixture) -> (Claimed, Vec<DeliveryId>) {
    let mut published = fixture.publish_many(keyed("a"), BACKLOG + 1).await;
    let head = fixture.claim_only().await;
    assert_eq!(head.delivery.id, published.remove(0));
    assert_eq!(fixture.claim(10).await, []);
    fixture.park(&published).await;
    (head, published)
}

/// The rest of the key runs, from `first` on, in its order.
async fn assert_runs_on_from(fixture: &Fixture, first: i64) {
    let ran: Vec<_> = fixture.drain(10).await.iter().filter_map(|delivery| delivery.sequence).collect();
    assert_eq!(ran, (first..=BACKLOG as i64 + 1).collect::<Vec<_>>());
    assert_eq!(fixture.parked().await, 0);
}

async fn parked_ones_keep_their_due_time(fixture: &Fixture) {
    let (head, parked) = parked_behind_a_runner(fixture).await;
    let published_at = head.delivery.created_at;
    for id in &parked {
        let delivery = fixture.get(id).await;
        assert_eq!((delivery.due_at, delivery.updated_at), (Some(published_at), published_at));
    }
    assert_eq!(fixture.store.statistics().await.unwrap().oldest_due_at, Some(published_at));
}

async fn a_parked_key_runs_on_when_its_head_is_completed(fixture: &Fixture) {
    let (head, _) = parked_behind_a_runner(fixture).await;
    fixture.complete(&head).await;
    assert_runs_on_from(fixture, 2).await;
}

async fn a_parked_key_runs_on_when_its_head_dies(fixture: &Fixture) {
    let (head, _) = parked_behind_a_runner(fixture).await;
    assert_eq!(fixture.settle(&head, bury()).await, Fenced::Applied);
    assert_runs_on_from(fixture, 2).await;
}

async fn a_parked_key_runs_on_when_its_head_is_buried_by_an_operator(fixture: &Fixture) {
    let (head, _) = parked_behind_a_runner(fixture).await;
    fixture.bury(&head.delivery.id).await;
    assert_runs_on_from(fixture, 2).await;
}

async fn a_parked_key_runs_on_when_its_head_is_buried_and_purged(fixture: &Fixture) {
    let (head, _) = parked_behind_a_runner(fixture).await;
    fixture.bury(&head.delivery.id).await;
    fixture.clock.advance(SECOND);
    let purged = fixture.store.purge_batch(&fixture.purge_request(10)).await.unwrap();
    assert_eq!(purged.deliveries, 1);
    assert_runs_on_from(fixture, 2).await;
}

async fn a_parked_key_runs_on_when_its_head_comes_back_late(fixture: &Fixture) {
    let (head, parked) = parked_behind_a_runner(fixture).await;
    let retry = Outcome::Reschedule { available_at: fixture.later(HOUR), failure: failure() };
    assert_eq!(fixture.settle(&head, retry).await, Fenced::Applied);
    assert_eq!(fixture.claim(10).await, []);
    assert_eq!(fixture.parked().await, parked.len());
    fixture.clock.advance(HOUR);
    assert_runs_on_from(fixture, 1).await;
}

async fn a_parked_key_runs_on_when_its_worker_crashed(fixture: &Fixture) {
    parked_behind_a_runner(fixture).await;
    fixture.clock.advance(LEASE);
    assert_runs_on_from(fixture, 1).await;
}

/// A claim that saw the head unfinished parks the followers after the head was done: the worker that completed it
/// could not know, so only the state can tell.
async fn a_key_parked_after_its_head_was_done_runs_on(fixture: &Fixture) {
    let (head, parked) = parked_behind_a_runner(fixture).await;
    fixture.complete(&head).await;
    fixture.park(&parked).await;
    assert_eq!(ids(&fixture.claim(10).await), [parked[0].clone()]);
}

async fn a_key_parked_to_the_last_runs_on(fixture: &Fixture) {
    let (head, parked) = parked_behind_a_runner(fixture).await;
    fixture.complete(&head).await;
    for (place, id) in parked.iter().enumerate() {
        let next = fixture.claim_only().await;
        assert_eq!((&next.delivery.id, next.delivery.sequence), (id, Some(place as i64 + 2)));
        fixture.complete(&next).await;
    }
    assert_eq!(fixture.claim(10).await, []);
}

async fn a_parked_key_waits_for_a_requeued_predecessor(fixture: &Fixture) {
    let (head, _) = parked_behind_a_runner(fixture).await;
    assert_eq!(fixture.settle(&head, bury()).await, Fenced::Applied);
    let repair = Repair::Requeue { available_at: fixture.later(HOUR) };
    fixture.store.repair(&head.delivery.id, &repair, fixture.now()).await.unwrap();
    assert_eq!(fixture.claim(10).await, []);
    fixture.clock.advance(HOUR);
    assert_runs_on_from(fixture, 1).await;
}

async fn a_parked_one_that_is_buried_and_requeued_is_in_its_place(fixture: &Fixture) {
    let (head, parked) = parked_behind_a_runner(fixture).await;
    fixture.bury(&parked[4]).await;
    fixture.requeue(&parked[4]).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.complete(&head).await;
    assert_runs_on_from(fixture, 2).await;
}

async fn only_the_lowest_parked_one_comes_back(fixture: &Fixture) {
    let (head, parked) = parked_behind_a_runner(fixture).await;
    fixture.complete(&head).await;
    assert_eq!(ids(&fixture.claim(10).await), [parked[0].clone()]);
    assert_eq!(fixture.claim(10).await, []);
    assert_eq!(fixture.parked().await, parked.len() - 1);
}

async fn a_parked_key_of_another_handler_is_left_to_it(fixture: &Fixture) {
    let (head, parked) = parked_behind_a_runner(fixture).await;
    fixture.complete(&head).await;
    let for_other = NewEvent { handlers: vec![OTHER_HANDLER.into()], ..keyed("a") };
    let others = fixture.publish(for_other).await;
    assert_eq!(ids(&fixture.claim_for(&[OTHER_HANDLER], 10).await), [others]);
    assert_eq!(fixture.parked().await, parked.len());
    assert_eq!(sequences(&fixture.claim_for(&[HANDLER], 10).await), [2]);
}

/// The requeued head waits for a later one that runs; with its followers it may be parked although nothing comes
/// before it.
async fn a_requeued_one_parked_beside_a_runner_runs_on(fixture: &Fixture) {
    let requeued = fixture.publish_dead(keyed("a")).await;
    fixture.publish(keyed("a")).await;
    let runner = fixture.claim_only().await;
    fixture.requeue(&requeued).await;
    let followers = fixture.publish_many(keyed("a"), BACKLOG).await;
    assert_eq!(fixture.claim(10).await, []);
    let blocked = [vec![requeued], followers].concat();
    fixture.park(&blocked).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.complete(&runner).await;
    let ran: Vec<_> = fixture.drain(10).await.into_iter().map(|delivery| delivery.id).collect();
    assert_eq!(ran, blocked);
}

async fn parked_ones_are_counted_as_pending(fixture: &Fixture) {
    let (_, parked) = parked_behind_a_runner(fixture).await;
    let statistics = fixture.store.statistics().await.unwrap();
    let blocked = parked.len() as u64;
    assert_eq!((statistics.pending, statistics.parked, statistics.processing), (blocked, blocked, 1));
}
