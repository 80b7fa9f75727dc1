//! As many deliveries as there are in a day, as fast as they go: none is lost, and nothing piles up.

use std::time::Duration;

use mongodb::bson::doc;

use super::processes::kb;
use super::worker::within;
use crate::harness::Sandbox;

const DELIVERIES: u64 = 50_000;
const WARM: u64 = 5_000;

/// What a worker may take more after all of them than after the first: a leak of 100 bytes for each would be seen.
const SLACK_KB: u64 = 4 * 1024;

#[test]
fn heavy_fifty_thousand_deliveries_leave_nothing_behind_and_take_no_memory() {
    let sandbox = Sandbox::new();
    for _ in 0..DELIVERIES / 5_000 {
        sandbox.pending(5_000);
    }
    let worker = sandbox.work("worker", &["-q", "--concurrency", "32", "projector", "--", "/bin/true"]);
    let limit = Duration::from_secs(250);
    within(limit, "it is warm", || sandbox.completed_by_now() >= WARM);
    let warm = kb(worker.pid(), "VmHWM");
    within(limit, "all are done", || sandbox.completed_by_now() == DELIVERIES);
    let peak = kb(worker.pid(), "VmHWM");
    assert!(peak <= warm + SLACK_KB, "{warm} kB after {WARM}, {peak} kB after {DELIVERIES}");
    assert_eq!(sandbox.count(doc! { "status": "completed", "attempts": 1 }), DELIVERIES);
    assert_eq!(sandbox.count(doc! { "status": "processing" }), 0);
    assert_eq!(sandbox.count(doc! { "errors.0": { "$exists": true } }), 0);
    let end = worker.drains();
    assert_eq!(end.log.len(), 0, "{:#?}", end.log);
}
