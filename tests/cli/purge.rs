//! `purge`.

use std::time::Duration;

use relayctl::model::Status;
use serde_json::json;

use crate::harness::Sandbox;
use crate::stock::{DAY, HOUR, SECOND, before, order};

#[test]
fn cron_can_run_it_bare() {
    let sandbox = Sandbox::new();
    sandbox.completed(3, 8 * DAY);
    let kept = sandbox.completed(2, 6 * DAY);
    sandbox.dead_since(2, 90 * DAY);
    sandbox.deliver(&[order()], before(90 * DAY));
    let ran = sandbox.run(["purge"]).exits(0).without_noise();
    ran.prints("Deleted 3 deliveries. With them went 3 events that no delivery refers to any more.\n");
    let census = [(Status::Pending, 1), (Status::Completed, 2), (Status::Dead, 2)];
    assert_eq!(sandbox.census(), census.into());
    assert_eq!(sandbox.status(&kept[0]), Status::Completed);
    assert_eq!(sandbox.events().len(), 5);
    sandbox.run(["purge"]).exits(0).prints("Nothing to delete.\n").without_noise();
    sandbox.run(["purge", "-q"]).exits(0).prints("").without_noise();
    // Without any of the streams that cron may not have.
    sandbox.sh("relayctl purge <&- >&- 2>&-").exits(0);
}

#[test]
fn a_dry_run_deletes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.completed(3, 8 * DAY);
    sandbox.dead(2);
    let before = sandbox.deliveries();
    sandbox.run(["purge", "-n"]).exits(0).prints("Would delete 3 deliveries.\n").without_noise();
    let ran = sandbox.run(["purge", "-n", "--max", "2"]);
    ran.exits(0).prints("Would delete 2 of 3 deliveries.\n");
    let ran = sandbox.run(["purge", "-n", "--dead-before", "0s", "-o", "json"]).exits(0).without_noise();
    assert_eq!(
        ran.json(),
        json!({
            "command": "purge", "dryRun": true, "matched": 5, "changed": 0, "skipped": 0, "failed": 0,
            "interrupted": false, "events": 0,
        })
    );
    assert_eq!(sandbox.deliveries(), before);
}

#[test]
fn dead_letters_and_what_finished_lately_need_a_yes() {
    let sandbox = Sandbox::new();
    sandbox.completed(2, Duration::from_secs(600));
    sandbox.dead(2);
    let before = sandbox.deliveries();
    for arguments in [&["--dead-before", "0s"][..], &["--dead-before", "90d"], &["--completed-before", "59m"]]
    {
        let arguments = [&["purge"], arguments].concat();
        let silent = sandbox.start(&arguments).ends();
        silent.exits(2).prints("").complains("--yes");
        let script = format!("yes | relayctl {}", arguments.join(" "));
        sandbox.sh(&script).exits(2).prints("").complains("--yes");
    }
    assert_eq!(sandbox.deliveries(), before);
    sandbox.run(["purge", "--completed-before", "60m"]).exits(0).prints("Nothing to delete.\n");
    let ran = sandbox.run(["purge", "--completed-before", "0s", "--dead-before", "0s", "--yes"]);
    ran.exits(0)
        .prints("Deleted 4 deliveries. With them went 4 events that no delivery refers to any more.\n");
    assert_eq!(sandbox.deliveries(), []);
}

#[test]
fn a_terminal_is_asked_before_dead_letters_go() {
    let sandbox = Sandbox::new();
    sandbox.dead_since(2, HOUR);
    for (answer, code, left) in [("n\r", 1, 2), ("y\r", 0, 0)] {
        let mut terminal = sandbox.at_terminal(&["purge", "--dead-before", "1m"]);
        terminal.until("[y/N]");
        terminal.types(answer);
        let ran = terminal.ends().exits(code);
        assert!(ran.stdout.contains("Delete 2 deliveries (completed before "), "{ran:?}");
        assert_eq!(sandbox.deliveries().len(), left);
    }
}

#[test]
fn a_maximum_and_a_batch_size_are_kept() {
    let sandbox = Sandbox::new();
    sandbox.completed(25, 8 * DAY);
    let ran = sandbox.run(["purge", "--max", "12", "--batch-size", "5", "-o", "json"]).exits(0);
    let report = ran.json();
    assert_eq!(
        (&report["matched"], &report["changed"], &report["events"]),
        (&json!(25), &json!(12), &json!(12))
    );
    assert_eq!(sandbox.deliveries().len(), 13);
}

#[test]
fn an_age_is_a_duration_or_an_instant_with_an_offset() {
    let sandbox = Sandbox::new();
    sandbox.completed(1, 8 * DAY);
    let boundary = before(9 * DAY).to_string();
    sandbox.run(["purge", "--completed-before", &boundary]).exits(0).prints("Nothing to delete.\n");
    for age in ["2026-03-01T09:30:00", "yesterday", "9999999999d", "7", "-1d"] {
        let age = format!("--completed-before={age}");
        sandbox.run(["purge", &age]).exits(2).prints("").complains("--completed-before");
    }
    assert_eq!(sandbox.deliveries().len(), 1);
    let boundary = before(7 * DAY + SECOND).to_string();
    sandbox.run(["purge", "--completed-before", &boundary]).exits(0);
    assert_eq!(sandbox.deliveries(), []);
}
