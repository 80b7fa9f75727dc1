//! What ends commands when their worker cannot do it itself, because it was killed, or stopped for longer than a lease lasts.
//!
//! Others take over when a lease has run out, and a command that goes on then runs beside theirs. So a worker has a second
//! process, its guard, to which it tells through a pipe which process group runs for an attempt, and how long its lease
//! allows that. The guard kills a group whose time is over, and all of them when the pipe ends, which is when the worker has
//! ended, however that came about. Nobody needs to be awake for it but the guard.
//!
//! A line of the pipe is `hold ATTEMPT GROUP MILLISECONDS` or `drop ATTEMPT`. Each is one write, which a pipe takes as a
//! whole or not at all.

use std::collections::HashMap;
use std::io::{self, PipeWriter, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// The guard reads no more often: most commands have ended by then, and need none of its time.
const LULL: Duration = Duration::from_millis(10);

/// Read at a time: as much as a pipe holds.
const READ_BYTES: usize = 64 * 1024;

// ---- the worker's side ---------------------------------------------------------------------------------------------

/// A worker's line to its guard.
#[derive(Clone, Debug)]
pub struct Guard(Arc<Line>);

#[derive(Debug)]
struct Line {
    pipe: PipeWriter,
    next_attempt: AtomicU64,
    lost: CancellationToken,
}

impl Guard {
    /// A line to the guard that reads `pipe` in [`stand_guard`].
    ///
    /// # Errors
    /// When the pipe cannot be used so that a guard that does not read never holds the worker up.
    pub fn new(pipe: PipeWriter) -> io::Result<Guard> {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Guard(Arc::new(Line { pipe, next_attempt: AtomicU64::new(1), lost: CancellationToken::new() })))
    }

    /// Waits until a line could not be told: the guard is gone or does not read, and must be ended, since it knows of
    /// groups whose numbers may belong to others by now.
    pub async fn lost(&self) {
        self.0.lost.cancelled().await;
    }

    fn say(&self, line: &str) {
        if !self.0.lost.is_cancelled() && (&self.0.pipe).write_all(line.as_bytes()).is_err() {
            self.0.lost.cancel();
        }
    }
}

/// What the guard knows of one attempt.
#[derive(Debug)]
pub(super) struct Cover {
    guard: Guard,
    attempt: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    until: Instant,
    group: Option<u32>,
}

impl Cover {
    /// For an attempt whose commands have to be gone at `until`.
    pub(super) fn new(guard: Guard, until: Instant) -> Self {
        let attempt = guard.0.next_attempt.fetch_add(1, Ordering::Relaxed);
        Cover { guard, attempt, state: Mutex::new(State { until, group: None }) }
    }

    /// This group runs for the attempt.
    pub(super) fn hold(&self, group: u32) {
        let mut state = self.lock();
        state.group = Some(group);
        self.tell(&state);
    }

    /// It may run for longer.
    pub(super) fn extend(&self, until: Instant) {
        let mut state = self.lock();
        state.until = until;
        self.tell(&state);
    }

    /// It does not run any more.
    pub(super) fn drop_group(&self) {
        if self.lock().group.take().is_some() {
            self.guard.say(&format!("drop {}\n", self.attempt));
        }
    }

    /// Whether the guard has ended what still ran.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.lock().until
    }

    fn tell(&self, state: &State) {
        if let Some(group) = state.group {
            let left = state.until.saturating_duration_since(Instant::now()).as_millis();
            self.guard.say(&format!("hold {} {group} {left}\n", self.attempt));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// ---- the guard's side ----------------------------------------------------------------------------------------------

/// What a guard does all its life: reads what its worker tells, and ends what may not run any more. Returns when the
/// worker has ended, and so has everything that it left.
pub async fn stand_guard(mut pipe: impl AsyncRead + Unpin) {
    let mut watch = Watch::default();
    let mut buffer = Vec::with_capacity(READ_BYTES);
    loop {
        let over_at = watch.next_end();
        tokio::select! {
            biased;
            read = pipe.read_buf(&mut buffer) => match read {
                Ok(1..) => watch.hear(&mut buffer, Instant::now()),
                _ => break,
            },
            () = sleep_until_some(over_at) => watch.end_overdue(Instant::now()),
        }
        sleep(LULL).await;
    }
    watch.end_all();
}

async fn sleep_until_some(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The groups that run, by attempt, and until when each may.
#[derive(Debug, Default)]
struct Watch(HashMap<u64, (Pid, Instant)>);

impl Watch {
    /// Takes the whole lines of what was read, and leaves the rest.
    fn hear(&mut self, buffer: &mut Vec<u8>, now: Instant) {
        let whole = buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text: Vec<u8> = buffer.drain(..whole).collect();
        for line in String::from_utf8_lossy(&text).lines() {
            self.hear_line(line, now);
        }
    }

    fn hear_line(&mut self, line: &str, now: Instant) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["hold", attempt, group, left] => {
                if let (Ok(attempt), Some(group), Ok(left)) =
                    (attempt.parse(), group_of(group), left.parse().map(Duration::from_millis))
                {
                    self.0.insert(attempt, (group, now + left));
                }
            }
            ["drop", attempt] => _ = attempt.parse().map(|attempt: u64| self.0.remove(&attempt)),
            _ => {}
        }
    }

    fn next_end(&self) -> Option<Instant> {
        self.0.values().map(|(_, ends_at)| *ends_at).min()
    }

    fn end_overdue(&mut self, now: Instant) {
        self.0.extract_if(|_, (_, ends_at)| *ends_at <= now).for_each(|(_, (group, _))| end(group));
    }

    fn end_all(&mut self) {
        self.0.drain().for_each(|(_, (group, _))| end(group));
    }
}

/// Never the guard's own group, nor everything: those have the numbers 0 and 1.
fn group_of(number: &str) -> Option<Pid> {
    number.parse().ok().filter(|number| *number > 1).map(Pid::from_raw)
}

fn end(group: Pid) {
    // It fails when the group is gone, which is what was wanted.
    let _ = killpg(group, Signal::SIGKILL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_heard_and_the_rest_is_kept() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        let mut buffer = b"hold 1 70 500\nhold 2 80 900\nhold 1 70 7".to_vec();
        watch.hear(&mut buffer, now);
        assert_eq!(watch.next_end(), Some(now + Duration::from_millis(500)));
        buffer.extend(b"000\ndrop 2\nnonsense\nhold 3 0 5\nhold 4 1 5\nhold 5 x 5\ndrop x\n");
        watch.hear(&mut buffer, now);
        assert_eq!(watch.0, HashMap::from([(1, (Pid::from_raw(70), now + Duration::from_secs(7)))]));
        assert_eq!(buffer, b"");
    }

    #[tokio::test]
    async fn a_guard_that_does_not_read_is_lost_and_holds_nobody_up() {
        let (_reader, pipe) = io::pipe().unwrap();
        let guard = Guard::new(pipe).unwrap();
        let cover = Cover::new(guard.clone(), Instant::now());
        for _ in 0..10_000 {
            cover.hold(70);
        }
        guard.lost().await;
    }
}
