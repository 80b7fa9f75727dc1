//! Output formats: what programs read, and what untrusted text can and cannot do in each.

use relayctl::model::NewEvent;
use serde_json::{Value, json};

use crate::harness::{Sandbox, ago, buried, event};

const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;pwned\u{7}\u{9b}31m\u{202e}gpj\nnext,\"line\"\u{7f}";

/// A dead delivery with hostile text wherever text can be.
fn hostile() -> Sandbox {
    let sandbox = Sandbox::new();
    let event = NewEvent::new(HOSTILE, json!({ HOSTILE: HOSTILE })).id(HOSTILE).handler(HOSTILE).key(HOSTILE);
    sandbox.append(&[event], ago(60));
    sandbox.settle(HOSTILE, &buried(HOSTILE), ago(30));
    sandbox
}

/// Control characters other than the line's end.
fn has_raw_controls(text: &str) -> bool {
    text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}')
}

#[test]
fn an_empty_listing_is_valid_in_every_format() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.go("list -q -o json").quiet_stdout(), "[]\n");
    assert_eq!(sandbox.go("list -q -o jsonl").quiet_stdout(), "");
    assert_eq!(sandbox.go("list -q -o ids").quiet_stdout(), "");
    assert_eq!(sandbox.go("list -q -o table").quiet_stdout(), "");
    let csv = sandbox.go("list -q -o csv").quiet_stdout();
    assert!(csv.starts_with("id,eventId,eventType,handler,key,"), "{csv}");
    assert_eq!(csv.lines().count(), 1);
}

#[test]
fn every_format_tells_the_same() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("a").key("k"), event("b")], ago(60));
    let json = sandbox.go("list -o json").exits(0).json();
    let lines = sandbox.go("list -o jsonl").quiet_stdout();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(json, Value::Array(lines.clone()));
    let ids: String = lines.iter().map(|line| format!("{}\n", line["id"].as_str().unwrap())).collect();
    assert_eq!(sandbox.go("list -o ids").quiet_stdout(), ids);
    let csv = sandbox.go("list -o csv").quiet_stdout();
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let head = reader.headers().unwrap().clone();
    for (record, line) in reader.records().zip(&lines) {
        for (field, value) in head.iter().zip(record.unwrap().iter()) {
            let expected = match &line[field] {
                Value::Null if field == "requeues" => "0".to_owned(),
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(value, expected, "{field}");
        }
    }
}

#[test]
fn field_names_are_those_of_the_document() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("a").key("k")], ago(60));
    let json = sandbox.go("list -o json").exits(0).json();
    let names: Vec<&String> = json[0].as_object().unwrap().keys().collect();
    let expected = [
        "id",
        "eventId",
        "eventType",
        "handler",
        "key",
        "sequence",
        "status",
        "lane",
        "attempts",
        "availableAt",
        "dueAt",
        "createdAt",
        "updatedAt",
    ];
    assert_eq!(names, expected);
    assert!(json[0]["createdAt"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn an_unknown_format_is_a_slip_on_the_command_line() {
    let ended = Sandbox::new().go("list -o xml").exits(2);
    assert!(ended.stderr.contains("xml") && ended.stderr.contains("jsonl"), "{ended:?}");
}

#[test]
fn hostile_text_cannot_reach_a_terminal_in_a_table_or_in_json() {
    let sandbox = hostile();
    let id = sandbox.delivery_of(HOSTILE);
    for line in ["list", "list -o json", "list -o jsonl", "list -o ids", "stats", "stats -o json"] {
        let ended = sandbox.go(line).exits(0);
        assert!(!has_raw_controls(&ended.stdout), "{line}: {:?}", ended.stdout);
        assert!(!has_raw_controls(&ended.stderr), "{line}: {:?}", ended.stderr);
    }
    for format in ["table", "json"] {
        let ended = sandbox.run(["show", &id, "-o", format]).exits(0);
        assert!(!has_raw_controls(&ended.stdout), "{:?}", ended.stdout);
        assert!(ended.stdout.contains("[2J"), "made visible, not dropped: {:?}", ended.stdout);
    }
    let ended = sandbox.run(["show", HOSTILE]).exits(1);
    assert!(!has_raw_controls(&ended.stderr), "{:?}", ended.stderr);
}

#[test]
fn json_and_csv_keep_hostile_text_exactly() {
    let sandbox = hostile();
    let json = sandbox.go("list -o json").exits(0).json();
    assert_eq!((json[0]["handler"].as_str(), json[0]["lastError"].as_str()), (Some(HOSTILE), Some(HOSTILE)));
    let csv = sandbox.go("list -o csv").quiet_stdout();
    let record = csv::Reader::from_reader(csv.as_bytes()).records().next().unwrap().unwrap();
    assert_eq!(&record[3], HOSTILE);
    let id = sandbox.delivery_of(HOSTILE);
    let shown = sandbox.run(["show", &id, "-o", "json"]).exits(0).json();
    assert_eq!(shown["event"]["payload"][HOSTILE], HOSTILE);
}

#[test]
fn times_in_tables_are_as_wanted_and_in_json_always_utc() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("a")], ago(185));
    let table = |style: &str| sandbox.run(["list", "--time", style]).exits(0).stdout;
    assert!(table("relative").contains("due 3m ago"), "{}", table("relative"));
    assert!(table("utc").contains("Z  "), "{}", table("utc"));
    let mut command = sandbox.command();
    command.env("TZ", "<+0530>-5:30").args(["list", "--time", "local"]);
    let local = crate::harness::finish(command).exits(0).stdout;
    assert!(local.contains("+05:30"), "{local}");
    let mut command = sandbox.command();
    command.env("TZ", "<+0530>-5:30").args(["list", "-o", "json", "--time", "local"]);
    let json = crate::harness::finish(command).exits(0).json();
    assert!(json[0]["createdAt"].as_str().unwrap().ends_with('Z'));
}
