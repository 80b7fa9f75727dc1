//! Process groups: whatever a command started is gone when its attempt is over.

use std::time::Duration;

use relayctl::handler::{AttemptControl, Command, Handler, Outcome, ShellHandler, StopReason};
use relayctl::model::FailureKind;
use serde_json::json;
use tokio::time::Instant;

use crate::support::{Marker, attempt, control, envelope, failure_of, soon, until};

const TIMED_OUT: StopReason = StopReason::TimedOut(Duration::from_secs(30));

/// Runs `line`, and stops it with `reason` when it has touched the file `ready`.
async fn stop_when_ready(line: &str, marker: &Marker, reason: StopReason, grace: Duration) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let command = marker.mark(Command::shell(line).workdir(directory.path()));
    let control = control();
    let stop = async {
        until(async || directory.path().join("ready").exists()).await;
        assert!(!marker.processes().is_empty());
        stop_after(&control, reason, grace);
    };
    let (context, envelope, handler) = (control.context(), envelope(json!(1)), ShellHandler::new(command));
    let (outcome, ()) = tokio::join!(soon(handler.handle(&envelope, &context)), stop);
    outcome
}

fn stop_after(control: &AttemptControl, reason: StopReason, grace: Duration) {
    control.stop(reason, Instant::now() + grace);
}

#[tokio::test]
async fn a_time_out_ends_the_whole_group() {
    let marker = Marker::new("whole-group");
    let line = "sleep 300 & touch ready; wait";
    let outcome = stop_when_ready(line, &marker, TIMED_OUT, Duration::from_secs(20)).await;
    assert_eq!(failure_of(outcome), (FailureKind::Timeout, "timed out after 30s".to_owned()));
    assert_eq!(marker.processes(), [0; 0]);
}

#[tokio::test]
async fn a_child_that_ignores_term_is_killed_after_the_grace() {
    let marker = Marker::new("ignores-term");
    let started = Instant::now();
    let line = "trap '' TERM; echo still here >&2; touch ready; while :; do sleep 1; done";
    let outcome = stop_when_ready(line, &marker, TIMED_OUT, Duration::from_millis(300)).await;
    assert_eq!(failure_of(outcome).1, "timed out after 30s: still here");
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(marker.processes(), [0; 0]);
}

#[tokio::test]
async fn a_grandchild_that_ignores_term_outlives_neither_its_parent_nor_the_grace() {
    let marker = Marker::new("grandchild");
    let line = "(trap '' TERM; touch ready; while :; do sleep 1; done) & wait";
    let outcome = stop_when_ready(line, &marker, StopReason::Shutdown, Duration::from_millis(300)).await;
    assert_eq!(outcome, Outcome::Released);
    assert_eq!(marker.processes(), [0; 0]);
}

#[tokio::test]
async fn a_child_that_finishes_within_the_grace_is_done() {
    let marker = Marker::new("finishes");
    let line = "trap 'echo done; exit 0' TERM; touch ready; while :; do sleep 0.01; done";
    let outcome = stop_when_ready(line, &marker, StopReason::Shutdown, Duration::from_secs(20)).await;
    assert_eq!(outcome, Outcome::Succeeded);
    assert_eq!(marker.processes(), [0; 0]);
}

#[tokio::test]
async fn what_a_command_leaves_in_the_background_neither_holds_it_up_nor_stays() {
    let lines =
        ["sleep 300 & exit 0", "sleep 300 >/dev/null 2>&1 & exit 0", "(trap '' TERM; sleep 300) & exit 0"];
    for line in lines {
        let marker = Marker::new("background");
        let started = Instant::now();
        assert_eq!(attempt(marker.mark(Command::shell(line)), &envelope(json!(1))).await, Outcome::Succeeded);
        assert!(started.elapsed() < Duration::from_secs(10), "{line}");
        assert_eq!(marker.processes(), [0; 0], "{line}");
    }
}

#[tokio::test]
async fn a_process_that_left_the_group_cannot_hold_up_its_command() {
    let marker = Marker::new("left-the-group");
    let line = "setsid sleep 30 & exit 0";
    let started = Instant::now();
    assert_eq!(attempt(marker.mark(Command::shell(line)), &envelope(json!(1))).await, Outcome::Succeeded);
    assert!(started.elapsed() < Duration::from_secs(10));
    for pid in marker.processes() {
        std::process::Command::new("kill").arg(pid.to_string()).status().unwrap();
    }
}

#[tokio::test]
async fn the_last_words_of_a_helper_are_heard() {
    let line = "{ sleep 0.05; echo from the helper >&2; } & exit 3";
    let outcome = attempt(Command::shell(line), &envelope(json!(1))).await;
    assert_eq!(outcome, Outcome::failed("exit status 3: from the helper"));
}

#[tokio::test]
async fn an_attempt_that_is_dropped_leaves_nothing() {
    let marker = Marker::new("dropped");
    let (handler, control) = (ShellHandler::new(marker.mark(Command::shell("sleep 300 & wait"))), control());
    let attempt = tokio::spawn(async move { handler.handle(&envelope(json!(1)), &control.context()).await });
    until(async || marker.processes().len() == 2).await;
    attempt.abort();
    until(async || marker.processes().is_empty()).await;
}

#[tokio::test]
async fn no_child_stays_a_zombie() {
    for line in ["true", "sleep 300 & exit 0", "kill -KILL $$"] {
        attempt(Command::shell(line), &envelope(json!(1))).await;
    }
    let own = std::process::id().to_string();
    let is_zombie_of_ours = |stat: &str| {
        let fields: Vec<_> =
            stat.rsplit_once(')').map_or(vec![], |(_, rest)| rest.split_whitespace().collect());
        fields.first() == Some(&"Z") && fields.get(1) == Some(&&*own)
    };
    until(async || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        !stats.into_iter().any(|stat| is_zombie_of_ours(&stat))
    })
    .await;
}
