//! (being built)

use crate::cli::app::UNBUILT;
use crate::cli::context::Context;
use crate::cli::docs::Docs;
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;

/// Examples and exit codes.
pub const DOCS: Docs = UNBUILT;

/// Return deliveries with an expired lease to pending
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `recover`.
pub async fn run(_context: &Context, _args: &Args) -> CliResult<Exit> {
    Err(CliError::failed("not built yet"))
}
