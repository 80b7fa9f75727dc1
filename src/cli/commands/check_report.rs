//! What `check` found, in the formats of monitoring systems.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::bulk::count_of;
use crate::cli::render::text::visible;
use crate::model::{Timestamp, short_duration};
use crate::monitor;
use crate::ops::{Measure, Reading, Severity};

/// What was found out.
#[derive(Debug)]
pub enum Finding<'a> {
    /// The numbers.
    Readings(&'a [Reading]),
    /// Why there are none.
    Unknown(String),
}

/// What was found out, where and when.
#[derive(Debug)]
pub struct Report<'a> {
    /// What.
    pub finding: Finding<'a>,
    /// Where, if the store could be opened.
    pub location: Option<String>,
    /// When.
    pub at: Timestamp,
}

impl Report<'_> {
    /// A line as plugins of Nagios write it: a word, why, and behind a bar the numbers.
    pub fn nagios(&self) -> String {
        let readings = match &self.finding {
            Finding::Readings(readings) => *readings,
            Finding::Unknown(why) => return format!("RELAYCTL UNKNOWN - {}\n", plain(why)),
        };
        let worst = worst(readings);
        let reasons: Vec<String> =
            readings.iter().filter(|reading| reading.status != Severity::Ok).map(reason).collect();
        let said = match (reasons.is_empty(), self.location.as_deref()) {
            (false, _) => reasons.join(", "),
            (true, Some(location)) => format!("all is well in {location}"),
            (true, None) => "all is well".to_owned(),
        };
        let numbers: Vec<String> = readings.iter().map(performance).collect();
        let word = match worst {
            Severity::Ok => "OK",
            Severity::Warning => "WARNING",
            Severity::Critical => "CRITICAL",
        };
        format!("RELAYCTL {word} - {} | {}\n", plain(&said), numbers.join(" "))
    }

    /// One JSON document.
    pub fn json(&self) -> String {
        let document = match &self.finding {
            Finding::Readings(readings) => Document {
                status: worst(readings).into(),
                error: None,
                checked_at: self.at,
                checks: readings,
            },
            Finding::Unknown(why) => {
                Document { status: Word::Unknown, error: Some(why), checked_at: self.at, checks: &[] }
            }
        };
        serde_json::to_string_pretty(&document).map(|text| text + "\n").unwrap_or_default()
    }

    /// Metrics in the text format of Prometheus. When nothing could be found out there is just that, and no old number.
    pub fn prometheus(&self) -> String {
        let readings = match &self.finding {
            Finding::Readings(readings) => Some(*readings),
            Finding::Unknown(_) => None,
        };
        monitor::check_metrics(readings, self.at)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    status: Word,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    checked_at: Timestamp,
    checks: &'a [Reading],
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Ok,
    Warning,
    Critical,
    Unknown,
}

impl From<Severity> for Word {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Ok => Word::Ok,
            Severity::Warning => Word::Warning,
            Severity::Critical => Word::Critical,
        }
    }
}

fn worst(readings: &[Reading]) -> Severity {
    readings.iter().map(|reading| reading.status).max().unwrap_or_default()
}

/// One line without what has a meaning of its own in a line of a plugin.
fn plain(text: &str) -> String {
    visible(text).replace('|', "\u{a6}")
}

fn reason(reading: &Reading) -> String {
    let value = shown(reading.measure, reading.value);
    let bound = match reading.status {
        Severity::Critical => reading.crit,
        _ => reading.warn,
    };
    let bound =
        bound.map(|bound| format!(" (threshold {})", shown(reading.measure, bound))).unwrap_or_default();
    let of = reading.handler.as_deref().map(|handler| format!("{}: ", visible(handler))).unwrap_or_default();
    match reading.measure {
        Measure::Dead => format!("{of}{value} dead{bound}"),
        Measure::Pending => format!("{of}{value} waiting{bound}"),
        Measure::Expired => {
            format!("{of}{}{bound}", count_of(reading.value, "expired lease", "expired leases"))
        }
        Measure::OldestDueMs => format!("{of}oldest due for {value}{bound}"),
    }
}

fn shown(measure: Measure, value: u64) -> String {
    match measure {
        Measure::OldestDueMs => short_duration(Duration::from_millis(value)),
        _ => value.to_string(),
    }
}

/// `'label'=value[unit];warn;crit;min`, with the bounds as they were given.
fn performance(reading: &Reading) -> String {
    let (name, unit) = match reading.measure {
        Measure::Dead => ("dead", ""),
        Measure::Pending => ("pending", ""),
        Measure::Expired => ("expired", ""),
        Measure::OldestDueMs => ("oldest", "s"),
    };
    let label = match &reading.handler {
        Some(handler) => format!("{handler} {name}"),
        None => name.to_owned(),
    };
    // A label ends at `=`, and a quote in it is doubled.
    let label = plain(&label).replace('=', ":").replace('\'', "''");
    let number = |value: u64| match reading.measure {
        Measure::OldestDueMs => format!("{}", value as f64 / 1_000.0),
        _ => value.to_string(),
    };
    let bound = |bound: Option<u64>| bound.map(number).unwrap_or_default();
    let mut text = String::new();
    let _ = write!(
        text,
        "'{label}'={}{unit};{};{};0",
        number(reading.value),
        bound(reading.warn),
        bound(reading.crit)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(handler: Option<&str>, measure: Measure, value: u64, status: Severity) -> Reading {
        let handler = handler.map(str::to_owned);
        Reading { handler, measure, value, warn: Some(1), crit: Some(2_000), status }
    }

    fn report(finding: Finding<'_>) -> Report<'_> {
        Report { finding, location: None, at: Timestamp::from_millis(1_500) }
    }

    #[test]
    fn a_line_cannot_be_broken_by_names() {
        let readings = [reading(Some("a|b'c=d\n"), Measure::Dead, 3, Severity::Warning)];
        assert_eq!(
            report(Finding::Readings(&readings)).nagios(),
            "RELAYCTL WARNING - a\u{a6}b'c=d\\n: 3 dead (threshold 1) | 'a\u{a6}b''c:d\\n dead'=3;1;2000;0\n"
        );
        let unknown = report(Finding::Unknown("no | answer\n".into())).nagios();
        assert_eq!(unknown, "RELAYCTL UNKNOWN - no \u{a6} answer\\n\n");
    }

    #[test]
    fn ages_are_told_in_seconds_to_programs() {
        let readings = [reading(None, Measure::OldestDueMs, 90_500, Severity::Critical)];
        let report = report(Finding::Readings(&readings));
        assert_eq!(
            report.nagios(),
            "RELAYCTL CRITICAL - oldest due for 1m (threshold 2s) | 'oldest'=90.5s;0.001;2;0\n"
        );
        let metrics = report.prometheus();
        assert!(metrics.contains("relayctl_oldest_due_age_seconds{handler=\"\"} 90.5\n"), "{metrics}");
        assert!(metrics.contains("relayctl_check_status{handler=\"\"} 2.0\n"), "{metrics}");
        assert!(metrics.contains("relayctl_check_up 1.0\n"), "{metrics}");
        assert!(metrics.contains("relayctl_check_timestamp_seconds 1.5\n"), "{metrics}");
    }

    #[test]
    fn what_is_unknown_has_no_numbers() {
        let metrics = report(Finding::Unknown("gone".into())).prometheus();
        assert!(
            metrics.contains("relayctl_check_up 0.0\n") && !metrics.contains("relayctl_dead"),
            "{metrics}"
        );
    }
}
