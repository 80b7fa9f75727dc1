//! What the worker hears from operators, and what it tells them: pauses are read every so often, and breakers that are not
//! closed are reported.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::breaker::Trip;
use super::health;
use crate::clock::Clock;
use crate::model::{Pause, TrippedBreaker};
use crate::store::{Store, StoreError};

/// From one look for pauses to the next: they are to be obeyed within a second, and the look takes its time too.
const READ_EVERY: Duration = Duration::from_millis(900);

/// So many looks have to fail in a row before it is told: a lost connection is not worth it.
const MISSES_TOLD: u32 = 3;

/// How often a report is renewed while it is true, and how long it is good for.
const REPORT_EVERY: Duration = Duration::from_secs(30);
const REPORT_LASTS: Duration = Duration::from_secs(100);

/// How long the reports may take to be taken back when the worker ends.
const LAST_REPORT: Duration = Duration::from_secs(2);

/// The most of an error that a report quotes, in characters.
const QUOTED: usize = 500;

type Answer = Result<Vec<Pause>, Arc<StoreError>>;

/// The pauses of the store, as far as they are known.
pub(super) struct Pauses {
    holding: Vec<Pause>,
    is_known: bool,
    reading: Option<BoxFuture<'static, Answer>>,
    read_at: Option<Instant>,
    poll_interval: Duration,
    misses: u32,
}

impl Pauses {
    pub(super) fn new(poll_interval: Duration) -> Self {
        Pauses {
            holding: Vec::new(),
            is_known: false,
            reading: None,
            read_at: None,
            poll_interval,
            misses: 0,
        }
    }

    /// Whether the store was ever able to tell. Nothing is claimed before: the handler may be paused.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    pub(super) fn of(&self, handler: &str) -> Option<&Pause> {
        self.holding.iter().find(|pause| pause.handler == handler)
    }

    /// When to look next, unless a look is under way. An idle worker looks for pauses no more often than for work.
    pub(super) fn next_read_at(&self, is_idle: bool) -> Option<Instant> {
        let every = if is_idle { READ_EVERY.max(self.poll_interval.mul_f64(0.9)) } else { READ_EVERY };
        match (&self.reading, self.read_at) {
            (Some(_), _) => None,
            (None, Some(time)) => Some(time + every),
            (None, None) => Some(Instant::now()),
        }
    }

    /// Since when the store owes an answer.
    pub(super) fn asked_at(&self) -> Option<Instant> {
        self.reading.as_ref().and(self.read_at)
    }

    /// Looks.
    pub(super) fn read(&mut self, store: Arc<dyn Store>, clock: &dyn Clock) {
        let now = clock.now();
        self.read_at = Some(Instant::now());
        self.reading =
            Some(Box::pin(async move { health::answer(store.pauses(now)).await.map_err(Arc::new) }));
    }

    /// Waits for the answer, which [`heard`](Self::heard) has to be told.
    pub(super) async fn answer(&mut self) -> Answer {
        match &mut self.reading {
            Some(reading) => reading.await,
            None => pending().await,
        }
    }

    /// Takes an answer in. Without one, what was known goes on; returns why there is none, when it has to be told.
    pub(super) fn heard(&mut self, answer: Answer) -> Option<Arc<StoreError>> {
        self.reading = None;
        match answer {
            Ok(pauses) => {
                self.holding = pauses;
                self.is_known = true;
                self.misses = 0;
                None
            }
            Err(error) => {
                self.misses = self.misses.saturating_add(1);
                (self.misses == MISSES_TOLD || !self.is_known).then_some(error)
            }
        }
    }
}

/// What is reported of a breaker.
enum Report {
    Tripped(TrippedBreaker),
    Closed(String),
}

/// The reports of a worker, written one after the other behind its back: work never waits for them, and one that is lost
/// is made good for by the next.
pub(super) struct Reports {
    queue: mpsc::UnboundedSender<Report>,
    writer: AbortOnDropHandle<()>,
    clock: Arc<dyn Clock>,
    worker: String,
}

impl Reports {
    pub(super) fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>, worker: String) -> Self {
        let (queue, reports) = mpsc::unbounded_channel();
        let writer = Writer { store, clock: clock.clone(), worker: worker.clone(), open: BTreeMap::new() };
        let writer = AbortOnDropHandle::new(tokio::spawn(writer.run(reports)));
        Reports { queue, writer, clock, worker }
    }

    pub(super) fn tripped(&self, handler: &str, trip: &Trip) {
        let now = self.clock.now();
        let report = TrippedBreaker {
            handler: handler.to_owned(),
            worker: self.worker.clone(),
            opened_at: now.saturating_sub(trip.since.elapsed()),
            probe_at: now.saturating_add(trip.pause),
            failures: trip.failures,
            last_error: trip.error.chars().take(QUOTED).collect(),
            expires_at: now,
        };
        let _ = self.queue.send(Report::Tripped(report));
    }

    pub(super) fn closed(&self, handler: &str) {
        let _ = self.queue.send(Report::Closed(handler.to_owned()));
    }

    /// Takes back what is still open: its worker is gone.
    pub(super) async fn end(self) {
        drop(self.queue);
        let _ = timeout(LAST_REPORT, self.writer).await;
    }
}

struct Writer {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    worker: String,
    open: BTreeMap<String, TrippedBreaker>,
}

impl Writer {
    async fn run(mut self, mut reports: mpsc::UnboundedReceiver<Report>) {
        loop {
            tokio::select! {
                report = reports.recv() => match report {
                    Some(Report::Tripped(report)) => {
                        self.write(&report).await;
                        self.open.insert(report.handler.clone(), report);
                    }
                    Some(Report::Closed(handler)) => self.forget(&handler).await,
                    None => break,
                },
                () = sleep(REPORT_EVERY), if !self.open.is_empty() => self.renew().await,
            }
        }
        for handler in self.open.keys().cloned().collect::<Vec<_>>() {
            self.forget(&handler).await;
        }
    }

    async fn renew(&self) {
        for report in self.open.values() {
            self.write(report).await;
        }
    }

    async fn write(&self, report: &TrippedBreaker) {
        let now = self.clock.now();
        let report = TrippedBreaker { expires_at: now.saturating_add(REPORT_LASTS), ..report.clone() };
        // A store that fails is told of by those who cannot work without it.
        let _ = health::answer(self.store.report_breaker(&report, now)).await;
    }

    async fn forget(&mut self, handler: &str) {
        self.open.remove(handler);
        let _ = health::answer(self.store.forget_breaker(handler, &self.worker)).await;
    }
}
