//! `purge`.

use std::time::Duration;

use relayctl::model::Status;
use serde_json::json;

use crate::shop::{DAY, HOUR, SECOND, event, visit};

#[tokio::test]
async fn cron_can_run_it_bare() {
    visit(async |shop| {
        shop.completed(3, 8 * DAY).await;
        let kept = shop.completed(2, 6 * DAY).await;
        shop.dead_since(2, 90 * DAY).await;
        shop.append(&[event()], shop.ago(90 * DAY)).await;
        let ran = shop.relayctl(&["purge"]).await.exits(0).without_noise();
        ran.prints("Deleted 3 deliveries. With them went 3 events that no delivery refers to any more.\n");
        let census = [(Status::Pending, 1), (Status::Completed, 2), (Status::Dead, 2)];
        assert_eq!(shop.census().await, census.into());
        assert_eq!(shop.status(&kept[0]).await, Status::Completed);
        assert_eq!(shop.events().await.len(), 5);
        shop.relayctl(&["purge"]).await.exits(0).prints("Nothing to delete.\n").without_noise();
        shop.relayctl(&["purge", "-q"]).await.exits(0).prints("").without_noise();
        // Without any of the streams that cron may not have.
        shop.sh("relayctl purge <&- >&- 2>&-").await.exits(0);
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_deletes_nothing() {
    visit(async |shop| {
        shop.completed(3, 8 * DAY).await;
        shop.dead(2).await;
        let before = shop.all().await;
        shop.relayctl(&["purge", "-n"]).await.exits(0).prints("Would delete 3 deliveries.\n").without_noise();
        let ran = shop.relayctl(&["purge", "-n", "--max", "2"]).await;
        ran.exits(0).prints("Would delete 2 of 3 deliveries.\n");
        let ran = shop
            .relayctl(&["purge", "-n", "--dead-before", "0s", "-o", "json"])
            .await
            .exits(0)
            .without_noise();
        assert_eq!(
            ran.json(),
            json!({
                "command": "purge", "dryRun": true, "matched": 5, "changed": 0, "skipped": 0, "failed": 0,
                "interrupted": false, "events": 0,
            })
        );
        assert_eq!(shop.all().await, before);
    })
    .await;
}

#[tokio::test]
async fn dead_letters_and_what_finished_lately_need_a_yes() {
    visit(async |shop| {
        shop.completed(2, Duration::from_secs(600)).await;
        shop.dead(2).await;
        let before = shop.all().await;
        for arguments in
            [&["--dead-before", "0s"][..], &["--dead-before", "90d"], &["--completed-before", "59m"]]
        {
            let arguments = [&["purge"], arguments].concat();
            let silent = shop.start_relayctl(&arguments).ends().await;
            silent.exits(2).prints("").complains("--yes");
            let script = format!("yes | relayctl {}", arguments.join(" "));
            shop.sh(&script).await.exits(2).prints("").complains("--yes");
        }
        assert_eq!(shop.all().await, before);
        shop.relayctl(&["purge", "--completed-before", "60m"]).await.exits(0).prints("Nothing to delete.\n");
        let ran = shop.relayctl(&["purge", "--completed-before", "0s", "--dead-before", "0s", "--yes"]).await;
        ran.exits(0)
            .prints("Deleted 4 deliveries. With them went 4 events that no delivery refers to any more.\n");
        assert_eq!(shop.all().await, []);
    })
    .await;
}

#[tokio::test]
async fn a_terminal_is_asked_before_dead_letters_go() {
    visit(async |shop| {
        shop.dead_since(2, HOUR).await;
        for (answer, code, left) in [("n\r", 1, 2), ("y\r", 0, 0)] {
            let mut terminal = shop.at_terminal(&["purge", "--dead-before", "1m"]);
            terminal.until("[y/N]").await;
            terminal.types(answer).await;
            let ran = terminal.ends().await.exits(code);
            assert!(ran.stdout.contains("Delete 2 deliveries (completed before "), "{ran:?}");
            assert_eq!(shop.all().await.len(), left);
        }
    })
    .await;
}

#[tokio::test]
async fn a_maximum_and_a_batch_size_are_kept() {
    visit(async |shop| {
        shop.completed(25, 8 * DAY).await;
        let ran = shop.relayctl(&["purge", "--max", "12", "--batch-size", "5", "-o", "json"]).await.exits(0);
        let report = ran.json();
        assert_eq!(
            (&report["matched"], &report["changed"], &report["events"]),
            (&json!(25), &json!(12), &json!(12))
        );
        assert_eq!(shop.all().await.len(), 13);
    })
    .await;
}

#[tokio::test]
async fn an_age_is_a_duration_or_an_instant_with_an_offset() {
    visit(async |shop| {
        shop.completed(1, 8 * DAY).await;
        let boundary = shop.ago(9 * DAY).to_string();
        shop.relayctl(&["purge", "--completed-before", &boundary])
            .await
            .exits(0)
            .prints("Nothing to delete.\n");
        for age in ["2026-03-01T09:30:00", "yesterday", "9999999999d", "7", "-1d"] {
            let age = format!("--completed-before={age}");
            shop.relayctl(&["purge", &age]).await.exits(2).prints("").complains("--completed-before");
        }
        assert_eq!(shop.all().await.len(), 1);
        let boundary = shop.ago(7 * DAY + SECOND).to_string();
        shop.relayctl(&["purge", "--completed-before", &boundary]).await.exits(0);
        assert_eq!(shop.all().await, []);
    })
    .await;
}
