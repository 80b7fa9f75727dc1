//! Import: exported lines into this store, in transactions of a bounded size.

use std::collections::BTreeMap;

use serde::Serialize;
use tokio::io::AsyncBufRead;

use crate::model::{ExportLine, InvalidInput, Timestamp, parse_export_line};
use crate::store::{Imported, Store, StoreError};

use super::bulk::BulkReport;
use super::control::Control;
use super::lines::{LineError, Lines};
use super::publish::Stopped;

/// The text of one batch, in bytes, after which it is written although it could hold more lines.
const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;

/// Which handlers imported deliveries are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HandlerChange {
    /// Those that they were for.
    #[default]
    None,
    /// All for this one.
    All(String),
    /// Those of the handlers on the left for those on the right; others stay.
    Each(BTreeMap<String, String>),
}

impl HandlerChange {
    /// What becomes of deliveries for `handler`; `None` when they stay.
    fn of(&self, handler: &str) -> Option<&str> {
        match self {
            HandlerChange::None => None,
            HandlerChange::All(new) => Some(new),
            HandlerChange::Each(changes) => changes.get(handler).map(String::as_str),
        }
    }
}

/// How lines are imported.
#[derive(Clone, Debug)]
pub struct ImportPlan {
    /// At most this many lines in one transaction; at least 1.
    pub batch_size: usize,
    /// Whom they are for.
    pub handlers: HandlerChange,
    /// Whether each delivery starts from the beginning: pending, due now, without attempts.
    pub reset: bool,
    /// Only finds out what an import would do.
    pub dry_run: bool,
}

/// What an import did.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImportReport {
    /// The deliveries. What is skipped was there before; what failed was refused.
    #[serde(flatten)]
    pub deliveries: BulkReport,
    /// New events.
    pub events: u64,
    /// Why it ended before the end of the stream; absent when it did not.
    #[serde(skip)]
    pub stopped: Option<Stopped>,
}

/// A line that was not imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// Its number.
    pub line: u64,
    /// Why.
    pub reason: &'a str,
}

impl ImportPlan {
    /// Imports the lines of `reader` in transactions of at most `batch_size` lines. Running it again changes nothing.
    ///
    /// A line that is refused is told to `sink`, and leaves the others alone. Deliveries that were processing become
    /// pending, with the attempt under way given back: their leases are of another store.
    pub async fn import_lines(
        &self,
        store: &dyn Store,
        reader: impl AsyncBufRead + Unpin,
        sink: &mut impl FnMut(Refusal<'_>),
        control: &Control<'_>,
    ) -> ImportReport {
        let mut import =
            Import { plan: self, store, lines: Lines::new(reader), control, report: ImportReport::default() };
        if let Err(stopped) = import.batches(sink).await {
            import.report.deliveries.interrupted = matches!(stopped, Stopped::Interrupted);
            import.report.stopped = Some(stopped);
        }
        import.report
    }

    fn adopt(&self, mut line: ExportLine, now: Timestamp) -> ExportLine {
        let handler = line.delivery_text("handler").and_then(|handler| self.handlers.of(handler));
        if let Some(handler) = handler {
            line.change_handler(handler);
        }
        if self.reset {
            line.reset(now);
        } else {
            line.release(now);
        }
        line
    }
}

/// An import under way.
struct Import<'a, R> {
    plan: &'a ImportPlan,
    store: &'a dyn Store,
    lines: Lines<R>,
    control: &'a Control<'a>,
    report: ImportReport,
}

/// Some lines, each with its number.
#[derive(Default)]
struct Batch {
    lines: Vec<ExportLine>,
    numbers: Vec<u64>,
    /// Lines that say nothing, or nothing that the store takes, and why.
    refused: Vec<(u64, String)>,
    is_last: bool,
}

impl<R: AsyncBufRead + Unpin> Import<'_, R> {
    async fn batches(&mut self, sink: &mut impl FnMut(Refusal<'_>)) -> Result<(), Stopped> {
        loop {
            let control = self.control;
            let batch = control.unless_cancelled(self.read_batch()).await.ok_or(Stopped::Interrupted)??;
            let is_last = batch.is_last;
            self.import(batch, sink).await?;
            (control.progress)(self.report.deliveries.done());
            if is_last {
                return Ok(());
            }
        }
    }

    async fn read_batch(&mut self) -> Result<Batch, Stopped> {
        let mut batch = Batch::default();
        let mut bytes = 0;
        while batch.len() < self.plan.batch_size.max(1) && bytes < MAX_BATCH_BYTES {
            let line = self.lines.next().await;
            let number = self.lines.number();
            match line {
                Ok(Some(line)) => {
                    bytes += line.len();
                    batch.add(number, parse_export_line(&line));
                }
                Ok(None) => {
                    batch.is_last = true;
                    break;
                }
                Err(LineError::Invalid(error)) => batch.add(number, Err(error)),
                Err(LineError::Io(error)) => return Err(Stopped::Unreadable { line: number, error }),
            }
        }
        let now = self.control.now();
        batch.lines = batch.lines.into_iter().map(|line| self.plan.adopt(line, now)).collect();
        Ok(batch)
    }

    async fn import(&mut self, mut batch: Batch, sink: &mut impl FnMut(Refusal<'_>)) -> Result<(), Stopped> {
        self.report.deliveries.matched += batch.len() as u64;
        let imported = match batch.lines.is_empty() {
            true => Ok(Vec::new()),
            false => self.store.import(&batch.lines, self.plan.dry_run).await,
        };
        for (&number, imported) in batch.numbers.iter().zip(imported.iter().flatten()) {
            match imported {
                Imported::Created { event } => {
                    self.report.deliveries.changed += 1;
                    self.report.events += u64::from(*event);
                }
                Imported::Existing => self.report.deliveries.skipped += 1,
                Imported::Refused { reason } => batch.refused.push((number, reason.clone())),
            }
        }
        self.report.deliveries.failed += batch.refused.len() as u64;
        batch.refused.sort_by_key(|(line, _)| *line);
        batch.refused.iter().for_each(|(line, reason)| sink(Refusal { line: *line, reason }));
        imported.map(drop).map_err(|error| {
            self.report.deliveries.failed += batch.lines.len() as u64;
            batch.stopped(error)
        })
    }
}

impl Batch {
    fn len(&self) -> usize {
        self.lines.len() + self.refused.len()
    }

    fn add(&mut self, number: u64, line: Result<ExportLine, InvalidInput>) {
        match line {
            Ok(line) => {
                self.lines.push(line);
                self.numbers.push(number);
            }
            Err(error) => self.refused.push((number, error.to_string())),
        }
    }

    fn stopped(&self, error: StoreError) -> Stopped {
        let first = self.numbers.first().copied().unwrap_or_default();
        Stopped::Refused { first, last: self.numbers.last().copied().unwrap_or(first), error }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use futures_util::StreamExt as _;

    use super::*;
    use crate::model::{Filter, Status};
    use crate::ops::testing::{Bench, Call, Spoilt, go_on, gone};

    fn plan(batch_size: usize) -> ImportPlan {
        ImportPlan { batch_size, handlers: HandlerChange::None, reset: false, dry_run: false }
    }

    /// `count` deliveries of another store, as the text of an export.
    async fn exported(count: usize) -> String {
        let source = Bench::new();
        source.pending(count).await;
        let lines = source.store.export(&Filter::default(), source.now());
        let lines = lines.map(|line| serde_json::to_string(&line.unwrap()).unwrap() + "\n");
        lines.collect::<Vec<_>>().await.concat()
    }

    async fn import(
        bench: &Bench,
        store: &dyn Store,
        plan: &ImportPlan,
        text: &str,
    ) -> (ImportReport, Vec<u64>) {
        let mut refused = Vec::new();
        let mut sink = |refusal: Refusal<'_>| refused.push(refusal.line);
        let report = plan.import_lines(store, text.as_bytes(), &mut sink, &bench.control()).await;
        (report, refused)
    }

    fn numbers(report: &ImportReport) -> [u64; 4] {
        let BulkReport { matched, changed, skipped, failed, .. } = report.deliveries;
        [matched, changed, skipped, failed]
    }

    #[tokio::test]
    async fn a_stream_is_imported_in_batches_and_only_once() {
        let (bench, text) = (Bench::new(), exported(25).await);
        let batches = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&batches);
        let store = Spoilt::new(&bench.store, move |call| {
            seen.lock().unwrap().push(call);
            go_on()
        });
        let (report, refused) = import(&bench, &store, &plan(10), &text).await;
        assert_eq!((numbers(&report), report.events, refused.len()), ([25, 25, 0, 0], 25, 0));
        assert_eq!(*batches.lock().unwrap(), [10, 10, 5].map(Call::Import));
        let (report, _) = import(&bench, &store, &plan(7), &text).await;
        assert_eq!((numbers(&report), report.events), ([25, 0, 25, 0], 0));
        assert_eq!(bench.count(Status::Pending).await, 25);
    }

    #[tokio::test]
    async fn refused_lines_are_told_in_their_order_and_stop_nothing() {
        let (bench, text) = (Bench::new(), exported(4).await);
        let mut lines: Vec<&str> = text.lines().collect();
        let broken = lines[1].replace("\"pending\"", "\"lost\"");
        lines.splice(1..1, [broken.as_str(), "{", "[]"]);
        let (report, refused) = import(&bench, &bench.store, &plan(100), &lines.join("\n")).await;
        assert_eq!((numbers(&report), refused), ([7, 4, 0, 3], vec![2, 3, 4]));
    }

    #[tokio::test]
    async fn an_error_ends_it_and_the_report_says_where() {
        let (bench, text) = (Bench::new(), exported(25).await);
        let calls = AtomicUsize::new(0);
        let store = Spoilt::new(&bench.store, move |_| {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 { go_on() } else { gone() }
        });
        let (report, _) = import(&bench, &store, &plan(10), &text).await;
        assert_eq!(numbers(&report), [20, 10, 0, 10]);
        assert_eq!(report.stopped.unwrap().to_string(), "lines 11 to 20: the server has gone away");
        let (report, _) = import(&bench, &bench.store, &plan(10), &text).await;
        assert_eq!(numbers(&report), [25, 15, 10, 0]);
    }

    #[tokio::test]
    async fn a_cancel_ends_the_batch_and_starts_no_other() {
        let (bench, text) = (Bench::new(), exported(25).await);
        let cancel = bench.cancel.clone();
        let store = Spoilt::new(&bench.store, move |_| {
            cancel.cancel();
            go_on()
        });
        let (report, _) = import(&bench, &store, &plan(10), &text).await;
        assert_eq!((numbers(&report), report.deliveries.interrupted), ([10, 10, 0, 0], true));
        assert!(matches!(report.stopped, Some(Stopped::Interrupted)));
    }

    #[tokio::test]
    async fn handlers_change_all_or_one_by_one() {
        let text = exported(1).await;
        let each = |old: &str| HandlerChange::Each([(old.to_owned(), "new".to_owned())].into());
        for (handlers, expected) in
            [(HandlerChange::All("new".into()), "new"), (each("h"), "new"), (each("other"), "h")]
        {
            let bench = Bench::new();
            import(&bench, &bench.store, &ImportPlan { handlers, ..plan(1) }, &text).await;
            assert_eq!(bench.all().await[0].handler, expected);
        }
    }

    #[tokio::test]
    async fn what_was_processing_waits_and_a_reset_is_due_now() {
        let source = Bench::new();
        source.dead(1).await;
        source.pending(1).await;
        let request = crate::store::ClaimRequest {
            handlers: vec!["h".to_owned()],
            limit: 1,
            lease: std::time::Duration::from_secs(60),
            owner: "w".to_owned(),
            now: source.now(),
        };
        source.store.claim(&request).await.unwrap();
        let lines = source.store.export(&Filter::default(), source.now());
        let lines = lines.map(|line| serde_json::to_string(&line.unwrap()).unwrap() + "\n");
        let text = lines.collect::<Vec<_>>().await.concat();
        for (reset, expected) in [(false, [Status::Dead, Status::Pending]), (true, [Status::Pending; 2])] {
            let bench = Bench::new();
            bench.clock.advance(std::time::Duration::from_secs(5));
            let (report, _) = import(&bench, &bench.store, &ImportPlan { reset, ..plan(10) }, &text).await;
            assert_eq!(numbers(&report), [2, 2, 0, 0]);
            let all = bench.all().await;
            assert_eq!([all[0].status, all[1].status], expected);
            assert_eq!((all[1].attempts, all[1].lease_token.clone()), (0, None));
            assert!(!reset || all.iter().all(|delivery| delivery.due_at == Some(bench.now())));
            assert_eq!(all[0].errors.len(), 1);
        }
    }
}
