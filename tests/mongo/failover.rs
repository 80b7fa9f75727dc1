//! The primary of three is killed while services append and a worker works: nobody sees an error, nothing is lost, and
//! keys stay in order.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use futures_util::future::join_all;
use mongodb::bson::doc;
use relayctl::model::{NewEvent, Timestamp};
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{Outcome, Store};
use serde_json::json;
use tokio::sync::Notify;

use crate::fixture::{NOW, Server, claim_request};

const APPENDERS: usize = 4;
const EVENTS: usize = 60;

/// How many events are appended before the primary is killed, and how many after it at the least.
const BEFORE: usize = APPENDERS * EVENTS / 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_a_killed_primary_loses_nothing() {
    let server = Server::start("failover", &["--nodes", "3"]);
    let patience = Duration::from_secs(60);
    let options = MongoOptions { database: Some("failover".into()), patience, ..MongoOptions::default() };
    let store = MongoStore::connect(&server.uri, options).await.expect("connect");
    store.setup().await.expect("setup");

    let appended = Arc::new(AtomicUsize::new(0));
    let time_to_kill = Arc::new(Notify::new());
    let appenders = (0..APPENDERS)
        .map(|n| tokio::spawn(append_all(store.clone(), n, appended.clone(), time_to_kill.clone())));
    let appenders = appenders.collect::<Vec<_>>();
    let worker = tokio::spawn(work_until(store.clone(), APPENDERS * EVENTS));
    time_to_kill.notified().await;
    kill_primary(&store).await;
    for appender in join_all(appenders).await {
        appender.expect("an appender met no error");
    }
    let ran =
        tokio::time::timeout(Duration::from_secs(120), worker).await.expect("in time").expect("no error");

    for (key, sequences) in &ran {
        let in_order: Vec<i64> = (1..=EVENTS as i64).collect();
        assert_eq!(sequences, &in_order, "{key}");
    }
    let stored = store.database().collection::<mongodb::bson::Document>("relaybus_events");
    let ids: Vec<_> = stored.distinct("_id", doc! {}).await.expect("distinct");
    assert_eq!(ids.len(), APPENDERS * EVENTS);
    let counters: Vec<_> = store.key_sequences(None).try_collect().await.expect("counters");
    assert!(counters.iter().all(|counter| counter.value == EVENTS as i64), "{counters:?}");
    store.close().await;
}

/// Appends the events of one key, each once more for good measure: ids make it idempotent.
async fn append_all(store: MongoStore, n: usize, appended: Arc<AtomicUsize>, time_to_kill: Arc<Notify>) {
    for event in 0..EVENTS {
        let event = NewEvent::new("t", json!({ "n": event }))
            .id(format!("e-{n}-{event}"))
            .key(format!("k{n}"))
            .handler("h");
        let events = [event];
        store.append(&events, NOW).await.expect("append");
        let again = store.append(&events, NOW).await.expect("append again");
        assert!(!again[0].created, "an acknowledged event is there");
        if appended.fetch_add(1, Ordering::SeqCst) + 1 == BEFORE {
            time_to_kill.notify_one();
        }
    }
}

/// Claims and completes until so many are done; returns the sequences of each key in the order in which they ran.
async fn work_until(store: MongoStore, all: usize) -> BTreeMap<String, Vec<i64>> {
    let dynamic: &dyn Store = &store;
    let mut ran: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let mut now = NOW;
    while ran.values().map(Vec::len).sum::<usize>() < all {
        for claimed in dynamic.claim(&claim_request(&["h"], 10, now)).await.expect("claim") {
            let (key, sequence) =
                (claimed.delivery.key.expect("a key"), claimed.delivery.sequence.expect("a sequence"));
            let _ = dynamic.settle_one(&claimed.lease, Outcome::Complete, now).await.expect("settle");
            ran.entry(key).or_default().push(sequence);
        }
        now = Timestamp::from_millis(now.as_millis() + 1);
    }
    ran
}

async fn kill_primary(store: &MongoStore) {
    let hello = store.database().run_command(doc! { "hello": 1 }).await.expect("hello");
    let primary = hello.get_str("primary").expect("a primary").to_owned();
    let port = primary.rsplit(':').next().expect("a port");
    let killed =
        Command::new("pkill").args(["-KILL", "-f", &format!("mongod.*--port[= ]{port}( |$)")]).status();
    assert!(killed.expect("pkill runs").success(), "the primary at {primary} was killed");
}
