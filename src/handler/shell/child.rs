//! One child process, from its start until nothing of it is left.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, timeout_at};

use super::group::ProcessGroup;
use super::tail::Tail;
use crate::handler::{HandlerContext, StopReason};

/// What is kept of each output.
const TAIL_BYTES: usize = 8 * 1024;

/// How long after the child's own end its outputs may stay open, for the last words of a helper such as `tee`.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// How long processes that a command left behind have from TERM to KILL.
const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

/// How long to wait for the kernel after a KILL.
const AFTER_KILL: Duration = Duration::from_secs(1);

/// How a child ended, and its last words.
#[derive(Debug)]
pub(super) struct Ended {
    /// `None` when not even KILL ended it in time: it hangs in the kernel.
    pub(super) status: Option<ExitStatus>,
    /// Why it was asked to stop before its end, if it was.
    pub(super) stopped: Option<StopReason>,
    pub(super) stdout: Tail,
    pub(super) stderr: Tail,
}

/// Runs `command` with `input` on stdin, and sees to it that no process of its group outlives the call.
///
/// # Errors
/// When it cannot be started.
pub(super) async fn run(mut command: Command, input: Vec<u8>, context: &HandlerContext) -> io::Result<Ended> {
    let mut child = command.spawn()?;
    let mut group = ProcessGroup::led_by(&child).ok_or(io::ErrorKind::NotFound)?;
    let (mut stdout, mut stderr) = (Tail::new(TAIL_BYTES), Tail::new(TAIL_BYTES));
    let mut pump = Pump::new(&mut child, input, &mut stdout, &mut stderr);

    let exited = pump.during(exit_or_stop(&mut child, context)).await?;
    let (status, stopped) = match exited {
        ExitOrStop::Exit(status) => (Some(status), None),
        ExitOrStop::Stop(stop) => {
            let status = pump.during(end_by(&mut child, &group, stop.kill_at)).await?;
            (status, Some(stop.reason))
        }
    };
    group.look();
    let leftovers_until = match context.stop_requested() {
        Some(stop) => stop.kill_at,
        None => {
            pump.finish_by(Instant::now() + LAST_WORDS).await;
            Instant::now() + LEFTOVER_GRACE
        }
    };
    pump.during(end_leftovers(&mut group, leftovers_until)).await;
    pump.finish_by(Instant::now() + LAST_WORDS).await;
    drop(pump);
    Ok(Ended { status, stopped, stdout, stderr })
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

/// The child has ended; others that it started may still be there.
async fn end_leftovers(group: &mut ProcessGroup, kill_at: Instant) {
    if group.is_gone_by(Instant::now()).await {
        return;
    }
    group.terminate();
    if !group.is_gone_by(kill_at).await {
        group.kill();
        group.is_gone_by(Instant::now() + AFTER_KILL).await;
    }
}

/// Moves bytes through the three pipes at once, so that neither side ever waits for the other.
struct Pump<'t> {
    pipes: BoxFuture<'t, ()>,
    is_finished: bool,
}

impl<'t> Pump<'t> {
    fn new(child: &mut Child, input: Vec<u8>, stdout: &'t mut Tail, stderr: &'t mut Tail) -> Self {
        let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pipes = Box::pin(async move {
            let feed = async { feed(stdin, input).await };
            let drain_out = async {
                if let Some(pipe) = out {
                    stdout.fill_from(pipe).await
                }
            };
            let drain_err = async {
                if let Some(pipe) = err {
                    stderr.fill_from(pipe).await
                }
            };
            tokio::join!(feed, drain_out, drain_err);
        });
        Pump { pipes, is_finished: false }
    }

    /// Keeps the pipes moving until `work` is done.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                result = &mut work => return result,
                () = &mut self.pipes, if !self.is_finished => self.is_finished = true,
            }
        }
    }

    /// Waits until all pipes are at their end, at most until `deadline`: a process that left the group may hold one
    /// open.
    async fn finish_by(&mut self, deadline: Instant) {
        if !self.is_finished {
            self.is_finished = timeout_at(deadline, &mut self.pipes).await.is_ok();
        }
    }
}

/// A child that does not read its input, or not to the end, is no error.
async fn feed(stdin: Option<ChildStdin>, input: Vec<u8>) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(&input).await;
    }
}
