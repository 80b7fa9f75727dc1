//! Deliveries of one handler and key run one at a time, in the order of their sequence.

use std::collections::BTreeMap;
use std::time::Duration;

use relayctl::model::{Delivery, DeliveryId, Status};
use relayctl::store::{ClaimRequest, Fenced, Outcome};

use crate::fixture::{
    Fixture, HANDLER, HOUR, LEASE, OTHER_HANDLER, SECOND, bury, delayed, event, failure, ids, keyed,
    sequences,
};

conformance![
    one_call_never_takes_two_of_one_key,
    one_call_never_takes_two_of_one_key_even_without_lease_time,
    a_pending_delivery_blocks_its_followers,
    a_delayed_head_blocks_its_followers,
    a_running_head_blocks_its_followers,
    an_expired_head_blocks_its_followers,
    a_completed_head_lets_the_next_one_run,
    a_dead_head_lets_the_next_one_run,
    a_head_buried_by_an_operator_lets_the_next_one_run,
    a_released_head_runs_again_before_its_followers,
    a_retried_head_is_due_later_than_its_followers_and_still_runs_first,
    a_retried_head_of_a_long_backlog_is_claimed_when_due,
    keys_do_not_wait_for_each_other,
    handlers_do_not_wait_for_each_other,
    keys_are_compared_byte_by_byte,
    events_without_key_wait_for_nobody,
    a_requeued_one_never_runs_beside_a_later_one,
    a_requeued_one_blocks_those_not_yet_claimed,
    a_requeued_one_runs_when_the_later_lease_has_expired,
    an_expired_later_one_waits_for_a_requeued_one,
    several_requeued_ones_run_in_their_order,
    blocked_deliveries_never_starve_others,
    blocked_deliveries_never_starve_others_of_the_same_instant,
    a_handler_added_later_runs_in_key_order,
    a_mixed_hundred_runs_in_key_order,
    key_state_tells_head_runner_and_backlog,
];

async fn one_call_never_takes_two_of_one_key(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 3).await;
    fixture.publish_many(keyed("b"), 3).await;
    let claimed = fixture.claim(10).await;
    assert_eq!(sequences(&claimed), [1, 1]);
    assert_ne!(claimed[0].delivery.key, claimed[1].delivery.key);
}

async fn one_call_never_takes_two_of_one_key_even_without_lease_time(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 3).await;
    let request = ClaimRequest { lease: Duration::ZERO, ..fixture.request(10) };
    assert_eq!(sequences(&fixture.store.claim(&request).await.unwrap()), [1]);
    assert_eq!(sequences(&fixture.store.claim(&request).await.unwrap()), [1]);
}

async fn a_pending_delivery_blocks_its_followers(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 2).await;
    assert_eq!(sequences(&fixture.claim(1).await), [1]);
    assert_eq!(fixture.claim(1).await, []);
}

async fn a_delayed_head_blocks_its_followers(fixture: &Fixture) {
    fixture.publish(delayed(keyed("a"), fixture.later(HOUR))).await;
    fixture.publish(keyed("a")).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.clock.advance(HOUR);
    assert_eq!(run_in_order(fixture).await, [1, 2]);
}

/// Runs all that is due; returns the sequences.
async fn run_in_order(fixture: &Fixture) -> Vec<i64> {
    fixture.drain(10).await.iter().filter_map(|delivery| delivery.sequence).collect()
}

async fn a_running_head_blocks_its_followers(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 2).await;
    let head = fixture.claim_only().await;
    fixture.clock.advance(LEASE / 2);
    assert_eq!(fixture.claim(10).await, []);
    let expires_at = fixture.later(HOUR);
    assert_eq!(fixture.settle(&head, Outcome::ExtendLease { expires_at }).await, Fenced::Applied);
    fixture.clock.advance(LEASE);
    assert_eq!(fixture.claim(10).await, []);
}

async fn an_expired_head_blocks_its_followers(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 2).await;
    fixture.claim_only().await;
    fixture.clock.advance(LEASE);
    let again = fixture.claim(10).await;
    assert_eq!((sequences(&again), again[0].delivery.attempts), (vec![1], 2));
    assert_eq!(fixture.claim(10).await, []);
}

async fn a_completed_head_lets_the_next_one_run(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 3).await;
    for sequence in 1..=3 {
        let head = fixture.claim_only().await;
        assert_eq!(head.delivery.sequence, Some(sequence));
        fixture.complete(&head).await;
    }
}

async fn a_dead_head_lets_the_next_one_run(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 2).await;
    let head = fixture.claim_only().await;
    assert_eq!(fixture.settle(&head, bury()).await, Fenced::Applied);
    assert_eq!(sequences(&fixture.claim(10).await), [2]);
}

async fn a_head_buried_by_an_operator_lets_the_next_one_run(fixture: &Fixture) {
    let published = fixture.publish_many(keyed("a"), 3).await;
    fixture.bury(&published[0]).await;
    assert_eq!(sequences(&fixture.claim(10).await), [2]);
    fixture.bury(&published[1]).await;
    assert_eq!(sequences(&fixture.claim(10).await), [3]);
}

async fn a_released_head_runs_again_before_its_followers(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 2).await;
    let head = fixture.claim_only().await;
    assert_eq!(fixture.settle(&head, Outcome::Release).await, Fenced::Applied);
    assert_eq!(run_in_order(fixture).await, [1, 2]);
}

async fn retry_at(fixture: &Fixture, head: &relayctl::store::Claimed, delay: Duration) {
    let retry = Outcome::Reschedule { available_at: fixture.later(delay), failure: failure() };
    assert_eq!(fixture.settle(head, retry).await, Fenced::Applied);
}

async fn a_retried_head_is_due_later_than_its_followers_and_still_runs_first(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 3).await;
    let head = fixture.claim_only().await;
    retry_at(fixture, &head, SECOND).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.clock.advance(SECOND);
    assert_eq!(run_in_order(fixture).await, [1, 2, 3]);
}

async fn a_retried_head_of_a_long_backlog_is_claimed_when_due(fixture: &Fixture) {
    fixture.publish_many(keyed("a"), 60).await;
    for attempt in 1..=3 {
        let head = fixture.claim_only().await;
        assert_eq!((head.delivery.sequence, head.delivery.attempts), (Some(1), attempt));
        retry_at(fixture, &head, HOUR).await;
        assert_eq!(fixture.claim(100).await, []);
        fixture.clock.advance(HOUR);
    }
    assert_eq!(run_in_order(fixture).await, (1..=60).collect::<Vec<_>>());
}

async fn keys_do_not_wait_for_each_other(fixture: &Fixture) {
    fixture.publish(delayed(keyed("a"), fixture.later(HOUR))).await;
    fixture.publish(keyed("a")).await;
    let free = fixture.publish(keyed("b")).await;
    assert_eq!(ids(&fixture.claim(10).await), [free]);
}

async fn handlers_do_not_wait_for_each_other(fixture: &Fixture) {
    fixture.append(&[keyed("a").handler(OTHER_HANDLER), keyed("a").handler(OTHER_HANDLER)]).await;
    let claimed = fixture.claim_for(&[HANDLER, OTHER_HANDLER], 10).await;
    assert_eq!(sequences(&claimed), [1, 1]);
    let other = claimed.iter().find(|claimed| claimed.delivery.handler == OTHER_HANDLER).unwrap();
    fixture.complete(other).await;
    let next = fixture.claim_for(&[HANDLER, OTHER_HANDLER], 10).await;
    assert_eq!((next.len(), next[0].delivery.handler.as_str()), (1, OTHER_HANDLER));
}

async fn keys_are_compared_byte_by_byte(fixture: &Fixture) {
    let alike = ["a", "A", "a ", "\u{e9}", "e\u{301}", "$a", "a.b"];
    for key in alike {
        fixture.publish_many(keyed(key), 2).await;
    }
    assert_eq!(sequences(&fixture.claim(100).await), [1; 7]);
}

async fn events_without_key_wait_for_nobody(fixture: &Fixture) {
    fixture.publish_many(event(), 5).await;
    assert_eq!(fixture.claim(1).await.len(), 1);
    assert_eq!(fixture.claim(10).await.len(), 4);
}

/// Publishes `count` events of key a, of which the first is dead.
async fn first_is_dead(fixture: &Fixture, count: usize) -> Vec<DeliveryId> {
    let published = fixture.publish_many(keyed("a"), count).await;
    let head = fixture.claim_only().await;
    assert_eq!(fixture.settle(&head, bury()).await, Fenced::Applied);
    published
}

async fn a_requeued_one_never_runs_beside_a_later_one(fixture: &Fixture) {
    let published = first_is_dead(fixture, 2).await;
    let later = fixture.claim_only().await;
    fixture.requeue(&published[0]).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.clock.advance(LEASE / 2);
    assert_eq!(fixture.claim(10).await, []);
    fixture.complete(&later).await;
    assert_eq!(ids(&fixture.claim(10).await), [published[0].clone()]);
}

async fn a_requeued_one_blocks_those_not_yet_claimed(fixture: &Fixture) {
    let published = first_is_dead(fixture, 3).await;
    let second = fixture.claim_only().await;
    fixture.requeue(&published[0]).await;
    fixture.complete(&second).await;
    assert_eq!(run_in_order(fixture).await, [1, 3]);
}

async fn a_requeued_one_runs_when_the_later_lease_has_expired(fixture: &Fixture) {
    let published = first_is_dead(fixture, 2).await;
    fixture.claim_only().await;
    fixture.requeue(&published[0]).await;
    fixture.clock.advance(LEASE);
    assert_eq!(ids(&fixture.claim(10).await), [published[0].clone()]);
}

async fn an_expired_later_one_waits_for_a_requeued_one(fixture: &Fixture) {
    let published = first_is_dead(fixture, 2).await;
    let crashed = fixture.claim_only().await;
    fixture.requeue(&published[0]).await;
    fixture.clock.advance(LEASE);
    let requeued = fixture.claim_only().await;
    assert_eq!(fixture.claim(10).await, []);
    assert_eq!(fixture.get(&published[1]).await, crashed.delivery);
    fixture.complete(&requeued).await;
    let retaken = fixture.claim_only().await;
    assert_eq!((retaken.delivery.id, retaken.delivery.attempts), (published[1].clone(), 2));
}

async fn several_requeued_ones_run_in_their_order(fixture: &Fixture) {
    let published = fixture.publish_many(keyed("a"), 5).await;
    for id in &published[..3] {
        fixture.bury(id).await;
    }
    for id in published[..3].iter().rev() {
        fixture.clock.advance(SECOND);
        fixture.requeue(id).await;
    }
    assert_eq!(run_in_order(fixture).await, [1, 2, 3, 4, 5]);
}

async fn blocked_deliveries_never_starve_others(fixture: &Fixture) {
    for key in ["a", "b", "c"] {
        fixture.publish(delayed(keyed(key), fixture.later(HOUR))).await;
    }
    fixture.publish_many(keyed("a"), 400).await;
    fixture.publish_many(keyed("b"), 31).await;
    fixture.publish_many(keyed("c"), 5).await;
    fixture.clock.advance(SECOND);
    let mut free = fixture.publish_many(event(), 5).await;
    free.push(fixture.publish(keyed("d")).await);
    free.sort();
    assert_eq!(ids(&fixture.claim(6).await), free);
}

async fn blocked_deliveries_never_starve_others_of_the_same_instant(fixture: &Fixture) {
    fixture.publish(delayed(keyed("a"), fixture.later(HOUR))).await;
    fixture.publish_many(keyed("a"), 300).await;
    let mut free = fixture.publish_many(event(), 50).await;
    free.sort();
    assert_eq!(ids(&fixture.claim(20).await), free[..20]);
    assert_eq!(ids(&fixture.claim(100).await), free[20..]);
}

async fn a_handler_added_later_runs_in_key_order(fixture: &Fixture) {
    let events: Vec<_> = (1..=5).map(|n| keyed("a").id(format!("e-{n}"))).collect();
    fixture.append(&events).await;
    assert_eq!(run_in_order(fixture).await, [1, 2, 3, 4, 5]);
    for event in events.into_iter().rev() {
        fixture.append(&[event.handler(OTHER_HANDLER)]).await;
    }
    let mut ran = Vec::new();
    while let [claimed] = fixture.claim_for(&[OTHER_HANDLER], 10).await.as_slice() {
        ran.extend(claimed.delivery.sequence);
        fixture.complete(claimed).await;
    }
    assert_eq!(ran, [1, 2, 3, 4, 5]);
}

/// A hundred events over seven keys and none, some of them delayed, run by claims of every size up to nine.
async fn a_mixed_hundred_runs_in_key_order(fixture: &Fixture) {
    const KEYS: [Option<&str>; 8] =
        [Some("a"), None, Some("b"), Some("c"), None, Some("d"), Some("e"), Some("f")];
    for n in 0..100_usize {
        let key = KEYS[n * n % 31 % KEYS.len()];
        let at = fixture.later(SECOND * (n as u32 * 7 % 13));
        let event = key.map_or(event(), keyed);
        fixture.publish(delayed(event, at)).await;
    }
    let mut ran: Vec<Delivery> = Vec::new();
    for round in 0..14 {
        ran.extend(fixture.drain(1 + round % 9).await);
        fixture.clock.advance(SECOND);
    }
    assert_eq!(ran.len(), 100);
    let mut by_key: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for delivery in ran {
        if let (Some(key), Some(sequence)) = (delivery.key, delivery.sequence) {
            by_key.entry(key).or_default().push(sequence);
        }
    }
    assert!(by_key.values().all(|sequences| sequences.is_sorted()), "{by_key:?}");
}

async fn key_state_tells_head_runner_and_backlog(fixture: &Fixture) {
    let state = || async { fixture.store.key_state(HANDLER, "a", fixture.now()).await.unwrap() };
    assert_eq!(state().await, Default::default());
    let published = first_is_dead(fixture, 4).await;
    fixture.publish(keyed("b")).await;
    let running = fixture.claim(1).await.remove(0);
    fixture.requeue(&published[0]).await;

    let now = state().await;
    assert_eq!(now.head.map(|head| head.id), Some(published[0].clone()));
    assert_eq!(now.running, Some(running.delivery.clone()));
    assert_eq!(now.unfinished, 4);

    fixture.clock.advance(LEASE);
    let expired = state().await;
    assert_eq!((expired.running, expired.unfinished), (None, 4));
    assert_eq!(fixture.status(&running.delivery.id).await, Status::Processing);
    assert_eq!(fixture.store.key_state(OTHER_HANDLER, "a", fixture.now()).await.unwrap(), Default::default());
}
