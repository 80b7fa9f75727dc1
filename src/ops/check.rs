//! Check: numbers of the outbox against thresholds, for monitoring.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use crate::model::{Filter, HandlerStatistics, Selection, Statistics, Status, Timestamp};
use crate::store::{Result, Store};

/// How bad something is, in the order of the monitoring convention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Below all thresholds, or there is none.
    #[default]
    Ok,
    /// The threshold of warning is reached.
    Warning,
    /// The critical threshold is reached.
    Critical,
}

/// From which value on something is worth a warning, or critical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threshold {
    /// Worth a warning from here on.
    pub warn: Option<u64>,
    /// Critical from here on.
    pub crit: Option<u64>,
}

impl Threshold {
    /// How bad a value is.
    pub fn judge(self, value: u64) -> Severity {
        let is_reached = |bound: Option<u64>| bound.is_some_and(|bound| value >= bound);
        match (is_reached(self.crit), is_reached(self.warn)) {
            (true, _) => Severity::Critical,
            (false, true) => Severity::Warning,
            (false, false) => Severity::Ok,
        }
    }

    fn is_set(self) -> bool {
        self.warn.is_some() || self.crit.is_some()
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Measure {
    /// Deliveries that were given up.
    Dead,
    /// Deliveries that wait, delayed and parked ones included.
    Pending,
    /// Leases that ran out and that nobody took over since.
    Expired,
    /// For how many milliseconds the unfinished delivery that was due first has been due; 0 when none is.
    OldestDueMs,
}

/// The thresholds of all measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thresholds {
    /// Of [`Measure::Dead`].
    pub dead: Threshold,
    /// Of [`Measure::Pending`].
    pub pending: Threshold,
    /// Of [`Measure::Expired`].
    pub expired: Threshold,
    /// Of [`Measure::OldestDueMs`], in milliseconds.
    pub oldest: Threshold,
}

impl Thresholds {
    /// Whether nothing could ever be found wrong.
    pub fn is_empty(&self) -> bool {
        ![self.dead, self.pending, self.expired, self.oldest].into_iter().any(Threshold::is_set)
    }
}

/// Which deliveries are measured together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of them.
    All,
    /// Those of each handler that there is.
    EachHandler,
    /// Those of each of these handlers, whether or not there is one of that name.
    Handlers(Vec<String>),
}

/// One number, and how bad it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reading {
    /// The handler; `None` is all of them together.
    pub handler: Option<String>,
    /// What was measured.
    pub measure: Measure,
    /// How much of it there is.
    pub value: u64,
    /// From where on it is worth a warning.
    pub warn: Option<u64>,
    /// From where on it is critical.
    pub crit: Option<u64>,
    /// How bad it is.
    pub status: Severity,
}

/// The numbers of a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Numbers {
    handler: Option<String>,
    dead: u64,
    pending: u64,
    expired: u64,
    oldest_due_at: Option<Timestamp>,
}

/// Measures a scope at `now`; four readings for each of its handlers, or for all.
///
/// # Errors
/// Those of the store.
pub async fn check(
    store: &dyn Store,
    scope: &Scope,
    thresholds: &Thresholds,
    now: Timestamp,
) -> Result<Vec<Reading>> {
    let mut numbers = numbers_of(&store.statistics().await?, scope);
    for numbers in &mut numbers {
        numbers.expired = store.count(&expired(numbers.handler.as_deref(), now)).await?;
    }
    Ok(numbers.iter().flat_map(|numbers| readings(numbers, thresholds, now)).collect())
}

fn expired(handler: Option<&str>, now: Timestamp) -> Selection {
    let handler = handler.map(str::to_owned);
    let filter =
        Filter { statuses: vec![Status::Processing], handler, due_before: Some(now), ..Filter::default() };
    Selection { filter, cutoff: now }
}

fn numbers_of(statistics: &Statistics, scope: &Scope) -> Vec<Numbers> {
    let known = |counts: &HandlerStatistics| Numbers {
        handler: Some(counts.handler.clone()),
        dead: counts.dead,
        pending: counts.pending,
        expired: 0,
        oldest_due_at: counts.oldest_due_at,
    };
    match scope {
        Scope::All => {
            let Statistics { dead, pending, oldest_due_at, .. } = *statistics;
            vec![Numbers { handler: None, dead, pending, expired: 0, oldest_due_at }]
        }
        Scope::EachHandler => statistics.handlers.iter().map(known).collect(),
        Scope::Handlers(names) => {
            let named = names.iter().collect::<BTreeSet<_>>().into_iter();
            let of = |name: &String| {
                let counts = statistics.handlers.iter().find(|counts| counts.handler == *name);
                counts.map_or_else(|| Numbers { handler: Some(name.clone()), ..Numbers::default() }, known)
            };
            named.map(of).collect()
        }
    }
}

fn readings(numbers: &Numbers, thresholds: &Thresholds, now: Timestamp) -> [Reading; 4] {
    let age = numbers.oldest_due_at.map_or(Duration::ZERO, |due| now.since(due));
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let reading = |measure, value, threshold: Threshold| Reading {
        handler: numbers.handler.clone(),
        measure,
        value,
        warn: threshold.warn,
        crit: threshold.crit,
        status: threshold.judge(value),
    };
    [
        reading(Measure::Dead, numbers.dead, thresholds.dead),
        reading(Measure::Pending, numbers.pending, thresholds.pending),
        reading(Measure::Expired, numbers.expired, thresholds.expired),
        reading(Measure::OldestDueMs, age, thresholds.oldest),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_reached_by_its_own_value_and_critical_comes_first() {
        let threshold = Threshold { warn: Some(5), crit: Some(10) };
        assert_eq!([4, 5, 9, 10].map(|value| threshold.judge(value)), {
            [Severity::Ok, Severity::Warning, Severity::Warning, Severity::Critical]
        });
        assert_eq!(Threshold::default().judge(u64::MAX), Severity::Ok);
        assert_eq!(Threshold { warn: None, crit: Some(1) }.judge(1), Severity::Critical);
    }

    #[test]
    fn what_is_due_later_has_no_age() {
        let due = Some(Timestamp::from_millis(2_000));
        let numbers = Numbers { oldest_due_at: due, ..Numbers::default() };
        let age = |now| readings(&numbers, &Thresholds::default(), Timestamp::from_millis(now))[3].value;
        assert_eq!([age(1_000), age(2_000), age(3_500)], [0, 0, 1_500]);
    }

    #[test]
    fn a_handler_that_is_not_there_has_nothing() {
        let counts = HandlerStatistics { handler: "a".into(), dead: 3, ..HandlerStatistics::default() };
        let statistics = Statistics::from_handlers(vec![counts]);
        let dead = |scope: Scope| -> Vec<(Option<String>, u64)> {
            numbers_of(&statistics, &scope)
                .into_iter()
                .map(|numbers| (numbers.handler, numbers.dead))
                .collect()
        };
        let names = vec!["b".to_owned(), "a".to_owned(), "b".to_owned()];
        assert_eq!(dead(Scope::Handlers(names)), [(Some("a".into()), 3), (Some("b".into()), 0)]);
        assert_eq!(dead(Scope::All), [(None, 3)]);
        assert_eq!(dead(Scope::EachHandler), [(Some("a".into()), 3)]);
    }
}
