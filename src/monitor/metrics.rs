//! What is counted of a worker, in the names and units of Prometheus.
//!
//! Every series is there from the start: labels have no values but the worker's handlers and fixed words, so that nothing
//! in the store can make more of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{PoisonError, RwLock};

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::dispatch::{DispatchEvent, Finished, Pulse, Verdict};
use crate::model::{Failure, FailureKind, QueueDepth, Timestamp};
use crate::store::ErrorKind;

/// Seconds that separate the buckets of attempts: from quick functions to commands that take their time.
const RUN_BUCKETS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 300.0];

/// Seconds that separate the buckets of waiting: from a wake-up to a delivery that was forgotten for a day.
const WAIT_BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 86_400.0];

/// A number that need not be whole.
type Number = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfHandler {
    handler: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFailure {
    handler: String,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfError {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// The metrics of one worker.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: Families,
    /// Those of a handler that is removed stay, as what they count does.
    handlers: RwLock<HashMap<String, Series>>,
    store_errors: BTreeMap<&'static str, Counter>,
    ready: Gauge,
    queue_read_at: Number,
}

/// The series of one handler.
#[derive(Debug)]
struct Series {
    claimed: Counter,
    completed: Counter,
    released: Counter,
    snoozed: Counter,
    dead: Counter,
    leases_lost: Counter,
    /// By the kind of the failure.
    failed: BTreeMap<&'static str, Counter>,
    in_flight: Gauge,
    paused: Gauge,
    breaker_open: Gauge,
    ran: Histogram,
    waited: Histogram,
    depth: Number,
    oldest_due_age: Number,
}

/// Metrics with a series for each handler.
#[derive(Debug)]
struct Families {
    claimed: Family<OfHandler, Counter>,
    completed: Family<OfHandler, Counter>,
    released: Family<OfHandler, Counter>,
    snoozed: Family<OfHandler, Counter>,
    dead: Family<OfHandler, Counter>,
    leases_lost: Family<OfHandler, Counter>,
    failed: Family<OfFailure, Counter>,
    in_flight: Family<OfHandler, Gauge>,
    paused: Family<OfHandler, Gauge>,
    breaker_open: Family<OfHandler, Gauge>,
    ran: Family<OfHandler, Histogram, fn() -> Histogram>,
    waited: Family<OfHandler, Histogram, fn() -> Histogram>,
    depth: Family<OfHandler, Number>,
    oldest_due_age: Family<OfHandler, Number>,
}

impl Metrics {
    /// Zero of everything, for the handlers of the worker whose pulse this is.
    pub fn new(pulse: &Pulse) -> Self {
        let mut registry = Registry::with_prefix("relayctl");
        let build = Info::new(Build { version: env!("CARGO_PKG_VERSION") });
        registry.register("build", "The version of relayctl", build);
        let families = Families::register(&mut registry);
        let store_errors = Family::<OfError, Counter>::default();
        let help = "Calls of the store that failed, whatever became of them";
        registry.register("store_errors", help, store_errors.clone());
        let ready = add(&mut registry, "ready", "1 while the worker takes on deliveries: what /readyz says");
        let help = "When the depth of the queues was read from the store, in seconds since 1970; 0 before the first time";
        let queue_read_at = Number::default();
        registry.register_with_unit("queue_read_timestamp", help, Unit::Seconds, queue_read_at.clone());
        let of_kind = |kind: ErrorKind| {
            let kind = kind.as_str();
            (kind, store_errors.get_or_create_owned(&OfError { kind }))
        };
        let of_handler = |handler: &String| (handler.clone(), families.series(handler));
        Metrics {
            handlers: RwLock::new(pulse.handlers().iter().map(of_handler).collect()),
            families,
            store_errors: ErrorKind::ALL.into_iter().map(of_kind).collect(),
            registry,
            ready,
            queue_read_at,
        }
    }

    /// Counts what an event tells.
    pub fn observe(&self, event: &DispatchEvent) {
        match event {
            DispatchEvent::Claimed { handler, count } => {
                self.with(handler, |series| series.claimed.inc_by(*count as u64));
            }
            DispatchEvent::Finished(finished) => {
                self.with(&finished.handler, |series| series.finished(finished));
            }
            DispatchEvent::HandedBack { handler, count, lost } => self.with(handler, |series| {
                series.released.inc_by(count.saturating_sub(*lost) as u64);
                series.leases_lost.inc_by(*lost as u64);
            }),
            DispatchEvent::CallFailed { error } => self.store_failed(error.kind()),
            DispatchEvent::Paused { pause } => self.with(&pause.handler, |series| series.paused.set(1)),
            DispatchEvent::Resumed { handler } => self.with(handler, |series| series.paused.set(0)),
            DispatchEvent::BreakerOpened { handler, .. } => {
                self.with(handler, |series| series.breaker_open.set(1));
            }
            DispatchEvent::BreakerClosed { handler, .. } => {
                self.with(handler, |series| series.breaker_open.set(0));
            }
            DispatchEvent::Resubscribed(change) => {
                self.add_handlers(&change.added);
                for handler in &change.removed {
                    self.with(handler, Series::gone);
                }
            }
            DispatchEvent::Started { .. }
            | DispatchEvent::Ready
            | DispatchEvent::FoundCrashed(_)
            | DispatchEvent::OnDeadFailed(_)
            | DispatchEvent::StoreStillFailing { .. }
            | DispatchEvent::ClockDiffers { .. }
            | DispatchEvent::TimeStepped { .. }
            | DispatchEvent::WakeUpsLost { .. }
            | DispatchEvent::StoreFailing { .. }
            | DispatchEvent::StoreRecovered { .. }
            | DispatchEvent::PausesUnknown { .. }
            | DispatchEvent::BreakerHalfOpened { .. }
            | DispatchEvent::Draining { .. }
            | DispatchEvent::Stopping { .. }
            | DispatchEvent::Stopped { .. } => {}
        }
    }

    fn with<T>(&self, handler: &str, count: impl FnOnce(&Series) -> T) {
        // No code that can panic runs under the lock.
        let handlers = self.handlers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = handlers.get(handler) {
            count(series);
        }
    }

    /// The worker works for these handlers too.
    fn add_handlers(&self, added: &[String]) {
        let mut handlers = self.handlers.write().unwrap_or_else(PoisonError::into_inner);
        for handler in added {
            handlers.entry(handler.clone()).or_insert_with(|| self.families.series(handler));
        }
    }

    /// A call of the store failed.
    pub(super) fn store_failed(&self, kind: ErrorKind) {
        if let Some(counter) = self.store_errors.get(kind.as_str()) {
            counter.inc();
        }
    }

    /// The queues were so deep at `now`.
    pub(super) fn queues_read(&self, depths: &[QueueDepth], now: Timestamp) {
        for QueueDepth { handler, pending, oldest_due_at, .. } in depths {
            let age = oldest_due_at.map_or(0.0, |due| now.since(due).as_secs_f64());
            self.with(handler, |series| {
                series.depth.set(*pending as f64);
                series.oldest_due_age.set(age);
            });
        }
        self.queue_read_at.set(now.as_millis() as f64 / 1_000.0);
    }

    /// All of them as OpenMetrics text, with what the worker shows of itself now.
    pub(super) fn render(&self, pulse: &Pulse) -> String {
        for (handler, running) in pulse.running() {
            self.with(&handler, |series| series.in_flight.set(i64::try_from(running).unwrap_or(i64::MAX)));
        }
        self.ready.set(i64::from(pulse.check_ready().is_ok()));
        let mut text = String::new();
        // Writing into memory cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

impl Families {
    fn register(registry: &mut Registry) -> Self {
        let depth_help = "Deliveries that wait, delayed and parked ones included. NaN until the store was asked; it is \
                          asked when somebody looks, at most every 15 seconds and for a twentieth of the time";
        let oldest_help = "For how long the delivery that was due first, of those that wait or whose worker died, has been \
                           due; 0 when none is. As old as relayctl_queue_depth";
        Families {
            claimed: add(registry, "deliveries_claimed", "Deliveries that were leased"),
            completed: add(registry, "deliveries_completed", "Deliveries that are done"),
            released: add(
                registry,
                "deliveries_released",
                "Deliveries that were given back without an attempt being spent",
            ),
            snoozed: add(
                registry,
                "deliveries_snoozed",
                "Deliveries that their command put off without an attempt being spent",
            ),
            dead: add(registry, "deliveries_dead", "Deliveries that were given up"),
            leases_lost: add(
                registry,
                "leases_lost",
                "Leases that were lost before the outcome was recorded: another attempt is made",
            ),
            failed: add(
                registry,
                "deliveries_failed",
                "Attempts that failed, those that are tried again and those after which the delivery is dead",
            ),
            in_flight: add(registry, "deliveries_in_flight", "Deliveries that run now"),
            paused: add(registry, "handler_paused", "1 while an operator has paused the handler"),
            breaker_open: add(
                registry,
                "breaker_open",
                "1 while the handler keeps failing and this worker leaves it alone, or probes it",
            ),
            ran: seconds(registry, "run", "How long attempts ran", || Histogram::new(RUN_BUCKETS)),
            waited: seconds(
                registry,
                "wait",
                "From the time at which a delivery was due to the start of its attempt",
                || Histogram::new(WAIT_BUCKETS),
            ),
            depth: add(registry, "queue_depth", depth_help),
            oldest_due_age: add_seconds(registry, "oldest_due_age", oldest_help),
        }
    }

    fn series(&self, handler: &str) -> Series {
        let of_handler = OfHandler { handler: handler.to_owned() };
        let of_kind = |kind| {
            let of_failure = OfFailure { handler: handler.to_owned(), kind };
            (kind, self.failed.get_or_create_owned(&of_failure))
        };
        let unknown = |number: Number| {
            number.set(f64::NAN);
            number
        };
        Series {
            claimed: self.claimed.get_or_create_owned(&of_handler),
            completed: self.completed.get_or_create_owned(&of_handler),
            released: self.released.get_or_create_owned(&of_handler),
            snoozed: self.snoozed.get_or_create_owned(&of_handler),
            dead: self.dead.get_or_create_owned(&of_handler),
            leases_lost: self.leases_lost.get_or_create_owned(&of_handler),
            failed: KINDS.into_iter().map(of_kind).collect(),
            in_flight: self.in_flight.get_or_create_owned(&of_handler),
            paused: self.paused.get_or_create_owned(&of_handler),
            breaker_open: self.breaker_open.get_or_create_owned(&of_handler),
            ran: self.ran.get_or_create_owned(&of_handler),
            waited: self.waited.get_or_create_owned(&of_handler),
            depth: unknown(self.depth.get_or_create_owned(&of_handler)),
            oldest_due_age: unknown(self.oldest_due_age.get_or_create_owned(&of_handler)),
        }
    }
}

impl Series {
    /// The worker does not work for the handler any more: what it shows of it now is nothing.
    fn gone(&self) {
        self.in_flight.set(0);
        self.paused.set(0);
        self.breaker_open.set(0);
        self.depth.set(f64::NAN);
        self.oldest_due_age.set(f64::NAN);
    }

    fn finished(&self, finished: &Finished) {
        if let Some(timing) = finished.timing {
            self.waited.observe(timing.waited.as_secs_f64());
            self.ran.observe(timing.ran.as_secs_f64());
        }
        match &finished.verdict {
            Verdict::Completed => {
                self.completed.inc();
            }
            Verdict::Retrying { failure, .. } => self.failed(failure),
            Verdict::Dead { failure } => {
                self.failed(failure);
                self.dead.inc();
            }
            Verdict::Released => {
                self.released.inc();
            }
            Verdict::Snoozed { .. } => {
                self.snoozed.inc();
            }
            Verdict::LeaseLost { .. } => {
                self.leases_lost.inc();
            }
        }
    }

    fn failed(&self, failure: &Failure) {
        if let Some(counter) = self.failed.get(word_for(&failure.kind)) {
            counter.inc();
        }
    }
}

/// The words for kinds of failures. What other clients invented is `other`.
const KINDS: [&str; 7] = ["failed", "timeout", "rejected", "crashed", "orphaned", "buried", "other"];

fn word_for(kind: &FailureKind) -> &str {
    match kind {
        FailureKind::Other(_) => "other",
        known => known.as_str(),
    }
}

fn add<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

fn add_seconds<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

fn seconds(
    registry: &mut Registry,
    name: &str,
    help: &str,
    buckets: fn() -> Histogram,
) -> Family<OfHandler, Histogram, fn() -> Histogram> {
    let family = Family::new_with_constructor(buckets);
    registry.register_with_unit(name, help, Unit::Seconds, family.clone());
    family
}
