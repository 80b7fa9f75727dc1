//! When to look for work, and what the last looks brought.

use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;

/// The shortest pause between two looks for work.
const SHORTEST_POLL: Duration = Duration::from_millis(50);

/// The pause after the first wake-up that was for nothing.
const SHORTEST_REST: Duration = Duration::from_millis(10);

/// Rounds of looks at the store: one is over when every handler that could take something on was asked for.
#[derive(Debug)]
pub(super) struct Polling {
    pause: Backoff,
    longest_pause: Duration,
    next_round_at: Instant,
    in_round: bool,
    /// Nothing was found and nothing finished since the current round began.
    is_quiet: bool,
    /// A whole round was quiet, with nothing running.
    nothing_due: bool,
    /// Behind such a round, the store had nothing unfinished either.
    pub(super) nothing_unfinished: bool,
    /// The store said that there may be something, after the current round began.
    is_woken: bool,
    /// The current round is there because of that.
    is_heeding: bool,
    /// Wake-ups before this time have to wait: those before were for nothing.
    heed_at: Instant,
    rest: Backoff,
    /// When something becomes due by itself, as far as the worker knows.
    expected_at: Option<Instant>,
}

impl Polling {
    pub(super) fn new(longest_pause: Duration) -> Self {
        let now = Instant::now();
        Polling {
            pause: Backoff::new(SHORTEST_POLL, longest_pause),
            longest_pause,
            next_round_at: now,
            in_round: false,
            is_quiet: true,
            nothing_due: false,
            nothing_unfinished: false,
            is_woken: false,
            is_heeding: false,
            heed_at: now,
            rest: Backoff::new(SHORTEST_REST, longest_pause),
            expected_at: None,
        }
    }

    pub(super) fn in_round(&self) -> bool {
        self.in_round
    }

    /// Whether a whole round found nothing, with nothing running.
    pub(super) fn nothing_due(&self) -> bool {
        self.nothing_due
    }

    /// When the next round begins; `None` during one.
    pub(super) fn next_round_at(&self) -> Option<Instant> {
        (!self.in_round).then_some(self.next_round_at)
    }

    pub(super) fn begin_round(&mut self) {
        self.in_round = true;
        self.is_quiet = true;
        self.nothing_due = false;
        self.nothing_unfinished = false;
        self.is_heeding = std::mem::take(&mut self.is_woken);
        self.expected_at = self.expected_at.filter(|time| *time > Instant::now());
    }

    /// Every handler was asked for. `is_idle` says whether nothing runs or waits, `is_listening` whether the store will
    /// say when there is work.
    pub(super) fn end_round(&mut self, now: Instant, is_idle: bool, is_listening: bool) {
        self.in_round = false;
        self.nothing_due = self.is_quiet && is_idle;
        if self.is_heeding && self.is_quiet {
            self.heed_at = now + self.rest.next();
        }
        let pause = if is_listening { self.longest_pause } else { self.pause.next() };
        self.next_round_at = self.expected_at.into_iter().fold(now + pause, Instant::min);
        self.heed(now);
    }

    /// Something will be due then: time passes without a wake-up. The next of such times is kept.
    pub(super) fn expect(&mut self, time: Instant) {
        self.expected_at = self.expected_at.into_iter().chain([time]).min();
    }

    /// The store says that there may be work. The next round begins at once, except after wake-ups for nothing.
    pub(super) fn woken(&mut self, now: Instant) {
        self.is_woken = true;
        self.heed(now);
    }

    fn heed(&mut self, now: Instant) {
        if self.is_woken {
            self.next_round_at = self.next_round_at.min(self.heed_at.max(now));
        }
    }

    /// The store will not say any more when there is work.
    pub(super) fn unheard(&mut self, now: Instant) {
        self.next_round_at = self.next_round_at.min(now + self.pause.next());
    }

    pub(super) fn found_work(&mut self, now: Instant) {
        self.pause.reset();
        self.rest.reset();
        self.heed_at = now;
        self.is_quiet = false;
        self.nothing_due = false;
        self.nothing_unfinished = false;
        if !self.in_round {
            self.next_round_at = self.next_round_at.min(now + SHORTEST_POLL);
        }
    }

    pub(super) fn failed(&mut self) {
        self.is_quiet = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// One that has looked once and found nothing; and the time.
    fn idle() -> (Polling, Instant) {
        let mut polling = Polling::new(SECOND);
        let now = Instant::now();
        polling.begin_round();
        polling.end_round(now, true, true);
        (polling, now)
    }

    #[test]
    fn it_rests_for_the_longest_while_the_store_will_wake_it() {
        let (mut polling, now) = idle();
        assert_eq!(polling.next_round_at(), Some(now + SECOND));
        polling.unheard(now);
        assert_eq!(polling.next_round_at(), Some(now + SHORTEST_POLL));
    }

    #[test]
    fn what_is_expected_shortens_the_rest_once() {
        let (mut polling, now) = idle();
        polling.expect(now + SECOND / 2);
        polling.expect(now + 2 * SECOND);
        polling.begin_round();
        polling.end_round(now, true, true);
        assert_eq!(polling.next_round_at(), Some(now + SECOND / 2));
    }

    #[test]
    fn a_wake_up_begins_a_round_at_once_also_one_that_comes_during_a_round() {
        let (mut polling, now) = idle();
        polling.woken(now);
        assert_eq!(polling.next_round_at(), Some(now));
        polling.begin_round();
        polling.woken(now);
        assert_eq!(polling.next_round_at(), None);
        polling.found_work(now);
        polling.end_round(now, false, true);
        assert_eq!(polling.next_round_at(), Some(now));
    }

    #[test]
    fn wake_ups_for_nothing_are_heeded_less_and_less_until_work_is_found() {
        let (mut polling, mut now) = idle();
        let mut rests = Vec::new();
        for _ in 0..9 {
            polling.woken(now);
            let next = polling.next_round_at().unwrap();
            rests.push((next - now).as_millis());
            now = next;
            polling.begin_round();
            polling.end_round(now, true, true);
        }
        assert_eq!(rests, [0, 10, 20, 40, 80, 160, 320, 640, 1_000]);
        polling.found_work(now);
        polling.woken(now);
        assert_eq!(polling.next_round_at(), Some(now));
    }
}
