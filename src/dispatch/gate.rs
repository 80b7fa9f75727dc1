//! What stands between a handler and its deliveries: an operator's pause, its circuit breaker, and its rate.

use tokio::time::Instant;

use super::breaker::{Breaker, Ending, Turn};
use super::bucket::Bucket;
use super::subscription::Subscription;

/// The gate of one handler. Time passes for it when it is told, so that everything decided between is decided at one
/// moment.
#[derive(Debug)]
pub(super) struct Gate {
    now: Instant,
    pause: Option<Halt>,
    breaker: Option<Breaker>,
    bucket: Option<Bucket>,
    /// The worker has the handler no more.
    is_locked: bool,
}

/// An operator's pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Halt {
    /// When it ends by itself.
    pub(super) until: Option<Instant>,
}

/// What happened at a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GateNews {
    Paused,
    Resumed,
    Breaker(Turn),
}

impl Gate {
    pub(super) fn new(subscription: &Subscription, now: Instant) -> Self {
        let breaker = subscription.breaker.map(Breaker::new);
        let bucket = subscription.rate.map(|rate| Bucket::new(rate, now));
        Gate { now, pause: None, breaker, bucket, is_locked: false }
    }

    /// The handler is another one now. A pause holds on, and what the breaker and the bucket have counted.
    pub(super) fn redefine(&mut self, subscription: &Subscription) -> Option<GateNews> {
        let turn = match (&mut self.breaker, subscription.breaker) {
            (Some(breaker), Some(policy)) => breaker.redefine(policy),
            (Some(breaker), None) => breaker.close(self.now),
            (None, _) => None,
        };
        self.breaker =
            subscription.breaker.map(|policy| self.breaker.take().unwrap_or_else(|| Breaker::new(policy)));
        self.bucket = subscription.rate.map(|rate| match &self.bucket {
            Some(bucket) => bucket.with_rate(rate, self.now),
            None => Bucket::new(rate, self.now),
        });
        turn.map(GateNews::Breaker)
    }

    /// Shuts it for good.
    pub(super) fn lock(&mut self) -> Option<GateNews> {
        let turn = self.breaker.take().and_then(|mut breaker| breaker.close(self.now));
        *self = Gate { now: self.now, pause: None, breaker: None, bucket: None, is_locked: true };
        turn.map(GateNews::Breaker)
    }

    /// Whether it is shut for good.
    pub(super) fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Whether nothing gets through, however long what runs is waited for.
    pub(super) fn is_shut(&self) -> bool {
        self.is_locked
            || self.pause.is_some()
            || self.breaker.as_ref().is_some_and(|breaker| breaker.most() == 0)
    }

    /// How many more may start now, when so many run.
    pub(super) fn lets_through(&self, running: usize) -> usize {
        if self.is_shut() {
            return 0;
        }
        let by_breaker = self.breaker.as_ref().map_or(usize::MAX, Breaker::most);
        let by_rate = self.bucket.as_ref().map_or(usize::MAX, |bucket| bucket.tokens(self.now));
        by_rate.min(by_breaker.saturating_sub(running))
    }

    /// Whether it waits for nothing but its rate.
    pub(super) fn is_held_by_rate(&self) -> bool {
        !self.is_shut() && self.bucket.as_ref().is_some_and(|bucket| bucket.tokens(self.now) == 0)
    }

    /// When it opens by itself as time passes, unless it is open. What `wants` nothing does not wait for its rate.
    pub(super) fn opens_at(&self, wants: bool) -> Option<Instant> {
        let pause_ends_at = self.pause.and_then(|halt| halt.until);
        let probe_at = self.breaker.as_ref().and_then(Breaker::opens_up_at);
        let next_at = self.bucket.as_ref().and_then(|bucket| bucket.next_at(self.now)).filter(|_| wants);
        match self.is_shut() {
            true => pause_ends_at.into_iter().chain(probe_at).min(),
            false => next_at,
        }
    }

    pub(super) fn pass_time(&mut self, now: Instant) -> Vec<GateNews> {
        self.now = now;
        let is_over = self.pause.and_then(|halt| halt.until).is_some_and(|until| until <= now);
        let resumed = is_over.then(|| {
            self.pause = None;
            GateNews::Resumed
        });
        let turn = self.breaker.as_mut().and_then(|breaker| breaker.pass_time(now));
        resumed.into_iter().chain(turn.map(GateNews::Breaker)).collect()
    }

    /// An operator pauses it, changes the end of its pause, or resumes it.
    pub(super) fn pause(&mut self, pause: Option<Halt>) -> Option<GateNews> {
        let was_paused = std::mem::replace(&mut self.pause, pause).is_some();
        match (was_paused, pause.is_some()) {
            (false, true) => Some(GateNews::Paused),
            (true, false) => Some(GateNews::Resumed),
            _ => None,
        }
    }

    pub(super) fn started(&mut self) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(self.now);
        }
    }

    pub(super) fn ended(&mut self, ending: Ending, now: Instant) -> Option<GateNews> {
        self.breaker.as_mut()?.ended(ending, now).map(GateNews::Breaker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::BreakerPolicy;
    use crate::handler::{Outcome, handler_fn};
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    fn gate(rate: Option<&str>) -> (Gate, Instant) {
        let now = Instant::now();
        let breaker = BreakerPolicy { failures: 1, pause: SECOND, max: SECOND };
        let nothing = handler_fn(|_| async { Outcome::Succeeded });
        let subscription = Subscription::new("h", nothing).breaker(breaker);
        let subscription = rate.into_iter().fold(subscription, |one, rate| one.rate(rate.parse().unwrap()));
        (Gate::new(&subscription, now), now)
    }

    fn trip(gate: &mut Gate, now: Instant) {
        assert!(gate.ended(Ending::Badly { error: "x".into() }, now).is_some());
    }

    #[test]
    fn an_open_gate_lets_everything_through() {
        let (mut gate, now) = gate(None);
        assert_eq!(
            (gate.lets_through(9), gate.is_shut(), gate.opens_at(true)),
            (usize::MAX - 9, false, None)
        );
        assert_eq!(gate.pass_time(now + SECOND), []);
    }

    #[test]
    fn a_pause_shuts_it_until_its_end() {
        let (mut gate, now) = gate(None);
        assert_eq!(gate.pause(Some(Halt { until: None })), Some(GateNews::Paused));
        assert_eq!((gate.lets_through(0), gate.is_shut(), gate.opens_at(true)), (0, true, None));
        assert_eq!(gate.pause(Some(Halt { until: Some(now + SECOND) })), None);
        assert_eq!(gate.opens_at(false), Some(now + SECOND));
        assert_eq!(gate.pass_time(now + SECOND), [GateNews::Resumed]);
        assert!(!gate.is_shut());
        assert_eq!(gate.pause(None), None);
    }

    #[test]
    fn behind_an_open_breaker_a_single_probe_gets_through() {
        let (mut gate, now) = gate(None);
        trip(&mut gate, now);
        assert_eq!((gate.lets_through(0), gate.is_shut()), (0, true));
        assert_eq!(gate.opens_at(false), Some(now + SECOND));
        assert_eq!(gate.pass_time(now + SECOND), [GateNews::Breaker(Turn::HalfOpened)]);
        assert_eq!((gate.lets_through(0), gate.lets_through(1), gate.is_shut()), (1, 0, false));
    }

    #[test]
    fn a_pause_holds_whatever_the_breaker_does() {
        let (mut gate, now) = gate(None);
        gate.pause(Some(Halt { until: None }));
        trip(&mut gate, now);
        gate.pass_time(now + SECOND);
        assert_eq!((gate.lets_through(0), gate.is_shut(), gate.opens_at(true)), (0, true, None));
        assert_eq!((gate.pause(None), gate.lets_through(0)), (Some(GateNews::Resumed), 1));
    }

    #[test]
    fn a_changed_handler_keeps_its_pause_and_is_probed() {
        let (mut gate, now) = gate(Some("10/s"));
        gate.started();
        trip(&mut gate, now);
        gate.pause(Some(Halt { until: None }));
        let nothing = || handler_fn(|_| async { Outcome::Succeeded });
        let changed = Subscription::new("h", nothing()).rate("20/s".parse().unwrap());
        assert_eq!(gate.redefine(&changed), Some(GateNews::Breaker(Turn::HalfOpened)));
        assert_eq!((gate.is_shut(), gate.pause(None)), (true, Some(GateNews::Resumed)));
        assert_eq!((gate.lets_through(0), gate.is_held_by_rate()), (0, true));
        let unguarded = Subscription::new("h", nothing()).breaker(None);
        let closed = GateNews::Breaker(Turn::Closed { after: Duration::ZERO });
        assert_eq!(gate.redefine(&unguarded), Some(closed));
        assert_eq!(gate.lets_through(0), usize::MAX);
    }

    #[test]
    fn a_locked_gate_never_opens() {
        let (mut gate, now) = gate(Some("10/s"));
        trip(&mut gate, now);
        gate.pause(Some(Halt { until: Some(now + SECOND) }));
        assert_eq!(gate.lock(), Some(GateNews::Breaker(Turn::Closed { after: Duration::ZERO })));
        assert_eq!((gate.pass_time(now + 9 * SECOND), gate.opens_at(true)), (vec![], None));
        assert_eq!((gate.is_shut(), gate.is_locked(), gate.lets_through(0)), (true, true, 0));
        assert_eq!(gate.ended(Ending::Badly { error: "x".into() }, now), None);
    }

    #[test]
    fn a_rate_is_waited_for_by_those_who_want_something() {
        let (mut gate, now) = gate(Some("10/s"));
        assert_eq!((gate.lets_through(5), gate.opens_at(true)), (1, None));
        gate.started();
        assert_eq!((gate.lets_through(0), gate.is_shut(), gate.is_held_by_rate()), (0, false, true));
        assert_eq!((gate.opens_at(false), gate.opens_at(true)), (None, Some(now + SECOND / 10)));
        gate.pass_time(now + SECOND / 10);
        assert_eq!((gate.lets_through(0), gate.is_held_by_rate()), (1, false));
    }
}
