//! The caller's transaction: what joins it, what aborts it, and what lets it commit.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use relayctl::model::{EventId, Status};
use relayctl::store::memory::MemoryTransaction;
use relayctl::store::mongo::MongoTransaction;
use relayctl::store::{ErrorKind, Fenced, StoreError, WriteChange, WriteOperation};
use serde_json::json;

use crate::fixture::{Fixture, LEASE, SECOND, bury, event, keyed, refused};

conformance![
    an_append_is_there_when_the_transaction_commits,
    an_append_is_gone_when_the_transaction_aborts,
    an_abandoned_transaction_leaves_nothing,
    an_aborted_append_leaves_no_gap,
    nothing_is_claimed_of_a_transaction_that_aborts,
    appends_of_one_transaction_see_each_other,
    a_duplicate_id_lets_the_caller_commit,
    a_conflict_lets_the_caller_commit,
    a_refused_event_lets_the_caller_commit,
    a_session_without_transaction_is_refused,
    a_failure_of_the_work_aborts_and_is_returned,
    work_runs_again_after_a_conflict_and_counts_once,
    the_backends_own_transaction_is_within_reach,
    a_store_says_beforehand_where_it_can_write,
    a_write_that_is_refused_lets_the_caller_commit,
    a_completion_is_done_when_the_transaction_commits,
    a_completion_is_not_done_when_the_transaction_aborts,
    a_completion_without_lease_says_so_and_lets_the_caller_commit,
    a_completion_and_an_append_commit_together,
    a_completion_in_a_transaction_and_a_claim_race_to_one_of_both,
];

async fn an_append_is_there_when_the_transaction_commits(fixture: &Fixture) {
    let mut open = fixture.begin().await;
    let appended = open.transaction().append(&[keyed("a"), event()], fixture.now()).await.unwrap();
    open.commit().await.unwrap();
    let all = fixture.all().await;
    assert_eq!(all.len(), 2);
    assert!(appended.iter().all(|one| one.created && all.iter().any(|d| d.id == one.deliveries[0].id)));
    assert_eq!(fixture.counter("a").await, Some(1));
}

async fn an_append_is_gone_when_the_transaction_aborts(fixture: &Fixture) {
    let mut open = fixture.begin().await;
    open.transaction().append(&[keyed("a").id("e-1")], fixture.now()).await.unwrap();
    open.abort().await.unwrap();
    assert_nothing_is_there(fixture).await;
}

async fn an_abandoned_transaction_leaves_nothing(fixture: &Fixture) {
    let mut open = fixture.begin().await;
    open.transaction().append(&[keyed("a").id("e-1")], fixture.now()).await.unwrap();
    drop(open);
    assert_nothing_is_there(fixture).await;
}

async fn assert_nothing_is_there(fixture: &Fixture) {
    assert_eq!(fixture.all().await, []);
    assert_eq!(fixture.events(&["e-1".into()]).await, []);
    assert_eq!(fixture.key_sequences(None).await, []);
}

async fn an_aborted_append_leaves_no_gap(fixture: &Fixture) {
    fixture.publish(keyed("a")).await;
    let mut open = fixture.begin().await;
    open.transaction().append(&[keyed("a"), keyed("a")], fixture.now()).await.unwrap();
    open.abort().await.unwrap();
    let id = fixture.publish(keyed("a")).await;
    assert_eq!(fixture.get(&id).await.sequence, Some(2));
}

async fn nothing_is_claimed_of_a_transaction_that_aborts(fixture: &Fixture) {
    let aborting = async {
        for _ in 0..10 {
            let mut open = fixture.begin().await;
            open.transaction().append(&[event(), keyed("a")], fixture.now()).await.unwrap();
            tokio::task::yield_now().await;
            open.abort().await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let claiming = async {
        let mut claimed = Vec::new();
        for _ in 0..20 {
            claimed.extend(fixture.claim(10).await);
            tokio::task::yield_now().await;
        }
        claimed
    };
    let ((), claimed) = futures_util::join!(aborting, claiming);
    assert_eq!(claimed, []);
}

async fn appends_of_one_transaction_see_each_other(fixture: &Fixture) {
    let mut open = fixture.begin().await;
    let now = fixture.now();
    let first = open.transaction().append(&[keyed("a").id("e-1")], now).await.unwrap().remove(0);
    let again =
        open.transaction().append(&[keyed("a").id("e-1").handler("late")], now).await.unwrap().remove(0);
    open.transaction().append(&[keyed("a")], now).await.unwrap();
    open.commit().await.unwrap();
    assert!(first.created && !again.created);
    assert_eq!(again.deliveries[0].id, first.deliveries[0].id);
    assert!(again.deliveries[1].created);
    assert_eq!(fixture.counter("a").await, Some(2));
}

async fn a_duplicate_id_lets_the_caller_commit(fixture: &Fixture) {
    fixture.publish(event().id("e-1")).await;
    let mut open = fixture.begin().await;
    let appended = open.transaction().append(&[event().id("e-1")], fixture.now()).await.unwrap();
    assert!(!appended[0].created);
    open.transaction().append(&[event().id("e-2")], fixture.now()).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(fixture.events(&["e-1".into(), "e-2".into()]).await.len(), 2);
    assert_eq!(fixture.all().await.len(), 2);
}

async fn a_conflict_lets_the_caller_commit(fixture: &Fixture) {
    fixture.publish(event().id("e-1")).await;
    let mut changed = event().id("e-1");
    changed.payload = json!("another");
    let mut open = fixture.begin().await;
    let batch = [keyed("a").id("e-2"), changed];
    let error = refused(open.transaction().append(&batch, fixture.now()).await);
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("payload"), "{error}");
    open.transaction().append(&[keyed("a").id("e-3")], fixture.now()).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(fixture.events(&["e-2".into()]).await, []);
    assert_eq!(fixture.event(&EventId::from("e-3")).await.sequence, Some(1));
}

async fn a_refused_event_lets_the_caller_commit(fixture: &Fixture) {
    let mut open = fixture.begin().await;
    let batch = [keyed("a"), keyed("")];
    let error = refused(open.transaction().append(&batch, fixture.now()).await);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    open.transaction().append(&[keyed("a")], fixture.now()).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(fixture.all().await.len(), 1);
    assert_eq!(fixture.counter("a").await, Some(1));
}

async fn a_session_without_transaction_is_refused(fixture: &Fixture) {
    let mut plain = fixture.not_begun().await;
    let error = refused(plain.transaction().append(&[keyed("a").id("e-1")], fixture.now()).await);
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("started transaction"), "{error}");
    drop(plain);
    assert_nothing_is_there(fixture).await;
}

async fn a_failure_of_the_work_aborts_and_is_returned(fixture: &Fixture) {
    let now = fixture.now();
    let result = fixture
        .store
        .transaction(&mut |transaction| {
            async move {
                transaction.append(&[keyed("a").id("e-1")], now).await?;
                Err(StoreError::aborted("out of stock"))
            }
            .boxed()
        })
        .await;
    let error = refused(result);
    assert_eq!(error.kind(), ErrorKind::Aborted);
    assert_eq!(error.source().unwrap().to_string(), "out of stock");
    assert_nothing_is_there(fixture).await;
}

/// Eight transactions increment one counter. Whichever has to start again leaves nothing of its first run.
async fn work_runs_again_after_a_conflict_and_counts_once(fixture: &Fixture) {
    let now = fixture.now();
    let commits = AtomicUsize::new(0);
    join_all((0..8).map(|_| async {
        fixture
            .store
            .transaction(&mut |transaction| {
                async move { transaction.append(&[keyed("hot")], now).await.map(drop) }.boxed()
            })
            .await
            .unwrap();
        commits.fetch_add(1, Ordering::Relaxed);
    }))
    .await;
    assert_eq!(commits.into_inner(), 8);
    let mut sequences: Vec<_> = fixture.all().await.iter().filter_map(|delivery| delivery.sequence).collect();
    sequences.sort_unstable();
    assert_eq!(sequences, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(fixture.counter("hot").await, Some(8));
}

async fn the_backends_own_transaction_is_within_reach(fixture: &Fixture) {
    fixture
        .store
        .transaction(&mut |transaction| {
            let own = transaction.as_any_mut();
            assert!(own.is::<MemoryTransaction>() || own.is::<MongoTransaction>());
            async { Ok(()) }.boxed()
        })
        .await
        .unwrap();
}

/// What a store without collections of others says, and what one that has them says of the outbox's own.
const REFUSALS: [ErrorKind; 2] = [ErrorKind::Unsupported, ErrorKind::Invalid];

fn insert_in(collection: &str, document: serde_json::Value) -> WriteOperation {
    let serde_json::Value::Object(document) = document else { panic!("an object was expected") };
    WriteOperation { collection: collection.to_owned(), change: WriteChange::InsertOne { document } }
}

async fn a_store_says_beforehand_where_it_can_write(fixture: &Fixture) {
    for collection in
        ["orders", "relaybus_events", "relaybus_deliveries", "relaybus_key_sequences", "system.users", ""]
    {
        let said = fixture.store.check_writes(&[collection.to_owned()]).map_err(|error| error.kind());
        let mut open = fixture.begin().await;
        let done = open.transaction().write(&insert_in(collection, json!({"_id": "new"}))).await;
        assert_eq!(done.map_err(|error| error.kind()), said, "{collection}");
        assert_eq!(said.is_ok(), collection == "orders" && !is_unsupported(fixture), "{collection}");
        open.abort().await.unwrap();
    }
    assert_nothing_is_there(fixture).await;
}

fn is_unsupported(fixture: &Fixture) -> bool {
    let said = fixture.store.check_writes(&["orders".to_owned()]);
    said.is_err_and(|error| error.kind() == ErrorKind::Unsupported)
}

async fn a_write_that_is_refused_lets_the_caller_commit(fixture: &Fixture) {
    let mut open = fixture.begin().await;
    for write in
        [insert_in("relaybus_events", json!({})), insert_in("orders", json!({"at": {"$date": "late"}}))]
    {
        let error = refused(open.transaction().write(&write).await);
        assert!(REFUSALS.contains(&error.kind()), "{error:?}");
    }
    open.transaction().append(&[event().id("e-1")], fixture.now()).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(fixture.events(&["e-1".into()]).await.len(), 1);
}

async fn a_completion_is_done_when_the_transaction_commits(fixture: &Fixture) {
    fixture.publish(event()).await;
    let claimed = fixture.claim_only().await;
    fixture.clock.advance(SECOND);
    let mut open = fixture.begin().await;
    let fenced = open.transaction().complete(&claimed.lease, fixture.now()).await.unwrap();
    assert_eq!(fenced, Fenced::Applied);
    open.commit().await.unwrap();
    let delivery = fixture.get(&claimed.delivery.id).await;
    assert_eq!((delivery.status, delivery.completed_at), (Status::Completed, Some(fixture.now())));
    assert_eq!((delivery.due_at, delivery.lease()), (None, None));
}

async fn a_completion_is_not_done_when_the_transaction_aborts(fixture: &Fixture) {
    fixture.publish(event()).await;
    let claimed = fixture.claim_only().await;
    let mut open = fixture.begin().await;
    let fenced = open.transaction().complete(&claimed.lease, fixture.now()).await.unwrap();
    assert_eq!(fenced, Fenced::Applied);
    open.abort().await.unwrap();
    assert_eq!(fixture.get(&claimed.delivery.id).await, claimed.delivery);
    fixture.complete(&claimed).await;
}

async fn a_completion_without_lease_says_so_and_lets_the_caller_commit(fixture: &Fixture) {
    fixture.publish(event()).await;
    let lost = fixture.claim_only().await;
    fixture.clock.advance(LEASE);
    let held = fixture.claim_only().await;
    let mut open = fixture.begin().await;
    let fenced = open.transaction().complete(&lost.lease, fixture.now()).await.unwrap();
    assert_eq!(fenced, Fenced::LeaseLost);
    open.transaction().append(&[event().id("e-1")], fixture.now()).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(fixture.get(&held.delivery.id).await, held.delivery);
    assert_eq!(fixture.events(&["e-1".into()]).await.len(), 1);
}

async fn a_completion_and_an_append_commit_together(fixture: &Fixture) {
    fixture.publish(event()).await;
    let claimed = fixture.claim_only().await;
    let (now, lease) = (fixture.now(), claimed.lease.clone());
    fixture
        .store
        .transaction(&mut |transaction| {
            let lease = lease.clone();
            async move {
                assert_eq!(transaction.complete(&lease, now).await?, Fenced::Applied);
                transaction.append(&[event().id("e-2")], now).await.map(drop)
            }
            .boxed()
        })
        .await
        .unwrap();
    assert_eq!(fixture.status(&claimed.delivery.id).await, Status::Completed);
    assert_eq!(fixture.events(&["e-2".into()]).await.len(), 1);
    assert_eq!(fixture.settle(&claimed, bury()).await, Fenced::LeaseLost);
}

/// The lease has run out, and its worker is late: either its transaction or the next claim gets the delivery.
async fn a_completion_in_a_transaction_and_a_claim_race_to_one_of_both(fixture: &Fixture) {
    for _ in 0..10 {
        fixture.publish(event()).await;
        let late = fixture.claim_only().await;
        fixture.clock.advance(LEASE);
        let (now, applied) = (fixture.now(), Arc::new(AtomicBool::new(false)));
        let completion = async {
            fixture
                .store
                .transaction(&mut |transaction| {
                    let (lease, applied) = (late.lease.clone(), Arc::clone(&applied));
                    async move {
                        let fenced = transaction.complete(&lease, now).await?;
                        applied.store(fenced == Fenced::Applied, Ordering::Relaxed);
                        Ok(())
                    }
                    .boxed()
                })
                .await
                .unwrap();
        };
        let ((), claimed) = futures_util::join!(completion, fixture.claim(1));
        assert_ne!(applied.load(Ordering::Relaxed), !claimed.is_empty());
        fixture.complete_all(&claimed).await;
        assert_eq!(fixture.status(&late.delivery.id).await, Status::Completed);
    }
}
