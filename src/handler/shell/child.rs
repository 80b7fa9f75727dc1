//! One child process, from its start until nothing of it is left.

use std::ffi::OsStr;
use std::io;
use std::process::ExitStatus;

use tokio::process::Child;
use tokio::time::{Instant, timeout_at};

use super::command::Prepared;
use super::environment::Facts;
use super::group::{AFTER_KILL, LAST_WORDS, LEFTOVER_GRACE, ProcessGroup};
use super::head::Written;
use super::pipes::Pipes;
use super::tail::Tail;
use crate::handler::{HandlerContext, StopReason};

/// How a child ended, and its last words.
#[derive(Debug)]
pub(super) struct Ended {
    /// `None` when not even KILL ended it in time: it hangs in the kernel.
    pub(super) status: Option<ExitStatus>,
    /// Why it was asked to stop before its end, if it was.
    pub(super) stopped: Option<StopReason>,
    pub(super) stdout: Tail,
    pub(super) stderr: Tail,
    /// All of stdout, where that is kept.
    pub(super) written: Option<Written>,
}

/// Runs `command` for one attempt with `input` on stdin, and sees to it that no process of its group outlives the call.
///
/// # Errors
/// When it cannot be started.
pub(super) async fn run(
    command: &Prepared,
    input: &[u8],
    facts: &Facts,
    context: &HandlerContext,
) -> io::Result<Ended> {
    let (mut child, mut pipes) = start(command, input, facts)?;
    let mut group = ProcessGroup::led_by(&child).ok_or(io::ErrorKind::NotFound)?;
    let _guarded = context.guard(group.id());

    let exited = pipes.during(exit_or_stop(&mut child, context)).await?;
    let (status, stopped) = match exited {
        ExitOrStop::Exit(status) => {
            let by_guard = context.was_ended_by_guard(Some(status));
            (Some(status), by_guard.then_some(StopReason::LeaseEnding))
        }
        ExitOrStop::Stop(stop) => {
            let status = pipes.during(end_by(&mut child, &group, stop.kill_at)).await?;
            (status, Some(stop.reason))
        }
    };
    group.look();
    let leftovers_until = match context.stop_requested() {
        Some(stop) => stop.kill_at,
        None => {
            pipes.finish_by(Instant::now() + LAST_WORDS).await;
            Instant::now() + LEFTOVER_GRACE
        }
    };
    if !group.look() {
        pipes.during(group.end_by(leftovers_until)).await;
    }
    pipes.finish_by(Instant::now() + LAST_WORDS).await;
    let written = pipes.take_written();
    let (stdout, stderr) = pipes.into_tails();
    Ok(Ended { status, stopped, stdout, stderr, written })
}

/// Starts by path, which is cheap in a large process, and where that fails by name: then the operating system searches
/// by its own rules, and says what it did not find.
fn start<'i>(command: &Prepared, input: &'i [u8], facts: &Facts) -> io::Result<(Child, Pipes<'i>)> {
    let kept = command.stdout_kept();
    let by = |program: &OsStr| {
        let (mut pipes, ends) = Pipes::open(input)?;
        pipes.keep_stdout(kept);
        let mut command = command.start_of(program, facts);
        ends.give_to(&mut command);
        Ok((command.spawn()?, pipes))
    };
    match command.path() {
        Some(path) => by(path.as_os_str()).or_else(|_| by(command.name())),
        None => by(command.name()),
    }
}

enum ExitOrStop {
    Exit(ExitStatus),
    Stop(crate::handler::Stop),
}

async fn exit_or_stop(child: &mut Child, context: &HandlerContext) -> io::Result<ExitOrStop> {
    tokio::select! {
        biased;
        status = child.wait() => Ok(ExitOrStop::Exit(status?)),
        stop = context.stopped() => Ok(ExitOrStop::Stop(stop)),
    }
}

/// TERM to the whole group now, KILL at `kill_at`.
async fn end_by(child: &mut Child, group: &ProcessGroup, kill_at: Instant) -> io::Result<Option<ExitStatus>> {
    group.terminate();
    if let Ok(status) = timeout_at(kill_at, child.wait()).await {
        return status.map(Some);
    }
    group.kill();
    timeout_at(Instant::now() + AFTER_KILL, child.wait()).await.map_or(Ok(None), |status| status.map(Some))
}
