//! Each finding, from facts that were made by hand, and facts as a store gives them.

use std::time::Duration;

use super::*;
use crate::model::{
    AttemptError, Controls, Delivery, DeliveryId, FailureKind, HandlerActivity, KeyState, Lane, Pause,
    Status, Timestamp, TrippedBreaker,
};

const NOW: Timestamp = Timestamp::from_millis(100_000_000);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() + seconds * 1_000)
}

/// A delivery of handler `h` and key `k`, due or leased until so many seconds from now.
fn delivery(sequence: i64, status: Status, due: i64) -> Delivery {
    let is_leased = status == Status::Processing;
    Delivery {
        id: DeliveryId::from(format!("d{sequence}")),
        event_id: format!("e{sequence}").into(),
        event_type: "t".into(),
        handler: "h".into(),
        key: Some("k".into()),
        sequence: Some(sequence),
        status,
        lane: Lane::Ready,
        attempts: u32::from(is_leased),
        max_attempts: None,
        available_at: at(due),
        lease_expires_at: is_leased.then_some(at(due)),
        lease_token: is_leased.then(|| "token".into()),
        lease_owner: is_leased.then(|| "host:7".into()),
        due_at: status.is_unfinished().then_some(at(due)),
        created_at: at(-600),
        updated_at: at(-60),
        completed_at: (status == Status::Completed).then_some(at(-60)),
        last_error: None,
        errors: Vec::new(),
        requeues: 0,
    }
}

fn failure(attempt: u32, kind: FailureKind) -> AttemptError {
    AttemptError { attempt, at: at(-60), kind, message: "closed".into() }
}

fn failed(delivery: Delivery, attempt: u32) -> Delivery {
    let errors = vec![failure(attempt, FailureKind::Failed)];
    Delivery { attempts: attempt, errors, last_error: Some("closed".into()), ..delivery }
}

fn unkeyed(delivery: Delivery) -> Delivery {
    Delivery { key: None, sequence: None, ..delivery }
}

fn at_work() -> HandlerActivity {
    HandlerActivity { running: None, last_outcome_at: Some(at(-30)), examined: 12 }
}

/// The facts about a delivery whose handler is at work, among these unfinished ones of its key.
fn facts(delivery: Delivery, unfinished: &[Delivery]) -> Facts {
    let behind = unfinished.iter().filter(|other| other.sequence > delivery.sequence).count() as u64;
    let key = delivery.key.is_some().then(|| KeyFacts { state: KeyState::of(unfinished, NOW), behind });
    let activity = delivery.status.is_unfinished().then(at_work);
    Facts { now: NOW, delivery, key, controls: Controls::default(), activity }
}

/// The findings as `about: code`.
fn codes(explanation: &Explanation) -> Vec<String> {
    let code = |found: &Found| {
        let json = serde_json::to_value(found).unwrap();
        let about = found.about.as_ref().map_or("handler".to_owned(), ToString::to_string);
        format!("{about}: {}", json["code"].as_str().unwrap())
    };
    explanation.findings.iter().map(code).collect()
}

fn has(explanation: &Explanation, finding: &Finding) -> bool {
    explanation.findings.iter().any(|found| found.finding == *finding)
}

#[test]
fn a_completed_one_is_done_and_needs_nothing() {
    let explanation = explain(&facts(delivery(1, Status::Completed, 0), &[]));
    assert_eq!(codes(&explanation), ["d1: completed"]);
    assert!(has(&explanation, &Finding::Completed { at: at(-60) }));
    assert_eq!(explanation.remedies, []);
}

#[test]
fn a_dead_one_tells_its_failure_and_who_would_wait_for_it_again() {
    let dead = Delivery { max_attempts: Some(3), ..failed(delivery(1, Status::Dead, 0), 3) };
    let unfinished = [delivery(2, Status::Pending, -60), delivery(3, Status::Pending, -60)];
    let explanation = explain(&facts(dead, &unfinished));
    assert_eq!(codes(&explanation), ["d1: dead", "d1: attempts-exhausted", "d1: waiting"]);
    assert!(has(&explanation, &Finding::Waiting { ahead: 0, behind: 2 }));
    assert_eq!(explanation.remedies, [Remedy::Requeue { id: "d1".into(), behind: 2 }]);
}

#[test]
fn one_that_was_buried_did_not_use_up_its_attempts() {
    let errors = vec![failure(3, FailureKind::Buried)];
    let buried = Delivery { max_attempts: Some(3), attempts: 3, errors, ..delivery(1, Status::Dead, 0) };
    assert_eq!(codes(&explain(&facts(unkeyed(buried), &[]))), ["d1: dead"]);
}

#[test]
fn a_delay_that_was_asked_for_differs_from_one_behind_a_failure() {
    let delayed = unkeyed(delivery(1, Status::Pending, 60));
    let explanation = explain(&facts(delayed.clone(), &[]));
    assert_eq!(codes(&explanation), ["d1: delayed"]);
    assert_eq!(explanation.remedies, [Remedy::BringForward { id: "d1".into() }]);

    let backing_off = failed(delayed.clone(), 2);
    let explanation = explain(&facts(backing_off.clone(), &[]));
    let finding = Finding::BackingOff { until: at(60), failure: failure(2, FailureKind::Failed) };
    assert!(has(&explanation, &finding), "{explanation:?}");

    let requeued = Delivery { attempts: 0, requeues: 1, ..backing_off };
    assert_eq!(codes(&explain(&facts(requeued, &[]))), ["d1: delayed"]);
}

/// Between a burial and a requeue those behind it could be claimed.
#[test]
fn one_with_a_key_is_not_brought_forward() {
    let delayed = delivery(1, Status::Pending, 60);
    let explanation = explain(&facts(delayed.clone(), &[delayed]));
    assert_eq!((codes(&explanation), explanation.remedies), (vec!["d1: delayed".to_owned()], vec![]));
}

#[test]
fn the_first_of_its_key_that_is_due_is_next_in_line() {
    let first = delivery(1, Status::Pending, -60);
    let explanation = explain(&facts(first.clone(), &[first, delivery(2, Status::Pending, -60)]));
    assert_eq!(codes(&explanation), ["d1: due", "d1: next-in-line", "handler: worker-seen", "d1: waiting"]);
    assert_eq!(explanation.remedies, []);
}

#[test]
fn an_earlier_one_that_backs_off_blocks_and_can_be_given_up() {
    let first = failed(delivery(1, Status::Pending, 60), 1);
    let [second, third] = [2, 3].map(|sequence| delivery(sequence, Status::Pending, -60));
    let explanation = explain(&facts(second.clone(), &[first.clone(), second, third]));
    assert_eq!(codes(&explanation), ["d2: due", "d2: blocked-by-earlier", "d1: backing-off", "d2: waiting"]);
    assert!(has(&explanation, &Finding::Waiting { ahead: 1, behind: 1 }));
    assert_eq!(explanation.blockers, [first]);
    assert_eq!(explanation.remedies, [Remedy::Bury { id: "d1".into() }]);
}

/// A dead letter that was requeued while a later one runs.
#[test]
fn what_blocks_the_blocker_is_followed() {
    let [first, second] = [1, 2].map(|sequence| delivery(sequence, Status::Pending, -60));
    let third = delivery(3, Status::Processing, 20);
    let unfinished = [first.clone(), second.clone(), third.clone()];
    let explanation = explain(&facts(second, &unfinished));
    let expected = [
        "d2: due",
        "d2: blocked-by-earlier",
        "d1: due",
        "d1: blocked-by-running",
        "d3: running",
        "d2: waiting",
    ];
    assert_eq!(codes(&explanation), expected);
    assert_eq!(explanation.blockers, [first.clone(), third.clone()]);
    assert_eq!(explanation.remedies, []);
    assert_eq!(explain(&facts(first, &unfinished)).blockers, std::slice::from_ref(&third));
    assert_eq!(codes(&explain(&facts(third, &unfinished))), ["d3: running", "d3: waiting"]);
}

#[test]
fn a_live_lease_has_an_owner_and_an_end() {
    let running = unkeyed(delivery(1, Status::Processing, 20));
    let explanation = explain(&facts(running, &[]));
    let finding = Finding::Running { worker: Some("host:7".into()), held_at: at(-60), until: at(20) };
    assert_eq!((codes(&explanation), has(&explanation, &finding)), (vec!["d1: running".to_owned()], true));
}

#[test]
fn a_lease_that_ran_out_can_be_recovered() {
    let expired = unkeyed(delivery(1, Status::Processing, -20));
    let explanation = explain(&facts(expired.clone(), &[]));
    assert_eq!(codes(&explanation), ["d1: lease-expired", "d1: next-in-line", "handler: worker-seen"]);
    assert!(has(&explanation, &Finding::LeaseExpired { worker: Some("host:7".into()), at: at(-20) }));
    assert_eq!(explanation.remedies, [Remedy::Recover { handler: "h".into() }]);
    let last = Delivery { attempts: 5, max_attempts: Some(5), ..expired };
    let explanation = explain(&facts(last, &[]));
    assert!(has(&explanation, &Finding::AttemptsExhausted { attempts: 5, max_attempts: 5 }));
}

#[test]
fn an_earlier_one_whose_worker_died_blocks_until_it_is_recovered() {
    let expired = delivery(1, Status::Processing, -20);
    let second = Delivery { lane: Lane::Parked, ..delivery(2, Status::Pending, -60) };
    let explanation = explain(&facts(second.clone(), &[expired, second]));
    let expected = [
        "d2: due",
        "d2: parked",
        "d2: blocked-by-earlier",
        "d1: lease-expired",
        "d1: next-in-line",
        "handler: worker-seen",
        "d2: waiting",
    ];
    assert_eq!(codes(&explanation), expected);
    assert_eq!(explanation.remedies, [Remedy::Recover { handler: "h".into() }]);
}

fn pause() -> Pause {
    Pause { handler: "h".into(), paused_at: at(-5), paused_until: None, reason: None, by: "ana@desk".into() }
}

fn breaker() -> TrippedBreaker {
    TrippedBreaker {
        handler: "h".into(),
        worker: "host:7".into(),
        opened_at: at(-5),
        probe_at: at(25),
        failures: 10,
        last_error: "closed".into(),
        expires_at: at(90),
    }
}

#[test]
fn a_pause_holds_it_up_and_can_be_ended() {
    let due = unkeyed(delivery(1, Status::Pending, -60));
    let controls = Controls { pauses: vec![pause()], breakers: vec![breaker()] };
    let explanation =
        explain(&Facts { controls, activity: Some(HandlerActivity::default()), ..facts(due, &[]) });
    assert_eq!(codes(&explanation), ["d1: due", "handler: paused", "handler: breaker-open"]);
    let (resume, look) =
        (Remedy::Resume { handler: "h".into() }, Remedy::LookAtErrors { handler: "h".into() });
    assert_eq!(explanation.remedies, [resume, look]);
}

#[test]
fn a_report_of_a_breaker_is_a_sign_of_a_worker() {
    let due = unkeyed(delivery(1, Status::Pending, -60));
    let controls = Controls { pauses: Vec::new(), breakers: vec![breaker()] };
    let explanation =
        explain(&Facts { controls, activity: Some(HandlerActivity::default()), ..facts(due, &[]) });
    assert_eq!(codes(&explanation), ["d1: due", "handler: breaker-open"]);
}

#[test]
fn a_handler_without_a_sign_of_a_worker_is_run_by_nobody() {
    let silent = HandlerActivity { last_outcome_at: Some(at(-901)), examined: 40, running: None };
    let seen = |due: i64, activity: &HandlerActivity| {
        let due = unkeyed(delivery(1, Status::Pending, due));
        explain(&Facts { activity: Some(activity.clone()), ..facts(due, &[]) })
    };
    let explanation = seen(-10, &silent);
    assert_eq!(codes(&explanation), ["d1: due", "handler: no-worker-seen"]);
    assert!(has(&explanation, &Finding::NoWorkerSeen { since: at(-900), examined: 40 }));
    let lately = HandlerActivity { last_outcome_at: Some(at(-900)), ..silent.clone() };
    assert_eq!(codes(&seen(-10, &lately))[2], "handler: worker-seen");
    let leased = HandlerActivity { running: Some(delivery(9, Status::Processing, 20)), ..silent.clone() };
    let worker = Finding::WorkerSeen { worker: Some("host:7".into()), last_outcome_at: Some(at(-901)) };
    assert!(has(&seen(-10, &leased), &worker));
    assert_eq!(codes(&seen(-9, &silent)), ["d1: due", "d1: next-in-line"], "it is too early to tell");
    assert_eq!(codes(&seen(1, &silent)), ["d1: delayed"], "nobody has to be there before it is due");
}

#[test]
fn the_codes_and_fields_are_those_of_the_interface() {
    let first = failed(delivery(1, Status::Pending, 60), 1);
    let second = delivery(2, Status::Pending, -60);
    let findings = explain(&facts(second.clone(), &[first, second])).findings;
    let json = serde_json::to_value(findings).unwrap();
    let expected = serde_json::json!([
        { "about": "d2", "code": "due", "since": at(-60) },
        { "about": "d2", "code": "blocked-by-earlier", "by": "d1" },
        {
            "about": "d1", "code": "backing-off", "until": at(60),
            "failure": { "attempt": 1, "at": at(-60), "kind": "failed", "message": "closed" },
        },
        { "about": "d2", "code": "waiting", "ahead": 1, "behind": 0 },
    ]);
    assert_eq!(json, expected);
    let paused = serde_json::to_value(Found { about: None, finding: Finding::Paused(pause()) }).unwrap();
    let expected =
        serde_json::json!({ "code": "paused", "handler": "h", "pausedAt": at(-5), "by": "ana@desk" });
    assert_eq!(paused, expected);
    let running = Finding::Running { worker: None, held_at: NOW, until: NOW };
    let running = serde_json::to_value(running).unwrap();
    assert_eq!(running, serde_json::json!({ "code": "running", "heldAt": NOW, "until": NOW }));
}

mod from_a_store {
    use super::*;
    use crate::ops::testing::Bench;
    use crate::store::{ClaimRequest, Store as _};
    use serde_json::json;

    #[tokio::test]
    async fn the_head_of_a_key_and_what_it_says_of_those_behind() {
        let bench = Bench::new();
        let store = &bench.store;
        let event = crate::model::NewEvent::new("t", json!({})).handler("h").key("k");
        store.append(&vec![event; 3], bench.now()).await.unwrap();
        let facts = facts_of_head(store, "h", "k", bench.now()).await.unwrap().unwrap();
        let key = facts.key.as_ref().unwrap();
        assert_eq!((facts.delivery.sequence, key.state.unfinished, key.behind), (Some(1), 3, 2));
        assert!(facts_of_head(store, "h", "other", bench.now()).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn only_what_holds_its_own_handler_up() {
        let bench = Bench::new();
        let [id] = bench.pending(1).await.try_into().unwrap();
        let store = &bench.store;
        for handler in ["h", "other"] {
            store.pause(&Pause { handler: handler.into(), ..pause() }).await.unwrap();
            let breaker = TrippedBreaker { handler: handler.into(), expires_at: at(9_999_999), ..breaker() };
            store.report_breaker(&breaker, bench.now()).await.unwrap();
        }
        let delivery = store.get(&id).await.unwrap().unwrap();
        let facts = facts_of(store, delivery, bench.now()).await.unwrap();
        let handlers: Vec<_> = facts.controls.pauses.iter().map(|pause| pause.handler.as_str()).collect();
        assert_eq!((handlers, facts.controls.breakers.len()), (vec!["h"], 1));
    }

    #[tokio::test]
    async fn a_finished_one_asks_nothing_about_workers() {
        let bench = Bench::new();
        let [id] = bench.dead(1).await.try_into().unwrap();
        let delivery = bench.store.get(&id).await.unwrap().unwrap();
        let facts = facts_of(&bench.store, delivery, bench.now()).await.unwrap();
        assert!(facts.activity.is_none() && facts.key.is_none());
    }

    #[tokio::test]
    async fn a_lease_becomes_running_and_then_expired() {
        let bench = Bench::new();
        let [id] = bench.pending(1).await.try_into().unwrap();
        let (handlers, lease) = (vec!["h".to_owned()], Duration::from_secs(5));
        let request = ClaimRequest { handlers, limit: 1, lease, owner: "w".into(), now: bench.now() };
        bench.store.claim(&request).await.unwrap();
        for code in ["running", "lease-expired"] {
            let delivery = bench.store.get(&id).await.unwrap().unwrap();
            let explanation = explain(&facts_of(&bench.store, delivery, bench.now()).await.unwrap());
            assert_eq!(codes(&explanation)[0], format!("{id}: {code}"));
            bench.clock.advance(lease);
        }
    }
}
