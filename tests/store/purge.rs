//! Purging: by finish time, in batches, each with the events that nothing refers to any more.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use relayctl::model::{DeliveryId, EventId, NewEvent, Status};
use relayctl::store::{PurgeBatch, PurgeRequest, RepairOutcome};

use crate::fixture::{Fixture, HOUR, LEASE, MILLISECOND, OTHER_HANDLER, SECOND, event, keyed};

conformance![
    a_purge_goes_by_finish_time_and_not_by_creation,
    the_limit_itself_is_kept,
    completed_and_dead_have_limits_of_their_own,
    a_purge_without_limits_deletes_nothing,
    unfinished_ones_are_never_purged,
    a_requeued_one_is_not_purged,
    a_purge_goes_in_batches_oldest_first,
    a_batch_of_none_deletes_nothing,
    an_event_goes_with_its_last_delivery,
    an_event_of_many_deliveries_in_one_batch_counts_once,
    a_large_batch_takes_each_event_with_its_last_delivery,
    an_interrupted_purge_keeps_what_was_done,
    what_can_be_purged_is_counted,
    a_purge_takes_no_counter,
    a_purged_event_can_be_appended_again,
    purges_race_and_delete_each_once,
    a_purge_races_a_requeue,
    a_purge_races_an_append_to_the_same_events,
];

/// Publishes, claims and completes one event now.
async fn completed(fixture: &Fixture) -> DeliveryId {
    let id = fixture.publish(event()).await;
    fixture.complete(&fixture.claim_only().await).await;
    id
}

async fn purge(fixture: &Fixture, request: &PurgeRequest) -> PurgeBatch {
    fixture.store.purge_batch(request).await.unwrap()
}

async fn remaining(fixture: &Fixture) -> BTreeSet<DeliveryId> {
    fixture.all().await.into_iter().map(|delivery| delivery.id).collect()
}

async fn a_purge_goes_by_finish_time_and_not_by_creation(fixture: &Fixture) {
    let old_but_just_done = fixture.publish(event()).await;
    let slow = fixture.claim_only().await;
    fixture.clock.advance(LEASE / 2);
    let young_and_done_before = completed(fixture).await;
    fixture.clock.advance(SECOND);
    let limit = fixture.now();
    fixture.clock.advance(SECOND);
    fixture.complete(&slow).await;
    let request = PurgeRequest { completed_before: Some(limit), dead_before: None, batch: 10 };
    assert_eq!(purge(fixture, &request).await, PurgeBatch { deliveries: 1, events: 1 });
    assert_eq!(remaining(fixture).await, BTreeSet::from([old_but_just_done]));
    assert_eq!(fixture.store.get(&young_and_done_before).await.unwrap(), None);
}

async fn the_limit_itself_is_kept(fixture: &Fixture) {
    completed(fixture).await;
    fixture.publish_dead(event()).await;
    assert_eq!(purge(fixture, &fixture.purge_request(10)).await, PurgeBatch::default());
    fixture.clock.advance(MILLISECOND);
    assert_eq!(purge(fixture, &fixture.purge_request(10)).await, PurgeBatch { deliveries: 2, events: 2 });
}

async fn completed_and_dead_have_limits_of_their_own(fixture: &Fixture) {
    let done = completed(fixture).await;
    let dead = fixture.publish_dead(event()).await;
    fixture.clock.advance(SECOND);
    let both = fixture.purge_request(10);
    let only_dead = PurgeRequest { completed_before: None, ..both };
    let only_completed = PurgeRequest { dead_before: None, ..both };
    assert_eq!(fixture.store.count_purgeable(&only_dead).await.unwrap(), 1);
    assert_eq!(purge(fixture, &only_completed).await.deliveries, 1);
    assert_eq!(remaining(fixture).await, BTreeSet::from([dead]));
    assert_eq!(fixture.store.get(&done).await.unwrap(), None);
    assert_eq!(purge(fixture, &only_dead).await.deliveries, 1);
}

async fn a_purge_without_limits_deletes_nothing(fixture: &Fixture) {
    completed(fixture).await;
    fixture.publish_dead(event()).await;
    fixture.clock.advance(HOUR);
    let nothing = PurgeRequest { completed_before: None, dead_before: None, batch: 10 };
    assert_eq!(purge(fixture, &nothing).await, PurgeBatch::default());
    assert_eq!(fixture.store.count_purgeable(&nothing).await.unwrap(), 0);
    assert_eq!(remaining(fixture).await.len(), 2);
}

async fn unfinished_ones_are_never_purged(fixture: &Fixture) {
    fixture.publish_many(event(), 3).await;
    fixture.claim(1).await;
    fixture.clock.advance(LEASE * 100);
    assert_eq!(purge(fixture, &fixture.purge_request(10)).await, PurgeBatch::default());
    assert_eq!(remaining(fixture).await.len(), 3);
}

async fn a_requeued_one_is_not_purged(fixture: &Fixture) {
    let id = fixture.publish_dead(event()).await;
    fixture.clock.advance(HOUR);
    fixture.requeue(&id).await;
    assert_eq!(purge(fixture, &fixture.purge_request(10)).await, PurgeBatch::default());
    fixture.bury(&id).await;
    assert_eq!(purge(fixture, &fixture.purge_request(10)).await, PurgeBatch::default());
    fixture.clock.advance(MILLISECOND);
    assert_eq!(purge(fixture, &fixture.purge_request(10)).await.deliveries, 1);
}

async fn a_purge_goes_in_batches_oldest_first(fixture: &Fixture) {
    let mut in_order = Vec::new();
    for _ in 0..7 {
        in_order.push(completed(fixture).await);
        fixture.clock.advance(SECOND);
    }
    for done in [3, 6, 7] {
        let deleted = purge(fixture, &fixture.purge_request(3)).await;
        assert_eq!(deleted.deliveries, deleted.events);
        assert_eq!(remaining(fixture).await, in_order[done..].iter().cloned().collect());
    }
    assert_eq!(purge(fixture, &fixture.purge_request(3)).await, PurgeBatch::default());
}

async fn a_batch_of_none_deletes_nothing(fixture: &Fixture) {
    completed(fixture).await;
    fixture.clock.advance(SECOND);
    assert_eq!(purge(fixture, &fixture.purge_request(0)).await, PurgeBatch::default());
    assert_eq!(remaining(fixture).await.len(), 1);
}

async fn an_event_goes_with_its_last_delivery(fixture: &Fixture) {
    let event_id = EventId::from("e-1");
    fixture.append(&[event().id("e-1").handler(OTHER_HANDLER)]).await;
    fixture.complete(&fixture.claim_only().await).await;
    fixture.clock.advance(SECOND);
    assert_eq!(purge(fixture, &fixture.purge_request(10)).await, PurgeBatch { deliveries: 1, events: 0 });
    fixture.event(&event_id).await;
    let other = fixture.claim_for(&[OTHER_HANDLER], 1).await.remove(0);
    fixture.complete(&other).await;
    fixture.clock.advance(SECOND);
    assert_eq!(purge(fixture, &fixture.purge_request(10)).await, PurgeBatch { deliveries: 1, events: 1 });
    assert_eq!(fixture.events(&[event_id]).await, []);
}

async fn an_event_of_many_deliveries_in_one_batch_counts_once(fixture: &Fixture) {
    fixture.append(&[event().handler("b").handler("c"), event().handler("b")]).await;
    for delivery in fixture.all().await {
        fixture.bury(&delivery.id).await;
    }
    fixture.clock.advance(SECOND);
    assert_eq!(purge(fixture, &fixture.purge_request(10)).await, PurgeBatch { deliveries: 5, events: 2 });
}

async fn a_large_batch_takes_each_event_with_its_last_delivery(fixture: &Fixture) {
    let events = dead_pairs(fixture, 150).await;
    let other = events.iter().step_by(3).map(|id| pair(id.as_str()).handler("late"));
    fixture.append(&other.collect::<Vec<_>>()).await;
    fixture.clock.advance(SECOND);
    assert_eq!(
        purge(fixture, &fixture.purge_request(300)).await,
        PurgeBatch { deliveries: 300, events: 100 }
    );
    assert_eq!(remaining(fixture).await.len(), 50);
    fixture.assert_references(&events).await;
}

async fn an_interrupted_purge_keeps_what_was_done(fixture: &Fixture) {
    let events: Vec<EventId> = dead_pairs(fixture, 10).await;
    fixture.clock.advance(SECOND);
    let first = purge(fixture, &fixture.purge_request(7)).await;
    assert_eq!(first.deliveries, 7);
    assert_eq!(remaining(fixture).await.len(), 13);
    fixture.assert_references(&events).await;
    assert_eq!(fixture.store.count_purgeable(&fixture.purge_request(7)).await.unwrap(), 13);
    let rest = purge(fixture, &fixture.purge_request(100)).await;
    assert_eq!((rest.deliveries, first.events + rest.events), (13, 10));
}

/// Events for two handlers each, all of whose deliveries are dead.
async fn dead_pairs(fixture: &Fixture, count: usize) -> Vec<EventId> {
    let pairs: Vec<_> = (0..count).map(|n| pair(&format!("e-{n:03}"))).collect();
    fixture.append(&pairs).await;
    for delivery in fixture.all().await {
        if delivery.status == Status::Pending {
            fixture.bury(&delivery.id).await;
        }
    }
    pairs.into_iter().filter_map(|event| event.id).collect()
}

fn pair(id: &str) -> NewEvent {
    event().handler(OTHER_HANDLER).id(id)
}

async fn what_can_be_purged_is_counted(fixture: &Fixture) {
    completed(fixture).await;
    fixture.publish_dead(event()).await;
    fixture.clock.advance(SECOND);
    completed(fixture).await;
    fixture.publish(event()).await;
    let request = fixture.purge_request(1);
    assert_eq!(fixture.store.count_purgeable(&request).await.unwrap(), 2);
    assert_eq!(remaining(fixture).await.len(), 4);
    assert_eq!(purge(fixture, &request).await.deliveries, 1);
    assert_eq!(fixture.store.count_purgeable(&request).await.unwrap(), 1);
}

async fn a_purge_takes_no_counter(fixture: &Fixture) {
    fixture.publish_dead(keyed("a")).await;
    fixture.clock.advance(SECOND);
    assert_eq!(purge(fixture, &fixture.purge_request(10)).await.deliveries, 1);
    assert_eq!(fixture.counter("a").await, Some(1));
    let next = fixture.publish(keyed("a")).await;
    assert_eq!(fixture.get(&next).await.sequence, Some(2));
}

async fn a_purged_event_can_be_appended_again(fixture: &Fixture) {
    fixture.publish_dead(event().id("e-1")).await;
    fixture.clock.advance(SECOND);
    purge(fixture, &fixture.purge_request(10)).await;
    let again =
        fixture.append(&[NewEvent { payload: "another".into(), ..event().id("e-1") }]).await.remove(0);
    assert!(again.created && again.deliveries[0].created);
}

async fn purge_all(fixture: &Fixture, batch: u32) -> PurgeBatch {
    let mut total = PurgeBatch::default();
    loop {
        let done = purge(fixture, &fixture.purge_request(batch)).await;
        if done == PurgeBatch::default() {
            return total;
        }
        total.deliveries += done.deliveries;
        total.events += done.events;
    }
}

async fn purges_race_and_delete_each_once(fixture: &Fixture) {
    for (pairs, batches) in [(40, [5, 7, 9]), (150, [110, 130, 200])] {
        let events = dead_pairs(fixture, pairs).await;
        fixture.clock.advance(SECOND);
        let totals = join_all(batches.map(|batch| purge_all(fixture, batch))).await;
        assert_eq!(totals.iter().map(|total| total.deliveries).sum::<u64>(), 2 * pairs as u64);
        assert_eq!(totals.iter().map(|total| total.events).sum::<u64>(), pairs as u64);
        assert_eq!(remaining(fixture).await, BTreeSet::new());
        assert_eq!(fixture.events(&events).await, []);
    }
}

async fn a_purge_races_a_requeue(fixture: &Fixture) {
    for _ in 0..4 {
        let events = dead_pairs(fixture, 10).await;
        let dead: Vec<_> = remaining(fixture).await.into_iter().collect();
        fixture.clock.advance(SECOND);
        let requeue = fixture.requeue_now();
        let requeues = async {
            let mut changed = BTreeSet::new();
            for id in dead.iter().rev() {
                if fixture.store.repair(id, &requeue, fixture.now()).await.unwrap() == RepairOutcome::Changed
                {
                    changed.insert(id.clone());
                }
            }
            changed
        };
        let (purged, requeued) = futures_util::join!(purge_all(fixture, 3), requeues);
        assert_eq!(purged.deliveries as usize + requeued.len(), dead.len());
        assert_eq!(remaining(fixture).await, requeued);
        fixture.assert_references(&events).await;
        for id in &requeued {
            fixture.bury(id).await;
        }
        fixture.clock.advance(SECOND);
        purge_all(fixture, 100).await;
    }
}

/// Each event is either there for the handler that is added, or gone and appended anew: never half of it.
async fn a_purge_races_an_append_to_the_same_events(fixture: &Fixture) {
    for _ in 0..4 {
        let events = dead_pairs(fixture, 10).await;
        fixture.clock.advance(SECOND);
        let appends = join_all(events.chunks(3).map(|ids| async move {
            let late: Vec<_> = ids.iter().map(|id| pair(id.as_str()).handler("late")).collect();
            fixture.append(&late).await
        }));
        let (_, answers) = futures_util::join!(purge_all(fixture, 4), appends);
        for answer in answers.into_iter().flatten() {
            assert!(answer.deliveries[2].created);
        }
        fixture.assert_references(&events).await;
        let late = fixture.all().await.into_iter().filter(|delivery| delivery.handler == "late").count();
        assert_eq!(late, 10);
        for delivery in fixture.all().await {
            if delivery.status == Status::Pending {
                fixture.bury(&delivery.id).await;
            }
        }
        fixture.clock.advance(SECOND);
        purge_all(fixture, 100).await;
        assert_eq!(fixture.events(&events).await, []);
    }
}
