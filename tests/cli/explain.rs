//! `explain`: each state made for real, and each printed command given to a shell.

use std::process::{Command, Stdio};
use std::time::Duration;

use mongodb::bson::{DateTime, Document, doc};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relayctl::model::{DeliveryId, Failure, FailureKind, Lane, NewEvent, Status};
use relayctl::store::Outcome;
use serde_json::{Value, json};

use crate::harness::{Ended, Sandbox, ago, event, relayctl, wait_until};

fn explained(sandbox: &Sandbox, event: &str) -> Value {
    sandbox.run(["explain", &sandbox.delivery_of(event), "-o", "json"]).exits(0).json()
}

fn told(sandbox: &Sandbox, event: &str) -> String {
    sandbox.run(["explain", &sandbox.delivery_of(event)]).quiet_stdout()
}

fn codes(explained: &Value) -> Vec<&str> {
    let findings = explained["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["code"].as_str().unwrap()).collect()
}

/// Gives the only command that was printed for people to a shell.
fn do_as_told(sandbox: &Sandbox, event: &str) -> Ended {
    let text = told(sandbox, event);
    let commands: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("    relayctl ")).collect();
    let [command] = commands.as_slice() else { panic!("one command was expected: {text}") };
    let json = explained(sandbox, event);
    assert_eq!(json["commands"][0]["command"], format!("relayctl {command}"));
    sandbox.sh(&format!("relayctl {command}")).exits(0)
}

fn status(sandbox: &Sandbox, event: &str) -> Status {
    let id = sandbox.delivery_of(event);
    sandbox.deliveries().into_iter().find(|delivery| delivery.id.as_str() == id).unwrap().status
}

fn in_an_hour() -> relayctl::model::Timestamp {
    ago(0).saturating_add(Duration::from_secs(3_600))
}

fn backs_off(sandbox: &Sandbox) {
    let failure = Failure::new(FailureKind::Failed, "warehouse is closed\nsee the log");
    sandbox.settle("projector", &Outcome::Reschedule { available_at: in_an_hour(), failure }, ago(85));
}

fn three_of_a_key(sandbox: &Sandbox) {
    sandbox.append(&["first", "second", "third"].map(|id| event(id).key("k 1")), ago(205));
}

#[test]
fn a_blocked_delivery_is_told_whole_and_the_command_frees_it() {
    let sandbox = Sandbox::new();
    three_of_a_key(&sandbox);
    backs_off(&sandbox);
    let [first, second] = ["first", "second"].map(|event| sandbox.delivery_of(event));
    let text = told(&sandbox, "second").replace(&first, "FIRST").replace(&second, "SECOND");
    insta::assert_snapshot!(text, @r"
    Delivery SECOND
      order.placed.v1 for projector, key k 1, sequence 2

    It became due 3m ago.
    It is blocked: an earlier one of its handler and key has to finish first.
      by  FIRST  pending, due in 59m, attempts 1, created 3m ago
          It waits for its next attempt, in 59m: attempt 1, 1m ago, failed: warehouse is closed
    1 of its handler and key is before it, and 1 waits behind it.

    What would help
      To give up the one that blocks it:
        relayctl bury FIRST
    ");
    do_as_told(&sandbox, "second");
    assert_eq!(status(&sandbox, "first"), Status::Dead);
    let free = explained(&sandbox, "second");
    assert_eq!(codes(&free), ["due", "next-in-line", "worker-seen", "waiting"]);
    assert_eq!(sandbox.claim("projector", Duration::from_secs(60), ago(0))[0].event_id.as_str(), "second");
}

#[test]
fn the_json_of_a_blocked_delivery() {
    let sandbox = Sandbox::new();
    three_of_a_key(&sandbox);
    backs_off(&sandbox);
    let [first, second] = ["first", "second"].map(|event| sandbox.delivery_of(event));
    let document = explained(&sandbox, "second");
    let deliveries = sandbox.deliveries();
    let delivery = |id: &str| deliveries.iter().find(|delivery| delivery.id.as_str() == id).unwrap();
    let (head, blocked) = (delivery(&first), delivery(&second));
    let expected = json!({
        "handler": "projector",
        "key": "k 1",
        "delivery": blocked,
        "blockers": [head],
        "findings": [
            { "about": second, "code": "due", "since": blocked.due_at },
            { "about": second, "code": "blocked-by-earlier", "by": first },
            { "about": first, "code": "backing-off", "until": head.due_at, "failure": head.errors[0] },
            { "about": second, "code": "waiting", "ahead": 1, "behind": 1 },
        ],
        "commands": [
            { "purpose": "give up the one that blocks it", "command": format!("relayctl bury {first}") },
        ],
    });
    assert_eq!(document, expected);
    let fields: Vec<&str> = document.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["handler", "key", "delivery", "blockers", "findings", "commands"]);
    let ids = sandbox.run(["explain", &second, "-o", "ids"]).quiet_stdout();
    assert_eq!(ids, format!("{second}\n{first}\n"));
    let csv = sandbox.run(["explain", &second, "-o", "csv"]).quiet_stdout();
    let records: Vec<_> = csv.lines().filter(|line| line.contains(",order.placed.v1,")).collect();
    assert!(records[0].starts_with(&second) && records[1].starts_with(&first), "{csv}");
}

#[test]
fn a_key_is_explained_by_its_head() {
    let sandbox = Sandbox::new();
    three_of_a_key(&sandbox);
    backs_off(&sandbox);
    let of_key = |handler: &str, key: &str, format: &str| {
        sandbox.run(["explain", "--handler", handler, "--key", key, "-o", format]).exits(0)
    };
    let head = of_key("projector", "k 1", "json").json();
    assert_eq!(
        (codes(&head), &head["delivery"]["eventId"]),
        (vec!["backing-off", "waiting"], &json!("first"))
    );
    assert_eq!(head["findings"][1]["behind"], 2);

    let nothing = of_key("projector", "other", "table");
    assert_eq!(nothing.stdout, "Nothing of key other is unfinished for handler projector.\n");
    assert_eq!(nothing.stderr, "");
    let unknown = of_key("projektor", "k 1", "json");
    let expected = json!({
        "handler": "projektor", "key": "k 1", "delivery": null, "blockers": [], "findings": [], "commands": [],
    });
    assert_eq!(unknown.json(), expected);
    assert!(unknown.stderr.starts_with("warning: there is no delivery of a handler `projektor` in "));
    assert_eq!(of_key("projector", "other", "ids").stdout, "");
}

#[test]
fn a_dead_delivery_is_requeued_by_the_command() {
    let sandbox = Sandbox::new();
    three_of_a_key(&sandbox);
    let failure = Failure::new(FailureKind::Rejected, "order unknown");
    sandbox.settle("projector", &Outcome::Bury { failure }, ago(30));
    let dead = explained(&sandbox, "first");
    assert_eq!((codes(&dead), &dead["findings"][1]["behind"]), (vec!["dead", "waiting"], &json!(2)));
    assert!(told(&sandbox, "first").contains("To run it again, before the 2 of its key that wait"));
    do_as_told(&sandbox, "first");
    assert_eq!(status(&sandbox, "first"), Status::Pending);
    assert_eq!(codes(&explained(&sandbox, "second"))[1], "blocked-by-earlier");
}

#[test]
fn a_delayed_delivery_is_brought_forward_by_the_command() {
    let sandbox = Sandbox::new();
    sandbox.append(&[NewEvent { available_at: Some(in_an_hour()), ..event("later") }], ago(60));
    assert_eq!(codes(&explained(&sandbox, "later")), ["delayed"]);
    do_as_told(&sandbox, "later");
    assert_eq!(codes(&explained(&sandbox, "later"))[0], "due");
    sandbox.go("run --once projector -- true").exits(0);
    let done = explained(&sandbox, "later");
    assert_eq!((codes(&done), &done["commands"]), (vec!["completed"], &json!([])));
}

/// A worker that is killed leaves its lease behind; the command returns the delivery without waiting for a claim.
#[test]
fn the_delivery_of_a_killed_worker_runs_then_expires_and_is_recovered_by_the_command() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("lost")], ago(60));
    let mut command = sandbox.command();
    let lease = ["run", "--lease", "3s", "projector", "--", "sh", "-c", "exec sleep 100"];
    let mut worker = command.args(lease).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the worker has it", || status(&sandbox, "lost") == Status::Processing);
    let running = explained(&sandbox, "lost");
    assert_eq!((codes(&running), &running["commands"]), (vec!["running"], &json!([])));
    let owner = running["findings"][0]["worker"].as_str().unwrap();
    assert!(owner.ends_with(&format!(":{}", worker.id())), "{running}");
    assert_eq!(running["findings"][0]["until"], running["delivery"]["leaseExpiresAt"]);
    kill(Pid::from_raw(worker.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
    worker.wait().unwrap();
    wait_until("the lease runs out", || codes(&explained(&sandbox, "lost"))[0] == "lease-expired");
    assert!(told(&sandbox, "lost").contains(&format!("worker {owner} died, or was cut off.")));
    do_as_told(&sandbox, "lost");
    assert_eq!(status(&sandbox, "lost"), Status::Pending);
}

#[test]
fn what_runs_blocks_a_requeued_one_and_what_waits_for_that() {
    let sandbox = Sandbox::new();
    three_of_a_key(&sandbox);
    sandbox.run(["bury", &sandbox.delivery_of("first")]).exits(0);
    sandbox.append(&[event("fourth").key("k 1")], ago(50));
    assert_eq!(sandbox.claim("projector", Duration::from_secs(600), ago(30)).len(), 1);
    sandbox.run(["requeue", &sandbox.delivery_of("first")]).exits(0);
    let third = explained(&sandbox, "third");
    let expected = ["due", "blocked-by-earlier", "due", "blocked-by-running", "running", "waiting"];
    assert_eq!(codes(&third), expected);
    let blockers = third["blockers"].as_array().unwrap();
    assert_eq!(
        blockers.iter().map(|one| one["eventId"].as_str().unwrap()).collect::<Vec<_>>(),
        ["first", "second"]
    );
    assert_eq!(
        third["findings"][5],
        json!({
            "about": sandbox.delivery_of("third"), "code": "waiting", "ahead": 2, "behind": 1,
        })
    );
    assert!(told(&sandbox, "third").contains("Worker worker-host:4711 holds it under a live lease"));
}

#[test]
fn a_claim_parks_what_waits_behind_a_long_blocked_key() {
    let sandbox = Sandbox::new();
    let first = NewEvent { available_at: Some(in_an_hour()), ..event("first").key("k") };
    let rest: Vec<_> = (0..40).map(|n| event(&format!("e-{n:02}")).key("k")).collect();
    sandbox.append(&[vec![first], rest].concat(), ago(60));
    assert_eq!(sandbox.claim("projector", Duration::from_secs(60), ago(30)).len(), 0);
    let parked = sandbox.deliveries().into_iter().find(|delivery| delivery.lane == Lane::Parked);
    let parked = parked.expect("a claim parks them").event_id;
    assert_eq!(
        codes(&explained(&sandbox, parked.as_str())),
        ["due", "parked", "blocked-by-earlier", "delayed", "waiting"]
    );
    assert!(told(&sandbox, parked.as_str()).contains("It is parked: "));
    do_as_told(&sandbox, parked.as_str());
    assert_eq!(sandbox.claim("projector", Duration::from_secs(60), ago(0))[0].event_id.as_str(), "e-00");
}

#[test]
fn a_paused_handler_is_resumed_by_the_command() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("waits")], ago(60));
    sandbox.run(["pause", "projector", "--until", "1h", "--reason", "the shop is closed"]).exits(0);
    let paused = explained(&sandbox, "waits");
    assert_eq!(codes(&paused), ["due", "paused"]);
    assert_eq!(
        (&paused["findings"][1]["reason"], &paused["findings"][1]["about"]),
        (&json!("the shop is closed"), &Value::Null)
    );
    do_as_told(&sandbox, "waits");
    assert_eq!(codes(&explained(&sandbox, "waits")), ["due", "no-worker-seen"]);
}

#[test]
fn a_handler_that_nobody_runs_is_told_from_one_that_somebody_runs() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("waits")], ago(60));
    let alone = explained(&sandbox, "waits");
    assert_eq!(
        (codes(&alone), &alone["findings"][1]["examined"]),
        (vec!["due", "no-worker-seen"], &json!(2))
    );
    let text = told(&sandbox, "waits");
    assert!(text.contains("Nobody seems to run handler projector: it has no live lease, "), "{text}");
    assert!(text.contains("no outcome since 15m ago") && text.contains("relayctl run --help"), "{text}");

    sandbox.append(&[event("done").handler("projector")], ago(120));
    sandbox.settle("projector", &Outcome::Complete, ago(100));
    assert_eq!(codes(&explained(&sandbox, "waits")), ["due", "next-in-line", "worker-seen"]);
}

#[test]
fn a_breaker_that_is_open_somewhere_is_told() {
    let sandbox = Sandbox::new();
    let now = ago(0);
    let breaker = relayctl::model::TrippedBreaker {
        handler: "projector".into(),
        worker: "worker-host:4711".into(),
        opened_at: ago(20),
        probe_at: in_an_hour(),
        failures: 10,
        last_error: "exit status 1: no route to host\nmore".into(),
        expires_at: in_an_hour(),
    };
    sandbox.append(&[event("waits")], ago(60));
    sandbox.with_store(async |store| {
        relayctl::store::Store::report_breaker(store, &breaker, now).await.unwrap();
    });
    assert_eq!(codes(&explained(&sandbox, "waits")), ["due", "breaker-open"]);
    let text = told(&sandbox, "waits");
    assert!(
        text.contains(
            "after 10 failures in a row; it tries again in 59m.\n  exit status 1: no route to host\n"
        ),
        "{text}"
    );
}

#[test]
fn one_without_an_attempt_left_is_given_up_by_the_next_claim() {
    let sandbox = Sandbox::new();
    sandbox.append(&[NewEvent { max_attempts: Some(1), ..event("last") }], ago(600));
    sandbox.claim("projector", Duration::from_secs(60), ago(500));
    let last = explained(&sandbox, "last");
    assert_eq!(codes(&last), ["lease-expired", "attempts-exhausted", "no-worker-seen"]);
    assert!(told(&sandbox, "last").contains("Its attempt is used up: the next claim gives it up"));
    sandbox.go("run --once projector -- true").exits(3);
    let dead = explained(&sandbox, "last");
    assert_eq!(codes(&dead), ["dead", "attempts-exhausted"]);
    assert_eq!(dead["findings"][0]["failure"]["kind"], "crashed");
}

// ---- the printed command -----------------------------------------------------------------------------------------

/// A command that runs as it is printed, in an environment that says nothing about the store.
#[test]
fn a_command_names_the_store_where_the_user_did() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("dead one")], ago(60));
    sandbox.settle("projector", &crate::harness::buried("no"), ago(30));
    let id = sandbox.delivery_of("dead one");
    let server = crate::harness::server();
    let bare = || relayctl(sandbox.home.path());
    let mut asking = bare();
    asking.args(["explain", &id, "--store", &server, "--database", &sandbox.database, "-o", "json"]);
    let document = crate::harness::finish(asking).exits(0).json();
    let command = document["commands"][0]["command"].as_str().unwrap().to_owned();
    assert!(command.starts_with("relayctl --store ") && command.contains("--database"), "{command}");
    let script = command.replacen("relayctl", env!("CARGO_BIN_EXE_relayctl"), 1);
    let mut shell = Command::new("sh");
    shell.env_clear().env("HOME", sandbox.home.path()).args(["-c", &script]);
    crate::harness::finish(shell).exits(0);
    assert_eq!(status(&sandbox, "dead one"), Status::Pending);
}

#[test]
fn a_password_is_left_out_of_a_command_and_that_is_said() {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("dead")], ago(60));
    sandbox.settle("projector", &crate::harness::buried("no"), ago(30));
    // Without a mechanism to authenticate with nobody looks at its properties.
    let url = format!("{}&authMechanismProperties=SERVICE_NAME:hunter2", sandbox.url);
    let ended = sandbox.run(["explain", &sandbox.delivery_of("dead"), "--store", &url]).exits(0);
    assert!(ended.stdout.contains("    relayctl requeue ") && !ended.stdout.contains("--store"), "{ended:?}");
    assert!(ended.stderr.contains("the --store that you gave may hold a password"), "{ended:?}");
    assert!(!format!("{ended:?}").contains("hunter2"), "{ended:?}");
}

/// Ids and handlers are other people's text.
#[test]
fn hostile_names_are_quoted_and_not_obeyed() {
    let sandbox = Sandbox::new();
    for (n, id) in
        ["--yes", "a b; touch pwned", "it's $(touch pwned)", "a\u{1b}[2J`touch pwned`"].iter().enumerate()
    {
        let at = DateTime::from_millis(ago(60).as_millis());
        sandbox.insert_raw("relaybus_deliveries", doc! {
            "_id": *id, "eventId": format!("e{n}"), "eventType": "t\u{1b}[2J", "handler": format!("h {n}\u{1b}]0;x\u{7}"),
            "status": "dead", "createdAt": at, "updatedAt": at, "lastError": "\u{1b}[2J", "attempts": 1,
        });
        let text = sandbox.run(["explain", "--", id]).quiet_stdout();
        assert!(!text.contains('\u{1b}'), "{text}");
        let command = text.lines().find_map(|line| line.strip_prefix("    relayctl ")).unwrap();
        let script = format!("cd \"$HOME\"\nrelayctl {command}");
        if id.contains('\u{1b}') {
            let shell = format!("relayctl() {{ {} \"$@\"; }}\n{script}", env!("CARGO_BIN_EXE_relayctl"));
            let mut bash = Command::new("bash");
            bash.env_clear()
                .env("HOME", sandbox.home.path())
                .env("RELAYCTL_STORE", &sandbox.url)
                .args(["-c", &shell]);
            crate::harness::finish(bash).exits(0);
        } else {
            sandbox.sh(&script).exits(0);
        }
        assert_eq!(sandbox.get(&DeliveryId::from(*id)).status, Status::Pending, "{id}");
    }
    assert!(!sandbox.home.path().join("pwned").exists());
}

// ---- the command line --------------------------------------------------------------------------------------------

#[test]
fn an_id_or_a_handler_and_a_key_and_never_both() {
    let sandbox = Sandbox::new();
    for line in [
        "explain",
        "explain --handler h",
        "explain --key k",
        "explain x --handler h --key k",
        "explain x --key k",
    ] {
        let ended = sandbox.go(line).exits(2);
        assert!(ended.stderr.contains("error: "), "{line}: {ended:?}");
    }
    let missing = sandbox.go("explain nothing").exits(1);
    assert!(missing.stderr.starts_with("error: there is no delivery `nothing` in "), "{missing:?}");
    assert_eq!(missing.stdout, "");
    Sandbox::without_schema().go("explain nothing").exits(5);
    Sandbox::without_schema().go("explain --handler h --key k").exits(5);
}

// ---- scale -------------------------------------------------------------------------------------------------------

/// Behind one key wait 100,000, and all of them are counted.
#[test]
fn heavy_a_key_with_a_long_backlog_is_explained() {
    const WAITING: i64 = 100_000;
    let sandbox = Sandbox::new();
    let at = DateTime::from_millis(ago(3_600).as_millis());
    sandbox.with_database(async |database| {
        let deliveries = database.collection::<Document>("relaybus_deliveries");
        for start in (0..WAITING).step_by(20_000) {
            let batch = (start..start + 20_000).map(|n| {
                doc! {
                    "_id": format!("d{n:06}"), "eventId": format!("e{n:06}"), "eventType": "t", "handler": "h",
                    "key": "k", "sequence": n + 1, "status": "pending", "lane": "ready", "attempts": 0,
                    "availableAt": at, "dueAt": at, "createdAt": at, "updatedAt": at,
                }
            });
            deliveries.insert_many(batch).ordered(false).await.unwrap();
        }
    });
    let middle = sandbox.run(["explain", "d050000", "-o", "json"]).exits(0).json();
    assert_eq!(middle["findings"].as_array().unwrap().last().unwrap()["ahead"], 50_000);
    assert_eq!(middle["findings"].as_array().unwrap().last().unwrap()["behind"], 49_999);
    assert_eq!(middle["blockers"][0]["id"], "d000000");
    let head = sandbox.run(["explain", "--handler", "h", "--key", "k", "-o", "json"]).exits(0).json();
    assert_eq!((&head["delivery"]["id"], head["blockers"].as_array().unwrap().len()), (&json!("d000000"), 0));
}
