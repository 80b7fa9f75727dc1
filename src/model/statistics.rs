//! How much of everything there is.

use serde::{Deserialize, Serialize};

use super::time::Timestamp;

/// Counts over all deliveries, and for each handler. Field names in JSON are part of the contract.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Statistics {
    /// All deliveries.
    pub total: u64,
    /// Those that wait, parked ones included.
    pub pending: u64,
    /// Those that are leased, live or expired.
    pub processing: u64,
    /// Those that are done.
    pub completed: u64,
    /// Those that were given up.
    pub dead: u64,
    /// Those of the pending that are parked.
    pub parked: u64,
    /// The earliest time at which something unfinished is, or was, due.
    pub oldest_due_at: Option<Timestamp>,
    /// The same for each handler, by name.
    pub handlers: Vec<HandlerStatistics>,
}

/// The counts of one handler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandlerStatistics {
    /// Its name.
    pub handler: String,
    /// All its deliveries.
    pub total: u64,
    /// Those that wait, parked ones included.
    pub pending: u64,
    /// Those that are leased, live or expired.
    pub processing: u64,
    /// Those that are done.
    pub completed: u64,
    /// Those that were given up.
    pub dead: u64,
    /// Those of the pending that are parked.
    pub parked: u64,
    /// The earliest time at which something unfinished is, or was, due.
    pub oldest_due_at: Option<Timestamp>,
}

/// How much of one handler is unfinished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueDepth {
    /// Its name.
    pub handler: String,
    /// Those that wait, parked ones included.
    pub pending: u64,
    /// Those that are leased, live or expired.
    pub processing: u64,
    /// The earliest time at which something unfinished is, or was, due.
    pub oldest_due_at: Option<Timestamp>,
}

impl Statistics {
    /// The sums over `handlers`, which are put in order by name.
    pub fn from_handlers(mut handlers: Vec<HandlerStatistics>) -> Self {
        handlers.sort_by(|a, b| a.handler.cmp(&b.handler));
        let sum = |count: fn(&HandlerStatistics) -> u64| handlers.iter().map(count).sum();
        Statistics {
            total: sum(|h| h.total),
            pending: sum(|h| h.pending),
            processing: sum(|h| h.processing),
            completed: sum(|h| h.completed),
            dead: sum(|h| h.dead),
            parked: sum(|h| h.parked),
            oldest_due_at: handlers.iter().filter_map(|h| h.oldest_due_at).min(),
            handlers,
        }
    }

    /// What is unfinished of a handler.
    pub fn queue_depth(&self, handler: &str) -> QueueDepth {
        let known = self.handlers.iter().find(|counts| counts.handler == handler);
        let (pending, processing) = known.map_or((0, 0), |counts| (counts.pending, counts.processing));
        let oldest_due_at = known.and_then(|counts| counts.oldest_due_at);
        QueueDepth { handler: handler.to_owned(), pending, processing, oldest_due_at }
    }
}
