//! `keys`: the counters of ordering keys, listed and pruned.

use std::num::NonZeroU32;

use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::bulk::{Told, before_any_change, conclude, count_of, error_text, tell, with_progress};
use crate::cli::args::values::name;
use crate::cli::context::Context;
use crate::cli::docs::{BULK_EXITS, Docs};
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;
use crate::cli::render::listing::{Listing, Record};
use crate::cli::render::table::{Cell, Column};
use crate::cli::render::time::Times;
use crate::model::KeySequence;
use crate::ops::{Control, PruneReport, prune_keys};
use crate::store::Store;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl keys list --prefix-match order-", "The counters of some keys."),
        ("relayctl keys prune -n", "See how many keys have no delivery any more."),
        ("relayctl keys prune", "Delete their counters; made for cron, after purge."),
    ],
    exits: BULK_EXITS,
};

/// List and prune the counters of ordering keys
///
/// Each ordering key has a counter, from which its events take their sequence. A purge takes the history of a key, and
/// its counter stays until it is pruned.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, clap::Subcommand)]
enum KeysCommand {
    /// List the counters of ordering keys, by key
    #[command(after_long_help = DOCS.after_help())]
    List(ListArgs),
    /// Delete the counters of keys that have no delivery any more
    ///
    /// It never asks, and is safe at any time: an append that races it wins. A pruned key starts again at 1.
    #[command(after_long_help = DOCS.after_help())]
    Prune(PruneArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only keys that begin with this text
    #[arg(long, value_name = "PREFIX", value_parser = name)]
    prefix_match: Option<String>,
}

#[derive(Debug, clap::Args)]
struct PruneArgs {
    /// Look at this many counters in one transaction
    #[arg(long, value_name = "N", default_value = "500")]
    batch_size: NonZeroU32,

    /// Only say how many counters would be deleted
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs `keys`.
///
/// # Errors
/// Those of the store and of standard output.
pub async fn run(context: &Context, args: &Args, stop: &CancellationToken) -> CliResult<Exit> {
    match &args.command {
        KeysCommand::List(args) => before_any_change(stop, list(context, args)).await,
        KeysCommand::Prune(args) => prune(context, args, stop).await,
    }
}

// ---- list --------------------------------------------------------------------------------------------------------

impl Record for KeySequence {
    const COLUMNS: &'static [Column] = &[Column::number("SEQUENCE"), Column::words("KEY")];
    const FIELDS: &'static [&'static str] = &["key", "value"];

    fn id(&self) -> &str {
        &self.key
    }

    fn values(&self) -> Vec<String> {
        vec![self.key.clone(), self.value.to_string()]
    }

    fn cells(&self, _times: &Times) -> Vec<Cell> {
        vec![Cell::new(self.value.to_string()), Cell::new(&self.key)]
    }
}

async fn list(context: &Context, args: &ListArgs) -> CliResult<Exit> {
    context.require_schema().await?;
    let store = context.store().await?;
    let mut listing = Listing::new(context.ui(), context.times());
    match pour(&**store, args, &mut listing).await {
        Ok(count) => {
            listing.finish()?;
            if count == 0 {
                context.ui().note(match args.prefix_match {
                    Some(_) => "no key begins like that",
                    None => "there are no keys",
                });
            }
            Ok(Exit::Done)
        }
        Err(error) => {
            // The error that ended it matters more than one of closing it.
            let _ = listing.abandon();
            Err(error)
        }
    }
}

async fn pour(store: &dyn Store, args: &ListArgs, listing: &mut Listing<KeySequence>) -> CliResult<u64> {
    let mut sequences = store.key_sequences(args.prefix_match.as_deref());
    let mut count = 0;
    while let Some(sequence) = sequences.next().await {
        listing.write(&sequence?)?;
        count += 1;
    }
    Ok(count)
}

// ---- prune -------------------------------------------------------------------------------------------------------

async fn prune(context: &Context, args: &PruneArgs, stop: &CancellationToken) -> CliResult<Exit> {
    if !args.dry_run {
        context.require_writable("keys prune")?;
    }
    before_any_change(stop, context.require_schema()).await?;
    let store = &**context.store().await?;
    let batch = args.batch_size.get();
    let work = async |control: Control<'_>| prune_keys(store, batch, args.dry_run, &control).await;
    let report = with_progress(context, stop, "looked at", None, work).await;
    let sentence = sentence(&report, args.dry_run);
    let told = Told { command: "keys prune", dry_run: args.dry_run, reason: None, sentence };
    tell(context, &told, &report, error_text(&report.counters))?;
    Ok(conclude(context, report.counters))
}

fn sentence(report: &PruneReport, dry_run: bool) -> String {
    let counters = |count| count_of(count, "counter", "counters");
    let examined = counters(report.examined);
    match (report.counters.matched, dry_run) {
        (0, _) => format!("Nothing to prune among {examined}."),
        (matched, true) => format!("Would delete {matched} of {examined}."),
        (_, false) => format!("Deleted {} of {examined}.", report.counters.changed),
    }
}
