//! `list`: filters, order, pages, and what happens when something goes wrong midway.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::time::Duration;

use mongodb::bson::{DateTime, doc};
use relayctl::model::NewEvent;
use relayctl::store::Outcome;
use serde_json::json;

use crate::harness::{Ended, Sandbox, ago, buried, event};

/// The ids of the events whose deliveries a JSON-lines listing holds, in its order.
fn events_of(ended: &Ended) -> Vec<String> {
    let lines = ended.stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.map(|delivery| delivery["eventId"].as_str().unwrap().to_owned()).collect()
}

fn listed(sandbox: &Sandbox, filter: &[&str]) -> Vec<String> {
    let arguments = [&["list", "-o", "jsonl", "--all"], filter].concat();
    let ended = sandbox.run(arguments).exits(0);
    events_of(&ended)
}

/// One delivery in each status and of each kind that a filter can tell apart.
fn assorted() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("done")], ago(7_200));
    sandbox.settle("projector", &Outcome::Complete, ago(7_100));
    sandbox.append(&[event("dead").key("k-1")], ago(3_600));
    sandbox.settle("projector", &buried("Connection REFUSED (os error 111)"), ago(3_500));
    sandbox.append(&[NewEvent { event_type: "order.shipped.v1".into(), ..event("leased") }], ago(600));
    sandbox.claim("projector", Duration::from_secs(86_400), ago(590));
    let mail = NewEvent::new("mail.sent.v1", json!({})).id("mail").handler("mailer").key("k-2");
    sandbox.append(&[mail], ago(300));
    let later =
        NewEvent { available_at: Some(ago(0).saturating_add(Duration::from_secs(3_600))), ..event("later") };
    sandbox.append(&[later], ago(60));
    sandbox
}

#[test]
fn each_filter_selects_what_it_says() {
    let sandbox = assorted();
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["done", "dead", "leased", "mail", "later"]),
        (&["--status", "dead"], &["dead"]),
        (&["--status", "failed"], &["dead"]),
        (&["--status", "dead", "--status", "published"], &["done", "dead"]),
        (&["--handler", "mailer"], &["mail"]),
        (&["--type", "order.placed.v1"], &["done", "dead", "later"]),
        (&["--type", "order.*"], &["done", "dead", "leased", "later"]),
        (&["--type", "*"], &["done", "dead", "leased", "mail", "later"]),
        (&["--type", "order"], &[]),
        (&["--key", "k-1"], &["dead"]),
        (&["--event", "later"], &["later"]),
        (&["--error", "connection refused"], &["dead"]),
        (&["--error", "(os error 111)"], &["dead"]),
        (&["--since", "10m"], &["mail", "later"]),
        (&["--until", "10m"], &["done", "dead", "leased"]),
        (&["--since", "61m", "--until", "9m"], &["dead", "leased"]),
        (&["--finished-before", "1h"], &["done"]),
        (&["--min-attempts", "1"], &["done", "dead", "leased"]),
        (&["--lane", "ready"], &["leased", "mail", "later"]),
        (&["--lane", "parked"], &[]),
        (&["--overdue", "4m"], &["mail"]),
        (&["--overdue", "6m"], &[]),
        (&["--handler", "projector", "--status", "pending"], &["later"]),
    ];
    for (filter, expected) in cases {
        assert_eq!(listed(&sandbox, filter), *expected, "{filter:?}");
    }
}

#[test]
fn an_instant_with_an_offset_is_a_time() {
    let sandbox = assorted();
    let time = ago(450).to_string();
    assert_eq!(listed(&sandbox, &["--since", &time]), ["mail", "later"]);
    let ended = sandbox.run(["list", "--since", "2026-03-01T09:30:00"]).exits(2);
    assert!(ended.stderr.contains("no offset") && ended.stderr.contains("2026-03-01T09:30:00Z"), "{ended:?}");
}

/// Texts that would be query operators, patterns or code if they were ever anything but values.
const INJECTIONS: &[&str] = &[
    r#"{"$ne": null}"#,
    r#"{"$gt":""}"#,
    "$where",
    ".*",
    "order.placed.v1' || '1'=='1",
    "$ne",
    "^",
    "(",
    "%",
    "_",
];

#[test]
fn filters_are_values_and_never_operators() {
    let sandbox = assorted();
    for text in INJECTIONS {
        for flag in ["--handler", "--key", "--event", "--error", "--type"] {
            // A text with a star inside is refused as a pattern; `.*` means all types that begin with a dot.
            if flag == "--error" && ["(", "_", "."].contains(text) {
                continue;
            }
            assert_eq!(listed(&sandbox, &[flag, text]), Vec::<String>::new(), "{flag} {text}");
        }
        let shown = sandbox.run(["show", text]).exits(1);
        assert!(shown.stderr.contains("there is no delivery"), "{text}: {shown:?}");
    }
}

#[test]
fn what_looks_like_an_operator_is_found_by_its_text() {
    let sandbox = Sandbox::new();
    for text in INJECTIONS {
        let odd = NewEvent::new(*text, json!({})).id(*text).handler(*text).key(*text);
        sandbox.append(&[odd, event("plain")], ago(10));
        for flag in ["--handler", "--key", "--event"] {
            assert_eq!(listed(&sandbox, &[flag, text]), [*text], "{flag}");
        }
    }
    // The one pattern there is: `.*` means types that begin with a dot, of which `.*` itself is one.
    assert_eq!(listed(&sandbox, &["--type", ".*"]), [".*"]);
}

#[test]
fn order_and_reverse() {
    let sandbox = assorted();
    assert_eq!(listed(&sandbox, &["--reverse"]), ["later", "mail", "leased", "dead", "done"]);
    assert_eq!(listed(&sandbox, &["--sort", "updated"]), ["done", "dead", "leased", "mail", "later"]);
    // Finished ones are never due; the lease of the leased one ends last.
    assert_eq!(listed(&sandbox, &["--sort", "due"]), ["mail", "later", "leased"]);
}

#[test]
fn pages_go_on_where_the_last_one_ended() {
    let sandbox = Sandbox::new();
    let events: Vec<NewEvent> = (0..7).map(|n| event(&format!("event-{n}"))).collect();
    sandbox.append(&events, ago(10));
    let mut seen = Vec::new();
    let mut cursor: Option<String> = None;
    for page in 0.. {
        assert!(page < 4, "the pages end");
        let mut arguments = vec!["list".to_owned(), "--limit=3".into(), "-o=jsonl".into()];
        arguments.extend(cursor.take().map(|cursor| format!("--cursor={cursor}")));
        let ended = sandbox.run(&arguments).exits(0);
        seen.extend(events_of(&ended));
        let next =
            ended.stderr.split_once("--cursor ").map(|(_, rest)| rest.split(' ').next().unwrap().to_owned());
        match next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(seen.len(), 7);
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 7);
}

#[test]
fn a_last_page_that_is_just_full_has_no_next() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("a"), event("b")], ago(10));
    assert_eq!(sandbox.go("list --limit 2 -o ids").quiet_stdout().lines().count(), 2);
    assert_eq!(sandbox.go("list --limit 1 -o ids -q").quiet_stdout().lines().count(), 1);
    let ended = sandbox.go("list --limit 1").exits(0);
    assert!(ended.stderr.starts_with("there are more than these 1: add --cursor "), "{ended:?}");
}

#[test]
fn a_cursor_of_another_order_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("a"), event("b")], ago(10));
    let ended = sandbox.go("list --limit 1").exits(0);
    let cursor = ended.stderr.split("--cursor ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let ended = sandbox.run(["list", "--sort", "updated", "--cursor", &cursor]).exits(2);
    assert!(ended.stderr.contains("sorted by created"), "{ended:?}");
    let ended = sandbox.run(["list", "--cursor", "nonsense"]).exits(2);
    assert!(ended.stderr.contains("not a cursor"), "{ended:?}");
}

#[test]
fn a_listing_without_a_match_says_so() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.go("list").exits(0).stderr, "there are no deliveries\n");
    assert_eq!(sandbox.go("list --status dead").exits(0).stderr, "no delivery matches\n");
    assert_eq!(sandbox.go("list -q").quiet_stdout(), "");
}

fn corrupt_delivery(id: &str) -> mongodb::bson::Document {
    let now = DateTime::from_millis(ago(5).as_millis());
    doc! {
        "_id": id, "eventId": id, "eventType": "t", "handler": "projector", "status": "pending", "lane": "ready",
        "attempts": "many", "availableAt": now, "createdAt": now, "updatedAt": now,
    }
}

#[test]
fn a_delivery_that_cannot_be_understood_does_not_hide_the_others() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("before")], ago(10));
    sandbox.insert_raw("relaybus_deliveries", corrupt_delivery("broken"));
    sandbox.append(&[event("after")], ago(1));
    let ended = sandbox.go("list -o json").exits(1);
    assert_eq!(ended.json().as_array().unwrap().len(), 2);
    assert!(ended.stderr.starts_with("warning: ") && ended.stderr.contains("broken"), "{ended:?}");
    assert!(ended.stderr.contains("error: a delivery could not be understood"), "{ended:?}");
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let sandbox = Sandbox::new();
    let padding = "x".repeat(500);
    for batch in 0..20 {
        let events: Vec<NewEvent> =
            (0..100).map(|n| event(&format!("{batch}-{n}")).key(format!("{padding}{batch}-{n}"))).collect();
        sandbox.append(&events, ago(10));
    }
    for format in ["table", "json", "jsonl", "csv", "ids"] {
        let mut command = sandbox.command();
        command.args(["list", "--all", "-o", format]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""), "{format}");
        assert!(!first.is_empty());
    }
}

#[test]
fn streams_that_are_closed_or_full_are_no_reason_to_panic() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("a")], ago(10));
    let binary = env!("CARGO_BIN_EXE_relayctl");
    for (redirection, code) in [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), (">/dev/full", 1), ("<&-", 0)] {
        let mut command = std::process::Command::new("sh");
        command.arg("-c").arg(format!("{binary} list {redirection}"));
        command.env_clear().env("RELAYCTL_STORE", &sandbox.url).env("HOME", sandbox.home.path());
        let ended = crate::harness::finish(command);
        assert_eq!(ended.code(), code, "{redirection}: {ended:?}");
        assert_eq!(ended.stderr.contains("cannot write to standard output"), code == 1, "{ended:?}");
    }
}
