//! `keys list` and `keys prune`.

use relayctl::store::Store as _;
use serde_json::json;

use crate::shop::{DAY, Shop, event, visit};

/// `order-1` and `order-2` with two and one waiting deliveries, and three keys whose deliveries are gone.
async fn stock(shop: &Shop) {
    let keyed = |keys: &[&str]| keys.iter().map(|&key| event().key(key)).collect::<Vec<_>>();
    let long_ago = shop.ago(30 * DAY);
    let gone = shop.append(&keyed(&["gone-1", "gone-2", "other"]), long_ago).await;
    for id in gone {
        let bury = relayctl::store::Repair::Bury { reason: "r".to_owned() };
        shop.store.repair(&id, &bury, long_ago).await.expect("bury");
    }
    shop.append(&keyed(&["order-2", "order-1", "order-1"]), shop.ago(DAY)).await;
    shop.relayctl(&["purge", "--dead-before", "7d", "--yes"]).await.exits(0);
}

#[tokio::test]
async fn keys_are_listed_with_their_counters_in_every_format() {
    visit(async |shop| {
        shop.relayctl(&["keys", "list", "-o", "json"]).await.exits(0).prints("[]\n");
        shop.relayctl(&["keys", "list"]).await.exits(0).prints("").complains("there are no keys");
        stock(shop).await;
        let table =
            shop.relayctl(&["keys", "list", "--prefix-match", "order-"]).await.exits(0).without_noise();
        table.prints("SEQUENCE  KEY\n       2  order-1\n       1  order-2\n");
        let ran = shop.relayctl(&["keys", "list", "-o", "json", "--prefix-match", "order-1"]).await.exits(0);
        assert_eq!(ran.json(), json!([{"key": "order-1", "value": 2}]));
        let ids = shop.relayctl(&["keys", "list", "-o", "ids"]).await.exits(0);
        ids.prints("gone-1\ngone-2\norder-1\norder-2\nother\n");
        let csv = shop.relayctl(&["keys", "list", "-o", "csv", "--prefix-match", "other"]).await.exits(0);
        csv.prints("key,value\nother,1\n");
        let literal = shop.relayctl(&["keys", "list", "--prefix-match", "order.*"]).await.exits(0);
        literal.prints("").complains("no key begins like that");
    })
    .await;
}

#[tokio::test]
async fn counters_without_deliveries_are_pruned_and_the_others_stay() {
    visit(async |shop| {
        stock(shop).await;
        let dry = shop.relayctl(&["keys", "prune", "-n"]).await.exits(0).without_noise();
        dry.prints("Would delete 3 of 5 counters.\n");
        assert_eq!(shop.relayctl(&["keys", "list", "-o", "ids"]).await.stdout.lines().count(), 5);
        let ran = shop.relayctl(&["keys", "prune", "--batch-size", "2", "-o", "json"]).await.exits(0);
        assert_eq!(
            ran.without_noise().json(),
            json!({
                "command": "keys prune", "dryRun": false, "matched": 3, "changed": 3, "skipped": 0, "failed": 0,
                "interrupted": false, "examined": 5,
            })
        );
        shop.relayctl(&["keys", "list", "-o", "ids"]).await.exits(0).prints("order-1\norder-2\n");
        let again = shop.relayctl(&["keys", "prune"]).await.exits(0).without_noise();
        again.prints("Nothing to prune among 2 counters.\n");
    })
    .await;
}
