//! How much of everything there is: always what a listing of it all adds up to.

use std::collections::BTreeMap;

use relayctl::model::{Delivery, HandlerStatistics, Lane, QueueDepth, Statistics, Status};

use crate::fixture::{Fixture, HANDLER, HOUR, OTHER_HANDLER, SECOND, delayed, event, keyed};
use crate::listing::a_varied_population;

conformance![
    an_empty_store_counts_nothing,
    one_in_each_status_is_counted_once,
    statistics_are_what_a_listing_adds_up_to,
    parked_ones_add_up_too,
    the_oldest_due_time_is_of_something_unfinished,
    queue_depths_are_what_the_statistics_say_of_the_unfinished,
];

/// The statistics, counted by hand from a listing of everything.
async fn recount(fixture: &Fixture) -> Statistics {
    let mut handlers: BTreeMap<String, HandlerStatistics> = BTreeMap::new();
    for delivery in fixture.all().await {
        let counts = handlers.entry(delivery.handler.clone()).or_default();
        let one_if = |condition: bool| u64::from(condition);
        let is = |status: Status, delivery: &Delivery| one_if(delivery.status == status);
        counts.handler = delivery.handler.clone();
        counts.total += 1;
        counts.pending += is(Status::Pending, &delivery);
        counts.processing += is(Status::Processing, &delivery);
        counts.completed += is(Status::Completed, &delivery);
        counts.dead += is(Status::Dead, &delivery);
        counts.parked += one_if(delivery.status == Status::Pending && delivery.lane == Lane::Parked);
        counts.oldest_due_at = match (counts.oldest_due_at, delivery.due_at) {
            (Some(oldest), Some(due)) => Some(oldest.min(due)),
            (oldest, due) => oldest.or(due),
        };
    }
    Statistics::from_handlers(handlers.into_values().collect())
}

async fn an_empty_store_counts_nothing(fixture: &Fixture) {
    assert_eq!(fixture.store.statistics().await.unwrap(), Statistics::default());
}

async fn one_in_each_status_is_counted_once(fixture: &Fixture) {
    fixture.append(&[event().handler(OTHER_HANDLER), event(), event()]).await;
    let claimed = fixture.claim(2).await;
    fixture.complete(&claimed[0]).await;
    fixture.bury(&claimed[1].delivery.id).await;
    fixture.claim_for(&[OTHER_HANDLER], 1).await;
    let statistics = fixture.store.statistics().await.unwrap();
    let counts = [statistics.pending, statistics.processing, statistics.completed, statistics.dead];
    assert_eq!((statistics.total, counts, statistics.parked), (4, [1, 1, 1, 1], 0));
    let handlers: Vec<_> = statistics.handlers.iter().map(|h| (h.handler.as_str(), h.total)).collect();
    assert_eq!(handlers, [(OTHER_HANDLER, 1), (HANDLER, 3)]);
}

async fn statistics_are_what_a_listing_adds_up_to(fixture: &Fixture) {
    a_varied_population(fixture).await;
    let recount = recount(fixture).await;
    assert!(recount.handlers.len() > 1 && recount.dead > 0 && recount.processing > 0);
    assert_eq!(fixture.store.statistics().await.unwrap(), recount);
}

async fn parked_ones_add_up_too(fixture: &Fixture) {
    let published = fixture.publish_many(keyed("a"), 50).await;
    fixture.claim(10).await;
    fixture.claim(10).await;
    fixture.park(&published[1..]).await;
    let statistics = fixture.store.statistics().await.unwrap();
    assert_eq!(statistics.parked, 49);
    assert_eq!(statistics, recount(fixture).await);
}

async fn the_oldest_due_time_is_of_something_unfinished(fixture: &Fixture) {
    let oldest = async || fixture.store.statistics().await.unwrap().oldest_due_at;
    fixture.publish(event()).await;
    let first = fixture.claim_only().await;
    assert_eq!(oldest().await, first.delivery.lease_expires_at);
    let due = fixture.later(SECOND);
    let waiting = fixture.publish(delayed(event(), due)).await;
    assert_eq!(oldest().await, Some(due));
    fixture.bury(&waiting).await;
    fixture.complete(&first).await;
    assert_eq!(oldest().await, None);
    fixture.publish(delayed(event(), fixture.later(HOUR))).await;
    assert_eq!(oldest().await, Some(fixture.later(HOUR)));
}

async fn queue_depths_are_what_the_statistics_say_of_the_unfinished(fixture: &Fixture) {
    a_varied_population(fixture).await;
    let published = fixture.publish_many(keyed("long"), 40).await;
    fixture.claim(100).await;
    fixture.park(&published[1..]).await;
    let statistics = fixture.store.statistics().await.unwrap();
    let mut handlers: Vec<String> = statistics.handlers.iter().map(|one| one.handler.clone()).collect();
    handlers.reverse();
    handlers.push("nobody".to_owned());
    let expected: Vec<QueueDepth> = handlers.iter().map(|handler| statistics.queue_depth(handler)).collect();
    assert!(statistics.parked > 0 && expected.iter().any(|depth| depth.pending > 0 && depth.processing > 0));
    assert_eq!(
        expected.last().unwrap(),
        &QueueDepth { handler: "nobody".to_owned(), ..QueueDepth::default() }
    );
    assert_eq!(fixture.store.queue_depths(&handlers).await.unwrap(), expected);
    assert_eq!(fixture.store.queue_depths(&handlers[..1]).await.unwrap(), expected[..1]);
    assert_eq!(fixture.store.queue_depths(&[]).await.unwrap(), []);
}
