//! `errors`, and what `--group` selects.

use mongodb::bson::{Bson, DateTime, Document, doc};
use relayctl::model::{DeliveryId, Failure, FailureKind, NewEvent, Status};
use relayctl::store::Outcome;
use serde_json::{Value, json};

use crate::harness::{Sandbox, ago, event};

/// Publishes an event for a handler and lets it fail so many seconds ago.
fn fails(sandbox: &Sandbox, id: &str, handler: &str, message: &str, seconds_ago: u64) -> String {
    outcome(sandbox, id, handler, seconds_ago, |failure| Outcome::Bury { failure }, message)
}

/// As [`fails`], with another attempt to come in an hour.
fn retries(sandbox: &Sandbox, id: &str, message: &str) -> String {
    let available_at = ago(0).saturating_add(std::time::Duration::from_secs(3_600));
    let retry = |failure| Outcome::Reschedule { available_at, failure };
    outcome(sandbox, id, "projector", 60, retry, message)
}

fn outcome(
    sandbox: &Sandbox,
    id: &str,
    handler: &str,
    seconds_ago: u64,
    outcome: impl Fn(Failure) -> Outcome,
    message: &str,
) -> String {
    let at = ago(seconds_ago);
    sandbox.append(&[NewEvent { handlers: vec![handler.into()], ..event(id) }], at);
    let failure = Failure::new(FailureKind::Failed, message);
    assert_eq!(sandbox.settle(handler, &outcome(failure), at), 1);
    sandbox.delivery_of(id)
}

/// Three orders that are unknown to one handler and one to another, and a connection that was refused.
fn a_bad_day(sandbox: &Sandbox) -> [String; 5] {
    [
        fails(sandbox, "e1", "projector", "exit status 65: order 17 is unknown", 7_205),
        fails(sandbox, "e2", "projector", "exit status 65: order 4711 is unknown\nsee the log", 3_605),
        fails(sandbox, "e3", "mailer", "exit status 65: order 17 is unknown", 125),
        fails(sandbox, "e4", "projector", "exit status 1: connect 10.0.0.1:5432: refused", 65),
        fails(sandbox, "e5", "projector", "exit status 65: order 1 is unknown", 65),
    ]
}

fn groups(sandbox: &Sandbox, line: &str) -> Vec<Value> {
    let found = sandbox.go(&format!("errors -o json {line}")).exits(0).json();
    found.as_array().unwrap().clone()
}

/// The group of the orders that are unknown to the projector.
const ORDERS: &str = "g1-037125b939edb348";

fn status(sandbox: &Sandbox, id: &str) -> Status {
    sandbox.get(&DeliveryId::from(id)).status
}

#[test]
fn dead_deliveries_are_grouped_by_handler_and_error() {
    let sandbox = Sandbox::new();
    let [e1, _, e3, e4, e5] = a_bad_day(&sandbox);
    retries(&sandbox, "e6", "exit status 65: order 18 is unknown");
    let found = groups(&sandbox, "");
    let failed_at = |id: &str| json!(sandbox.get(&DeliveryId::from(id)).errors[0].at);
    let expected = json!([
        {
            "group": ORDERS, "handler": "projector", "count": 3, "firstSeenAt": failed_at(&e1),
            "lastSeenAt": failed_at(&e5), "sampleId": e5, "error": "exit status <n>: order <n> is unknown",
        },
        {
            "group": "g1-5faddc181538a4ce", "handler": "projector", "count": 1, "firstSeenAt": failed_at(&e4),
            "lastSeenAt": failed_at(&e4), "sampleId": e4, "error": "exit status <n>: connect <addr>: refused",
        },
        {
            "group": "g1-176621c35095ba10", "handler": "mailer", "count": 1, "firstSeenAt": failed_at(&e3),
            "lastSeenAt": failed_at(&e3), "sampleId": e3, "error": "exit status <n>: order <n> is unknown",
        },
    ]);
    assert_eq!(json!(found), expected);
    let fields: Vec<&str> = found[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["group", "handler", "count", "firstSeenAt", "lastSeenAt", "sampleId", "error"]);
    assert_eq!(groups(&sandbox, "--handler mailer").len(), 1);
    assert_eq!(groups(&sandbox, "--status pending")[0]["count"], 1);
    assert_eq!(groups(&sandbox, "--status pending --status dead")[0]["count"], 4);
    assert_eq!(groups(&sandbox, "--error REFUSED")[0]["sampleId"], json!(e4));
}

#[test]
fn every_format_shows_the_groups() {
    let sandbox = Sandbox::new();
    let [_, _, _, e4, _] = a_bad_day(&sandbox);
    let ids = sandbox.go("errors -o ids").quiet_stdout();
    assert_eq!((ids.lines().next(), ids.lines().count()), (Some(ORDERS), 3));
    assert_eq!(sandbox.go("errors -o jsonl").quiet_stdout().lines().count(), 3);
    let csv = sandbox.go("errors -o csv").quiet_stdout();
    assert!(csv.starts_with("group,handler,count,firstSeenAt,lastSeenAt,sampleId,error\n"), "{csv}");
    assert!(csv.contains(&format!(",{e4},exit status <n>: connect <addr>: refused\n")), "{csv}");
    let table = sandbox.go("errors --error refused").quiet_stdout();
    let line = table.lines().nth(1).unwrap();
    assert!(table.starts_with("GROUP                COUNT  HANDLER    FIRST   LAST    SAMPLE "), "{table}");
    assert!(
        line.contains("  projector  1m ago  1m ago  ") && line.ends_with("connect <addr>: refused"),
        "{table}"
    );
    let first = sandbox.go("errors --limit 1").exits(0);
    assert_eq!(first.stdout.lines().count(), 2);
    assert_eq!(
        first.stderr,
        "there are 2 more groups, of 2 deliveries: add --all, or narrow with a condition\n"
    );
}

#[test]
fn nothing_that_failed_is_no_error_and_no_schema_is_one() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("fresh")], ago(60));
    let nothing = sandbox.go("errors").exits(0);
    assert_eq!(
        (nothing.stdout.as_str(), nothing.stderr.as_str()),
        ("", "no delivery that was looked at has failed\n")
    );
    assert_eq!(sandbox.go("errors -o json").exits(0).stdout, "[]\n");
    assert_eq!(groups(&sandbox, "--status pending"), Vec::<Value>::new());
    Sandbox::without_schema().go("errors").exits(5);
}

#[test]
fn a_group_filters_a_listing() {
    let sandbox = Sandbox::new();
    let [e1, e2, _, e4, e5] = a_bad_day(&sandbox);
    let retried = retries(&sandbox, "e6", "exit status 65: order 18 is unknown");
    let ids = |line: &str| -> Vec<String> {
        let listed = sandbox.go(&format!("list -o ids {line}")).exits(0).stdout;
        listed.lines().map(str::to_owned).collect()
    };
    assert_eq!(ids(&format!("--group {ORDERS}")), [e1.clone(), e2.clone(), e5.clone(), retried]);
    assert_eq!(ids(&format!("--group {ORDERS} --status dead --limit 2")), [e1.clone(), e2.clone()]);
    assert_eq!(ids(&format!("--group {ORDERS} --since 2h --status dead")), [e2.clone(), e5.clone()]);
    let refused = groups(&sandbox, "--error refused")[0]["group"].as_str().unwrap().to_owned();
    assert_eq!(ids(&format!("--group {ORDERS} --group {refused} --status dead")), [e1, e2, e4, e5]);
    assert_eq!(ids("--group g1-0000000000000000"), Vec::<String>::new());
    assert_eq!(groups(&sandbox, &format!("--group {refused}")).len(), 1);
    let more = sandbox.go(&format!("list --group {ORDERS} --limit 1")).exits(0);
    let cursor = more.stderr.split("--cursor ").nth(1).unwrap().split(' ').next().unwrap();
    assert_eq!(ids(&format!("--group {ORDERS} --limit 1 --cursor {cursor}")).len(), 1);
}

#[test]
fn a_group_is_requeued_and_nothing_else() {
    let sandbox = Sandbox::new();
    let all = a_bad_day(&sandbox);
    let dry = sandbox.go(&format!("requeue --group {ORDERS} -n")).exits(0);
    assert_eq!(dry.stdout, "Would requeue 3 deliveries.\n");
    assert!(sandbox.go(&format!("requeue --group {ORDERS}")).exits(2).stderr.contains("--yes"));
    assert_eq!(all.each_ref().map(|id| status(&sandbox, id)), [Status::Dead; 5]);

    let limited = sandbox.go(&format!("requeue --group {ORDERS} --limit 1 --yes -o json")).exits(0).json();
    assert_eq!((&limited["matched"], &limited["changed"]), (&json!(3), &json!(1)));
    assert_eq!(status(&sandbox, &all[0]), Status::Pending);
    let rest = sandbox.go(&format!("requeue --group {ORDERS} --rate 100/s --yes")).exits(0);
    assert_eq!(rest.stdout, "Requeued 2 deliveries.\n");
    let [dead, pending] = [Status::Dead, Status::Pending];
    assert_eq!(all.each_ref().map(|id| status(&sandbox, id)), [pending, pending, dead, dead, pending]);
    assert_eq!(
        sandbox.go(&format!("requeue --group {ORDERS} --yes")).exits(0).stdout,
        "Nothing to requeue.\n"
    );
}

#[test]
fn a_group_of_what_is_tried_again_is_buried_and_nothing_else() {
    let sandbox = Sandbox::new();
    let [first, second] =
        ["e1", "e2"].map(|id| retries(&sandbox, id, &format!("order {} is unknown", &id[1..])));
    let other = retries(&sandbox, "e3", "no route to host");
    let group = groups(&sandbox, "--status pending")[0]["group"].as_str().unwrap().to_owned();
    let buried = sandbox.go(&format!("bury --group {group} --reason no --yes")).exits(0);
    assert_eq!(buried.stdout, "Buried 2 deliveries.\n");
    assert_eq!(
        [first, second, other].map(|id| status(&sandbox, &id)),
        [Status::Dead, Status::Dead, Status::Pending]
    );
}

#[test]
fn people_see_the_members_before_they_are_asked() {
    let sandbox = Sandbox::new();
    let [e1, _, _, e4, _] = a_bad_day(&sandbox);
    let mut terminal = sandbox.at_terminal(&["requeue", "--group", ORDERS]);
    terminal.until("Requeue 3 deliveries? [y/N]");
    terminal.types("n\r");
    let ended = terminal.ends().exits(1);
    assert!(ended.stdout.contains(&e1) && !ended.stdout.contains(&e4), "{ended:?}");
    assert_eq!(status(&sandbox, &e1), Status::Dead);
}

#[test]
fn what_is_no_group_or_a_group_beside_ids_is_refused() {
    let sandbox = Sandbox::new();
    for group in ["17", "g2-0000000000000000", "g1-000000000000000G", "{\"$ne\":null}"] {
        let ended = sandbox.run(["list", "--group", group]).exits(2);
        assert!(ended.stderr.contains("is not a group that `errors` printed"), "{ended:?}");
    }
    let both = sandbox.go(&format!("requeue some-id --group {ORDERS}")).exits(2);
    assert!(both.stderr.contains("takes ids or conditions, and not both"), "{both:?}");
}

/// Another client may store anything as an error, and anything as a delivery.
#[test]
fn foreign_and_hostile_documents_are_grouped_shown_or_named() {
    let sandbox = Sandbox::new();
    let at = DateTime::from_millis(ago(60).as_millis());
    let dead = |id: &str, rest: Document| {
        let mut document = doc! { "_id": id, "eventId": id, "handler": "h", "status": "dead", "createdAt": at, "updatedAt": at };
        document.extend(rest);
        sandbox.insert_raw("relaybus_deliveries", document);
    };
    dead("a", doc! { "lastError": { "message": "\u{1b}[31mline 7\u{1b}[0m \u{202e}x", "code": 7 } });
    dead("b", doc! { "lastError": Bson::Null });
    dead("c", doc! {});
    dead("d", doc! { "lastError": "x", "attempts": "many" });
    let ended = sandbox.go("errors").exits(1);
    assert!(!ended.stdout.contains('\u{1b}') && ended.stdout.contains("line <n> \\u{202e}x"), "{ended:?}");
    assert!(
        ended.stderr.contains("delivery d") && ended.stderr.contains("a delivery could not be understood")
    );
    let found: Value = serde_json::from_str(&sandbox.go("errors -o json").exits(1).stdout).unwrap();
    assert_eq!((&found[0]["count"], &found[0]["error"]), (&json!(2), &json!("")));
    assert_eq!(found[0]["sampleId"], "c");
}

// ---- scale -------------------------------------------------------------------------------------------------------

/// More kinds than are told apart: the rest is counted and told, and memory stays bounded (tests/cli/large.rs).
#[test]
fn heavy_groups_beyond_the_limit_are_told() {
    let sandbox = Sandbox::new();
    let at = DateTime::from_millis(ago(60).as_millis());
    let word =
        |n: i32| -> String { n.to_string().bytes().map(|digit| char::from(digit - b'0' + b'k')).collect() };
    sandbox.with_database(async |database| {
        let deliveries = database.collection::<Document>("relaybus_deliveries");
        let batch = (0..12_000).map(|n| {
            doc! {
                "_id": format!("d{n:05}"), "eventId": format!("e{n}"), "eventType": "t", "handler": "h", "status": "dead",
                "createdAt": at, "updatedAt": at, "lastError": format!("kind {}", word(n)),
            }
        });
        deliveries.insert_many(batch).ordered(false).await.unwrap();
    });
    let ended = sandbox.go("errors --all -o ids").exits(0);
    assert_eq!(ended.stdout.lines().count(), 10_000);
    assert!(ended.stderr.contains("2000 deliveries belong to other groups"), "{}", ended.stderr);
    let last = relayctl::model::ErrorGroupId::of("h", &format!("kind {}", word(11_999)));
    assert_eq!(sandbox.go(&format!("list --group {last} -o ids")).quiet_stdout(), "d11999\n");
}
