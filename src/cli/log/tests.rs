use std::time::Duration;

use super::*;
use crate::clock::{ManualClock, Skew};
use crate::dispatch::{Counts, Finished, FoundCrashed, OnDeadFailed, Resubscription, Timing};
use crate::handler::Outcome;
use crate::model::{Failure, FailureKind, Pause};
use crate::store::{ErrorKind, StoreError};

const NOW: Timestamp = Timestamp::from_millis(1_764_528_000_120);

fn log(format: LogFormat, verbosity: Verbosity) -> Log {
    Log {
        format,
        verbosity,
        has_color: false,
        clock: Arc::new(ManualClock::at(NOW)),
        status_line: None,
        owner: "host:17".into(),
    }
}

fn finished(verdict: Verdict) -> DispatchEvent {
    DispatchEvent::Finished(Box::new(Finished {
        delivery_id: "d-1".into(),
        event_id: "e-1".into(),
        event_type: "order.placed.v1".into(),
        handler: "projector".into(),
        key: Some("order-17".into()),
        sequence: Some(3),
        attempt: 2,
        max_attempts: 5,
        elapsed: Duration::from_millis(41),
        timing: Some(Timing { waited: Duration::from_millis(120), ran: Duration::from_millis(37) }),
        verdict,
    }))
}

fn failure(message: &str) -> Failure {
    Failure::new(FailureKind::Failed, message)
}

fn every_event() -> Vec<DispatchEvent> {
    let at = NOW.saturating_add(Duration::from_secs(4));
    let counts = Counts { claimed: 4, completed: 2, retried: 1, dead: 1, ..Counts::default() };
    let error = Arc::new(StoreError::new(ErrorKind::Unavailable, "no answer from mongodb://u:hunter2@h/"));
    vec![
        DispatchEvent::Started {
            owner: "host:17".into(),
            handlers: vec!["projector".into(), "mailer".into()],
        },
        DispatchEvent::Ready,
        DispatchEvent::Claimed { handler: "projector".into(), count: 4 },
        finished(Verdict::Completed),
        finished(Verdict::Retrying { at, failure: failure("exit status 3: no route to host") }),
        finished(Verdict::Dead {
            failure: failure("exit status 1: Traceback:\n  line 1\n  line 2\nKeyError: 'id'"),
        }),
        finished(Verdict::Snoozed { until: at }),
        finished(Verdict::Released),
        DispatchEvent::FoundCrashed(Box::new(FoundCrashed {
            delivery_id: "d-1".into(),
            event_type: "order.placed.v1".into(),
            handler: "projector".into(),
            attempt: 1,
            message: "worker elsewhere:1 died".into(),
        })),
        DispatchEvent::OnDeadFailed(Box::new(OnDeadFailed {
            delivery_id: "d-1".into(),
            event_type: "order.placed.v1".into(),
            handler: "projector".into(),
            error: "exit status 1".into(),
        })),
        finished(Verdict::LeaseLost { unrecorded: Some(Outcome::Succeeded) }),
        DispatchEvent::HandedBack { handler: "projector".into(), count: 3, lost: 1 },
        DispatchEvent::CallFailed { error: error.clone() },
        DispatchEvent::StoreFailing { error: error.clone() },
        DispatchEvent::StoreStillFailing { error, lasting: Duration::from_secs(420) },
        DispatchEvent::StoreRecovered { after: Duration::from_secs(12) },
        DispatchEvent::Draining { running: 1, grace: Duration::from_secs(30) },
        DispatchEvent::Stopping { running: 2 },
        DispatchEvent::Stopped { counts },
    ]
}

fn lines(log: &Log) -> String {
    every_event().iter().filter_map(|event| log.line(event, NOW)).collect()
}

#[test]
fn people_get_a_calm_line_for_each_outcome() {
    insta::assert_snapshot!(lines(&log(LogFormat::Human, Verbosity::Normal)), @r#"
    2025-11-30T18:40:00Z started    for projector, mailer as host:17
    2025-11-30T18:40:00Z completed  projector  order.placed.v1  d-1  41ms
    2025-11-30T18:40:00Z retrying   projector  order.placed.v1  d-1  attempt 2 of 5, again in 4s: exit status 3: no route to host
    2025-11-30T18:40:00Z dead       projector  order.placed.v1  d-1  attempt 2 of 5: exit status 1: Traceback: … KeyError: 'id'
    2025-11-30T18:40:00Z snoozed    projector  order.placed.v1  d-1  again in 4s; the attempt is not counted
    2025-11-30T18:40:00Z released   projector  order.placed.v1  d-1  the attempt is not counted
    2025-11-30T18:40:00Z crashed    projector  order.placed.v1  d-1  attempt 1: worker elsewhere:1 died
    2025-11-30T18:40:00Z on dead    projector  order.placed.v1  d-1  exit status 1
    2025-11-30T18:40:00Z lease lost projector  order.placed.v1  d-1  attempt 2 of 5 succeeded, but that could not be recorded
    2025-11-30T18:40:00Z store      no answer from mongodb://u:***@h/; trying again
    2025-11-30T18:40:00Z store      no answer from mongodb://u:***@h/; still trying after 7m
    2025-11-30T18:40:00Z store      answers again after 12s
    2025-11-30T18:40:00Z draining   waiting up to 30s for 1 delivery; a second signal stops now
    2025-11-30T18:40:00Z stopping   2 deliveries
    2025-11-30T18:40:00Z stopped    2 completed, 1 to be tried again, 1 dead
    "#);
}

#[test]
fn programs_get_an_object_for_each_outcome() {
    insta::assert_snapshot!(lines(&log(LogFormat::Json, Verbosity::Verbose)), @r#"
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"started","handlers":["projector","mailer"]}
    {"time":"2025-11-30T18:40:00.120Z","level":"debug","owner":"host:17","event":"ready"}
    {"time":"2025-11-30T18:40:00.120Z","level":"debug","owner":"host:17","event":"claimed","handler":"projector","count":4}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"finished","outcome":"completed","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"finished","outcome":"retrying","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41,"retryAt":"2025-11-30T18:40:04.120Z","kind":"failed","error":"exit status 3: no route to host"}
    {"time":"2025-11-30T18:40:00.120Z","level":"error","owner":"host:17","event":"finished","outcome":"dead","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41,"kind":"failed","error":"exit status 1: Traceback:\n  line 1\n  line 2\nKeyError: 'id'"}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"finished","outcome":"snoozed","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41,"retryAt":"2025-11-30T18:40:04.120Z"}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"finished","outcome":"released","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"crashed","deliveryId":"d-1","type":"order.placed.v1","handler":"projector","attempt":1,"error":"worker elsewhere:1 died"}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"on-dead-failed","deliveryId":"d-1","type":"order.placed.v1","handler":"projector","error":"exit status 1"}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"finished","outcome":"lease-lost","deliveryId":"d-1","eventId":"e-1","type":"order.placed.v1","handler":"projector","key":"order-17","sequence":3,"attempt":2,"maxAttempts":5,"waitedMs":120,"ranMs":37,"elapsedMs":41}
    {"time":"2025-11-30T18:40:00.120Z","level":"debug","owner":"host:17","event":"handed-back","handler":"projector","count":3,"lost":1}
    {"time":"2025-11-30T18:40:00.120Z","level":"debug","owner":"host:17","event":"call-failed","kind":"unavailable","error":"no answer from mongodb://u:***@h/"}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"store-failing","error":"no answer from mongodb://u:***@h/"}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"store-still-failing","error":"no answer from mongodb://u:***@h/","lastingMs":420000}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"store-recovered","afterMs":12000}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"draining","running":1,"graceMs":30000}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"stopping","running":2}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"stopped","claimed":4,"completed":2,"retried":1,"dead":1,"released":0,"leaseLost":0,"snoozed":0,"crashed":0}
    "#);
}

/// The names in the entry of an event, in order.
fn fields_of(event: &DispatchEvent) -> String {
    let line = log(LogFormat::Json, Verbosity::Verbose).line(event, NOW).unwrap();
    let entry: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
    entry.keys().cloned().collect::<Vec<_>>().join(" ")
}

#[test]
fn an_outcome_has_the_documented_fields() {
    const ALL: &str = "time level owner event outcome deliveryId eventId type handler key sequence attempt maxAttempts \
                       waitedMs ranMs elapsedMs";
    let at = NOW;
    let with = |more: &str| format!("{ALL}{more}");
    let unrecorded = |outcome| Verdict::LeaseLost { unrecorded: outcome };
    let expected = [
        (Verdict::Completed, with("")),
        (Verdict::Released, with("")),
        (Verdict::Snoozed { until: at }, with(" retryAt")),
        (Verdict::Retrying { at, failure: failure("no") }, with(" retryAt kind error")),
        (Verdict::Dead { failure: failure("no") }, with(" kind error")),
        (unrecorded(None), with("")),
        (unrecorded(Some(Outcome::Succeeded)), with("")),
        (unrecorded(Some(Outcome::failed("no"))), with(" kind error")),
    ];
    for (verdict, fields) in expected {
        assert_eq!(fields_of(&finished(verdict.clone())), fields, "{verdict:?}");
    }
    let DispatchEvent::Finished(mut bare) = finished(Verdict::Completed) else { panic!() };
    (bare.key, bare.sequence, bare.timing) = (None, None, None);
    let optional = [" key", " sequence", " waitedMs", " ranMs"];
    let fewer = optional.iter().fold(with(""), |fields, name| fields.replace(name, ""));
    assert_eq!(fields_of(&DispatchEvent::Finished(bare)), fewer);
}

/// What holds handlers up.
fn gate_events() -> Vec<DispatchEvent> {
    let handler = || "projector".to_owned();
    let pause = Pause {
        handler: handler(),
        paused_at: NOW,
        paused_until: Some(NOW.saturating_add(Duration::from_secs(3_600))),
        reason: Some("the shop is closed".into()),
        by: "ana@desk".into(),
    };
    let error = Arc::new(StoreError::new(ErrorKind::Unavailable, "no answer"));
    vec![
        DispatchEvent::Paused { pause: pause.clone() },
        DispatchEvent::Paused { pause: Pause { paused_until: None, reason: None, ..pause } },
        DispatchEvent::Resumed { handler: handler() },
        DispatchEvent::PausesUnknown { error },
        DispatchEvent::BreakerOpened {
            handler: handler(),
            failures: 10,
            pause: Duration::from_secs(30),
            error: "exit status 1: no route".into(),
        },
        DispatchEvent::BreakerHalfOpened { handler: handler() },
        DispatchEvent::BreakerClosed { handler: handler(), after: Duration::from_secs(95) },
    ]
}

#[test]
fn what_holds_handlers_up_is_told() {
    let told = |format| -> String {
        let log = log(format, Verbosity::Normal);
        gate_events().iter().filter_map(|event| log.line(event, NOW)).collect()
    };
    insta::assert_snapshot!(told(LogFormat::Human), @r#"
    2025-11-30T18:40:00Z paused     projector until 2025-11-30T19:40:00Z by ana@desk: the shop is closed
    2025-11-30T18:40:00Z paused     projector by ana@desk
    2025-11-30T18:40:00Z resumed    projector
    2025-11-30T18:40:00Z store      no answer; pauses stay as they were
    2025-11-30T18:40:00Z breaker    projector  10 failures in a row, a rest of 30s: exit status 1: no route
    2025-11-30T18:40:00Z breaker    projector  one at a time may try
    2025-11-30T18:40:00Z breaker    projector  closed after 1m
    "#);
    insta::assert_snapshot!(told(LogFormat::Json), @r#"
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"paused","handler":"projector","pausedAt":"2025-11-30T18:40:00.120Z","pausedUntil":"2025-11-30T19:40:00.120Z","reason":"the shop is closed","by":"ana@desk"}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"paused","handler":"projector","pausedAt":"2025-11-30T18:40:00.120Z","by":"ana@desk"}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"resumed","handler":"projector"}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"pauses-unknown","error":"no answer"}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"breaker-opened","handler":"projector","failures":10,"pauseMs":30000,"error":"exit status 1: no route"}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"breaker-half-opened","handler":"projector"}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"breaker-closed","handler":"projector","afterMs":95000}
    "#);
}

#[test]
fn what_became_of_a_reload_is_told() {
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let (added, changed, removed) = (names(&["a", "b"]), names(&["c"]), names(&["d"]));
    let change = Resubscription { added, changed, removed, unchanged: names(&["e", "f"]) };
    let same = Resubscription { unchanged: names(&["e"]), ..Resubscription::default() };
    let refused = "h.toml is not valid: line 3\n  |\nexpected `=` near mongodb://u:hunter2@h/".to_owned();
    let unchanged = [Unchanged::Refused(refused), Unchanged::Ignored("the worker is ending")];
    let told = |format| -> String {
        let log = log(format, Verbosity::Normal);
        let done = [change.clone(), same.clone()].map(DispatchEvent::Resubscribed);
        let done = done.iter().filter_map(|event| log.line(event, NOW));
        done.chain(unchanged.iter().map(|one| log.unchanged_line(one, NOW))).collect()
    };
    insta::assert_snapshot!(told(LogFormat::Human), @r#"
    2025-11-30T18:40:00Z reloaded   added a, b; changed c; removed d; 2 unchanged
    2025-11-30T18:40:00Z reloaded   1 unchanged
    2025-11-30T18:40:00Z refused    h.toml is not valid: line 3 … expected `=` near mongodb://u:***@h/; the handlers stay as they were
    2025-11-30T18:40:00Z ignored    SIGHUP, as the worker is ending
    "#);
    insta::assert_snapshot!(told(LogFormat::Json), @r#"
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"reloaded","added":["a","b"],"changed":["c"],"removed":["d"],"unchanged":["e","f"]}
    {"time":"2025-11-30T18:40:00.120Z","level":"info","owner":"host:17","event":"reloaded","added":[],"changed":[],"removed":[],"unchanged":["e"]}
    {"time":"2025-11-30T18:40:00.120Z","level":"error","owner":"host:17","event":"reload-refused","error":"h.toml is not valid: line 3\n  |\nexpected `=` near mongodb://u:***@h/"}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"reload-ignored","reason":"the worker is ending"}
    "#);
}

#[test]
fn what_children_say_is_told_with_their_names() {
    let news = [
        ChildNews::Said("hello \u{1b}[2J mongodb://u:hunter2@h/".into()),
        ChildNews::LeftOut(7),
        ChildNews::Replaced("exit status 1: a\nb".into()),
    ];
    let note = |what| ChildNote { handler: "mailer".into(), pid: 17, what };
    let told = |format, verbosity| -> String {
        let log = log(format, verbosity);
        news.iter().filter_map(|what| log.note_line(&note(what.clone()), NOW)).collect()
    };
    assert_eq!(
        told(LogFormat::Human, Verbosity::Normal),
        "2025-11-30T18:40:00Z child      mailer [17]  hello \\x1b[2J mongodb://u:***@h/\n\
         2025-11-30T18:40:00Z child      mailer [17]  7 lines were left out\n\
         2025-11-30T18:40:00Z child      mailer [17]  is replaced: exit status 1: a / b\n"
    );
    assert_eq!(told(LogFormat::Human, Verbosity::Quiet).lines().count(), 2);
    let json = told(LogFormat::Json, Verbosity::Normal);
    let entries: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = entries.iter().map(|entry| entry["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["child-said", "child-lines-left-out", "child-replaced"]);
    assert!(!json.contains("hunter2"));
}

#[test]
fn clocks_that_differ_are_told_also_when_quiet() {
    let skew = |ahead_ms| Skew { ahead_ms, error: Duration::from_millis(2) };
    let events = [
        DispatchEvent::ClockDiffers { skew: skew(600_003) },
        DispatchEvent::ClockDiffers { skew: skew(-1_480) },
        DispatchEvent::TimeStepped { by_ms: 2_500 },
        DispatchEvent::TimeStepped { by_ms: -600_000 },
    ];
    let told = |format| -> String {
        let log = log(format, Verbosity::Quiet);
        events.iter().filter_map(|event| log.line(event, NOW)).collect()
    };
    insta::assert_snapshot!(told(LogFormat::Human), @r#"
    2025-11-30T18:40:00Z clock      this host's clock is 10m ahead of the server's; leases, retries and this log go by the server's
    2025-11-30T18:40:00Z clock      this host's clock is 1s behind the server's; leases, retries and this log go by the server's
    2025-11-30T18:40:00Z clock      the server's went forward by 2.5s: it was set, or another has taken over; leases are renewed, and claims rest until others can have done so
    2025-11-30T18:40:00Z clock      the server's went back by 10m: it was set, or another has taken over; leases are renewed
    "#);
    insta::assert_snapshot!(told(LogFormat::Json), @r#"
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"clock-differs","aheadMs":600003}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"clock-differs","aheadMs":-1480}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"time-stepped","byMs":2500}
    {"time":"2025-11-30T18:40:00.120Z","level":"warn","owner":"host:17","event":"time-stepped","byMs":-600000}
    "#);
}

#[test]
fn a_quiet_worker_tells_its_troubles_only() {
    insta::assert_snapshot!(lines(&log(LogFormat::Human, Verbosity::Quiet)), @r#"
    2025-11-30T18:40:00Z retrying   projector  order.placed.v1  d-1  attempt 2 of 5, again in 4s: exit status 3: no route to host
    2025-11-30T18:40:00Z dead       projector  order.placed.v1  d-1  attempt 2 of 5: exit status 1: Traceback: … KeyError: 'id'
    2025-11-30T18:40:00Z crashed    projector  order.placed.v1  d-1  attempt 1: worker elsewhere:1 died
    2025-11-30T18:40:00Z on dead    projector  order.placed.v1  d-1  exit status 1
    2025-11-30T18:40:00Z lease lost projector  order.placed.v1  d-1  attempt 2 of 5 succeeded, but that could not be recorded
    2025-11-30T18:40:00Z store      no answer from mongodb://u:***@h/; trying again
    2025-11-30T18:40:00Z store      no answer from mongodb://u:***@h/; still trying after 7m
    "#);
}

#[test]
fn an_error_stays_on_its_line_and_cannot_reach_the_terminal() {
    assert_eq!(one_line("exit status 1: a\u{1b}[2Jb"), "exit status 1: a\\x1b[2Jb");
    assert_eq!(one_line("one\n\ntwo\n"), "one / two");
    let long = one_line(&"x".repeat(10_000));
    assert!(long.ends_with('…') && long.chars().count() == ERROR_COLUMNS);
    let event = finished(Verdict::Dead { failure: failure("a\u{1b}\nb") });
    let json = log(LogFormat::Json, Verbosity::Normal).line(&event, NOW).unwrap();
    assert_eq!(json.matches('\n').count(), 1);
    assert!(!json.contains('\u{1b}'));
}
