//! The end of a worker: what it lets finish, what it stops, what it records, and how it exits.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{Delivery, FailureKind, NewEvent, Status};
use serde_json::json;

use super::processes;
use super::worker::{End, Worker, let_pass};
use crate::harness::{Sandbox, wait_until};

/// Five handlers that wait for the file `go`, and then end each in a way of its own.
const ALL_ENDS: &str = r#"
    [handlers.succeeds]
    types = ["*"]
    shell = "touch $RELAY_HANDLER; until test -e go; do sleep 0.01; done"

    [handlers.fails]
    types = ["*"]
    shell = "touch $RELAY_HANDLER; until test -e go; do sleep 0.01; done; echo broken >&2; exit 1"

    [handlers.buries]
    types = ["*"]
    shell = "touch $RELAY_HANDLER; until test -e go; do sleep 0.01; done; echo senseless >&2; exit 65"

    [handlers.snoozes]
    types = ["*"]
    shell = "touch $RELAY_HANDLER; until test -e go; do sleep 0.01; done; echo 'snooze: 1h'; exit 75"

    [handlers.last]
    types = ["*"]
    shell = "touch $RELAY_HANDLER; until test -e go; do sleep 0.01; done; exit 1"
    max_attempts = 1
"#;

const HANDLERS: [&str; 5] = ["succeeds", "fails", "buries", "snoozes", "last"];

fn by_handler(sandbox: &Sandbox) -> BTreeMap<String, Delivery> {
    sandbox.deliveries().into_iter().map(|delivery| (delivery.handler.clone(), delivery)).collect()
}

#[test]
fn every_outcome_of_a_drain_is_recorded_and_leases_are_renewed_until_then() {
    let sandbox = Sandbox::new();
    let event = HANDLERS.into_iter().fold(NewEvent::new("t", json!(1)), NewEvent::handler);
    sandbox.append(&[event], SystemClock.now());
    let file = sandbox.file("handlers.toml", ALL_ENDS).display().to_string();
    let worker = sandbox.work("worker", &["--lease", "1s", "--handlers", &file]);
    wait_until("all run", || HANDLERS.iter().all(|name| sandbox.home.path().join(name).exists()));
    worker.send(Signal::SIGTERM);
    worker.until("draining");
    let leases = |deliveries: BTreeMap<String, Delivery>| {
        deliveries.into_values().map(|one| one.lease_expires_at).collect::<Vec<_>>()
    };
    let before = leases(by_handler(&sandbox));
    wait_until("all leases are renewed twice", || {
        let now = leases(by_handler(&sandbox));
        let pairs = before.iter().zip(now);
        pairs
            .into_iter()
            .all(|(before, now)| now.unwrap().since(before.unwrap()) > Duration::from_millis(500))
    });
    sandbox.file("go", "");
    let end = worker.ends();
    assert_eq!(end.status.code(), Some(0), "{:#?}", end.log);
    end.adds_up();
    let ended = by_handler(&sandbox);
    let seen = |name: &str| {
        let one = &ended[name];
        (one.status, one.attempts, one.last_error.as_deref())
    };
    assert_eq!(seen("succeeds"), (Status::Completed, 1, None));
    assert_eq!(seen("fails"), (Status::Pending, 1, Some("exit status 1: broken")));
    assert_eq!(seen("buries"), (Status::Dead, 1, Some("exit status 65: senseless")));
    assert_eq!(seen("snoozes"), (Status::Pending, 0, None));
    assert_eq!(seen("last"), (Status::Dead, 1, Some("exit status 1")));
    assert_eq!(ended["buries"].errors[0].kind, FailureKind::Rejected);
}

/// One delivery, whose command and what it started do not care for TERM.
fn stubborn(arguments: &[&str]) -> (Sandbox, Worker) {
    let sandbox = Sandbox::new();
    sandbox.pending(1);
    let line = format!(
        "projector=trap '' TERM; sh -c 'while :; do sleep 0.05; done' & touch {}/ready; wait; wait",
        sandbox.home.path().display()
    );
    let lease = ["--lease", "2s", "--handler", &line];
    let worker = sandbox.work("worker", &[&lease, arguments].concat());
    wait_until("the command runs", || sandbox.home.path().join("ready").exists());
    (sandbox, worker)
}

fn gave_it_back(sandbox: &Sandbox, end: &End) {
    let [delivery] = sandbox.deliveries().try_into().unwrap();
    assert_eq!((delivery.status, delivery.attempts, delivery.lease_owner), (Status::Pending, 0, None));
    assert_eq!((&delivery.last_error, delivery.errors.len()), (&None, 0));
    assert_eq!(end.counted("released"), 1);
    assert_eq!(processes::of_deliveries(sandbox.home.path()), [0; 0]);
}

#[test]
fn what_does_not_care_for_term_is_killed_when_the_grace_is_over() {
    let (sandbox, worker) = stubborn(&["--grace", "200ms"]);
    worker.send(Signal::SIGINT);
    let end = worker.ends();
    assert_eq!(end.status.code(), Some(0), "{:#?}", end.log);
    assert_eq!(end.count("stopping"), 1);
    gave_it_back(&sandbox, &end);
}

#[test]
fn the_second_signal_kills_what_does_not_care_for_term() {
    let (sandbox, worker) = stubborn(&["--grace", "1h"]);
    worker.send(Signal::SIGTERM);
    worker.until("draining");
    worker.send(Signal::SIGTERM);
    let end = worker.ends();
    assert_eq!(end.status.code(), Some(130), "{:#?}", end.log);
    gave_it_back(&sandbox, &end);
}

/// As a service manager does it: TERM to every process of the service at once, so that children may be dead before the
/// worker has heard of it.
#[test]
fn a_signal_to_all_processes_of_the_service_spends_no_attempt() {
    let sandbox = Sandbox::new();
    sandbox.pending(4);
    let worker = sandbox.work("worker", &["--concurrency", "4", "--handler", "projector=sleep 300 & wait"]);
    wait_until("all run", || processes::of_deliveries(sandbox.home.path()).len() == 8);
    for pid in processes::of_deliveries(sandbox.home.path()) {
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    }
    worker.send(Signal::SIGTERM);
    let end = worker.ends();
    assert_eq!(end.status.code(), Some(0), "{:#?}", end.log);
    assert_eq!((end.counted("released"), end.counted("retried")), (4, 0));
    assert!(sandbox.deliveries().iter().all(|one| one.status == Status::Pending && one.attempts == 0));
}

/// Nothing new begins, however much is due: what was claimed ahead goes back at once.
#[test]
fn what_waits_for_a_slot_is_given_back_at_the_first_signal() {
    let sandbox = Sandbox::new();
    sandbox.pending(200);
    let home = sandbox.home.path().display();
    let line = format!("projector=if test -e {home}/go; then sleep 300; else true; fi");
    let worker = sandbox.work("worker", &["--grace", "100ms", "--concurrency", "2", "--handler", &line]);
    wait_until("it is busy", || sandbox.completed_by_now() > 20);
    sandbox.file("go", "");
    wait_until("two hang", || processes::of_deliveries(sandbox.home.path()).len() >= 2);
    let done = sandbox.completed_by_now();
    let_pass(Duration::from_millis(100));
    let end = worker.drains();
    end.adds_up();
    assert_eq!(end.counted("completed"), sandbox.completed_by_now());
    assert!(sandbox.completed_by_now() <= done + 2, "it went on after the signal");
    let census = sandbox.census();
    assert_eq!(census.get(&Status::Processing), None, "{census:?}");
    assert!(
        sandbox.deliveries().iter().all(|one| one.attempts == u32::from(one.status == Status::Completed))
    );
}
