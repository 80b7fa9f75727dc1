//! What holds handlers up: kept for workers to read, and never acted on by the store itself.

use std::time::Duration;

use relayctl::model::{Pause, Timestamp, TrippedBreaker};

use crate::fixture::{Fixture, HANDLER, HOUR, MILLISECOND, OTHER_HANDLER, SECOND, event};

conformance![
    nothing_is_paused_at_first,
    a_pause_is_kept_as_it_was_given,
    a_pause_again_replaces_all_but_its_beginning,
    a_pause_ends_by_itself,
    a_pause_behind_one_that_is_over_begins_anew,
    resuming_ends_a_pause_and_says_which,
    resuming_what_is_over_says_so,
    pauses_are_listed_by_handler,
    names_and_reasons_are_data,
    pauses_of_one_handler_race,
    a_paused_handler_can_be_claimed_for,
    a_report_is_kept_until_it_expires,
    a_report_replaces_the_one_before,
    expired_reports_of_the_handler_are_forgotten_with_the_next,
    breakers_and_pauses_do_not_meet,
];

fn pause(handler: &str, at: Timestamp) -> Pause {
    let reason = Some("the shop is closed".to_owned());
    Pause { handler: handler.into(), paused_at: at, paused_until: None, reason, by: "ana@desk".into() }
}

fn breaker(worker: &str, expires_at: Timestamp) -> TrippedBreaker {
    TrippedBreaker {
        handler: HANDLER.into(),
        worker: worker.into(),
        opened_at: Timestamp::from_millis(1_000),
        probe_at: Timestamp::from_millis(31_000),
        failures: 10,
        last_error: "exit status 1: no route to host".into(),
        expires_at,
    }
}

async fn pauses(fixture: &Fixture) -> Vec<Pause> {
    fixture.store.pauses(fixture.now()).await.unwrap()
}

async fn breakers(fixture: &Fixture) -> Vec<TrippedBreaker> {
    fixture.store.tripped_breakers(fixture.now()).await.unwrap()
}

async fn nothing_is_paused_at_first(fixture: &Fixture) {
    assert_eq!((pauses(fixture).await, breakers(fixture).await), (vec![], vec![]));
    assert_eq!(fixture.store.resume(HANDLER, fixture.now()).await.unwrap(), None);
    fixture.store.forget_breaker(HANDLER, "here:1").await.unwrap();
}

async fn a_pause_is_kept_as_it_was_given(fixture: &Fixture) {
    let bare = Pause { reason: None, ..pause(HANDLER, fixture.now()) };
    assert_eq!(fixture.store.pause(&bare).await.unwrap(), None);
    assert_eq!(pauses(fixture).await, [bare]);
    let full = Pause { paused_until: Some(fixture.later(HOUR)), ..pause(OTHER_HANDLER, fixture.now()) };
    assert_eq!(fixture.store.pause(&full).await.unwrap(), None);
    assert_eq!(pauses(fixture).await[0], full);
}

async fn a_pause_again_replaces_all_but_its_beginning(fixture: &Fixture) {
    let first = Pause { paused_until: Some(fixture.later(HOUR)), ..pause(HANDLER, fixture.now()) };
    fixture.store.pause(&first).await.unwrap();
    fixture.clock.advance(SECOND);
    let second = Pause {
        paused_at: fixture.now(),
        paused_until: None,
        reason: None,
        by: "bo@desk".into(),
        handler: HANDLER.into(),
    };
    assert_eq!(fixture.store.pause(&second).await.unwrap(), Some(first.clone()));
    assert_eq!(pauses(fixture).await, [Pause { paused_at: first.paused_at, ..second }]);
}

async fn a_pause_ends_by_itself(fixture: &Fixture) {
    let until = fixture.later(SECOND);
    fixture.store.pause(&Pause { paused_until: Some(until), ..pause(HANDLER, fixture.now()) }).await.unwrap();
    fixture.clock.advance(SECOND - MILLISECOND);
    assert_eq!(pauses(fixture).await.len(), 1);
    fixture.clock.advance(MILLISECOND);
    assert_eq!(pauses(fixture).await, []);
}

async fn a_pause_behind_one_that_is_over_begins_anew(fixture: &Fixture) {
    let until = fixture.later(SECOND);
    fixture.store.pause(&Pause { paused_until: Some(until), ..pause(HANDLER, fixture.now()) }).await.unwrap();
    fixture.clock.advance(SECOND);
    let again = pause(HANDLER, fixture.now());
    assert_eq!(fixture.store.pause(&again).await.unwrap(), None);
    assert_eq!(pauses(fixture).await, [again]);
}

async fn resuming_ends_a_pause_and_says_which(fixture: &Fixture) {
    let (one, other) = (pause(HANDLER, fixture.now()), pause(OTHER_HANDLER, fixture.now()));
    fixture.store.pause(&one).await.unwrap();
    fixture.store.pause(&other).await.unwrap();
    assert_eq!(fixture.store.resume(HANDLER, fixture.now()).await.unwrap(), Some(one));
    assert_eq!(fixture.store.resume(HANDLER, fixture.now()).await.unwrap(), None);
    assert_eq!(pauses(fixture).await, [other]);
}

async fn resuming_what_is_over_says_so(fixture: &Fixture) {
    let until = fixture.later(SECOND);
    fixture.store.pause(&Pause { paused_until: Some(until), ..pause(HANDLER, fixture.now()) }).await.unwrap();
    fixture.clock.advance(SECOND);
    assert_eq!(fixture.store.resume(HANDLER, fixture.now()).await.unwrap(), None);
}

async fn pauses_are_listed_by_handler(fixture: &Fixture) {
    for handler in ["c", "a", "b"] {
        fixture.store.pause(&pause(handler, fixture.now())).await.unwrap();
    }
    let handlers: Vec<_> = pauses(fixture).await.into_iter().map(|pause| pause.handler).collect();
    assert_eq!(handlers, ["a", "b", "c"]);
}

async fn names_and_reasons_are_data(fixture: &Fixture) {
    let odd = Pause { reason: Some("$pausedAt".into()), by: "$$NOW".into(), ..pause("$by", fixture.now()) };
    fixture.store.pause(&odd).await.unwrap();
    assert_eq!(pauses(fixture).await, std::slice::from_ref(&odd));
    assert_eq!(fixture.store.resume("$by", fixture.now()).await.unwrap(), Some(odd));
}

async fn pauses_of_one_handler_race(fixture: &Fixture) {
    let one = pause(HANDLER, fixture.now());
    let racing = futures_util::future::join_all((0..8).map(|_| fixture.store.pause(&one))).await;
    let before: Vec<_> = racing.into_iter().filter_map(Result::unwrap).collect();
    assert_eq!((before.len(), pauses(fixture).await), (7, vec![one]));
}

async fn a_paused_handler_can_be_claimed_for(fixture: &Fixture) {
    fixture.publish(event()).await;
    fixture.store.pause(&pause(HANDLER, fixture.now())).await.unwrap();
    assert_eq!(fixture.claim(1).await.len(), 1);
}

async fn a_report_is_kept_until_it_expires(fixture: &Fixture) {
    let report = breaker("here:1", fixture.later(SECOND));
    fixture.store.report_breaker(&report, fixture.now()).await.unwrap();
    assert_eq!(breakers(fixture).await, [report]);
    fixture.clock.advance(SECOND);
    assert_eq!(breakers(fixture).await, []);
}

async fn a_report_replaces_the_one_before(fixture: &Fixture) {
    let first = breaker("here:1", fixture.later(SECOND));
    let other = breaker("there:2", fixture.later(SECOND));
    let second = TrippedBreaker { failures: 11, expires_at: fixture.later(HOUR), ..first.clone() };
    for report in [&other, &first, &second] {
        fixture.store.report_breaker(report, fixture.now()).await.unwrap();
    }
    assert_eq!(breakers(fixture).await, [second, other.clone()]);
    fixture.store.forget_breaker(HANDLER, "here:1").await.unwrap();
    fixture.store.forget_breaker(OTHER_HANDLER, "there:2").await.unwrap();
    assert_eq!(breakers(fixture).await, [other]);
}

async fn expired_reports_of_the_handler_are_forgotten_with_the_next(fixture: &Fixture) {
    let began = fixture.now();
    let theirs = TrippedBreaker { handler: OTHER_HANDLER.into(), ..breaker("gone:1", fixture.later(SECOND)) };
    fixture.store.report_breaker(&theirs, began).await.unwrap();
    fixture.store.report_breaker(&breaker("gone:1", fixture.later(SECOND)), began).await.unwrap();
    let lasting = breaker("there:2", fixture.later(HOUR));
    fixture.store.report_breaker(&lasting, began).await.unwrap();
    fixture.clock.advance(Duration::from_secs(2));
    let report = breaker("here:1", fixture.later(SECOND));
    fixture.store.report_breaker(&report, fixture.now()).await.unwrap();
    // As it would have been seen before they expired: the one of the other handler is still kept.
    assert_eq!(fixture.store.tripped_breakers(began).await.unwrap(), [theirs, report, lasting]);
}

async fn breakers_and_pauses_do_not_meet(fixture: &Fixture) {
    let report = breaker("here:1", fixture.later(HOUR));
    fixture.store.report_breaker(&report, fixture.now()).await.unwrap();
    let one = pause(HANDLER, fixture.now());
    fixture.store.pause(&one).await.unwrap();
    assert_eq!((pauses(fixture).await, breakers(fixture).await), (vec![one], vec![report]));
    fixture.store.resume(HANDLER, fixture.now()).await.unwrap();
    assert_eq!((pauses(fixture).await.len(), breakers(fixture).await.len()), (0, 1));
}
