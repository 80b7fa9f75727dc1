//! The counters of keys: listed, and pruned when nothing of their key is left.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use relayctl::model::{DeliveryId, KeySequence};
use relayctl::store::{PruneBatch, PruneRequest};

use crate::fixture::{Fixture, SECOND, event, keyed};

conformance![
    counters_are_listed_by_key,
    a_prefix_is_literal,
    counters_of_forgotten_keys_are_pruned,
    counters_of_keys_with_deliveries_are_kept,
    a_dry_run_counts_and_deletes_nothing,
    pruning_goes_in_batches_by_key,
    nothing_to_prune_is_no_trouble,
    a_pruned_key_starts_at_one_and_keeps_its_order,
    prunes_race_and_delete_each_once,
    a_prune_races_an_append_of_its_key,
];

fn counter(key: &str, value: i64) -> KeySequence {
    KeySequence { key: key.into(), value }
}

async fn counters_are_listed_by_key(fixture: &Fixture) {
    assert_eq!(fixture.key_sequences(None).await, []);
    for key in ["b", "a", "é", "B", "a.b", "b"] {
        fixture.publish(keyed(key)).await;
    }
    let all = [counter("B", 1), counter("a", 1), counter("a.b", 1), counter("b", 2), counter("é", 1)];
    assert_eq!(fixture.key_sequences(None).await, all);
    assert_eq!(fixture.key_sequences(Some("")).await, all);
}

async fn a_prefix_is_literal(fixture: &Fixture) {
    for key in ["a.b", "axb", "a", ".*", "$ne", r#"{"$ne":null}"#, "a\u{10FFFF}", "b"] {
        fixture.publish(keyed(key)).await;
    }
    let listed = async |prefix: &str| {
        let counters = fixture.key_sequences(Some(prefix)).await;
        counters.into_iter().map(|counter| counter.key).collect::<Vec<_>>()
    };
    assert_eq!(listed("a").await, ["a", "a.b", "axb", "a\u{10FFFF}"]);
    assert_eq!(listed("a.").await, ["a.b"]);
    assert_eq!(listed(".").await, [".*"]);
    assert_eq!(listed("$").await, ["$ne"]);
    assert_eq!(listed("{").await, [r#"{"$ne":null}"#]);
    assert_eq!(listed("a\u{10FFFF}").await, ["a\u{10FFFF}"]);
    assert_eq!(listed("^a").await, Vec::<String>::new());
}

/// Publishes an event of each key, of which nothing remains afterwards.
async fn forgotten(fixture: &Fixture, keys: &[&str]) {
    for key in keys {
        let id = fixture.publish(keyed(key)).await;
        fixture.bury(&id).await;
    }
    fixture.clock.advance(SECOND);
    let purged = fixture.store.purge_batch(&fixture.purge_request(1_000)).await.unwrap();
    assert_eq!(purged.deliveries as usize, keys.len());
}

async fn prune(fixture: &Fixture, after: Option<&str>, batch: u32) -> PruneBatch {
    let request = PruneRequest { after: after.map(str::to_owned), batch, dry_run: false };
    fixture.store.prune_keys(&request).await.unwrap()
}

/// Prunes batch by batch, as an operator's command does; returns how many counters were looked at and deleted.
async fn prune_all(fixture: &Fixture, batch: u32, dry_run: bool) -> (u64, u64) {
    let (mut examined, mut pruned) = (0, 0);
    let mut request = PruneRequest { after: None, batch, dry_run };
    loop {
        let done = fixture.store.prune_keys(&request).await.unwrap();
        assert!(done.examined <= u64::from(batch) && done.pruned <= done.examined);
        examined += done.examined;
        pruned += done.pruned;
        request.after = done.last;
        if request.after.is_none() {
            return (examined, pruned);
        }
    }
}

async fn counters_of_forgotten_keys_are_pruned(fixture: &Fixture) {
    forgotten(fixture, &["a", "b", "c"]).await;
    assert_eq!(prune_all(fixture, 100, false).await, (3, 3));
    assert_eq!(fixture.key_sequences(None).await, []);
    assert_eq!(prune_all(fixture, 100, false).await, (0, 0));
}

async fn counters_of_keys_with_deliveries_are_kept(fixture: &Fixture) {
    forgotten(fixture, &["gone"]).await;
    fixture.publish_dead(keyed("dead")).await;
    fixture.publish(keyed("completed")).await;
    fixture.complete(&fixture.claim_only().await).await;
    assert_eq!(prune_all(fixture, 100, true).await, (3, 1));
    fixture.publish(keyed("processing")).await;
    fixture.claim_only().await;
    fixture.publish(keyed("pending")).await;
    fixture.publish(event()).await;
    assert_eq!(prune_all(fixture, 100, false).await, (5, 1));
    let kept: Vec<_> = fixture.key_sequences(None).await.into_iter().map(|counter| counter.key).collect();
    assert_eq!(kept, ["completed", "dead", "pending", "processing"]);
}

async fn a_dry_run_counts_and_deletes_nothing(fixture: &Fixture) {
    forgotten(fixture, &["a", "b"]).await;
    fixture.publish(keyed("c")).await;
    assert_eq!(prune_all(fixture, 2, true).await, (3, 2));
    assert_eq!(fixture.key_sequences(None).await.len(), 3);
}

async fn pruning_goes_in_batches_by_key(fixture: &Fixture) {
    forgotten(fixture, &["e", "a", "d", "b", "c"]).await;
    let first = prune(fixture, None, 2).await;
    assert_eq!(first, PruneBatch { examined: 2, pruned: 2, last: Some("b".into()) });
    assert_eq!(fixture.key_sequences(None).await, [counter("c", 1), counter("d", 1), counter("e", 1)]);
    let behind_c = prune(fixture, Some("c"), 1).await;
    assert_eq!(behind_c, PruneBatch { examined: 1, pruned: 1, last: Some("d".into()) });
    let rest = prune(fixture, Some("d"), 10).await;
    assert_eq!(rest, PruneBatch { examined: 1, pruned: 1, last: None });
    assert_eq!(fixture.key_sequences(None).await, [counter("c", 1)]);
}

async fn nothing_to_prune_is_no_trouble(fixture: &Fixture) {
    assert_eq!(prune(fixture, None, 10).await, PruneBatch::default());
    forgotten(fixture, &["a"]).await;
    assert_eq!(prune(fixture, Some("z"), 10).await, PruneBatch::default());
    assert_eq!(prune(fixture, None, 0).await, PruneBatch::default());
    assert_eq!(fixture.counter("a").await, Some(1));
}

async fn a_pruned_key_starts_at_one_and_keeps_its_order(fixture: &Fixture) {
    let old = fixture.publish_many(keyed("a"), 3).await;
    for id in &old {
        fixture.bury(id).await;
    }
    fixture.clock.advance(SECOND);
    fixture.store.purge_batch(&fixture.purge_request(10)).await.unwrap();
    assert_eq!(prune(fixture, None, 10).await.pruned, 1);
    fixture.publish_many(keyed("a"), 3).await;
    let ran: Vec<_> = fixture.drain(10).await.iter().filter_map(|delivery| delivery.sequence).collect();
    assert_eq!(ran, [1, 2, 3]);
}

async fn prunes_race_and_delete_each_once(fixture: &Fixture) {
    let keys: Vec<String> = (0..30).map(|n| format!("k-{n:02}")).collect();
    forgotten(fixture, &keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let pruned = join_all([4, 5, 7].map(|batch| prune_all(fixture, batch, false))).await;
    assert_eq!(pruned.iter().map(|(_, pruned)| pruned).sum::<u64>(), 30);
    assert_eq!(fixture.key_sequences(None).await, []);
}

/// Whichever comes first: no two deliveries of the key that are there together have the same sequence, and they run
/// in the order of their commit.
async fn a_prune_races_an_append_of_its_key(fixture: &Fixture) {
    for round in 0..8 {
        let key = format!("k-{round}");
        forgotten(fixture, &[&key]).await;
        let event = keyed(&key);
        let appends = async {
            let mut published: Vec<DeliveryId> = Vec::new();
            for _ in 0..4 {
                published.push(fixture.publish(event.clone()).await);
            }
            published
        };
        let prunes = async {
            for _ in 0..4 {
                prune_all(fixture, 100, false).await;
            }
        };
        let (published, ()) = futures_util::join!(appends, prunes);
        let mut sequences = Vec::new();
        for id in &published {
            sequences.extend(fixture.get(id).await.sequence);
        }
        assert!(sequences.is_sorted_by(|a, b| a < b), "{sequences:?}");
        assert_eq!(fixture.counter(&key).await, sequences.last().copied());
        let ran: BTreeSet<_> = published.iter().cloned().collect();
        let drained: Vec<_> = fixture.drain(10).await.into_iter().map(|delivery| delivery.id).collect();
        assert_eq!((drained.iter().cloned().collect(), &drained), (ran, &published));
        fixture.clock.advance(SECOND);
        fixture.store.purge_batch(&fixture.purge_request(100)).await.unwrap();
        prune_all(fixture, 100, false).await;
    }
}
