//! No setting of a URL weakens what the store promises.

use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, doc};
use relayctl::model::{ListQuery, NewEvent};
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{Outcome, PurgeRequest, Repair, Store};
use serde_json::json;

use crate::fixture::{Fixture, NOW, claim_request, event, later, spied_client_at, uri};

const WEAK: &str =
    "readPreference=secondaryPreferred&w=1&readConcernLevel=local&retryWrites=false&journal=false";

#[tokio::test]
async fn weak_settings_in_the_url_change_nothing() {
    let fixture = Fixture::with_options(WEAK).await;
    fixture.append(&[event().key("k"), event().key("k")]).await;
    let claimed = fixture.claim(10, NOW).await;
    assert_eq!(claimed.len(), 1);
    let store: &dyn Store = &fixture.store;
    let _ = store.settle_one(&claimed[0].lease, Outcome::Complete, NOW).await.unwrap();
    let request = PurgeRequest { completed_before: Some(later(1)), dead_before: None, batch: 10 };
    assert_eq!(store.purge_batch(&request).await.unwrap().deliveries, 1);
    fixture.end().await;
}

/// Every write that is not part of a transaction, and every commit, waits for a majority; every read is a majority read,
/// or inside a transaction a snapshot read; whatever the URL of the client asks for.
#[tokio::test]
async fn every_command_carries_its_own_concern() {
    let fixture = Fixture::new().await;
    let separator = if uri().contains('?') { '&' } else { '?' };
    let (client, sent) = spied_client_at(&format!("{}{separator}{WEAK}", uri())).await;
    let options = MongoOptions { database: Some(fixture.database.clone()), ..MongoOptions::default() };
    let store = MongoStore::new(&client, options).unwrap();
    let dynamic: &dyn Store = &store;
    store.append(&[event().key("k"), NewEvent::new("t", json!(1)).handler("h")], NOW).await.unwrap();
    let claimed = store.claim(&claim_request(&["h"], 10, NOW)).await.unwrap();
    let _ = dynamic.settle_one(&claimed[0].lease, Outcome::Complete, NOW).await.unwrap();
    let bury = Repair::Bury { reason: "r".into() };
    store.repair(&claimed[1].delivery.id, &bury, NOW).await.unwrap();
    store.recover(&[], NOW).await.unwrap();
    let _: Vec<_> = store.list(&ListQuery::default()).try_collect().await.unwrap();
    store.statistics().await.unwrap();
    store.queue_depths(&["h".to_owned()]).await.unwrap();
    store.key_state("h", "k", NOW).await.unwrap();
    store.waiting_behind("h", "k", 0).await.unwrap();
    store.handler_activity("h", NOW).await.unwrap();
    let request = PurgeRequest { completed_before: Some(later(1)), dead_before: Some(later(1)), batch: 10 };
    store.purge_batch(&request).await.unwrap();
    let sent = std::mem::take(&mut *sent.lock().unwrap());
    for command in &sent {
        check_concern(command);
    }
    let names: std::collections::BTreeSet<_> =
        sent.iter().filter_map(|command| command.keys().next()).collect();
    for name in ["find", "aggregate", "update", "insert", "delete", "commitTransaction"] {
        assert!(names.iter().any(|sent| sent.as_str() == name), "{name} was sent: {names:?}");
    }
    store.close().await;
    fixture.end().await;
}

fn check_concern(command: &Document) {
    let name = command.keys().next().map(String::as_str).unwrap_or_default();
    let write = command.get_document("writeConcern").ok().and_then(|concern| concern.get_str("w").ok());
    let read = command.get_document("readConcern").ok().and_then(|concern| concern.get_str("level").ok());
    let is_start = command.get_bool("startTransaction").unwrap_or(false);
    let in_transaction = command.get_bool("autocommit").is_ok();
    let preference = command.get_document("$readPreference").ok().and_then(|mode| mode.get_str("mode").ok());
    assert!(matches!(preference, None | Some("primary")), "{command}");
    match name {
        "commitTransaction" => assert_eq!(write, Some("majority"), "{command}"),
        _ if is_start => assert_eq!(read, Some("snapshot"), "{command}"),
        _ if in_transaction => {}
        "update" | "insert" | "delete" | "findAndModify" => assert_eq!(write, Some("majority"), "{command}"),
        "find" | "aggregate" => assert!(matches!(read, Some("majority" | "snapshot")), "{command}"),
        _ => {}
    }
}

/// The application's own transaction, with its own settings, is joined as it is.
#[tokio::test]
async fn a_transaction_of_the_application_is_joined() {
    let fixture = Fixture::with_options(WEAK).await;
    let orders = fixture.store.database().collection::<Document>("orders");
    fixture.store.database().create_collection("orders").await.unwrap();
    for commit in [false, true] {
        let mut session = fixture.store.client().start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        orders.insert_one(doc! { "_id": "o-1" }).session(&mut session).await.unwrap();
        fixture.store.append_in(&mut session, &[event().id("e").key("k")], NOW).await.unwrap();
        assert_eq!(fixture.deliveries().count_documents(doc! {}).await.unwrap(), 0);
        if commit {
            session.commit_transaction().await.unwrap();
        } else {
            session.abort_transaction().await.unwrap();
        }
        let expected = u64::from(commit);
        assert_eq!(orders.count_documents(doc! {}).await.unwrap(), expected);
        assert_eq!(fixture.deliveries().count_documents(doc! {}).await.unwrap(), expected);
    }
    fixture.end().await;
}

#[tokio::test]
async fn a_session_without_a_transaction_is_refused_and_stays_usable() {
    let fixture = Fixture::new().await;
    let mut session = fixture.store.client().start_session().await.unwrap();
    let error = fixture.store.append_in(&mut session, &[event()], NOW).await.unwrap_err();
    assert_eq!(error.kind(), relayctl::store::ErrorKind::Misconfigured);
    assert!(error.to_string().contains("no started transaction"), "{error}");
    assert_eq!(fixture.raw("events").count_documents(doc! {}).await.unwrap(), 0);
    session.start_transaction().await.unwrap();
    fixture.store.append_in(&mut session, &[event()], NOW).await.unwrap();
    session.commit_transaction().await.unwrap();
    assert_eq!(fixture.raw("events").count_documents(doc! {}).await.unwrap(), 1);
    fixture.end().await;
}
