//! The worker's clock, kept set by the store's server.
//!
//! A task of its own measures, so that nothing that the worker does lengthens the round trip.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::clock::{Reading, ServerClock, Skew};
use crate::store::{ErrorKind, Result, Store, StoreError};

/// From one measurement to the next: as often as drivers look at their servers. In between a clock drifts by 5 ms at the worst,
/// and so long workers may disagree when a server with another clock takes over.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

/// The same as long as nothing is known.
const MEASURE_FIRST_EVERY: Duration = Duration::from_secs(1);

/// How often the server is asked for one measurement, if the first answers take longer than they should.
const TRIES: u32 = 3;

/// A clock that is known as well as this is good enough. The shortest lease has a margin of 125 ms.
const GOOD_ENOUGH: Duration = Duration::from_millis(10);

/// An answer that takes longer says nothing of use.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// After a step forward, in which the leases of workers that have not seen it look expired, those get as long to measure, and to renew
/// their leases or stop their handlers.
const REST: Duration = Duration::from_secs(20);

/// What does not change by more than this is worth neither a word nor a rest, in milliseconds.
const NOTABLE_MS: u64 = 1_000;

/// What a measurement brought; `None` when the store has no clock of its own.
pub(super) type Measured = Result<Option<Reading>, Arc<StoreError>>;

/// What the worker has to tell of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TimeNews {
    /// The host's clock differs, and that was not told yet.
    pub(super) skew: Option<Skew>,
    /// The server's time stepped by so many milliseconds, which are many.
    pub(super) stepped_by_ms: Option<i64>,
}

/// What is known of the time.
pub(super) struct Timekeeper {
    measured: mpsc::Receiver<Measured>,
    is_known: bool,
    /// What was known before the worker began.
    skew_before: Option<Skew>,
    rest_ends_at: Option<Instant>,
    told_ms: i64,
    steps: watch::Sender<()>,
    _task: Option<AbortOnDropHandle<()>>,
}

impl Timekeeper {
    /// Keeps a clock set. Without one, the worker goes by a clock that is right as it is.
    pub(super) fn start(store: Arc<dyn Store>, clock: Option<ServerClock>) -> Self {
        let (sender, measured) = mpsc::channel(1);
        let skew_before = clock.as_ref().and_then(ServerClock::skew);
        let is_known = clock.is_none() || skew_before.is_some();
        let task = clock.map(|clock| AbortOnDropHandle::new(tokio::spawn(keep(store, clock, sender))));
        Timekeeper {
            measured,
            is_known,
            skew_before,
            rest_ends_at: None,
            told_ms: 0,
            steps: watch::Sender::new(()),
            _task: task,
        }
    }

    /// Whether the server was ever able to tell, if only before the worker began. Nothing is claimed before: what looks expired may
    /// be live.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// How the host's clock differs as far as that was known before the worker began, if that is to be told: a short run may
    /// be over before the first measurement.
    pub(super) fn skew_before(&mut self) -> Option<Skew> {
        let skew = self.skew_before.take()?;
        self.untold(skew)
    }

    /// When claims may go on, if they have to rest.
    pub(super) fn rest_ends_at(&self) -> Option<Instant> {
        self.rest_ends_at
    }

    /// Changes whenever the server's time steps.
    pub(super) fn steps(&self) -> watch::Receiver<()> {
        self.steps.subscribe()
    }

    /// The next measurement, which [`heard`](Self::heard) has to be told; `None` when there will be no more.
    pub(super) async fn measured(&mut self) -> Option<Measured> {
        self.measured.recv().await
    }

    /// Takes a measurement in.
    ///
    /// # Errors
    /// Why there was none, as long as there never was one. Later the clock goes on as it was set, and what else is asked of the
    /// store tells of an outage.
    pub(super) fn heard(&mut self, measured: Measured) -> Result<TimeNews, Arc<StoreError>> {
        let reading = match measured {
            Ok(reading) => reading,
            Err(_) if self.is_known => return Ok(TimeNews::default()),
            Err(error) => return Err(error),
        };
        self.is_known = true;
        let Some(Reading { skew, stepped_by_ms }) = reading else { return Ok(TimeNews::default()) };
        if stepped_by_ms.is_some() {
            self.steps.send_replace(());
        }
        let stepped_by_ms = stepped_by_ms.filter(|by| by.unsigned_abs() > NOTABLE_MS);
        if stepped_by_ms.is_some_and(i64::is_positive) {
            self.rest_ends_at = Some(Instant::now() + REST);
        }
        Ok(TimeNews { skew: self.untold(skew), stepped_by_ms })
    }

    fn untold(&mut self, skew: Skew) -> Option<Skew> {
        if skew.ahead_ms.abs_diff(self.told_ms) <= NOTABLE_MS {
            return None;
        }
        self.told_ms = skew.ahead_ms;
        Some(skew).filter(Skew::is_notable)
    }
}

async fn keep(store: Arc<dyn Store>, clock: ServerClock, sender: mpsc::Sender<Measured>) {
    loop {
        let measured = measure(&*store, &clock).await.map_err(Arc::new);
        let has_no_clock = matches!(measured, Ok(None));
        if sender.send(measured).await.is_err() || has_no_clock {
            return;
        }
        let is_known = clock.skew().is_some();
        sleep(if is_known { MEASURE_EVERY } else { MEASURE_FIRST_EVERY }).await;
    }
}

/// Asks until the clock is known well enough, but not too often. A step that any of the answers showed is told.
async fn measure(store: &dyn Store, clock: &ServerClock) -> Result<Option<Reading>> {
    let mut stepped_by_ms = None;
    let mut latest = None;
    for _ in 0..TRIES {
        let Some(reading) = ask(store, clock).await? else { return Ok(None) };
        stepped_by_ms = stepped_by_ms.or(reading.stepped_by_ms);
        latest = Some(Reading { stepped_by_ms, ..reading });
        if reading.skew.error <= GOOD_ENOUGH {
            break;
        }
    }
    Ok(latest)
}

async fn ask(store: &dyn Store, clock: &ServerClock) -> Result<Option<Reading>> {
    timeout(ANSWER_LIMIT, clock.measure(store.server_time())).await.unwrap_or_else(|_| {
        let limit = humantime::format_duration(ANSWER_LIMIT);
        let message = format!("the store did not say within {limit} what time it is there");
        Err(StoreError::new(ErrorKind::Unavailable, message))
    })
}
