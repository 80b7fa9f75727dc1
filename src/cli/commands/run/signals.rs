//! SIGINT and SIGTERM for a worker: the first drains, the second stops. SIGHUP ends nothing.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::error::CliResult;
use crate::cli::interrupt;
use crate::dispatch::Signals;

/// Listens from now on. A third signal has no more to ask for.
///
/// # Errors
/// When the system refuses.
pub(super) fn listen() -> CliResult<Signals> {
    let signals = Signals::default();
    tokio::spawn(obey(signals.clone(), interrupt::signals()?));
    Ok(signals)
}

/// SIGHUP, heard from now on, also where whoever started this process has it ignored: it does no harm.
///
/// # Errors
/// When the system refuses.
pub(super) fn hang_ups() -> CliResult<Signal> {
    Ok(signal(SignalKind::hangup()).context("cannot listen for signals")?)
}

async fn obey(signals: Signals, [mut interrupt, mut terminate]: [Signal; 2]) {
    for token in [signals.drain, signals.stop] {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        token.cancel();
    }
}
