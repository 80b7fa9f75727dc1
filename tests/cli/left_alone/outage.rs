//! A server that stops answering for much longer than a lease, without closing a connection.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::{FailureKind, NewEvent, Status};
use serde_json::json;

use super::processes;
use super::server::Server;
use super::worker::{End, let_pass, within};
use crate::harness::{Sandbox, wait_until};

const LEASE: Duration = Duration::from_secs(6);

/// Longer than the worker waits for one answer, so that it notices, and than both leases.
const OUTAGE: Duration = Duration::from_secs(40);

const HANDLERS: &str = r#"
    # Does not care for TERM, and ends when it may.
    [handlers.stubborn]
    types = ["*"]
    lease = "6s"
    timeout = "10m"
    concurrency = 3
    shell = "trap '' TERM; echo $RELAY_DELIVERY_ID >> stubborn; while test -e hold; do sleep 0.05; done"

    # Ends while nobody can hear of it; its lease is over by the time when somebody can.
    [handlers.brief]
    types = ["*"]
    lease = "6s"
    concurrency = 3
    shell = "echo $RELAY_DELIVERY_ID >> brief; while test -e busy; do sleep 0.05; done"

    # The same, and its lease is not.
    [handlers.leased]
    types = ["*"]
    lease = "10m"
    concurrency = 3
    shell = "echo $RELAY_DELIVERY_ID >> leased; while test -e busy; do sleep 0.05; done"
"#;

const NAMES: [&str; 3] = ["stubborn", "brief", "leased"];
const EACH: usize = 3;

fn runs(sandbox: &Sandbox, handler: &str) -> usize {
    std::fs::read_to_string(sandbox.home.path().join(handler)).unwrap_or_default().lines().count()
}

fn all_run(sandbox: &Sandbox) -> bool {
    NAMES.iter().all(|name| runs(sandbox, name) == EACH)
}

/// Waits for the end of the outage; from the end of the last lease that can have been given, nothing may run.
fn watch_leases(sandbox: &Sandbox, since: Instant) {
    while since.elapsed() < LEASE {
        let_pass(Duration::from_millis(5));
    }
    while since.elapsed() < OUTAGE {
        let alive = processes::of_deliveries(sandbox.home.path());
        assert_eq!(alive, [0; 0], "{:?} after the last lease began", since.elapsed());
        let_pass(Duration::from_millis(100));
    }
}

fn begin(sandbox: &Sandbox) {
    sandbox.file("hold", "");
    sandbox.file("busy", "");
    let event = NAMES.into_iter().fold(NewEvent::new("t", json!(1)), NewEvent::handler);
    sandbox.append(&vec![event; EACH], SystemClock.now());
}

fn allow(sandbox: &Sandbox, file: &str) {
    std::fs::remove_file(sandbox.home.path().join(file)).unwrap();
}

#[test]
fn heavy_a_silent_server_outlives_no_lease_and_loses_no_outcome() {
    let server = Server::start("silent", &[]);
    let sandbox = Sandbox::on(&server.uri);
    begin(&sandbox);
    let file = sandbox.file("handlers.toml", HANDLERS).display().to_string();
    let mut worker = sandbox.work("worker", &["--handlers", &file]);
    wait_until("all run", || all_run(&sandbox));
    server.send(Signal::SIGSTOP);
    let since = Instant::now();
    allow(&sandbox, "busy");
    watch_leases(&sandbox, since);
    assert!(worker.runs(), "the worker stays up");
    assert_eq!((worker.count("store-failing"), worker.count("store-recovered")), (1, 0));
    server.send(Signal::SIGCONT);
    worker.until("store-recovered");
    wait_until("what lost its lease runs again", || runs(&sandbox, "stubborn") == 2 * EACH);
    allow(&sandbox, "hold");
    within(Duration::from_secs(60), "all are done", || {
        sandbox.completed_by_now() == (NAMES.len() * EACH) as u64
    });
    all_is_told(&sandbox, &worker.drains());
}

fn all_is_told(sandbox: &Sandbox, end: &End) {
    end.adds_up();
    assert_eq!((end.count("store-failing"), end.count("store-recovered")), (1, 1));
    assert_eq!(end.counted("retried") + end.counted("dead"), 0, "{:#?}", end.log);
    // A completion may have reached the server all the same, and is done when that goes on, after the worker gave it up.
    let late = (NAMES.len() * EACH) as u64 - end.counted("completed");
    let again = sandbox.deliveries().into_iter().filter(|one| one.attempts > 1).count() as u64;
    assert_eq!(end.counted("leaseLost"), again + late, "{:#?}", end.log);
    assert!(end.counted("leaseLost") >= EACH as u64, "{:#?}", end.log);
    for delivery in sandbox.deliveries() {
        assert_eq!(delivery.status, Status::Completed);
        // What lost its lease is remembered as what it looks like from outside.
        let crashes = delivery.errors.iter().filter(|error| error.kind == FailureKind::Crashed).count();
        assert_eq!((crashes, delivery.errors.len() as u32), (crashes, delivery.attempts - 1), "{delivery:?}");
    }
    // The outcome could be written, since its lease held: it was not done once more.
    assert_eq!(runs(sandbox, "leased"), EACH);
    let is_first = |one: &relayctl::model::Delivery| one.handler == "leased" && one.attempts == 1;
    assert_eq!(sandbox.deliveries().iter().filter(|one| is_first(one)).count(), EACH);
}
