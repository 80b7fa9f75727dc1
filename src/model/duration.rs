//! Durations as people write them: `90s`, `15m`, `2h`, `7d`, `1w`.

use std::time::Duration;

/// The longest duration that is accepted: a thousand years, so that no arithmetic on instants can overflow.
const LONGEST: Duration = Duration::from_secs(1_000 * 366 * 86_400);

/// A text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a duration such as 90s, 15m, 2h, 7d or 1w{}", if *.too_long { " (it is too long)" } else { "" })]
pub struct InvalidDuration {
    /// What was given.
    pub text: String,
    /// Whether it was a duration, but an absurdly long one.
    pub too_long: bool,
}

/// Reads `90s`, `15m`, `2h`, `7d`, `1w`, `250ms`, and sums of these such as `1h 30m`.
///
/// A bare number has no unit and is refused, with the exception of `0`.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    let refuse = |too_long| InvalidDuration { text: text.to_owned(), too_long };
    match humantime::parse_duration(text.trim()) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        Ok(_) | Err(humantime::DurationError::NumberOverflow) => Err(refuse(true)),
        Err(_) => Err(refuse(false)),
    }
}

/// The largest whole unit that fits, for tables: `45s`, `12m`, `3h`, `9d`; below a second `0s`.
pub fn short_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_documented_units() {
        let read = |text| parse_duration(text).map(|duration| duration.as_millis());
        assert_eq!(read("90s"), Ok(90_000));
        assert_eq!(read("15m"), Ok(900_000));
        assert_eq!(read("2h"), Ok(7_200_000));
        assert_eq!(read("7d"), Ok(604_800_000));
        assert_eq!(read("1w"), Ok(604_800_000));
        assert_eq!(read("250ms"), Ok(250));
        assert_eq!(read("1h 30m"), Ok(5_400_000));
        assert_eq!(read("0s"), Ok(0));
    }

    #[test]
    fn refuses_what_is_no_duration_or_absurd() {
        for text in ["", "5", "-5m", "five minutes", "1.5", "m"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for text in ["9999999999d", "99999999999999999999999999d", "18446744073709551615w"] {
            assert!(parse_duration(text).unwrap_err().too_long, "{text}");
        }
    }

    #[test]
    fn short_form_takes_the_largest_unit() {
        let short = |seconds| short_duration(Duration::from_secs(seconds));
        assert_eq!([short(0), short(59), short(60), short(3_599)], ["0s", "59s", "1m", "59m"]);
        assert_eq!([short(3_600), short(86_399), short(86_400)], ["1h", "23h", "1d"]);
    }
}
