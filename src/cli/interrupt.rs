//! SIGINT and SIGTERM for commands that are not `run`, which drains on its own terms.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::error::{CliError, CliResult};
use super::exit::Exit;

/// How long a command that was stopped has to clean up. It can be stuck in a write that nobody reads.
const GRACE: Duration = Duration::from_secs(1);

/// SIGINT and SIGTERM, heard from now on.
///
/// # Errors
/// When the system refuses.
pub fn signals() -> CliResult<[Signal; 2]> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    Ok([listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?])
}

/// What the signals of this process asked for so far.
#[derive(Clone, Debug, Default)]
pub struct Interrupts {
    requested: CancellationToken,
    insisted: CancellationToken,
    /// Whether one signal is enough, because nothing is changed that would have to be finished.
    only_reads: Arc<AtomicBool>,
}

impl Interrupts {
    /// Listens from now on. The first signal asks a command to stop, the second one stops it where it stands.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> CliResult<Interrupts> {
        let interrupts = Interrupts::default();
        tokio::spawn(interrupts.clone().obey(signals()?));
        Ok(interrupts)
    }

    async fn obey(self, [mut interrupt, mut terminate]: [Signal; 2]) {
        let mut next = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        next().await;
        self.requested.cancel();
        if self.only_reads.load(Ordering::SeqCst) {
            let _ = tokio::time::timeout(GRACE, next()).await;
        } else {
            next().await;
        }
        self.insisted.cancel();
        tokio::time::sleep(GRACE).await;
        leave();
    }

    /// Cancelled by the first signal: work that comes in steps stops between two of them, and reports.
    pub fn requested(&self) -> &CancellationToken {
        &self.requested
    }

    /// Runs `work`, which changes nothing or all at once, until it ends or the first signal comes.
    ///
    /// # Errors
    /// Those of `work`, and the interruption.
    pub async fn stops<T>(&self, work: impl Future<Output = CliResult<T>>) -> CliResult<T> {
        self.only_reads.store(true, Ordering::SeqCst);
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

#[expect(clippy::disallowed_methods, reason = "the way out when the thread that would return is stuck")]
fn leave() -> ! {
    std::process::exit(Exit::Interrupted.code().into())
}
