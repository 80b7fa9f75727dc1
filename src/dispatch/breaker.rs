//! A circuit breaker: a handler that fails time after time is left alone for a while, so that an outage behind it does
//! not use up the attempts of everything that waits.

use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;

/// When the breaker of a handler opens, and for how long.
///
/// Every attempt that failed counts, those that bury their delivery at once included: a run of them without one success
/// is a broken handler rather than so many bad events, and the mistake would cost a delay, where the other one costs
/// dead letters. What the worker gave up unseen, gave back, or lost the lease of without an outcome does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// So many failures in a row open it.
    pub failures: u32,
    /// The first pause; it doubles each time a probe fails.
    pub pause: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        BreakerPolicy { failures: 10, pause: Duration::from_secs(30), max: Duration::from_secs(600) }
    }
}

/// How an attempt of a handler ended, as far as that says something about the handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Well,
    Badly { error: String },
}

/// What a breaker did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nothing is claimed for so long; also when a probe failed.
    Opened(Trip),
    /// One delivery at a time may try.
    HalfOpened,
    /// A success after so long, or the end of the breaker itself.
    Closed { after: Duration },
}

/// Why a breaker is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trip {
    pub(super) since: Instant,
    pub(super) pause: Duration,
    pub(super) failures: u32,
    pub(super) error: String,
}

/// The breaker of one handler in one worker.
#[derive(Debug)]
pub(super) struct Breaker {
    limit: u32,
    failures: u32,
    backoff: Backoff,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open { since: Instant, until: Instant },
    HalfOpen { since: Instant },
}

impl Breaker {
    pub(super) fn new(policy: BreakerPolicy) -> Self {
        let backoff = Backoff::new(policy.pause, policy.max);
        Breaker { limit: policy.failures, failures: 0, backoff, state: State::Closed }
    }

    /// How many may run at once as far as it is concerned.
    pub(super) fn most(&self) -> usize {
        match self.state {
            State::Closed => usize::MAX,
            State::HalfOpen { .. } => 1,
            State::Open { .. } => 0,
        }
    }

    /// When it lets a probe pass; `None` when it is not open.
    pub(super) fn opens_up_at(&self) -> Option<Instant> {
        match self.state {
            State::Open { until, .. } => Some(until),
            State::Closed | State::HalfOpen { .. } => None,
        }
    }

    pub(super) fn pass_time(&mut self, now: Instant) -> Option<Turn> {
        match self.state {
            State::Open { since, until } if until <= now => {
                self.state = State::HalfOpen { since };
                Some(Turn::HalfOpened)
            }
            _ => None,
        }
    }

    /// Any success closes it, also one that began before it opened. A failure that did so extends nothing.
    pub(super) fn ended(&mut self, ending: Ending, now: Instant) -> Option<Turn> {
        match (ending, self.state) {
            (Ending::Well, _) => self.close(now),
            (Ending::Badly { error }, state) => self.failed(error, state, now),
        }
    }

    /// Its handler is another one now, with this policy. Where it is open a probe may pass at once, since the handler may
    /// have been changed for that very reason, and the pauses begin anew.
    pub(super) fn redefine(&mut self, policy: BreakerPolicy) -> Option<Turn> {
        self.limit = policy.failures;
        self.backoff = Backoff::new(policy.pause, policy.max);
        let State::Open { since, .. } = self.state else { return None };
        self.state = State::HalfOpen { since };
        Some(Turn::HalfOpened)
    }

    /// It holds nothing back any more.
    pub(super) fn close(&mut self, now: Instant) -> Option<Turn> {
        self.failures = 0;
        self.backoff.reset();
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Closed => None,
            State::Open { since, .. } | State::HalfOpen { since } => {
                Some(Turn::Closed { after: now - since })
            }
        }
    }

    fn failed(&mut self, error: String, state: State, now: Instant) -> Option<Turn> {
        self.failures = self.failures.saturating_add(1);
        let since = match state {
            State::Closed if self.failures < self.limit => return None,
            State::Open { .. } => return None,
            State::Closed => now,
            State::HalfOpen { since } => since,
        };
        let pause = self.backoff.next();
        self.state = State::Open { since, until: now + pause };
        Some(Turn::Opened(Trip { since, pause, failures: self.failures, error }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn breaker() -> (Breaker, Instant) {
        let policy = BreakerPolicy { failures: 3, pause: SECOND, max: 3 * SECOND };
        (Breaker::new(policy), Instant::now())
    }

    fn badly() -> Ending {
        Ending::Badly { error: "no route".into() }
    }

    /// The pause with which it opens, if it does.
    fn pause_after_failure(breaker: &mut Breaker, now: Instant) -> Option<Duration> {
        match breaker.ended(badly(), now) {
            Some(Turn::Opened(trip)) => Some(trip.pause),
            None => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_begins_the_count_anew() {
        let (mut breaker, now) = breaker();
        assert_eq!([breaker.ended(badly(), now), breaker.ended(badly(), now)], [None, None]);
        assert_eq!(breaker.ended(Ending::Well, now), None);
        assert_eq!([breaker.ended(badly(), now), breaker.ended(badly(), now)], [None, None]);
        assert_eq!((breaker.most(), breaker.opens_up_at()), (usize::MAX, None));
        let trip = Trip { since: now, pause: SECOND, failures: 3, error: "no route".into() };
        assert_eq!(breaker.ended(badly(), now), Some(Turn::Opened(trip)));
        assert_eq!((breaker.most(), breaker.opens_up_at()), (0, Some(now + SECOND)));
    }

    #[test]
    fn pauses_grow_from_probe_to_probe_up_to_the_longest_and_a_success_ends_that() {
        let (mut breaker, mut now) = breaker();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            if let Some(pause) = pause_after_failure(&mut breaker, now) {
                pauses.push(pause.as_secs());
                assert_eq!(breaker.pass_time(now + pause - Duration::from_millis(1)), None);
                now += pause;
                assert_eq!((breaker.pass_time(now), breaker.most()), (Some(Turn::HalfOpened), 1));
            }
        }
        assert_eq!(pauses, [1, 2, 3, 3]);
        assert_eq!(breaker.ended(Ending::Well, now), Some(Turn::Closed { after: 9 * SECOND }));
        assert_eq!(breaker.most(), usize::MAX);
        let pauses: Vec<_> = (0..3).filter_map(|_| pause_after_failure(&mut breaker, now)).collect();
        assert_eq!(pauses, [SECOND]);
    }

    #[test]
    fn what_began_before_it_opened_can_close_it_and_does_not_extend_it() {
        let (mut breaker, now) = breaker();
        (0..3).for_each(|_| drop(breaker.ended(badly(), now)));
        assert_eq!(breaker.ended(badly(), now + SECOND / 2), None);
        assert_eq!(breaker.opens_up_at(), Some(now + SECOND));
        let closed = breaker.ended(Ending::Well, now + SECOND / 2);
        assert_eq!((closed, breaker.most()), (Some(Turn::Closed { after: SECOND / 2 }), usize::MAX));
    }

    #[test]
    fn another_handler_is_probed_at_once_and_fails_by_its_own_policy() {
        let (mut breaker, now) = breaker();
        assert_eq!(breaker.redefine(BreakerPolicy::default()), None);
        (0..10).for_each(|_| drop(breaker.ended(badly(), now)));
        assert_eq!(breaker.opens_up_at(), Some(now + 30 * SECOND));
        let policy = BreakerPolicy { failures: 3, pause: 2 * SECOND, max: 9 * SECOND };
        assert_eq!((breaker.redefine(policy), breaker.most()), (Some(Turn::HalfOpened), 1));
        assert_eq!((breaker.redefine(policy), breaker.most()), (None, 1));
        assert_eq!(pause_after_failure(&mut breaker, now), Some(2 * SECOND));
    }
}
