//! A worker under test: a store, a clock that stands still, and the stream of events.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use relayctl::clock::{Clock, ManualClock, ServerClock};
use relayctl::dispatch::{
    Counts, DispatchEvent, DispatchOptions, Dispatcher, DispatcherHandle, Finished, Signals, StopWhen,
    Subscription,
};
use relayctl::handler::{AttemptControl, Command, Handler, Outcome, ShellHandler};
use relayctl::model::{
    Delivery, DeliveryId, Envelope, Event, EventId, FailureKind, ListQuery, NewEvent, RetryPolicy, Timestamp,
};
use relayctl::store::memory::MemoryStore;
use relayctl::store::{Store, StoreError};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long a test waits for what has to happen.
pub const BOUND: Duration = Duration::from_secs(30);

pub const START: Timestamp = Timestamp::from_millis(1_764_528_000_000);

/// Waits for `work`, but not for ever.
pub async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, work).await.expect("it should have happened by now")
}

/// Waits until `condition` holds.
pub async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(poll).await;
}

/// A clock that goes with the time of the runtime, also where that is paused.
#[derive(Debug)]
pub struct RuntimeClock(tokio::time::Instant);

impl RuntimeClock {
    pub fn new() -> Self {
        RuntimeClock(tokio::time::Instant::now())
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        START.saturating_add(self.0.elapsed())
    }
}

/// A store with a clock, and what tests do with it.
#[derive(Clone)]
pub struct Bench {
    pub store: Arc<dyn Store>,
    pub clock: Arc<ManualClock>,
}

impl Bench {
    pub fn new() -> Self {
        Bench::with(Arc::new(MemoryStore::new()))
    }

    pub fn with(store: Arc<dyn Store>) -> Self {
        Bench { store, clock: Arc::new(ManualClock::at(START)) }
    }

    pub async fn publish(&self, event: NewEvent) -> DeliveryId {
        let appended = self.store.append(&[event], self.clock.now()).await.unwrap();
        appended[0].deliveries[0].id.clone()
    }

    /// Publishes `count` events for a handler.
    pub async fn publish_many(&self, handler: &str, count: usize) {
        let event = |i| NewEvent::new("order.placed.v1", json!({ "number": i })).handler(handler);
        let events: Vec<_> = (0..count).map(event).collect();
        self.store.append(&events, self.clock.now()).await.unwrap();
    }

    pub async fn get(&self, id: &DeliveryId) -> Delivery {
        self.store.get(id).await.unwrap().expect("the delivery is there")
    }

    pub async fn deliveries(&self) -> Vec<Delivery> {
        self.store.list(&ListQuery::default()).map(Result::unwrap).collect().await
    }

    pub fn start(&self, subscriptions: Vec<Subscription>, stop_when: StopWhen) -> Worker {
        self.start_with(subscriptions, DispatchOptions { stop_when, ..options() })
    }

    pub fn start_with(&self, subscriptions: Vec<Subscription>, options: DispatchOptions) -> Worker {
        self.start_by(self.clock.clone(), subscriptions, options)
    }

    /// A worker with a clock of its own.
    pub fn start_by(
        &self,
        clock: Arc<dyn Clock>,
        subscriptions: Vec<Subscription>,
        options: DispatchOptions,
    ) -> Worker {
        Worker::start(Dispatcher::new(self.store.clone(), clock, subscriptions, options).unwrap())
    }

    /// A worker that keeps its clock set by the store's server.
    pub fn start_keeping_time(
        &self,
        clock: ServerClock,
        subscriptions: Vec<Subscription>,
        options: DispatchOptions,
    ) -> Worker {
        let dispatcher = Dispatcher::new(self.store.clone(), self.clock.clone(), subscriptions, options);
        Worker::start(dispatcher.unwrap().keeping_time(clock))
    }

    /// Runs a worker to its end; returns its counts and everything that it told.
    pub async fn run(
        &self,
        subscriptions: Vec<Subscription>,
        stop_when: StopWhen,
    ) -> (Counts, Vec<Finished>) {
        let mut worker = self.start(subscriptions, stop_when);
        let mut finished = Vec::new();
        while let Some(event) = soon(worker.events.recv()).await {
            if let DispatchEvent::Finished(one) = event {
                finished.push(*one);
            }
        }
        (worker.end().await.unwrap(), finished)
    }
}

pub fn options() -> DispatchOptions {
    DispatchOptions { owner: "here:1".into(), poll_interval: Duration::from_millis(50), ..Default::default() }
}

/// A handler's subscription without chance in its back-off.
pub fn subscription(handler: &str, work: impl Handler + 'static) -> Subscription {
    Subscription::new(handler, work).retry(RetryPolicy::Fixed { delay: Duration::from_secs(10) })
}

/// A worker that runs.
pub struct Worker {
    pub signals: Signals,
    pub handle: DispatcherHandle,
    pub events: mpsc::Receiver<DispatchEvent>,
    running: JoinHandle<Result<Counts, Arc<StoreError>>>,
}

impl Worker {
    fn start(dispatcher: Dispatcher) -> Worker {
        let (signals, (sender, events)) = (Signals::default(), mpsc::channel(64));
        let handle = dispatcher.handle();
        let running = tokio::spawn(dispatcher.run(signals.clone(), sender));
        Worker { signals, handle, events, running }
    }

    /// The next event for which `pick` has an answer.
    pub async fn next<T>(&mut self, mut pick: impl FnMut(DispatchEvent) -> Option<T>) -> T {
        let search = async {
            loop {
                let event = self.events.recv().await.expect("the worker still runs");
                if let Some(found) = pick(event) {
                    return found;
                }
            }
        };
        soon(search).await
    }

    pub async fn next_finished(&mut self) -> Finished {
        let finished = |event| match event {
            DispatchEvent::Finished(finished) => Some(*finished),
            _ => None,
        };
        self.next(finished).await
    }

    pub async fn end(mut self) -> Result<Counts, Arc<StoreError>> {
        while soon(self.events.recv()).await.is_some() {}
        soon(self.running).await.unwrap()
    }

    pub async fn drain(self) -> Counts {
        self.signals.drain.cancel();
        self.end().await.unwrap()
    }
}

/// An envelope with this payload.
pub fn envelope(payload: Value) -> Envelope {
    let time = START.to_string();
    let event = json!({
        "id": "e-1", "type": "order.placed.v1", "payload": payload, "headers": {}, "key": "k", "sequence": 7,
        "createdAt": time,
    });
    let delivery = json!({
        "id": "d-1", "eventId": "e-1", "eventType": "order.placed.v1", "handler": "h", "status": "processing",
        "lane": "ready", "attempts": 2, "availableAt": time, "createdAt": time, "updatedAt": time,
    });
    let event: Event = serde_json::from_value(event).unwrap();
    Envelope::new(event, &serde_json::from_value(delivery).unwrap(), 5)
}

/// A fresh attempt that nobody stops.
pub fn control() -> AttemptControl {
    AttemptControl::new(START, CancellationToken::new())
}

/// Runs a command for one delivery.
pub async fn attempt(command: Command, envelope: &Envelope) -> Outcome {
    soon(ShellHandler::new(command).handle(envelope, &control().context())).await
}

pub async fn attempt_line(line: &str) -> Outcome {
    attempt(Command::shell(line), &envelope(json!({ "total": 4 }))).await
}

/// The kind and message of a failure.
pub fn failure_of(outcome: Outcome) -> (FailureKind, String) {
    match outcome {
        Outcome::Failed(failure) | Outcome::Rejected(failure) => (failure.kind, failure.message),
        other => panic!("{other:?} is no failure"),
    }
}

pub fn event_id(id: &str) -> EventId {
    EventId::from(id)
}

/// A name for the environment of the children of one test, by which they can be found.
pub struct Marker(String);

impl Marker {
    pub fn new(name: &str) -> Self {
        Marker(format!("{name}-{}", std::process::id()))
    }

    pub fn mark(&self, command: Command) -> Command {
        command.env("TEST_MARKER", &self.0)
    }

    /// The processes that carry the mark; zombies have lost it.
    pub fn processes(&self) -> Vec<u32> {
        let mark = format!("TEST_MARKER={}\0", self.0);
        let carries_mark = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(mark.len()).any(|window| window == mark.as_bytes())
        };
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(carries_mark).collect()
    }
}
