//! Claiming without keys: what can be taken, in which order, and by whom.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use relayctl::model::{AttemptError, DeliveryId, FailureKind, Lane, MAX_ERROR_HISTORY, NewEvent, Status};
use relayctl::store::{ClaimRequest, Fenced, Outcome};

use crate::fixture::{
    Fixture, HANDLER, LEASE, MILLISECOND, OTHER_HANDLER, SECOND, bury, delayed, event, failure, ids, keyed,
};

conformance![
    a_claim_writes_the_lease_and_counts_the_attempt,
    an_empty_store_has_nothing_to_claim,
    oldest_first,
    ties_are_taken_by_id,
    a_claim_takes_at_most_its_limit,
    a_claim_of_nothing_takes_nothing,
    only_what_is_due_is_claimed,
    only_handlers_asked_for_are_claimed,
    a_handler_named_twice_is_claimed_once,
    live_leases_are_left_alone,
    an_expired_lease_is_taken_over_and_its_attempt_stays_counted,
    a_crash_is_remembered_by_the_claim_that_finds_it,
    a_crash_that_was_given_back_is_remembered_once,
    the_history_of_crashes_keeps_the_latest_ten,
    finished_deliveries_are_never_claimed,
    each_claim_has_a_token_of_its_own,
    the_owner_is_kept_and_never_compared,
    a_far_lease_stops_at_the_end_of_time,
    claimers_share_and_never_double,
    two_claimers_and_one_expired_lease_have_one_winner,
    eight_claimers_and_one_expired_lease_have_one_winner,
    a_late_completion_and_a_claim_race_to_one_of_both,
    events_are_found_by_id_and_missing_ones_left_out,
];

async fn a_claim_writes_the_lease_and_counts_the_attempt(fixture: &Fixture) {
    let id = fixture.publish(NewEvent { max_attempts: Some(3), ..event() }).await;
    let before = fixture.get(&id).await;
    fixture.clock.advance(SECOND);
    let claimed = fixture.claim_only().await;
    let expires_at = fixture.later(LEASE);
    let delivery = &claimed.delivery;
    assert_eq!((delivery.status, delivery.lane, delivery.attempts), (Status::Processing, Lane::Ready, 1));
    assert_eq!((delivery.lease_expires_at, delivery.due_at), (Some(expires_at), Some(expires_at)));
    assert_eq!(delivery.lease_owner.as_deref(), Some("worker:1"));
    assert_eq!(delivery.lease().as_ref(), Some(&claimed.lease));
    assert_eq!((delivery.available_at, delivery.updated_at), (before.available_at, fixture.now()));
    assert_eq!((delivery.max_attempts, delivery.created_at), (Some(3), before.created_at));
    assert_eq!(fixture.get(&id).await, *delivery);
}

async fn an_empty_store_has_nothing_to_claim(fixture: &Fixture) {
    assert_eq!(fixture.claim(10).await, []);
}

async fn oldest_first(fixture: &Fixture) {
    let mut by_age = Vec::new();
    for age in [3, 1, 5, 2, 4] {
        let at = fixture.now().saturating_sub(SECOND * age);
        by_age.push((at, fixture.publish(delayed(event(), at)).await));
    }
    by_age.sort();
    let expected: Vec<DeliveryId> = by_age.into_iter().map(|(_, id)| id).collect();
    assert_eq!(ids(&fixture.claim(2).await), expected[..2]);
    assert_eq!(ids(&fixture.claim(9).await), expected[2..]);
}

async fn ties_are_taken_by_id(fixture: &Fixture) {
    let mut published = fixture.publish_many(event(), 20).await;
    published.sort();
    assert_eq!(ids(&fixture.claim(5).await), published[..5]);
    assert_eq!(ids(&fixture.claim(50).await), published[5..]);
}

async fn a_claim_takes_at_most_its_limit(fixture: &Fixture) {
    fixture.publish_many(event(), 250).await;
    for (limit, expected) in [(1, 1), (7, 7), (200, 200), (100, 42), (1, 0)] {
        assert_eq!(fixture.claim(limit).await.len(), expected, "limit {limit}");
    }
}

async fn a_claim_of_nothing_takes_nothing(fixture: &Fixture) {
    fixture.publish(event()).await;
    assert_eq!(fixture.claim(0).await, []);
    assert_eq!(fixture.claim_for(&[], 10).await, []);
    assert_eq!(fixture.claim(10).await.len(), 1);
}

async fn only_what_is_due_is_claimed(fixture: &Fixture) {
    let id = fixture.publish(delayed(event(), fixture.later(SECOND))).await;
    fixture.clock.advance(SECOND - MILLISECOND);
    assert_eq!(fixture.claim(10).await, []);
    fixture.clock.advance(MILLISECOND);
    assert_eq!(ids(&fixture.claim(10).await), [id]);
}

async fn only_handlers_asked_for_are_claimed(fixture: &Fixture) {
    let appended = fixture.append(&[event().handler(OTHER_HANDLER).handler("third")]).await.remove(0);
    let id_of = |place: usize| appended.deliveries[place].id.clone();
    assert_eq!(fixture.claim_for(&["nobody"], 10).await, []);
    assert_eq!(ids(&fixture.claim_for(&[OTHER_HANDLER], 10).await), [id_of(1)]);
    let both: BTreeSet<_> = ids(&fixture.claim_for(&[HANDLER, "third"], 10).await).into_iter().collect();
    assert_eq!(both, BTreeSet::from([id_of(0), id_of(2)]));
}

async fn a_handler_named_twice_is_claimed_once(fixture: &Fixture) {
    let id = fixture.publish(event()).await;
    assert_eq!(ids(&fixture.claim_for(&[HANDLER, HANDLER], 10).await), [id]);
}

async fn live_leases_are_left_alone(fixture: &Fixture) {
    fixture.publish(event()).await;
    let claimed = fixture.claim_only().await;
    fixture.clock.advance(LEASE - MILLISECOND);
    assert_eq!(fixture.claim(10).await, []);
    assert_eq!(fixture.get(&claimed.delivery.id).await, claimed.delivery);
}

async fn an_expired_lease_is_taken_over_and_its_attempt_stays_counted(fixture: &Fixture) {
    fixture.publish(event()).await;
    let crashed = fixture.claim_only().await;
    fixture.clock.advance(LEASE);
    let taken = fixture.claim_only().await;
    assert_eq!(taken.delivery.id, crashed.delivery.id);
    assert_eq!(taken.delivery.attempts, 2);
    assert_ne!(taken.lease.token, crashed.lease.token);
    assert_eq!(taken.delivery.due_at, Some(fixture.later(LEASE)));
}

async fn a_crash_is_remembered_by_the_claim_that_finds_it(fixture: &Fixture) {
    fixture.publish(keyed("a")).await;
    fixture.publish(event()).await;
    let crashed = fixture.claim(2).await;
    assert!(crashed.iter().all(|one| one.crash().is_none()));
    fixture.clock.advance(LEASE);
    let taken = fixture.claim(2).await;
    for one in &taken {
        let before = crashed.iter().find(|before| before.delivery.id == one.delivery.id).unwrap();
        let owner = before.delivery.lease_owner.as_deref().unwrap();
        let message = format!("worker {owner} died, or lost its lease, without an outcome");
        let error = AttemptError {
            attempt: 1,
            at: fixture.now(),
            kind: FailureKind::Crashed,
            message: message.clone(),
        };
        assert_eq!(one.crash(), Some(&error));
        let delivery = fixture.get(&one.delivery.id).await;
        assert_eq!((delivery.errors.clone(), delivery.last_error.clone()), (vec![error], Some(message)));
        assert_eq!(delivery, one.delivery);
    }
    assert_eq!(taken.len(), 2);
}

async fn a_crash_that_was_given_back_is_remembered_once(fixture: &Fixture) {
    let id = fixture.publish(event()).await;
    fixture.claim_only().await;
    fixture.clock.advance(LEASE);
    let taken = fixture.claim_only().await;
    assert_eq!(fixture.settle(&taken, Outcome::Release).await, Fenced::Applied);
    fixture.clock.advance(SECOND);
    let again = fixture.claim_only().await;
    assert_eq!((again.delivery.attempts, again.crash()), (2, None));
    assert_eq!(fixture.get(&id).await.errors.len(), 1);
}

async fn the_history_of_crashes_keeps_the_latest_ten(fixture: &Fixture) {
    let id = fixture.publish(event()).await;
    for _ in 0..MAX_ERROR_HISTORY + 3 {
        fixture.claim_only().await;
        fixture.clock.advance(LEASE);
    }
    let claimed = fixture.claim_only().await;
    let attempts = |errors: &[AttemptError]| errors.iter().map(|error| error.attempt).collect::<Vec<_>>();
    assert_eq!(attempts(&claimed.delivery.errors), (4..=13).collect::<Vec<_>>());
    assert_eq!(fixture.settle(&claimed, bury()).await, Fenced::Applied);
    assert_eq!(attempts(&fixture.get(&id).await.errors), (5..=14).collect::<Vec<_>>());
}

async fn finished_deliveries_are_never_claimed(fixture: &Fixture) {
    fixture.publish_many(event(), 2).await;
    let claimed = fixture.claim(2).await;
    fixture.complete(&claimed[0]).await;
    let _ = fixture.settle(&claimed[1], bury()).await;
    fixture.clock.advance(LEASE * 1_000);
    assert_eq!(fixture.claim(10).await, []);
}

async fn each_claim_has_a_token_of_its_own(fixture: &Fixture) {
    fixture.publish_many(event(), 2).await;
    let first = fixture.claim(1).await;
    let second = fixture.claim(1).await;
    assert_ne!(first[0].lease.token, second[0].lease.token);
}

async fn the_owner_is_kept_and_never_compared(fixture: &Fixture) {
    fixture.publish(event()).await;
    let request = fixture.request(1);
    fixture.store.claim(&request).await.unwrap();
    let same_name = ClaimRequest { owner: request.owner.clone(), ..fixture.request(10) };
    assert_eq!(fixture.store.claim(&same_name).await.unwrap(), []);
}

async fn a_far_lease_stops_at_the_end_of_time(fixture: &Fixture) {
    fixture.publish(event()).await;
    let for_ever = ClaimRequest { lease: Duration::MAX, ..fixture.request(1) };
    let claimed = fixture.store.claim(&for_ever).await.unwrap().remove(0);
    assert!(claimed.delivery.lease_expires_at > Some(fixture.later(LEASE * 1_000_000)));
    fixture.complete(&claimed).await;
}

async fn claimers_share_and_never_double(fixture: &Fixture) {
    for round in 0..3 {
        let published: BTreeSet<_> = fixture.publish_many(event(), 100).await.into_iter().collect();
        let shares = join_all((0..8).map(|_| claim_until_empty(fixture, 5 + round))).await;
        let claimed: Vec<_> = shares.into_iter().flatten().collect();
        assert_eq!(claimed.len(), 100);
        assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>(), published);
    }
}

/// Two empty answers in a row: one may come of having lost everything that was found to other claimers.
async fn claim_until_empty(fixture: &Fixture, limit: usize) -> Vec<DeliveryId> {
    let (mut claimed, mut empty_answers) = (Vec::new(), 0);
    while empty_answers < 2 {
        let answer = ids(&fixture.claim(limit).await);
        empty_answers = if answer.is_empty() { empty_answers + 1 } else { 0 };
        claimed.extend(answer);
    }
    claimed
}

async fn two_claimers_and_one_expired_lease_have_one_winner(fixture: &Fixture) {
    one_winner_of(fixture, 2).await;
}

async fn eight_claimers_and_one_expired_lease_have_one_winner(fixture: &Fixture) {
    one_winner_of(fixture, 8).await;
}

async fn one_winner_of(fixture: &Fixture, claimers: usize) {
    for (round, event) in
        [event(), event().key("a"), event(), event().key("b"), event()].into_iter().enumerate()
    {
        fixture.publish(event).await;
        fixture.claim_only().await;
        fixture.clock.advance(LEASE);
        let answers = join_all((0..claimers).map(|_| fixture.claim(10))).await;
        let winners: Vec<_> = answers.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "round {round}");
        assert_eq!(winners[0].delivery.attempts, 2);
        fixture.complete(&winners[0]).await;
    }
}

async fn a_late_completion_and_a_claim_race_to_one_of_both(fixture: &Fixture) {
    for _ in 0..10 {
        fixture.publish(event()).await;
        let late = fixture.claim_only().await;
        fixture.clock.advance(LEASE);
        let (fenced, claimed) =
            futures_util::join!(fixture.settle(&late, Outcome::Complete), fixture.claim(1));
        match claimed.first() {
            None => assert_eq!(fixture.status(&late.delivery.id).await, Status::Completed),
            Some(taken) => {
                let retry = Outcome::Reschedule { available_at: fixture.now(), failure: failure() };
                assert_eq!(fixture.settle(&late, retry).await, Fenced::LeaseLost);
                fixture.complete(taken).await;
            }
        }
        assert_eq!(fenced == Fenced::Applied, claimed.is_empty());
    }
}

async fn events_are_found_by_id_and_missing_ones_left_out(fixture: &Fixture) {
    let appended = fixture.append(&[event().id("e-1"), event().id("e-2")]).await;
    let wanted = ["e-2".into(), "missing".into(), r#"{"$ne":null}"#.into(), "e-1".into()];
    let mut found: Vec<_> = fixture.events(&wanted).await.into_iter().map(|event| event.id).collect();
    found.sort();
    assert_eq!(found, [appended[0].id.clone(), appended[1].id.clone()]);
    assert_eq!(fixture.events(&[]).await, []);
}
