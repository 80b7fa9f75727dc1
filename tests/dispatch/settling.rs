//! When outcomes are written: together while there are many, at once when somebody may wait for just this one.

use std::sync::Arc;
use std::time::Duration;

use relayctl::dispatch::{DispatchOptions, StopWhen};
use relayctl::handler::{Outcome, handler_fn};
use relayctl::model::NewEvent;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, options, subscription};

/// Handles 320 deliveries of 4 to 7 milliseconds in so many slots; returns how many outcomes each write recorded.
async fn writes_with(slots: usize) -> Vec<usize> {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    bench.publish_many("mail", 320).await;
    let handler = handler_fn(|envelope| async move {
        let number = envelope.payload["number"].as_u64().unwrap();
        sleep(Duration::from_millis(4 + number % 4)).await;
        Outcome::Succeeded
    });
    let (counts, _) =
        bench.run(vec![subscription("mail", handler).concurrency(slots)], StopWhen::Deliveries(320)).await;
    assert_eq!(counts.completed, 320);
    std::mem::take(&mut *store.writes.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn outcomes_of_a_few_milliseconds_are_written_together_where_there_are_many() {
    // 32 slots end about six a millisecond.
    let writes = writes_with(32).await;
    assert!(writes.len() <= 320 / 12, "{writes:?}");
    // Two slots have little to gain and each other to wait for.
    let writes = writes_with(2).await;
    assert!(writes.len() >= 320 / 2, "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_drained_in_order_waits_for_nothing() {
    let bench = Bench::with(Arc::new(FaultyStore::default()));
    for number in 0..50 {
        bench.publish(NewEvent::new("t", json!(number)).key("hot").handler("mail")).await;
    }
    let handler = handler_fn(|_| async { Outcome::Succeeded });
    let options = DispatchOptions { stop_when: StopWhen::Deliveries(50), ..options() };
    let began = Instant::now();
    let worker = bench.start_with(vec![subscription("mail", handler).concurrency(32)], options);
    assert_eq!(worker.end().await.unwrap().completed, 50);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_last_outcomes_do_not_wait_for_more() {
    let bench = Bench::with(Arc::new(FaultyStore::default()));
    bench.publish_many("mail", 32).await;
    let handler = handler_fn(|_| async { Outcome::Succeeded });
    let began = Instant::now();
    let subscription = subscription("mail", handler).concurrency(32);
    let (counts, _) = bench.run(vec![subscription], StopWhen::Deliveries(32)).await;
    assert_eq!((counts.completed, began.elapsed()), (32, Duration::ZERO));
}
