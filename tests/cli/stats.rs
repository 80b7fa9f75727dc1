//! `stats`.

use relayctl::model::NewEvent;
use relayctl::store::Outcome;
use serde_json::{Value, json};

use crate::harness::{Sandbox, ago, buried, event};

fn counted() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("a"), event("b")], ago(600));
    sandbox.settle("projector", &Outcome::Complete, ago(590));
    sandbox.append(&[event("c")], ago(500));
    sandbox.settle("projector", &buried("x"), ago(490));
    sandbox.append(&[event("d"), NewEvent { handlers: vec!["mailer".into()], ..event("e") }], ago(185));
    sandbox
}

#[test]
fn json_has_the_shape_of_the_contract() {
    let mut json = counted().go("stats -o json").exits(0).json();
    let due = json["oldestDueAt"].take();
    assert!(due.as_str().unwrap().ends_with('Z'));
    assert_eq!(json["handlers"][0]["oldestDueAt"].take(), due);
    assert_eq!(json["handlers"][1]["oldestDueAt"].take(), due);
    let handler = |name: &str, total: u64, completed: u64, dead: u64| -> Value {
        json!({
            "handler": name, "total": total, "pending": 1, "processing": 0, "completed": completed, "dead": dead,
            "parked": 0, "oldestDueAt": null, "paused": null, "breakers": [],
        })
    };
    assert_eq!(
        json,
        json!({
            "total": 5, "pending": 2, "processing": 0, "completed": 2, "dead": 1, "parked": 0, "oldestDueAt": null,
            "handlers": [handler("mailer", 1, 0, 0), handler("projector", 4, 2, 1)],
        })
    );
}

#[test]
fn a_table_ends_with_the_totals() {
    insta::assert_snapshot!(counted().go("stats").quiet_stdout(), @r#"
    HANDLER    PENDING  PARKED  PROCESSING  COMPLETED  DEAD  TOTAL  OLDEST DUE
    mailer           1       0           0          0     0      1  3m ago
    projector        1       0           0          2     1      4  3m ago
    (all)            2       0           0          2     1      5  3m ago
    "#);
}

#[test]
fn csv_and_ids_have_a_line_for_each_handler() {
    let sandbox = counted();
    assert_eq!(sandbox.go("stats -o ids").quiet_stdout(), "mailer\nprojector\n");
    let csv = sandbox.go("stats -o csv").quiet_stdout();
    assert!(csv.starts_with(
        "handler,total,pending,processing,completed,dead,parked,oldestDueAt,paused,breakers\nmailer,1,1,0,0,0,0,"
    ));
    assert_eq!(csv.lines().count(), 3);
}

#[test]
fn an_empty_store_is_not_a_missing_one() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.go("stats").exits(0).stderr, "there are no deliveries\n");
    assert_eq!(sandbox.go("stats -o json").exits(0).json()["total"], 0);
    Sandbox::without_schema().go("stats").exits(5);
}
