//! What a handler has prepared, committed with its completion in one MongoDB transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use mongodb::IndexModel;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::options::IndexOptions;
use relayctl::clock::ManualClock;
use relayctl::dispatch::{
    DispatchEvent, DispatchOptions, Dispatcher, Finished, Signals, StopWhen, Subscription, Verdict,
};
use relayctl::handler::{HandlerContext, OperationRules, Outcome, Preparation, PreparingHandler};
use relayctl::model::{Envelope, RetryPolicy};
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{Repair, Store};
use tokio::sync::mpsc;

use crate::fixture::{Fixture, NOW, event, spied_client};

/// Prepares these lines.
struct Lines {
    text: String,
    /// An operator buries the delivery before the work has ended.
    buried_in: Option<MongoStore>,
    runs: Arc<AtomicUsize>,
}

#[async_trait]
impl PreparingHandler for Lines {
    async fn prepare(&self, envelope: &Envelope, _context: &HandlerContext) -> Preparation {
        self.runs.fetch_add(1, Ordering::SeqCst);
        if let Some(store) = &self.buried_in {
            let bury = Repair::Bury { reason: "wrong customer".into() };
            store.repair(&envelope.delivery_id, &bury, NOW).await.unwrap();
        }
        let writes = ["invoices", "orders", "relaybus_events"].map(str::to_owned);
        let rules = OperationRules::new(writes.into(), Arc::new(|_: &str| vec!["archive".to_owned()]));
        let text = self.text.replace("EVENT", envelope.event_id.as_str());
        match rules.read(text.as_bytes(), envelope) {
            Ok(operations) => Preparation::Ready(operations),
            Err(error) => Preparation::Ended(Outcome::failed(error.to_string())),
        }
    }
}

fn lines(lines: &[&str]) -> Lines {
    Lines { text: lines.join("\n"), buried_in: None, runs: Arc::default() }
}

/// Works off what is due; returns how each attempt ended.
async fn work(store: &MongoStore, handler: Lines, concurrency: usize) -> Vec<Finished> {
    let subscription = Subscription::preparing("h", handler)
        .concurrency(concurrency)
        .retry(RetryPolicy::Fixed { delay: Duration::from_secs(10) });
    let dispatcher = Dispatcher::new(
        Arc::new(store.clone()),
        Arc::new(ManualClock::at(NOW)),
        vec![subscription],
        DispatchOptions { stop_when: StopWhen::NothingDue, ..DispatchOptions::default() },
    );
    let (sender, mut events) = mpsc::channel(64);
    let running = tokio::spawn(dispatcher.unwrap().run(Signals::default(), sender));
    let mut finished = Vec::new();
    let listening = async {
        while let Some(event) = events.recv().await {
            if let DispatchEvent::Finished(one) = event {
                finished.push(*one);
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), listening).await.unwrap();
    running.await.unwrap().unwrap();
    finished
}

async fn documents(fixture: &Fixture, collection: &str) -> Vec<Document> {
    let collection = fixture.store.database().collection::<Document>(collection);
    collection.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap().try_collect().await.unwrap()
}

async fn insert(fixture: &Fixture, collection: &str, documents: &[Document]) {
    fixture.store.database().collection::<Document>(collection).insert_many(documents).await.unwrap();
}

fn message(finished: &[Finished]) -> &str {
    match &finished[0].verdict {
        Verdict::Retrying { failure, .. } => &failure.message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn all_operations_and_the_completion_are_done_once() {
    let fixture = Fixture::new().await;
    let stock: Vec<_> = (1..=5).map(|id| doc! { "_id": id, "state": "placed" }).collect();
    insert(&fixture, "orders", &stock).await;
    let [id] = fixture.append(&[event().id("e-1").key("k")]).await.try_into().unwrap();
    let handler = lines(&[
        r#"{"write": {"collection": "invoices", "op": "insertOne", "document": {"_id": 7, "at": {"$date": "2026-03-01T09:30:00Z"}, "total": 1.0}}}"#,
        r#"{"publish": {"type": "invoice.made", "payload": {"at": {"$date": "2026-03-01T09:30:00Z"}}, "key": "k", "id": "made"}}"#,
        r#"{"write": {"collection": "orders", "op": "updateOne", "filter": {"_id": 1}, "update": {"$set": {"state": "paid"}}}}"#,
        r#"{"write": {"collection": "orders", "op": "updateMany", "filter": {"_id": {"$in": [2, 3]}}, "update": [{"$set": {"was": "$state"}}]}}"#,
        r#"{"write": {"collection": "orders", "op": "replaceOne", "filter": {"_id": 4}, "replacement": {"state": "new"}}}"#,
        r#"{"write": {"collection": "orders", "op": "deleteOne", "filter": {"_id": 5}}}"#,
        r#"{"write": {"collection": "orders", "op": "updateOne", "filter": {"_id": 6}, "update": {"$set": {"state": "late"}}, "upsert": true}}"#,
        r#"{"write": {"collection": "orders", "op": "deleteOne", "filter": {"_id": "nobody"}}}"#,
        r#"{"publish": {"type": "invoice.mailed", "payload": 1, "key": "k", "id": "mailed"}}"#,
    ]);
    let runs = handler.runs.clone();
    let finished = work(&fixture.store, handler, 1).await;
    assert_eq!(
        (finished.len(), &finished[0].verdict, runs.load(Ordering::SeqCst)),
        (1, &Verdict::Completed, 1)
    );
    assert_eq!(fixture.delivery(&id).await.get_str("status").unwrap(), "completed");
    let at = DateTime::parse_rfc3339_str("2026-03-01T09:30:00Z").unwrap();
    assert_eq!(documents(&fixture, "invoices").await, [doc! { "_id": 7, "at": at, "total": 1.0 }]);
    let expected = [
        doc! { "_id": 1, "state": "paid" },
        doc! { "_id": 2, "state": "placed", "was": "placed" },
        doc! { "_id": 3, "state": "placed", "was": "placed" },
        doc! { "_id": 4, "state": "new" },
        doc! { "_id": 6, "state": "late" },
    ];
    assert_eq!(documents(&fixture, "orders").await, expected);
    let events = fixture.store.events(&["made".into(), "mailed".into()]).await.unwrap();
    let sequence = |id: &str| events.iter().find(|event| event.id.as_str() == id).unwrap().sequence;
    assert_eq!((sequence("made"), sequence("mailed")), (Some(2), Some(3)));
    let made = events.iter().find(|event| event.id.as_str() == "made").unwrap();
    // In a payload it is data, and not a date.
    assert_eq!(made.payload, serde_json::json!({"at": {"$date": "2026-03-01T09:30:00Z"}}));
    assert_eq!(made.causation_id.as_deref(), Some("e-1"));
    fixture.end().await;
}

#[tokio::test]
async fn a_conflict_repeats_the_transaction_and_not_the_work() {
    let fixture = Fixture::new().await;
    insert(&fixture, "orders", &[doc! { "_id": 1, "total": 0 }]).await;
    fixture.append(&[event()]).await;
    let (client, sent) = spied_client().await;
    let options = MongoOptions { database: Some(fixture.database.clone()), ..MongoOptions::default() };
    let spied = MongoStore::new(&client, options).unwrap();
    let mut other = fixture.store.begin().await.unwrap();
    let orders = fixture.store.database().collection::<Document>("orders");
    let add = doc! { "$inc": { "total": 10 } };
    orders.update_one(doc! { "_id": 1 }, add).session(other.session()).await.unwrap();

    let handler = lines(&[
        r#"{"write": {"collection": "invoices", "op": "insertOne", "document": {"_id": 7}}}"#,
        r#"{"write": {"collection": "orders", "op": "updateOne", "filter": {"_id": 1}, "update": {"$inc": {"total": 1}}}}"#,
    ]);
    let runs = handler.runs.clone();
    let tries = || {
        sent.lock()
            .unwrap()
            .iter()
            .filter(|command| command.get("update") == Some(&Bson::from("orders")))
            .count()
    };
    let release = async {
        while tries() < 3 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        other.commit().await.unwrap();
    };
    let release = tokio::time::timeout(Duration::from_secs(30), release);
    let (finished, released) = tokio::join!(work(&spied, handler, 1), release);
    released.unwrap();
    assert_eq!((&finished[0].verdict, runs.load(Ordering::SeqCst)), (&Verdict::Completed, 1));
    assert_eq!(documents(&fixture, "orders").await, [doc! { "_id": 1, "total": 11 }]);
    assert_eq!(documents(&fixture, "invoices").await, [doc! { "_id": 7 }]);
    spied.close().await;
    fixture.end().await;
}

#[tokio::test]
async fn a_lease_that_is_lost_before_the_commit_leaves_no_trace() {
    let fixture = Fixture::new().await;
    let [id] = fixture.append(&[event()]).await.try_into().unwrap();
    let handler = lines(&[
        r#"{"write": {"collection": "invoices", "op": "insertOne", "document": {"_id": 7}}}"#,
        r#"{"publish": {"type": "invoice.made", "payload": 1, "id": "made"}}"#,
    ]);
    let handler = Lines { buried_in: Some(fixture.store.clone()), ..handler };
    let finished = work(&fixture.store, handler, 1).await;
    assert_eq!(finished[0].verdict, Verdict::LeaseLost { unrecorded: None });
    assert_eq!(fixture.delivery(&id).await.get_str("lastError").unwrap(), "wrong customer");
    assert_eq!(documents(&fixture, "invoices").await, []);
    assert_eq!(fixture.store.events(&["made".into()]).await.unwrap(), []);
    fixture.end().await;
}

/// Lets one event be handled, by lines of which one is refused; nothing may be seen of the others.
async fn refusal(fixture: &Fixture, handler: Lines) -> String {
    let [id] = fixture.append(&[event()]).await.try_into().unwrap();
    let finished = work(&fixture.store, handler, 1).await;
    let delivery = fixture.delivery(&id).await;
    assert_eq!((delivery.get_str("status").unwrap(), finished.len()), ("pending", 1));
    assert_eq!(documents(fixture, "orders").await, []);
    assert_eq!(fixture.store.events(&["made".into()]).await.unwrap(), []);
    message(&finished).to_owned()
}

const ORDER: &str = r#"{"write": {"collection": "orders", "op": "insertOne", "document": {"_id": 1}}}"#;
const MADE: &str = r#"{"publish": {"type": "invoice.made", "payload": 1, "id": "made"}}"#;

#[tokio::test]
async fn a_duplicate_key_is_a_failure_with_its_line() {
    let fixture = Fixture::new().await;
    insert(&fixture, "invoices", &[doc! { "_id": 7, "order": 1 }]).await;
    let unique = IndexOptions::builder().unique(true).build();
    let index = IndexModel::builder().keys(doc! { "order": 1 }).options(unique).build();
    fixture.store.database().collection::<Document>("invoices").create_index(index).await.unwrap();
    for document in [r#"{"_id": 7}"#, r#"{"_id": 8, "order": 1}"#] {
        let write = format!(
            r#"{{"write": {{"collection": "invoices", "op": "insertOne", "document": {document}}}}}"#
        );
        let message = refusal(&fixture, lines(&[ORDER, MADE, &write])).await;
        assert!(
            message.starts_with("line 3: insertOne in invoices failed: E11000 duplicate key"),
            "{message}"
        );
    }
    assert_eq!(documents(&fixture, "invoices").await.len(), 1);
    fixture.end().await;
}

#[tokio::test]
async fn what_the_server_or_the_store_refuses_is_a_failure_with_its_line() {
    let fixture = Fixture::new().await;
    let validator = doc! { "total": { "$type": "int" } };
    fixture.store.database().create_collection("invoices").validator(validator).await.unwrap();
    for (write, reason) in [
        (
            r#"{"collection": "invoices", "op": "insertOne", "document": {"_id": 7, "total": "much"}}"#,
            "line 2: insertOne in invoices failed: Document failed validation (code 121)",
        ),
        (
            r#"{"collection": "invoices", "op": "updateOne", "filter": {}, "update": {"$rise": {"total": 1}}}"#,
            "line 2: updateOne in invoices failed: Unknown modifier: $rise",
        ),
        (
            r#"{"collection": "invoices", "op": "deleteOne", "filter": {"total": {"$tops": 1}}}"#,
            "line 2: deleteOne in invoices failed: unknown operator: $tops",
        ),
        (
            r#"{"collection": "invoices", "op": "insertOne", "document": {"at": {"$date": "yesterday"}}}"#,
            "line 2: insertOne in invoices failed: document: is not valid extended JSON: ",
        ),
        (
            r#"{"collection": "relaybus_events", "op": "deleteOne", "filter": {}}"#,
            "line 2: collection `relaybus_events` is the outbox's own, and only the outbox writes to it",
        ),
    ] {
        let message = refusal(&fixture, lines(&[ORDER, &format!(r#"{{"write": {write}}}"#), MADE])).await;
        assert!(message.starts_with(reason), "{message}");
    }
    fixture.end().await;
}

#[tokio::test]
async fn of_many_events_the_one_that_is_refused_is_named() {
    let fixture = Fixture::new().await;
    fixture.append(&[event().id("taken").handler("archive")]).await;
    let taken = r#"{"publish": {"type": "invoice.made", "payload": 1, "id": "taken"}}"#;
    let message = {
        let finished = work(&fixture.store, lines(&[MADE, ORDER, taken, MADE]), 1).await;
        message(&finished).to_owned()
    };
    assert!(message.starts_with("line 3: event taken is there already with another type"), "{message}");
    assert_eq!(documents(&fixture, "orders").await, []);
    assert_eq!(fixture.store.events(&["made".into()]).await.unwrap(), []);
    fixture.end().await;
}

#[tokio::test]
async fn many_at_once_create_a_collection_and_share_a_key() {
    let fixture = Fixture::new().await;
    let events: Vec<_> = (0..24).map(|i| event().id(format!("e-{i}"))).collect();
    fixture.append(&events).await;
    let handler = lines(&[
        r#"{"write": {"collection": "invoices", "op": "insertOne", "document": {"_id": "EVENT"}}}"#,
        r#"{"publish": {"type": "invoice.made", "payload": 1, "key": "shared"}}"#,
    ]);
    let runs = handler.runs.clone();
    let finished = work(&fixture.store, handler, 8).await;
    assert!(finished.iter().all(|one| one.verdict == Verdict::Completed), "{finished:?}");
    assert_eq!((finished.len(), runs.load(Ordering::SeqCst)), (24, 24));
    assert_eq!(documents(&fixture, "invoices").await.len(), 24);
    let made: Vec<_> = fixture
        .raw("events")
        .find(doc! { "key": "shared" })
        .sort(doc! { "sequence": 1 })
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let sequences: Vec<i64> = made.iter().map(|event| event.get_i64("sequence").unwrap()).collect();
    assert_eq!(sequences, (1..=24).collect::<Vec<_>>());
    fixture.end().await;
}
