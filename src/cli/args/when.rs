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

/// When something ends: an instant, or so long after the command was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UntilArg {
    /// An instant.
    At(Timestamp),
    /// So long from now.
    In(Duration),
}

impl UntilArg {
    /// Reads RFC 3339 with an offset, or a duration.
    ///
    /// # Errors
    /// Says what is understood, and that an offset is missing if that is it.
    pub fn parse(text: &str) -> Result<UntilArg, String> {
        match TimeArg::parse(text) {
            Ok(TimeArg::At(instant)) => Ok(UntilArg::At(instant)),
            Ok(TimeArg::Ago(duration)) => Ok(UntilArg::In(duration)),
            Err(reason) if reason.contains("no offset") => Err(reason),
            Err(_) => {
                Err("write a time with an offset, such as 2026-03-01T09:30:00Z, or after how long, such as \
                           90s, 15m, 2h, 7d or 1w"
                    .to_owned())
            }
        }
    }

    /// The instant that is meant by a command given at `now`.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            UntilArg::At(instant) => instant,
            UntilArg::In(duration) => now.saturating_add(duration),
        }
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
    fn an_end_is_an_instant_or_counts_from_now() {
        let now = Timestamp::from_millis(1_000);
        let read = |text| UntilArg::parse(text).map(|until| until.resolve(now).as_millis());
        assert_eq!(read("30s"), Ok(31_000));
        assert_eq!(read("1970-01-01T00:00:05Z"), Ok(5_000));
        assert!(read("1970-01-01T00:00:05").unwrap_err().contains("no offset"));
        assert!(read("tomorrow").unwrap_err().contains("after how long"));
    }

    #[test]
    fn a_delay_counts_from_now() {
        let now = Timestamp::from_millis(1_000);
        let delay = WhenArgs { delay: Some(Duration::from_secs(2)), at: None };
        assert_eq!(delay.resolve(now), Some(Timestamp::from_millis(3_000)));
        assert_eq!(WhenArgs::default().resolve(now), None);
    }
}
