//! (being built)

use crate::cli::app::UNBUILT;
use crate::cli::context::Context;
use crate::cli::docs::Docs;
use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;
use tokio_util::sync::CancellationToken;

/// Examples and exit codes.
pub const DOCS: Docs = UNBUILT;

/// Bring dead deliveries back
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `requeue`.
pub async fn run(_context: &Context, _args: &Args, _stop: &CancellationToken) -> CliResult<Exit> {
    Err(CliError::failed("not built yet"))
}
