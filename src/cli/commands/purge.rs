//! `purge`: what finished long ago, deleted.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::bulk::{
    Told, Verb, ask, before_any_change, conclude, count_of, deliveries, error_text, tell, with_progress,
};
use crate::cli::args::values::TimeArg;
use crate::cli::context::Context;
use crate::cli::docs::{BULK_EXITS, Docs};
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;
use crate::model::Timestamp;
use crate::ops::{BulkReport, Control, PurgePlan, PurgeReport};
use crate::store::PurgeRequest;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl purge", "Delete what was completed more than seven days ago; made for cron."),
        ("relayctl purge --completed-before 24h --max 100000", "Delete more, but not all at once."),
        ("relayctl purge --dead-before 90d -n", "See how many old dead letters there are, too."),
        ("relayctl purge --dead-before 90d --yes", "Delete them, without a question."),
    ],
    exits: BULK_EXITS,
};

/// What finished less than this ago is not deleted without a question.
const RECENT: Duration = Duration::from_secs(3_600);

const PURGE: Verb = Verb { infinitive: "delete", past: "deleted" };

/// Delete what finished long ago
///
/// Deliveries are deleted by the time at which they finished, in batches, and each event in one transaction with the
/// last delivery that refers to it. Stopping it at any time is safe: what was deleted stays deleted.
///
/// It never asks when only completed deliveries that are at least an hour old are to be deleted, so that cron can run
/// it. It asks before it deletes dead deliveries, or anything that finished less than an hour ago; without a terminal
/// that needs --yes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Delete deliveries that were completed before this time: how long ago (7d), or RFC 3339 with an offset
    #[arg(long, value_name = "AGE", default_value = "7d", value_parser = TimeArg::parse)]
    completed_before: TimeArg,

    /// Delete deliveries that have been dead since before this time; by default none
    #[arg(long, value_name = "AGE", value_parser = TimeArg::parse)]
    dead_before: Option<TimeArg>,

    /// Delete this many deliveries at a time
    #[arg(long, value_name = "N", default_value = "500")]
    batch_size: NonZeroU32,

    /// Delete at most this many deliveries in all
    #[arg(long, value_name = "N")]
    max: Option<NonZeroU64>,

    /// Only say how many would be deleted
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl Args {
    fn request(&self, now: Timestamp) -> PurgeRequest {
        PurgeRequest {
            completed_before: Some(self.completed_before.resolve(now)),
            dead_before: self.dead_before.map(|time| time.resolve(now)),
            batch: self.batch_size.get(),
        }
    }

    fn max(&self) -> Option<u64> {
        self.max.map(NonZeroU64::get)
    }
}

/// Whether nothing is lost that anybody could still want to look at.
fn is_routine(request: &PurgeRequest, now: Timestamp) -> bool {
    let long_ago = now.saturating_sub(RECENT);
    request.dead_before.is_none() && request.completed_before.is_none_or(|time| time <= long_ago)
}

/// Runs `purge`.
///
/// # Errors
/// Those that come before anything was deleted.
pub async fn run(context: &Context, args: &Args, stop: &CancellationToken) -> CliResult<Exit> {
    if !args.dry_run {
        context.require_writable("purge")?;
    }
    let prepare = async {
        context.require_schema().await?;
        let store = &**context.store().await?;
        let now = context.now();
        Ok((store, now, PurgePlan::new(store, args.request(now)).await?))
    };
    let (store, now, plan) = before_any_change(stop, prepare).await?;
    let amount = args.max().map_or(plan.matched(), |max| max.min(plan.matched()));
    if args.dry_run {
        let deliveries = BulkReport::about(plan.matched());
        return finish(context, args, PurgeReport { deliveries, events: 0 });
    }
    let request = args.request(now);
    if !is_routine(&request, now) {
        ask(context, &question(&request, amount), amount)?;
    }
    let work = async |control: Control<'_>| plan.apply(store, args.max(), &control).await;
    let report = with_progress(context, stop, PURGE.past, Some(amount), work).await;
    finish(context, args, report)
}

fn question(request: &PurgeRequest, amount: u64) -> String {
    let mut what = Vec::new();
    what.extend(request.completed_before.map(|time| format!("completed before {time}")));
    what.extend(request.dead_before.map(|time| format!("dead since before {time}")));
    format!("Delete {} ({}), with their events?", deliveries(amount), what.join(", or "))
}

fn finish(context: &Context, args: &Args, report: PurgeReport) -> CliResult<Exit> {
    let mut sentence = PURGE.sentence(&report.deliveries, args.dry_run, args.max());
    if report.events > 0 {
        let events = count_of(report.events, "event", "events");
        sentence.push_str(&format!(" With them went {events} that no delivery refers to any more."));
    }
    let told = Told { command: "purge", dry_run: args.dry_run, reason: None, sentence };
    tell(context, &told, &report, error_text(&report.deliveries))?;
    Ok(conclude(context, report.deliveries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routine_is_what_was_completed_an_hour_ago_or_earlier() {
        let now = Timestamp::from_millis(100_000_000);
        let is_routine = |completed: u64, dead: Option<u64>| {
            let ago = |seconds| now.saturating_sub(Duration::from_secs(seconds));
            let request =
                PurgeRequest { completed_before: Some(ago(completed)), dead_before: dead.map(ago), batch: 1 };
            is_routine(&request, now)
        };
        assert!(is_routine(7 * 86_400, None) && is_routine(3_600, None));
        assert!(!is_routine(3_599, None) && !is_routine(0, None));
        assert!(!is_routine(7 * 86_400, Some(90 * 86_400)));
    }
}
