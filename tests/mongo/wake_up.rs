//! Wake-ups by a change stream: opened while a worker is idle, closed while it is busy, and ended with a reason.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use futures_util::stream::{BoxStream, StreamExt as _};
use mongodb::bson::{Document, doc};
use relayctl::clock::ManualClock;
use relayctl::dispatch::{DispatchEvent, DispatchOptions, Dispatcher, Signals, Subscription};
use relayctl::handler::{Outcome, handler_fn};
use relayctl::model::NewEvent;
use relayctl::store::mongo::{MongoOptions, MongoStore};
use relayctl::store::{Outcome as StoredOutcome, Result, Store};
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};

use crate::fixture::{Fixture, NOW, Server, event, later, uri};

const BOUND: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, work).await.expect("it should have happened by now")
}

async fn until(mut condition: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(poll).await;
}

fn listen(store: &MongoStore) -> BoxStream<'static, Result<()>> {
    store.wake_ups(&["h".to_owned()]).expect("the store offers wake-ups")
}

/// The stream, when it listens.
async fn listening(store: &MongoStore) -> BoxStream<'static, Result<()>> {
    let mut stream = listen(store);
    soon(stream.next()).await.unwrap().expect("it listens");
    stream
}

/// How many wake-ups a stream brings until it ends, and the reason why it does.
async fn rest(mut stream: BoxStream<'static, Result<()>>) -> (usize, String) {
    let mut count = 0;
    loop {
        match soon(stream.next()).await.expect("it ends with a reason") {
            Ok(()) => count += 1,
            Err(error) => {
                assert!(soon(stream.next()).await.is_none(), "the reason is the last item");
                return (count, error.to_string());
            }
        }
    }
}

/// The reason why a stream ends.
async fn reason(stream: BoxStream<'static, Result<()>>) -> String {
    rest(stream).await.1
}

/// A store of its own name on the same database, so that the server can let its commands fail and no others.
async fn named_store(fixture: &Fixture, name: &str) -> MongoStore {
    let separator = if uri().contains('?') { '&' } else { '?' };
    let options = MongoOptions { database: Some(fixture.database.clone()), ..MongoOptions::default() };
    MongoStore::connect(&format!("{}{separator}appName={name}", uri()), options).await.expect("connect")
}

async fn fail_next(fixture: &Fixture, mut data: Document, name: &str) {
    data.insert("appName", name);
    let fail = doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data };
    fixture.store.client().database("admin").run_command(fail).await.expect("test commands are enabled");
}

/// How many change streams are open on the deliveries of a fixture.
async fn open_streams(fixture: &Fixture) -> usize {
    let namespace = format!("{}.relaybus_deliveries", fixture.database);
    let pipeline = [
        doc! { "$currentOp": { "allUsers": true, "idleCursors": true } },
        doc! { "$match": { "ns": namespace, "cursor.originatingCommand.pipeline.0.$changeStream": { "$exists": true } } },
    ];
    let admin = fixture.store.client().database("admin");
    let local = mongodb::options::ReadConcern::local();
    let cursor = admin.aggregate(pipeline).read_concern(local).await.expect("the test may look at cursors");
    cursor.try_collect::<Vec<_>>().await.expect("cursors").len()
}

/// A worker for handler `h` that looks by itself as seldom as it is told, and whose attempts end when the gate lets them.
struct Worker {
    signals: Signals,
    events: mpsc::Receiver<DispatchEvent>,
    gate: Arc<Semaphore>,
}

impl Worker {
    fn start(store: &MongoStore, poll_interval: Duration) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        let handler = handler_fn({
            let gate = gate.clone();
            move |_| {
                let gate = gate.clone();
                async move {
                    gate.acquire().await.unwrap().forget();
                    Outcome::Succeeded
                }
            }
        });
        let options = DispatchOptions { poll_interval, ..DispatchOptions::default() };
        let (store, clock) = (Arc::new(store.clone()), Arc::new(ManualClock::at(NOW)));
        let dispatcher = Dispatcher::new(store, clock, vec![Subscription::new("h", handler)], options);
        let (signals, (sender, events)) = (Signals::default(), mpsc::channel(1_000));
        tokio::spawn(dispatcher.unwrap().run(signals.clone(), sender));
        Worker { signals, events, gate }
    }

    async fn next<T>(&mut self, mut pick: impl FnMut(DispatchEvent) -> Option<T>) -> T {
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

    async fn claims(&mut self) {
        self.next(|event| matches!(event, DispatchEvent::Claimed { .. }).then_some(())).await;
    }

    async fn finishes(&mut self) {
        self.gate.add_permits(1);
        self.next(|event| matches!(event, DispatchEvent::Finished(_)).then_some(())).await;
    }

    async fn end(mut self) {
        self.signals.drain.cancel();
        while soon(self.events.recv()).await.is_some() {}
    }
}

/// It would not look by itself before an hour has passed: the wake-up alone lets it claim.
#[tokio::test]
async fn an_idle_worker_listens_and_a_busy_one_does_not() {
    let fixture = Fixture::new().await;
    let mut worker = Worker::start(&fixture.store, HOUR);
    for _ in 0..3 {
        until(async || open_streams(&fixture).await == 1).await;
        fixture.append(&[event()]).await;
        worker.claims().await;
        until(async || open_streams(&fixture).await == 0).await;
        worker.finishes().await;
    }
    until(async || open_streams(&fixture).await == 1).await;
    worker.end().await;
    until(async || open_streams(&fixture).await == 0).await;
    fixture.end().await;
}

#[tokio::test]
async fn a_worker_whose_stream_lost_its_place_says_why_and_polls() {
    let fixture = Fixture::new().await;
    let name = format!("history-{}", std::process::id());
    let store = named_store(&fixture, &name).await;
    let mut worker = Worker::start(&store, Duration::from_millis(200));
    until(async || open_streams(&fixture).await == 1).await;
    fail_next(&fixture, doc! { "failCommands": ["getMore"], "errorCode": 286 }, &name).await;
    let reason = |event| match event {
        DispatchEvent::WakeUpsLost { error } => Some(error.to_string()),
        _ => None,
    };
    let reason = worker.next(reason).await;
    assert!(reason.starts_with("waiting for new deliveries failed: ") && reason.contains("286"), "{reason}");
    until(async || open_streams(&fixture).await == 0).await;
    fixture.append(&[event()]).await;
    worker.finishes().await;
    worker.end().await;
    store.close().await;
    fixture.end().await;
}

#[tokio::test]
async fn a_stream_ends_with_the_reason() {
    let fixture = Fixture::new().await;
    let name = format!("reasons-{}", std::process::id());
    let store = named_store(&fixture, &name).await;
    for code in [286, 280, 260] {
        let stream = listening(&store).await;
        fail_next(&fixture, doc! { "failCommands": ["getMore"], "errorCode": code }, &name).await;
        let reason = reason(stream).await;
        assert!(reason.contains(&code.to_string()), "{reason}");
    }
    fail_next(&fixture, doc! { "failCommands": ["aggregate"], "errorCode": 13 }, &name).await;
    assert_eq!(reason(listen(&store)).await, "waiting for new deliveries failed: the user lacks a privilege");
    let stream = listening(&store).await;
    fixture.deliveries().drop().await.unwrap();
    assert_eq!(
        reason(stream).await,
        "waiting for new deliveries failed: the collection was dropped or renamed"
    );
    store.close().await;
    fixture.end().await;
}

#[tokio::test]
async fn a_lost_connection_loses_no_wake_up() {
    let fixture = Fixture::new().await;
    let name = format!("resumes-{}", std::process::id());
    let store = named_store(&fixture, &name).await;
    let mut stream = listening(&store).await;
    fail_next(&fixture, doc! { "failCommands": ["getMore"], "closeConnection": true }, &name).await;
    fixture.append(&[event()]).await;
    soon(stream.next()).await.unwrap().expect("it goes on");
    drop(stream);
    store.close().await;
    fixture.end().await;
}

/// Deliveries of others, and what is only leased, extended or finished, are none of a worker's business.
#[tokio::test]
async fn what_makes_nothing_due_wakes_nobody() {
    let fixture = Fixture::new().await;
    let stream = listening(&fixture.store).await;
    fixture.append(&[NewEvent::new("t", json!(1)).handler("other")]).await;
    fixture.append(&[event()]).await;
    let dynamic: &dyn Store = &fixture.store;
    let [claimed] = fixture.claim(1, NOW).await.try_into().unwrap();
    for outcome in [StoredOutcome::ExtendLease { expires_at: later(90) }, StoredOutcome::Complete] {
        let _ = dynamic.settle_one(&claimed.lease, outcome, NOW).await.unwrap();
    }
    // The stream is in order, so that this is behind all that it could say.
    fixture.deliveries().drop().await.unwrap();
    assert_eq!(rest(stream).await.0, 1);
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_a_primary_that_steps_down_ends_no_stream() {
    let server = Server::start("step-down", &["--nodes", "3"]);
    let patience = Duration::from_secs(60);
    let options = MongoOptions { database: Some("wake".into()), patience, ..MongoOptions::default() };
    let store = MongoStore::connect(&server.uri, options).await.expect("connect");
    store.setup().await.expect("setup");
    let mut stream = listening(&store).await;
    let admin = store.client().database("admin");
    let _ = admin.run_command(doc! { "replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 10 }).await;
    store.append(&[event()], NOW).await.expect("append");
    soon(stream.next()).await.unwrap().expect("it goes on");
    drop(stream);
    store.close().await;
}
