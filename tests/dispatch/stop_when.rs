//! Workers that end by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use relayctl::dispatch::{DispatchOptions, Dispatcher, StopWhen, Subscription, Verdict};
use relayctl::handler::{Handler, Outcome, handler_fn};
use relayctl::model::NewEvent;
use serde_json::json;

use crate::faulty_store::FaultyStore;
use crate::support::{Bench, options, subscription, until};

fn fails_first(times: usize) -> impl Handler {
    let calls = Arc::new(AtomicUsize::new(0));
    handler_fn(move |_| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move { if call < times { Outcome::failed("not yet") } else { Outcome::Succeeded } }
    })
}

#[tokio::test]
async fn nothing_due_means_delayed_retries_are_left_for_later() {
    let bench = Bench::new();
    bench.publish_many("mail", 3).await;
    let (counts, _) = bench.run(vec![subscription("mail", fails_first(1))], StopWhen::NothingDue).await;
    assert_eq!((counts.completed, counts.retried), (2, 1));
    assert_eq!(bench.store.statistics().await.unwrap().pending, 1);
}

#[tokio::test]
async fn nothing_unfinished_means_delayed_retries_are_waited_for() {
    let store = Arc::new(FaultyStore::default());
    let bench = Bench::with(store.clone());
    bench.publish_many("mail", 3).await;
    bench.publish_many("of somebody else", 1).await;
    let mut worker = bench.start(vec![subscription("mail", fails_first(2))], StopWhen::NothingUnfinished);
    let mut retried = 0;
    while retried < 2 {
        retried += usize::from(matches!(worker.next_finished().await.verdict, Verdict::Retrying { .. }));
    }
    // It goes on looking, though nothing is due.
    let looks = async || store.claims.lock().unwrap().len();
    let before = looks().await;
    until(async || looks().await > before + 5).await;
    bench.clock.advance(Duration::from_secs(10));
    assert_eq!(worker.end().await.unwrap().completed, 3);
    assert_eq!(bench.store.statistics().await.unwrap().pending, 1);
}

/// Longer than from one look for work to the next.
#[tokio::test(start_paused = true)]
async fn a_store_that_takes_long_to_say_that_nothing_is_unfinished_is_believed() {
    let store = Arc::new(FaultyStore::default());
    *store.listing_takes.lock().unwrap() = Duration::from_secs(1);
    let bench = Bench::with(store);
    bench.publish_many("mail", 1).await;
    let (counts, _) =
        bench.run(vec![subscription("mail", fails_first(0))], StopWhen::NothingUnfinished).await;
    assert_eq!(counts.completed, 1);
}

#[tokio::test]
async fn a_limit_of_deliveries_is_met_exactly() {
    let bench = Bench::new();
    bench.publish_many("mail", 10).await;
    let subscription = subscription("mail", fails_first(0)).concurrency(4);
    let (counts, _) = bench.run(vec![subscription], StopWhen::Deliveries(6)).await;
    assert_eq!((counts.claimed, counts.completed), (6, 6));
    assert_eq!(bench.store.statistics().await.unwrap().pending, 4);
}

#[tokio::test]
async fn all_that_is_due_of_all_handlers_is_done_before_the_end() {
    let bench = Bench::new();
    let names: Vec<_> = (0..5).map(|i| format!("handler-{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        for number in 0..40 {
            let event = NewEvent::new("t", json!(number)).handler(name);
            bench.publish(if i % 2 == 0 { event.key("one") } else { event }).await;
        }
    }
    let lease = |i: usize| Duration::from_secs(30 + 30 * (i as u64 % 2));
    let subscribe =
        |(i, name): (usize, &String)| subscription(name, fails_first(0)).concurrency(i + 1).lease(lease(i));
    let subscriptions: Vec<_> = names.iter().enumerate().map(subscribe).collect();
    let (counts, _) = bench.run(subscriptions, StopWhen::NothingDue).await;
    assert_eq!(counts.completed, 200);
}

#[tokio::test]
async fn senseless_settings_are_refused_by_name() {
    let bench = Bench::new();
    let refusal = |subscriptions: Vec<Subscription>, options: DispatchOptions| {
        let dispatcher = Dispatcher::new(bench.store.clone(), bench.clock.clone(), subscriptions, options);
        dispatcher.unwrap_err().to_string()
    };
    let mail = || subscription("mail", fails_first(0));
    let of_mail = |subscription| refusal(vec![subscription], options());
    assert_eq!(refusal(vec![], options()), "handlers: there has to be at least one");
    assert_eq!(refusal(vec![mail(), mail()], options()), "handler mail: is there twice");
    assert_eq!(of_mail(mail().concurrency(0)), "concurrency of handler mail: must be at least 1");
    assert_eq!(of_mail(mail().max_attempts(0)), "max attempts of handler mail: must be at least 1");
    assert_eq!(of_mail(mail().timeout(Duration::ZERO)), "time-out of handler mail: must be more than zero");
    assert_eq!(
        of_mail(mail().lease(Duration::from_millis(999))),
        "lease of handler mail: must be at least 1s"
    );
    let none = DispatchOptions { concurrency: Some(0), ..options() };
    assert_eq!(refusal(vec![mail()], none), "concurrency: must be at least 1");
}
