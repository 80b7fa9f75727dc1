//! `keys list` and `keys prune`.

use serde_json::json;

use crate::harness::Sandbox;
use crate::stock::{DAY, before, order};

/// `order-1` and `order-2` with two and one waiting deliveries, and three keys whose deliveries are gone.
fn stock(sandbox: &Sandbox) {
    let keyed = |keys: &[&str]| keys.iter().map(|&key| order().key(key)).collect::<Vec<_>>();
    let long_ago = before(30 * DAY);
    let gone = sandbox.deliver(&keyed(&["gone-1", "gone-2", "other"]), long_ago);
    for id in gone {
        sandbox.bury(&id, 30 * DAY);
    }
    sandbox.deliver(&keyed(&["order-2", "order-1", "order-1"]), before(DAY));
    sandbox.run(["purge", "--dead-before", "7d", "--yes"]).exits(0);
}

#[test]
fn keys_are_listed_with_their_counters_in_every_format() {
    let sandbox = Sandbox::new();
    sandbox.run(["keys", "list", "-o", "json"]).exits(0).prints("[]\n");
    sandbox.run(["keys", "list"]).exits(0).prints("").complains("there are no keys");
    stock(&sandbox);
    let table = sandbox.run(["keys", "list", "--prefix-match", "order-"]).exits(0).without_noise();
    table.prints("SEQUENCE  KEY\n       2  order-1\n       1  order-2\n");
    let ran = sandbox.run(["keys", "list", "-o", "json", "--prefix-match", "order-1"]).exits(0);
    assert_eq!(ran.json(), json!([{"key": "order-1", "value": 2}]));
    let ids = sandbox.run(["keys", "list", "-o", "ids"]).exits(0);
    ids.prints("gone-1\ngone-2\norder-1\norder-2\nother\n");
    let csv = sandbox.run(["keys", "list", "-o", "csv", "--prefix-match", "other"]).exits(0);
    csv.prints("key,value\nother,1\n");
    let literal = sandbox.run(["keys", "list", "--prefix-match", "order.*"]).exits(0);
    literal.prints("").complains("no key begins like that");
}

#[test]
fn counters_without_deliveries_are_pruned_and_the_others_stay() {
    let sandbox = Sandbox::new();
    stock(&sandbox);
    let dry = sandbox.run(["keys", "prune", "-n"]).exits(0).without_noise();
    dry.prints("Would delete 3 of 5 counters.\n");
    assert_eq!(sandbox.run(["keys", "list", "-o", "ids"]).stdout.lines().count(), 5);
    let ran = sandbox.run(["keys", "prune", "--batch-size", "2", "-o", "json"]).exits(0);
    assert_eq!(
        ran.without_noise().json(),
        json!({
            "command": "keys prune", "dryRun": false, "matched": 3, "changed": 3, "skipped": 0, "failed": 0,
            "interrupted": false, "examined": 5,
        })
    );
    sandbox.run(["keys", "list", "-o", "ids"]).exits(0).prints("order-1\norder-2\n");
    let again = sandbox.run(["keys", "prune"]).exits(0).without_noise();
    again.prints("Nothing to prune among 2 counters.\n");
}
