//! `publish`: one event, and streams of them.

use std::fmt::Write as _;

use relayctl::model::Status;
use serde_json::{Value, json};

use crate::shop::{HOUR, Shop, eventually, visit};

// ---- one event ---------------------------------------------------------------------------------------------------

#[tokio::test]
async fn an_event_is_stored_with_all_that_was_said_about_it() {
    visit(async |shop| {
        let ran = shop
            .relayctl(&[
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
            ])
            .await;
        ran.exits(0).prints("Published e-1 for projector, mailer.\n").without_noise();
        let [event] = shop.events().await.try_into().unwrap();
        let payload = r#"{"z":1,"a.b":{"$oid":"x"},"big":9223372036854775807,"a":[1,null]}"#;
        assert_eq!(event.payload.to_string(), payload);
        assert_eq!((event.key.as_deref(), event.sequence), (Some("order-17"), Some(1)));
        assert_eq!(event.headers, json!({"traceparent": "00-a=b"}));
        assert_eq!(event.metadata, Some(json!([true])));
        let names = [event.correlation_id, event.causation_id, event.aggregate_id].map(Option::unwrap);
        assert_eq!(names, ["c-1", "c-2", "a-1"]);
        let deliveries = shop.all().await;
        assert_eq!(deliveries.len(), 2);
        for delivery in deliveries {
            assert_eq!((delivery.status, delivery.max_attempts), (Status::Pending, Some(3)));
            assert!(delivery.available_at.since(delivery.created_at) <= 2 * HOUR);
            assert!(delivery.available_at.since(delivery.created_at) > HOUR);
        }
    })
    .await;
}

#[tokio::test]
async fn without_a_payload_it_is_an_empty_object() {
    visit(async |shop| {
        shop.relayctl(&["publish", "t", "--handler", "h"]).await.exits(0).without_noise();
        assert_eq!(shop.events().await[0].payload, json!({}));
    })
    .await;
}

#[tokio::test]
async fn a_payload_comes_from_a_file_or_from_standard_input() {
    visit(async |shop| {
        let file = shop.file("payload.json", "{\"from\": \"file\"}\n");
        let argument = format!("@{}", file.display());
        shop.relayctl(&["publish", "t", "--handler", "h", "--payload", &argument]).await.exits(0);
        let large = json!({"from": "stdin", "filler": "x".repeat(10 << 20)}).to_string();
        shop.relayctl_reading(&["publish", "t", "--handler", "h", "--payload", "-"], &large).await.exits(0);
        shop.relayctl(&["publish", "t", "--handler", "h", "--payload", "-12"]).await.exits(0);
        let payloads: Vec<Value> = shop.events().await.into_iter().map(|event| event.payload).collect();
        assert!(payloads.contains(&json!({"from": "file"})) && payloads.contains(&json!(-12)));
        assert!(payloads.iter().any(|payload| payload.to_string() == large.replace(": ", ":")));
        let missing = shop.relayctl(&["publish", "t", "--handler", "h", "--payload", "@no-such-file"]).await;
        missing.exits(1).complains("cannot read no-such-file");
        let twice = ["publish", "t", "--handler", "h", "--payload", "-", "--metadata", "-"];
        shop.relayctl(&twice).await.exits(2).complains("standard input");
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_kept_exactly_is_refused_with_its_path() {
    visit(async |shop| {
        let payload = r#"{"items": [{"n": 9223372036854775808}]}"#;
        let refused = shop.relayctl(&["publish", "t", "--handler", "h", "--payload", payload]).await.exits(2);
        refused.prints("").complains("payload.items[0].n: is an integer outside the signed 64-bit range");
        let large = format!("\"{}\"", "x".repeat(16 << 20));
        let refused =
            shop.relayctl_reading(&["publish", "t", "--handler", "h", "--payload", "-"], large).await;
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
            shop.relayctl(arguments).await.exits(2).prints("");
        }
        assert_eq!(shop.all().await, []);
    })
    .await;
}

#[tokio::test]
async fn an_id_makes_it_idempotent_and_never_changes_what_is_there() {
    visit(async |shop| {
        let publish = ["publish", "t", "--id", "e-1", "--payload", "1", "--handler"];
        let with = |more: &[&'static str]| [&publish[..], more].concat();
        let first = shop.relayctl(&with(&["a", "-o", "json"])).await.exits(0).without_noise().json();
        let delivery = shop.all().await[0].id.clone();
        assert_eq!(
            first,
            json!({"events": [{"id": "e-1", "created": true, "deliveries": [delivery.as_str()]}]})
        );
        let again = shop.relayctl(&with(&["a"])).await.exits(0);
        again.prints("e-1 was published before; nothing was changed.\n");
        let more = shop.relayctl(&with(&["a", "--handler", "b"])).await.exits(0);
        more.prints("e-1 was published before; added a delivery for b.\n");
        assert_eq!(shop.all().await.len(), 2);
        let other = shop.relayctl(&["publish", "t", "--id", "e-1", "--payload", "2", "--handler", "a"]).await;
        other.exits(1).prints("").complains("e-1").complains("payload");
        assert_eq!(shop.events().await[0].payload, json!(1));
    })
    .await;
}

#[tokio::test]
async fn what_looks_like_a_query_is_stored_as_it_is() {
    visit(async |shop| {
        for text in [r#"{"$gt":""}"#, "$where", "{$ne: null}"] {
            let arguments = ["publish", text, "--handler", text, "--key", text, "--id", text];
            shop.relayctl(&arguments).await.exits(0);
        }
        let deliveries = shop.all().await;
        assert_eq!(deliveries.len(), 3);
        assert!(deliveries.iter().all(|d| d.event_type == d.handler && d.key.as_ref() == Some(&d.handler)));
    })
    .await;
}

#[tokio::test]
async fn every_format_tells_of_one_event() {
    visit(async |shop| {
        let publish = async |format: &str| {
            let arguments = ["publish", "t", "--id", "e-1", "--handler", "a", "-o", format];
            shop.relayctl(&arguments).await.exits(0).without_noise().stdout
        };
        publish("jsonl").await;
        let delivery = shop.all().await[0].id.clone();
        let line = format!("{{\"id\":\"e-1\",\"created\":false,\"deliveries\":[\"{delivery}\"]}}\n");
        assert_eq!(publish("jsonl").await, line);
        assert_eq!(publish("ids").await, "e-1\n");
        assert_eq!(publish("csv").await, format!("id,created,deliveries\ne-1,false,{delivery}\n"));
    })
    .await;
}

// ---- a stream ----------------------------------------------------------------------------------------------------

/// Events of type `t` for handler `h`, whose ids are their numbers.
fn lines(numbers: std::ops::RangeInclusive<u64>) -> String {
    numbers.fold(String::new(), |mut text, n| {
        writeln!(text, r#"{{"id":"e{n}","type":"t","payload":{{"n":{n}}}}}"#).unwrap();
        text
    })
}

async fn count(shop: &Shop) -> usize {
    shop.all().await.len()
}

#[tokio::test]
async fn a_bad_line_stops_a_stream_and_the_message_says_how_to_go_on() {
    visit(async |shop| {
        let bad = "{\"type\":\"t\",\"payload\":{\"n\":18446744073709551616}}\n";
        let text = format!("{}{bad}{}", lines(1..=7_776), lines(7_778..=10_000));
        let file = shop.file("events.jsonl", &text);
        let arguments = ["publish", "--handler", "h", "--jsonl", file.to_str().unwrap()];
        let ran = shop.relayctl(&arguments).await.exits(3).prints("Published 7700 events.\n");
        let ran = ran.complains("line 7777: payload.n: is an integer outside the signed 64-bit range");
        assert_eq!(count(shop).await, 7_700);

        let recipe = ran.stderr.split_once("go on with: ").expect("a recipe").1.trim();
        shop.file("events.jsonl", text.replace(bad, &lines(7_777..=7_777)));
        shop.sh(&format!("{recipe} --handler h")).await.exits(0).prints("Published 2300 events.\n");
        assert_eq!(count(shop).await, 10_000);

        let again = shop.relayctl(&arguments).await.exits(0);
        again.prints("Published 0 events; 10000 had been published before.\n");
        assert_eq!(count(shop).await, 10_000);
    })
    .await;
}

#[tokio::test]
async fn a_stream_of_which_nothing_was_written_has_failed() {
    visit(async |shop| {
        let publish = ["publish", "--jsonl", "-", "--handler", "h"];
        for (text, complaint) in [
            ("{\"type\":\"t\"}\n", "line 1: payload: is missing"),
            ("\n\n{\"type\":\"t\",\"payload\":1,\"Key\":\"k\"}", "line 3: \"Key\": is no member of an event"),
            ("[1]", "line 1: event: must be a JSON object"),
            ("{\"type\":\"t\",\"payload\":1", "line 1: event: is not valid JSON"),
            ("{\"type\":\"t\",\"payload\":1,\"key\":\"\"}", "line 1: key: must not be empty"),
        ] {
            shop.relayctl_reading(&publish, text).await.exits(1).prints("").complains(complaint);
        }
        let nobody = shop.relayctl_reading(&["publish", "--jsonl", "-"], lines(1..=1)).await;
        nobody.exits(1).complains("line 1: handlers: none is named");
        shop.relayctl_reading(&publish, b"\xff\n")
            .await
            .exits(1)
            .complains("line 1: event: is not valid UTF-8");
        shop.relayctl(&["publish", "--jsonl", "no-such-file"])
            .await
            .exits(1)
            .complains("cannot read no-such-file");
        shop.relayctl_reading(&publish, "").await.exits(0).prints("Published 0 events.\n");
        assert_eq!(count(shop).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_batch_is_all_or_nothing() {
    visit(async |shop| {
        let text = format!("{}oops\n", lines(1..=9));
        let whole = ["publish", "--jsonl", "-", "--handler", "h", "--batch-size", "1000"];
        shop.relayctl_reading(&whole, &text).await.exits(1).prints("");
        assert_eq!(count(shop).await, 0);
        let single = ["publish", "--jsonl", "-", "--handler", "h", "--batch-size", "1"];
        shop.relayctl_reading(&single, &text).await.exits(3).prints("Published 9 events.\n");
        assert_eq!(count(shop).await, 9);
    })
    .await;
}

#[tokio::test]
async fn a_line_says_who_receives_it_or_else_the_command_does() {
    visit(async |shop| {
        let text =
            "{\"type\":\"t\",\"payload\":1,\"handlers\":[\"own\",\"more\"]}\n{\"type\":\"t\",\"payload\":1}";
        shop.relayctl_reading(&["publish", "--jsonl", "-", "--handler", "h"], text).await.exits(0);
        let mut handlers: Vec<_> = shop.all().await.into_iter().map(|delivery| delivery.handler).collect();
        handlers.sort();
        assert_eq!(handlers, ["h", "more", "own"]);
    })
    .await;
}

#[tokio::test]
async fn every_format_tells_of_each_event_of_a_stream() {
    visit(async |shop| {
        let publish = async |format: &str, text: &str, code| {
            let arguments = ["publish", "--jsonl", "-", "--handler", "h", "--batch-size", "10", "-o", format];
            shop.relayctl_reading(&arguments, text).await.exits(code)
        };
        let jsonl = publish("jsonl", &lines(1..=25), 0).await.without_noise().stdout;
        let ids: Vec<Value> =
            jsonl.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
        assert_eq!(ids, (1..=25).map(|n| json!(format!("e{n}"))).collect::<Vec<_>>());
        let report = publish("json", &lines(1..=26), 0).await.json();
        let created: Vec<&Value> =
            report["events"].as_array().unwrap().iter().map(|e| &e["created"]).collect();
        assert_eq!((created.len(), created[0], created[25]), (26, &json!(false), &json!(true)));
        let cut_off = publish("json", &format!("{}oops", lines(1..=15)), 3).await;
        assert_eq!(cut_off.json()["events"].as_array().unwrap().len(), 10);
        assert_eq!(publish("ids", &lines(1..=2), 0).await.stdout, "e1\ne2\n");
        assert_eq!(publish("json", "", 0).await.json(), json!({"events": []}));
        publish("json", "oops", 1).await.prints("");
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_goes_away_stops_the_telling_and_not_the_publishing() {
    visit(async |shop| {
        shop.file("events.jsonl", lines(1..=3_000));
        let ran =
            shop.sh("relayctl publish --jsonl \"$HOME/events.jsonl\" --handler h -o jsonl | head -n 1").await;
        let ran = ran.exits(0).without_noise();
        assert!(ran.stdout.starts_with("{\"id\":\"e1\",\"created\":true,"), "{ran:?}");
        eventually(async || count(shop).await == 3_000).await;
    })
    .await;
}

#[tokio::test]
async fn an_interrupt_ends_a_stream_that_waits_for_more() {
    visit(async |shop| {
        let mut running =
            shop.start_relayctl(&["publish", "--jsonl", "-", "--handler", "h", "--batch-size", "5"]);
        running.types(&lines(1..=7)).await;
        eventually(async || count(shop).await == 5).await;
        running.interrupt();
        running.ends().await.exits(130).prints("Published 5 events.\n").complains("line 6");
        assert_eq!(count(shop).await, 5);
    })
    .await;
}

#[tokio::test]
async fn events_of_one_key_get_their_sequence_in_the_order_of_the_lines() {
    visit(async |shop| {
        let text: String = (1..=250)
            .map(|n| format!("{{\"type\":\"t\",\"payload\":{n},\"key\":\"k\",\"handlers\":[\"h\"]}}\n"))
            .collect();
        shop.relayctl_reading(&["publish", "--jsonl", "-"], text).await.exits(0);
        let mut events = shop.events().await;
        events.sort_by_key(|event| event.sequence);
        let payloads: Vec<_> = events.iter().map(|event| (event.sequence, event.payload.clone())).collect();
        assert_eq!(payloads, (1..=250).map(|n| (Some(n), json!(n))).collect::<Vec<_>>());
    })
    .await;
}
