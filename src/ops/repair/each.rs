//! A repair of deliveries that are named, one by one and several at a time.

use std::collections::HashSet;

use futures_util::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use crate::model::DeliveryId;
use crate::ops::Rate;
use crate::ops::bulk::{BulkReport, Item, ItemOutcome};
use crate::ops::control::Control;
use crate::ops::rate::Pacer;
use crate::store::{ErrorKind, Repair, RepairOutcome, Result, Store, StoreError};

/// How many deliveries are changed at the same time.
const CONCURRENCY: usize = 16;

/// Repairs each of `ids` by compare-and-set, several at a time, and reports on each in the order given; ids that are
/// repeated count once. A dry run looks at them, and changes nothing.
///
/// It stops early when the store does not answer any more.
pub async fn repair_each(
    store: &dyn Store,
    ids: &[DeliveryId],
    repair: &Repair,
    rate: Option<Rate>,
    dry_run: bool,
    control: &Control<'_>,
) -> BulkReport {
    let stop = control.cancel.child_token();
    let each = Each { store, repair, dry_run, control, stop: &stop };
    let mut given = HashSet::new();
    let distinct: Vec<&DeliveryId> = ids.iter().filter(|&id| given.insert(id)).collect();
    let paced = stream::unfold((distinct.iter(), Pacer::new(rate)), async |(mut ids, mut pacer)| {
        let id = ids.next()?;
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            () = pacer.wait(1) => Some((id, (ids, pacer))),
        }
    });
    let mut outcomes = std::pin::pin!(paced.map(|id| each.repair(id)).buffered(CONCURRENCY));
    let mut report = BulkReport::default();
    let mut items = Vec::new();
    while let Some((item, error)) = outcomes.next().await {
        count(&mut report, &item);
        items.push(item);
        error.into_iter().for_each(|error| report.keep_first_error(error));
        (control.progress)(items.len() as u64);
    }
    report.interrupted = control.is_cancelled() && items.len() < distinct.len();
    report.items = Some(items);
    report
}

/// What the repairs of single deliveries have in common.
struct Each<'a> {
    store: &'a dyn Store,
    repair: &'a Repair,
    dry_run: bool,
    control: &'a Control<'a>,
    stop: &'a CancellationToken,
}

impl Each<'_> {
    async fn repair(&self, id: &DeliveryId) -> (Item, Option<StoreError>) {
        let outcome = if self.dry_run { self.look_at(id).await } else { self.change(id).await };
        let (outcome, error) = match outcome {
            Ok(outcome) => (outcome, None),
            Err(error) => {
                if error.kind() == ErrorKind::Unavailable {
                    self.stop.cancel();
                }
                (ItemOutcome::Failed { error: error.to_string() }, Some(error))
            }
        };
        (Item { id: id.clone(), outcome }, error)
    }

    async fn change(&self, id: &DeliveryId) -> Result<ItemOutcome> {
        Ok(match self.store.repair(id, self.repair, self.control.now()).await? {
            RepairOutcome::Changed => ItemOutcome::Changed,
            RepairOutcome::Skipped(status) => ItemOutcome::Skipped { status },
            RepairOutcome::Missing => ItemOutcome::Missing,
        })
    }

    async fn look_at(&self, id: &DeliveryId) -> Result<ItemOutcome> {
        Ok(match self.store.get(id).await?.map(|delivery| delivery.status) {
            Some(status) if self.repair.applies_to().contains(&status) => ItemOutcome::WouldChange,
            Some(status) => ItemOutcome::Skipped { status },
            None => ItemOutcome::Missing,
        })
    }
}

fn count(report: &mut BulkReport, item: &Item) {
    match item.outcome {
        ItemOutcome::Changed => report.changed += 1,
        ItemOutcome::Skipped { .. } => report.skipped += 1,
        ItemOutcome::Missing | ItemOutcome::Failed { .. } => report.failed += 1,
        ItemOutcome::WouldChange => {}
    }
    let is_found = !matches!(item.outcome, ItemOutcome::Missing | ItemOutcome::Failed { .. });
    report.matched += u64::from(is_found);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::model::Status;
    use crate::ops::testing::{Bench, Spoilt, go_on, gone};

    fn requeue(bench: &Bench) -> Repair {
        Repair::Requeue { available_at: bench.now() }
    }

    fn numbers(report: &BulkReport) -> [u64; 4] {
        [report.matched, report.changed, report.skipped, report.failed]
    }

    #[tokio::test]
    async fn each_id_gets_its_own_outcome_in_the_order_given() {
        let bench = Bench::new();
        let dead = bench.dead(2).await;
        let completed = bench.completed(1).await;
        let missing = DeliveryId::from(r#"{"$gt":""}"#);
        let ids = [&dead[1], &missing, &completed[0], &dead[0], &dead[1]].map(Clone::clone);
        let dry = repair_each(&bench.store, &ids, &requeue(&bench), None, true, &bench.control()).await;
        assert_eq!(numbers(&dry), [3, 0, 1, 1]);
        assert_eq!(bench.count(Status::Dead).await, 2);

        let report = repair_each(&bench.store, &ids, &requeue(&bench), None, false, &bench.control()).await;
        assert_eq!(numbers(&report), [3, 2, 1, 1]);
        let outcomes: Vec<_> =
            report.items.unwrap().into_iter().map(|item| (item.id, item.outcome)).collect();
        let skipped = ItemOutcome::Skipped { status: Status::Completed };
        assert_eq!(
            outcomes,
            [
                (dead[1].clone(), ItemOutcome::Changed),
                (missing, ItemOutcome::Missing),
                (completed[0].clone(), skipped),
                (dead[0].clone(), ItemOutcome::Changed),
            ]
        );
    }

    #[tokio::test]
    async fn ids_are_changed_sixteen_at_a_time() {
        let bench = Bench::new();
        let ids = bench.dead(100).await;
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (now_running, peak) = (Arc::clone(&running), Arc::clone(&most));
        let store = Spoilt::new(&bench.store, move |_| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            Box::pin(async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            })
        });
        let report = repair_each(&store, &ids, &requeue(&bench), None, false, &bench.control()).await;
        assert_eq!(report.changed, 100);
        assert_eq!((peak.load(Ordering::SeqCst), now_running.load(Ordering::SeqCst)), (CONCURRENCY, 0));
    }

    #[tokio::test]
    async fn a_store_that_went_away_is_not_asked_for_every_id() {
        let bench = Bench::new();
        let ids = bench.dead(100).await;
        let store = Spoilt::new(&bench.store, |_| gone());
        let report = repair_each(&store, &ids, &requeue(&bench), None, false, &bench.control()).await;
        assert!(report.failed >= 1 && report.failed <= CONCURRENCY as u64, "{report:?}");
        assert_eq!((report.changed, report.interrupted), (0, false));
        assert_eq!(report.error.unwrap().kind(), ErrorKind::Unavailable);
    }

    #[tokio::test]
    async fn a_cancel_between_ids_lets_those_under_way_end() {
        let bench = Bench::new();
        let ids = bench.dead(100).await;
        let cancel = bench.cancel.clone();
        let store = Spoilt::new(&bench.store, move |_| {
            cancel.cancel();
            go_on()
        });
        let report = repair_each(&store, &ids, &requeue(&bench), None, false, &bench.control()).await;
        assert!(report.interrupted);
        assert!(report.changed >= 1 && report.changed <= CONCURRENCY as u64);
        assert_eq!(bench.count(Status::Pending).await as u64, report.changed);
    }

    #[tokio::test(start_paused = true)]
    async fn ids_keep_to_a_rate_too() {
        let bench = Bench::new();
        let ids = bench.dead(11).await;
        let begin = tokio::time::Instant::now();
        let rate = Some("10/s".parse().unwrap());
        let report = repair_each(&bench.store, &ids, &requeue(&bench), rate, false, &bench.control()).await;
        assert_eq!(report.changed, 11);
        let taken = begin.elapsed();
        assert!(taken >= Duration::from_secs(1) && taken < Duration::from_millis(1_100), "{taken:?}");
    }
}
