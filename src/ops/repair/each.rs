//! A repair of deliveries that are named, one by one and several at a time.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt as _, stream};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::model::DeliveryId;
use crate::ops::bulk::{BulkReport, Item, ItemOutcome};
use crate::ops::control::Control;
use crate::ops::pace::{Pace, Pacer};
use crate::store::{ErrorKind, Repair, RepairOutcome, Result, Store, StoreError};

/// How many deliveries are changed at the same time.
const CONCURRENCY: usize = 16;

/// Repairs each of `ids` by compare-and-set, several at a time, and reports on each in the order given; ids that are
/// repeated count once. A requeue brings those of a key back in their order, whatever order was given: a later one might
/// run before an earlier one that is still dead. A dry run looks at them, and changes nothing.
///
/// It stops early when the store does not answer any more.
pub async fn repair_each(
    store: &dyn Store,
    ids: &[DeliveryId],
    repair: &Repair,
    pace: Option<Pace>,
    dry_run: bool,
    control: &Control<'_>,
) -> BulkReport {
    let stop = control.cancel.child_token();
    let pacer = Mutex::new(Pacer::new(pace));
    let each = Each { store, repair, dry_run, control, stop: &stop, pacer, done: AtomicU64::new(0) };
    let mut given = HashSet::new();
    let distinct: Vec<&DeliveryId> = ids.iter().filter(|&id| given.insert(id)).collect();
    let mut ended = each.repair_all(&distinct).await;
    ended.sort_by_key(|ended| ended.place);
    let mut report = BulkReport::default();
    let mut items = Vec::new();
    for Ended { item, error, .. } in ended {
        count(&mut report, &item);
        items.push(item);
        error.into_iter().for_each(|error| report.keep_first_error(error));
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
    pacer: Mutex<Pacer>,
    done: AtomicU64,
}

/// A delivery that was named, and at which place.
#[derive(Clone, Copy)]
struct Named<'a> {
    place: usize,
    id: &'a DeliveryId,
}

/// What became of it.
struct Ended {
    place: usize,
    item: Item,
    error: Option<StoreError>,
}

/// Where a delivery stands: its handler, its key, and its place in that.
type Standing = (String, String, i64);

impl Each<'_> {
    async fn repair_all(&self, ids: &[&DeliveryId]) -> Vec<Ended> {
        let chains = match self.chains(ids).await {
            Ok(chains) => chains,
            Err(ended) => return vec![ended],
        };
        let chains = stream::iter(chains).map(|chain| self.repair_chain(chain));
        chains.buffer_unordered(CONCURRENCY).concat().await
    }

    /// The deliveries in chains that may be changed at the same time, as far as nothing stops it. What cannot be known
    /// about one ends it all: its repair would fail as well.
    async fn chains<'i>(&self, ids: &[&'i DeliveryId]) -> Result<Vec<Vec<Named<'i>>>, Ended> {
        let named = ids.iter().enumerate().map(|(place, &id)| Named { place, id });
        if self.dry_run || matches!(self.repair, Repair::Bury { .. }) {
            return Ok(named.map(|named| vec![named]).collect());
        }
        let looked = stream::iter(named).map(async |named| (named, self.standing(named.id).await));
        let mut looked = std::pin::pin!(looked.buffered(CONCURRENCY).take_until(self.stop.cancelled()));
        let mut chains: Vec<Vec<(i64, Named<'_>)>> = Vec::new();
        let mut chain_of: HashMap<(String, String), usize> = HashMap::new();
        while let Some((named, standing)) = looked.next().await {
            let standing = standing.map_err(|error| failed(named, error))?;
            let Some((handler, key, sequence)) = standing else {
                chains.push(vec![(0, named)]);
                continue;
            };
            let chain = *chain_of.entry((handler, key)).or_insert(chains.len());
            match chains.get_mut(chain) {
                Some(chain) => chain.push((sequence, named)),
                None => chains.push(vec![(sequence, named)]),
            }
        }
        chains.iter_mut().for_each(|chain| chain.sort_by_key(|(sequence, _)| *sequence));
        Ok(chains.into_iter().map(|chain| chain.into_iter().map(|(_, named)| named).collect()).collect())
    }

    /// `None` for one without a key, and for one that does not exist or cannot be understood: its repair tells.
    async fn standing(&self, id: &DeliveryId) -> Result<Option<Standing>> {
        match self.store.get(id).await {
            Ok(delivery) => Ok(delivery.and_then(|it| Some((it.handler, it.key?, it.sequence?)))),
            Err(error) if error.kind() == ErrorKind::Unavailable => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// One after the other, until something stops it.
    async fn repair_chain(&self, chain: Vec<Named<'_>>) -> Vec<Ended> {
        let mut ended = Vec::new();
        for named in chain {
            if !self.may_go_on().await {
                break;
            }
            ended.push(self.repair(named).await);
            (self.control.progress)(self.done.fetch_add(1, Ordering::Relaxed) + 1);
        }
        ended
    }

    async fn may_go_on(&self) -> bool {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            () = async { self.pacer.lock().await.wait(1).await } => true,
        }
    }

    async fn repair(&self, named: Named<'_>) -> Ended {
        let Named { place, id } = named;
        match if self.dry_run { self.look_at(id).await } else { self.change(id).await } {
            Ok(outcome) => Ended { place, item: Item { id: id.clone(), outcome }, error: None },
            Err(error) => {
                if error.kind() == ErrorKind::Unavailable {
                    self.stop.cancel();
                }
                failed(named, error)
            }
        }
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

fn failed(named: Named<'_>, error: StoreError) -> Ended {
    let outcome = ItemOutcome::Failed { error: error.to_string() };
    Ended { place: named.place, item: Item { id: named.id.clone(), outcome }, error: Some(error) }
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
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::model::Status;
    use crate::ops::testing::{Bench, Spoilt, go_on, gone, pace};

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
        let report =
            repair_each(&bench.store, &ids, &requeue(&bench), pace("10/s"), false, &bench.control()).await;
        assert_eq!(report.changed, 11);
        let taken = begin.elapsed();
        assert!(taken >= Duration::from_secs(1) && taken < Duration::from_millis(1_100), "{taken:?}");
    }

    /// Sixteen at a time would otherwise let any of them be first.
    #[tokio::test]
    async fn those_of_a_key_come_back_in_their_order_whatever_order_was_given() {
        let bench = Bench::new();
        let mut ids = bench.dead_of_key("k", 40).await;
        ids.extend(bench.dead(20).await);
        fastrand::Rng::with_seed(7).shuffle(&mut ids);
        let store = Spoilt::in_order_of_keys(&bench.store);
        let report = repair_each(&store, &ids, &requeue(&bench), None, false, &bench.control()).await;
        assert_eq!(numbers(&report), [60, 60, 0, 0]);
        let told: Vec<_> = report.items.unwrap().into_iter().map(|item| item.id).collect();
        assert_eq!(told, ids, "the report is in the order given");
    }
}
