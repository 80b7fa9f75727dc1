//! Pauses that double.

use std::time::Duration;

/// A pause that starts short and doubles up to its longest.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(shortest: Duration, longest: Duration) -> Self {
        let shortest = shortest.min(longest);
        Backoff { shortest, longest, next: shortest }
    }

    /// The pause to make now; the next one is twice as long.
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    pub(super) fn reset(&mut self) {
        self.next = self.shortest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_its_longest_and_starts_again() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(150));
        let pauses: Vec<_> = (0..4).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(pauses, [50, 100, 150, 150]);
        backoff.reset();
        assert_eq!(backoff.next().as_millis(), 50);
    }

    #[test]
    fn the_longest_wins_over_the_shortest() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(5));
        assert_eq!(backoff.next().as_millis(), 5);
    }
}
