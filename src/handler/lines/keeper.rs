//! Keeps one child: hears what it says on stderr, ends it when told to, and takes its exit status whenever it ends.

use std::io;
use std::process::ExitStatus;
use std::sync::Arc;

use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::note::{ChildNews, Notes};
use crate::handler::shell::group::{AFTER_KILL, LAST_WORDS, LEFTOVER_GRACE, ProcessGroup};
use crate::handler::shell::tail::Tail;

/// What is kept of stderr, to explain a death.
const TAIL_BYTES: usize = 4 * 1024;

/// What is told of one line of stderr.
const LINE_BYTES: usize = 1_000;

/// Read at a time.
const READ_BYTES: usize = 4 * 1024;

/// How a child ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// `None` when not even KILL ended it in time: it hangs in the kernel.
    pub(super) status: Option<ExitStatus>,
    pub(super) stderr: Tail,
}

/// The other side's hold on a child. Dropping it kills the child with everything that it started.
#[derive(Debug)]
pub(super) struct Hold {
    pid: u32,
    /// When to KILL, after a TERM at once.
    orders: mpsc::UnboundedSender<Instant>,
    ended: watch::Receiver<Option<Arc<Ended>>>,
}

impl Hold {
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, if it has.
    pub(super) fn has_ended(&self) -> Option<Arc<Ended>> {
        self.ended.borrow().clone()
    }

    /// Waits until nothing of the child is left. `None` when the runtime shuts down.
    pub(super) async fn ended(&mut self) -> Option<Arc<Ended>> {
        self.ended.wait_for(Option::is_some).await.ok()?.clone()
    }

    /// TERM to the child's whole group now, and KILL at `kill_at`. Returns when nothing of it is left.
    pub(super) async fn end_by(&mut self, kill_at: Instant) -> Option<Arc<Ended>> {
        self.order_end(kill_at);
        self.ended().await
    }

    /// The same without waiting.
    pub(super) fn order_end(&self, kill_at: Instant) {
        // It fails when the child is gone, which is what was wanted.
        let _ = self.orders.send(kill_at);
    }
}

/// Keeps `child` in a task of its own, until nothing of it is left.
///
/// # Errors
/// When the child has no stderr to listen to, or was waited for already.
pub(super) fn keep(mut child: Child, handler: &str, notes: &Notes) -> io::Result<Hold> {
    let pid = child.id().ok_or(io::ErrorKind::NotFound)?;
    let group = ProcessGroup::led_by(&child).ok_or(io::ErrorKind::NotFound)?;
    let stderr = child.stderr.take();
    let ((orders, receiver), (report, ended)) = (mpsc::unbounded_channel(), watch::channel(None));
    let ear = Ear {
        stderr,
        tail: Tail::new(TAIL_BYTES),
        line: Vec::new(),
        handler: handler.to_owned(),
        pid,
        notes: notes.clone(),
    };
    let keeper = Keeper { child, group, ear, orders: receiver, kill_at: None };
    tokio::spawn(async move { report.send(Some(Arc::new(keeper.run().await))) });
    Ok(Hold { pid, orders, ended })
}

struct Keeper {
    child: Child,
    group: ProcessGroup,
    ear: Ear,
    orders: mpsc::UnboundedReceiver<Instant>,
    kill_at: Option<Instant>,
}

impl Keeper {
    async fn run(mut self) -> Ended {
        let status = self.until_exit().await;
        let is_gone = self.group.look();
        if !is_gone {
            self.ear.listen_by(Instant::now() + LAST_WORDS).await;
            let kill_at = self.kill_at.unwrap_or_else(|| Instant::now() + LEFTOVER_GRACE);
            self.group.end_by(kill_at).await;
        }
        self.ear.listen_by(Instant::now() + LAST_WORDS).await;
        self.ear.tell_rest();
        Ended { status, stderr: self.ear.tail }
    }

    /// Waits for the child's own end, and brings it about when told to, or when nobody holds the child any more.
    async fn until_exit(&mut self) -> Option<ExitStatus> {
        let mut is_held = true;
        let mut give_up_at = None;
        loop {
            tokio::select! {
                biased;
                status = self.child.wait() => return status.ok(),
                order = self.orders.recv(), if is_held => match order {
                    Some(kill_at) => {
                        self.group.terminate();
                        self.kill_at = Some(self.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
                    }
                    None => {
                        is_held = false;
                        self.kill_at = Some(Instant::now());
                    }
                },
                () = sleep_until_some(self.kill_at), if give_up_at.is_none() => {
                    self.group.kill();
                    give_up_at = Some(Instant::now() + AFTER_KILL);
                }
                () = sleep_until_some(give_up_at) => return None,
                () = self.ear.listen(), if self.ear.is_open() => {}
            }
        }
    }
}

async fn sleep_until_some(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Listens to stderr: its lines go to the log, its end is kept.
struct Ear {
    stderr: Option<ChildStderr>,
    tail: Tail,
    line: Vec<u8>,
    handler: String,
    pid: u32,
    notes: Notes,
}

impl Ear {
    fn is_open(&self) -> bool {
        self.stderr.is_some()
    }

    /// Hears the next words. May be dropped and called again.
    async fn listen(&mut self) {
        let Some(stderr) = &mut self.stderr else { return };
        let mut buffer = [0; READ_BYTES];
        match stderr.read(&mut buffer).await {
            Ok(count @ 1..) => self.heard(&buffer[..count]),
            _ => self.stderr = None,
        }
    }

    /// Listens to the end, at most until `deadline`: a process that left the group may hold it open.
    async fn listen_by(&mut self, deadline: Instant) {
        let to_the_end = async {
            while self.is_open() {
                self.listen().await;
            }
        };
        // Whatever is missing then is left out.
        let _ = timeout_at(deadline, to_the_end).await;
    }

    fn heard(&mut self, bytes: &[u8]) {
        self.tail.push(bytes);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = LINE_BYTES.saturating_sub(self.line.len());
            let (text, is_whole) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if is_whole {
                self.tell_rest();
            }
        }
    }

    fn tell_rest(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() {
            self.notes.tell(&self.handler, self.pid, ChildNews::Said(text.trim_end().to_owned()));
        }
    }
}
