//! Backfill: deliveries of a handler for events that came before it.

use std::time::Duration;

use crate::model::{EventId, Timestamp, TypePattern};
use crate::store::{BackfillRequest, Result, Store};

use super::bulk::BulkReport;
use super::control::Control;
use super::pace::Pacer;
use super::repair::Bounds;

/// How many events one transaction extends at most.
const BATCH: u64 = 250;

/// A backfill of the events that were there when the plan was made.
#[derive(Debug, Clone)]
pub struct BackfillPlan {
    request: BackfillRequest,
    matched: u64,
}

impl BackfillPlan {
    /// The events of these types that were created from `since` on, before `until`, and not after `cutoff`.
    pub fn new(
        handler: &str,
        event_type: TypePattern,
        since: Option<Timestamp>,
        until: Option<Timestamp>,
        cutoff: Timestamp,
    ) -> Self {
        let behind_cutoff = cutoff.saturating_add(Duration::from_millis(1));
        let until = until.map_or(behind_cutoff, |until| until.min(behind_cutoff));
        let request = BackfillRequest { handler: handler.to_owned(), event_type, since, until, after: None };
        BackfillPlan { request, matched: 0 }
    }

    /// The same plan, and how many events it is about.
    pub async fn counted(mut self, store: &dyn Store) -> Result<Self> {
        let mut request = self.request.clone();
        loop {
            let page = store.events_without(&request).await?;
            self.matched += page.events.len() as u64;
            if page.last.is_none() {
                return Ok(self);
            }
            request.after = page.last;
        }
    }

    /// How many events it is about; none before they were [counted](Self::counted).
    pub fn matched(&self) -> u64 {
        self.matched
    }

    /// Adds the deliveries in batches, those of a key in the order of its events; reports what it did, also when it
    /// could not go on. What was done before it was stopped stays, and running it again goes on.
    pub async fn apply(&self, store: &dyn Store, bounds: Bounds, control: &Control<'_>) -> BulkReport {
        let report = BulkReport::about(self.matched);
        let mut run = Run { store, bounds, control, pacer: Pacer::new(bounds.pace), report };
        match run.pages(self.request.clone()).await {
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
    store: &'a dyn Store,
    bounds: Bounds,
    control: &'a Control<'a>,
    pacer: Pacer,
    report: BulkReport,
}

/// Why a run stopped without an error.
enum End {
    Exhausted,
    AtLimit,
    Interrupted,
}

impl Run<'_> {
    async fn pages(&mut self, mut request: BackfillRequest) -> Result<End> {
        let handler = request.handler.clone();
        loop {
            let Some(page) = self.control.unless_cancelled(self.store.events_without(&request)).await else {
                return Ok(End::Interrupted);
            };
            let page = page?;
            if let Some(end) = self.extend_all(&page.events, &handler).await? {
                return Ok(end);
            }
            if page.last.is_none() {
                return Ok(End::Exhausted);
            }
            request.after = page.last;
        }
    }

    /// Extends these events in batches; says why it stopped, if it did before the last one.
    async fn extend_all(&mut self, mut events: &[EventId], handler: &str) -> Result<Option<End>> {
        while !events.is_empty() {
            let size = self.batch_size().min(events.len() as u64);
            if size == 0 {
                return Ok(Some(End::AtLimit));
            }
            if self.control.unless_cancelled(self.pacer.wait(size)).await.is_none() {
                return Ok(Some(End::Interrupted));
            }
            let (batch, rest) = events.split_at(size as usize);
            self.extend(batch, handler).await?;
            events = rest;
        }
        Ok(None)
    }

    /// How many to take next: 0 when the limit is reached.
    fn batch_size(&self) -> u64 {
        self.bounds.batch_size(self.report.changed, BATCH)
    }

    async fn extend(&mut self, batch: &[EventId], handler: &str) -> Result<()> {
        let extended = self.store.extend(batch, handler, self.control.now()).await;
        let extended = extended.inspect_err(|_| self.report.failed += batch.len() as u64)?;
        self.report.changed += extended.created;
        self.report.skipped += extended.existing + extended.missing;
        (self.control.progress)(self.report.done());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::ops::bulk::{Verdict, classify};
    use crate::ops::testing::{Bench, Call, Spoilt, go_on, gone, pace};
    use crate::store::ErrorKind;

    const NO_BOUNDS: Bounds = Bounds { limit: None, pace: None };

    async fn plan(bench: &Bench) -> BackfillPlan {
        let plan = BackfillPlan::new("late", "*".parse().unwrap(), None, None, bench.now());
        plan.counted(&bench.store).await.unwrap()
    }

    fn numbers(report: &BulkReport) -> [u64; 4] {
        [report.matched, report.changed, report.skipped, report.failed]
    }

    async fn of_late(bench: &Bench) -> usize {
        bench.all().await.iter().filter(|delivery| delivery.handler == "late").count()
    }

    #[tokio::test]
    async fn all_pages_are_backfilled_in_batches() {
        let bench = Bench::new();
        bench.pending(2_600).await;
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&sizes);
        let store = Spoilt::new(&bench.store, move |call| {
            seen.lock().unwrap().push(call);
            go_on()
        });
        let report = plan(&bench).await.apply(&store, NO_BOUNDS, &bench.control()).await;
        assert_eq!(numbers(&report), [2_600, 2_600, 0, 0]);
        // Pages of a thousand events, in this store.
        let full = [Call::Extend(250); 10];
        assert_eq!(*sizes.lock().unwrap(), [&full[..], &[Call::Extend(100)]].concat());
        assert_eq!(of_late(&bench).await, 2_600);
        assert_eq!(plan(&bench).await.matched(), 0);
    }

    #[tokio::test]
    async fn what_comes_after_the_plan_stays_out_and_what_others_did_is_skipped() {
        let bench = Bench::new();
        let deliveries = bench.pending(3).await;
        let plan = plan(&bench).await;
        bench.clock.advance(Duration::from_millis(2));
        bench.pending(1).await;
        let sibling = bench.store.clone();
        let first = bench.store.get(&deliveries[0]).await.unwrap().unwrap().event_id;
        let now = bench.now();
        let store = Spoilt::new(&bench.store, move |_| {
            let (sibling, first) = (sibling.clone(), first.clone());
            Box::pin(async move { sibling.extend(&[first], "late", now).await.map(drop) })
        });
        let report = plan.apply(&store, NO_BOUNDS, &bench.control()).await;
        assert_eq!((numbers(&report), classify(&report)), ([3, 2, 1, 0], Verdict::Done));
        assert_eq!(of_late(&bench).await, 3);
    }

    #[tokio::test]
    async fn a_window_is_kept_to() {
        let bench = Bench::new();
        bench.pending(1).await;
        let since = bench.now();
        bench.pending(2).await;
        let until = bench.now();
        bench.pending(4).await;
        let plan = BackfillPlan::new("late", "t".parse().unwrap(), Some(since), Some(until), bench.now());
        assert_eq!(plan.counted(&bench.store).await.unwrap().matched(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_and_a_rate_are_kept() {
        let bench = Bench::new();
        bench.pending(100).await;
        let begin = tokio::time::Instant::now();
        let bounds = Bounds { limit: Some(35), pace: pace("50/s") };
        let report = plan(&bench).await.apply(&bench.store, bounds, &bench.control()).await;
        assert_eq!((numbers(&report), of_late(&bench).await), ([100, 35, 0, 0], 35));
        assert_eq!(begin.elapsed().as_millis() / 100, 6, "seven batches of five");
    }

    #[tokio::test]
    async fn a_cancel_ends_the_batch_and_starts_no_other() {
        let bench = Bench::new();
        bench.pending(1_000).await;
        let cancel = bench.cancel.clone();
        let store = Spoilt::new(&bench.store, move |_| {
            cancel.cancel();
            go_on()
        });
        let report = plan(&bench).await.apply(&store, NO_BOUNDS, &bench.control()).await;
        assert_eq!((numbers(&report), report.interrupted), ([1_000, 250, 0, 0], true));
        assert_eq!(of_late(&bench).await, 250);
    }

    #[tokio::test]
    async fn an_error_ends_it_and_running_it_again_goes_on() {
        let bench = Bench::new();
        bench.pending(600).await;
        let calls = AtomicUsize::new(0);
        let store = Spoilt::new(&bench.store, move |_| {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 { go_on() } else { gone() }
        });
        let report = plan(&bench).await.apply(&store, NO_BOUNDS, &bench.control()).await;
        assert_eq!((numbers(&report), classify(&report)), ([600, 250, 0, 250], Verdict::Partly));
        assert_eq!(report.error.unwrap().kind(), ErrorKind::Unavailable);
        let report = plan(&bench).await.apply(&bench.store, NO_BOUNDS, &bench.control()).await;
        assert_eq!(numbers(&report), [350, 350, 0, 0]);
    }
}
