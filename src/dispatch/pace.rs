//! How many deliveries of a handler to claim ahead, so that its slots never wait for a claim.
//!
//! By Little's law what has to be there when a claim begins is what starts until the next one has been answered: the
//! rate of starts times the time of a claim, twice, as one claim may just have missed. The rate is what the slots can
//! start by the time that one attempt takes, but never far beyond what was seen to start: another handler may have the
//! slots of the worker, or the store may have no more. Nothing is claimed ahead before both are measured.

use std::time::Duration;

use tokio::time::Instant;

/// The most deliveries of a handler that wait for a slot, whatever its pace: they and their events are in memory.
pub(super) const MOST_AHEAD: usize = 500;

/// The longest that a delivery waits for its slot before it is handed back.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How far beyond what was seen to start may be claimed: it doubles from claim to claim, as each is for half of it.
const RAMP: f64 = 4.0;

/// A mean in which older figures fade.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Smoothed(Option<f64>);

impl Smoothed {
    pub(super) fn add(&mut self, figure: f64, weight: f64) {
        self.0 = Some(self.0.map_or(figure, |mean| mean + (figure - mean) * weight));
    }

    pub(super) fn get(self) -> Option<f64> {
        self.0
    }
}

/// What is known of the pace of one handler.
#[derive(Debug)]
pub(super) struct Pace {
    slots: f64,
    /// How long a delivery of it may wait for a slot.
    patience: Duration,
    /// Seconds from the start of an attempt to its end.
    attempt: Smoothed,
    /// Starts in a second.
    starts: Smoothed,
    started: u32,
    counting_since: Option<Instant>,
}

impl Pace {
    pub(super) fn new(slots: usize, lease: Duration) -> Self {
        Pace {
            slots: slots as f64,
            patience: LONGEST_WAIT.min(lease / 3),
            attempt: Smoothed::default(),
            starts: Smoothed::default(),
            started: 0,
            counting_since: None,
        }
    }

    /// How long a delivery may wait for its slot.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    pub(super) fn started(&mut self) {
        self.started += 1;
    }

    pub(super) fn ended(&mut self, elapsed: Duration) {
        self.attempt.add(elapsed.as_secs_f64(), 0.1);
    }

    /// A claim was answered: what has started since the last one is the pace for now.
    pub(super) fn count(&mut self, now: Instant) {
        let Some(since) = self.counting_since else {
            self.counting_since = Some(now);
            return;
        };
        let elapsed = (now - since).as_secs_f64();
        if elapsed > 0.0 {
            self.starts.add(f64::from(self.started) / elapsed, 0.5);
            self.started = 0;
            self.counting_since = Some(now);
        }
    }

    /// What waited had to be handed back: all that was measured is void.
    pub(super) fn turned_slow(&mut self) {
        self.attempt = Smoothed::default();
        self.starts = Smoothed::default();
        self.started = 0;
        self.counting_since = None;
    }

    /// How many deliveries to have waiting when so many seconds pass from one claim to the next.
    pub(super) fn ahead(&self, between_claims: f64) -> usize {
        let (Some(attempt), Some(starts)) = (self.attempt.get(), self.starts.get()) else { return 0 };
        let rate = (self.slots / attempt.max(1e-6)).min(starts * RAMP);
        let wanted = rate * (2.0 * between_claims).min(self.patience.as_secs_f64());
        // A cast from a float saturates.
        (wanted as usize).min(MOST_AHEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);
    const CLAIM: f64 = 0.01;

    /// A pace with so many slots, after a second in which `starts` attempts of some length were made.
    fn pace(slots: usize, attempt: Duration, starts: u32) -> Pace {
        let mut pace = Pace::new(slots, LEASE);
        let now = Instant::now();
        pace.count(now);
        for _ in 0..starts {
            pace.started();
            pace.ended(attempt);
        }
        pace.count(now + Duration::from_secs(1));
        pace
    }

    #[test]
    fn nothing_is_claimed_ahead_before_the_pace_is_known() {
        let mut unknown = Pace::new(32, LEASE);
        assert_eq!(unknown.ahead(CLAIM), 0);
        unknown.started();
        unknown.ended(Duration::ZERO);
        assert_eq!(unknown.ahead(CLAIM), 0);
    }

    #[test]
    fn slow_handlers_claim_nothing_ahead_and_quick_ones_hundreds() {
        let millis = Duration::from_millis;
        assert_eq!(pace(1, millis(2_000), 1).ahead(CLAIM), 0);
        assert_eq!(pace(4, millis(50), 80).ahead(CLAIM), 1);
        assert_eq!(pace(8, millis(5), 1_600).ahead(CLAIM), 32);
        assert_eq!(pace(32, Duration::ZERO, 8_000).ahead(CLAIM), MOST_AHEAD);
    }

    #[test]
    fn it_grows_from_claim_to_claim_beyond_what_was_seen_to_start() {
        // A claim of 10 ms brought 32, and all of them started at once.
        assert_eq!(pace(32, Duration::ZERO, 3_200).ahead(CLAIM), 256);
        // Another handler has the slots of the worker.
        assert_eq!(pace(32, Duration::ZERO, 1).ahead(CLAIM), 0);
    }

    #[test]
    fn no_more_than_can_start_before_patience_ends() {
        let quick = pace(1, Duration::from_millis(10), 100);
        assert_eq!(quick.ahead(30.0), 100);
        let short = Pace { patience: Duration::from_millis(300), ..quick };
        assert_eq!(short.ahead(30.0), 30);
    }

    #[test]
    fn a_handler_that_turned_slow_begins_anew() {
        let mut pace = pace(32, Duration::ZERO, 8_000);
        pace.turned_slow();
        assert_eq!(pace.ahead(CLAIM), 0);
    }
}
