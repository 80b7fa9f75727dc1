//! Backfill: deliveries of a handler for events that came before it.

use std::time::Duration;

use crate::model::{EventId, Timestamp, TypePattern};
use crate::store::{BackfillRequest, Result, Store};

use super::bulk::BulkReport;
use super::control::Control;
use super::rate::Pacer;
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
        let mut run = Run { store, bounds, control, pacer: Pacer::new(bounds.rate), report };
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
