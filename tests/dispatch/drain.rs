//! The end of a worker: first signal, grace, second signal.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use relayctl::dispatch::{DispatchEvent, DispatchOptions, StopWhen, Verdict};
use relayctl::handler::{Command, Outcome, ShellHandler, handler_fn};
use relayctl::model::{NewEvent, Status};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, Marker, options, soon, subscription, until};

fn event() -> NewEvent {
    NewEvent::new("t", json!(1)).handler("mail")
}

/// A command that touches `ready` in its directory, and then does what `line` says.
fn command(directory: &TempDir, marker: &Marker, line: &str) -> ShellHandler {
    let command = Command::shell(format!("touch ready; {line}")).workdir(directory.path());
    ShellHandler::new(marker.mark(command))
}

async fn is_ready(directory: &TempDir) {
    until(async || directory.path().join("ready").exists()).await;
}

#[tokio::test]
async fn the_first_signal_lets_what_runs_finish_and_takes_on_nothing_new() {
    let (bench, directory, marker) =
        (Bench::new(), tempfile::tempdir().unwrap(), Marker::new("first-signal"));
    bench.publish_many("mail", 3).await;
    let handler = command(&directory, &marker, "while ! test -e go; do sleep 0.01; done");
    let mut worker = bench.start(vec![subscription("mail", handler)], StopWhen::Never);
    is_ready(&directory).await;
    worker.signals.drain.cancel();
    let running = |event| match event {
        DispatchEvent::Draining { running, .. } => Some(running),
        _ => None,
    };
    assert_eq!(worker.next(running).await, 1);
    std::fs::write(directory.path().join("go"), "").unwrap();
    let counts = worker.end().await.unwrap();
    assert_eq!((counts.claimed, counts.completed), (1, 1));
    let statistics = bench.store.statistics().await.unwrap();
    assert_eq!((statistics.completed, statistics.pending, statistics.processing), (1, 2, 0));
}

#[tokio::test]
async fn a_failure_during_a_drain_is_recorded() {
    let (bench, directory, marker) = (Bench::new(), tempfile::tempdir().unwrap(), Marker::new("failure"));
    let id = bench.publish(event()).await;
    let line = "while ! test -e go; do sleep 0.01; done; echo broken >&2; exit 1";
    let worker = bench.start(vec![subscription("mail", command(&directory, &marker, line))], StopWhen::Never);
    is_ready(&directory).await;
    worker.signals.drain.cancel();
    std::fs::write(directory.path().join("go"), "").unwrap();
    assert_eq!(worker.end().await.unwrap().retried, 1);
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.attempts, delivery.last_error.as_deref()), (1, Some("exit status 1: broken")));
}

#[tokio::test]
async fn what_still_runs_after_the_grace_is_stopped_and_given_back() {
    let (bench, directory, marker) = (Bench::new(), tempfile::tempdir().unwrap(), Marker::new("after-grace"));
    let id = bench.publish(event()).await;
    let handler = command(&directory, &marker, "sleep 300 & wait");
    let options = DispatchOptions { grace: Duration::from_millis(200), ..options() };
    let worker = bench.start_with(vec![subscription("mail", handler)], options);
    is_ready(&directory).await;
    assert_eq!(worker.drain().await.released, 1);
    let delivery = bench.get(&id).await;
    assert_eq!((delivery.status, delivery.attempts, delivery.last_error), (Status::Pending, 0, None));
    assert_eq!(marker.processes(), [0; 0]);
}

#[tokio::test]
async fn the_second_signal_stops_what_runs_now() {
    let (bench, directory, marker) =
        (Bench::new(), tempfile::tempdir().unwrap(), Marker::new("second-signal"));
    let id = bench.publish(event()).await;
    let stubborn = command(&directory, &marker, "trap '' TERM; while :; do sleep 0.1; done");
    let subscription = subscription("mail", stubborn).kill_after(Duration::from_millis(300));
    let worker = bench.start(vec![subscription], StopWhen::Never);
    is_ready(&directory).await;
    let started = Instant::now();
    worker.signals.drain.cancel();
    worker.signals.stop.cancel();
    assert_eq!(worker.end().await.unwrap().released, 1);
    assert!(started.elapsed() < Duration::from_secs(20), "the grace of 30 s was waited for");
    assert_eq!(bench.get(&id).await.attempts, 0);
    assert_eq!(marker.processes(), [0; 0]);
}

#[tokio::test]
async fn a_child_that_the_service_manager_interrupted_first_spends_no_attempt() {
    let (bench, directory, marker) = (Bench::new(), tempfile::tempdir().unwrap(), Marker::new("manager"));
    let id = bench.publish(event()).await;
    let handler = command(&directory, &marker, "while ! test -e go; do sleep 0.01; done; kill -TERM $$");
    let worker = bench.start(vec![subscription("mail", handler)], StopWhen::Never);
    is_ready(&directory).await;
    std::fs::write(directory.path().join("go"), "").unwrap();
    until(async || marker.processes().is_empty()).await;
    assert_eq!(worker.drain().await.released, 1);
    assert_eq!(bench.get(&id).await.attempts, 0);
}

#[tokio::test]
async fn an_idle_worker_ends_at_once() {
    let bench = Bench::new();
    let handler = handler_fn(|_| async { Outcome::Succeeded });
    let mut worker = bench.start(vec![subscription("mail", handler)], StopWhen::Never);
    worker.next(|event| matches!(event, DispatchEvent::Started { .. }).then_some(())).await;
    let counts = worker.drain().await;
    assert_eq!(counts, Default::default());
}

#[tokio::test]
async fn an_outcome_waits_for_its_store_during_a_drain() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    let id = bench.publish(event()).await;
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let handler = handler_fn(move |_| {
        started.send(()).unwrap();
        async { Outcome::Succeeded }
    });
    store.settling_fails.store(true, Ordering::SeqCst);
    let mut worker = bench.start(vec![subscription("mail", handler)], StopWhen::Never);
    soon(starts.recv()).await.unwrap();
    worker.signals.drain.cancel();
    worker.next(|event| matches!(event, DispatchEvent::StoreFailing { .. }).then_some(())).await;
    store.settling_fails.store(false, Ordering::SeqCst);
    assert_eq!(worker.next_finished().await.verdict, Verdict::Completed);
    worker.end().await.unwrap();
    assert_eq!(bench.get(&id).await.status, Status::Completed);
}

#[tokio::test]
async fn dropping_the_worker_leaves_no_process() {
    let (bench, directory, marker) = (Bench::new(), tempfile::tempdir().unwrap(), Marker::new("drop-worker"));
    bench.publish(event()).await;
    let subscription = subscription("mail", command(&directory, &marker, "sleep 300 & wait"));
    let dispatcher = relayctl::dispatch::Dispatcher::new(
        bench.store.clone(),
        bench.clock.clone(),
        vec![subscription],
        options(),
    )
    .unwrap();
    let (events, _reader) = tokio::sync::mpsc::channel(100);
    let running = tokio::spawn(dispatcher.run(Default::default(), events));
    is_ready(&directory).await;
    running.abort();
    until(async || marker.processes().is_empty()).await;
}
