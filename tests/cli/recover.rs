//! `recover`.

use relayctl::model::Status;
use serde_json::json;

use crate::harness::Sandbox;
use crate::stock::{HANDLER, HOUR, SECOND};

#[test]
fn expired_leases_go_back_to_pending_and_live_ones_stay() {
    let sandbox = Sandbox::new();
    let live = sandbox.processing(1, SECOND);
    let expired = sandbox.processing(2, HOUR);
    let other = sandbox.run(["recover", "--handler", "other"]).exits(0);
    other.prints("Nothing to recover.\n");
    let ran = sandbox.run(["recover", "--handler", HANDLER]).exits(0).without_noise();
    ran.prints("Recovered 2 deliveries.\n");
    let recovered = sandbox.get(&expired[0].lease.delivery_id);
    assert_eq!((recovered.status, recovered.attempts, recovered.lease_token), (Status::Pending, 1, None));
    assert_eq!(sandbox.status(&live[0].lease.delivery_id), Status::Processing);
    let ran = sandbox.run(["recover", "-o", "json"]).exits(0);
    assert_eq!((&ran.json()["command"], &ran.json()["changed"]), (&json!("recover"), &json!(0)));
}
