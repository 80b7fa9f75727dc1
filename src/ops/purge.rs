//! Purge: finished deliveries and the events that nobody refers to any more, in batches.

use serde::Serialize;

use crate::store::{PurgeRequest, Result, Store};

use super::bulk::BulkReport;
use super::control::Control;

/// A purge with fixed limits of time.
#[derive(Debug, Clone, Copy)]
pub struct PurgePlan {
    request: PurgeRequest,
    matched: u64,
}

/// What a purge did.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PurgeReport {
    /// The deliveries.
    #[serde(flatten)]
    pub deliveries: BulkReport,
    /// Events that were deleted with the last delivery that referred to them.
    pub events: u64,
}

impl PurgePlan {
    /// What `request` is about now.
    pub async fn new(store: &dyn Store, request: PurgeRequest) -> Result<Self> {
        let matched = store.count_purgeable(&request).await?;
        Ok(PurgePlan { request, matched })
    }

    /// How many deliveries it is about.
    pub fn matched(&self) -> u64 {
        self.matched
    }

    /// Deletes at most `max` deliveries, or all that it is about, one batch after another. What was
    /// deleted before it was stopped stays deleted.
    pub async fn apply(&self, store: &dyn Store, max: Option<u64>, control: &Control<'_>) -> PurgeReport {
        let mut report = PurgeReport { deliveries: BulkReport::about(self.matched), events: 0 };
        if let Err(error) = self.delete_batches(store, max, control, &mut report).await {
            report.deliveries.keep_first_error(error);
        }
        report
    }

    async fn delete_batches(
        &self,
        store: &dyn Store,
        max: Option<u64>,
        control: &Control<'_>,
        report: &mut PurgeReport,
    ) -> Result<()> {
        loop {
            let left = max.map_or(u64::MAX, |max| max.saturating_sub(report.deliveries.changed));
            if left == 0 {
                return Ok(());
            }
            if control.is_cancelled() {
                report.deliveries.interrupted = true;
                return Ok(());
            }
            let batch = u32::try_from(left).map_or(self.request.batch, |left| left.min(self.request.batch));
            let deleted = store.purge_batch(&PurgeRequest { batch, ..self.request }).await?;
            if deleted.deliveries == 0 {
                report.deliveries.ran_to_its_end();
                return Ok(());
            }
            report.deliveries.changed += deleted.deliveries;
            report.events += deleted.events;
            (control.progress)(report.deliveries.done());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::model::Status;
    use crate::ops::bulk::{Verdict, classify};
    use crate::ops::testing::{Bench, Call, Spoilt, go_on, gone};

    async fn plan(bench: &Bench, batch: u32) -> PurgePlan {
        let request = PurgeRequest { completed_before: Some(bench.now()), dead_before: None, batch };
        PurgePlan::new(&bench.store, request).await.unwrap()
    }

    fn numbers(report: &PurgeReport) -> [u64; 3] {
        [report.deliveries.matched, report.deliveries.changed, report.events]
    }

    #[tokio::test]
    async fn deletes_in_batches_until_nothing_is_left() {
        let bench = Bench::new();
        bench.completed(25).await;
        bench.dead(2).await;
        let batches = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&batches);
        let store = Spoilt::new(&bench.store, move |call| {
            seen.lock().unwrap().push(call);
            go_on()
        });
        let plan = plan(&bench, 10).await;
        let report = plan.apply(&store, None, &bench.control()).await;
        assert_eq!(numbers(&report), [25, 25, 25]);
        assert_eq!(*batches.lock().unwrap(), vec![Call::PurgeBatch(10); 4]);
        assert_eq!((bench.count(Status::Completed).await, bench.count(Status::Dead).await), (0, 2));
    }

    #[tokio::test]
    async fn a_maximum_is_kept_exactly() {
        let bench = Bench::new();
        bench.completed(25).await;
        let plan = plan(&bench, 10).await;
        let report = plan.apply(&bench.store, Some(13), &bench.control()).await;
        assert_eq!(numbers(&report), [25, 13, 13]);
        assert_eq!(report.deliveries.skipped, 0);
        assert_eq!(bench.count(Status::Completed).await, 12);
    }

    #[tokio::test]
    async fn a_plan_alone_deletes_nothing() {
        let bench = Bench::new();
        bench.completed(5).await;
        assert_eq!(plan(&bench, 10).await.matched(), 5);
        assert_eq!(bench.count(Status::Completed).await, 5);
    }

    #[tokio::test]
    async fn a_cancel_ends_the_batch_and_starts_no_other() {
        let bench = Bench::new();
        bench.completed(25).await;
        let plan = plan(&bench, 10).await;
        let cancel = bench.cancel.clone();
        let store = Spoilt::new(&bench.store, move |_| {
            cancel.cancel();
            go_on()
        });
        let report = plan.apply(&store, None, &bench.control()).await;
        assert_eq!((numbers(&report), report.deliveries.interrupted), ([25, 10, 10], true));
        assert_eq!(bench.count(Status::Completed).await, 15);
    }

    #[tokio::test]
    async fn what_was_deleted_before_an_error_is_reported() {
        let bench = Bench::new();
        bench.completed(25).await;
        let plan = plan(&bench, 10).await;
        let calls = AtomicUsize::new(0);
        let store = Spoilt::new(&bench.store, move |_| {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 { go_on() } else { gone() }
        });
        let report = plan.apply(&store, None, &bench.control()).await;
        assert_eq!(numbers(&report), [25, 10, 10]);
        assert_eq!(classify(&report.deliveries), Verdict::Partly);
    }

    #[tokio::test]
    async fn what_another_purge_deleted_counts_as_skipped() {
        let bench = Bench::new();
        bench.completed(25).await;
        let plan = plan(&bench, 10).await;
        plan.apply(&bench.store, Some(5), &bench.control()).await;
        let report = plan.apply(&bench.store, None, &bench.control()).await;
        assert_eq!((numbers(&report), report.deliveries.skipped), ([25, 20, 20], 5));
        assert_eq!(classify(&report.deliveries), Verdict::Done);
    }
}
