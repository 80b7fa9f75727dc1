//! `requeue` and `bury`.

use std::time::Duration;

use relayctl::model::{DeliveryId, FailureKind, Status};
use relayctl::store::{Fenced, Store as _};
use serde_json::{Value, json};

use crate::shop::{HANDLER, HOUR, SECOND, Shop, event, eventually, visit, visit_before_setup};

/// The numbers of a report.
fn numbers(report: &Value) -> [u64; 4] {
    ["matched", "changed", "skipped", "failed"].map(|field| report[field].as_u64().expect("a number"))
}

// ---- by id -------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_dead_delivery_is_brought_back_by_id() {
    visit(async |shop| {
        let [id] = shop.dead(1).await.try_into().unwrap();
        shop.relayctl(&["requeue", id.as_str()])
            .await
            .exits(0)
            .prints("Requeued 1 delivery.\n")
            .without_noise();
        let delivery = shop.get(&id).await;
        assert_eq!((delivery.status, delivery.attempts, delivery.requeues), (Status::Pending, 0, 1));
        assert_eq!(delivery.errors[0].message, "connection refused");
    })
    .await;
}

#[tokio::test]
async fn an_id_that_does_not_exist_is_a_failure_and_partly_one_where_others_changed() {
    visit(async |shop| {
        let [id] = shop.dead(1).await.try_into().unwrap();
        let missing = shop.relayctl(&["requeue", "no-such-id"]).await.exits(1);
        missing.complains("there is no delivery with the id no-such-id");
        let ran = shop.relayctl(&["requeue", "no-such-id", id.as_str(), "-o", "json"]).await.exits(3);
        let report = ran.json();
        assert_eq!(numbers(&report), [1, 1, 0, 1]);
        assert_eq!(
            report["items"],
            json!([{"id": "no-such-id", "outcome": "missing"}, {"id": id.as_str(), "outcome": "changed"}])
        );
        assert_eq!(shop.status(&id).await, Status::Pending);
    })
    .await;
}

#[tokio::test]
async fn a_delivery_to_which_it_does_not_apply_is_skipped_and_no_failure() {
    visit(async |shop| {
        let [done] = shop.completed(1, HOUR).await.try_into().unwrap();
        let ran = shop.relayctl(&["requeue", done.as_str(), "--json"]).await.exits(2);
        ran.complains("--json");
        let ran = shop.relayctl(&["requeue", done.as_str(), "-o", "json"]).await.exits(0);
        let skipped = json!([{"id": done.as_str(), "outcome": "skipped", "status": "completed"}]);
        assert_eq!((numbers(&ran.json()), &ran.json()["items"]), ([1, 0, 1, 0], &skipped));
        let ran = shop.relayctl(&["bury", done.as_str()]).await.exits(0);
        ran.complains("is completed, and bury does not apply to it");
        assert_eq!(shop.status(&done).await, Status::Completed);
    })
    .await;
}

#[tokio::test]
async fn what_looks_like_a_query_is_an_id_or_a_value() {
    visit(async |shop| {
        shop.dead(3).await;
        shop.pending(2).await;
        let before = shop.all().await;
        for id in [r#"{"$gt":""}"#, r#"{"$ne": null}"#, "$where", ".*", "*", "{'$regex': '.'}"] {
            shop.relayctl(&["requeue", id]).await.exits(1).complains("there is no delivery with the id");
            shop.relayctl(&["bury", id]).await.exits(1);
            shop.relayctl(&["requeue", "--yes", "--handler", id])
                .await
                .exits(0)
                .prints("Nothing to requeue.\n");
            shop.relayctl(&["requeue", "--yes", "--key", id]).await.exits(0).prints("Nothing to requeue.\n");
            shop.relayctl(&["bury", "--yes", "--event", id]).await.exits(0).prints("Nothing to bury.\n");
        }
        let pattern = shop.relayctl(&["requeue", "--yes", "--type", ".*"]).await;
        pattern.exits(0).prints("Nothing to requeue.\n");
        let error = shop.relayctl(&["requeue", "--yes", "--error", "conn.*"]).await;
        error.exits(0).prints("Nothing to requeue.\n");
        assert_eq!(shop.all().await, before);
    })
    .await;
}

#[tokio::test]
async fn ids_come_from_a_listing_through_a_pipe() {
    visit(async |shop| {
        shop.dead(3).await;
        shop.pending(1).await;
        let ran = shop.sh("relayctl list --status dead -o ids | relayctl requeue -").await;
        ran.exits(0).prints("Requeued 3 deliveries.\n").without_noise();
        assert_eq!(shop.census().await, [(Status::Pending, 4)].into());
        let ran = shop.relayctl_reading(&["requeue", "-"], format!("a\n{}\n", "x".repeat(513))).await;
        ran.exits(2).complains("line 2 of standard input is no id");
        shop.relayctl_reading(&["requeue", "-"], "").await.exits(0).prints("Nothing to requeue.\n");
    })
    .await;
}

// ---- by filter ---------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_filter_changes_all_that_it_selects_and_reports() {
    visit(async |shop| {
        shop.dead(25).await;
        shop.pending(2).await;
        shop.completed(2, HOUR).await;
        let ran = shop.relayctl(&["requeue", "--handler", HANDLER, "--yes", "-o", "json"]).await;
        let ran = ran.exits(0).without_noise();
        assert_eq!(
            ran.json(),
            json!({
                "command": "requeue", "dryRun": false, "matched": 25, "changed": 25, "skipped": 0, "failed": 0,
                "interrupted": false,
            })
        );
        assert_eq!(shop.census().await, [(Status::Pending, 27), (Status::Completed, 2)].into());
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    visit(async |shop| {
        let ids = shop.dead(12).await;
        shop.pending(3).await;
        let before = shop.all().await;
        let ran = shop.relayctl(&["requeue", "--status", "dead", "-n"]).await.exits(0);
        ran.prints("Would requeue 12 deliveries.\n").complains(ids[0].as_str());
        let ran = shop.relayctl(&["requeue", "--status", "dead", "-n", "--limit", "5"]).await.exits(0);
        ran.prints("Would requeue 5 of 12 deliveries.\n");
        let ran =
            shop.relayctl(&["bury", "--handler", HANDLER, "-n", "-o", "json"]).await.exits(0).without_noise();
        assert_eq!((numbers(&ran.json()), &ran.json()["dryRun"]), ([3, 0, 0, 0], &json!(true)));
        shop.relayctl(&["requeue", ids[0].as_str(), "-n"])
            .await
            .exits(0)
            .prints("Would requeue 1 delivery.\n");
        shop.relayctl(&["requeue", "no-such-id", "-n"]).await.exits(1);
        assert_eq!(shop.all().await, before);
    })
    .await;
}

#[tokio::test]
async fn without_a_selection_or_with_two_nothing_happens() {
    visit(async |shop| {
        let [id] = shop.dead(1).await.try_into().unwrap();
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
            let ran = shop.relayctl(arguments).await.exits(2).prints("");
            assert!(ran.stderr.starts_with("error: "), "{ran:?}");
        }
        assert_eq!(shop.status(&id).await, Status::Dead);
    })
    .await;
}

#[tokio::test]
async fn where_nobody_can_be_asked_it_is_refused_at_once() {
    visit(async |shop| {
        shop.dead(3).await;
        let before = shop.all().await;
        let silent = shop.start_relayctl(&["requeue", "--status", "dead"]).ends().await;
        silent.exits(2).prints("").complains("--yes");
        shop.sh("yes | relayctl requeue --status dead").await.exits(2).prints("").complains("--yes");
        shop.sh("relayctl requeue --status dead <&-").await.exits(2).complains("--yes");
        shop.sh("relayctl requeue --status dead >&-").await.exits(2).complains("--yes");
        let program = shop.relayctl(&["requeue", "--status", "dead", "-o", "json"]).await;
        program.exits(2).prints("").complains("--yes");
        // Also where there is nothing to change now: the next time there will be.
        shop.relayctl(&["requeue", "--handler", "nobody"]).await.exits(2).complains("--yes");
        assert_eq!(shop.all().await, before);
    })
    .await;
}

#[tokio::test]
async fn a_limit_takes_the_oldest() {
    visit(async |shop| {
        let old = shop.dead_since(2, HOUR).await;
        let new = shop.dead(2).await;
        let ran = shop.relayctl(&["requeue", "--status", "dead", "--limit", "2", "--yes"]).await;
        ran.exits(0).prints("Requeued 2 of 4 deliveries; 2 left as they are.\n");
        assert_eq!(shop.status(&old[0]).await, Status::Pending);
        assert_eq!(shop.status(&old[1]).await, Status::Pending);
        assert_eq!(shop.status(&new[0]).await, Status::Dead);
    })
    .await;
}

#[tokio::test]
async fn a_requeue_can_be_for_later() {
    visit(async |shop| {
        let [one, two] = shop.dead(2).await.try_into().unwrap();
        let before = shop.ago(Duration::ZERO);
        shop.relayctl(&["requeue", one.as_str(), "--delay", "2h"]).await.exits(0);
        let due = shop.get(&one).await.available_at;
        assert!(due.since(before) >= 2 * HOUR && due.since(before) < 2 * HOUR + 60 * SECOND);
        shop.relayctl(&["requeue", two.as_str(), "--at", "2031-03-01T09:30:00+01:00"]).await.exits(0);
        assert_eq!(shop.get(&two).await.available_at.to_string(), "2031-03-01T08:30:00.000Z");
    })
    .await;
}

#[tokio::test]
async fn quiet_says_nothing_when_all_is_well() {
    visit(async |shop| {
        shop.dead(2).await;
        shop.relayctl(&["requeue", "--status", "dead", "--yes", "-q"])
            .await
            .exits(0)
            .prints("")
            .without_noise();
        assert_eq!(shop.census().await, [(Status::Pending, 2)].into());
    })
    .await;
}

#[tokio::test]
async fn an_interrupt_ends_it_between_two_batches_with_a_report() {
    visit(async |shop| {
        shop.dead(50).await;
        let arguments = ["requeue", "--status", "dead", "--rate", "10/s", "--yes", "-o", "json"];
        let running = shop.start_relayctl(&arguments);
        eventually(async || shop.census().await.contains_key(&Status::Pending)).await;
        running.interrupt();
        let ran = running.ends().await.exits(130).complains("interrupted");
        let [matched, changed, skipped, failed] = numbers(&ran.json());
        assert_eq!((matched, skipped, failed, &ran.json()["interrupted"]), (50, 0, 0, &json!(true)));
        assert!((1..50).contains(&changed), "{changed}");
        assert_eq!(shop.census().await[&Status::Pending] as u64, changed);
    })
    .await;
}

// ---- bury --------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn bury_gives_up_what_waits_and_what_runs_and_says_why() {
    visit(async |shop| {
        let running = shop.processing(1, SECOND).await;
        let waiting = shop.pending(1).await;
        let ran =
            shop.relayctl(&["bury", "--handler", HANDLER, "--yes", "--reason", "order was cancelled"]).await;
        ran.exits(0).prints("Buried 2 deliveries.\n");
        for id in [&running[0].lease.delivery_id, &waiting[0]] {
            let delivery = shop.get(id).await;
            assert_eq!(delivery.status, Status::Dead);
            let last = delivery.errors.last().unwrap();
            assert_eq!((last.message.as_str(), &last.kind), ("order was cancelled", &FailureKind::Buried));
        }
        let fenced = shop.store.settle(&running, shop.ago(Duration::ZERO)).await.unwrap();
        assert_eq!(fenced, [Fenced::LeaseLost]);
    })
    .await;
}

#[tokio::test]
async fn a_bury_without_a_reason_names_who_did_it() {
    visit(async |shop| {
        let [id] = shop.pending(1).await.try_into().unwrap();
        shop.relayctl(&["bury", id.as_str()]).await.exits(0).prints("Buried 1 delivery.\n");
        let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
        let reason = shop.get(&id).await.last_error.unwrap();
        assert!(reason.starts_with("buried by ") && reason.ends_with(&format!("@{host}")), "{reason}");
    })
    .await;
}

// ---- at a terminal -----------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_terminal_is_asked_and_the_answer_is_no_unless_said_otherwise() {
    visit(async |shop| {
        let ids = shop.dead(7).await;
        let arguments = ["requeue", "--handler", HANDLER];
        for (answer, code, dead) in [("\r", 1, 7), ("n\r", 1, 7), ("y\r", 0, 0)] {
            let mut terminal = shop.at_terminal(&arguments);
            terminal.until("Requeue 7 deliveries? [y/N]").await;
            terminal.types(answer).await;
            let ran = terminal.ends().await.exits(code);
            assert!(ran.stdout.contains(ids[0].as_str()) && ran.stdout.contains("… and 2 more"), "{ran:?}");
            assert_eq!(shop.census().await.get(&Status::Dead).copied().unwrap_or_default(), dead);
        }
        // Nothing to change is nothing to ask.
        let ran = shop.at_terminal(&arguments).ends().await.exits(0);
        assert!(ran.stdout.contains("Nothing to requeue."), "{ran:?}");
    })
    .await;
}

#[tokio::test]
async fn ctrl_c_at_the_question_changes_nothing() {
    visit(async |shop| {
        shop.dead(2).await;
        let mut terminal = shop.at_terminal(&["requeue", "--handler", HANDLER]);
        terminal.until("[y/N]").await;
        terminal.types("\u{3}").await;
        terminal.ends().await.exits(130);
        assert_eq!(shop.census().await, [(Status::Dead, 2)].into());
    })
    .await;
}

// ---- where it is not allowed, or not possible --------------------------------------------------------------------

fn profile(shop: &Shop, settings: &str) {
    shop.file(".config/relayctl/config.toml", format!("[profiles.production]\n{settings}\n"));
}

#[tokio::test]
async fn a_read_only_profile_refuses_every_change() {
    visit(async |shop| {
        let [id] = shop.dead(1).await.try_into().unwrap();
        profile(shop, "read_only = true");
        let arguments: [&[&str]; 8] = [
            &["requeue", id.as_str()],
            &["requeue", "--status", "dead", "--yes"],
            &["bury", "--handler", HANDLER, "--yes"],
            &["purge"],
            &["purge", "--dead-before", "0s", "--yes"],
            &["keys", "prune"],
            &["recover"],
            &["publish", "order.placed.v1", "--handler", HANDLER],
        ];
        for arguments in arguments {
            let arguments = [arguments, &["--profile", "production"]].concat();
            shop.relayctl(&arguments).await.exits(2).prints("").complains("read-only");
        }
        shop.relayctl(&["requeue", id.as_str(), "-n", "--profile", "production"]).await.exits(0);
        shop.relayctl(&["purge", "-n", "--profile", "production"]).await.exits(0);
        assert_eq!(shop.census().await, [(Status::Dead, 1)].into());
    })
    .await;
}

#[tokio::test]
async fn a_profile_can_want_its_name_typed() {
    visit(async |shop| {
        shop.dead(1).await;
        profile(shop, "confirm = true");
        let arguments = ["requeue", "--status", "dead", "--profile", "production"];
        for (answer, code, status) in [("y\r", 1, Status::Dead), ("production\r", 0, Status::Pending)] {
            let mut terminal = shop.at_terminal(&arguments);
            terminal.until("production").await;
            terminal.types(answer).await;
            terminal.ends().await.exits(code);
            assert_eq!(shop.census().await, [(status, 1)].into());
        }
    })
    .await;
}

#[tokio::test]
async fn where_nothing_is_set_up_nothing_is_said_to_be_done() {
    visit_before_setup(async |shop| {
        for arguments in [
            &["requeue", "x"][..],
            &["bury", "--handler", HANDLER, "--yes"],
            &["purge"],
            &["keys", "list"],
            &["keys", "prune"],
            &["recover"],
            &["publish", "t", "--handler", HANDLER],
        ] {
            shop.relayctl(arguments).await.exits(5).prints("").complains("relayctl setup");
        }
    })
    .await;
}

#[tokio::test]
async fn requeued_deliveries_keep_the_order_of_their_key() {
    visit(async |shop| {
        let keyed = vec![event().key("order-17"); 3];
        let ids = shop.append(&keyed, shop.ago(HOUR)).await;
        shop.relayctl(&["bury", "--key", "order-17", "--yes"])
            .await
            .exits(0)
            .prints("Buried 3 deliveries.\n");
        shop.relayctl(&["requeue", "--key", "order-17", "--yes"]).await.exits(0);
        let state = shop.store.key_state(HANDLER, "order-17", shop.ago(Duration::ZERO)).await.unwrap();
        assert_eq!((state.unfinished, state.head.unwrap().id), (3, DeliveryId::from(ids[0].as_str())));
    })
    .await;
}
