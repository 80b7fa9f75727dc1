//! `backfill`: deliveries of a handler for events that came before it.

use std::num::NonZeroU64;

use tokio_util::sync::CancellationToken;

use super::bulk::{
    Told, Verb, ask, before_any_change, conclude, deliveries, error_text, tell, with_progress,
};
use crate::cli::args::filter::parse_pattern;
use crate::cli::args::pace::PaceArgs;
use crate::cli::args::values::{TimeArg, name};
use crate::cli::context::Context;
use crate::cli::docs::{BULK_EXITS, Docs};
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;
use crate::model::{Timestamp, TypePattern};
use crate::ops::{BackfillPlan, Bounds, BulkReport, Control};

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        (
            "relayctl backfill --handler search --type 'order.*' -n",
            "How many events the new handler has missed.",
        ),
        (
            "relayctl backfill --handler search --type 'order.*' --since 30d --rate 200/s --yes",
            "Give it those of the last month, gently.",
        ),
        (
            "relayctl pause search && relayctl backfill --handler search --type '*' --yes && relayctl resume search",
            "In the order of each key, new events included.",
        ),
    ],
    exits: BULK_EXITS,
};

const CREATE: Verb = Verb { infinitive: "create", past: "created" };

/// Give a handler the events that came before it
///
/// Each event of the type that has no delivery for the handler gets one, due now. It is the events that are there when the
/// command is given that are meant: what is published later has its deliveries from its publisher. Running it again
/// creates nothing twice, and goes on where it was stopped.
///
/// Within a key, deliveries are created in the order of the events, and each waits for the earlier ones. But a worker that
/// already runs the handler may have handled newer events of the key before their predecessors are there. Where that matters,
/// pause the handler meanwhile.
///
/// The command says how many deliveries it is about and asks; without a terminal, or when the output is meant for a program,
/// it needs --yes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The handler that gets the deliveries
    #[arg(long, value_name = "HANDLER", value_parser = name)]
    handler: String,

    /// Of which events: a type, all that begin alike (`order.*`), or all (`*`)
    #[arg(long = "type", value_name = "PATTERN", value_parser = parse_pattern)]
    event_type: TypePattern,

    /// Only events created at or after this time: RFC 3339 with an offset, or how long ago (15m, 2h, 7d)
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    since: Option<TimeArg>,

    /// Only events created before this time
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    until: Option<TimeArg>,

    /// Create at most this many
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroU64>,

    #[command(flatten)]
    pace: PaceArgs,

    /// Only say how many would be created
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl Args {
    fn limit(&self) -> Option<u64> {
        self.limit.map(NonZeroU64::get)
    }

    fn plan(&self, now: Timestamp) -> BackfillPlan {
        let instant = |time: Option<TimeArg>| time.map(|time| time.resolve(now));
        let (since, until) = (instant(self.since), instant(self.until));
        BackfillPlan::new(&self.handler, self.event_type.clone(), since, until, now)
    }
}

/// Runs `backfill`.
///
/// # Errors
/// Those that come before anything was created.
pub async fn run(context: &Context, args: &Args, stop: &CancellationToken) -> CliResult<Exit> {
    if !args.dry_run {
        context.require_writable("backfill")?;
    }
    let prepare = async {
        context.require_schema().await?;
        let store = &**context.store().await?;
        Ok((store, args.plan(context.now()).counted(store).await?))
    };
    let (store, plan) = before_any_change(stop, prepare).await?;
    if args.dry_run {
        return finish(context, args, BulkReport::about(plan.matched()));
    }
    let amount = args.limit().map_or(plan.matched(), |limit| limit.min(plan.matched()));
    ask(context, &question(&args.handler, amount, plan.matched()), amount)?;
    let bounds = Bounds { limit: args.limit(), pace: args.pace.pace() };
    let work = async |control: Control<'_>| plan.apply(store, bounds, &control).await;
    let report = with_progress(context, stop, CREATE.past, Some(amount), work).await;
    finish(context, args, report)
}

fn question(handler: &str, amount: u64, matched: u64) -> String {
    let amount =
        if amount == matched { deliveries(matched) } else { format!("{amount} of {}", deliveries(matched)) };
    format!("{} {amount} for {handler}?", CREATE.request())
}

fn finish(context: &Context, args: &Args, report: BulkReport) -> CliResult<Exit> {
    let sentence = CREATE.sentence(&report, args.dry_run, args.limit());
    let told = Told { command: "backfill", dry_run: args.dry_run, reason: None, sentence };
    tell(context, &told, &report, error_text(&report))?;
    Ok(conclude(context, report))
}
