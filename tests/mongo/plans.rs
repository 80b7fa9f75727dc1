//! The queries that the store really sends, explained by the server over 100,000 deliveries: every one runs on an index,
//! none sorts in memory, none scans the collection.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use futures_util::{StreamExt as _, TryStreamExt as _};
use mongodb::bson::{Bson, DateTime, Document, doc};
use relayctl::model::{
    Cursor, Delivery, ErrorGroupId, EventId, Filter, KeyPlace, Lane, ListQuery, Pause, Selection, SortBy,
    Status, Timestamp, TrippedBreaker, TypePattern,
};
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{
    ACTIVITY_WINDOW, BackfillRequest, Imported, PruneRequest, PurgeRequest, Repair, Store,
};

use crate::fixture::{Fixture, NOW, claim_request, later, spied_client};

const DELIVERIES: i64 = 100_000;
const HANDLERS: i64 = 5;
const KEYS: i64 = 1_000;

/// A mix of statuses, handlers, types and keys, a few minutes of history, and one key with a long blocked backlog.
async fn fill(fixture: &Fixture) {
    let mut batch = Vec::new();
    for n in 0..DELIVERIES {
        batch.push(document(n));
        if batch.len() == 10_000 {
            fixture.deliveries().insert_many(std::mem::take(&mut batch)).ordered(false).await.expect("fill");
        }
    }
    let counters = (0..KEYS).map(|n| doc! { "_id": format!("k{n}"), "value": 100_i64 });
    fixture.raw("key_sequences").insert_many(counters).await.expect("counters");
}

fn document(n: i64) -> Document {
    let at = |millis: i64| DateTime::from_millis(NOW.as_millis() - 600_000 + millis);
    let status =
        ["completed", "completed", "completed", "pending", "dead", "processing", "pending"][(n % 7) as usize];
    let mut document = doc! {
        "_id": format!("d{n:06}"), "eventId": format!("e{n:06}"), "eventType": format!("type.{}", n % 11),
        "handler": format!("h{}", n % HANDLERS), "status": status, "lane": "ready", "attempts": (n % 4) as i32,
        "availableAt": at(n), "createdAt": at(n), "updatedAt": at(n + 7),
    };
    if n % 2 == 0 {
        document.extend(doc! { "key": format!("k{}", n % KEYS), "sequence": n });
    }
    match status {
        "completed" => document.insert("completedAt", at(n + 5)),
        "pending" => document.insert("dueAt", at(n)),
        "processing" => document.insert("dueAt", at(n + 900_000)),
        _ => document.insert("lastError", "boom"),
    };
    if n % 97 == 0 && document.contains_key("key") && status == "pending" {
        document.insert("lane", "parked");
    }
    document
}

struct Spy {
    store: MongoStore,
    sent: Arc<Mutex<Vec<Document>>>,
}

impl Spy {
    async fn on(fixture: &Fixture) -> Self {
        let (client, sent) = spied_client().await;
        let options = MongoOptions { database: Some(fixture.database.clone()), ..MongoOptions::default() };
        Spy { store: MongoStore::new(&client, options).unwrap(), sent }
    }

    /// The queries that were sent since the last look, each as a command of its own that can be explained.
    fn queries(&self) -> Vec<Document> {
        let sent = std::mem::take(&mut *self.sent.lock().unwrap());
        sent.into_iter().flat_map(explainable).collect()
    }
}

/// What an explain takes of a command: an update of several statements is several commands.
fn explainable(mut command: Document) -> Vec<Document> {
    for field in ["$db", "lsid", "$clusterTime", "txnNumber", "startTransaction", "autocommit", "readConcern"]
    {
        command.remove(field);
    }
    for field in ["writeConcern", "$readPreference", "maxTimeMS", "ordered"] {
        command.remove(field);
    }
    let name = command.keys().next().cloned().unwrap_or_default();
    let statements = match name.as_str() {
        "update" => "updates",
        "delete" => "deletes",
        "find" | "aggregate" | "findAndModify" => return vec![command],
        _ => return Vec::new(),
    };
    let each = command.get_array(statements).unwrap().clone();
    each.into_iter()
        .map(|statement| {
            let mut single = command.clone();
            single.insert(statements, vec![statement]);
            single
        })
        .collect()
}

/// The names of all stages of the winning plans in a reply to explain.
fn stages(reply: &Bson, found: &mut BTreeSet<String>) {
    match reply {
        Bson::Document(document) => {
            if let Ok(stage) = document.get_str("stage") {
                found.insert(stage.to_owned());
            }
            for (field, value) in document {
                match field.as_str() {
                    "rejectedPlans" | "command" => {}
                    // A sort that the aggregation did itself, rather than an index.
                    "$sort" => drop(found.insert("$sort".to_owned())),
                    _ => stages(value, found),
                }
            }
        }
        Bson::Array(items) => items.iter().for_each(|item| stages(item, found)),
        _ => {}
    }
}

async fn explain(fixture: &Fixture, query: &Document) -> BTreeSet<String> {
    let command = doc! { "explain": query.clone(), "verbosity": "queryPlanner" };
    let reply = fixture.store.database().run_command(command).await;
    let mut reply = reply.unwrap_or_else(|error| panic!("explain {query}: {error}"));
    reply.remove("command");
    let mut found = BTreeSet::new();
    stages(&Bson::from(reply), &mut found);
    assert!(!found.is_empty(), "{query} has no plan");
    found
}

async fn assert_indexed(fixture: &Fixture, what: &str, queries: Vec<Document>) {
    assert!(!queries.is_empty(), "{what} sent nothing");
    for query in queries {
        let stages = explain(fixture, &query).await;
        for slow in ["COLLSCAN", "SORT", "$sort", "SORT_KEY_GENERATOR"] {
            assert!(!stages.contains(slow), "{what}: {stages:?} for {query}");
        }
        let indexed = ["IXSCAN", "IDHACK", "COUNT_SCAN", "DISTINCT_SCAN", "EXPRESS_IXSCAN", "EOF"];
        assert!(indexed.iter().any(|stage| stages.contains(*stage)), "{what}: {stages:?} for {query}");
    }
}

fn filters() -> Vec<Filter> {
    let each_alone = vec![
        Filter::default(),
        Filter { statuses: vec![Status::Dead], ..Filter::default() },
        Filter { statuses: vec![Status::Pending, Status::Processing], ..Filter::default() },
        Filter { handler: Some("h1".into()), ..Filter::default() },
        Filter { event_type: Some(TypePattern::Exact("type.3".into())), ..Filter::default() },
        Filter { event_type: Some(TypePattern::Prefix("type.1".into())), ..Filter::default() },
        Filter { key: Some("k4".into()), ..Filter::default() },
        Filter { event: Some(EventId::from("e000004")), ..Filter::default() },
        Filter { error: Some("boom".into()), ..Filter::default() },
        Filter { groups: vec![ErrorGroupId::of("h1", "boom")], ..Filter::default() },
        Filter { since: Some(NOW), until: Some(later(60)), ..Filter::default() },
        Filter { finished_before: Some(NOW), ..Filter::default() },
        Filter { min_attempts: Some(2), ..Filter::default() },
        Filter { lane: Some(Lane::Parked), ..Filter::default() },
        Filter { lane: Some(Lane::Ready), ..Filter::default() },
        Filter { due_before: Some(NOW), ..Filter::default() },
    ];
    let daily_bread =
        Filter { statuses: vec![Status::Dead], handler: Some("h1".into()), ..Filter::default() };
    let all_at_once = Filter {
        statuses: vec![Status::Dead, Status::Pending],
        handler: Some("h1".into()),
        event_type: Some(TypePattern::Exact("type.3".into())),
        key: Some("k4".into()),
        error: Some("boom".into()),
        since: Some(Timestamp::EPOCH),
        until: Some(later(60)),
        min_attempts: Some(1),
        ..Filter::default()
    };
    each_alone.into_iter().chain([daily_bread, all_at_once]).collect()
}

#[tokio::test]
async fn heavy_every_query_runs_on_an_index() {
    let fixture = Fixture::new().await;
    fill(&fixture).await;
    let spy = Spy::on(&fixture).await;
    listings(&fixture, &spy).await;
    operator_queries(&fixture, &spy).await;
    worker_queries(&fixture, &spy).await;
    retention_queries(&fixture, &spy).await;
    claim_behind_a_backlog(&fixture, &spy).await;
    spy.store.close().await;
    fixture.end().await;
}

async fn listings(fixture: &Fixture, spy: &Spy) {
    for filter in filters() {
        for sort in [SortBy::Created, SortBy::Updated, SortBy::Due] {
            for descending in [false, true] {
                let query = ListQuery {
                    filter: filter.clone(),
                    sort,
                    descending,
                    limit: Some(3),
                    ..ListQuery::default()
                };
                let page: Vec<Delivery> = spy.store.list(&query).try_collect().await.unwrap();
                let after = page.last().and_then(|last| Cursor::at(last, sort, descending));
                if after.is_some() {
                    let next = ListQuery { after, ..query.clone() };
                    let _: Vec<Delivery> = spy.store.list(&next).try_collect().await.unwrap();
                }
                assert_indexed(fixture, &format!("list {query:?}"), spy.queries()).await;
            }
        }
        let selection = Selection { filter: filter.clone(), cutoff: NOW };
        spy.store.count(&selection).await.unwrap();
        assert_indexed(fixture, &format!("count {selection:?}"), spy.queries()).await;
    }
}

async fn operator_queries(fixture: &Fixture, spy: &Spy) {
    let statistics = spy.store.statistics().await.unwrap();
    assert_eq!(statistics.total, DELIVERIES as u64);
    assert_indexed(fixture, "statistics", spy.queries()).await;
    let depths = spy.store.queue_depths(&["h1".into(), "h3".into()]).await.unwrap();
    assert!(depths.iter().all(|depth| depth.pending > 1_000 && depth.processing > 1_000));
    let queries = spy.queries();
    // What may be a million entries is counted within the index.
    let stages = explain(fixture, &queries[0]).await;
    assert!(!stages.contains("FETCH"), "{stages:?} for {}", queries[0]);
    assert_indexed(fixture, "queue depths", queries).await;
    spy.store.key_state("h2", "k2", NOW).await.unwrap();
    assert_indexed(fixture, "key state", spy.queries()).await;
    spy.store.waiting_behind("h2", "k2", 50_000).await.unwrap();
    assert_indexed(fixture, "what waits behind", spy.queries()).await;
    let activity = spy.store.handler_activity("h1", NOW).await.unwrap();
    let queries = spy.queries();
    assert!(activity.running.is_some() && activity.examined > ACTIVITY_WINDOW as u64, "{activity:?}");
    assert_eq!(queries.len(), 4);
    assert_indexed(fixture, "handler activity", queries).await;
    let dead = Filter { statuses: vec![Status::Dead], ..Filter::default() };
    let selection = Selection { filter: dead, cutoff: later(600) };
    let ids = ["d000004".into(), "d000011".into()];
    let requeue = Repair::Requeue { available_at: NOW };
    assert_eq!(spy.store.repair_selected(&ids, &selection, &requeue, NOW).await.unwrap(), 2);
    let filter = Filter { groups: vec![ErrorGroupId::of("h0", "boom")], ..selection.filter };
    let of_group = Selection { filter, ..selection };
    assert_eq!(spy.store.count(&of_group).await.unwrap(), DELIVERIES as u64 / 35);
    spy.store.repair_selected(&["d000025".into()], &of_group, &requeue, NOW).await.unwrap();
    assert_indexed(fixture, "repair", spy.queries()).await;
    spy.store.recover(&[], Timestamp::EPOCH).await.unwrap();
    spy.store.recover(&["h1".into()], Timestamp::EPOCH).await.unwrap();
    assert_indexed(fixture, "recover", spy.queries()).await;
    let _: Vec<_> = spy.store.key_sequences(Some("k1")).try_collect().await.unwrap();
    assert_indexed(fixture, "keys", spy.queries()).await;
    transfers(fixture, spy).await;
    controls(fixture, spy).await;
}

/// From store to store, and for a handler that came later.
async fn transfers(fixture: &Fixture, spy: &Spy) {
    let events = (0..300)
        .map(|n| doc! { "_id": format!("e{n:06}"), "type": "t", "payload": n, "createdAt": DateTime::MIN });
    fixture.raw("events").insert_many(events).await.unwrap();
    for filter in filters() {
        let items = spy.store.export(&filter, later(600)).take(300);
        let lines: Vec<_> = items.filter_map(async |line| line.ok()).take(3).collect().await;
        assert_indexed(fixture, &format!("export {filter:?}"), spy.queries()).await;
        spy.store.import(&lines, true).await.unwrap();
        spy.queries();
    }
    let mut line =
        spy.store.export(&Filter { event: Some(EventId::from("e000004")), ..Filter::default() }, later(600));
    let mut line = line.next().await.unwrap().unwrap();
    line.change_handler("other");
    line.release(NOW);
    line.event.extend([("key".into(), "k4".into()), ("sequence".into(), 4.into())]);
    for (document, field) in [(&mut line.event, "id"), (&mut line.delivery, "eventId")] {
        document.insert(field.into(), "new".into());
    }
    line.delivery.extend([("key".into(), "k4".into()), ("sequence".into(), 5.into())]);
    line.event.insert("sequence".into(), 5.into());
    spy.queries();
    let imported = spy.store.import(&[line], false).await.unwrap();
    assert_eq!(imported, [Imported::Created { event: true }]);
    assert_indexed(fixture, "import", spy.queries()).await;
    backfill(fixture, spy).await;
}

async fn backfill(fixture: &Fixture, spy: &Spy) {
    for (pattern, after) in [("t", None), ("type.*", None), ("type.3", None), ("*", Some("k4"))] {
        let after =
            after.map(|key| KeyPlace { key: Some(key.into()), sequence: Some(4), id: "d000004".into() });
        let request = BackfillRequest {
            handler: "late".into(),
            event_type: pattern.parse().unwrap(),
            since: Some(Timestamp::EPOCH),
            until: later(600),
            after,
        };
        spy.store.events_without(&request).await.unwrap();
        assert_indexed(fixture, &format!("events without a delivery {pattern}"), spy.queries()).await;
    }
    let extended = spy.store.extend(&["e000004".into(), "e000005".into()], "late", NOW).await.unwrap();
    assert_eq!(extended.created, 2);
    assert_indexed(fixture, "extend", spy.queries()).await;
}

/// What holds handlers up, and what every worker reads every second.
async fn controls(fixture: &Fixture, spy: &Spy) {
    let (handler, by) = ("h1".to_owned(), "ana@desk".to_owned());
    let pause = Pause { handler, by, paused_at: NOW, paused_until: None, reason: None };
    spy.store.pause(&pause).await.unwrap();
    spy.store.pauses(NOW).await.unwrap();
    assert_indexed(fixture, "pauses", spy.queries()).await;
    let breaker = TrippedBreaker {
        handler: "h1".into(),
        worker: "here:1".into(),
        opened_at: NOW,
        probe_at: NOW,
        failures: 10,
        last_error: String::new(),
        expires_at: later(60),
    };
    spy.store.report_breaker(&breaker, NOW).await.unwrap();
    spy.store.tripped_breakers(NOW).await.unwrap();
    spy.store.forget_breaker("h1", "here:1").await.unwrap();
    spy.store.resume("h1", NOW).await.unwrap();
    assert_indexed(fixture, "breakers", spy.queries()).await;
}

async fn worker_queries(fixture: &Fixture, spy: &Spy) {
    let handlers = ["h0", "h1", "h2", "h3", "h4"];
    let claimed = spy.store.claim(&claim_request(&handlers, 200, NOW)).await.unwrap();
    assert_eq!(claimed.len(), 200);
    let queries = spy.queries();
    let skip_scans =
        futures_util::future::join_all(queries.iter().map(|query| explain(fixture, query))).await;
    let skip_scans = skip_scans.iter().filter(|stages| stages.contains("DISTINCT_SCAN")).count();
    // The heads of keys and the parked keys are found by skipping within an index, which never fetches a document.
    assert!(skip_scans >= handlers.len(), "{skip_scans} skip scans");
    for query in queries.iter().filter(|query| query.contains_key("aggregate")) {
        let stages = explain(fixture, query).await;
        assert!(stages.contains("DISTINCT_SCAN") && !stages.contains("FETCH"), "{stages:?} for {query}");
    }
    assert_indexed(fixture, "claim", queries).await;
    let events: Vec<_> = claimed.iter().map(|claimed| claimed.delivery.event_id.clone()).collect();
    spy.store.events(&events).await.unwrap();
    let store: &dyn Store = &spy.store;
    let _ = store.settle_one(&claimed[0].lease, relayctl::store::Outcome::Complete, NOW).await.unwrap();
    assert_indexed(fixture, "settle", spy.queries()).await;
}

/// Ten thousand deliveries wait behind the heads of fifty keys; beside them one keyed and one unkeyed can run.
async fn claim_behind_a_backlog(fixture: &Fixture, spy: &Spy) {
    let due = |seconds: u64| DateTime::from_millis(later(seconds).as_millis());
    let waiting = |id: String, key: i64, sequence: i64, due_at: DateTime| {
        doc! {
            "_id": id, "eventId": format!("of {key}-{sequence}"), "handler": "busy", "status": "pending", "lane": "ready",
            "key": format!("busy{key}"), "sequence": sequence, "dueAt": due_at, "availableAt": due_at,
        }
    };
    let backlog = (0..10_000_i64).map(|n| {
        let (key, sequence) = (n % 50, n / 50);
        waiting(format!("b{n:05}"), key, sequence, due(if sequence == 0 { 9_000 } else { 0 }))
    });
    fixture.deliveries().insert_many(backlog).await.expect("backlog");
    let mut unkeyed = waiting("unkeyed".into(), 51, 1, due(5));
    unkeyed.remove("key");
    unkeyed.remove("sequence");
    let ready = [waiting("keyed".into(), 50, 1, due(4)), unkeyed];
    fixture.deliveries().insert_many(ready).await.expect("ready");
    spy.queries();
    let claimed = spy.store.claim(&claim_request(&["busy"], 10, later(60))).await.unwrap();
    assert_eq!(crate::fixture::ids(&claimed), ["keyed", "unkeyed"]);
    let queries = spy.queries();
    assert!(queries.len() <= 20, "{} queries", queries.len());
    for query in queries.iter().filter(|query| query.contains_key("aggregate")) {
        let stages = explain(fixture, query).await;
        assert!(stages.contains("DISTINCT_SCAN") && !stages.contains("FETCH"), "{stages:?} for {query}");
    }
    assert_indexed(fixture, "claim behind a backlog", queries).await;
}

async fn retention_queries(fixture: &Fixture, spy: &Spy) {
    let request = PurgeRequest { completed_before: Some(later(1)), dead_before: Some(later(1)), batch: 500 };
    assert!(spy.store.count_purgeable(&request).await.unwrap() > 1_000);
    assert_eq!(spy.store.purge_batch(&request).await.unwrap().deliveries, 500);
    let dead_only = PurgeRequest { completed_before: None, ..request };
    assert_eq!(spy.store.purge_batch(&dead_only).await.unwrap().deliveries, 500);
    assert_indexed(fixture, "purge", spy.queries()).await;
    let request = PruneRequest { after: Some("k5".into()), batch: 500, dry_run: false };
    spy.store.prune_keys(&request).await.unwrap();
    assert_indexed(fixture, "prune", spy.queries()).await;
}
