//! Interleavings that only the server decides: conflicts in transactions, undone leases, write skew.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use mongodb::bson::{DateTime, doc};
use relayctl::model::{DeliveryId, ErrorGroupId, Filter, IdKind, IdSource, Selection, Timestamp};
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{
    ErrorKind, PruneRequest, PurgeRequest, Repair, RepairOutcome, Store, Transaction as _,
};

use crate::fixture::{Fixture, NOW, claim_request, event, ids, later, minimal};

/// The ids are in the opposite order of the sequences.
#[tokio::test]
async fn a_bulk_requeue_changes_deliveries_in_the_order_given() {
    let of_group = Filter { groups: vec![ErrorGroupId::of("h", "boom")], ..Filter::default() };
    for filter in [Filter::default(), of_group] {
        let fixture = Fixture::new().await;
        let ids: Vec<DeliveryId> = (0..50).map(|n| format!("d{:02}", 49 - n).into()).collect();
        for (id, sequence) in ids.iter().zip(1_i64..) {
            let updated_at = DateTime::from_millis(NOW.as_millis());
            let mut dead = minimal(id.as_str());
            dead.remove("dueAt");
            dead.extend(doc! { "key": "k", "sequence": sequence, "status": "dead", "updatedAt": updated_at });
            dead.insert("lastError", "boom");
            fixture.insert(dead).await;
        }
        let updates = doc! { "$match": { "operationType": "update" } };
        let mut changes = fixture.deliveries().watch().pipeline([updates]).await.unwrap();
        let selection = Selection { filter, cutoff: NOW };
        let requeue = Repair::Requeue { available_at: NOW };
        assert_eq!(fixture.store.repair_selected(&ids, &selection, &requeue, later(1)).await.unwrap(), 50);
        for id in &ids {
            let change = changes.next().await.unwrap().unwrap();
            assert_eq!(change.document_key.unwrap().get_str("_id").unwrap(), id.as_str());
        }
        fixture.end().await;
    }
}

fn is_conflict(result: Result<impl Sized, relayctl::store::StoreError>) -> bool {
    result.err().is_some_and(|error| error.kind() == ErrorKind::Conflict)
}

/// An insert of an id that the same snapshot showed absent is a labelled conflict, never a duplicate key, whether the
/// rival committed before or after it: on `_id` of the event, and on the unique index of event and handler.
#[tokio::test]
async fn a_race_for_an_id_is_a_conflict_that_can_be_retried() {
    let fixture = Fixture::new().await;
    fixture.append(&[event().id("there")]).await;
    for (id, handler) in [("new", "h"), ("there", "other")] {
        for rival_commits_first in [false, true] {
            let id = if id == "new" { format!("new-{rival_commits_first}") } else { id.to_owned() };
            let handler = format!("{handler}-{rival_commits_first}");
            let request = [event().id(id.as_str()).handler(handler.as_str())];
            let mut loser = fixture.store.begin().await.unwrap();
            // The snapshot is taken with the first read.
            loser.append(&[event()], NOW).await.unwrap();
            let mut winner = fixture.store.begin().await.unwrap();
            winner.append(&request, NOW).await.unwrap();
            if rival_commits_first {
                winner.commit().await.unwrap();
                assert!(is_conflict(loser.append(&request, NOW).await));
            } else {
                assert!(is_conflict(loser.append(&request, NOW).await));
                winner.commit().await.unwrap();
            }
            loser.abort().await;
            let again = fixture.store.append(&request, NOW).await.unwrap();
            assert!(!again[0].created && again[0].deliveries.iter().all(|delivery| !delivery.created));
        }
    }
    fixture.end().await;
}

#[tokio::test]
async fn a_duplicate_id_lets_the_application_commit_its_own_work() {
    let fixture = Fixture::new().await;
    fixture.append(&[event().id("e")]).await;
    let orders = fixture.store.database().collection("orders");
    fixture.store.database().create_collection("orders").await.unwrap();
    let mut transaction = fixture.store.begin().await.unwrap();
    orders.insert_one(doc! { "_id": 1 }).session(transaction.session()).await.unwrap();
    let appended = transaction.append(&[event().id("e")], NOW).await.unwrap();
    assert!(!appended[0].created);
    let mut other = event().id("e");
    other.payload = serde_json::json!("another");
    let error = transaction.append(&[other], NOW).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("another payload"), "{error}");
    transaction.commit().await.unwrap();
    assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 1);
    assert_eq!(fixture.deliveries().count_documents(doc! {}).await.unwrap(), 1);
    fixture.end().await;
}

/// Without the touch both would commit: they write no common document.
#[tokio::test]
async fn an_append_that_extends_an_event_conflicts_with_its_purge() {
    let fixture = Fixture::new().await;
    fixture.append(&[event().id("e")]).await;
    let claimed = fixture.claim(1, NOW).await;
    let store: &dyn Store = &fixture.store;
    let _ = store.settle_one(&claimed[0].lease, relayctl::store::Outcome::Complete, NOW).await.unwrap();
    let mut transaction = fixture.store.begin().await.unwrap();
    transaction.append(&[event().id("e").handler("late")], NOW).await.unwrap();
    let request = PurgeRequest { completed_before: Some(later(1)), dead_before: None, batch: 10 };
    let purge = tokio::spawn({
        let store = fixture.store.clone();
        async move { store.purge_batch(&request).await }
    });
    wait_for_retries(&fixture, 1).await;
    transaction.commit().await.unwrap();
    let purged = purge.await.unwrap().unwrap();
    assert_eq!((purged.deliveries, purged.events), (1, 0));
    assert_eq!(fixture.raw("events").count_documents(doc! {}).await.unwrap(), 1);
    let event = fixture.raw("events").find_one(doc! {}).await.unwrap().unwrap();
    assert!(!event.contains_key("relayctlTouch"), "{event}");
    fixture.end().await;
}

/// Waits until the server has aborted at least `more` further transactions, such as those of a rival that conflicts.
async fn wait_for_retries(fixture: &Fixture, more: i64) {
    let before = aborted(fixture).await;
    for _ in 0..1_000 {
        if aborted(fixture).await >= before + more {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("no transaction was aborted");
}

async fn aborted(fixture: &Fixture) -> i64 {
    let admin = fixture.store.client().database("admin");
    let status = admin.run_command(doc! { "serverStatus": 1 }).await.unwrap();
    let transactions = status.get_document("transactions").unwrap();
    transactions.get_i64("totalAborted").unwrap()
}

/// Two purges that each take one of the last two deliveries of an event must not both leave the event to the other.
#[tokio::test]
async fn two_purges_of_one_event_leave_nothing_behind() {
    let fixture = Fixture::new().await;
    for round in 0..20 {
        let id = format!("e{round}");
        fixture.append(&[event().id(id.as_str()).handler("i")]).await;
        for (handler, status) in [("h", "completed"), ("i", "dead")] {
            let change = doc! {
                "$set": { "status": status, "completedAt": DateTime::from_millis(NOW.as_millis()) },
                "$unset": { "dueAt": "" },
            };
            fixture
                .deliveries()
                .update_one(doc! { "eventId": &id, "handler": handler }, change)
                .await
                .unwrap();
        }
        let completed = PurgeRequest { completed_before: Some(later(1)), dead_before: None, batch: 10 };
        let dead = PurgeRequest { completed_before: None, dead_before: Some(later(1)), batch: 10 };
        let purge = |request| purge_all(&fixture.store, request);
        futures_util::future::join(purge(completed), purge(dead)).await;
        assert_eq!(fixture.deliveries().count_documents(doc! {}).await.unwrap(), 0);
        assert_eq!(fixture.raw("events").count_documents(doc! {}).await.unwrap(), 0, "round {round}");
    }
    fixture.end().await;
}

async fn purge_all(store: &MongoStore, request: PurgeRequest) {
    while store.purge_batch(&request).await.unwrap().deliveries > 0 {}
}

#[tokio::test]
async fn pruning_a_key_conflicts_with_an_append_in_flight() {
    let fixture = Fixture::new().await;
    fixture.raw("key_sequences").insert_one(doc! { "_id": "k", "value": 7_i64 }).await.unwrap();
    let mut transaction = fixture.store.begin().await.unwrap();
    transaction.append(&[event().key("k")], NOW).await.unwrap();
    let prune = tokio::spawn({
        let store = fixture.store.clone();
        async move { store.prune_keys(&PruneRequest { after: None, batch: 10, dry_run: false }).await }
    });
    wait_for_retries(&fixture, 1).await;
    transaction.commit().await.unwrap();
    assert_eq!(prune.await.unwrap().unwrap().pruned, 0);
    let counter = fixture.raw("key_sequences").find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(counter.get_i64("value").unwrap(), 8);
    fixture.end().await;
}

/// An identifier source that lets a rival act exactly between the look and the take of a claim: that is when the claim
/// asks for its token.
#[derive(Debug)]
struct Meddler {
    act: std::sync::Mutex<Option<tokio::sync::oneshot::Sender<()>>>,
    done: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl IdSource for Meddler {
    fn next(&self, _kind: IdKind, _now: Timestamp) -> String {
        if let Some(act) = self.act.lock().unwrap().take() {
            act.send(()).expect("the rival waits");
            // The claim stands still here, and its thread's other tasks must not stand with it.
            tokio::task::block_in_place(|| self.done.lock().unwrap().recv().expect("the rival acts"));
        }
        "token".to_owned()
    }
}

/// Runs a claim of at most ten, and `rival` between its look and its take; returns the ids that the claim won.
async fn claim_with_rival(fixture: &Fixture, rival: impl Future<Output = ()>) -> Vec<String> {
    let (act, acted) = tokio::sync::oneshot::channel();
    let (done, wait) = std::sync::mpsc::channel();
    let meddler = Meddler { act: Some(act).into(), done: wait.into() };
    let store = fixture.store.clone().with_ids(Arc::new(meddler));
    let claim = tokio::spawn(async move { store.claim(&claim_request(&["h"], 10, NOW)).await });
    acted.await.expect("the claim finds something to take");
    rival.await;
    done.send(()).unwrap();
    let claimed = claim.await.unwrap().unwrap();
    ids(&claimed).into_iter().map(str::to_owned).collect()
}

fn keyed(id: &str, sequence: i32) -> mongodb::bson::Document {
    let mut document = minimal(id);
    document.extend(doc! { "key": "k", "sequence": sequence });
    document
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_lease_taken_beside_a_requeued_predecessor_is_undone_exactly() {
    let fixture = Fixture::new().await;
    let mut pending = keyed("pending", 2);
    pending.extend(doc! { "attempts": 3.0, "updatedAt": DateTime::from_millis(77), "note": { "$x": 1 } });
    let mut crashed = keyed("crashed", 2);
    crashed.extend(doc! {
        "status": "processing", "attempts": 4, "leaseToken": "$old", "leaseOwner": "w0",
        "leaseExpiresAt": DateTime::from_millis(NOW.as_millis()), "updatedAt": null,
    });
    let entry = |attempt: i32| doc! { "attempt": attempt, "kind": "timeout", "message": "$slow", "more": 1 };
    let mut crashed_again = crashed.clone();
    crashed_again.extend(doc! {
        "_id": "crashed again", "attempts": 14, "lastError": "$slow",
        "errors": (4..14).map(entry).collect::<Vec<_>>(),
    });
    for before in [pending, crashed, crashed_again] {
        fixture.deliveries().delete_many(doc! {}).await.unwrap();
        let mut dead = keyed("dead", 1);
        dead.extend(doc! { "status": "dead" });
        dead.remove("dueAt");
        fixture.insert(dead).await;
        fixture.insert(before.clone()).await;
        let id = before.get_str("_id").unwrap();
        let won = claim_with_rival(&fixture, async {
            let requeue = Repair::Requeue { available_at: later(60) };
            let outcome = fixture.store.repair(&DeliveryId::from("dead"), &requeue, NOW).await.unwrap();
            assert_eq!(outcome, RepairOutcome::Changed);
        })
        .await;
        assert_eq!(won, Vec::<String>::new());
        assert_eq!(fixture.delivery(id).await, before);
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_lease_taken_beside_a_running_requeued_predecessor_is_undone() {
    let fixture = Fixture::new().await;
    let mut dead = keyed("dead", 1);
    dead.extend(doc! { "status": "dead" });
    dead.remove("dueAt");
    fixture.insert(dead).await;
    fixture.insert(keyed("later", 2)).await;
    let won = claim_with_rival(&fixture, async {
        let requeue = Repair::Requeue { available_at: NOW };
        fixture.store.repair(&DeliveryId::from("dead"), &requeue, NOW).await.unwrap();
        assert_eq!(ids(&fixture.claim(10, NOW).await), ["dead"]);
    })
    .await;
    assert_eq!(won, Vec::<String>::new());
    assert_eq!(fixture.delivery("later").await, keyed("later", 2));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_delivery_that_a_rival_took_first_is_not_taken_again() {
    let fixture = Fixture::new().await;
    fixture.insert(minimal("a")).await;
    let won = claim_with_rival(&fixture, async {
        assert_eq!(ids(&fixture.claim(10, NOW).await), ["a"]);
    })
    .await;
    assert_eq!(won, Vec::<String>::new());
    assert_ne!(fixture.delivery("a").await.get_str("leaseToken").unwrap(), "token");
    fixture.end().await;
}

/// First appends of a new key race on the insertion of its counter.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn first_appends_of_a_key_number_without_gap() {
    let fixture = Fixture::new().await;
    for round in 0..10 {
        let key = format!("k{round}");
        let appends = (0..8).map(|_| {
            let (store, key) = (fixture.store.clone(), key.clone());
            tokio::spawn(async move { store.append(&[event().key(key)], NOW).await.unwrap() })
        });
        join_all(appends).await;
        let options = mongodb::options::FindOptions::builder().sort(doc! { "sequence": 1 }).build();
        let cursor = fixture.raw("events").find(doc! { "key": &key }).with_options(options).await.unwrap();
        let events: Vec<_> = futures_util::TryStreamExt::try_collect(cursor).await.unwrap();
        let sequences: Vec<i64> = events.iter().map(|event| event.get_i64("sequence").unwrap()).collect();
        assert_eq!(sequences, (1..=8).collect::<Vec<_>>());
    }
    fixture.end().await;
}

#[tokio::test]
async fn options_for_an_existing_client_need_a_database() {
    let client = mongodb::Client::with_uri_str(crate::fixture::uri()).await.unwrap();
    let error = MongoStore::new(&client, MongoOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// A rival takes one of the leases between a batch's look and its update; the others are told apart from it.
#[tokio::test]
async fn a_lease_that_is_lost_within_a_batch_is_told_from_the_others() {
    let fixture = Fixture::new().await;
    fixture.append(&[event(), event(), event()]).await;
    let claimed = fixture.claim(3, NOW).await;
    let failure = || relayctl::model::Failure::new(relayctl::model::FailureKind::Failed, "boom");
    let outcomes = [
        relayctl::store::Outcome::Complete,
        relayctl::store::Outcome::Bury { failure: failure() },
        relayctl::store::Outcome::Reschedule { available_at: later(9), failure: failure() },
    ];
    let settlements = claimed
        .iter()
        .zip(outcomes)
        .map(|(claimed, outcome)| relayctl::store::Settlement { lease: claimed.lease.clone(), outcome });
    let settlements: Vec<_> = settlements.collect();
    // The rival's write is prepared before the batch begins, and holds its document until the batch has looked.
    let lost = claimed[1].delivery.id.as_str();
    let mut session = fixture.store.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let take =
        doc! { "$set": { "leaseToken": "rival", "updatedAt": DateTime::from_millis(later(1).as_millis()) } };
    fixture.deliveries().update_one(doc! { "_id": lost }, take).session(&mut session).await.unwrap();
    let settle = tokio::spawn({
        let store = fixture.store.clone();
        async move { store.settle(&settlements, later(2)).await }
    });
    wait_for_blocked_write(&fixture).await;
    session.commit_transaction().await.unwrap();
    use relayctl::store::Fenced::{Applied, LeaseLost};
    assert_eq!(settle.await.unwrap().unwrap(), [Applied, LeaseLost, Applied]);
    assert_eq!(fixture.delivery(lost).await.get_str("leaseToken").unwrap(), "rival");
    fixture.end().await;
}

/// Waits until a write to this test's deliveries has run into the transaction that is open on them.
async fn wait_for_blocked_write(fixture: &Fixture) {
    let namespace = format!("{}.relaybus_deliveries", fixture.database);
    let held_up = doc! { "$or": [{ "writeConflicts": { "$gt": 0 } }, { "numYields": { "$gt": 0 } }] };
    let question = doc! { "currentOp": 1, "ns": namespace, "active": true, "$and": [held_up] };
    for _ in 0..10_000 {
        let admin = fixture.store.client().database("admin");
        let answer = admin.run_command(question.clone()).await.unwrap();
        if !answer.get_array("inprog").unwrap().is_empty() {
            return;
        }
    }
    panic!("no write was held up");
}

/// More heads are due and held up by a runner of their key than a claim looks at in one go; the one behind them is found.
#[tokio::test]
async fn a_thousand_held_up_heads_do_not_hide_a_free_one() {
    let fixture = Fixture::new().await;
    let of_key = |id: String, key: String, sequence: i32| {
        let mut document = minimal(&id);
        document.extend(doc! { "key": key, "sequence": sequence });
        document
    };
    let held_up = (0..1_200).flat_map(|n| {
        let head = of_key(format!("a-head-{n}"), format!("k{n}"), 1);
        let mut runner = of_key(format!("runner-{n}"), format!("k{n}"), 2);
        let expiry = DateTime::from_millis(later(600).as_millis());
        runner.extend(
            doc! { "status": "processing", "leaseToken": "other", "dueAt": expiry, "leaseExpiresAt": expiry },
        );
        [head, runner]
    });
    fixture.deliveries().insert_many(held_up).await.unwrap();
    fixture.insert(of_key("z-free".into(), "free".into(), 1)).await;
    assert_eq!(ids(&fixture.claim(5, NOW).await), ["z-free"]);
    fixture.end().await;
}

/// The store knows that it took these leases and reports on them for the first time: it need not look before it writes.
/// What it does not know it looks at, and a second report finds each lease gone.
#[tokio::test]
async fn a_batch_of_first_outcomes_is_one_command() {
    let fixture = Fixture::new().await;
    fixture.append(&[event(), event(), event()]).await;
    let (client, sent) = crate::fixture::spied_client().await;
    let options = MongoOptions { database: Some(fixture.database.clone()), ..MongoOptions::default() };
    let store = MongoStore::new(&client, options).unwrap();
    let claimed = store.claim(&claim_request(&["h"], 3, NOW)).await.unwrap();
    let outcome = |n: usize| match n {
        0 => relayctl::store::Outcome::ExtendLease { expires_at: later(90) },
        _ => relayctl::store::Outcome::Complete,
    };
    let settlements = claimed.iter().enumerate().map(|(n, claimed)| relayctl::store::Settlement {
        lease: claimed.lease.clone(),
        outcome: outcome(n),
    });
    let settlements: Vec<_> = settlements.collect();
    let names = || -> Vec<String> {
        let sent = std::mem::take(&mut *sent.lock().unwrap());
        sent.iter().filter_map(|command| command.keys().next().cloned()).collect()
    };
    use relayctl::store::Fenced::{Applied, LeaseLost};
    names();
    assert_eq!(store.settle(&settlements, later(1)).await.unwrap(), [Applied, Applied, Applied]);
    assert_eq!(names(), ["update"]);
    assert_eq!(store.settle(&settlements, later(1)).await.unwrap(), [Applied, LeaseLost, LeaseLost]);
    assert_eq!(names(), ["find", "update"]);
    let extended = fixture.delivery(claimed[0].delivery.id.as_str()).await;
    assert_eq!(extended.get_datetime("dueAt").unwrap(), &DateTime::from_millis(later(90).as_millis()));
    store.close().await;
    fixture.end().await;
}
