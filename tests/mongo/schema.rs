//! Setup and its check, against what other hands left behind.

use mongodb::IndexModel;
use mongodb::bson::{Document, doc};
use mongodb::options::IndexOptions;
use relayctl::store::mongo::setup_script;
use relayctl::store::{ErrorKind, SetupProblem, Store};

use crate::fixture::Fixture;

fn index(keys: Document, name: &str) -> IndexModel {
    IndexModel::builder().keys(keys).options(IndexOptions::builder().name(name.to_owned()).build()).build()
}

async fn problems(fixture: &Fixture) -> Vec<(String, SetupProblem)> {
    let findings = fixture.store.check_setup().await.unwrap();
    findings.into_iter().map(|finding| (finding.object, finding.problem)).collect()
}

#[tokio::test]
async fn setup_creates_all_of_it_once() {
    let fixture = Fixture::bare("").await;
    let missing = problems(&fixture).await;
    assert_eq!(missing.len(), 4, "four collections: {missing:?}");
    let first = fixture.store.setup().await.unwrap();
    assert_eq!((first.created.len(), first.existing.len()), (17, 0), "{first:?}");
    assert_eq!(problems(&fixture).await, []);
    let second = fixture.store.setup().await.unwrap();
    assert_eq!((second.created.len(), second.existing.len()), (0, 17), "{second:?}");
    fixture.end().await;
}

#[tokio::test]
async fn concurrent_setups_all_succeed() {
    let fixture = Fixture::bare("").await;
    let setups = (0..4).map(|_| fixture.store.setup());
    for result in futures_util::future::join_all(setups).await {
        result.unwrap();
    }
    assert_eq!(problems(&fixture).await, []);
    fixture.end().await;
}

#[tokio::test]
async fn the_check_tells_missing_foreign_conflicting_and_non_unique_apart_and_changes_nothing() {
    let fixture = Fixture::new().await;
    let deliveries = fixture.deliveries();
    for name in ["event_handler", "due", "completed", "type_created"] {
        deliveries.drop_index(name).await.unwrap();
    }
    deliveries.create_index(index(doc! { "eventId": 1, "handler": 1 }, "event_handler")).await.unwrap();
    let mut foreign = index(doc! { "dueAt": 1.0, "_id": 1.0 }, "dueAt_1__id_1");
    let options = foreign.options.as_mut().unwrap();
    options.partial_filter_expression = Some(doc! { "dueAt": { "$exists": true } });
    deliveries.create_index(foreign).await.unwrap();
    deliveries.create_index(index(doc! { "completedAt": -1 }, "completed")).await.unwrap();
    let before = deliveries.list_index_names().await.unwrap();
    let object = |name: &str| format!("relaybus_deliveries.{name}");
    assert_eq!(
        problems(&fixture).await,
        [
            (object("event_handler"), SetupProblem::NotUnique),
            (object("due"), SetupProblem::ForeignName),
            (object("completed"), SetupProblem::Conflicting),
            (object("type_created"), SetupProblem::Missing),
        ]
    );
    assert_eq!(deliveries.list_index_names().await.unwrap(), before);

    let error = fixture.store.setup().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    let shown = error.to_string();
    assert!(
        shown.contains("event_handler") && shown.contains("completed") && !shown.contains("deliveries.due"),
        "{shown}"
    );
    let left: Vec<_> = problems(&fixture).await.into_iter().map(|(_, problem)| problem).collect();
    assert_eq!(left, [SetupProblem::NotUnique, SetupProblem::ForeignName, SetupProblem::Conflicting]);
    fixture.end().await;
}

#[test]
fn the_script_creates_every_collection_and_index() {
    let script = setup_script("my_");
    assert_eq!(script.matches("createCollection(").count(), 4, "{script}");
    assert_eq!(script.matches("createIndex(").count(), 13, "{script}");
    assert!(
        script.contains(r#"db.getCollection("my_deliveries").createIndex({ "eventId": 1, "handler": 1 }"#),
        "{script}"
    );
    assert!(script.contains(r#""unique": true"#), "{script}");
    assert!(
        script.contains(r#""partialFilterExpression": { "lane": "ready", "dueAt": { "$exists": true } }"#),
        "{script}"
    );
}
