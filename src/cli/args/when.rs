//! When something becomes due: at once, after a delay, or at an instant.

use std::time::Duration;

use clap::Args;

use super::values::{TimeArg, duration};
use crate::model::Timestamp;

/// When it becomes due; at once unless one of these is given.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct WhenArgs {
    /// Not before this much time has passed: 90s, 15m, 2h, 7d
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "at")]
    pub delay: Option<Duration>,

    /// Not before this instant: RFC 3339 with an offset
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub at: Option<Timestamp>,
}

impl WhenArgs {
    /// The instant that is meant by a command given at `now`; `None` for at once.
    pub fn resolve(self, now: Timestamp) -> Option<Timestamp> {
        self.at.or(self.delay.map(|delay| now.saturating_add(delay)))
    }
}

fn instant(text: &str) -> Result<Timestamp, String> {
    match TimeArg::parse(text)? {
        TimeArg::At(instant) => Ok(instant),
        TimeArg::Ago(_) => Err(format!("`{text}` is a duration; give it to --delay instead")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_no_duration() {
        assert_eq!(instant("1970-01-01T00:00:05Z"), Ok(Timestamp::from_millis(5_000)));
        assert!(instant("15m").unwrap_err().contains("--delay"));
        assert!(instant("2026-03-01T09:30:00").unwrap_err().contains("no offset"));
    }

    #[test]
    fn a_delay_counts_from_now() {
        let now = Timestamp::from_millis(1_000);
        let delay = WhenArgs { delay: Some(Duration::from_secs(2)), at: None };
        assert_eq!(delay.resolve(now), Some(Timestamp::from_millis(3_000)));
        assert_eq!(WhenArgs::default().resolve(now), None);
    }
}
