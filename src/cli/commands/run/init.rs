//! The first process of a container is the parent of every orphan in it: nobody else takes their exit status, and without
//! that they stay as zombies until there is no room for processes any more. It is also the only one that a signal without
//! a handler does not end. So there the worker is a child, and the first process passes signals on and clears up, which
//! keeps the worker's own children out of its reach.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{self, SignalKind};

use crate::cli::error::{CliError, CliResult};
use crate::cli::exit::Exit;

/// This program, even when its file was replaced.
pub(super) const THIS_PROGRAM: &str = "/proc/self/exe";

/// What is passed on: everything with which somebody may want to reach a worker.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// Whether this is the first process of a system or a container.
pub(super) fn is_first_process() -> bool {
    std::process::id() == 1
}

/// Runs the worker as a child, with the same arguments, until it ends. `None` when it cannot be started so.
///
/// # Errors
/// When signals cannot be heard, or a signal ended the worker.
pub(super) async fn run_worker() -> CliResult<Option<Exit>> {
    let mut deaths = unix::signal(SignalKind::child()).context("cannot listen for signals")?;
    let heard = PASSED_ON
        .map(|signal| unix::signal(SignalKind::from_raw(signal as i32)).map(|heard| (signal, heard)));
    let heard = heard.into_iter().collect::<io::Result<Vec<_>>>().context("cannot listen for signals")?;
    let Some(worker) = start() else { return Ok(None) };
    for (signal, heard) in heard {
        tokio::spawn(pass_on(signal, heard, worker));
    }
    loop {
        if let Some(end) = reap(worker) {
            return end.map(Some);
        }
        deaths.recv().await;
    }
}

/// In a group of its own: what a terminal sends to its foreground group would reach it twice otherwise.
fn start() -> Option<Pid> {
    let mut arguments = std::env::args_os();
    let name = arguments.next()?;
    let worker = Command::new(THIS_PROGRAM).arg0(name).args(arguments).process_group(0).spawn().ok()?;
    Some(Pid::from_raw(worker.id().try_into().ok()?))
}

async fn pass_on(signal: Signal, mut heard: unix::Signal, worker: Pid) {
    while heard.recv().await.is_some() {
        // It fails when the worker is gone, and then this ends as well.
        let _ = kill(worker, signal);
    }
}

/// Takes the exit status of all that have ended; returns that of the worker if it is among them.
fn reap(worker: Pid) -> Option<CliResult<Exit>> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return None,
            Ok(WaitStatus::Exited(pid, code)) if pid == worker => return Some(Ok(Exit::of(code))),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == worker => return Some(Err(killed(signal))),
            // Orphans, and those whose status has no name here.
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => {}
            Err(_) => return Some(Err(CliError::failed("the worker's process is gone"))),
        }
    }
}

fn killed(signal: Signal) -> CliError {
    CliError::failed(format!("the worker was killed by {signal}"))
        .with_hint("SIGKILL is often the system's answer to a container that uses more memory than it may")
}
