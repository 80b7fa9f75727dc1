//! What an operator asks about a delivery that does not move.

use relayctl::model::{FailureKind, HandlerActivity, Status};
use relayctl::store::{ACTIVITY_WINDOW, Outcome};

use crate::fixture::{Fixture, HANDLER, HOUR, LEASE, OTHER_HANDLER, SECOND, bury, event, failure, keyed};

conformance![
    what_waits_behind_a_sequence_is_unfinished_and_later,
    a_handler_without_deliveries_shows_no_sign,
    a_live_lease_is_a_sign_and_an_expired_one_is_none,
    every_outcome_of_a_worker_is_a_sign_and_an_operators_is_none,
    a_crash_that_an_operator_recovered_is_no_sign,
    the_latest_outcome_counts_and_that_of_another_handler_does_not,
    an_outcome_in_front_of_a_long_backlog_is_found,
];

async fn behind(fixture: &Fixture, sequence: i64) -> u64 {
    fixture.store.waiting_behind(HANDLER, "a", sequence).await.unwrap()
}

async fn activity(fixture: &Fixture) -> HandlerActivity {
    fixture.store.handler_activity(HANDLER, fixture.now()).await.unwrap()
}

async fn what_waits_behind_a_sequence_is_unfinished_and_later(fixture: &Fixture) {
    let published = fixture.publish_many(keyed("a"), 6).await;
    fixture.publish_many(keyed("b"), 3).await;
    fixture.publish_many(keyed("a").handler(OTHER_HANDLER), 1).await;
    fixture.publish(event()).await;
    fixture.bury(&published[4]).await;
    assert_eq!([behind(fixture, 0).await, behind(fixture, 1).await], [6, 5]);
    assert_eq!([behind(fixture, 3).await, behind(fixture, 6).await], [3, 1]);
    assert_eq!([behind(fixture, 7).await, behind(fixture, i64::MAX).await], [0, 0]);
    fixture.claim(1).await;
    assert_eq!(behind(fixture, 0).await, 6, "what runs is not finished");
    assert_eq!(fixture.store.waiting_behind("nobody", "a", 0).await.unwrap(), 0);
}

async fn a_handler_without_deliveries_shows_no_sign(fixture: &Fixture) {
    assert_eq!(activity(fixture).await, HandlerActivity::default());
    fixture.publish(event()).await;
    assert_eq!(activity(fixture).await.last_outcome_at, None);
    assert_eq!(activity(fixture).await.running, None);
}

async fn a_live_lease_is_a_sign_and_an_expired_one_is_none(fixture: &Fixture) {
    fixture.publish(event()).await;
    let claimed = fixture.claim_only().await;
    assert_eq!(activity(fixture).await.running, Some(claimed.delivery));
    let other = fixture.store.handler_activity(OTHER_HANDLER, fixture.now()).await.unwrap();
    assert_eq!(other, HandlerActivity::default());
    fixture.clock.advance(LEASE);
    assert_eq!(activity(fixture).await.running, None);
}

async fn every_outcome_of_a_worker_is_a_sign_and_an_operators_is_none(fixture: &Fixture) {
    let given_up = fixture.publish(event()).await;
    fixture.bury(&given_up).await;
    assert_eq!(activity(fixture).await.last_outcome_at, None);
    let retry = Outcome::Reschedule { available_at: fixture.later(HOUR), failure: failure() };
    for outcome in [Outcome::Complete, bury(), retry] {
        fixture.clock.advance(SECOND);
        fixture.publish(event()).await;
        let claimed = fixture.claim_only().await;
        let _ = fixture.settle(&claimed, outcome.clone()).await;
        assert_eq!(activity(fixture).await.last_outcome_at, Some(fixture.now()), "{outcome:?}");
        assert_eq!(activity(fixture).await.running, None);
    }
    let failed_at = fixture.now();
    let waiting =
        fixture.all().await.into_iter().find(|delivery| delivery.status == Status::Pending).unwrap();
    fixture.clock.advance(SECOND);
    fixture.bury(&waiting.id).await;
    assert_eq!(activity(fixture).await.last_outcome_at, Some(failed_at), "a burial hides no failure");
}

async fn a_crash_that_an_operator_recovered_is_no_sign(fixture: &Fixture) {
    fixture.publish(event()).await;
    fixture.claim_only().await;
    fixture.clock.advance(LEASE);
    fixture.store.recover(&[], fixture.now()).await.unwrap();
    let recovered = fixture.all().await.remove(0);
    assert_eq!(recovered.errors[0].kind, FailureKind::Crashed);
    assert_eq!(activity(fixture).await.last_outcome_at, None);
}

async fn the_latest_outcome_counts_and_that_of_another_handler_does_not(fixture: &Fixture) {
    fixture.publish_many(event(), 2).await;
    let claimed = fixture.claim(2).await;
    fixture.complete(&claimed[1]).await;
    fixture.clock.advance(SECOND);
    fixture.complete(&claimed[0]).await;
    let latest = fixture.now();
    fixture.clock.advance(SECOND);
    fixture.publish(event().handler(OTHER_HANDLER)).await;
    let others = fixture.claim_for(&[OTHER_HANDLER], 1).await;
    fixture.complete_all(&others).await;
    assert_eq!(activity(fixture).await.last_outcome_at, Some(latest));
}

/// Ten times as many as are looked at were created since, and none of them has run.
async fn an_outcome_in_front_of_a_long_backlog_is_found(fixture: &Fixture) {
    fixture.publish(event()).await;
    let claimed = fixture.claim_only().await;
    fixture.complete(&claimed).await;
    let completed_at = fixture.now();
    for _ in 0..10 {
        fixture.clock.advance(SECOND);
        fixture.publish_many(event(), ACTIVITY_WINDOW).await;
    }
    let activity = activity(fixture).await;
    assert_eq!(activity.last_outcome_at, Some(completed_at));
    assert!(activity.examined >= ACTIVITY_WINDOW as u64, "{activity:?}");
}
