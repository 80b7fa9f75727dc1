//! `export` and `import`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use mongodb::bson::{DateTime, Decimal128, doc, oid::ObjectId};
use relayctl::model::{NewEvent, Status};
use relayctl::store::Outcome;
use serde_json::{Value, json};

use crate::harness::{Ended, Sandbox, ago, buried, event};
use crate::stock::HANDLER;

/// A delivery in each status; the one that is processing is so for a day.
fn assorted() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("done").key("k")], ago(7_200));
    sandbox.settle(HANDLER, &Outcome::Complete, ago(7_100));
    sandbox.append(&[event("dead").key("k")], ago(3_600));
    sandbox.settle(HANDLER, &buried("boom"), ago(3_500));
    sandbox.append(&[event("leased")], ago(600));
    sandbox.claim(HANDLER, std::time::Duration::from_secs(86_400), ago(590));
    sandbox.append(&[event("waiting").key("k").handler("mailer"), event("last").key("k")], ago(60));
    sandbox
}

fn lines(ended: &Ended) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn events_of(ended: &Ended) -> Vec<String> {
    lines(ended).iter().map(|line| line["event"]["id"].as_str().unwrap().to_owned()).collect()
}

fn set_up_lab(sandbox: &Sandbox) {
    sandbox.go("--prefix lab_ setup -q").exits(0);
}

fn report(ended: &Ended) -> [Value; 5] {
    let report = ended.json();
    ["matched", "changed", "skipped", "failed", "events"].map(|field| report[field].clone())
}

#[test]
fn an_export_is_json_lines_of_deliveries_with_their_events() {
    let sandbox = assorted();
    let all = sandbox.go("export").exits(0).without_noise();
    assert_eq!(events_of(&all), ["leased", "done", "dead", "waiting", "waiting", "last"]);
    for line in lines(&all) {
        let id = line["delivery"]["id"].as_str().unwrap();
        let shown = sandbox.run(["show", id, "-o", "json"]).json();
        assert_eq!(line["version"], 1);
        assert_eq!(line["event"], shown["event"]);
        for (field, value) in line["delivery"].as_object().unwrap() {
            assert_eq!(shown["delivery"].get(field).or(shown.get(field)), Some(value), "{field}");
        }
    }
    for format in ["table", "json", "csv", "ids"] {
        assert_eq!(sandbox.go(&format!("export -o {format}")).stdout, all.stdout, "{format}");
    }
    let filters = [("--status dead", "dead"), ("--handler mailer", "waiting"), ("--event last", "last")];
    for (filter, expected) in filters {
        assert_eq!(events_of(&sandbox.go(&format!("export {filter}")).exits(0)), [expected]);
    }
    assert_eq!(events_of(&sandbox.go("export --key k --status completed")), ["done"]);
    let none = sandbox.go("export --handler nobody").exits(0).prints("");
    assert_eq!(none.stderr, "no delivery matches\n");
}

#[test]
fn a_time_zone_changes_nothing() {
    let sandbox = assorted();
    let exported = |zone: &str| {
        let mut command = sandbox.command();
        command.env("TZ", zone).args(["export", "--until", "1m"]);
        crate::harness::finish(command).quiet_stdout()
    };
    assert_eq!(exported("UTC"), exported("Pacific/Chatham"));
}

#[test]
fn a_round_trip_into_other_collections_is_exact_and_can_be_repeated() {
    let sandbox = assorted();
    set_up_lab(&sandbox);
    let file = sandbox.home.path().join("all.jsonl");
    let told = sandbox.run(["export", "--file", file.to_str().unwrap()]).exits(0).without_noise();
    told.prints(&format!("Exported 6 deliveries to {}.\n", file.display()));
    let import = ["--prefix", "lab_", "import", file.to_str().unwrap()];
    let told = sandbox.run(import).exits(0).without_noise();
    told.prints("Imported 6 deliveries with 5 new events.\n");
    let told = sandbox.run(import).exits(0).without_noise();
    told.prints("Imported 0 deliveries; 6 there already.\n");
    let leaseless = |ended: Ended| -> Vec<Value> {
        lines(&ended).into_iter().filter(|line| line["event"]["id"] != "leased").collect()
    };
    assert_eq!(leaseless(sandbox.go("--prefix lab_ export")), leaseless(sandbox.go("export")));
    // What was processing is not processing there: it waits, with its attempt given back.
    let leased = &lines(&sandbox.go("--prefix lab_ export --event leased"))[0]["delivery"];
    assert_eq!((&leased["status"], &leased["attempts"]), (&json!("pending"), &json!(0)));
    assert_eq!((leased.get("leaseToken"), &leased["dueAt"]), (None, &leased["availableAt"]));
    assert_eq!(sandbox.status(&sandbox.delivery_of("leased").as_str().into()), Status::Processing);
    sandbox.go("--prefix lab_ publish t --key k --handler h").exits(0);
    let published = sandbox.go("--prefix lab_ list --handler h -o jsonl").json();
    assert_eq!(published["sequence"], 5, "behind what was imported");
}

/// 2^53 + 1: the first whole number that no double is.
const BEYOND_DOUBLES: i64 = 9_007_199_254_740_993;

#[test]
fn a_sequence_beyond_doubles_is_exact_in_every_listing() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("e").key("k")], ago(60));
    let set = doc! { "$set": { "sequence": BEYOND_DOUBLES } };
    sandbox.with_database(async |database| {
        for name in ["relaybus_events", "relaybus_deliveries"] {
            let collection = database.collection::<mongodb::bson::Document>(name);
            assert_eq!(collection.update_many(doc! {}, set.clone()).await.unwrap().modified_count, 1);
        }
    });
    let show = format!("show {}", sandbox.delivery_of("e"));
    for (command, formats) in [
        ("list", &["json", "jsonl", "csv"][..]),
        ("export", &["jsonl"]),
        (show.as_str(), &["table", "json", "jsonl", "csv"]),
    ] {
        for format in formats {
            let shown = sandbox.go(&format!("{command} -o {format}")).quiet_stdout();
            assert!(shown.contains("9007199254740993"), "{command} -o {format}: {shown}");
        }
    }
}

#[test]
fn numbers_decimals_and_dates_are_exact_through_every_command() {
    let sandbox = Sandbox::new();
    let at = DateTime::from_millis(1_764_528_000_120);
    let id = ObjectId::parse_str("5f0000000000000000000000").unwrap();
    let payload = doc! {
        "n": BEYOND_DOUBLES, "price": "1234567890.12345678901234567890".parse::<Decimal128>().unwrap(), "at": at,
        "id": id, "data": { "$oid": "5f0000000000000000000000" }, "a.b": { "$set": 1 },
    };
    sandbox.insert_raw(
        "relaybus_events",
        doc! { "_id": "e", "type": "t", "payload": payload, "headers": {}, "createdAt": at },
    );
    sandbox.insert_raw(
        "relaybus_deliveries",
        doc! {
            "_id": "d", "eventId": "e", "eventType": "t", "handler": "h", "status": "pending", "lane": "ready", "attempts": 0,
            "availableAt": at, "dueAt": at, "createdAt": at, "updatedAt": at, "tenant": "other client",
        },
    );
    let expected = concat!(
        r#"{"n":9007199254740993,"price":{"$numberDecimal":"1234567890.12345678901234567890"},"#,
        r#""at":{"$date":"2025-11-30T18:40:00.120Z"},"id":{"$oid":"5f0000000000000000000000"},"#,
        r#""data":{"$oid":"5f0000000000000000000000"},"a.b":{"$set":1}}"#
    );
    set_up_lab(&sandbox);
    sandbox.sh("relayctl export | relayctl --prefix lab_ import -").exits(0);
    let exported = sandbox.go("export").quiet_stdout();
    assert!(exported.contains(expected), "{exported}");
    let types = r#""types":{"/event/payload/at":"date","/event/payload/id":"objectId","/event/payload/price":"decimal"}}"#;
    assert!(exported.ends_with(&format!("{types}\n")), "{exported}");
    assert_eq!(sandbox.go("--prefix lab_ export").quiet_stdout(), exported);
    for prefix in ["relaybus_", "lab_"] {
        let shown = sandbox.run(["--prefix", prefix, "show", "d", "-o", "jsonl"]).quiet_stdout();
        assert!(shown.contains(expected), "{shown}");
        for format in ["json", "jsonl", "csv"] {
            let listed = sandbox.run(["--prefix", prefix, "list", "-o", format]).quiet_stdout();
            assert!(listed.contains("2025-11-30T18:40:00.120Z"), "{listed}");
        }
    }
    let stored = sandbox.with_database(async |database| {
        let events = database.collection::<mongodb::bson::Document>("lab_events");
        events.find_one(doc! {}).await.unwrap().unwrap()
    });
    let payload = stored.get_document("payload").unwrap();
    assert_eq!((payload.get_object_id("id").unwrap(), *payload.get_datetime("at").unwrap()), (id, at));
}

#[test]
fn a_file_is_complete_or_not_there_and_never_overwritten_by_accident() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("a")], ago(10));
    let kept = sandbox.file("kept.jsonl", "mine");
    let path = kept.to_str().unwrap();
    let refused = sandbox.run(["export", "--file", path]).exits(1).prints("");
    refused.complains("is there already").complains("--force");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "mine");
    let told = sandbox.run(["export", "--file", path, "--force", "-o", "json"]).exits(0).without_noise();
    let expected = json!({"command": "export", "dryRun": false, "exported": 1, "failed": 0});
    assert_eq!(told.json(), expected);
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), sandbox.go("export").stdout);
    sandbox.run(["export", "--file", "/nonexistent/x.jsonl"]).exits(1).complains("cannot create a file");
    sandbox.insert_raw(
        "relaybus_deliveries",
        doc! { "_id": "orphan", "eventId": "gone", "handler": "h", "status": "dead" },
    );
    let told = sandbox.run(["export", "--file", path, "--force"]).exits(3);
    told.complains("its event gone is not there")
        .complains("a delivery could not be exported, and is left out");
    assert_eq!(std::fs::read_to_string(&kept).unwrap().lines().count(), 1);
    sandbox.run(["export", "--status", "dead"]).exits(1).prints("");
    let names: Vec<_> = std::fs::read_dir(sandbox.home.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "nothing is left beside it: {names:?}");
}

#[test]
fn a_reader_that_goes_away_ends_an_export_quietly() {
    let sandbox = Sandbox::new();
    let padding = "x".repeat(2_000);
    for batch in 0..10 {
        let events: Vec<NewEvent> =
            (0..100).map(|n| event(&format!("{batch}-{n}")).key(format!("{padding:.400}{n}"))).collect();
        sandbox.append(&events, ago(10));
    }
    let mut command = sandbox.command();
    let mut child = command.arg("export").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!((child.wait().unwrap().code(), told.as_str()), (Some(0), ""));
    serde_json::from_str::<Value>(&first).unwrap();
}

#[test]
fn a_handler_can_be_changed_and_deliveries_start_from_the_beginning() {
    let sandbox = assorted();
    let exported = sandbox.go("export --handler projector").stdout;
    let import = |arguments: &[&str]| {
        let arguments = [&["import", "-", "-o", "json"], arguments].concat();
        sandbox.run_reading(&arguments, &exported).exits(0)
    };
    let numbers = |numbers: [u64; 5]| numbers.map(Value::from);
    let copied = import(&["--handler", "copy", "--reset"]);
    assert_eq!(report(&copied), numbers([5, 5, 0, 0, 0]));
    for again in
        [&["--handler", "copy", "--reset"][..], &["--handler", "copy"], &["--handler", "projector=copy"]]
    {
        assert_eq!(report(&import(again)), numbers([5, 0, 5, 0, 0]), "{again:?}");
    }
    let copies = lines(&sandbox.go("export --handler copy"));
    assert_eq!(copies.len(), 5);
    for line in &copies {
        let delivery = &line["delivery"];
        assert_eq!((&delivery["status"], &delivery["attempts"]), (&json!("pending"), &json!(0)));
        assert!(delivery.get("completedAt").is_none() && delivery.get("leaseOwner").is_none());
    }
    let died = copies.iter().find(|line| line["event"]["id"] == "dead").unwrap();
    assert_eq!(died["delivery"]["lastError"], "boom");
    // The keys go on in their order.
    let order: Vec<_> = copies.iter().filter_map(|line| line["delivery"]["sequence"].as_i64()).collect();
    assert_eq!(order, [1, 2, 3, 4]);
    let kept = import(&["--handler", "projector=kept", "--handler", "mailer=nobody", "--keep-attempts"]);
    assert_eq!(report(&kept), numbers([5, 5, 0, 0, 0]));
    let dead = &lines(&sandbox.go("export --handler kept --status dead"))[0]["delivery"];
    assert_eq!((&dead["attempts"], &dead["lastError"]), (&json!(1), &json!("boom")));
    assert_eq!(report(&import(&["--handler", "mailer=nobody"])), numbers([5, 0, 5, 0, 0]));
    for wrong in
        ["--handler a --handler b", "--handler a=b --handler a=c", "--handler =a", "--reset --keep-attempts"]
    {
        let arguments: Vec<&str> = ["import", "-"].into_iter().chain(wrong.split(' ')).collect();
        sandbox.run_reading(&arguments, &exported).exits(2);
    }
}

#[test]
fn a_dry_run_changes_nothing() {
    let sandbox = assorted();
    set_up_lab(&sandbox);
    let file = sandbox.file("all.jsonl", sandbox.go("export").stdout);
    let ran =
        sandbox.run(["--prefix", "lab_", "import", file.to_str().unwrap(), "-n"]).exits(0).without_noise();
    ran.prints("Would import 6 deliveries with 5 new events.\n");
    assert_eq!(sandbox.go("--prefix lab_ export").stdout, "");
    sandbox.configure("[profiles.live]\nread_only = true\n");
    let live = ["--profile", "live", "--prefix", "lab_", "import", file.to_str().unwrap()];
    sandbox.run(live).exits(2).complains("read-only");
    sandbox.run([&live[..], &["--dry-run"]].concat()).exits(0);
}

#[test]
fn lines_that_are_refused_are_named_and_leave_the_others_alone() {
    let sandbox = assorted();
    set_up_lab(&sandbox);
    let exported = sandbox.go("export --status pending").stdout;
    let good: Vec<&str> = exported.lines().collect();
    let other = good[0].replace(r#""order":"waiting""#, r#""order":"other""#);
    let too_long = format!("\"{}\"", "x".repeat(33 << 20));
    let text =
        [good[0], "{", good[1], r#"{"type":"t","payload":1}"#, &other, &too_long, "", good[2]].join("\n");
    let ended = sandbox.run_reading(&["--prefix", "lab_", "import", "-", "-o", "json"], &text).exits(3);
    assert_eq!(report(&ended), [7, 3, 0, 4, 2].map(Value::from));
    let told: Vec<&str> = ended.stderr.lines().collect();
    let expected = [
        "warning: line 2: line: is not valid JSON: EOF while parsing an object at column 1",
        "warning: line 4: version: is missing: this is no line that an export wrote",
        "warning: line 5: event waiting is there already with another payload",
        "warning: line 6: event: is longer than 32 MiB",
    ];
    assert_eq!(told, expected);
    assert_eq!(lines(&sandbox.go("--prefix lab_ export")).len(), 3);
    let none = sandbox.run_reading(&["--prefix", "lab_", "import", "-"], "{\n{\n").exits(1);
    none.prints("Imported 0 deliveries; 2 refused.\n");
    let many = sandbox.run_reading(&["--prefix", "lab_", "import", "-", "-q"], "{\n".repeat(1_000)).exits(1);
    assert_eq!(many.stderr.lines().count(), 21);
    many.complains("980 more lines were refused");
    sandbox.run_reading(&["--prefix", "lab_", "import", "-"], "").exits(0).prints("Imported 0 deliveries.\n");
    sandbox.run(["import", "/nonexistent"]).exits(1).complains("cannot read /nonexistent");
    sandbox
        .run_reading(&["--prefix", "none_", "import", "-"], &exported)
        .exits(5)
        .complains("relayctl setup");
}

#[test]
fn histories_of_a_key_that_grew_apart_are_not_mixed() {
    let sandbox = assorted();
    set_up_lab(&sandbox);
    let exported = sandbox.go("export --key k").stdout;
    sandbox.go("--prefix lab_ publish t --key k --handler h --id own").exits(0);
    let ended = sandbox.run_reading(&["--prefix", "lab_", "import", "-"], &exported).exits(3);
    ended
        .prints("Imported 4 deliveries with 3 new events; 1 refused.\n")
        .complains("place 1 of key k is taken by event own");
    assert_eq!(events_of(&sandbox.go("--prefix lab_ export")), ["own", "dead", "waiting", "waiting", "last"]);
}

#[test]
fn a_signal_stops_an_import_between_two_batches() {
    let sandbox = Sandbox::new();
    set_up_lab(&sandbox);
    let events: Vec<NewEvent> = (0..50).map(|n| event(&format!("e{n:02}"))).collect();
    sandbox.append(&events, ago(10));
    let exported = sandbox.go("export").stdout;
    let mut running = sandbox.start(&["--prefix", "lab_", "import", "-", "--batch-size", "20", "-o", "json"]);
    running.types(&exported);
    let imported = || lines(&sandbox.go("--prefix lab_ export")).len();
    crate::harness::wait_until("two batches are in", || imported() == 40);
    running.interrupt();
    let ended = running.ends().exits(130);
    assert_eq!(
        (report(&ended), &ended.json()["interrupted"]),
        ([40, 40, 0, 0, 40].map(Value::from), &json!(true))
    );
    ended.complains("run it again to go on");
    let again = sandbox.run_reading(&["--prefix", "lab_", "import", "-"], &exported).exits(0);
    again.prints("Imported 10 deliveries with 10 new events; 40 there already.\n");
}

#[test]
fn a_worker_runs_what_is_imported_in_the_order_of_each_key() {
    let sandbox = Sandbox::new();
    set_up_lab(&sandbox);
    let events: Vec<NewEvent> =
        (0..60).map(|n| event(&format!("e{n:02}")).key(format!("k{}", n % 3))).collect();
    for events in events.chunks(20) {
        sandbox.append(events, ago(10));
    }
    let exported = sandbox.go("export").stdout;
    let log = sandbox.home.path().join("ran");
    let shell = format!(
        "sed 's/.*\"key\":\"\\([^\"]*\\)\",\"sequence\":\\([0-9]*\\).*/\\1 \\2/' >> {}",
        log.display()
    );
    let worker = sandbox.start(&["--prefix", "lab_", "run", HANDLER, "--", "sh", "-c", &shell]);
    let import = ["--prefix", "lab_", "import", "-", "--batch-size", "3"];
    let (one, two) = std::thread::scope(|scope| {
        let other = scope.spawn(|| sandbox.run_reading(&import, &exported));
        (sandbox.run_reading(&import, &exported), other.join().unwrap())
    });
    one.exits(0);
    two.exits(0);
    let ran = || std::fs::read_to_string(&log).unwrap_or_default();
    crate::harness::wait_until("all of them ran", || ran().lines().count() >= 60);
    worker.send(nix::sys::signal::Signal::SIGTERM);
    worker.ends().exits(0);
    for key in ["k0", "k1", "k2"] {
        let text = ran();
        let sequences = text.lines().filter_map(|line| line.strip_prefix(key)?.trim().parse::<i64>().ok());
        assert_eq!(sequences.collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>(), "{key}: {text}");
    }
}
