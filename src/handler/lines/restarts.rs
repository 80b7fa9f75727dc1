//! How long to wait before a child is started again.

use std::time::Duration;

use tokio::time::Instant;

/// After the first child that came to grief.
const SHORTEST: Duration = Duration::from_millis(100);

/// However many did.
const LONGEST: Duration = Duration::from_secs(30);

/// Counts children of one handler that came to grief without an answer in between.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    next_pause: Option<Duration>,
    not_before: Option<Instant>,
}

impl Restarts {
    /// A child came to grief. Those that do so while the others wait already count as one.
    pub(super) fn failed(&mut self, now: Instant) {
        if self.not_before.is_some_and(|time| now < time) {
            return;
        }
        let pause = self.next_pause.unwrap_or(SHORTEST);
        self.not_before = Some(now + pause);
        self.next_pause = Some((pause * 2).min(LONGEST));
    }

    /// A child answered.
    pub(super) fn succeeded(&mut self) {
        *self = Restarts::default();
    }

    /// Until when no child is to be started.
    pub(super) fn wait_until(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|time| now < *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_until_a_child_answers() {
        let mut restarts = Restarts::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..11 {
            restarts.failed(now);
            let until = restarts.wait_until(now).unwrap();
            pauses.push((until - now).as_millis());
            now = until;
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]);
        restarts.succeeded();
        assert_eq!(restarts.wait_until(now), None);
        restarts.failed(now);
        assert_eq!(restarts.wait_until(now), Some(now + SHORTEST));
    }

    #[test]
    fn those_that_fail_together_count_as_one() {
        let (mut restarts, now) = (Restarts::default(), Instant::now());
        for _ in 0..5 {
            restarts.failed(now);
        }
        assert_eq!(restarts.wait_until(now), Some(now + SHORTEST));
        assert_eq!(restarts.wait_until(now + SHORTEST), None);
    }
}
