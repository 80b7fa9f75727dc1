//! `requeue` and `bury`.

use std::time::Duration;

use relayctl::model::{DeliveryId, FailureKind, Status};
use relayctl::store::{Fenced, Store as _};
use serde_json::{Value, json};

use crate::harness::{Sandbox, wait_until};
use crate::stock::{HANDLER, HOUR, SECOND, before, order};

/// The numbers of a report.
fn numbers(report: &Value) -> [u64; 4] {
    ["matched", "changed", "skipped", "failed"].map(|field| report[field].as_u64().expect("a number"))
}

// ---- by id -------------------------------------------------------------------------------------------------------

#[test]
fn a_dead_delivery_is_brought_back_by_id() {
    let sandbox = Sandbox::new();
    let [id] = sandbox.dead(1).try_into().unwrap();
    sandbox.run(["requeue", id.as_str()]).exits(0).prints("Requeued 1 delivery.\n").without_noise();
    let delivery = sandbox.get(&id);
    assert_eq!((delivery.status, delivery.attempts, delivery.requeues), (Status::Pending, 0, 1));
    assert_eq!(delivery.errors[0].message, "connection refused");
}

#[test]
fn an_id_that_does_not_exist_is_a_failure_and_partly_one_where_others_changed() {
    let sandbox = Sandbox::new();
    let [id] = sandbox.dead(1).try_into().unwrap();
    let missing = sandbox.run(["requeue", "no-such-id"]).exits(1);
    missing.complains("there is no delivery with the id no-such-id");
    let ran = sandbox.run(["requeue", "no-such-id", id.as_str(), "-o", "json"]).exits(3);
    let report = ran.json();
    assert_eq!(numbers(&report), [1, 1, 0, 1]);
    assert_eq!(
        report["items"],
        json!([{"id": "no-such-id", "outcome": "missing"}, {"id": id.as_str(), "outcome": "changed"}])
    );
    assert_eq!(sandbox.status(&id), Status::Pending);
}

#[test]
fn a_delivery_to_which_it_does_not_apply_is_skipped_and_no_failure() {
    let sandbox = Sandbox::new();
    let [done] = sandbox.completed(1, HOUR).try_into().unwrap();
    let ran = sandbox.run(["requeue", done.as_str(), "--json"]).exits(2);
    ran.complains("--json");
    let ran = sandbox.run(["requeue", done.as_str(), "-o", "json"]).exits(0);
    let skipped = json!([{"id": done.as_str(), "outcome": "skipped", "status": "completed"}]);
    assert_eq!((numbers(&ran.json()), &ran.json()["items"]), ([1, 0, 1, 0], &skipped));
    let ran = sandbox.run(["bury", done.as_str()]).exits(0);
    ran.complains("is completed, and bury does not apply to it");
    assert_eq!(sandbox.status(&done), Status::Completed);
}

#[test]
fn of_many_ids_that_do_not_exist_the_first_are_named() {
    let sandbox = Sandbox::new();
    let ids: String = (1..=30).map(|n| format!("missing-{n}\n")).collect();
    let ran = sandbox.run_reading(&["requeue", "-"], &ids).exits(1).complains("the id missing-20");
    assert!(!ran.stderr.contains("missing-21"), "{ran:?}");
    ran.complains("10 more were skipped or do not exist");
}

#[test]
fn what_looks_like_a_query_is_an_id_or_a_value() {
    let sandbox = Sandbox::new();
    sandbox.dead(3);
    sandbox.pending(2);
    let before = sandbox.deliveries();
    for id in [r#"{"$gt":""}"#, r#"{"$ne": null}"#, "$where", ".*", "*", "{'$regex': '.'}"] {
        sandbox.run(["requeue", id]).exits(1).complains("there is no delivery with the id");
        sandbox.run(["bury", id]).exits(1);
        sandbox.run(["requeue", "--yes", "--handler", id]).exits(0).prints("Nothing to requeue.\n");
        sandbox.run(["requeue", "--yes", "--key", id]).exits(0).prints("Nothing to requeue.\n");
        sandbox.run(["bury", "--yes", "--event", id]).exits(0).prints("Nothing to bury.\n");
    }
    let pattern = sandbox.run(["requeue", "--yes", "--type", ".*"]);
    pattern.exits(0).prints("Nothing to requeue.\n");
    let error = sandbox.run(["requeue", "--yes", "--error", "conn.*"]);
    error.exits(0).prints("Nothing to requeue.\n");
    assert_eq!(sandbox.deliveries(), before);
}

#[test]
fn ids_come_from_a_listing_through_a_pipe() {
    let sandbox = Sandbox::new();
    sandbox.dead(3);
    sandbox.pending(1);
    let ran = sandbox.sh("relayctl list --status dead -o ids | relayctl requeue -");
    ran.exits(0).prints("Requeued 3 deliveries.\n").without_noise();
    assert_eq!(sandbox.census(), [(Status::Pending, 4)].into());
    let ran = sandbox.run_reading(&["requeue", "-"], format!("a\n{}\n", "x".repeat(513)));
    ran.exits(2).complains("line 2 of standard input is no id");
    sandbox.run_reading(&["requeue", "-"], "").exits(0).prints("Nothing to requeue.\n");
}

// ---- by filter ---------------------------------------------------------------------------------------------------

#[test]
fn a_filter_changes_all_that_it_selects_and_reports() {
    let sandbox = Sandbox::new();
    sandbox.dead(25);
    sandbox.pending(2);
    sandbox.completed(2, HOUR);
    let ran = sandbox.run(["requeue", "--handler", HANDLER, "--yes", "-o", "json"]);
    let ran = ran.exits(0).without_noise();
    assert_eq!(
        ran.json(),
        json!({
            "command": "requeue", "dryRun": false, "matched": 25, "changed": 25, "skipped": 0, "failed": 0,
            "interrupted": false,
        })
    );
    assert_eq!(sandbox.census(), [(Status::Pending, 27), (Status::Completed, 2)].into());
}

#[test]
fn a_dry_run_changes_nothing() {
    let sandbox = Sandbox::new();
    let ids = sandbox.dead(12);
    sandbox.pending(3);
    let before = sandbox.deliveries();
    let ran = sandbox.run(["requeue", "--status", "dead", "-n"]).exits(0);
    ran.prints("Would requeue 12 deliveries.\n").complains(ids[0].as_str());
    let ran = sandbox.run(["requeue", "--status", "dead", "-n", "--limit", "5"]).exits(0);
    ran.prints("Would requeue 5 of 12 deliveries.\n");
    let ran = sandbox.run(["bury", "--handler", HANDLER, "-n", "-o", "json"]).exits(0).without_noise();
    assert_eq!((numbers(&ran.json()), &ran.json()["dryRun"]), ([3, 0, 0, 0], &json!(true)));
    sandbox.run(["requeue", ids[0].as_str(), "-n"]).exits(0).prints("Would requeue 1 delivery.\n");
    sandbox.run(["requeue", "no-such-id", "-n"]).exits(1);
    assert_eq!(sandbox.deliveries(), before);
}

#[test]
fn without_a_selection_or_with_two_nothing_happens() {
    let sandbox = Sandbox::new();
    let [id] = sandbox.dead(1).try_into().unwrap();
    for arguments in [
        &["requeue", "--yes"][..],
        &["requeue", "--yes", "--limit", "5"],
        &["requeue", "--yes", id.as_str(), "--handler", HANDLER],
        &["requeue", "--yes", id.as_str(), "--limit", "1"],
        &["requeue", "--yes", "--status", "pending"],
        &["requeue", "--yes", "--status", "dead", "--status", "completed"],
        &["requeue", "--yes", "--lane", "parked"],
        &["requeue", "--yes", "--status", "dead", "--rate", "50"],
        &["requeue", "--yes", "--status", "dead", "--limit", "0"],
        &["requeue", "--yes", "--status", "dead", "--at", "2026-03-01T09:30:00"],
        &["requeue", "--yes", "--status", "dead", "--at", "15m"],
        &["requeue", "--yes", "--status", "dead", "--delay", "9999999999d"],
        &["bury", "--yes"],
        &["bury", "--yes", "--status", "dead"],
    ] {
        let ran = sandbox.run(arguments).exits(2).prints("");
        assert!(ran.stderr.starts_with("error: "), "{ran:?}");
    }
    assert_eq!(sandbox.status(&id), Status::Dead);
}

#[test]
fn where_nobody_can_be_asked_it_is_refused_at_once() {
    let sandbox = Sandbox::new();
    sandbox.dead(3);
    let before = sandbox.deliveries();
    let silent = sandbox.start(&["requeue", "--status", "dead"]).ends();
    silent.exits(2).prints("").complains("--yes");
    sandbox.sh("yes | relayctl requeue --status dead").exits(2).prints("").complains("--yes");
    sandbox.sh("relayctl requeue --status dead <&-").exits(2).complains("--yes");
    sandbox.sh("relayctl requeue --status dead >&-").exits(2).complains("--yes");
    let program = sandbox.run(["requeue", "--status", "dead", "-o", "json"]);
    program.exits(2).prints("").complains("--yes");
    // Also where there is nothing to change now: the next time there will be.
    sandbox.run(["requeue", "--handler", "nobody"]).exits(2).complains("--yes");
    assert_eq!(sandbox.deliveries(), before);
}

#[test]
fn a_limit_takes_the_oldest() {
    let sandbox = Sandbox::new();
    let old = sandbox.dead_since(2, HOUR);
    let new = sandbox.dead(2);
    let ran = sandbox.run(["requeue", "--status", "dead", "--limit", "2", "--yes"]);
    ran.exits(0).prints("Requeued 2 of 4 deliveries; 2 left as they are.\n");
    assert_eq!(sandbox.status(&old[0]), Status::Pending);
    assert_eq!(sandbox.status(&old[1]), Status::Pending);
    assert_eq!(sandbox.status(&new[0]), Status::Dead);
}

#[test]
fn a_requeue_can_be_for_later() {
    let sandbox = Sandbox::new();
    let [one, two] = sandbox.dead(2).try_into().unwrap();
    let before = before(Duration::ZERO);
    sandbox.run(["requeue", one.as_str(), "--delay", "2h"]).exits(0);
    let due = sandbox.get(&one).available_at;
    assert!(due.since(before) >= 2 * HOUR && due.since(before) < 2 * HOUR + 60 * SECOND);
    sandbox.run(["requeue", two.as_str(), "--at", "2031-03-01T09:30:00+01:00"]).exits(0);
    assert_eq!(sandbox.get(&two).available_at.to_string(), "2031-03-01T08:30:00.000Z");
}

#[test]
fn quiet_says_nothing_when_all_is_well() {
    let sandbox = Sandbox::new();
    sandbox.dead(2);
    sandbox.run(["requeue", "--status", "dead", "--yes", "-q"]).exits(0).prints("").without_noise();
    assert_eq!(sandbox.census(), [(Status::Pending, 2)].into());
}

#[test]
fn an_interrupt_ends_it_between_two_batches_with_a_report() {
    let sandbox = Sandbox::new();
    sandbox.dead(50);
    let arguments = ["requeue", "--status", "dead", "--rate", "10/s", "--yes", "-o", "json"];
    let running = sandbox.start(&arguments);
    wait_until("it happens", || sandbox.census().contains_key(&Status::Pending));
    running.interrupt();
    let ran = running.ends().exits(130).complains("interrupted");
    let [matched, changed, skipped, failed] = numbers(&ran.json());
    assert_eq!((matched, skipped, failed, &ran.json()["interrupted"]), (50, 0, 0, &json!(true)));
    assert!((1..50).contains(&changed), "{changed}");
    assert_eq!(sandbox.census()[&Status::Pending] as u64, changed);
}

#[test]
fn what_dies_while_a_slow_requeue_goes_on_stays_dead() {
    let sandbox = Sandbox::new();
    sandbox.dead(15);
    let running = sandbox.start(&["requeue", "--status", "dead", "--rate", "10/s", "--yes", "-o", "json"]);
    wait_until("it has begun", || sandbox.census().contains_key(&Status::Pending));
    let [later] = sandbox.deliver(&[order()], before(Duration::ZERO)).try_into().unwrap();
    sandbox.bury(&later, Duration::ZERO);
    assert_eq!(numbers(&running.ends().exits(0).json()), [15, 15, 0, 0]);
    assert_eq!(sandbox.status(&later), Status::Dead);
    assert_eq!(sandbox.census()[&Status::Pending], 15);
}

#[test]
fn heavy_two_operators_bring_each_of_ten_thousand_back_once() {
    let sandbox = Sandbox::new();
    sandbox.dead(10_000);
    let arguments = ["requeue", "--handler", HANDLER, "--yes", "-o", "json"];
    let (one, two) = (sandbox.start(&arguments), sandbox.start(&arguments));
    let reports = [one, two].map(|running| numbers(&running.ends().exits(0).json()));
    assert_eq!(reports.iter().map(|[_, changed, ..]| changed).sum::<u64>(), 10_000, "{reports:?}");
    for [matched, changed, skipped, failed] in reports {
        assert_eq!((matched, failed), (changed + skipped, 0), "{reports:?}");
    }
    assert!(sandbox.deliveries().iter().all(|delivery| delivery.requeues == 1));
}

// ---- bury --------------------------------------------------------------------------------------------------------

#[test]
fn bury_gives_up_what_waits_and_what_runs_and_says_why() {
    let sandbox = Sandbox::new();
    let running = sandbox.processing(1, SECOND);
    let waiting = sandbox.pending(1);
    let ran = sandbox.run(["bury", "--handler", HANDLER, "--yes", "--reason", "order was cancelled"]);
    ran.exits(0).prints("Buried 2 deliveries.\n");
    for id in [&running[0].lease.delivery_id, &waiting[0]] {
        let delivery = sandbox.get(id);
        assert_eq!(delivery.status, Status::Dead);
        let last = delivery.errors.last().unwrap();
        assert_eq!((last.message.as_str(), &last.kind), ("order was cancelled", &FailureKind::Buried));
    }
    assert_eq!(sandbox.report(&running, Duration::ZERO), [Fenced::LeaseLost]);
}

#[test]
fn a_bury_without_a_reason_names_who_did_it() {
    let sandbox = Sandbox::new();
    let [id] = sandbox.pending(1).try_into().unwrap();
    sandbox.run(["bury", id.as_str()]).exits(0).prints("Buried 1 delivery.\n");
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let reason = sandbox.get(&id).last_error.unwrap();
    assert!(reason.starts_with("buried by ") && reason.ends_with(&format!("@{host}")), "{reason}");
}

// ---- at a terminal -----------------------------------------------------------------------------------------------

#[test]
fn a_terminal_is_asked_and_the_answer_is_no_unless_said_otherwise() {
    let sandbox = Sandbox::new();
    let ids = sandbox.dead(7);
    let arguments = ["requeue", "--handler", HANDLER];
    for (answer, code, dead) in [("\r", 1, 7), ("n\r", 1, 7), ("y\r", 0, 0)] {
        let mut terminal = sandbox.at_terminal(&arguments);
        terminal.until("Requeue 7 deliveries? [y/N]");
        terminal.types(answer);
        let ran = terminal.ends().exits(code);
        assert!(ran.stdout.contains(ids[0].as_str()) && ran.stdout.contains("… and 2 more"), "{ran:?}");
        assert_eq!(sandbox.census().get(&Status::Dead).copied().unwrap_or_default(), dead);
    }
    // Nothing to change is nothing to ask.
    let ran = sandbox.at_terminal(&arguments).ends().exits(0);
    assert!(ran.stdout.contains("Nothing to requeue."), "{ran:?}");
}

#[test]
fn ctrl_c_at_the_question_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.dead(2);
    let terminal = sandbox.at_terminal(&["requeue", "--handler", HANDLER]);
    terminal.until("[y/N]");
    terminal.insists("\u{3}").exits(130);
    assert_eq!(sandbox.census(), [(Status::Dead, 2)].into());
}

// ---- where it is not allowed, or not possible --------------------------------------------------------------------

#[test]
fn a_read_only_profile_refuses_every_change() {
    let sandbox = Sandbox::new();
    let [id] = sandbox.dead(1).try_into().unwrap();
    sandbox.production("read_only = true");
    let arguments: [&[&str]; 10] = [
        &["requeue", id.as_str()],
        &["requeue", "--status", "dead", "--yes"],
        &["bury", "--handler", HANDLER, "--yes"],
        &["purge"],
        &["purge", "--dead-before", "0s", "--yes"],
        &["keys", "prune"],
        &["recover"],
        &["pause", HANDLER],
        &["resume", HANDLER],
        &["publish", "order.placed.v1", "--handler", HANDLER],
    ];
    for arguments in arguments {
        let arguments = [arguments, &["--profile", "production"]].concat();
        sandbox.run(&arguments).exits(2).prints("").complains("read-only");
    }
    sandbox.run(["requeue", id.as_str(), "-n", "--profile", "production"]).exits(0);
    sandbox.run(["purge", "-n", "--profile", "production"]).exits(0);
    assert_eq!(sandbox.census(), [(Status::Dead, 1)].into());
}

#[test]
fn a_profile_can_want_its_name_typed() {
    let sandbox = Sandbox::new();
    sandbox.dead(1);
    sandbox.production("confirm = true");
    let arguments = ["requeue", "--status", "dead", "--profile", "production"];
    for (answer, code, status) in [("y\r", 1, Status::Dead), ("production\r", 0, Status::Pending)] {
        let mut terminal = sandbox.at_terminal(&arguments);
        terminal.until("production");
        terminal.types(answer);
        terminal.ends().exits(code);
        assert_eq!(sandbox.census(), [(status, 1)].into());
    }
}

#[test]
fn where_nothing_is_set_up_nothing_is_said_to_be_done() {
    let sandbox = Sandbox::without_schema();
    for arguments in [
        &["requeue", "x"][..],
        &["bury", "--handler", HANDLER, "--yes"],
        &["purge"],
        &["keys", "list"],
        &["keys", "prune"],
        &["recover"],
        &["pause", HANDLER],
        &["resume", HANDLER],
        &["publish", "t", "--handler", HANDLER],
    ] {
        sandbox.run(arguments).exits(5).prints("").complains("relayctl setup");
    }
}

#[test]
fn requeued_deliveries_keep_the_order_of_their_key() {
    let sandbox = Sandbox::new();
    let keyed = vec![order().key("order-17"); 3];
    let ids = sandbox.deliver(&keyed, before(HOUR));
    sandbox.run(["bury", "--key", "order-17", "--yes"]).exits(0).prints("Buried 3 deliveries.\n");
    sandbox.run(["requeue", "--key", "order-17", "--yes"]).exits(0);
    let now = before(Duration::ZERO);
    let state = sandbox.with_store(async |store| store.key_state(HANDLER, "order-17", now).await).unwrap();
    assert_eq!((state.unfinished, state.head.unwrap().id), (3, DeliveryId::from(ids[0].as_str())));
}
