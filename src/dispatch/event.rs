//! What a worker tells about its work.

use std::sync::Arc;
use std::time::Duration;

use super::handle::Resubscription;
use crate::clock::Skew;
use crate::handler::Outcome;
use crate::model::{Delivery, DeliveryId, EventId, Failure, Pause, Timestamp};
use crate::store::{Claimed, StoreError};

/// Something happened. The stream of these feeds logs and metrics alike.
#[derive(Clone, Debug)]
pub enum DispatchEvent {
    /// The worker begins.
    Started {
        /// Who holds the leases.
        owner: String,
        /// The handlers that it works for.
        handlers: Vec<String>,
    },
    /// The store has answered for the first time: from now on the worker claims.
    Ready,
    /// Deliveries of a handler were leased.
    Claimed {
        /// The handler.
        handler: String,
        /// How many.
        count: usize,
    },
    /// The worker is done with a delivery.
    Finished(Box<Finished>),
    /// A delivery was leased whose attempt before had ended without an outcome: its worker died, or lost its lease.
    FoundCrashed(Box<FoundCrashed>),
    /// What had to be done about a dead delivery failed; it stays dead.
    OnDeadFailed(Box<OnDeadFailed>),
    /// Deliveries of a handler that were leased ahead and not begun were given back: others may have them sooner.
    HandedBack {
        /// The handler.
        handler: String,
        /// How many.
        count: usize,
        /// How many of them could not be given back any more, as their lease was lost.
        lost: usize,
    },
    /// The store cannot wake the worker any more: it only looks for work every so often. Told once until it has been
    /// woken again.
    WakeUpsLost {
        /// Why.
        error: Arc<StoreError>,
    },
    /// A call of the store failed. Told for each of them, whatever becomes of it.
    CallFailed {
        /// What the store said.
        error: Arc<StoreError>,
    },
    /// The store fails or does not answer; the worker goes on trying. Told once per outage.
    StoreFailing {
        /// What the store said first.
        error: Arc<StoreError>,
    },
    /// It still does: told after a minute, and then ever more rarely, at least once an hour.
    StoreStillFailing {
        /// What the store said last.
        error: Arc<StoreError>,
        /// How long by now.
        lasting: Duration,
    },
    /// The store answers again.
    StoreRecovered {
        /// How long it did not.
        after: Duration,
    },
    /// An operator has paused a handler: what it runs goes on, and nothing of it is claimed.
    Paused {
        /// The pause.
        pause: Pause,
    },
    /// A handler is not paused any more.
    Resumed {
        /// The handler.
        handler: String,
    },
    /// The store cannot tell which handlers are paused; what was known goes on. Told once until it can.
    PausesUnknown {
        /// Why.
        error: Arc<StoreError>,
    },
    /// A handler keeps failing: nothing of it is claimed for a while. Also when a probe failed.
    BreakerOpened {
        /// The handler.
        handler: String,
        /// How many attempts failed in a row.
        failures: u32,
        /// For how long.
        pause: Duration,
        /// What the latest attempt said.
        error: String,
    },
    /// A handler that kept failing is probed, with one delivery at a time.
    BreakerHalfOpened {
        /// The handler.
        handler: String,
    },
    /// A handler that kept failing has succeeded, or has no breaker any more.
    BreakerClosed {
        /// The handler.
        handler: String,
        /// How long after its breaker opened.
        after: Duration,
    },
    /// The host's clock differs from the server's by more than a second, which the worker goes by. Told once, and again when
    /// that has changed.
    ClockDiffers {
        /// By how much.
        skew: Skew,
    },
    /// The time of the server has stepped by more than a second: its clock was set, or a server with another clock has taken
    /// over. Leases that are held are renewed at once; after a step forward nothing is claimed until others can have done so.
    TimeStepped {
        /// Milliseconds forward, or back where it is negative.
        by_ms: i64,
    },
    /// The worker has other handlers, or was asked to and they are the same.
    Resubscribed(Resubscription),
    /// The worker takes on nothing new and lets what runs go on for a while.
    Draining {
        /// Deliveries that run.
        running: usize,
        /// How long they may go on.
        grace: Duration,
    },
    /// The worker stops what runs.
    Stopping {
        /// Deliveries that run.
        running: usize,
    },
    /// The worker has ended.
    Stopped {
        /// What it did.
        counts: Counts,
    },
}

/// A delivery whose attempt before ended without an outcome.
#[derive(Clone, Debug)]
pub struct FoundCrashed {
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// The event's type.
    pub event_type: String,
    /// The handler that it is for.
    pub handler: String,
    /// The attempt that ended so.
    pub attempt: u32,
    /// What is remembered of it, with the name of its worker.
    pub message: String,
}

impl FoundCrashed {
    pub(super) fn by(claimed: &Claimed) -> Option<Self> {
        let crash = claimed.crash()?;
        Some(FoundCrashed {
            delivery_id: claimed.delivery.id.clone(),
            event_type: claimed.delivery.event_type.clone(),
            handler: claimed.delivery.handler.clone(),
            attempt: crash.attempt,
            message: crash.message.clone(),
        })
    }
}

/// A dead delivery about which nothing could be done.
#[derive(Clone, Debug)]
pub struct OnDeadFailed {
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// The event's type.
    pub event_type: String,
    /// The handler that it was for.
    pub handler: String,
    /// Why.
    pub error: String,
}

/// One delivery that the worker is done with.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// Its event.
    pub event_id: EventId,
    /// The event's type.
    pub event_type: String,
    /// The handler that it is for.
    pub handler: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Its place among the events of the key.
    pub sequence: Option<i64>,
    /// Which attempt it was, counted from 1.
    pub attempt: u32,
    /// The attempt after which it is dead.
    pub max_attempts: u32,
    /// From the start of the attempt to its recorded outcome.
    pub elapsed: Duration,
    /// How the attempt passed its time; `None` when its handler was not even started.
    pub timing: Option<Timing>,
    /// What became of it.
    pub verdict: Verdict,
}

/// How an attempt passed its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From the time at which the delivery was due to the start of the attempt, by the worker's clock. What waits behind
    /// others of its key waits too, and where a worker died, its lease counts.
    pub waited: Duration,
    /// From the start of the attempt to its end, before the outcome was recorded.
    pub ran: Duration,
}

impl Finished {
    pub(super) fn new(
        delivery: &Delivery,
        max_attempts: u32,
        elapsed: Duration,
        timing: Option<Timing>,
        verdict: Verdict,
    ) -> Self {
        Finished {
            delivery_id: delivery.id.clone(),
            event_id: delivery.event_id.clone(),
            event_type: delivery.event_type.clone(),
            handler: delivery.handler.clone(),
            key: delivery.key.clone(),
            sequence: delivery.sequence,
            attempt: delivery.attempts,
            max_attempts,
            elapsed,
            timing,
            verdict,
        }
    }
}

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Completed,
    /// It is tried again.
    Retrying {
        /// Not before this time.
        at: Timestamp,
        /// What went wrong.
        failure: Failure,
    },
    /// It was given up.
    Dead {
        /// What went wrong.
        failure: Failure,
    },
    /// Its handler put it off; the attempt is not spent.
    Snoozed {
        /// Not before this time.
        until: Timestamp,
    },
    /// It was given back; the attempt is not spent.
    Released,
    /// The lease was lost, or the store could not be told in time: another attempt will be made, or has been.
    LeaseLost {
        /// What could not be recorded, if there was an outcome.
        unrecorded: Option<Outcome>,
    },
}

/// How many deliveries ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leased.
    pub claimed: u64,
    /// Done.
    pub completed: u64,
    /// Failed, to be tried again.
    pub retried: u64,
    /// Given up.
    pub dead: u64,
    /// Given back.
    pub released: u64,
    /// Put off by their handlers.
    pub snoozed: u64,
    /// Leases lost.
    pub lease_lost: u64,
    /// Leased after an attempt that had ended without an outcome; each of them is counted once more by what became of it.
    pub crashed: u64,
}

impl Counts {
    pub(super) fn add(&mut self, verdict: &Verdict) {
        let count = match verdict {
            Verdict::Completed => &mut self.completed,
            Verdict::Retrying { .. } => &mut self.retried,
            Verdict::Dead { .. } => &mut self.dead,
            Verdict::Snoozed { .. } => &mut self.snoozed,
            Verdict::Released => &mut self.released,
            Verdict::LeaseLost { .. } => &mut self.lease_lost,
        };
        *count += 1;
    }
}
