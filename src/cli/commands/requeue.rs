//! `requeue`: dead deliveries back to pending.

use tokio_util::sync::CancellationToken;

use super::bulk::Verb;
use super::selection::{self, Command, SelectionArgs};
use crate::cli::args::when::WhenArgs;
use crate::cli::context::Context;
use crate::cli::docs::{BULK_EXITS, Docs};
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;
use crate::store::Repair;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl requeue 019372e4-8f2c-7c3e-a5d1-2f6b1c0d9e8a", "Run one dead delivery again."),
        (
            "relayctl requeue --handler projector --error 'connection refused' -n",
            "See what a requeue would change.",
        ),
        ("relayctl requeue --handler projector --since 2h --rate 50/s", "Bring back what failed, gently."),
        ("relayctl list --status dead --key order-17 -o ids | relayctl requeue -", "Choose with a listing."),
    ],
    exits: BULK_EXITS,
};

/// Bring dead deliveries back
///
/// A requeued delivery is pending again with no attempts counted; the history of its errors is kept. It is a dead
/// delivery that is meant: others are skipped when they are given by id, and never selected by a filter.
///
/// A filter selects what is dead when the command is given. What dies later stays dead, also while a slow requeue is
/// still going on. The command says how many it is about and asks; without a terminal, or when the output is meant for
/// a program, it needs --yes.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    when: WhenArgs,

    /// Why; becomes part of the report
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    selection: SelectionArgs,
}

/// Runs `requeue`.
///
/// # Errors
/// Those that come before anything was changed.
pub async fn run(context: &Context, args: &Args, stop: &CancellationToken) -> CliResult<Exit> {
    let command_at = |now| Command {
        name: "requeue",
        verb: Verb { infinitive: "requeue", past: "requeued" },
        repair: Repair::Requeue { available_at: args.when.resolve(now).unwrap_or(now) },
        reason: args.reason.as_deref(),
        now,
    };
    selection::run(context, &args.selection, command_at, stop).await
}
