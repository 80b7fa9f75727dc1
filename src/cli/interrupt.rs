//! SIGINT and SIGTERM for commands that are not `run`, which drains on its own terms.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::error::{CliError, CliResult};

/// What the signals of this process asked for so far.
#[derive(Clone, Debug, Default)]
pub struct Interrupts {
    requested: CancellationToken,
    insisted: CancellationToken,
}

impl Interrupts {
    /// Listens from now on. The first signal asks a command to stop, the second one stops it where it stands.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> CliResult<Interrupts> {
        let refused = |error| CliError::failed("cannot listen for signals").with_source(error);
        let mut interrupt = signal(SignalKind::interrupt()).map_err(refused)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(refused)?;
        let interrupts = Interrupts::default();
        let heard = interrupts.clone();
        tokio::spawn(async move {
            for token in [heard.requested, heard.insisted] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                token.cancel();
            }
        });
        Ok(interrupts)
    }

    /// Cancelled by the first signal: work that comes in steps stops between two of them, and reports.
    pub fn requested(&self) -> &CancellationToken {
        &self.requested
    }

    /// Cancelled by the second signal: what runs stops where it stands.
    pub fn insisted(&self) -> &CancellationToken {
        &self.insisted
    }

    /// Runs `work`, which has nothing to tell when it is interrupted, until it ends or the first signal comes.
    ///
    /// # Errors
    /// Those of `work`, and the interruption.
    pub async fn stops<T>(&self, work: impl Future<Output = CliResult<T>>) -> CliResult<T> {
        self.requested.run_until_cancelled(work).await.unwrap_or_else(|| Err(CliError::interrupted()))
    }

    /// Runs `work`, which watches [`Interrupts::requested`] itself, until it ends or the second signal comes.
    ///
    /// # Errors
    /// Those of `work`, and the interruption.
    pub async fn stops_when_insisted<T>(&self, work: impl Future<Output = CliResult<T>>) -> CliResult<T> {
        self.insisted.run_until_cancelled(work).await.unwrap_or_else(|| Err(CliError::interrupted()))
    }
}
