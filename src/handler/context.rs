//! What a handler knows about its attempt besides the envelope: its lease, and whether to stop.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::guard::{Cover, Guard};
use crate::model::Timestamp;

/// Why an attempt is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// It ran for as long as its handler may.
    TimedOut(Duration),
    /// Somebody else has the delivery now; the outcome can no longer be recorded.
    LeaseLost,
    /// The lease could not be renewed in time and is about to run out.
    LeaseEnding,
    /// The worker shuts down.
    Shutdown,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::TimedOut(after) => {
                write!(f, "timed out after {}", humantime::format_duration(*after))
            }
            StopReason::LeaseLost => f.write_str("the lease was lost"),
            StopReason::LeaseEnding => f.write_str("the lease could not be renewed"),
            StopReason::Shutdown => f.write_str("the worker shuts down"),
        }
    }
}

/// A request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Why.
    pub reason: StopReason,
    /// What still runs at this time is ended by force.
    pub kill_at: Instant,
}

/// How a handler is to end what outlives its attempts.
#[derive(Clone, Debug)]
pub struct Closing {
    /// Cancelled when it has to be quick.
    pub hurry: CancellationToken,
    /// How long what was asked to end may take before it is told to, and then before it is ended by force.
    pub kill_after: Duration,
}

impl Closing {
    /// Waits for as long as something may take to end when it was asked to.
    pub async fn patience(&self) {
        // Either way the time is over.
        let _ = tokio::time::timeout(self.kill_after, self.hurry.cancelled()).await;
    }
}

/// The handler's view of its attempt.
#[derive(Clone, Debug)]
pub struct HandlerContext(Arc<Attempt>);

/// The dispatcher's end of a [`HandlerContext`].
#[derive(Clone, Debug)]
pub struct AttemptControl(Arc<Attempt>);

#[derive(Debug)]
struct Attempt {
    stopping: CancellationToken,
    stop: OnceLock<Stop>,
    draining: CancellationToken,
    lease_expires_at: AtomicI64,
    cover: Option<Cover>,
}

/// A process group that runs for an attempt, and that the guard knows of.
#[derive(Debug)]
pub(super) struct Guarded(HandlerContext);

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.0.cover.iter().for_each(Cover::drop_group);
    }
}

impl HandlerContext {
    /// When the lease runs out. It moves on as the lease is renewed.
    pub fn lease_expires_at(&self) -> Timestamp {
        Timestamp::from_millis(self.0.lease_expires_at.load(Ordering::Relaxed))
    }

    /// The request to stop, if there is one.
    pub fn stop_requested(&self) -> Option<Stop> {
        self.0.stop.get().copied()
    }

    /// Waits until the attempt is asked to stop.
    pub async fn stopped(&self) -> Stop {
        self.0.stopping.cancelled().await;
        *self.0.stop.get().expect("the reason is set before the token is cancelled")
    }

    /// Tells the guard, where there is one, that a process group runs for this attempt, until the result is dropped.
    pub(super) fn guard(&self, group: u32) -> Option<Guarded> {
        self.0.cover.as_ref()?.hold(group);
        Some(Guarded(self.clone()))
    }

    /// Whether the guard has ended what ran for this attempt, as far as its status tells: the worker did not get to it in time.
    pub(super) fn was_ended_by_guard(&self, status: Option<ExitStatus>) -> bool {
        let was_killed = status.and_then(|status| status.signal()) == Some(Signal::SIGKILL as i32);
        was_killed && self.0.cover.as_ref().is_some_and(Cover::is_over)
    }

    /// A token that is cancelled when the attempt is asked to stop, to be passed on to other libraries.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.0.stopping.clone()
    }

    /// Waits until the worker drains: it takes on nothing new, but lets this attempt go on for a while.
    pub async fn draining(&self) {
        self.0.draining.cancelled().await;
    }
}

impl AttemptControl {
    /// A new attempt under a lease; `draining` is cancelled when the worker begins to drain.
    pub fn new(lease_expires_at: Timestamp, draining: CancellationToken) -> Self {
        AttemptControl::covered(lease_expires_at, draining, None)
    }

    /// The same, where a guard sees to it that commands are gone at a certain time.
    pub fn guarded(
        lease_expires_at: Timestamp,
        draining: CancellationToken,
        guard: Guard,
        gone_at: Instant,
    ) -> Self {
        AttemptControl::covered(lease_expires_at, draining, Some(Cover::new(guard, gone_at)))
    }

    fn covered(lease_expires_at: Timestamp, draining: CancellationToken, cover: Option<Cover>) -> Self {
        AttemptControl(Arc::new(Attempt {
            stopping: CancellationToken::new(),
            stop: OnceLock::new(),
            draining,
            lease_expires_at: AtomicI64::new(lease_expires_at.as_millis()),
            cover,
        }))
    }

    /// What to hand to the handler.
    pub fn context(&self) -> HandlerContext {
        HandlerContext(self.0.clone())
    }

    /// Asks the attempt to stop. The first request stands; returns the one that does.
    pub fn stop(&self, reason: StopReason, kill_at: Instant) -> Stop {
        let stop = *self.0.stop.get_or_init(|| Stop { reason, kill_at });
        self.0.stopping.cancel();
        stop
    }

    /// Tells that the lease was renewed.
    pub fn set_lease_expires_at(&self, expires_at: Timestamp) {
        self.0.lease_expires_at.store(expires_at.as_millis(), Ordering::Relaxed);
    }

    /// Tells the guard, where there is one, when commands have to be gone now.
    pub fn extend_guard(&self, gone_at: Instant) {
        self.0.cover.iter().for_each(|cover| cover.extend(gone_at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_request_to_stop_stands() {
        let control = AttemptControl::new(Timestamp::from_millis(5), CancellationToken::new());
        let context = control.context();
        assert_eq!(context.stop_requested(), None);
        let kill_at = Instant::now();
        control.stop(StopReason::LeaseLost, kill_at);
        control.stop(StopReason::Shutdown, kill_at + Duration::from_secs(1));
        assert_eq!(context.stopped().await, Stop { reason: StopReason::LeaseLost, kill_at });
        assert!(context.cancellation_token().is_cancelled());
    }
}
