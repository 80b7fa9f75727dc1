//! `publish`: one event, and streams of them.

use std::fmt::Write as _;

use relayctl::model::Status;
use serde_json::{Value, json};

use crate::harness::{Sandbox, wait_until};
use crate::stock::HOUR;

// ---- one event ---------------------------------------------------------------------------------------------------

#[test]
fn an_event_is_stored_with_all_that_was_said_about_it() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run([
        "publish",
        "order.placed.v1",
        "--payload",
        r#"{"z": 1, "a.b": {"$oid": "x"}, "big": 9223372036854775807, "a": [1.0, null]}"#,
        "--key",
        "order-17",
        "--id",
        "e-1",
        "--handler",
        "projector",
        "--handler",
        "mailer",
        "--header",
        "traceparent=00-a=b",
        "--correlation-id",
        "c-1",
        "--causation-id",
        "c-2",
        "--aggregate-id",
        "a-1",
        "--metadata",
        "[true]",
        "--max-attempts",
        "3",
        "--delay",
        "2h",
    ]);
    ran.exits(0).prints("Published e-1 for projector, mailer.\n").without_noise();
    let [event] = sandbox.events().try_into().unwrap();
    let payload = r#"{"z":1,"a.b":{"$oid":"x"},"big":9223372036854775807,"a":[1,null]}"#;
    assert_eq!(event.payload.to_string(), payload);
    assert_eq!((event.key.as_deref(), event.sequence), (Some("order-17"), Some(1)));
    assert_eq!(event.headers, json!({"traceparent": "00-a=b"}));
    assert_eq!(event.metadata, Some(json!([true])));
    let names = [event.correlation_id, event.causation_id, event.aggregate_id].map(Option::unwrap);
    assert_eq!(names, ["c-1", "c-2", "a-1"]);
    let deliveries = sandbox.deliveries();
    assert_eq!(deliveries.len(), 2);
    for delivery in deliveries {
        assert_eq!((delivery.status, delivery.max_attempts), (Status::Pending, Some(3)));
        assert!(delivery.available_at.since(delivery.created_at) <= 2 * HOUR);
        assert!(delivery.available_at.since(delivery.created_at) > HOUR);
    }
}

#[test]
fn without_a_payload_it_is_an_empty_object() {
    let sandbox = Sandbox::new();
    sandbox.run(["publish", "t", "--handler", "h"]).exits(0).without_noise();
    assert_eq!(sandbox.events()[0].payload, json!({}));
}

#[test]
fn a_payload_comes_from_a_file_or_from_standard_input() {
    let sandbox = Sandbox::new();
    let file = sandbox.file("payload.json", "{\"from\": \"file\"}\n");
    let argument = format!("@{}", file.display());
    sandbox.run(["publish", "t", "--handler", "h", "--payload", &argument]).exits(0);
    let large = json!({"from": "stdin", "filler": "x".repeat(10 << 20)});
    sandbox.run_reading(&["publish", "t", "--handler", "h", "--payload", "-"], large.to_string()).exits(0);
    sandbox.run(["publish", "t", "--handler", "h", "--payload", "-12"]).exits(0);
    let payloads: Vec<Value> = sandbox.events().into_iter().map(|event| event.payload).collect();
    assert!(payloads.contains(&json!({"from": "file"})) && payloads.contains(&json!(-12)));
    assert!(payloads.contains(&large));
    let missing = sandbox.run(["publish", "t", "--handler", "h", "--payload", "@no-such-file"]);
    missing.exits(1).complains("cannot read no-such-file");
    let twice = ["publish", "t", "--handler", "h", "--payload", "-", "--metadata", "-"];
    sandbox.run(twice).exits(2).complains("standard input");
}

#[test]
fn what_cannot_be_kept_exactly_is_refused_with_its_path() {
    let sandbox = Sandbox::new();
    let payload = r#"{"items": [{"n": 9223372036854775808}]}"#;
    let refused = sandbox.run(["publish", "t", "--handler", "h", "--payload", payload]).exits(2);
    refused.prints("").complains("payload.items[0].n: is an integer outside the signed 64-bit range");
    let large = format!("\"{}\"", "x".repeat(16 << 20));
    let refused = sandbox.run_reading(&["publish", "t", "--handler", "h", "--payload", "-"], large);
    refused.exits(2).complains("15 MiB");
    for arguments in [
        &["publish"][..],
        &["publish", ""],
        &["publish", "t"],
        &["publish", "t", "--handler", ""],
        &["publish", "t", "--handler", "h", "--payload", "{"],
        &["publish", "t", "--handler", "h", "--payload", "{'a': 1}"],
        &["publish", "t", "--handler", "h", "--metadata", "x"],
        &["publish", "t", "--handler", "h", "--header", "novalue"],
        &["publish", "t", "--handler", "h", "--max-attempts", "0"],
        &["publish", "t", "--handler", "h", "--at", "2026-03-01T09:30:00"],
        &["publish", "t", "--handler", "h", "--at", "2026-03-01T09:30:00Z", "--delay", "5m"],
        &["publish", "t", "--handler", "h", "--jsonl", "-"],
        &["publish", "t", "--handler", "h", "--batch-size", "5"],
        &["publish", "--jsonl", "-", "--key", "k"],
    ] {
        sandbox.run(arguments).exits(2).prints("");
    }
    assert_eq!(sandbox.deliveries(), []);
}

#[test]
fn an_id_makes_it_idempotent_and_never_changes_what_is_there() {
    let sandbox = Sandbox::new();
    let publish = ["publish", "t", "--id", "e-1", "--payload", "1", "--handler"];
    let with = |more: &[&'static str]| [&publish[..], more].concat();
    let first = sandbox.run(with(&["a", "-o", "json"])).exits(0).without_noise().json();
    let delivery = sandbox.deliveries()[0].id.clone();
    assert_eq!(first, json!({"events": [{"id": "e-1", "created": true, "deliveries": [delivery.as_str()]}]}));
    let again = sandbox.run(with(&["a"])).exits(0);
    again.prints("e-1 was published before; nothing was changed.\n");
    let more = sandbox.run(with(&["a", "--handler", "b"])).exits(0);
    more.prints("e-1 was published before; added a delivery for b.\n");
    assert_eq!(sandbox.deliveries().len(), 2);
    let other = sandbox.run(["publish", "t", "--id", "e-1", "--payload", "2", "--handler", "a"]);
    other.exits(1).prints("").complains("e-1").complains("payload");
    assert_eq!(sandbox.events()[0].payload, json!(1));
}

#[test]
fn what_looks_like_a_query_is_stored_as_it_is() {
    let sandbox = Sandbox::new();
    for text in [r#"{"$gt":""}"#, "$where", "{$ne: null}"] {
        let arguments = ["publish", text, "--handler", text, "--key", text, "--id", text];
        sandbox.run(arguments).exits(0);
    }
    let deliveries = sandbox.deliveries();
    assert_eq!(deliveries.len(), 3);
    assert!(deliveries.iter().all(|d| d.event_type == d.handler && d.key.as_ref() == Some(&d.handler)));
}

#[test]
fn every_format_tells_of_one_event() {
    let sandbox = Sandbox::new();
    let publish = |format: &str| {
        let arguments = ["publish", "t", "--id", "e-1", "--handler", "a", "-o", format];
        sandbox.run(arguments).exits(0).without_noise().stdout
    };
    publish("jsonl");
    let delivery = sandbox.deliveries()[0].id.clone();
    let line = format!("{{\"id\":\"e-1\",\"created\":false,\"deliveries\":[\"{delivery}\"]}}\n");
    assert_eq!(publish("jsonl"), line);
    assert_eq!(publish("ids"), "e-1\n");
    assert_eq!(publish("csv"), format!("id,created,deliveries\ne-1,false,{delivery}\n"));
}

#[test]
fn a_handlers_file_says_who_receives_a_type() {
    let sandbox = Sandbox::new();
    let text = "[handlers.projector]\ntypes = [\"order.*\"]\nshell = \"true\"\n\
        [handlers.audit]\ntypes = [\"*\"]\nshell = \"true\"\n";
    let file = sandbox.file("handlers.toml", text);
    let file = file.to_str().unwrap();
    let order = sandbox.run(["publish", "order.placed.v1", "--id", "o", "--handlers", file]).exits(0);
    order.prints("Published o for audit, projector.\n");
    let named = ["publish", "order.placed.v1", "--id", "n", "--handlers", file, "--handler", "mailer"];
    sandbox.run(named).exits(0).prints("Published n for mailer.\n");
    let lines = "{\"type\":\"user.left\",\"payload\":1,\"id\":\"u\"}\n\
        {\"type\":\"order.paid\",\"payload\":1,\"id\":\"p\",\"handlers\":[\"own\"]}\n";
    sandbox.run_reading(&["publish", "--jsonl", "-", "--handlers", file], lines).exits(0);
    let handlers_of = |event: &str| {
        let deliveries =
            sandbox.deliveries().into_iter().filter(|delivery| delivery.event_id.as_str() == event);
        deliveries.map(|delivery| delivery.handler).collect::<Vec<_>>()
    };
    assert_eq!((handlers_of("u"), handlers_of("p")), (vec!["audit".to_owned()], vec!["own".to_owned()]));
    let narrow = sandbox.file("narrow.toml", "[handlers.a]\ntypes = [\"x\"]\nshell = \"true\"\n");
    let nobody = sandbox.run(["publish", "t", "--handlers", narrow.to_str().unwrap()]).exits(2);
    nobody.complains("none is known to subscribe to `t`");
    sandbox
        .run(["publish", "t", "--handlers", "no-such-file"])
        .exits(2)
        .complains("cannot read no-such-file");
}

// ---- a stream ----------------------------------------------------------------------------------------------------

/// Events of type `t` for handler `h`, whose ids are their numbers.
fn lines(numbers: std::ops::RangeInclusive<u64>) -> String {
    numbers.fold(String::new(), |mut text, n| {
        writeln!(text, r#"{{"id":"e{n}","type":"t","payload":{{"n":{n}}}}}"#).unwrap();
        text
    })
}

fn count(sandbox: &Sandbox) -> usize {
    sandbox.deliveries().len()
}

#[test]
fn a_bad_line_stops_a_stream_and_the_message_says_how_to_go_on() {
    let sandbox = Sandbox::new();
    let bad = "{\"type\":\"t\",\"payload\":{\"n\":18446744073709551616}}\n";
    let text = format!("{}{bad}{}", lines(1..=7_776), lines(7_778..=10_000));
    let file = sandbox.file("the events.jsonl", &text);
    let arguments = ["publish", "--handler", "h", "--jsonl", file.to_str().unwrap()];
    let ran = sandbox.run(arguments).exits(3).prints("Published 7700 events.\n");
    let ran = ran.complains("line 7777: payload.n: is an integer outside the signed 64-bit range");
    assert_eq!(count(&sandbox), 7_700);

    let recipe = ran.stderr.split_once("by: ").expect("a recipe").1.trim();
    sandbox.file("the events.jsonl", text.replace(bad, &lines(7_777..=7_777)));
    sandbox.sh(&format!("{recipe} --handler h")).exits(0).prints("Published 2300 events.\n");
    assert_eq!(count(&sandbox), 10_000);

    let again = sandbox.run(arguments).exits(0);
    again.prints("Published 0 events; 10000 had been published before.\n");
    assert_eq!(count(&sandbox), 10_000);
}

#[test]
fn a_stream_of_which_nothing_was_written_has_failed() {
    let sandbox = Sandbox::new();
    let publish = ["publish", "--jsonl", "-", "--handler", "h"];
    for (text, complaint) in [
        ("{\"type\":\"t\"}\n", "line 1: payload: is missing"),
        ("\n\n{\"type\":\"t\",\"payload\":1,\"Key\":\"k\"}", "line 3: \"Key\": is no member of an event"),
        ("[1]", "line 1: event: must be a JSON object"),
        ("{\"type\":\"t\",\"payload\":1", "line 1: event: is not valid JSON"),
        ("{\"type\":\"t\",\"payload\":1,\"key\":\"\"}", "line 1: key: must not be empty"),
    ] {
        sandbox.run_reading(&publish, text).exits(1).prints("").complains(complaint);
    }
    let nobody = sandbox.run_reading(&["publish", "--jsonl", "-"], lines(1..=1));
    nobody.exits(1).complains("line 1: handlers: none is named");
    sandbox.run_reading(&publish, b"\xff\n").exits(1).complains("line 1: event: is not valid UTF-8");
    sandbox.run(["publish", "--jsonl", "no-such-file"]).exits(1).complains("cannot read no-such-file");
    sandbox.run_reading(&publish, "").exits(0).prints("Published 0 events.\n");
    assert_eq!(count(&sandbox), 0);
}

#[test]
fn a_batch_is_all_or_nothing() {
    let sandbox = Sandbox::new();
    let text = format!("{}oops\n", lines(1..=9));
    let whole = ["publish", "--jsonl", "-", "--handler", "h", "--batch-size", "1000"];
    sandbox.run_reading(&whole, &text).exits(1).prints("");
    assert_eq!(count(&sandbox), 0);
    let single = ["publish", "--jsonl", "-", "--handler", "h", "--batch-size", "1"];
    sandbox.run_reading(&single, &text).exits(3).prints("Published 9 events.\n");
    assert_eq!(count(&sandbox), 9);
}

#[test]
fn a_line_says_who_receives_it_or_else_the_command_does() {
    let sandbox = Sandbox::new();
    let text =
        "{\"type\":\"t\",\"payload\":1,\"handlers\":[\"own\",\"more\"]}\n{\"type\":\"t\",\"payload\":1}";
    sandbox.run_reading(&["publish", "--jsonl", "-", "--handler", "h"], text).exits(0);
    let mut handlers: Vec<_> = sandbox.deliveries().into_iter().map(|delivery| delivery.handler).collect();
    handlers.sort();
    assert_eq!(handlers, ["h", "more", "own"]);
}

#[test]
fn every_format_tells_of_each_event_of_a_stream() {
    let sandbox = Sandbox::new();
    let publish = |format: &str, text: &str, code| {
        let arguments = ["publish", "--jsonl", "-", "--handler", "h", "--batch-size", "10", "-o", format];
        sandbox.run_reading(&arguments, text).exits(code)
    };
    let jsonl = publish("jsonl", &lines(1..=25), 0).without_noise().stdout;
    let ids: Vec<Value> =
        jsonl.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!(ids, (1..=25).map(|n| json!(format!("e{n}"))).collect::<Vec<_>>());
    let report = publish("json", &lines(1..=26), 0).json();
    let created: Vec<&Value> = report["events"].as_array().unwrap().iter().map(|e| &e["created"]).collect();
    assert_eq!((created.len(), created[0], created[25]), (26, &json!(false), &json!(true)));
    let cut_off = publish("json", &format!("{}oops", lines(1..=15)), 3);
    assert_eq!(cut_off.json()["events"].as_array().unwrap().len(), 10);
    assert_eq!(publish("ids", &lines(1..=2), 0).stdout, "e1\ne2\n");
    assert_eq!(publish("json", "", 0).json(), json!({"events": []}));
    publish("json", "oops", 1).prints("");
}

#[test]
fn a_reader_that_goes_away_stops_the_telling_and_not_the_publishing() {
    let sandbox = Sandbox::new();
    sandbox.file("events.jsonl", lines(1..=3_000));
    let ran = sandbox.sh("relayctl publish --jsonl \"$HOME/events.jsonl\" --handler h -o jsonl | head -n 1");
    let ran = ran.exits(0).without_noise();
    assert!(ran.stdout.starts_with("{\"id\":\"e1\",\"created\":true,"), "{ran:?}");
    wait_until("it happens", || count(&sandbox) == 3_000);
}

#[test]
fn an_interrupt_ends_a_stream_that_waits_for_more() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.start(&["publish", "--jsonl", "-", "--handler", "h", "--batch-size", "5"]);
    running.types(&lines(1..=7));
    wait_until("it happens", || count(&sandbox) == 5);
    running.interrupt();
    running.ends().exits(130).prints("Published 5 events.\n").complains("line 6");
    assert_eq!(count(&sandbox), 5);
}

#[test]
fn events_of_one_key_get_their_sequence_in_the_order_of_the_lines() {
    let sandbox = Sandbox::new();
    let text: String = (1..=250)
        .map(|n| format!("{{\"type\":\"t\",\"payload\":{n},\"key\":\"k\",\"handlers\":[\"h\"]}}\n"))
        .collect();
    sandbox.run_reading(&["publish", "--jsonl", "-"], text).exits(0);
    let mut events = sandbox.events();
    events.sort_by_key(|event| event.sequence);
    let payloads: Vec<_> = events.iter().map(|event| (event.sequence, event.payload.clone())).collect();
    assert_eq!(payloads, (1..=250).map(|n| (Some(n), json!(n))).collect::<Vec<_>>());
}

#[test]
fn a_terminal_sees_a_bar_that_knows_where_the_file_ends() {
    let sandbox = Sandbox::new();
    let line = r#"{"type":"order.placed.v1","payload":{},"handlers":["projector"]}"#;
    // The last line has no end, and counts all the same.
    let file = sandbox.file("events.jsonl", [line; 3_000].join("\n"));
    let terminal = sandbox.at_terminal(&["publish", "--jsonl", file.to_str().unwrap()]);
    terminal.until(" of 3,000 ");
    let ended = terminal.ends().exits(0);
    assert!(ended.stdout.ends_with("Published 3000 events.\n"), "{}", ended.stdout);
    assert_eq!(sandbox.deliveries().len(), 3_000);
}
