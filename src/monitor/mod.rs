//! A worker seen from outside: its metrics, whether it is alive, and whether it is ready, over HTTP.
//!
//! [`Metrics`] counts what the worker's events tell. What its pulse shows is looked at when somebody asks, and so is the
//! depth of its queues, which costs the store something: `queue` keeps that within bounds. `server` answers.

mod check;
mod metrics;
mod queue;
mod server;

use std::sync::Arc;

use crate::clock::Clock;
use crate::dispatch::{DispatchEvent, Obstacle, Pulse};
use crate::store::Store;

pub use check::check_metrics;
pub use metrics::Metrics;
pub use server::Server;

use queue::QueueReader;

/// Everything that is to be seen of one worker.
#[derive(Debug)]
pub struct Monitor {
    pulse: Pulse,
    metrics: Arc<Metrics>,
    queue: QueueReader,
}

impl Monitor {
    /// Watches a worker, whose pulse this is, on its store.
    pub fn new(pulse: Pulse, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let metrics = Arc::new(Metrics::new(&pulse));
        let queue = QueueReader::new(store, clock, metrics.clone(), pulse.clone());
        Monitor { pulse, metrics, queue }
    }

    /// Counts what an event of the worker tells.
    pub fn observe(&self, event: &DispatchEvent) {
        self.metrics.observe(event);
    }

    /// All metrics as OpenMetrics text. Waits for the store for no longer than two seconds.
    pub async fn scrape(&self) -> String {
        self.queue.refresh().await;
        self.metrics.render(&self.pulse)
    }

    /// Whether the worker's loop turns.
    ///
    /// # Errors
    /// Why it does not.
    pub fn health(&self) -> Result<(), Obstacle> {
        self.pulse.check_alive()
    }

    /// Whether the worker takes on deliveries.
    ///
    /// # Errors
    /// What keeps it from that.
    pub fn readiness(&self) -> Result<(), Obstacle> {
        self.pulse.check_ready()
    }
}
