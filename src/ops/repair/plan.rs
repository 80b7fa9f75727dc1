//! A repair of all that a filter selects, in batches.

use std::time::Duration;

use futures_util::StreamExt as _;

use super::order::{Held, Order};
use crate::model::{Cursor, Delivery, DeliveryId, Filter, ListQuery, Selection, SortBy, Status, Timestamp};
use crate::ops::bulk::BulkReport;
use crate::ops::control::Control;
use crate::ops::pace::{Pace, Pacer};
use crate::store::{ErrorKind, Repair, Result, Store, StoreError};

/// How many deliveries one bulk write changes at most.
const BATCH: u64 = 1_000;

/// A filter that selects nothing to which the repair applies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Inapplicable {
    /// It names a status of which the repair changes nothing.
    #[error("{verb} applies to {applies_to} deliveries, and never to {status} ones")]
    Status {
        /// The repair, as in "requeue".
        verb: &'static str,
        /// The statuses that it applies to, in words.
        applies_to: String,
        /// The status that was named.
        status: Status,
    },
    /// It has a condition that only unfinished deliveries meet, or only finished ones.
    #[error("{verb} applies to {applies_to} deliveries, and {condition} never holds for those")]
    Condition {
        /// The repair.
        verb: &'static str,
        /// The statuses that it applies to, in words.
        applies_to: String,
        /// The condition, in words.
        condition: &'static str,
    },
}

const fn verb(repair: &Repair) -> &'static str {
    match repair {
        Repair::Requeue { .. } => "requeue",
        Repair::Bury { .. } => "bury",
    }
}

/// `filter` narrowed to the statuses to which `repair` applies.
fn narrowed(filter: &Filter, repair: &Repair) -> Result<Filter, Inapplicable> {
    let applicable = repair.applies_to();
    let in_words = || applicable.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(" and ");
    if let Some(&status) = filter.statuses.iter().find(|status| !applicable.contains(status)) {
        return Err(Inapplicable::Status { verb: verb(repair), applies_to: in_words(), status });
    }
    let contradiction = match repair {
        Repair::Requeue { .. } if filter.lane.is_some() => Some("being in a lane"),
        Repair::Requeue { .. } if filter.due_before.is_some() => Some("being overdue"),
        Repair::Bury { .. } if filter.finished_before.is_some() => Some("having finished"),
        _ => None,
    };
    if let Some(condition) = contradiction {
        return Err(Inapplicable::Condition { verb: verb(repair), applies_to: in_words(), condition });
    }
    let mut filter = filter.clone();
    if filter.statuses.is_empty() {
        filter.statuses = applicable.to_vec();
    }
    Ok(filter)
}

/// A repair of everything that a filter selected when the plan was made.
#[derive(Debug, Clone)]
pub struct RepairPlan {
    selection: Selection,
    repair: Repair,
    matched: u64,
}

/// How much of a plan is applied, and how fast.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// Changes at most this many; all when absent.
    pub limit: Option<u64>,
    /// Keeps to this pace; as fast as the store allows when absent.
    pub pace: Option<Pace>,
}

impl Bounds {
    /// How many to change next, `batch` at most, when so many are changed: 0 when the limit is reached.
    pub(in crate::ops) fn batch_size(&self, changed: u64, batch: u64) -> u64 {
        let left = self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(changed));
        let burst = self.pace.map_or(batch, |pace| pace.rate.burst());
        left.min(burst).min(batch)
    }
}

impl RepairPlan {
    /// What a repair of `filter` is about at `cutoff`. What is created, changes or dies after it stays out.
    ///
    /// # Errors
    /// [`Inapplicable`] when the repair can never apply to what the filter selects.
    pub fn new(filter: &Filter, repair: Repair, cutoff: Timestamp) -> Result<Self, Inapplicable> {
        let mut filter = narrowed(filter, &repair)?;
        // A listing goes by creation: this keeps it from running after those that arrive while it runs.
        let behind_cutoff = cutoff.saturating_add(Duration::from_millis(1));
        filter.until = Some(filter.until.map_or(behind_cutoff, |until| until.min(behind_cutoff)));
        Ok(RepairPlan { selection: Selection { filter, cutoff }, repair, matched: 0 })
    }

    /// The same plan, and how many deliveries it is about.
    pub async fn counted(self, store: &dyn Store) -> Result<Self> {
        let matched = store.count(&self.selection).await?;
        Ok(RepairPlan { matched, ..self })
    }

    /// How many deliveries it is about; none before they were [counted](Self::counted).
    pub fn matched(&self) -> u64 {
        self.matched
    }

    /// The first `count` of them, in the order in which they will be changed. Leaves out what cannot be read.
    pub async fn sample(&self, store: &dyn Store, count: usize) -> Result<Vec<Delivery>> {
        let mut listing =
            store.list(&ListQuery { filter: self.selection.filter.clone(), ..ListQuery::default() });
        let mut sample = Vec::new();
        while sample.len() < count {
            match listing.next().await {
                Some(Ok(delivery)) if self.selection.matches(&delivery) => sample.push(delivery),
                Some(Ok(_)) => {}
                Some(Err(error)) if error.kind() == ErrorKind::Corrupt => {}
                Some(Err(error)) => return Err(error),
                None => break,
            }
        }
        Ok(sample)
    }

    /// Makes the change, oldest first, in batches; reports what it did, also when it could not go on.
    pub async fn apply(&self, store: &dyn Store, bounds: Bounds, control: &Control<'_>) -> BulkReport {
        let mut run = Run {
            plan: self,
            store,
            bounds,
            control,
            report: BulkReport::about(self.matched),
            pacer: Pacer::new(bounds.pace),
            after: None,
            held: Held::default(),
        };
        match run.batches().await {
            Ok(End::Exhausted) => run.report.ran_to_its_end(),
            Ok(End::AtLimit) => {}
            Ok(End::Interrupted) => run.report.interrupted = true,
            Err(error) => run.report.keep_first_error(error),
        }
        run.report
    }
}

/// One application of a plan.
struct Run<'a> {
    plan: &'a RepairPlan,
    store: &'a dyn Store,
    bounds: Bounds,
    control: &'a Control<'a>,
    report: BulkReport,
    pacer: Pacer,
    /// The place behind which the walk by creation goes on.
    after: Option<Cursor>,
    held: Held,
}

/// Why a run stopped without an error.
enum End {
    Exhausted,
    AtLimit,
    Interrupted,
}

/// Some deliveries of the selection, and where to go on.
#[derive(Default)]
struct Page {
    ids: Vec<DeliveryId>,
    held: Held,
    unreadable: Unreadable,
    /// The place of the last one that could be read; absent when there was none.
    last: Option<Cursor>,
    is_last: bool,
}

/// Deliveries that were met and cannot be read: how many, and what the store said of the first.
#[derive(Default)]
struct Unreadable {
    count: u64,
    first: Option<StoreError>,
}

impl Unreadable {
    fn add(&mut self, error: StoreError) {
        self.count += 1;
        self.first.get_or_insert(error);
    }

    fn take_over(&mut self, other: &mut Unreadable) {
        let Unreadable { count, first } = std::mem::take(other);
        self.count += count;
        self.first = self.first.take().or(first);
    }
}

impl Run<'_> {
    /// Those whose order is not that of their creation are held back during the walk and come at its end.
    async fn batches(&mut self) -> Result<End> {
        let order = Order::of(self.store, &self.plan.selection, &self.plan.repair);
        let Some(order) = self.control.unless_cancelled(order).await else { return Ok(End::Interrupted) };
        let order = order?;
        loop {
            let end = self.walk(&order).await?;
            if matches!(end, End::Interrupted) || self.change_held().await?.is_none() {
                return Ok(End::Interrupted);
            }
            // Of those that were held back, some may have been skipped: that leaves room for others.
            if matches!(end, End::Exhausted) || self.batch_size() == 0 {
                return Ok(end);
            }
        }
    }

    async fn walk(&mut self, order: &Order) -> Result<End> {
        loop {
            let size = self.batch_size();
            if size == 0 {
                return Ok(End::AtLimit);
            }
            let page = self.page(order, size);
            let Some(page) = self.control.unless_cancelled(page).await else { return Ok(End::Interrupted) };
            let page = page?;
            self.held.take_over(page.held);
            if self.change(&page.ids).await?.is_none() {
                return Ok(End::Interrupted);
            }
            self.report.failed += page.unreadable.count;
            page.unreadable.first.into_iter().for_each(|error| self.report.keep_first_error(error));
            (self.control.progress)(self.report.done());
            if page.is_last {
                return Ok(End::Exhausted);
            }
            self.after = page.last;
        }
    }

    /// Changes those that were held back, each key's in its order. `None` when it was stopped before its end.
    async fn change_held(&mut self) -> Result<Option<()>> {
        let mut ids = std::mem::take(&mut self.held).in_order();
        while !ids.is_empty() {
            let size = usize::try_from(self.batch_size()).unwrap_or(usize::MAX).min(ids.len());
            let batch: Vec<DeliveryId> = ids.drain(..size).collect();
            if self.change(&batch).await?.is_none() {
                return Ok(None);
            }
            (self.control.progress)(self.report.done());
        }
        Ok(Some(()))
    }

    /// How many to take next: 0 when the limit is reached.
    fn batch_size(&self) -> u64 {
        self.bounds.batch_size(self.report.changed + self.held.len() as u64, BATCH)
    }

    /// The next `size` deliveries behind `after`, fewer at the end. The place is one of creation, which no repair
    /// changes: rows that leave the selection behind it or in front of it move nothing.
    async fn page(&self, order: &Order, size: u64) -> Result<Page> {
        let mut limit = size;
        loop {
            let page = self.read_page(order, size, limit).await?;
            if page.is_last || page.last.is_some() {
                return Ok(page);
            }
            // Nothing but unreadable ones: they have no place to go on from, so look further.
            limit = limit.saturating_mul(8);
        }
    }

    async fn read_page(&self, order: &Order, size: u64, limit: u64) -> Result<Page> {
        let RepairPlan { selection, .. } = self.plan;
        let (filter, after) = (selection.filter.clone(), self.after.clone());
        let query = ListQuery { filter, after, limit: Some(limit), ..ListQuery::default() };
        let mut listing = self.store.list(&query);
        let mut page = Page::default();
        // Those behind the last readable one are met again by the next page, and counted there.
        let mut trailing = Unreadable::default();
        let mut seen = 0;
        while ((page.ids.len() + page.held.len()) as u64) < size {
            match listing.next().await {
                Some(Ok(delivery)) => {
                    page.unreadable.take_over(&mut trailing);
                    page.last = Cursor::at(&delivery, SortBy::Created, false);
                    if !selection.matches(&delivery) {
                        // It has changed since the plan was made.
                    } else if let Some(place) = order.place_of(&delivery) {
                        page.held.push(place, delivery.id);
                    } else {
                        page.ids.push(delivery.id);
                    }
                }
                Some(Err(error)) if error.kind() == ErrorKind::Corrupt => trailing.add(error),
                Some(Err(error)) => return Err(error),
                None => {
                    page.is_last = seen < limit;
                    break;
                }
            }
            seen += 1;
        }
        if page.is_last {
            page.unreadable.take_over(&mut trailing);
        }
        Ok(page)
    }

    /// Changes a batch when its time has come. `None` when it was stopped before.
    async fn change(&mut self, ids: &[DeliveryId]) -> Result<Option<()>> {
        if ids.is_empty() {
            return Ok(Some(()));
        }
        let its_time = self.pacer.wait(ids.len() as u64);
        if self.control.unless_cancelled(its_time).await.is_none() {
            return Ok(None);
        }
        let RepairPlan { selection, repair, .. } = self.plan;
        let changed = self.store.repair_selected(ids, selection, repair, self.control.now()).await;
        let tried = ids.len() as u64;
        match changed {
            Ok(changed) => {
                self.report.changed += changed;
                self.report.skipped += tried.saturating_sub(changed);
                Ok(Some(()))
            }
            // Some of them may have been changed: only a second look could tell.
            Err(error) => {
                self.report.failed += tried;
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::model::{FailureKind, Lane};
    use crate::ops::bulk::{Verdict, classify};
    use crate::ops::testing::{Bench, Call, Spoilt, go_on, gone, pace};

    const NO_BOUNDS: Bounds = Bounds { limit: None, pace: None };

    fn requeue(bench: &Bench) -> Repair {
        Repair::Requeue { available_at: bench.now() }
    }

    fn bury() -> Repair {
        Repair::Bury { reason: "not needed".to_owned() }
    }

    async fn plan(bench: &Bench, repair: Repair) -> RepairPlan {
        let plan = RepairPlan::new(&Filter::default(), repair, bench.now()).unwrap();
        plan.counted(&bench.store).await.unwrap()
    }

    fn numbers(report: &BulkReport) -> [u64; 4] {
        [report.matched, report.changed, report.skipped, report.failed]
    }

    #[tokio::test]
    async fn a_selection_is_changed_in_batches_to_its_end() {
        let bench = Bench::new();
        bench.dead(2_500).await;
        bench.completed(5).await;
        let batches = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&batches);
        let store = Spoilt::new(&bench.store, move |call| {
            seen.lock().unwrap().push(call);
            go_on()
        });
        let plan = plan(&bench, requeue(&bench)).await;
        let report = plan.apply(&store, NO_BOUNDS, &bench.control()).await;
        assert_eq!(numbers(&report), [2_500, 2_500, 0, 0]);
        assert_eq!(classify(&report), Verdict::Done);
        let sizes = [1_000, 1_000, 500].map(Call::RepairSelected);
        assert_eq!(*batches.lock().unwrap(), sizes);
        assert_eq!(bench.count(Status::Pending).await, 2_500);
        assert_eq!(bench.count(Status::Completed).await, 5);
    }

    #[tokio::test]
    async fn what_dies_or_arrives_after_the_plan_stays_out() {
        let bench = Bench::new();
        bench.dead(3).await;
        let plan = plan(&bench, requeue(&bench)).await;
        bench.clock.advance(Duration::from_millis(1));
        let later = bench.dead(2).await;
        let report = plan.apply(&bench.store, NO_BOUNDS, &bench.control()).await;
        assert_eq!(numbers(&report), [3, 3, 0, 0]);
        for id in &later {
            assert_eq!(bench.status(id).await, Status::Dead);
        }
    }

    #[tokio::test]
    async fn what_died_again_after_the_plan_stays_dead_and_counts_as_skipped() {
        let bench = Bench::new();
        let ids = bench.dead(3).await;
        let plan = plan(&bench, requeue(&bench)).await;
        bench.clock.advance(Duration::from_millis(1));
        bench.store.repair(&ids[1], &requeue(&bench), bench.now()).await.unwrap();
        bench.store.repair(&ids[1], &bury(), bench.now()).await.unwrap();
        let report = plan.apply(&bench.store, NO_BOUNDS, &bench.control()).await;
        assert_eq!(numbers(&report), [3, 2, 1, 0]);
        assert_eq!(classify(&report), Verdict::Done);
        assert_eq!(bench.status(&ids[1]).await, Status::Dead);
    }

    #[tokio::test]
    async fn a_limit_takes_the_oldest() {
        let bench = Bench::new();
        let mut ids = bench.dead(3).await;
        ids.extend(bench.dead(3).await);
        let plan = plan(&bench, requeue(&bench)).await;
        let bounds = Bounds { limit: Some(4), pace: None };
        let report = plan.apply(&bench.store, bounds, &bench.control()).await;
        assert_eq!(numbers(&report), [6, 4, 0, 0]);
        assert_eq!(bench.count(Status::Dead).await, 2);
        for id in &ids[..3] {
            assert_eq!(bench.status(id).await, Status::Pending);
        }
    }

    #[tokio::test]
    async fn a_limit_counts_what_was_changed_and_not_what_was_tried() {
        let bench = Bench::new();
        let ids = bench.dead(5).await;
        let plan = plan(&bench, requeue(&bench)).await;
        let sibling = bench.store.clone();
        let (now, raced) = (bench.now(), AtomicUsize::new(0));
        let repair = requeue(&bench);
        let store = Spoilt::new(&bench.store, move |_| {
            let (sibling, ids, repair) = (sibling.clone(), ids.clone(), repair.clone());
            let is_first = raced.fetch_add(1, Ordering::SeqCst) == 0;
            Box::pin(async move {
                for id in ids.iter().filter(|_| is_first).take(2) {
                    sibling.repair(id, &repair, now).await?;
                }
                Ok(())
            })
        });
        let bounds = Bounds { limit: Some(3), pace: None };
        let report = plan.apply(&store, bounds, &bench.control()).await;
        assert_eq!(numbers(&report), [5, 3, 2, 0]);
        assert_eq!(bench.count(Status::Dead).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_spreads_the_changes_evenly() {
        let bench = Bench::new();
        bench.dead(100).await;
        let plan = plan(&bench, requeue(&bench)).await;
        let begin = tokio::time::Instant::now();
        let batches = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&batches);
        let store = Spoilt::new(&bench.store, move |call| {
            seen.lock().unwrap().push((call, begin.elapsed()));
            go_on()
        });
        let bounds = Bounds { limit: None, pace: pace("50/s") };
        let report = plan.apply(&store, bounds, &bench.control()).await;
        assert_eq!(numbers(&report), [100, 100, 0, 0]);
        let batches = batches.lock().unwrap();
        assert_eq!(batches.len(), 20);
        for (n, &(call, at)) in batches.iter().enumerate() {
            // The timer of the runtime counts whole milliseconds.
            let due = Duration::from_millis(100 * n as u64);
            assert!(call == Call::RepairSelected(5) && at >= due && at <= due + Duration::from_millis(2));
        }
    }

    #[tokio::test]
    async fn a_cancel_ends_the_batch_and_starts_no_other() {
        let bench = Bench::new();
        bench.dead(2_500).await;
        let plan = plan(&bench, requeue(&bench)).await;
        let cancel = bench.cancel.clone();
        let store = Spoilt::new(&bench.store, move |_| {
            cancel.cancel();
            go_on()
        });
        let report = plan.apply(&store, NO_BOUNDS, &bench.control()).await;
        assert_eq!((numbers(&report), report.interrupted), ([2_500, 1_000, 0, 0], true));
        assert_eq!(bench.count(Status::Pending).await, 1_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_ends_the_wait_for_the_rate() {
        let bench = Bench::new();
        bench.dead(2).await;
        let plan = plan(&bench, requeue(&bench)).await;
        let begin = tokio::time::Instant::now();
        let cancel_later = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            bench.cancel.cancel();
        };
        let bounds = Bounds { limit: None, pace: pace("1/h") };
        let control = bench.control();
        let (report, ()) = tokio::join!(plan.apply(&bench.store, bounds, &control), cancel_later);
        assert_eq!((report.changed, report.interrupted), (1, true));
        assert!(begin.elapsed() < Duration::from_secs(2));
    }

    #[tokio::test]
    async fn two_operators_share_a_selection_and_change_each_delivery_once() {
        let bench = Bench::new();
        bench.dead(3_000).await;
        let plan = plan(&bench, requeue(&bench)).await;
        let other = plan.clone();
        bench.clock.advance(Duration::from_millis(1));
        let control = bench.control();
        let (one, two) = tokio::join!(
            plan.apply(&bench.store, NO_BOUNDS, &control),
            other.apply(&bench.store, NO_BOUNDS, &control)
        );
        assert_eq!(one.changed + two.changed, 3_000);
        assert_eq!([one.done(), two.done()], [3_000, 3_000]);
        assert!(bench.all().await.iter().all(|delivery| delivery.requeues == 1));
    }

    #[tokio::test]
    async fn an_error_ends_the_run_and_the_report_says_how_far_it_came() {
        let bench = Bench::new();
        bench.dead(2_500).await;
        let plan = plan(&bench, requeue(&bench)).await;
        let calls = AtomicUsize::new(0);
        let store = Spoilt::new(&bench.store, move |_| {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 { go_on() } else { gone() }
        });
        let report = plan.apply(&store, NO_BOUNDS, &bench.control()).await;
        assert_eq!(numbers(&report), [2_500, 1_000, 0, 1_000]);
        assert_eq!(classify(&report), Verdict::Partly);
        assert_eq!(report.error.unwrap().kind(), ErrorKind::Unavailable);
    }

    #[tokio::test(start_paused = true)]
    async fn unreadable_deliveries_are_counted_once_and_stop_nothing() {
        let bench = Bench::new();
        bench.dead(20).await;
        let plan = plan(&bench, requeue(&bench)).await;
        for pace in [None, pace("10/s")] {
            let mut store = Spoilt::new(&bench.store, |_| go_on());
            store.unreadable = 30;
            let report = plan.apply(&store, Bounds { limit: None, pace }, &bench.control()).await;
            assert_eq!(report.failed, 30, "{report:?}");
            assert_eq!(report.error.unwrap().to_string(), "delivery 0");
            assert_eq!(bench.count(Status::Pending).await, 20);
        }
    }

    #[tokio::test]
    async fn bury_takes_pending_and_processing_ones_and_records_the_reason() {
        let bench = Bench::new();
        bench.dead(1).await;
        bench.pending(2).await;
        let plan = plan(&bench, bury()).await;
        let report = plan.apply(&bench.store, NO_BOUNDS, &bench.control()).await;
        assert_eq!(numbers(&report), [2, 2, 0, 0]);
        let buried = bench.all().await;
        let buried = buried.iter().filter(|delivery| delivery.last_error.as_deref() == Some("not needed"));
        assert!(buried.clone().all(|delivery| delivery.errors[0].kind == FailureKind::Buried));
        assert_eq!(buried.count(), 2);
    }

    #[tokio::test]
    async fn a_sample_shows_the_first_that_will_be_changed() {
        let bench = Bench::new();
        bench.pending(1).await;
        let first = bench.dead(1).await;
        bench.dead(4).await;
        let plan = plan(&bench, requeue(&bench)).await;
        let sample = plan.sample(&bench.store, 3).await.unwrap();
        assert_eq!(sample.len(), 3);
        assert_eq!(sample[0].id, first[0]);
        assert!(sample.iter().all(|delivery| delivery.status == Status::Dead));
    }

    #[test]
    fn a_filter_to_which_the_repair_never_applies_is_refused() {
        let with = |statuses: &[Status]| Filter { statuses: statuses.to_vec(), ..Filter::default() };
        let requeue = Repair::Requeue { available_at: Timestamp::EPOCH };
        let refusal = |filter: &Filter, repair: &Repair| narrowed(filter, repair).unwrap_err().to_string();
        assert_eq!(
            refusal(&with(&[Status::Dead, Status::Pending]), &requeue),
            "requeue applies to dead deliveries, and never to pending ones"
        );
        assert_eq!(
            refusal(&with(&[Status::Completed]), &bury()),
            "bury applies to pending and processing deliveries, and never to completed ones"
        );
        assert_eq!(narrowed(&with(&[]), &requeue).unwrap().statuses, [Status::Dead]);
        assert_eq!(narrowed(&with(&[]), &bury()).unwrap().statuses, [Status::Pending, Status::Processing]);
        assert_eq!(narrowed(&with(&[Status::Pending]), &bury()).unwrap().statuses, [Status::Pending]);
        let parked = Filter { lane: Some(Lane::Parked), ..Filter::default() };
        assert!(narrowed(&parked, &bury()).is_ok());
        assert!(refusal(&parked, &requeue).contains("being in a lane"));
    }

    /// Those of a key were appended by hosts whose clocks differ: the later in its order, the older.
    #[tokio::test(start_paused = true)]
    async fn a_key_comes_back_in_its_order_however_its_deliveries_were_created() {
        for (limit, changed) in [(None, 90), (Some(23), 23), (Some(60), 60)] {
            let bench = Bench::new();
            bench.dead(20).await;
            bench.dead_of_key("backwards", 40).await;
            bench.dead(10).await;
            bench.dead_of_key("forwards", 20).await;
            let plan = plan(&bench, requeue(&bench)).await;
            let store = Spoilt::in_order_of_keys(&bench.store);
            let bounds = Bounds { limit, pace: pace("50/s") };
            let report = plan.apply(&store, bounds, &bench.control()).await;
            assert_eq!(numbers(&report), [90, changed, 0, 0]);
            assert_eq!(bench.count(Status::Pending).await as u64, changed);
        }
    }

    #[tokio::test]
    async fn what_was_held_back_and_is_skipped_leaves_room_for_others() {
        let bench = Bench::new();
        let ids = bench.dead_of_key("backwards", 4).await;
        bench.dead(4).await;
        let plan = plan(&bench, requeue(&bench)).await;
        bench.clock.advance(Duration::from_millis(1));
        let (sibling, now, first) = (bench.store.clone(), bench.now(), ids[0].clone());
        let again = requeue(&bench);
        let store = Spoilt::new(&bench.store, move |_| {
            let (sibling, first, again) = (sibling.clone(), first.clone(), again.clone());
            Box::pin(async move { sibling.repair(&first, &again, now).await.map(drop) })
        });
        let bounds = Bounds { limit: Some(5), pace: None };
        let report = plan.apply(&store, bounds, &bench.control()).await;
        assert_eq!(numbers(&report), [8, 5, 1, 0]);
    }
}
