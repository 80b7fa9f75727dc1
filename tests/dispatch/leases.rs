//! Leases: renewed while a handler runs, and never outlived by it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use relayctl::clock::{Clock, SystemClock};
use relayctl::dispatch::{DispatchOptions, StopWhen, Subscription, Verdict};
use relayctl::handler::{Command, Handler, HandlerContext, Outcome, ShellHandler, StopReason};
use relayctl::model::{Envelope, NewEvent, Status};
use relayctl::store::{ClaimRequest, Repair, RepairOutcome, Store};
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, Marker, START, options, soon, subscription, until};

const LEASE: Duration = Duration::from_secs(1);

fn event() -> NewEvent {
    NewEvent::new("t", json!(1)).handler("mail")
}

/// Says when it starts and why it is stopped; ends when the gate lets it, or when it is stopped.
struct Watched {
    started: mpsc::UnboundedSender<HandlerContext>,
    stopped: mpsc::UnboundedSender<StopReason>,
    gate: Arc<Semaphore>,
}

struct Watch {
    started: mpsc::UnboundedReceiver<HandlerContext>,
    stopped: mpsc::UnboundedReceiver<StopReason>,
    gate: Arc<Semaphore>,
}

fn watched() -> (Watched, Watch) {
    let (started_tx, started) = mpsc::unbounded_channel();
    let (stopped_tx, stopped) = mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let handler = Watched { started: started_tx, stopped: stopped_tx, gate: gate.clone() };
    (handler, Watch { started, stopped, gate })
}

#[async_trait]
impl Handler for Watched {
    async fn handle(&self, _envelope: &Envelope, context: &HandlerContext) -> Outcome {
        self.started.send(context.clone()).unwrap();
        tokio::select! {
            _ = self.gate.acquire() => Outcome::Succeeded,
            stop = context.stopped() => {
                self.stopped.send(stop.reason).unwrap();
                Outcome::failed("stopped")
            }
        }
    }
}

fn short_lease(handler: impl Handler + 'static) -> Subscription {
    subscription("mail", handler).lease(LEASE)
}

#[tokio::test]
async fn a_lease_is_renewed_as_long_as_the_handler_runs() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    let id = bench.publish(event()).await;
    let (handler, mut watch) = watched();
    let worker = bench.start(vec![short_lease(handler)], StopWhen::NothingDue);
    let context = soon(watch.started.recv()).await.unwrap();
    assert_eq!(context.lease_expires_at(), START.saturating_add(LEASE));
    bench.clock.advance(Duration::from_millis(700));
    let renewed = bench.clock.now().saturating_add(LEASE);
    until(async || bench.get(&id).await.lease_expires_at == Some(renewed)).await;
    until(async || context.lease_expires_at() == renewed).await;
    // Longer than the lease would have lasted.
    until(async || store.renewals.load(Ordering::SeqCst) >= 4).await;
    watch.gate.add_permits(1);
    assert_eq!(worker.end().await.unwrap().completed, 1);
    assert_eq!(bench.get(&id).await.status, Status::Completed);
}

#[tokio::test]
async fn leases_are_renewed_during_a_drain() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    let id = bench.publish(event()).await;
    let (handler, mut watch) = watched();
    let worker = bench.start(vec![short_lease(handler)], StopWhen::Never);
    let context = soon(watch.started.recv()).await.unwrap();
    worker.signals.drain.cancel();
    soon(context.draining()).await;
    let before = store.renewals.load(Ordering::SeqCst);
    until(async || store.renewals.load(Ordering::SeqCst) >= before + 4).await;
    watch.gate.add_permits(1);
    assert_eq!(worker.end().await.unwrap().completed, 1);
    assert_eq!(bench.get(&id).await.status, Status::Completed);
}

#[tokio::test]
async fn a_lost_lease_stops_the_handler_and_records_nothing() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let (handler, mut watch) = watched();
    let mut worker = bench.start(vec![short_lease(handler)], StopWhen::Never);
    soon(watch.started.recv()).await.unwrap();
    let bury = Repair::Bury { reason: "wrong customer".into() };
    assert_eq!(bench.store.repair(&id, &bury, bench.clock.now()).await.unwrap(), RepairOutcome::Changed);
    assert_eq!(soon(watch.stopped.recv()).await, Some(StopReason::LeaseLost));
    let unrecorded = Some(Outcome::failed("stopped"));
    assert_eq!(worker.next_finished().await.verdict, Verdict::LeaseLost { unrecorded });
    worker.drain().await;
    assert_eq!(bench.get(&id).await.last_error.as_deref(), Some("wrong customer"));
}

#[tokio::test]
async fn a_lost_lease_ends_the_child() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let marker = Marker::new("lost-lease");
    let handler = ShellHandler::new(marker.mark(Command::shell("sleep 300 & wait")));
    let mut worker = bench.start(vec![short_lease(handler)], StopWhen::Never);
    until(async || marker.processes().len() == 2).await;
    let bury = Repair::Bury { reason: "wrong customer".into() };
    assert_eq!(bench.store.repair(&id, &bury, bench.clock.now()).await.unwrap(), RepairOutcome::Changed);
    assert!(matches!(worker.next_finished().await.verdict, Verdict::LeaseLost { .. }));
    assert_eq!(marker.processes(), [0; 0]);
    worker.drain().await;
}

#[tokio::test]
async fn a_handler_is_gone_before_a_lease_that_cannot_be_renewed_runs_out() {
    let store = Arc::new(FaultyStore::default());
    let clock = SystemClock;
    store.append(&[event()], clock.now()).await.unwrap();
    let marker = Marker::new("cannot-renew");
    let stubborn = "trap '' TERM; while :; do sleep 0.1; done";
    let handler = ShellHandler::new(marker.mark(Command::shell(stubborn)));
    let dispatcher = relayctl::dispatch::Dispatcher::new(
        store.clone(),
        Arc::new(clock),
        // Long enough for its margin to be wider than the hiccups of a busy machine.
        vec![subscription("mail", handler).lease(4 * LEASE)],
        DispatchOptions { stop_when: StopWhen::Never, ..options() },
    )
    .unwrap();
    let signals = relayctl::dispatch::Signals::default();
    let (events, _reader) = mpsc::channel(1_000);
    let running = tokio::spawn(dispatcher.run(signals.clone(), events));
    until(async || !marker.processes().is_empty()).await;
    store.settling_fails.store(true, Ordering::SeqCst);
    store.claims_fail.store(true, Ordering::SeqCst);
    until(async || marker.processes().is_empty()).await;
    let lease = async || {
        let mut claimed = futures_util::StreamExt::collect::<Vec<_>>(store.list(&Default::default())).await;
        claimed.pop().unwrap().unwrap()
    };
    let expires_at = lease().await.lease_expires_at.unwrap();
    assert!(clock.now() < expires_at, "the child was still there when its lease ran out");
    // The store comes back in time: the attempt is given back, as the handler was not at fault.
    store.settling_fails.store(false, Ordering::SeqCst);
    until(async || lease().await.status == Status::Pending).await;
    assert_eq!(lease().await.attempts, 0);
    signals.drain.cancel();
    soon(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_expired_lease_that_nobody_took_still_counts() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let (handler, mut watch) = watched();
    let worker = bench.start(vec![subscription("mail", handler)], StopWhen::NothingDue);
    soon(watch.started.recv()).await.unwrap();
    bench.clock.advance(Duration::from_secs(3_600));
    watch.gate.add_permits(1);
    assert_eq!(worker.end().await.unwrap().completed, 1);
    assert_eq!(bench.get(&id).await.status, Status::Completed);
}

#[tokio::test]
async fn a_delivery_that_another_worker_took_over_is_left_to_it() {
    let bench = Bench::new();
    let id = bench.publish(event()).await;
    let (handler, mut watch) = watched();
    let mut worker = bench.start(vec![subscription("mail", handler)], StopWhen::Never);
    soon(watch.started.recv()).await.unwrap();
    worker.signals.drain.cancel();
    bench.clock.advance(Duration::from_secs(3_600));
    let request = ClaimRequest {
        handlers: vec!["mail".into()],
        limit: 1,
        lease: LEASE,
        owner: "elsewhere:2".into(),
        now: bench.clock.now(),
    };
    assert_eq!(bench.store.claim(&request).await.unwrap().len(), 1);
    watch.gate.add_permits(1);
    let unrecorded = Some(Outcome::Succeeded);
    assert_eq!(worker.next_finished().await.verdict, Verdict::LeaseLost { unrecorded });
    assert_eq!(worker.end().await.unwrap().lease_lost, 1);
    assert_eq!(bench.get(&id).await.lease_owner.as_deref(), Some("elsewhere:2"));
}
