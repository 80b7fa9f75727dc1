//! How deep the queues are, read from the store when somebody asks, and seldom enough not to hurt it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::metrics::Metrics;
use crate::clock::Clock;
use crate::dispatch::Pulse;
use crate::model::{QueueDepth, Timestamp};
use crate::store::{ErrorKind, Store};

/// The shortest time from one reading to the next.
const EVERY: Duration = Duration::from_secs(15);

/// So many times as long as a reading took, the store is left alone: a reading of a million deliveries takes a second.
const REST: u32 = 20;

/// How long one who asks waits for a reading. What was read before is good enough then.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a reading may take: one that is given up costs five minutes of rest.
const LIMIT: Duration = Duration::from_secs(15);

/// Reads the queues for the metrics: one reading at a time, however many ask, and none before its time.
#[derive(Debug)]
pub(super) struct QueueReader {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    pulse: Pulse,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    reading: Option<AbortOnDropHandle<Reading>>,
    rest_until: Option<Instant>,
}

/// What a reading brought.
#[derive(Debug)]
struct Reading {
    depths: Result<Vec<QueueDepth>, ErrorKind>,
    at: Timestamp,
    took: Duration,
}

impl QueueReader {
    pub(super) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        pulse: Pulse,
    ) -> Self {
        QueueReader { store, clock, metrics, pulse, progress: Mutex::default() }
    }

    /// Brings the metrics up to date, if it is time to, and if the store is quick enough. A reading that is not goes on;
    /// who asks next finds it.
    pub(super) async fn refresh(&self) {
        let _ = timeout(PATIENCE, self.read()).await;
    }

    async fn read(&self) {
        let mut progress = self.progress.lock().await;
        if progress.reading.is_none() && progress.rest_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let result = progress.reading.get_or_insert_with(|| self.begin()).await;
        progress.reading = None;
        let took = result.as_ref().map_or(Duration::ZERO, |reading| reading.took);
        progress.rest_until = Some(Instant::now() + EVERY.max(took * REST));
        match result {
            Ok(Reading { depths: Ok(depths), at, .. }) => self.metrics.queues_read(&depths, at),
            Ok(Reading { depths: Err(kind), .. }) => self.metrics.store_failed(kind),
            // The runtime is shutting down.
            Err(_) => {}
        }
    }

    fn begin(&self) -> AbortOnDropHandle<Reading> {
        let (store, clock, handlers) = (self.store.clone(), self.clock.clone(), self.pulse.handlers());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let began = Instant::now();
            let answer = timeout(LIMIT, store.queue_depths(&handlers)).await;
            let depths = match answer {
                Ok(answer) => answer.map_err(|error| error.kind()),
                Err(_) => Err(ErrorKind::Unavailable),
            };
            Reading { depths, at: clock.now(), took: began.elapsed() }
        }))
    }
}
