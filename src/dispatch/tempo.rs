//! The times of a lease: when to renew it, and when to stop if that fails.

use std::time::Duration;

/// Derived from the length of a lease, so that a handler that cannot keep its lease is gone before it runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tempo {
    /// From one renewal to the next.
    pub(super) renew_every: Duration,
    /// From one failed renewal to the next try.
    pub(super) retry_renewal_after: Duration,
    /// From TERM to KILL.
    pub(super) kill_after: Duration,
    /// For the end itself, and for a clock that differs a little.
    pub(super) margin: Duration,
}

impl Tempo {
    /// A third of the lease passes from renewal to renewal; of the rest `kill_after` takes at most a quarter of the
    /// lease.
    pub(super) fn of(lease: Duration, kill_after: Duration) -> Self {
        Tempo {
            renew_every: lease / 3,
            retry_renewal_after: (lease / 30).min(Duration::from_secs(1)),
            kill_after: kill_after.min(lease / 4),
            margin: (lease / 8).min(Duration::from_secs(2)),
        }
    }

    /// How long before the lease runs out a stop has to begin.
    pub(super) fn stop_before_expiry(&self) -> Duration {
        self.kill_after + self.margin
    }

    /// How long before the lease runs out a guard ends what still runs, since the worker that should have done it did not.
    pub(super) fn guard_before_expiry(&self) -> Duration {
        self.margin / 2
    }

    /// How long after KILL a handler that still does not end is left to itself.
    pub(super) fn abandon_after_kill(&self) -> Duration {
        self.margin / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_time_for_a_second_try_and_for_the_end() {
        for (lease, kill_after) in [(1, 5), (3, 0), (30, 5), (60, 5), (60, 600), (86_400, 5)] {
            let lease = Duration::from_secs(lease);
            let tempo = Tempo::of(lease, Duration::from_secs(kill_after));
            let tries_left = lease - tempo.renew_every - tempo.stop_before_expiry();
            assert!(tries_left >= tempo.retry_renewal_after * 8, "{lease:?}: {tempo:?}");
            assert!(tempo.abandon_after_kill() < tempo.margin);
        }
    }
}
