//! Instants in whole milliseconds, the precision that every store keeps.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An instant: milliseconds since 1970-01-01T00:00:00Z, as BSON dates count them.
///
/// It prints as RFC 3339 in UTC with three digits of milliseconds, whatever the time zone of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

/// A text that is not an instant with an offset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an RFC 3339 time with an offset, such as 2026-03-01T09:30:00Z")]
pub struct InvalidTimestamp(pub String);

impl Timestamp {
    /// The start of the Unix era.
    pub const EPOCH: Timestamp = Timestamp(0);

    /// The instant `millis` milliseconds after the epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Timestamp(millis)
    }

    /// Milliseconds since the epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This instant moved later; stops at the last instant that 64 bits can count.
    pub fn saturating_add(self, duration: Duration) -> Self {
        Timestamp(self.0.saturating_add(whole_millis(duration)))
    }

    /// This instant moved earlier; stops at the first instant that 64 bits can count.
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Timestamp(self.0.saturating_sub(whole_millis(duration)))
    }

    /// Time passed since `earlier`; zero when that lies in the future.
    pub fn since(self, earlier: Timestamp) -> Duration {
        let millis = i128::from(self.0) - i128::from(earlier.0);
        Duration::from_millis(u64::try_from(millis).unwrap_or(0))
    }
}

fn whole_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl fmt::Display for Timestamp {
    /// Instants outside the years -9999 to 9999, which RFC 3339 cannot write, print as `@<milliseconds>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(instant) => write!(f, "{instant:.3}"),
            Err(_) => write!(f, "@{}", self.0),
        }
    }
}

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    /// Reads what [`Display`](fmt::Display) writes; digits beyond the millisecond are cut off.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(millis) = text.strip_prefix('@').and_then(|digits| digits.parse().ok()) {
            return Ok(Timestamp(millis));
        }
        let instant: jiff::Timestamp = text.parse().map_err(|_| InvalidTimestamp(text.to_owned()))?;
        Ok(Timestamp(instant.as_nanosecond().div_euclid(1_000_000) as i64))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_utc_with_three_digits() {
        assert_eq!(Timestamp::from_millis(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_millis(1_764_528_000_120).to_string(), "2025-11-30T18:40:00.120Z");
        assert_eq!(Timestamp::from_millis(-1).to_string(), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn every_instant_reads_back_what_it_printed() {
        for millis in [0, -1, 1, 253_402_300_799_999, 253_402_300_800_000, i64::MIN, i64::MAX] {
            let instant = Timestamp::from_millis(millis);
            assert_eq!(instant.to_string().parse(), Ok(instant));
        }
    }

    #[test]
    fn reads_offsets_and_cuts_microseconds_downwards() {
        assert_eq!("1970-01-01T01:00:00.0019+01:00".parse(), Ok(Timestamp::from_millis(1)));
        assert_eq!("1969-12-31T23:59:59.9999Z".parse(), Ok(Timestamp::from_millis(-1)));
    }

    #[test]
    fn refuses_a_time_without_offset() {
        assert!("2026-03-01T09:30:00".parse::<Timestamp>().is_err());
        assert!("2026-03-01".parse::<Timestamp>().is_err());
        assert!("yesterday".parse::<Timestamp>().is_err());
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        let last = Timestamp::from_millis(i64::MAX);
        assert_eq!(last.saturating_add(Duration::MAX), last);
        assert_eq!(Timestamp::EPOCH.since(last), Duration::ZERO);
        assert_eq!(last.since(Timestamp::from_millis(i64::MIN)), Duration::from_millis(u64::MAX));
    }
}
