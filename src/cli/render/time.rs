//! Times in tables.

use crate::config::TimeStyle;
use crate::model::{Timestamp, short_duration};

/// How times are shown, and what they are relative to.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The style.
    pub style: TimeStyle,
    /// The current time.
    pub now: Timestamp,
}

impl Times {
    /// An instant: `3m ago`, `in 5s`, `now`, or RFC 3339.
    pub fn show(&self, instant: Timestamp) -> String {
        match self.style {
            TimeStyle::Relative => self.relative(instant),
            TimeStyle::Utc => instant.to_string(),
            TimeStyle::Local => local(instant),
        }
    }

    fn relative(&self, instant: Timestamp) -> String {
        let (ahead, behind) = (instant.since(self.now), self.now.since(instant));
        if ahead.as_secs() > 0 {
            format!("in {}", short_duration(ahead))
        } else if behind.as_secs() > 0 {
            format!("{} ago", short_duration(behind))
        } else {
            "now".to_owned()
        }
    }
}

fn local(instant: Timestamp) -> String {
    match jiff::Timestamp::from_millisecond(instant.as_millis()) {
        Ok(time) => {
            time.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
        }
        Err(_) => instant.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(style: TimeStyle, millis: i64) -> String {
        Times { style, now: Timestamp::from_millis(1_000_000_000) }.show(Timestamp::from_millis(millis))
    }

    #[test]
    fn relative_times_look_both_ways() {
        let shown = |offset: i64| show(TimeStyle::Relative, 1_000_000_000 + offset);
        assert_eq!([shown(0), shown(999), shown(-999)], ["now", "now", "now"]);
        assert_eq!([shown(5_000), shown(-180_000)], ["in 5s", "3m ago"]);
        assert_eq!([shown(i64::MAX / 2), shown(i64::MIN / 2)].map(|text| text.len() > 4), [true, true]);
    }

    #[test]
    fn utc_is_rfc_3339() {
        assert_eq!(show(TimeStyle::Utc, 0), "1970-01-01T00:00:00.000Z");
    }
}
