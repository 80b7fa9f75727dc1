//! `recover`: expired leases back to pending.

use super::bulk::{Told, Verb, conclude, tell};
use crate::cli::args::values::name;
use crate::cli::context::Context;
use crate::cli::docs::{Docs, STORE_EXITS};
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;
use crate::ops::BulkReport;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[
        ("relayctl recover", "Return everything whose worker died to pending, now."),
        ("relayctl recover --handler projector", "Only the deliveries of one handler."),
    ],
    exits: STORE_EXITS,
};

/// Return deliveries with an expired lease to pending
///
/// Every claim of a worker takes deliveries with an expired lease all by itself. This command makes them pending at
/// once, which is of use when no worker asks for their handler, or to see the true numbers. The attempt that was lost
/// stays counted.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only deliveries of this handler; may be given more than once
    #[arg(long = "handler", value_name = "HANDLER", value_parser = name)]
    handlers: Vec<String>,
}

/// Runs `recover`.
///
/// # Errors
/// Those of the store.
pub async fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    context.require_writable("recover")?;
    context.require_schema().await?;
    let recovered = context.store().await?.recover(&args.handlers, context.now()).await?;
    let report = BulkReport { changed: recovered, ..BulkReport::about(recovered) };
    let sentence = Verb { infinitive: "recover", past: "recovered" }.sentence(&report, false, None);
    tell(context, &Told { command: "recover", dry_run: false, reason: None, sentence }, &report, None)?;
    Ok(conclude(context, report))
}
