//! Outcomes: what each does under its lease, and that without the lease none does anything.

use relayctl::model::{
    AttemptError, Delivery, Failure, FailureKind, Lease, LeaseToken, MAX_ERROR_HISTORY, Status,
};
use relayctl::store::{ClaimRequest, Claimed, Fenced, Outcome, Settlement};

use crate::fixture::{Fixture, HOUR, LEASE, SECOND, bury, event, every_outcome, failure, ids, keyed};

conformance![
    complete_finishes,
    reschedule_waits_and_remembers,
    release_gives_the_attempt_back,
    release_takes_back_its_own_attempt_alone,
    snooze_puts_off_without_counting_the_attempt,
    snooze_keeps_the_history_and_the_attempts_before,
    a_snoozed_head_blocks_its_followers,
    bury_gives_up_and_remembers,
    extend_lease_moves_the_expiry_alone,
    an_extended_lease_holds_until_its_new_expiry,
    an_old_token_changes_nothing_and_says_so,
    a_token_is_worthless_once_its_outcome_is_recorded,
    a_lease_of_nothing_is_lost,
    an_invented_token_is_lost,
    an_expired_lease_that_nobody_took_still_counts,
    a_lease_of_a_key_that_ran_out_is_not_revived,
    a_lease_that_was_over_at_once_is_not_revived_among_others,
    answers_are_in_the_order_of_the_settlements,
    outcomes_of_one_lease_in_one_call_apply_once,
    a_great_many_settlements_are_each_answered,
    no_settlements_have_no_answers,
    the_history_keeps_the_latest_ten,
    a_finished_delivery_keeps_its_history,
];

async fn one_claimed(fixture: &Fixture) -> Claimed {
    fixture.publish(keyed("a")).await;
    fixture.clock.advance(SECOND);
    let claimed = fixture.claim_only().await;
    fixture.clock.advance(SECOND);
    claimed
}

/// What the delivery looks like when it is no longer leased.
fn unleased(delivery: &Delivery) -> Delivery {
    Delivery { lease_expires_at: None, lease_token: None, lease_owner: None, ..delivery.clone() }
}

fn remembered(fixture: &Fixture, attempt: u32) -> Vec<AttemptError> {
    let Failure { kind, message } = failure();
    vec![AttemptError { attempt, at: fixture.now(), kind, message }]
}

async fn assert_becomes(fixture: &Fixture, claimed: &Claimed, outcome: Outcome, expected: Delivery) {
    assert_eq!(fixture.settle(claimed, outcome).await, Fenced::Applied);
    assert_eq!(fixture.get(&claimed.delivery.id).await, Delivery { updated_at: fixture.now(), ..expected });
}

async fn complete_finishes(fixture: &Fixture) {
    let claimed = one_claimed(fixture).await;
    let completed_at = Some(fixture.now());
    let expected =
        Delivery { status: Status::Completed, due_at: None, completed_at, ..unleased(&claimed.delivery) };
    assert_becomes(fixture, &claimed, Outcome::Complete, expected).await;
}

async fn reschedule_waits_and_remembers(fixture: &Fixture) {
    let claimed = one_claimed(fixture).await;
    let available_at = fixture.later(HOUR);
    let expected = Delivery {
        status: Status::Pending,
        available_at,
        due_at: Some(available_at),
        last_error: Some(failure().message),
        errors: remembered(fixture, 1),
        ..unleased(&claimed.delivery)
    };
    let retry = Outcome::Reschedule { available_at, failure: failure() };
    assert_becomes(fixture, &claimed, retry, expected).await;
    assert_eq!(fixture.claim(10).await, []);
    fixture.clock.advance(HOUR);
    assert_eq!(fixture.claim_only().await.delivery.attempts, 2);
}

async fn release_gives_the_attempt_back(fixture: &Fixture) {
    let claimed = one_claimed(fixture).await;
    let expected = Delivery {
        status: Status::Pending,
        attempts: 0,
        due_at: Some(claimed.delivery.available_at),
        ..unleased(&claimed.delivery)
    };
    assert_becomes(fixture, &claimed, Outcome::Release, expected).await;
    assert_eq!(fixture.claim_only().await.delivery.attempts, 1);
}

async fn release_takes_back_its_own_attempt_alone(fixture: &Fixture) {
    fixture.publish(event()).await;
    fixture.claim_only().await;
    fixture.clock.advance(LEASE);
    let second = fixture.claim_only().await;
    assert_eq!(fixture.settle(&second, Outcome::Release).await, Fenced::Applied);
    assert_eq!(fixture.get(&second.delivery.id).await.attempts, 1);
}

async fn snooze_puts_off_without_counting_the_attempt(fixture: &Fixture) {
    let claimed = one_claimed(fixture).await;
    let available_at = fixture.later(HOUR);
    let expected = Delivery {
        status: Status::Pending,
        attempts: 0,
        available_at,
        due_at: Some(available_at),
        ..unleased(&claimed.delivery)
    };
    assert_becomes(fixture, &claimed, Outcome::Snooze { available_at }, expected).await;
    fixture.clock.advance(HOUR - SECOND);
    assert_eq!(fixture.claim(10).await, []);
    fixture.clock.advance(SECOND);
    assert_eq!(fixture.claim_only().await.delivery.attempts, 1);
}

async fn snooze_keeps_the_history_and_the_attempts_before(fixture: &Fixture) {
    let first = one_claimed(fixture).await;
    let retry = Outcome::Reschedule { available_at: fixture.now(), failure: failure() };
    assert_eq!(fixture.settle(&first, retry).await, Fenced::Applied);
    let errors = remembered(fixture, 1);
    let second = fixture.claim_only().await;
    assert_eq!(second.delivery.attempts, 2);
    let snooze = Outcome::Snooze { available_at: fixture.now() };
    assert_eq!(fixture.settle(&second, snooze).await, Fenced::Applied);
    let after = fixture.get(&first.delivery.id).await;
    assert_eq!((after.attempts, after.last_error, after.errors), (1, Some(failure().message), errors));
}

async fn a_snoozed_head_blocks_its_followers(fixture: &Fixture) {
    let head = one_claimed(fixture).await;
    let follower = fixture.publish(keyed("a")).await;
    let snooze = Outcome::Snooze { available_at: fixture.later(HOUR) };
    assert_eq!(fixture.settle(&head, snooze).await, Fenced::Applied);
    assert_eq!(fixture.claim(10).await, []);
    fixture.clock.advance(HOUR);
    let again = fixture.claim_only().await;
    assert_eq!(again.delivery.id, head.delivery.id);
    fixture.complete(&again).await;
    assert_eq!(fixture.claim_only().await.delivery.id, follower);
}

async fn bury_gives_up_and_remembers(fixture: &Fixture) {
    let claimed = one_claimed(fixture).await;
    let expected = Delivery {
        status: Status::Dead,
        due_at: None,
        last_error: Some(failure().message),
        errors: remembered(fixture, 1),
        ..unleased(&claimed.delivery)
    };
    assert_becomes(fixture, &claimed, bury(), expected).await;
}

async fn extend_lease_moves_the_expiry_alone(fixture: &Fixture) {
    let claimed = one_claimed(fixture).await;
    let expires_at = fixture.later(HOUR);
    let expected =
        Delivery { lease_expires_at: Some(expires_at), due_at: Some(expires_at), ..claimed.delivery.clone() };
    assert_becomes(fixture, &claimed, Outcome::ExtendLease { expires_at }, expected).await;
}

async fn an_extended_lease_holds_until_its_new_expiry(fixture: &Fixture) {
    let claimed = one_claimed(fixture).await;
    let expires_at = fixture.later(HOUR);
    assert_eq!(fixture.settle(&claimed, Outcome::ExtendLease { expires_at }).await, Fenced::Applied);
    fixture.clock.advance(HOUR - SECOND);
    assert_eq!(fixture.claim(10).await, []);
    fixture.clock.advance(SECOND);
    assert_eq!(fixture.claim_only().await.delivery.attempts, 2);
}

async fn an_old_token_changes_nothing_and_says_so(fixture: &Fixture) {
    fixture.publish(keyed("a")).await;
    let old = fixture.claim_only().await;
    fixture.clock.advance(LEASE);
    let held = fixture.claim_only().await;
    fixture.clock.advance(SECOND);
    for outcome in every_outcome(fixture.now()) {
        assert_eq!(fixture.settle(&old, outcome.clone()).await, Fenced::LeaseLost, "{outcome:?}");
        assert_eq!(fixture.get(&held.delivery.id).await, held.delivery, "{outcome:?}");
    }
    fixture.complete(&held).await;
}

async fn a_token_is_worthless_once_its_outcome_is_recorded(fixture: &Fixture) {
    let ending = every_outcome(fixture.now()).into_iter().take(5);
    for first in ending {
        fixture.publish(event()).await;
        let claimed = fixture.claim(1).await.remove(0);
        assert_eq!(fixture.settle(&claimed, first.clone()).await, Fenced::Applied);
        let after = fixture.get(&claimed.delivery.id).await;
        for second in every_outcome(fixture.now()) {
            let fenced = fixture.settle(&claimed, second.clone()).await;
            assert_eq!(fenced, Fenced::LeaseLost, "{second:?} after {first:?}");
        }
        assert_eq!(fixture.get(&claimed.delivery.id).await, after);
        if after.status == Status::Pending {
            fixture.bury(&after.id).await;
        }
    }
}

async fn a_lease_of_nothing_is_lost(fixture: &Fixture) {
    let lease = Lease { delivery_id: "nothing".into(), token: LeaseToken::from("t") };
    for outcome in every_outcome(fixture.now()) {
        let fenced = fixture.store.settle_one(&lease, outcome, fixture.now()).await.unwrap();
        assert_eq!(fenced, Fenced::LeaseLost);
    }
    assert_eq!(fixture.all().await, []);
}

async fn an_invented_token_is_lost(fixture: &Fixture) {
    let pending = fixture.publish(event()).await;
    for token in ["", "null", r#"{"$ne":null}"#, "$leaseToken"] {
        let lease = Lease { delivery_id: pending.clone(), token: LeaseToken::from(token) };
        for outcome in every_outcome(fixture.now()) {
            let fenced = fixture.store.settle_one(&lease, outcome, fixture.now()).await.unwrap();
            assert_eq!(fenced, Fenced::LeaseLost, "{token}");
        }
    }
    assert_eq!(fixture.get(&pending).await.status, Status::Pending);
    let claimed = fixture.claim_only().await;
    let guessed = Lease { token: LeaseToken::from(r#"{"$ne":null}"#), ..claimed.lease };
    let fenced = fixture.store.settle_one(&guessed, Outcome::Complete, fixture.now()).await.unwrap();
    assert_eq!(fenced, Fenced::LeaseLost);
    assert_eq!(fixture.get(&pending).await, claimed.delivery);
}

async fn an_expired_lease_that_nobody_took_still_counts(fixture: &Fixture) {
    for outcome in every_outcome(fixture.later(HOUR)) {
        let id = fixture.publish(event()).await;
        let claimed = fixture.claim_only().await;
        fixture.clock.advance(LEASE * 2);
        assert_eq!(fixture.settle(&claimed, outcome.clone()).await, Fenced::Applied, "{outcome:?}");
        let expected = outcome.transition();
        let after = relayctl::model::apply(&claimed.delivery, &expected, fixture.now()).unwrap();
        assert_eq!(fixture.get(&id).await, after);
        if after.status.is_unfinished() {
            fixture.bury(&id).await;
        }
    }
}

/// Behind an expired lease a requeued predecessor may have been claimed: reviving the lease would make two of a key run.
async fn a_lease_of_a_key_that_ran_out_is_not_revived(fixture: &Fixture) {
    let first = fixture.publish(keyed("a")).await;
    fixture.publish(keyed("a")).await;
    fixture.bury(&first).await;
    let later = fixture.claim_only().await;
    fixture.clock.advance(LEASE * 2);
    fixture.requeue(&first).await;
    assert_eq!(ids(&fixture.claim(10).await), [first]);
    let extend = Outcome::ExtendLease { expires_at: fixture.later(HOUR) };
    assert_eq!(fixture.settle(&later, extend.clone()).await, Fenced::LeaseLost);
    let both =
        [&later, &later].map(|claimed| Settlement { lease: claimed.lease.clone(), outcome: extend.clone() });
    assert_eq!(fixture.store.settle(&both, fixture.now()).await.unwrap(), [Fenced::LeaseLost; 2]);
    assert_eq!(fixture.get(&later.delivery.id).await, later.delivery);
    assert_eq!(fixture.settle(&later, Outcome::Complete).await, Fenced::Applied);
}

/// Nothing in the delivery shows that its extension was refused: the claim wrote the same token at the same instant.
async fn a_lease_that_was_over_at_once_is_not_revived_among_others(fixture: &Fixture) {
    fixture.publish(event()).await;
    let other = fixture.claim_only().await;
    fixture.publish(keyed("a")).await;
    let request = ClaimRequest { lease: std::time::Duration::ZERO, ..fixture.request(1) };
    let over = fixture.store.claim(&request).await.unwrap().remove(0);
    let extend = Outcome::ExtendLease { expires_at: fixture.later(HOUR) };
    let settlements = [
        Settlement { lease: over.lease.clone(), outcome: extend },
        Settlement { lease: other.lease.clone(), outcome: Outcome::Complete },
    ];
    let answers = fixture.store.settle(&settlements, fixture.now()).await.unwrap();
    assert_eq!(answers, [Fenced::LeaseLost, Fenced::Applied]);
    assert_eq!(fixture.get(&over.delivery.id).await, over.delivery);
}

async fn answers_are_in_the_order_of_the_settlements(fixture: &Fixture) {
    fixture.publish_many(event(), 4).await;
    let old = fixture.claim(4).await;
    fixture.complete(&old[1]).await;
    fixture.clock.advance(LEASE);
    let held = fixture.claim(2).await;
    let settle = |claimed: &Claimed, outcome: Outcome| Settlement { lease: claimed.lease.clone(), outcome };
    let untaken = old.iter().find(|one| one.lease != old[1].lease && !ids(&held).contains(&one.delivery.id));
    let settlements = [
        settle(&held[1], bury()),
        settle(&old[1], Outcome::Complete),
        settle(&held[0], Outcome::Release),
        settle(old.iter().find(|one| one.delivery.id == held[0].delivery.id).unwrap(), Outcome::Complete),
        settle(untaken.unwrap(), Outcome::Complete),
    ];
    let answers = fixture.store.settle(&settlements, fixture.now()).await.unwrap();
    use Fenced::{Applied, LeaseLost};
    assert_eq!(answers, [Applied, LeaseLost, Applied, LeaseLost, Applied]);
    assert_eq!(fixture.status(&held[1].delivery.id).await, Status::Dead);
    assert_eq!(fixture.status(&held[0].delivery.id).await, Status::Pending);
    assert_eq!(fixture.status(&untaken.unwrap().delivery.id).await, Status::Completed);
}

async fn outcomes_of_one_lease_in_one_call_apply_once(fixture: &Fixture) {
    fixture.publish(event()).await;
    let claimed = fixture.claim_only().await;
    let complete = Settlement { lease: claimed.lease.clone(), outcome: Outcome::Complete };
    let release = Settlement { lease: claimed.lease, outcome: Outcome::Release };
    let answers = fixture.store.settle(&[complete, release], fixture.now()).await.unwrap();
    let expected = match answers[..] {
        [Fenced::Applied, Fenced::LeaseLost] => Status::Completed,
        [Fenced::LeaseLost, Fenced::Applied] => Status::Pending,
        _ => panic!("{answers:?}"),
    };
    assert_eq!(fixture.status(&claimed.delivery.id).await, expected);
}

async fn a_great_many_settlements_are_each_answered(fixture: &Fixture) {
    fixture.publish_many(event(), 300).await;
    let claimed = fixture.claim(300).await;
    fixture.clock.advance(SECOND);
    fixture.bury(&claimed[7].delivery.id).await;
    let outcome_of = |place: usize| every_outcome(fixture.later(HOUR))[place % 6].clone();
    let settlements: Vec<_> = (claimed.iter().enumerate())
        .map(|(place, one)| Settlement { lease: one.lease.clone(), outcome: outcome_of(place) })
        .collect();
    let answers = fixture.store.settle(&settlements, fixture.now()).await.unwrap();
    assert_eq!(answers.len(), 300);
    for (place, (answer, one)) in answers.iter().zip(&claimed).enumerate() {
        let after = fixture.get(&one.delivery.id).await;
        if place == 7 {
            assert_eq!((*answer, after.status), (Fenced::LeaseLost, Status::Dead));
            continue;
        }
        let transition = outcome_of(place).transition();
        let expected = relayctl::model::apply(&one.delivery, &transition, fixture.now()).unwrap();
        assert_eq!((*answer, after), (Fenced::Applied, expected));
    }
}

async fn no_settlements_have_no_answers(fixture: &Fixture) {
    assert_eq!(fixture.store.settle(&[], fixture.now()).await.unwrap(), []);
}

async fn the_history_keeps_the_latest_ten(fixture: &Fixture) {
    let id = fixture.publish(event()).await;
    for attempt in 1..=MAX_ERROR_HISTORY + 2 {
        let claimed = fixture.claim_only().await;
        let failure = Failure::new(FailureKind::Timeout, format!("attempt {attempt}"));
        let retry = Outcome::Reschedule { available_at: fixture.now(), failure };
        assert_eq!(fixture.settle(&claimed, retry).await, Fenced::Applied);
        fixture.clock.advance(SECOND);
    }
    let delivery = fixture.get(&id).await;
    let attempts: Vec<_> = delivery.errors.iter().map(|error| error.attempt).collect();
    assert_eq!(attempts, (3..=12).collect::<Vec<_>>());
    assert_eq!(delivery.last_error.as_deref(), Some("attempt 12"));
    assert!(delivery.errors.iter().all(|error| error.kind == FailureKind::Timeout));
    assert!(delivery.errors.is_sorted_by_key(|error| error.at));
}

async fn a_finished_delivery_keeps_its_history(fixture: &Fixture) {
    let claimed = one_claimed(fixture).await;
    let retry = Outcome::Reschedule { available_at: fixture.now(), failure: failure() };
    assert_eq!(fixture.settle(&claimed, retry).await, Fenced::Applied);
    let again = fixture.claim_only().await;
    fixture.complete(&again).await;
    let done = fixture.get(&claimed.delivery.id).await;
    assert_eq!((done.status, done.attempts, done.errors.len()), (Status::Completed, 2, 1));
    assert_eq!(done.last_error, Some(failure().message));
}
