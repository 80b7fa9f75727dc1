//! The numbers of a worker at a glance: what runs, what is done, what failed, and how fast.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::cli::render::text::{visible, width};
use crate::dispatch::{DispatchEvent, Finished, Obstacle, Pulse, Verdict};
use crate::model::short_duration;

/// Over how long the rate is measured.
const RATE_OVER: Duration = Duration::from_secs(5);

/// What stands between two numbers.
const GAP: &str = "  ";

/// What was done so far, and what holds it up.
#[derive(Debug)]
pub(super) struct Tally {
    pulse: Pulse,
    began: Instant,
    completed: u64,
    failed: u64,
    dead: u64,
    /// How many attempts had ended at these times, the oldest first.
    samples: VecDeque<(Instant, u64)>,
    paused: BTreeSet<String>,
    resting: BTreeSet<String>,
}

impl Tally {
    pub(super) fn new(pulse: Pulse, now: Instant) -> Self {
        Tally {
            pulse,
            began: now,
            completed: 0,
            failed: 0,
            dead: 0,
            samples: VecDeque::from([(now, 0)]),
            paused: BTreeSet::new(),
            resting: BTreeSet::new(),
        }
    }

    /// Counts what an event tells.
    pub(super) fn observe(&mut self, event: &DispatchEvent) {
        match event {
            DispatchEvent::Finished(finished) => self.finished(finished),
            DispatchEvent::Paused { pause } => {
                self.paused.insert(pause.handler.clone());
            }
            DispatchEvent::Resumed { handler } => {
                self.paused.remove(handler);
            }
            DispatchEvent::BreakerOpened { handler, .. } => {
                self.resting.insert(handler.clone());
            }
            DispatchEvent::BreakerClosed { handler, .. } => {
                self.resting.remove(handler);
            }
            DispatchEvent::Resubscribed(change) => {
                for handler in &change.removed {
                    self.paused.remove(handler);
                    self.resting.remove(handler);
                }
            }
            DispatchEvent::Started { .. }
            | DispatchEvent::Ready
            | DispatchEvent::FoundCrashed(_)
            | DispatchEvent::OnDeadFailed(_)
            | DispatchEvent::StoreStillFailing { .. }
            | DispatchEvent::ClockDiffers { .. }
            | DispatchEvent::TimeStepped { .. }
            | DispatchEvent::Claimed { .. }
            | DispatchEvent::HandedBack { .. }
            | DispatchEvent::WakeUpsLost { .. }
            | DispatchEvent::CallFailed { .. }
            | DispatchEvent::StoreFailing { .. }
            | DispatchEvent::StoreRecovered { .. }
            | DispatchEvent::PausesUnknown { .. }
            | DispatchEvent::BreakerHalfOpened { .. }
            | DispatchEvent::Draining { .. }
            | DispatchEvent::Stopping { .. }
            | DispatchEvent::Stopped { .. } => {}
        }
    }

    fn finished(&mut self, finished: &Finished) {
        match finished.verdict {
            Verdict::Completed => self.completed += 1,
            Verdict::Retrying { .. } => self.failed += 1,
            Verdict::Dead { .. } => {
                self.failed += 1;
                self.dead += 1;
            }
            Verdict::Released | Verdict::Snoozed { .. } | Verdict::LeaseLost { .. } => {}
        }
    }

    /// As much of it as fits in so many columns; what matters most comes first.
    pub(super) fn line(&mut self, columns: usize, now: Instant) -> String {
        let rate = self.rate(now);
        let elapsed = short_duration(now.saturating_duration_since(self.began));
        let held_up = [("paused", &self.paused), ("resting", &self.resting)];
        let held_up = held_up.into_iter().filter(|(_, handlers)| !handlers.is_empty());
        let held_up = held_up.map(|(word, handlers)| format!("{word}: {}", enumerate(handlers)));
        let obstacle = self.pulse.check_ready().err().and_then(words_for);
        let parts = obstacle.into_iter().chain(self.numbers()).chain(held_up).chain([rate, elapsed]);
        fitting(parts, columns)
    }

    /// The numbers alone, for a supervisor that shows one line.
    pub(super) fn summary(&self) -> String {
        let obstacle = self.pulse.check_ready().err().and_then(words_for);
        obstacle.into_iter().chain(self.numbers()).collect::<Vec<_>>().join(", ")
    }

    fn numbers(&self) -> impl Iterator<Item = String> + use<> {
        let in_flight = self.pulse.running().iter().map(|(_, running)| running).sum::<usize>();
        let some = [(self.failed, "failed"), (self.dead, "dead")].into_iter().filter(|(count, _)| *count > 0);
        [format!("{in_flight} in flight"), format!("{} done", self.completed)]
            .into_iter()
            .chain(some.map(|(count, word)| format!("{count} {word}")))
    }

    /// Attempts that ended within a second, of late.
    fn rate(&mut self, now: Instant) -> String {
        let ended = self.completed + self.failed;
        self.samples.push_back((now, ended));
        let is_old = |(at, _): &(Instant, u64)| now.saturating_duration_since(*at) >= RATE_OVER;
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
        let (since, before) = self.samples.front().copied().unwrap_or((now, ended));
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        let rate = if seconds > 0.0 { (ended - before) as f64 / seconds } else { 0.0 };
        if rate > 0.0 && rate < 10.0 { format!("{rate:.1}/s") } else { format!("{rate:.0}/s") }
    }
}

/// What keeps a worker from its work, as short as can be.
fn words_for(obstacle: Obstacle) -> Option<String> {
    match obstacle {
        Obstacle::Starting => Some("starting".to_owned()),
        Obstacle::Stuck(still) => Some(format!("stuck for {}", short_duration(still))),
        Obstacle::StoreSilent(silent) => Some(format!("no store for {}", short_duration(silent))),
        Obstacle::Draining => Some("draining".to_owned()),
        // Whoever sees this reads the log, and who has ended needs no status.
        Obstacle::Unread | Obstacle::Ended => None,
    }
}

fn enumerate(handlers: &BTreeSet<String>) -> String {
    handlers.iter().map(|handler| visible(handler)).collect::<Vec<_>>().join(", ")
}

/// The first of `parts`, as many as fit.
fn fitting(parts: impl Iterator<Item = String>, columns: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let gap = if line.is_empty() { "" } else { GAP };
        if !line.is_empty() && width(&line) + width(gap) + width(&part) > columns {
            break;
        }
        line.push_str(gap);
        line.push_str(&part);
    }
    line
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::testing;
    use super::*;
    use crate::clock::ManualClock;
    use crate::dispatch::{DispatchOptions, Dispatcher, Subscription};
    use crate::handler::{Outcome, handler_fn};
    use crate::model::{Failure, FailureKind, Timestamp};
    use crate::store::memory::MemoryStore;

    const SECOND: Duration = Duration::from_secs(1);

    /// The tally of a worker that has not begun.
    fn tally(now: Instant) -> (Tally, Dispatcher) {
        let nothing = handler_fn(|_| async { Outcome::Succeeded });
        let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
        let subscriptions = vec![Subscription::new("mail", nothing)];
        let dispatcher =
            Dispatcher::new(Arc::new(MemoryStore::new()), clock, subscriptions, DispatchOptions::default());
        let dispatcher = dispatcher.unwrap();
        (Tally::new(dispatcher.pulse(), now), dispatcher)
    }

    fn finished(verdict: Verdict) -> DispatchEvent {
        testing::finished("mail", "t", verdict)
    }

    fn dead() -> DispatchEvent {
        finished(Verdict::Dead { failure: Failure::new(FailureKind::Failed, "no") })
    }

    #[test]
    fn the_line_has_the_numbers_and_what_holds_the_worker_up() {
        let now = Instant::now();
        let (mut tally, _dispatcher) = tally(now);
        assert_eq!(tally.line(79, now), "starting  0 in flight  0 done  0/s  0s");
        (0..20).for_each(|_| tally.observe(&finished(Verdict::Completed)));
        (0..5).for_each(|_| tally.observe(&dead()));
        tally.observe(&finished(Verdict::Released));
        let opened = DispatchEvent::BreakerOpened {
            handler: "mail\u{1b}".into(),
            failures: 10,
            pause: SECOND,
            error: String::new(),
        };
        tally.observe(&opened);
        let line = "starting  0 in flight  20 done  5 failed  5 dead  resting: mail\\x1b  12/s  2s";
        assert_eq!(tally.line(79, now + 2 * SECOND), line);
        tally.observe(&DispatchEvent::BreakerClosed { handler: "mail\u{1b}".into(), after: SECOND });
        assert!(!tally.line(79, now + 3 * SECOND).contains("resting"));
    }

    #[test]
    fn a_narrow_terminal_gets_what_matters_most() {
        let now = Instant::now();
        let (mut tally, _dispatcher) = tally(now);
        (0..1_204).for_each(|_| tally.observe(&finished(Verdict::Completed)));
        assert_eq!(tally.line(39, now), "starting  0 in flight  1204 done  0/s");
        assert_eq!(tally.line(30, now), "starting  0 in flight");
        assert_eq!(tally.line(1, now), "starting");
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let now = Instant::now();
        let (mut tally, _dispatcher) = tally(now);
        let mut rates = Vec::new();
        for second in 1..=12 {
            if second <= 6 {
                (0..7).for_each(|_| tally.observe(&finished(Verdict::Completed)));
            }
            rates.push(tally.rate(now + second * SECOND));
        }
        assert_eq!(rates[..6], ["7.0/s"; 6]);
        assert_eq!(rates[6..], ["5.6/s", "4.2/s", "2.8/s", "1.4/s", "0/s", "0/s"]);
    }
}
