//! `recover`.

use relayctl::model::Status;
use serde_json::json;

use crate::shop::{HANDLER, HOUR, SECOND, visit};

#[tokio::test]
async fn expired_leases_go_back_to_pending_and_live_ones_stay() {
    visit(async |shop| {
        let live = shop.processing(1, SECOND).await;
        let expired = shop.processing(2, HOUR).await;
        let other = shop.relayctl(&["recover", "--handler", "other"]).await.exits(0);
        other.prints("Nothing to recover.\n");
        let ran = shop.relayctl(&["recover", "--handler", HANDLER]).await.exits(0).without_noise();
        ran.prints("Recovered 2 deliveries.\n");
        let recovered = shop.get(&expired[0].lease.delivery_id).await;
        assert_eq!((recovered.status, recovered.attempts, recovered.lease_token), (Status::Pending, 1, None));
        assert_eq!(shop.status(&live[0].lease.delivery_id).await, Status::Processing);
        let ran = shop.relayctl(&["recover", "-o", "json"]).await.exits(0);
        assert_eq!((&ran.json()["command"], &ran.json()["changed"]), (&json!("recover"), &json!(0)));
    })
    .await;
}
