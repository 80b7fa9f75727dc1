//! `backfill`.

use relayctl::model::{NewEvent, Status};
use serde_json::{Value, json};

use crate::harness::{Sandbox, ago, event, wait_until};
use crate::stock::{HANDLER, HOUR, before};

/// Forty orders of four keys, an old one, and a mail: none of them for the handler `late`.
fn stocked() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.append(&[event("old")], ago(10 * 86_400));
    let orders: Vec<NewEvent> =
        (0..40).map(|n| event(&format!("e{n:02}")).key(format!("k{}", n % 4)).handler("mailer")).collect();
    for orders in orders.chunks(10) {
        sandbox.append(orders, ago(60));
    }
    sandbox.append(&[NewEvent { event_type: "mail.sent".into(), ..event("mail") }], ago(60));
    sandbox
}

fn of_late(sandbox: &Sandbox) -> Vec<Value> {
    let listed = sandbox.go("list --handler late --all -o jsonl").exits(0);
    listed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const ALL: &str = "backfill --handler late --type order.*";

#[test]
fn events_from_before_the_handler_get_a_delivery_each() {
    let sandbox = stocked();
    let dry = sandbox.go(&format!("{ALL} -n")).exits(0).without_noise();
    dry.prints("Would create 41 deliveries.\n");
    assert!(of_late(&sandbox).is_empty());
    let ran = sandbox.go(&format!("{ALL} --since 1d --yes -o json")).exits(0).without_noise();
    let report = json!({
        "command": "backfill", "dryRun": false, "matched": 40, "changed": 40, "skipped": 0, "failed": 0, "interrupted": false,
    });
    assert_eq!(ran.json(), report);
    let created = of_late(&sandbox);
    assert_eq!(created.len(), 40);
    assert!(created.iter().all(|delivery| delivery["status"] == "pending" && delivery["attempts"] == 0));
    sandbox.go(&format!("{ALL} --since 1d --yes")).exits(0).prints("Nothing to create.\n").without_noise();
    sandbox.go(&format!("{ALL} --yes")).exits(0).prints("Created 1 delivery.\n");
    sandbox.go("backfill --handler late --type mail.sent --yes -q").exits(0).prints("");
    assert_eq!(of_late(&sandbox).len(), 42);
    for handler in ["mailer", HANDLER] {
        let ran = sandbox.go(&format!("backfill --handler {handler} --type * --until 1d -n -o json"));
        assert_eq!(ran.exits(0).json()["matched"], i32::from(handler == "mailer"));
    }
}

#[test]
fn it_asks_and_needs_a_yes_where_nobody_can_be_asked() {
    let sandbox = stocked();
    sandbox.go(ALL).exits(2).prints("").complains("--yes").complains("Create 41 deliveries for late?");
    sandbox.go(&format!("{ALL} --limit 5")).exits(2).complains("Create 5 of 41 deliveries for late?");
    for (answer, code, created) in [("n\r", 1, 0), ("y\r", 0, 41)] {
        let mut terminal = sandbox.at_terminal(&ALL.split(' ').collect::<Vec<_>>());
        terminal.until("[y/N]");
        terminal.types(answer);
        terminal.ends().exits(code);
        assert_eq!(of_late(&sandbox).len(), created);
    }
    sandbox.configure("[profiles.live]\nread_only = true\n");
    sandbox.go(&format!("--profile live {ALL} --yes")).exits(2).complains("read-only");
    sandbox.go("backfill --handler late").exits(2).complains("--type");
    sandbox.go("backfill --handler late --type *.v1").exits(2).complains("type pattern");
}

#[test]
fn a_limit_and_a_rate_are_kept_and_running_it_again_goes_on() {
    let sandbox = stocked();
    for (limit, left) in [("15", 26), ("20", 6), ("100", 0)] {
        let ran = sandbox.go(&format!("{ALL} --limit {limit} --rate 1000/s --yes -o json")).exits(0);
        assert_eq!(41 - of_late(&sandbox).len(), left, "{ran:?}");
    }
    // A key is never filled from its end.
    let sequences = |key: &str| -> Vec<i64> {
        let of_key = of_late(&sandbox);
        let mut sequences: Vec<_> = of_key
            .iter()
            .filter(|delivery| delivery["key"] == key)
            .map(|delivery| delivery["sequence"].as_i64().unwrap())
            .collect();
        sequences.sort_unstable();
        sequences
    };
    assert_eq!(sequences("k0"), (1..=10).collect::<Vec<_>>());
}

#[test]
fn what_is_published_later_stays_out() {
    let sandbox = stocked();
    sandbox.append(&[event("future")], before(std::time::Duration::ZERO).saturating_add(HOUR));
    sandbox.go(&format!("{ALL} --yes")).exits(0).prints("Created 41 deliveries.\n");
}

#[test]
fn a_signal_stops_it_between_two_batches() {
    let sandbox = stocked();
    let arguments: Vec<&str> = ALL.split(' ').chain(["--rate", "10/s", "--yes", "-o", "json"]).collect();
    let running = sandbox.start(&arguments);
    wait_until("a batch is done", || !of_late(&sandbox).is_empty());
    running.interrupt();
    let report = running.ends().exits(130).json();
    assert_eq!(report["changed"], of_late(&sandbox).len());
    assert_eq!((&report["interrupted"], &report["matched"]), (&json!(true), &json!(41)));
    sandbox.go(&format!("{ALL} --yes")).exits(0);
    assert_eq!(of_late(&sandbox).len(), 41);
}

#[test]
fn two_backfills_beside_a_worker_create_everything_once_and_keep_each_key_in_order() {
    let sandbox = stocked();
    let log = sandbox.home.path().join("ran");
    let shell = format!(
        "sed 's/.*\"key\":\"\\([^\"]*\\)\",\"sequence\":\\([0-9]*\\).*/\\1 \\2/' >> {}",
        log.display()
    );
    let worker = sandbox.start(&["run", "late", "--", "sh", "-c", &shell]);
    let arguments: Vec<&str> =
        ALL.split(' ').chain(["--since", "1d", "--rate", "100/s", "--yes", "-o", "json"]).collect();
    let (one, two) = std::thread::scope(|scope| {
        let other = scope.spawn(|| sandbox.run(&arguments));
        (sandbox.run(&arguments), other.join().unwrap())
    });
    let created = |ended: crate::harness::Ended| ended.exits(0).json()["changed"].as_u64().unwrap();
    assert_eq!(created(one) + created(two), 40);
    let ran = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("all of them ran", || ran().lines().count() >= 40);
    worker.send(nix::sys::signal::Signal::SIGTERM);
    worker.ends().exits(0);
    assert_eq!(ran().lines().count(), 40);
    for key in ["k0", "k1", "k2", "k3"] {
        let text = ran();
        let sequences = text.lines().filter_map(|line| line.strip_prefix(key)?.trim().parse::<i64>().ok());
        assert_eq!(sequences.collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>(), "{key}: {text}");
    }
    let done = sandbox.census()[&Status::Completed];
    assert_eq!(done, 40);
}
