//! A server that answers late, again and again: nothing is done twice for it, and nobody loses a lease.

use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use nix::sys::signal::Signal;
use relayctl::model::Status;

use super::server::Server;
use super::worker::{Worker, let_pass, within};
use crate::harness::Sandbox;

const DELIVERIES: usize = 600;

/// A worker for deliveries that are noted in the file `runs`.
fn start(server: &Server, application: &str) -> (Sandbox, Worker) {
    let mut sandbox = Sandbox::on(&server.uri);
    sandbox.pending(DELIVERIES);
    sandbox.url.push_str(&format!("&appName={application}"));
    let line = "projector=echo $RELAY_DELIVERY_ID >> $HOME/runs; sleep 0.1";
    let worker = sandbox.work("worker", &["--concurrency", "8", "--handler", line]);
    (sandbox, worker)
}

fn each_was_done_once(sandbox: &Sandbox, worker: Worker) {
    within(Duration::from_secs(120), "all are done", || sandbox.completed_by_now() == DELIVERIES as u64);
    let end = worker.drains();
    end.adds_up();
    assert_eq!((end.counted("completed"), end.counted("leaseLost")), (DELIVERIES as u64, 0));
    assert!(sandbox.deliveries().iter().all(|one| one.status == Status::Completed && one.attempts == 1));
    let runs = std::fs::read_to_string(sandbox.home.path().join("runs")).unwrap();
    assert_eq!(runs.lines().count(), DELIVERIES);
}

#[test]
fn heavy_a_server_that_stops_now_and_then_costs_nothing_but_time() {
    let server = Server::start("pulses", &[]);
    let (sandbox, worker) = start(&server, "pulses");
    worker.until("finished");
    for _ in 0..6 {
        server.send(Signal::SIGSTOP);
        let_pass(Duration::from_secs(4));
        server.send(Signal::SIGCONT);
        let_pass(Duration::from_millis(500));
    }
    assert!(sandbox.completed_by_now() < DELIVERIES as u64, "it was over before the server got slow");
    each_was_done_once(&sandbox, worker);
}

#[test]
fn heavy_a_server_that_is_slow_for_a_minute_costs_nothing_but_time() {
    let server = Server::start("slow", &[]);
    let (sandbox, worker) = start(&server, "slow-worker");
    worker.until("finished");
    let slow = |mode: Document| {
        let commands = ["find", "update", "aggregate", "getMore", "findAndModify", "bulkWrite"];
        let data = doc! {
            "failCommands": commands.to_vec(), "blockConnection": true, "blockTimeMS": 3_000,
            "appName": "slow-worker",
        };
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        sandbox.administer(command).expect("test commands are enabled");
    };
    let since = Instant::now();
    slow(doc! { "times": 1_000_000 });
    while since.elapsed() < Duration::from_secs(60) {
        assert_eq!(worker.count("store-failing"), 0, "slow is not gone");
        let_pass(Duration::from_millis(500));
    }
    slow(doc! { "times": 0 });
    each_was_done_once(&sandbox, worker);
}
