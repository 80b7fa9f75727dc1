//! `resume`: the end of a pause.

use serde::Serialize;

use super::bulk::{Told, tell};
use super::pause::described;
use crate::cli::args::values::name;
use crate::cli::context::Context;
use crate::cli::docs::{Docs, STORE_EXITS};
use crate::cli::error::CliResult;
use crate::cli::exit::Exit;
use crate::cli::render::text::visible;
use crate::model::Pause;
use crate::ops;

/// Examples and exit codes.
pub const DOCS: Docs = Docs {
    examples: &[("relayctl resume mailer", "Let the deliveries of this handler go on.")],
    exits: STORE_EXITS,
};

/// Let a paused handler go on
///
/// Workers obey as quickly as with `pause`. Resuming a handler that is not paused changes nothing. A circuit breaker that
/// a worker opened because the handler kept failing is not affected: it closes with the first success.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The handler
    #[arg(value_name = "HANDLER", value_parser = name)]
    handler: String,

    /// Change nothing, and tell what would change
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// The report for programs.
#[derive(Serialize)]
struct Document<'a> {
    handler: &'a str,
    changed: bool,
    /// The pause that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<&'a Pause>,
}

/// Runs `resume`.
///
/// # Errors
/// Those of the store.
pub async fn run(context: &Context, args: &Args) -> CliResult<Exit> {
    context.require_writable("resume")?;
    context.require_schema().await?;
    let store = context.store().await?;
    let report = ops::resume(store.as_ref(), &args.handler, context.now(), args.dry_run).await?;
    let handler = visible(&args.handler);
    let sentence = match (&report.before, args.dry_run) {
        (None, _) => format!("{handler} is not paused; nothing changed."),
        (Some(pause), false) => {
            format!("Resumed {handler}, which was paused {}", described(pause, &context.times()))
        }
        (Some(pause), true) => {
            format!("Would resume {handler}, which is paused {}", described(pause, &context.times()))
        }
    };
    let told = Told { command: "resume", dry_run: args.dry_run, reason: None, sentence };
    let document =
        Document { handler: &args.handler, changed: report.changed, ended: report.before.as_ref() };
    tell(context, &told, &document, None)?;
    Ok(Exit::Done)
}
