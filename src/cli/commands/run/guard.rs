//! The worker's second process, which ends commands when the worker cannot: see [`crate::handler::Guard`].

use std::io::{self, PipeReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::runtime::{self, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use super::init::THIS_PROGRAM;
use crate::cli::log::Log;
use crate::handler::{Guard, stand_guard};

/// The name by which this program knows that it is to be a guard, and by which people find it in a list of processes.
const NAME: &str = "relayctl-guard";

/// What a service manager or a terminal sends to every process of a service. The guard ends when its worker has.
const UNHEARD: [SignalKind; 4] =
    [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()];

/// Whether this process is to be a guard.
pub fn is_asked_for() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Guards the worker that writes to this process' standard input, until that has ended.
pub fn stand() -> ExitCode {
    match runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| guard_in(&runtime)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn guard_in(runtime: &Runtime) -> io::Result<()> {
    let _context = runtime.enter();
    let _unheard = UNHEARD.map(signal);
    let pipe = io::stdin().as_fd().try_clone_to_owned()?;
    runtime.block_on(stand_guard(pipe::Receiver::from_owned_fd(pipe)?));
    Ok(())
}

/// Starts the guard of this process, and warns in the log when it is not there, as everything else goes on without it.
pub(super) fn start(log: &Arc<Log>) -> Option<Guard> {
    match try_start() {
        Ok((guard, process)) => {
            tokio::spawn(miss(guard.clone(), process, log.clone()));
            Some(guard)
        }
        Err(error) => {
            warn(log, &format!("its guard cannot be started ({error})"));
            None
        }
    }
}

fn try_start() -> io::Result<(Guard, Child)> {
    let (reader, writer) = io::pipe()?;
    let guard = Guard::new(writer)?;
    Ok((guard, command(reader).spawn()?))
}

/// Without anything of the worker's: no environment, no streams, no folder, and a group in which no terminal signals it.
fn command(reader: PipeReader) -> Command {
    let mut command = std::process::Command::new(THIS_PROGRAM);
    command.arg0(NAME).arg(format!("of worker {}", std::process::id())).env_clear().current_dir("/");
    command.process_group(0).stdin(OwnedFd::from(reader)).stdout(Stdio::null()).stderr(Stdio::null());
    Command::from(command)
}

/// A guard never ends before its worker, unless somebody ends it. One that does not listen is ended.
async fn miss(guard: Guard, mut process: Child, log: Arc<Log>) {
    tokio::select! {
        _ = process.wait() => {}
        () = guard.lost() => {
            // It fails when the guard is gone, which is what was wanted.
            let _ = process.kill().await;
        }
    }
    warn(&log, "its guard is gone");
}

fn warn(log: &Log, what: &str) {
    log.warn(&format!(
        "{what}: commands will go on when this worker is killed, or stopped for longer than a lease lasts"
    ));
}
