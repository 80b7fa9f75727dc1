//! `setup`: what it creates, checks and prints.

use mongodb::bson::doc;
use serde_json::json;

use crate::harness::{Sandbox, relayctl};

#[test]
fn the_first_run_creates_and_the_second_changes_nothing() {
    let sandbox = Sandbox::without_schema();
    let first = sandbox.go("setup -o json").exits(0);
    assert!(first.stderr.starts_with("created 17 collections and indexes in "), "{first:?}");
    let second = sandbox.go("setup -o json").exits(0);
    assert!(second.stderr.starts_with("nothing to do: all 17 "), "{second:?}");
    assert_eq!(second.json()["created"], json!([]));
    assert_eq!(first.json()["created"].as_array().unwrap().len(), 17);
    let table = sandbox.go("setup -q").quiet_stdout();
    assert!(table.contains("relaybus_deliveries.claim            existing\n"), "{table}");
}

#[test]
fn a_prefix_makes_another_outbox_in_the_same_database() {
    let sandbox = Sandbox::new();
    let ended = sandbox.go("setup --prefix other- -o ids -q").exits(0);
    assert!(ended.stdout.starts_with("other-events\n"), "{ended:?}");
}

#[test]
fn a_check_of_an_empty_database_finds_what_is_missing_and_creates_nothing() {
    let sandbox = Sandbox::without_schema();
    for _ in 0..2 {
        let ended = sandbox.go("setup --check -o json").exits(5);
        let findings = ended.json();
        assert_eq!(findings[0]["object"], "relaybus_events");
        assert_eq!(findings[0]["problem"], "missing");
    }
    let table = sandbox.go("setup --check").exits(5);
    assert!(table.stdout.contains("there is no such collection"), "{table:?}");
    assert!(table.stderr.contains("4 findings in "), "{table:?}");
}

#[test]
fn a_check_after_setup_finds_nothing() {
    let sandbox = Sandbox::new();
    let ended = sandbox.go("setup --check").exits(0);
    assert_eq!(ended.stdout, "");
    assert!(ended.stderr.starts_with("all collections and indexes are as they have to be"), "{ended:?}");
    assert_eq!(sandbox.go("setup --check -o json").exits(0).stdout, "[]\n");
}

#[test]
fn a_check_names_what_is_in_the_way() {
    let sandbox = Sandbox::without_schema();
    sandbox.insert_raw("relaybus_events", doc! {});
    sandbox.with_database(async |database| {
        let model = mongodb::IndexModel::builder()
            .keys(doc! { "nonsense": 1 })
            .options(mongodb::options::IndexOptions::builder().name("claim".to_owned()).build())
            .build();
        database
            .collection::<mongodb::bson::Document>("relaybus_deliveries")
            .create_index(model)
            .await
            .unwrap();
    });
    let ended = sandbox.go("setup").exits(5);
    assert!(ended.stderr.contains("relaybus_deliveries.claim"), "{ended:?}");
    let ended = sandbox.go("setup --check -o csv").exits(5);
    assert!(ended.stdout.contains("relaybus_deliveries.claim,conflicting,"), "{ended:?}");
}

#[test]
fn the_script_is_printed_without_a_store() {
    let home = tempfile::tempdir().unwrap();
    let mut command = relayctl(home.path());
    command.args(["setup", "--print", "--prefix", "p_", "--database", "shop"]);
    let script = crate::harness::finish(command).quiet_stdout();
    assert!(script.starts_with("db = db.getSiblingDB(\"shop\");\n"), "{script}");
    assert!(script.contains("p_deliveries") && script.contains("createIndex"), "{script}");
}

#[test]
fn a_read_only_profile_refuses_setup_and_allows_the_check() {
    let sandbox = Sandbox::without_schema();
    sandbox.configure("[profiles.live]\nread_only = true\n");
    let ended = sandbox.go("setup --profile live").exits(2);
    assert!(ended.stderr.contains("profile `live` is read-only"), "{ended:?}");
    sandbox.go("setup --check --profile live").exits(5);
}
