//! SIGINT and SIGTERM for a worker: the first drains, the second stops.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::error::{CliError, CliResult};
use crate::dispatch::Signals;

/// Listens from now on. A third signal has no more to ask for.
///
/// # Errors
/// When the system refuses.
pub(super) fn listen() -> CliResult<Signals> {
    let refused = |error| CliError::failed("cannot listen for signals").with_source(error);
    let interrupt = signal(SignalKind::interrupt()).map_err(refused)?;
    let terminate = signal(SignalKind::terminate()).map_err(refused)?;
    let signals = Signals::default();
    tokio::spawn(obey(signals.clone(), interrupt, terminate));
    Ok(signals)
}

async fn obey(signals: Signals, mut interrupt: Signal, mut terminate: Signal) {
    for token in [signals.drain, signals.stop] {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        token.cancel();
    }
}
