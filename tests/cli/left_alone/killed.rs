//! A worker that is killed, and what others make of what it left.

use std::time::Duration;

use nix::sys::signal::Signal;
use relayctl::model::{FailureKind, Status};

use super::processes;
use super::worker::within;
use crate::harness::{Sandbox, wait_until};

/// Hangs until the file `go` is there.
fn hanging_line(sandbox: &Sandbox) -> String {
    let home = sandbox.home.path().display();
    format!("projector=echo $RELAY_DELIVERY_ID >> {home}/runs; until test -e {home}/go; do sleep 0.02; done")
}

fn runs(sandbox: &Sandbox) -> usize {
    std::fs::read_to_string(sandbox.home.path().join("runs")).unwrap_or_default().lines().count()
}

#[test]
fn what_a_killed_worker_left_completes_and_remembers_the_crash() {
    let sandbox = Sandbox::new();
    sandbox.pending(6);
    let line = hanging_line(&sandbox);
    let arguments = ["--lease", "2s", "--concurrency", "3", "--handler", &line];
    let worker = sandbox.work("first", &arguments);
    wait_until("three run", || runs(&sandbox) == 3);
    let owner = sandbox.deliveries().into_iter().find_map(|one| one.lease_owner).unwrap();
    worker.send(Signal::SIGKILL);
    assert_eq!(worker.ends().status.code(), None);
    sandbox.file("go", "");

    let second = sandbox.work("second", &arguments);
    within(Duration::from_secs(30), "all are done", || sandbox.completed_by_now() == 6);
    let end = second.drains();
    assert_eq!((end.counted("completed"), end.counted("crashed"), end.count("crashed")), (6, 3, 3));
    let crashed: Vec<_> = sandbox.deliveries().into_iter().filter(|one| one.attempts == 2).collect();
    assert_eq!(crashed.len(), 3);
    for delivery in crashed {
        assert_eq!((delivery.status, delivery.errors.len()), (Status::Completed, 1));
        assert_eq!((delivery.errors[0].attempt, &delivery.errors[0].kind), (1, &FailureKind::Crashed));
        assert!(delivery.errors[0].message.contains(&owner), "{:?}", delivery.errors);
    }
}

/// A delivery that kills its worker each time must not do so for ever.
#[test]
fn what_keeps_killing_its_worker_dies_of_it() {
    let sandbox = Sandbox::new();
    let [id] = sandbox.pending(1).try_into().unwrap();
    let line = hanging_line(&sandbox);
    let arguments = ["--lease", "1s", "--max-attempts", "2", "--handler", &line];
    for attempt in 1..=2 {
        let worker = sandbox.work("killed", &arguments);
        wait_until("it runs", || runs(&sandbox) == attempt);
        worker.send(Signal::SIGKILL);
        assert_eq!(worker.ends().status.code(), None);
    }
    let third = sandbox.work("third", &arguments);
    within(Duration::from_secs(30), "it is dead", || sandbox.status(&id) == Status::Dead);
    let end = third.drains();
    assert_eq!(runs(&sandbox), 2, "it ran once more than it may");
    assert_eq!((end.counted("dead"), end.counted("crashed")), (1, 1));
    let delivery = sandbox.get(&id);
    let kinds: Vec<_> = delivery.errors.iter().map(|error| (error.attempt, &error.kind)).collect();
    // The last one is the claim that found this out; nothing ran for it.
    assert_eq!(kinds, [1, 2, 3].map(|attempt| (attempt, &FailureKind::Crashed)));
    sandbox.file("go", "");
}

/// Nobody renews the leases of a worker that was killed, so its commands have to be gone before others take over.
#[test]
fn no_command_outlives_its_killed_worker() {
    let sandbox = Sandbox::new();
    sandbox.pending(3);
    let line = hanging_line(&sandbox).replace("projector=", "projector=trap '' TERM; ");
    let worker = sandbox.work("worker", &["--lease", "2s", "--concurrency", "3", "--handler", &line]);
    wait_until("three run", || runs(&sandbox) == 3);
    sandbox.wait_for_renewals();
    assert!(processes::of_deliveries(sandbox.home.path()).len() >= 3);
    worker.send(Signal::SIGKILL);
    assert_eq!(worker.ends().status.code(), None);
    wait_until("nothing runs any more", || processes::of_deliveries(sandbox.home.path()).is_empty());
}

/// It says that it runs when it has done so for a while: the guard does not know of it in the moment of the start.
#[test]
fn neither_does_what_it_runs_for_a_dead_delivery() {
    let sandbox = Sandbox::new();
    sandbox.pending(1);
    let text = r#"
        [handlers.projector]
        types = ["*"]
        shell = "exit 65"
        on_dead = "trap '' TERM; sleep 1; touch told; while :; do sleep 0.05; done"
    "#;
    let file = sandbox.file("handlers.toml", text).display().to_string();
    let worker = sandbox.work("worker", &["--handlers", &file]);
    wait_until("it is told", || sandbox.home.path().join("told").exists());
    worker.send(Signal::SIGKILL);
    assert_eq!(worker.ends().status.code(), None);
    wait_until("nothing runs any more", || processes::of_deliveries(sandbox.home.path()).is_empty());
}
