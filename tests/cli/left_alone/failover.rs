//! A primary that steps down while a worker has its hands full.

use std::time::Duration;

use mongodb::bson::doc;
use relayctl::clock::{Clock as _, SystemClock};
use relayctl::model::Status;

use super::server::Server;
use super::trace::{self, line_that_tells};
use super::worker::within;
use crate::harness::Sandbox;
use crate::stock::order;

const DELIVERIES: usize = 400;
const KEYS: usize = 8;

#[test]
fn heavy_a_primary_that_steps_down_under_load_loses_nothing() {
    let server = Server::start("stepdown", &["--nodes", "3"]);
    let sandbox = Sandbox::on(&server.uri);
    let events: Vec<_> = (0..DELIVERIES).map(|n| order().key(format!("k{}", n % KEYS))).collect();
    sandbox.append(&events, SystemClock.now());
    let line = format!("projector={}", line_that_tells(&sandbox, 2));
    let worker = sandbox.work("worker", &["--concurrency", "8", "--handler", &line]);
    for part in 1..=2 {
        let some = (part * DELIVERIES / 4) as u64;
        within(Duration::from_secs(60), "some are done", || sandbox.completed_by_now() >= some);
        // The answer is lost with the connections that the primary closes.
        let _ = sandbox.administer(doc! { "replSetStepDown": 30, "secondaryCatchUpPeriodSecs": 10 });
    }
    assert!(sandbox.completed_by_now() < DELIVERIES as u64, "it was over before the primary stepped down");
    within(Duration::from_secs(120), "all are done", || sandbox.completed_by_now() == DELIVERIES as u64);
    let end = worker.drains();
    end.adds_up();
    assert!(sandbox.deliveries().iter().all(|one| one.status == Status::Completed));
    // The leases hold for much longer than an election takes: each outcome has found its way.
    let failed = ["dead", "retried", "leaseLost"].map(|name| end.counted(name));
    assert_eq!(failed, [0, 0, 0], "{:#?}", end.log.last());
    assert_eq!(end.count("store-failing"), end.count("store-recovered"));
    let lines = trace::read(&sandbox);
    assert_eq!(trace::overlaps(&lines), [] as [&trace::Line; 0]);
    assert_eq!(trace::out_of_order(&lines), [] as [&trace::Line; 0]);
    let ends = lines.iter().filter(|line| line.what == "end").count();
    assert_eq!(ends, DELIVERIES, "nothing was done twice");
}
