//! When a handler wants to be tried again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::model::{Timestamp, parse_duration};

/// The longest wait that a handler may ask for: a year.
pub const LONGEST_WAIT: Duration = Duration::from_secs(366 * 86_400);

/// How long to wait before the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For so long.
    For(Duration),
    /// Until this time; not at all when that has passed.
    Until(Timestamp),
}

impl Wait {
    /// When the wait is over. `None` when that is more than [`LONGEST_WAIT`] away.
    pub fn end(self, now: Timestamp) -> Option<Timestamp> {
        let end = match self {
            Wait::For(duration) => now.saturating_add(duration),
            Wait::Until(time) => time.max(now),
        };
        (end.since(now) <= LONGEST_WAIT).then_some(end)
    }
}

/// A text that says no wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("neither a duration such as 30s nor a time with an offset")]
pub struct InvalidWait;

impl FromStr for Wait {
    type Err = InvalidWait;

    /// A duration, or an instant with an offset.
    fn from_str(text: &str) -> Result<Self, InvalidWait> {
        let duration = parse_duration(text).map(Wait::For);
        let is_instant = text.starts_with(|first: char| first.is_ascii_digit());
        let instant = || text.parse().ok().filter(|_| is_instant).map(Wait::Until);
        duration.ok().or_else(instant).ok_or(InvalidWait)
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::For(duration) => humantime::format_duration(*duration).fmt(f),
            Wait::Until(time) => time.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(5_000);

    #[test]
    fn a_wait_ends_within_a_year_or_not_at_all() {
        let second = Duration::from_secs(1);
        assert_eq!(Wait::For(second).end(NOW), Some(Timestamp::from_millis(6_000)));
        assert_eq!(Wait::Until(Timestamp::from_millis(6_001)).end(NOW), Some(Timestamp::from_millis(6_001)));
        assert_eq!(Wait::Until(Timestamp::EPOCH).end(NOW), Some(NOW));
        let longest = NOW.saturating_add(LONGEST_WAIT);
        assert_eq!(Wait::For(LONGEST_WAIT).end(NOW), Some(longest));
        assert_eq!(Wait::For(LONGEST_WAIT + second).end(NOW), None);
        assert_eq!(Wait::Until(longest.saturating_add(second)).end(NOW), None);
    }
}
