//! A child that reads requests and writes answers, as its handler sees it.

use std::ffi::OsStr;
use std::io;
use std::process::Stdio;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::{Instant, timeout};

use super::answer::shown;
use super::keeper::{self, Ended, Hold};
use super::note::Notes;
use super::splitter::{Splitter, TooLong};
use crate::handler::shell::command::Prepared;
use crate::handler::shell::group::LAST_WORDS;

/// The longest line that a child may write.
pub(super) const MAX_LINE_BYTES: usize = 1024 * 1024;

/// Read at a time.
const READ_BYTES: usize = 8 * 1024;

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Conversation {
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    lines: Splitter,
    hold: Hold,
    /// Whether it has answered anything.
    pub(super) is_proven: bool,
}

/// What moved between the two.
pub(super) enum Moved {
    Written(usize),
    /// The child reads no more.
    Deaf,
    Read,
    /// The child writes no more.
    Silent,
    /// Nothing of the child is left.
    Ended,
}

impl Conversation {
    /// Starts a child for `handler`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(command: &Prepared, handler: &str, notes: &Notes) -> io::Result<Self> {
        let facts = match handler.contains('\0') {
            true => Vec::new(),
            false => vec![("RELAY_HANDLER", handler.to_owned())],
        };
        let by = |program: &OsStr| {
            let mut command = command.start_of(program, &facts);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        // By path, which is cheap in a large process, and where that fails by name: then the operating system says why.
        let mut child = match command.path() {
            Some(path) => by(path.as_os_str()).or_else(|_| by(command.name())),
            None => by(command.name()),
        }?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let hold = keeper::keep(child, handler, notes)?;
        Ok(Conversation { stdin, stdout, lines: Splitter::new(MAX_LINE_BYTES), hold, is_proven: false })
    }

    pub(super) fn pid(&self) -> u32 {
        self.hold.pid()
    }

    /// Writes of `left` what the child takes, or reads what it wrote, whatever comes first. May be dropped and called
    /// again.
    pub(super) async fn step(&mut self, left: &[u8]) -> Moved {
        let mut buffer = [0; READ_BYTES];
        let Conversation { stdin, stdout, hold, .. } = self;
        tokio::select! {
            biased;
            written = write_some(stdin, left), if !left.is_empty() => match written {
                Ok(count @ 1..) => Moved::Written(count),
                _ => Moved::Deaf,
            },
            read = read_some(stdout, &mut buffer) => match read {
                Ok(count @ 1..) => {
                    self.lines.push(&buffer[..count]);
                    Moved::Read
                }
                _ => Moved::Silent,
            },
            _ = hold.ended() => Moved::Ended,
        }
    }

    /// Reads what an ended child wrote, and has not been read. A process that left its group may hold the pipe open.
    pub(super) async fn read_last_words(&mut self) {
        let to_the_end = async {
            let mut buffer = [0; READ_BYTES];
            while let Ok(count @ 1..) = read_some(&mut self.stdout, &mut buffer).await {
                self.lines.push(&buffer[..count]);
                if self.lines.rest().len() > MAX_LINE_BYTES {
                    break;
                }
            }
        };
        // Whatever is missing then is left out.
        let _ = timeout(LAST_WORDS, to_the_end).await;
    }

    /// The next line that was read.
    ///
    /// # Errors
    /// When it is too long.
    pub(super) fn next_line(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        self.lines.next_line()
    }

    /// What was read behind the last whole line, when there will be no more.
    pub(super) fn take_rest(&mut self) -> Vec<u8> {
        self.lines.take_rest()
    }

    /// The child has read all that there will ever be.
    pub(super) fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Why it cannot be used for the next delivery, if so: it has ended, or wrote without being asked.
    pub(super) fn disorder(&mut self) -> Option<String> {
        if self.lines.rest().is_empty()
            && let Some(stdout) = &mut self.stdout
        {
            let mut buffer = [0; 1_024];
            if let Some(Ok(count @ 1..)) = stdout.read(&mut buffer).now_or_never() {
                self.lines.push(&buffer[..count]);
            }
        }
        if !self.lines.rest().is_empty() {
            return Some(format!("wrote without being asked: {}", shown(self.lines.rest()).trim_end()));
        }
        self.hold.has_ended().map(|ended| super::message_of(&ended))
    }

    /// Waits until nothing of the child is left, whatever it still writes.
    pub(super) async fn ended_unheard(&mut self) -> Option<Arc<Ended>> {
        loop {
            match self.step(&[]).await {
                Moved::Read => _ = self.lines.take_rest(),
                Moved::Silent => self.stdout = None,
                _ => return self.ended().await,
            }
        }
    }

    /// Waits until nothing of the child is left.
    pub(super) async fn ended(&mut self) -> Option<Arc<Ended>> {
        self.hold.ended().await
    }

    /// TERM to the child's whole group now, and KILL at `kill_at`, without waiting.
    pub(super) fn order_end(&self, kill_at: Instant) {
        self.hold.order_end(kill_at);
    }

    /// Ends the child, and returns when nothing of it is left.
    pub(super) async fn end_by(&mut self, kill_at: Instant) -> Option<Arc<Ended>> {
        self.hold.end_by(kill_at).await
    }
}

async fn write_some(stdin: &mut Option<ChildStdin>, left: &[u8]) -> io::Result<usize> {
    match stdin {
        Some(stdin) => stdin.write(left).await,
        None => Ok(0),
    }
}

async fn read_some(stdout: &mut Option<ChildStdout>, buffer: &mut [u8]) -> io::Result<usize> {
    match stdout {
        Some(stdout) => stdout.read(buffer).await,
        None => std::future::pending().await,
    }
}
