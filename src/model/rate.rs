//! How often something may happen: so many in so much time.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

/// At most so many in so much time, such as `50/s`, `600/m` or `1000/h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: NonZeroU32,
    unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Second,
    Minute,
    Hour,
}

/// A text that is no rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a rate such as 50/s, 600/m or 1000/h")]
pub struct InvalidRate(pub String);

impl Unit {
    const fn seconds(self) -> u32 {
        match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
        }
    }

    const fn letter(self) -> char {
        match self {
            Unit::Second => 's',
            Unit::Minute => 'm',
            Unit::Hour => 'h',
        }
    }
}

impl Rate {
    /// How many may come in one go, so that they flow evenly: a tenth of a second's worth, and at least one.
    pub fn burst(self) -> u64 {
        let tenths = u64::from(self.unit.seconds()) * 10;
        (u64::from(self.count.get()) / tenths).max(1)
    }

    /// The time that `count` take at this rate.
    pub fn time_for(self, count: u64) -> Duration {
        let unit_nanos = u128::from(self.unit.seconds()) * 1_000_000_000;
        let nanos = u128::from(count) * unit_nanos / u128::from(self.count.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || InvalidRate(text.to_owned());
        let (count, unit) = text.trim().split_once('/').ok_or_else(refuse)?;
        let unit = match unit {
            "s" => Unit::Second,
            "m" => Unit::Minute,
            "h" => Unit::Hour,
            _ => return Err(refuse()),
        };
        // `+5` would parse as a number.
        if !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refuse());
        }
        Ok(Rate { count: count.parse().map_err(|_| refuse())?, unit })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.unit.letter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn reads_a_count_and_a_unit() {
        assert_eq!(rate("50/s").time_for(100), Duration::from_secs(2));
        assert_eq!(rate("600/m").time_for(1), Duration::from_millis(100));
        assert_eq!(rate("1/h").time_for(1), Duration::from_secs(3_600));
        assert_eq!(rate("50/s").to_string(), "50/s");
        for text in ["", "50", "0/s", "-1/s", "+1/s", "/s", "50/d", "50 / s", "1.5/s", "99999999999/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_burst_is_a_tenth_of_a_second() {
        assert_eq!([rate("1/s").burst(), rate("50/s").burst(), rate("5000/s").burst()], [1, 5, 500]);
        assert_eq!([rate("600/m").burst(), rate("1/h").burst()], [1, 1]);
    }
}
