//! Which deliveries are meant: the conditions that list, requeue, bury and others share.

use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser as _;

use super::values::{TimeArg, duration, name};
use crate::model::{ErrorGroupId, EventId, Filter, Lane, Status, Timestamp, TypePattern};

/// Conditions; all that are given have to hold. Values are compared as they are: nothing in them is a pattern,
/// except a `*` at the end of a type.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Filter")]
pub struct FilterArgs {
    /// Only those in this status; may be given more than once.
    ///
    /// The words of the SQL table are understood too: published is completed, failed is dead.
    #[arg(long = "status", value_name = "STATUS", value_parser = status_parser())]
    pub statuses: Vec<Status>,

    /// Only those of this handler.
    #[arg(long, value_name = "HANDLER", value_parser = name)]
    pub handler: Option<String>,

    /// Only events of this type; `order.*` means all that begin with `order.`.
    #[arg(long = "type", value_name = "PATTERN", value_parser = parse_pattern)]
    pub event_type: Option<TypePattern>,

    /// Only those of this ordering key.
    #[arg(long, value_name = "KEY", value_parser = name)]
    pub key: Option<String>,

    /// Only those of this event.
    #[arg(long, value_name = "EVENT_ID", value_parser = name)]
    pub event: Option<String>,

    /// Only those whose last error contains this text; upper and lower case are alike.
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,

    /// Only those whose last error is of this group, as `relayctl errors` names it; may be given more than once.
    #[arg(long = "group", value_name = "GROUP", value_parser = parse_group)]
    pub groups: Vec<ErrorGroupId>,

    /// Only those created at or after this time: RFC 3339 with an offset, or how long ago (15m, 2h, 7d).
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    pub since: Option<TimeArg>,

    /// Only those created before this time.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    pub until: Option<TimeArg>,

    /// Only those completed or dead since before this time.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    pub finished_before: Option<TimeArg>,

    /// Only those with at least this many attempts.
    #[arg(long, value_name = "N")]
    pub min_attempts: Option<u32>,

    /// Only unfinished ones in this lane: ready, or parked behind a long blocked key.
    #[arg(long, value_name = "LANE", value_parser = lane_parser())]
    pub lane: Option<Lane>,

    /// Only unfinished ones that have been due for at least this long.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub overdue: Option<Duration>,
}

impl FilterArgs {
    /// The filter that is meant by a command given at `now`.
    pub fn resolve(&self, now: Timestamp) -> Filter {
        let instant = |time: Option<TimeArg>| time.map(|time| time.resolve(now));
        Filter {
            statuses: self.statuses.clone(),
            handler: self.handler.clone(),
            event_type: self.event_type.clone(),
            key: self.key.clone(),
            event: self.event.clone().map(EventId::from),
            error: self.error.clone(),
            groups: self.groups.clone(),
            since: instant(self.since),
            until: instant(self.until),
            finished_before: instant(self.finished_before),
            min_attempts: self.min_attempts,
            lane: self.lane,
            due_before: self.overdue.map(|duration| now.saturating_sub(duration)),
        }
    }
}

/// Reads a pattern of event types.
///
/// # Errors
/// Says what is understood.
pub fn parse_pattern(text: &str) -> Result<TypePattern, String> {
    text.parse::<TypePattern>().map_err(|error| error.to_string())
}

fn parse_group(text: &str) -> Result<ErrorGroupId, String> {
    text.parse::<ErrorGroupId>().map_err(|error| error.to_string())
}

fn status_parser() -> impl clap::builder::TypedValueParser<Value = Status> {
    use clap::builder::PossibleValue;
    let words = [
        PossibleValue::new("pending"),
        PossibleValue::new("processing"),
        PossibleValue::new("completed").alias("published"),
        PossibleValue::new("dead").alias("failed"),
    ];
    PossibleValuesParser::new(words).try_map(|word| word.parse::<Status>())
}

fn lane_parser() -> impl clap::builder::TypedValueParser<Value = Lane> {
    PossibleValuesParser::new([Lane::Ready.as_str(), Lane::Parked.as_str()])
        .try_map(|word| word.parse::<Lane>())
}
