//! A worker as it is seen from outside: what is counted, what the store is asked for that, and who is answered.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use relayctl::dispatch::{
    DispatchEvent, Dispatcher, Finished, Obstacle, Pulse, Signals, StopWhen, Subscription, Verdict,
};
use relayctl::handler::{Handler, Outcome, Wait, handler_fn};
use relayctl::model::{NewEvent, Pause, RetryPolicy, Timestamp};
use relayctl::monitor::{Monitor, Server};
use relayctl::store::{ErrorKind, StoreError};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, advance};

use crate::faulty_store::FaultyStore;
use crate::support::{BOUND, Bench, START, options, soon, subscription, until};

const SECOND: Duration = Duration::from_secs(1);

fn succeeding() -> impl Handler {
    handler_fn(|_| async { Outcome::Succeeded })
}

/// A worker that has not begun, and who watches it.
fn watched(bench: &Bench, subscriptions: Vec<Subscription>) -> (Dispatcher, Monitor, Pulse) {
    let dispatcher =
        Dispatcher::new(bench.store.clone(), bench.clock.clone(), subscriptions, options()).unwrap();
    let pulse = dispatcher.pulse();
    let monitor = Monitor::new(pulse.clone(), bench.store.clone(), bench.clock.clone());
    (dispatcher, monitor, pulse)
}

/// The value of a series.
#[track_caller]
fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
}

/// The series of a text, without their values.
fn series(text: &str) -> HashSet<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').expect("a value").0).collect()
}

// ---- what is counted -----------------------------------------------------------------------------------------------

#[tokio::test]
async fn what_a_worker_does_is_counted_and_makes_no_new_series() {
    let bench = Bench::new();
    let grumpy = handler_fn(|envelope| {
        let outcome = match envelope.payload["number"].as_u64().unwrap() {
            0 => Outcome::Succeeded,
            3 => Outcome::Snoozed(Wait::For(600 * SECOND)),
            1 => Outcome::failed("a secret\n# TYPE x"),
            _ => Outcome::rejected("never"),
        };
        std::future::ready(outcome)
    });
    bench.publish_many("mail", 4).await;
    bench.clock.advance(20 * SECOND);
    let retry = RetryPolicy::Fixed { delay: 600 * SECOND };
    let mail = subscription("mail", grumpy).retry(retry).concurrency(4);
    let (dispatcher, monitor, pulse) = watched(&bench, vec![mail, subscription("print", succeeding())]);
    let before = monitor.scrape().await;
    assert_eq!(value(&before, "relayctl_deliveries_completed_total{handler=\"print\"}"), 0.0);
    assert_eq!(value(&before, "relayctl_ready"), 0.0);

    let signals = Signals::default();
    let (sender, mut events) = mpsc::channel(64);
    let running = tokio::spawn(dispatcher.run(signals.clone(), sender));
    let mut finished = 0;
    while finished < 4 {
        let event = soon(events.recv()).await.unwrap();
        finished += usize::from(matches!(event, DispatchEvent::Finished(_)));
        monitor.observe(&event);
    }
    until(async || pulse.check_ready().is_ok()).await;
    let after = monitor.scrape().await;
    for (name, expected) in [
        ("relayctl_deliveries_claimed_total{handler=\"mail\"}", 4.0),
        ("relayctl_deliveries_completed_total{handler=\"mail\"}", 1.0),
        ("relayctl_deliveries_snoozed_total{handler=\"mail\"}", 1.0),
        ("relayctl_deliveries_failed_total{handler=\"mail\",kind=\"failed\"}", 1.0),
        ("relayctl_deliveries_failed_total{handler=\"mail\",kind=\"rejected\"}", 1.0),
        ("relayctl_deliveries_failed_total{handler=\"mail\",kind=\"timeout\"}", 0.0),
        ("relayctl_deliveries_dead_total{handler=\"mail\"}", 1.0),
        ("relayctl_deliveries_in_flight{handler=\"mail\"}", 0.0),
        ("relayctl_run_seconds_count{handler=\"mail\"}", 4.0),
        ("relayctl_wait_seconds_count{handler=\"mail\"}", 4.0),
        ("relayctl_wait_seconds_sum{handler=\"mail\"}", 80.0),
        ("relayctl_wait_seconds_bucket{le=\"10.0\",handler=\"mail\"}", 0.0),
        ("relayctl_wait_seconds_bucket{le=\"30.0\",handler=\"mail\"}", 4.0),
        ("relayctl_deliveries_completed_total{handler=\"print\"}", 0.0),
        ("relayctl_ready", 1.0),
    ] {
        assert_eq!(value(&after, name), expected, "{name}");
    }
    assert_eq!(series(&before), series(&after));
    assert!(!after.contains("secret") && after.ends_with("# EOF\n"), "{after}");
    signals.drain.cancel();
    while soon(events.recv()).await.is_some() {}
    running.await.unwrap().unwrap();
}

/// Lets a monitor hear the events until `is_last` says so.
async fn hear(
    monitor: &Monitor,
    events: &mut mpsc::Receiver<DispatchEvent>,
    is_last: impl Fn(&DispatchEvent) -> bool,
) {
    loop {
        let event = soon(events.recv()).await.unwrap();
        monitor.observe(&event);
        if is_last(&event) {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_follow_a_change_of_the_handlers() {
    let bench = Bench::new();
    let both = vec![subscription("mail", succeeding()), subscription("print", succeeding())];
    let (dispatcher, monitor, pulse) = watched(&bench, both);
    let (handle, signals) = (dispatcher.handle(), Signals::default());
    let (sender, mut events) = mpsc::channel(64);
    let running = tokio::spawn(dispatcher.run(signals.clone(), sender));
    let is_finished = |event: &DispatchEvent| matches!(event, DispatchEvent::Finished(_));
    bench.publish_many("print", 1).await;
    hear(&monitor, &mut events, is_finished).await;
    let depth = |handler: &str| format!("relayctl_queue_depth{{handler=\"{handler}\"}}");
    assert_eq!(value(&monitor.scrape().await, &depth("print")), 0.0);

    let mail = vec!["mail".to_owned()];
    handle.resubscribe(mail, vec![subscription("post", succeeding())]).await.unwrap();
    hear(&monitor, &mut events, |event| matches!(event, DispatchEvent::Resubscribed(_))).await;
    assert_eq!(*pulse.handlers(), ["mail".to_owned(), "post".to_owned()]);
    bench.publish_many("post", 1).await;
    hear(&monitor, &mut events, is_finished).await;
    // The queues are read again no sooner.
    advance(15 * SECOND).await;
    let after = monitor.scrape().await;
    for (name, expected) in [("print", 1.0), ("post", 1.0), ("mail", 0.0)] {
        let completed = format!("relayctl_deliveries_completed_total{{handler=\"{name}\"}}");
        assert_eq!(value(&after, &completed), expected, "{name}");
    }
    assert_eq!(value(&after, &depth("post")), 0.0);
    assert!(value(&after, &depth("print")).is_nan(), "it shows the queue of a handler that is gone");
    signals.drain.cancel();
    while soon(events.recv()).await.is_some() {}
    running.await.unwrap().unwrap();
}

/// What seldom happens, as a worker tells it.
#[tokio::test]
async fn every_event_that_matters_is_counted() {
    let bench = Bench::new();
    let (_dispatcher, monitor, _) = watched(&bench, vec![subscription("mail", succeeding())]);
    let handler = || "mail".to_owned();
    let error = Arc::new(StoreError::new(ErrorKind::Conflict, "somebody was faster"));
    let pause = Pause {
        handler: handler(),
        paused_at: Timestamp::EPOCH,
        paused_until: None,
        reason: None,
        by: "ana".into(),
    };
    let opened = DispatchEvent::BreakerOpened {
        handler: handler(),
        failures: 10,
        pause: SECOND,
        error: String::new(),
    };
    for event in [
        DispatchEvent::HandedBack { handler: handler(), count: 5, lost: 2 },
        DispatchEvent::CallFailed { error: error.clone() },
        DispatchEvent::CallFailed { error: error.clone() },
        // An outage is told once more, and is no further call.
        DispatchEvent::StoreFailing { error },
        DispatchEvent::Paused { pause },
        opened,
        DispatchEvent::Claimed { handler: "a stranger".to_owned(), count: 7 },
    ] {
        monitor.observe(&event);
    }
    let text = monitor.scrape().await;
    for (name, expected) in [
        ("relayctl_deliveries_released_total{handler=\"mail\"}", 3.0),
        ("relayctl_leases_lost_total{handler=\"mail\"}", 2.0),
        ("relayctl_store_errors_total{kind=\"conflict\"}", 2.0),
        ("relayctl_store_errors_total{kind=\"unavailable\"}", 0.0),
        ("relayctl_handler_paused{handler=\"mail\"}", 1.0),
        ("relayctl_breaker_open{handler=\"mail\"}", 1.0),
        ("relayctl_deliveries_claimed_total{handler=\"mail\"}", 0.0),
    ] {
        assert_eq!(value(&text, name), expected, "{name}");
    }
    assert!(!text.contains("stranger"), "{text}");
    monitor.observe(&DispatchEvent::Resumed { handler: handler() });
    monitor.observe(&DispatchEvent::BreakerClosed { handler: handler(), after: SECOND });
    let text = monitor.scrape().await;
    assert_eq!(value(&text, "relayctl_handler_paused{handler=\"mail\"}"), 0.0);
    assert_eq!(value(&text, "relayctl_breaker_open{handler=\"mail\"}"), 0.0);
}

#[tokio::test]
async fn a_lost_lease_and_a_release_are_counted_apart() {
    let bench = Bench::new();
    bench.publish_many("mail", 1).await;
    let (_, finished) = bench.run(vec![subscription("mail", succeeding())], StopWhen::NothingDue).await;
    let (_dispatcher, monitor, _) = watched(&bench, vec![subscription("mail", succeeding())]);
    for verdict in [Verdict::LeaseLost { unrecorded: Some(Outcome::Succeeded) }, Verdict::Released] {
        let finished = Box::new(Finished { verdict, ..finished[0].clone() });
        monitor.observe(&DispatchEvent::Finished(finished));
    }
    let text = monitor.scrape().await;
    let of = |name: &str| value(&text, &format!("relayctl_{name}_total{{handler=\"mail\"}}"));
    assert_eq!((of("leases_lost"), of("deliveries_released"), of("deliveries_completed")), (1.0, 1.0, 0.0));
}

// ---- the depth of the queues ---------------------------------------------------------------------------------------

/// A faulty store with so many deliveries that wait, two of a handler that nobody watches, and who watches the others.
async fn queues(count: usize) -> (Arc<FaultyStore>, Bench, Arc<Monitor>, Dispatcher) {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    bench.publish_many("mail", count).await;
    bench.publish_many("unwatched", 2).await;
    let later = NewEvent::new("t", json!({})).handler("print");
    let available_at = Some(START.saturating_add(3_600 * SECOND));
    bench.publish(NewEvent { available_at, ..later }).await;
    bench.clock.advance(90 * SECOND);
    let subscriptions = vec![subscription("mail", succeeding()), subscription("print", succeeding())];
    let (dispatcher, monitor, _) = watched(&bench, subscriptions);
    (store, bench, Arc::new(monitor), dispatcher)
}

fn depth_and_age(text: &str, handler: &str) -> (f64, f64) {
    let of = |name: &str| value(text, &format!("relayctl_{name}{{handler=\"{handler}\"}}"));
    (of("queue_depth"), of("oldest_due_age_seconds"))
}

#[tokio::test(start_paused = true)]
async fn the_depth_of_each_queue_is_told_with_its_time() {
    let (_, _, monitor, _dispatcher) = queues(3).await;
    let text = monitor.scrape().await;
    assert_eq!(depth_and_age(&text, "mail"), (3.0, 90.0));
    assert_eq!(depth_and_age(&text, "print"), (1.0, 0.0));
    assert!(!text.contains("unwatched"), "{text}");
    let read_at = START.saturating_add(90 * SECOND).as_millis() as f64 / 1_000.0;
    assert_eq!(value(&text, "relayctl_queue_read_timestamp_seconds"), read_at);
}

#[tokio::test(start_paused = true)]
async fn however_many_ask_the_store_is_asked_once_in_a_while() {
    let (store, bench, monitor, _dispatcher) = queues(3).await;
    let reads = || store.depths_read.load(Ordering::SeqCst);
    join_all((0..50).map(|_| monitor.scrape())).await;
    assert_eq!(reads(), 1);
    bench.publish_many("mail", 4).await;
    advance(14 * SECOND).await;
    assert_eq!(depth_and_age(&monitor.scrape().await, "mail").0, 3.0);
    advance(2 * SECOND).await;
    assert_eq!(depth_and_age(&monitor.scrape().await, "mail").0, 7.0);
    assert_eq!(reads(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_scrape_waits_two_seconds_and_a_slow_reading_is_not_begun_anew() {
    let (store, _, monitor, _dispatcher) = queues(3).await;
    *store.depths_take.lock().unwrap() = 5 * SECOND;
    let began = Instant::now();
    let texts = join_all((0..50).map(|_| monitor.scrape())).await;
    assert_eq!(began.elapsed(), 2 * SECOND);
    assert!(texts.iter().all(|text| depth_and_age(text, "mail").0.is_nan()));
    assert!(depth_and_age(&monitor.scrape().await, "mail").0.is_nan());
    assert_eq!(depth_and_age(&monitor.scrape().await, "mail").0, 3.0);
    assert_eq!((began.elapsed(), store.depths_read.load(Ordering::SeqCst)), (5 * SECOND, 1));
    // It took five seconds, and so it has a hundred of rest.
    advance(99 * SECOND).await;
    monitor.scrape().await;
    assert_eq!(store.depths_read.load(Ordering::SeqCst), 1);
    advance(2 * SECOND).await;
    monitor.scrape().await;
    assert_eq!(store.depths_read.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_the_last_one_is_told_and_the_error_counted() {
    let (store, _, monitor, _dispatcher) = queues(3).await;
    store.depths_fail.store(true, Ordering::SeqCst);
    let text = monitor.scrape().await;
    assert!(depth_and_age(&text, "mail").0.is_nan());
    assert_eq!(value(&text, "relayctl_queue_read_timestamp_seconds"), 0.0);
    assert_eq!(value(&text, "relayctl_store_errors_total{kind=\"unavailable\"}"), 1.0);
    store.depths_fail.store(false, Ordering::SeqCst);
    advance(16 * SECOND).await;
    assert_eq!(depth_and_age(&monitor.scrape().await, "mail").0, 3.0);
    store.depths_fail.store(true, Ordering::SeqCst);
    advance(16 * SECOND).await;
    let text = monitor.scrape().await;
    assert_eq!(depth_and_age(&text, "mail").0, 3.0);
    assert_eq!(value(&text, "relayctl_store_errors_total{kind=\"unavailable\"}"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_is_given_up_and_asked_again() {
    let (store, _, monitor, _dispatcher) = queues(3).await;
    *store.depths_take.lock().unwrap() = 3_600 * SECOND;
    monitor.scrape().await;
    advance(13 * SECOND).await;
    let text = monitor.scrape().await;
    assert_eq!(value(&text, "relayctl_store_errors_total{kind=\"unavailable\"}"), 1.0);
    *store.depths_take.lock().unwrap() = Duration::ZERO;
    advance(15 * 20 * SECOND + SECOND).await;
    assert_eq!(depth_and_age(&monitor.scrape().await, "mail").0, 3.0);
}

// ---- over HTTP -----------------------------------------------------------------------------------------------------

/// A server for a worker that does not run, on time that stands still unless a test moves it.
async fn server(monitor: Arc<Monitor>) -> (Server, SocketAddr) {
    let listener = Server::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    (Server::start(listener, monitor), address)
}

/// Sends this and returns everything that comes back. While it waits, time does not move by itself.
async fn exchange(address: SocketAddr, request: impl Into<Vec<u8>>) -> String {
    let request = request.into();
    let talk = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(&request).unwrap();
        let mut answer = String::new();
        // What was not read of a request resets the connection behind the answer.
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    spawn_blocking(talk).await.unwrap()
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = exchange(address, format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n")).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    (head[9..12].parse().unwrap(), body.to_owned())
}

#[tokio::test(start_paused = true)]
async fn each_path_has_its_answer() {
    let (_, _, monitor, dispatcher) = queues(3).await;
    let (server, address) = server(monitor).await;
    let answer = exchange(address, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").await;
    let type_line = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains(type_line), "{answer}");
    assert!(answer.contains("relayctl_queue_depth{handler=\"mail\"} 3.0\n"), "{answer}");
    assert_eq!(get(address, "/healthz").await, (200, "ok\n".into()));
    let starting = "the worker starts: it has not heard from the store yet\n";
    assert_eq!(get(address, "/readyz").await, (503, starting.into()));
    assert_eq!(get(address, "/nothing").await.0, 404);
    let head = exchange(address, "HEAD /healthz HTTP/1.1\r\nHost: here\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let post = exchange(address, "POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\nhi").await;
    assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD\r\n"), "{post}");
    drop(dispatcher);
    assert_eq!(get(address, "/healthz").await, (503, "the worker has ended\n".into()));
    server.stop().await;
    assert!(TcpStream::connect(address).is_err(), "it still listens");
}

#[tokio::test(start_paused = true)]
async fn a_stuck_loop_is_told_by_those_who_are_asked_for_it() {
    let (_, _, monitor, _dispatcher) = queues(3).await;
    let (_server, address) = server(monitor.clone()).await;
    assert_eq!(get(address, "/healthz").await.0, 200);
    advance(12 * SECOND).await;
    assert!(matches!(monitor.health(), Err(Obstacle::Stuck(_))));
    let stuck = "the worker is stuck: its loop has not turned for 12s\n";
    assert_eq!(get(address, "/healthz").await, (503, stuck.into()));
    assert_eq!(get(address, "/readyz").await, (503, stuck.into()));
    assert_eq!(get(address, "/metrics").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn nonsense_is_refused_and_hurts_nobody() {
    let (_, _, monitor, _dispatcher) = queues(3).await;
    let (_server, address) = server(monitor).await;
    let huge = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(100_000));
    for nonsense in [b"\x16\x03\x01\x02\x00\x01\x00".to_vec(), b"hello\r\n\r\n".to_vec(), huge.into_bytes()] {
        let answer = exchange(address, nonsense).await;
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    assert_eq!(get(address, "/healthz").await.0, 200);
}

/// Half of them never say anything, the others never end what they say.
#[tokio::test(start_paused = true)]
async fn those_who_keep_a_connection_lose_it_and_others_get_their_turn() {
    let (_, _, monitor, _dispatcher) = queues(3).await;
    let (_server, address) = server(monitor).await;
    let open = |i: usize| {
        let mut stream = TcpStream::connect(address).unwrap();
        if i.is_multiple_of(2) {
            stream.write_all(b"GET /healthz HTTP/1.1\r\n").unwrap();
        }
        stream
    };
    let kept: Vec<TcpStream> = (0..64).map(open).collect();
    let waiting = spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /nothing HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    // Time moves for the kept connections only as it is moved here, while the others go by the host's.
    advance(9 * SECOND).await;
    assert!(!waiting.is_finished(), "it was answered before its turn");
    let given_up_at = std::time::Instant::now() + BOUND;
    while !waiting.is_finished() {
        assert!(std::time::Instant::now() < given_up_at, "it has its turn in vain");
        spawn_blocking(|| std::thread::sleep(Duration::from_millis(5))).await.unwrap();
        advance(SECOND).await;
    }
    assert!(waiting.await.unwrap().starts_with("HTTP/1.1 404 "));
    drop(kept);
}

#[tokio::test(start_paused = true)]
async fn one_who_asks_and_does_not_read_is_dropped() {
    let many = (0..2_000).map(|i| subscription(&format!("handler-{i}"), succeeding())).collect();
    let (_dispatcher, monitor, _) = watched(&Bench::new(), many);
    let (_server, address) = server(Arc::new(monitor)).await;
    let begin = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
        stream
    };
    let mut silent = spawn_blocking(begin).await.unwrap();
    advance(11 * SECOND).await;
    let read = move || {
        let mut answer = Vec::new();
        let _ = silent.read_to_end(&mut answer);
        answer
    };
    let answer = String::from_utf8(spawn_blocking(read).await.unwrap()).unwrap();
    let length: usize =
        answer.split_once("content-length: ").unwrap().1.lines().next().unwrap().parse().unwrap();
    assert!(answer.len() < length, "all {length} bytes were sent");
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_taken_is_an_error() {
    let (_, _, monitor, _dispatcher) = queues(1).await;
    let (_server, address) = server(monitor).await;
    let error = Server::listen(address).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}
