//! (being built)

use crate::cli::app::UNBUILT;
use crate::cli::context::Context;
use crate::cli::docs::Docs;
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use tokio_util::sync::CancellationToken;

/// Examples and exit codes.
pub const DOCS: Docs = UNBUILT;

/// Delete what finished long ago
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `purge`.
pub async fn run(_context: &Context, _args: &Args, _stop: &CancellationToken) -> CliResult<Exit> {
    Err(CliError::failed("not built yet"))
}
