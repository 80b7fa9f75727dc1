//! Prune: the counters of keys that have no delivery any more.

use serde::Serialize;

use crate::store::{PruneRequest, Result, Store};

use super::bulk::BulkReport;
use super::control::Control;

/// What pruning did.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PruneReport {
    /// The counters of keys without deliveries.
    #[serde(flatten)]
    pub counters: BulkReport,
    /// All counters that were looked at.
    pub examined: u64,
}

/// Deletes the counters of all keys without deliveries, `batch` counters in a transaction; a dry run counts them only.
pub async fn prune_keys(store: &dyn Store, batch: u32, dry_run: bool, control: &Control<'_>) -> PruneReport {
    let mut report = PruneReport::default();
    if let Err(error) = prune_batches(store, batch, dry_run, control, &mut report).await {
        report.counters.keep_first_error(error);
    }
    report
}

async fn prune_batches(
    store: &dyn Store,
    batch: u32,
    dry_run: bool,
    control: &Control<'_>,
    report: &mut PruneReport,
) -> Result<()> {
    let mut after = None;
    loop {
        if control.is_cancelled() {
            report.counters.interrupted = true;
            return Ok(());
        }
        let pruned = store.prune_keys(&PruneRequest { after, batch, dry_run }).await?;
        report.examined += pruned.examined;
        report.counters.matched += pruned.pruned;
        if !dry_run {
            report.counters.changed += pruned.pruned;
        }
        (control.progress)(report.examined);
        after = pruned.last;
        if after.is_none() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use serde_json::json;

    use super::*;
    use crate::model::NewEvent;
    use crate::ops::purge::PurgePlan;
    use crate::ops::testing::{Bench, Spoilt, go_on};
    use crate::store::PurgeRequest;

    /// Seven keys, of which `k3` still has a delivery.
    async fn keys(bench: &Bench) {
        let event = |n| NewEvent::new("t", json!({})).handler("h").key(format!("k{n}"));
        let events: Vec<_> = (0..7).map(event).collect();
        let appended = bench.store.append(&events, bench.now()).await.unwrap();
        let bury = crate::store::Repair::Bury { reason: "r".to_owned() };
        for id in
            appended.iter().enumerate().filter(|&(n, _)| n != 3).map(|(_, event)| &event.deliveries[0].id)
        {
            bench.store.repair(id, &bury, bench.now()).await.unwrap();
        }
        bench.clock.advance(std::time::Duration::from_millis(1));
        let request = PurgeRequest { completed_before: None, dead_before: Some(bench.now()), batch: 10 };
        let plan = PurgePlan::new(&bench.store, request).await.unwrap();
        plan.apply(&bench.store, None, &bench.control()).await;
    }

    async fn remaining(bench: &Bench) -> Vec<String> {
        bench.store.key_sequences(None).map(|sequence| sequence.unwrap().key).collect().await
    }

    #[tokio::test]
    async fn keeps_the_counters_of_keys_with_deliveries() {
        let bench = Bench::new();
        keys(&bench).await;
        let dry = prune_keys(&bench.store, 3, true, &bench.control()).await;
        assert_eq!((dry.examined, dry.counters.matched, dry.counters.changed), (7, 6, 0));
        assert_eq!(remaining(&bench).await.len(), 7);
        let report = prune_keys(&bench.store, 3, false, &bench.control()).await;
        assert_eq!((report.examined, report.counters.matched, report.counters.changed), (7, 6, 6));
        assert_eq!(remaining(&bench).await, ["k3"]);
    }

    #[tokio::test]
    async fn a_cancel_ends_the_batch_and_starts_no_other() {
        let bench = Bench::new();
        keys(&bench).await;
        let cancel = bench.cancel.clone();
        let store = Spoilt::new(&bench.store, move |_| {
            cancel.cancel();
            go_on()
        });
        let report = prune_keys(&store, 2, false, &bench.control()).await;
        assert_eq!((report.counters.changed, report.counters.interrupted), (2, true));
        assert_eq!(remaining(&bench).await.len(), 5);
    }
}
