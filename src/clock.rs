//! The one place that reads wall time. Everything else is handed an instant.
//!
//! What the command line and the worker go by is a [`ServerClock`]: the store's server says what time it is, and the host's
//! monotonic clock carries that on.

mod server;

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::model::Timestamp;

pub use server::{Reading, ServerClock, Skew};

/// A source of the current time.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The current instant.
    fn now(&self) -> Timestamp;
}

/// The host's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads wall time")]
    fn now(&self) -> Timestamp {
        let since_epoch =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::EPOCH.saturating_add(since_epoch)
    }
}

/// What a host knows of time by itself.
pub trait Host: Send + Sync + fmt::Debug {
    /// What its clock shows. That can be wrong, and somebody can set it at any moment.
    fn wall(&self) -> Timestamp;

    /// The time since some fixed moment. Nobody sets it, and it goes on while the host or the process is suspended.
    fn elapsed(&self) -> Duration;
}

/// The host that this process runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemHost;

/// Of the monotonic clocks of Linux only this one counts the time of a suspend; elsewhere the usual one does.
#[cfg(target_os = "linux")]
const MONOTONIC: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(target_os = "linux"))]
const MONOTONIC: ClockId = ClockId::CLOCK_MONOTONIC;

impl Host for SystemHost {
    fn wall(&self) -> Timestamp {
        SystemClock.now()
    }

    fn elapsed(&self) -> Duration {
        // It cannot fail: the kernel has had this clock since 2.6.39.
        clock_gettime(MONOTONIC).map(Duration::from).unwrap_or_default()
    }
}

/// A clock that stands still until it is moved, for tests.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn at(now: Timestamp) -> Self {
        ManualClock(AtomicI64::new(now.as_millis()))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let later = self.now().saturating_add(by);
        self.0.store(later.as_millis(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }
}
