//! Connections that break at the worst moment.

use mongodb::bson::{Document, doc};
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{Fenced, Outcome, Repair, RepairOutcome, Store};

use crate::fixture::{Fixture, NOW, claim_request, event, uri};

/// A store of its own name on the same database, so that the server can let its commands fail and no others.
async fn named_store(fixture: &Fixture, name: &str) -> MongoStore {
    let separator = if uri().contains('?') { '&' } else { '?' };
    let options = MongoOptions { database: Some(fixture.database.clone()), ..MongoOptions::default() };
    MongoStore::connect(&format!("{}{separator}appName={name}", uri()), options).await.expect("connect")
}

/// Lets the server break the connection when the next of these commands arrives.
async fn break_next(fixture: &Fixture, name: &str, command: &str) {
    let data: Document = doc! { "failCommands": [command], "closeConnection": true, "appName": name };
    let fail = doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data };
    fixture.store.client().database("admin").run_command(fail).await.expect("test commands are enabled");
}

#[tokio::test]
async fn a_lost_connection_loses_no_outcome_and_no_repair() {
    let fixture = Fixture::new().await;
    let name = format!("breaks-{}", std::process::id());
    let store = named_store(&fixture, &name).await;
    let dynamic: &dyn Store = &store;

    break_next(&fixture, &name, "insert").await;
    store.append(&[event(), event()], NOW).await.expect("append");
    break_next(&fixture, &name, "find").await;
    let claimed = store.claim(&claim_request(&["h"], 10, NOW)).await.expect("claim");
    assert_eq!(claimed.len(), 2);

    break_next(&fixture, &name, "update").await;
    let settled = dynamic.settle_one(&claimed[0].lease, Outcome::Complete, NOW).await.expect("settle");
    assert_eq!(settled, Fenced::Applied);
    break_next(&fixture, &name, "update").await;
    let id = &claimed[1].delivery.id;
    let bury = Repair::Bury { reason: "r".into() };
    assert_eq!(store.repair(id, &bury, NOW).await.expect("repair"), RepairOutcome::Changed);
    assert_eq!(fixture.delivery(id.as_str()).await.get_array("errors").unwrap().len(), 1);

    store.close().await;
    fixture.end().await;
}

/// The take alone cannot be sent again: whatever became of it is found out, and what it did not take is left for the next
/// claim, with no attempt spent.
#[tokio::test]
async fn a_claim_that_loses_its_take_leaves_all_as_it_was() {
    let fixture = Fixture::new().await;
    let name = format!("take-{}", std::process::id());
    let store = named_store(&fixture, &name).await;
    fixture.append(&[event(), event().key("k")]).await;
    break_next(&fixture, &name, "update").await;
    assert_eq!(store.claim(&claim_request(&["h"], 10, NOW)).await.expect("claim"), []);
    let claimed = store.claim(&claim_request(&["h"], 10, NOW)).await.expect("claim");
    let attempts: Vec<u32> = claimed.iter().map(|claimed| claimed.delivery.attempts).collect();
    assert_eq!(attempts, [1, 1]);
    store.close().await;
    fixture.end().await;
}
