//! Which deliveries a repair is about, by id or by filter, and the repair itself: what requeue and bury share.

use std::io;
use std::num::NonZeroU64;

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio_util::sync::CancellationToken;

use super::bulk::{
    Told, Verb, ask, before_any_change, conclude, deliveries, error_text, tell, with_progress,
};
use crate::cli::args::filter::FilterArgs;
use crate::cli::args::pace::PaceArgs;
use crate::cli::args::values::name;
use crate::cli::context::Context;
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use crate::cli::render::listing::Record as _;
use crate::cli::render::table::{Canvas, Cell, Layout};
use crate::model::{Delivery, DeliveryId, Timestamp};
use crate::ops::{Bounds, BulkReport, Control, Inapplicable, Item, ItemOutcome, RepairPlan, repair_each};
use crate::store::{Repair, Store};

/// How many deliveries are shown before the question.
const SAMPLE: usize = 5;

/// How many deliveries that were not changed are named one by one.
const NAMED: usize = 20;

/// Which deliveries, and how many of them how fast.
#[derive(clap::Args, Debug)]
pub struct SelectionArgs {
    /// The deliveries, by id; a single - reads ids from standard input, one a line
    #[arg(value_name = "ID", value_parser = name)]
    pub ids: Vec<String>,

    /// Change at most this many of those that the filter selects, the oldest first
    #[arg(long, value_name = "N", conflicts_with = "ids")]
    pub limit: Option<NonZeroU64>,

    /// How fast.
    #[command(flatten)]
    pub pace: PaceArgs,

    /// Only say what would be changed
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    // Last, as what follows would stand under its heading in the help.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// A repair on the command line.
#[derive(Debug)]
pub struct Command<'a> {
    /// Its name.
    pub name: &'static str,
    /// How it is spoken of.
    pub verb: Verb,
    /// What it does.
    pub repair: Repair,
    /// Why, if the user said so.
    pub reason: Option<&'a str>,
    /// When it was given: what changes later stays out.
    pub now: Timestamp,
}

/// Runs the repair that `command_at` makes of the time at which it is given.
///
/// # Errors
/// Those that come before anything was changed; later ones are part of the report.
pub async fn run<'a>(
    context: &Context,
    args: &SelectionArgs,
    command_at: impl Fn(Timestamp) -> Command<'a>,
    stop: &CancellationToken,
) -> CliResult<Exit> {
    // What is wrong whatever the time is told before anything is asked of the store, which knows the time.
    let command = command_at(context.now());
    plan(args, &command)?;
    if !args.dry_run {
        context.require_writable(command.name)?;
    }
    before_any_change(stop, context.require_schema()).await?;
    let command = command_at(context.now());
    match plan(args, &command)? {
        Some(plan) => by_plan(context, args, &command, plan, stop).await,
        None => by_ids(context, args, &command, stop).await,
    }
}

/// What to do by filter; `None` when the deliveries are named one by one.
fn plan(args: &SelectionArgs, command: &Command<'_>) -> CliResult<Option<RepairPlan>> {
    let filter = args.filter.resolve(command.now);
    match (args.ids.is_empty(), filter.is_empty()) {
        (true, true) => Err(nothing_selected(command.name)),
        (false, false) => Err(selected_twice(command.name)),
        (false, true) => Ok(None),
        (true, false) => {
            RepairPlan::new(&filter, command.repair.clone(), command.now).map(Some).map_err(inapplicable)
        }
    }
}

fn nothing_selected(command: &str) -> CliError {
    CliError::usage(format!(
        "`{command}` needs to know which deliveries: their ids, or at least one condition"
    ))
    .with_hint(format!("relayctl {command} ID..., or relayctl {command} --handler HANDLER --since 2h"))
    .with_hint("see the possible conditions with --help")
}

fn selected_twice(command: &str) -> CliError {
    CliError::usage(format!("`{command}` takes ids or conditions, and not both"))
        .with_hint("leave the ids out to change all that meet the conditions")
}

fn inapplicable(error: Inapplicable) -> CliError {
    let hint = match &error {
        Inapplicable::Status { .. } => "leave --status out, or look at them with `relayctl list`",
        Inapplicable::Condition { .. } => "leave that condition out",
    };
    CliError::usage(error.to_string()).with_hint(hint)
}

// ---- by filter ---------------------------------------------------------------------------------------------------

async fn by_plan(
    context: &Context,
    args: &SelectionArgs,
    command: &Command<'_>,
    plan: RepairPlan,
    stop: &CancellationToken,
) -> CliResult<Exit> {
    let store = &**context.store().await?;
    let plan = before_any_change(stop, async { Ok(plan.counted(store).await?) }).await?;
    let limit = args.limit.map(NonZeroU64::get);
    let amount = limit.map_or(plan.matched(), |limit| limit.min(plan.matched()));
    if args.dry_run {
        before_any_change(stop, show_sample(context, store, &plan, amount)).await?;
        return finish(context, args, command, BulkReport::about(plan.matched()));
    }
    if context.ui().can_ask() {
        before_any_change(stop, show_sample(context, store, &plan, amount)).await?;
    }
    ask(context, &question(command.verb, amount, plan.matched()), amount)?;
    let bounds = Bounds { limit, pace: args.pace.pace() };
    let work = async |control: Control<'_>| plan.apply(store, bounds, &control).await;
    let report = with_progress(context, stop, command.verb.past, Some(amount), work).await;
    finish(context, args, command, report)
}

fn question(verb: Verb, amount: u64, matched: u64) -> String {
    let verb = verb.request();
    if amount == matched {
        format!("{verb} {}?", deliveries(matched))
    } else {
        format!("{verb} the oldest {amount} of {}?", deliveries(matched))
    }
}

/// Shows people the first of those that will be changed.
async fn show_sample(context: &Context, store: &dyn Store, plan: &RepairPlan, amount: u64) -> CliResult {
    if amount == 0 || context.ui().format().is_machine() {
        return Ok(());
    }
    let size = usize::try_from(amount).unwrap_or(SAMPLE).min(SAMPLE);
    let sample = plan.sample(store, size).await?;
    let times = context.times();
    let rows: Vec<Vec<Cell>> = sample.iter().map(|delivery| delivery.cells(&times)).collect();
    context.ui().note(&table(&rows, context.ui().canvas().width).map_err(CliError::output)?);
    let more = amount.saturating_sub(SAMPLE as u64);
    if more > 0 {
        context.ui().note(&format!("… and {more} more"));
    }
    Ok(())
}

/// A table of deliveries without colours, as a text.
fn table(rows: &[Vec<Cell>], width: Option<usize>) -> io::Result<String> {
    let layout = Layout::new(Delivery::COLUMNS, rows, Canvas { width, has_color: false });
    let mut text = Vec::new();
    layout.write_head(&mut text)?;
    rows.iter().try_for_each(|row| layout.write_row(&mut text, row))?;
    Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
}

// ---- by id -------------------------------------------------------------------------------------------------------

async fn by_ids(
    context: &Context,
    args: &SelectionArgs,
    command: &Command<'_>,
    stop: &CancellationToken,
) -> CliResult<Exit> {
    let ids = match args.ids.as_slice() {
        [dash] if dash == "-" => before_any_change(stop, read_ids()).await?,
        ids => ids.iter().map(|id| DeliveryId::from(id.as_str())).collect(),
    };
    let store = &**context.store().await?;
    let work = async |control: Control<'_>| {
        repair_each(store, &ids, &command.repair, args.pace.pace(), args.dry_run, &control).await
    };
    let report = with_progress(context, stop, command.verb.past, Some(ids.len() as u64), work).await;
    finish(context, args, command, report)
}

async fn read_ids() -> CliResult<Vec<DeliveryId>> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut ids = Vec::new();
    let mut number = 0_u64;
    while let Some(line) = lines.next_line().await.context("cannot read ids from standard input")? {
        number += 1;
        let id = line.trim();
        if id.is_empty() {
            continue;
        }
        let id = name(id).map_err(|reason| {
            CliError::usage(format!("line {number} of standard input is no id: {reason}"))
                .with_hint("give one id a line, as `relayctl list -o ids` writes them")
        })?;
        ids.push(DeliveryId::from(id));
    }
    Ok(ids)
}

/// Tells people what became of those that were not changed; the report has all of them.
fn tell_items(context: &Context, command: &Command<'_>, report: &BulkReport) {
    let is_told = |item: &&Item| matches!(item.outcome, ItemOutcome::Skipped { .. } | ItemOutcome::Missing);
    let untouched: Vec<&Item> = report.items.iter().flatten().filter(is_told).collect();
    for Item { id, outcome } in untouched.iter().take(NAMED) {
        match outcome {
            ItemOutcome::Skipped { status } => {
                context.ui().warn(&format!("{id} is {status}, and {} does not apply to it", command.name));
            }
            _ => context.ui().report(&CliError::failed(format!("there is no delivery with the id {id}"))),
        }
    }
    let more = untouched.len().saturating_sub(NAMED);
    if more > 0 {
        context.ui().warn(&format!("{more} more were skipped or do not exist; -o json names them all"));
    }
}

// ---- the end -----------------------------------------------------------------------------------------------------

fn finish(
    context: &Context,
    args: &SelectionArgs,
    command: &Command<'_>,
    report: BulkReport,
) -> CliResult<Exit> {
    tell_items(context, command, &report);
    let limit = args.limit.map(NonZeroU64::get);
    let told = Told {
        command: command.name,
        dry_run: args.dry_run,
        reason: command.reason,
        sentence: command.verb.sentence(&report, args.dry_run, limit),
    };
    tell(context, &told, &report, error_text(&report))?;
    Ok(conclude(context, report))
}
