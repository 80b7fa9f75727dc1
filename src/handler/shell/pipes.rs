//! The three streams of a child.
//!
//! Most children end within milliseconds, and what they read and write fits into their pipes. The input is therefore
//! written before the child starts, as far as the pipe takes it, and the outputs are left alone until the child has
//! ended. Only what a longer life or a larger input needs is registered with the runtime, which costs a multiple.

use std::future::pending;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout, timeout_at};

use super::head::{Head, Written};
use super::tail::Tail;

/// What is kept of each output.
const TAIL_BYTES: usize = 8 * 1024;

/// For so long nobody reads a child's outputs. One that writes more than a pipe holds waits as long, once.
const QUICK: Duration = Duration::from_millis(10);

/// Read at a time.
const READ_BYTES: usize = 16 * 1024;

/// Enough for what a pipe holds, and its end.
const READS_AT_ONCE: usize = 5;

/// The child's ends, to be given away before its start.
pub(super) struct ChildEnds {
    stdin: PipeReader,
    stdout: PipeWriter,
    stderr: PipeWriter,
}

impl ChildEnds {
    /// Gives the ends to a command. They are closed here when it is dropped.
    pub(super) fn give_to(self, command: &mut tokio::process::Command) {
        let [stdin, stdout, stderr] =
            [self.stdin.into(), self.stdout.into(), self.stderr.into()].map(|end: OwnedFd| Stdio::from(end));
        command.stdin(stdin).stdout(stdout).stderr(stderr);
    }
}

/// This process' ends.
#[derive(Debug)]
pub(super) struct Pipes<'i> {
    input: Input<'i>,
    stdout: Output,
    stderr: Output,
    is_quick: bool,
}

impl<'i> Pipes<'i> {
    /// Three pipes; the first holds as much of `input` as it takes.
    pub(super) fn open(input: &'i [u8]) -> io::Result<(Self, ChildEnds)> {
        let (stdin, feed) = io::pipe()?;
        let (out, stdout) = io::pipe()?;
        let (err, stderr) = io::pipe()?;
        let input = Input::new(input, feed)?;
        let is_quick = input.end.is_closed();
        let pipes = Pipes { input, stdout: Output::new(out)?, stderr: Output::new(err)?, is_quick };
        Ok((pipes, ChildEnds { stdin, stdout, stderr }))
    }

    /// Keeps the pipes moving until `work` is done.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if self.is_quick {
            if let Ok(result) = timeout(QUICK, &mut work).await {
                return result;
            }
            self.is_quick = false;
        }
        let moving = async {
            self.move_to_the_end().await;
            pending().await
        };
        tokio::select! {
            biased;
            result = work => result,
            never = moving => never,
        }
    }

    /// Waits until all pipes are at their end, at most until `deadline`: a process that left the group may hold one
    /// open.
    pub(super) async fn finish_by(&mut self, deadline: Instant) {
        self.move_what_is_there();
        if !self.are_at_their_end() {
            // Whatever is missing then is left out.
            let _ = timeout_at(deadline, self.move_to_the_end()).await;
        }
    }

    /// Keeps all of stdout beside its tail, up to so many bytes.
    pub(super) fn keep_stdout(&mut self, limit: Option<usize>) {
        self.stdout.head = limit.map(Head::new);
    }

    /// All of stdout, where that is kept.
    pub(super) fn take_written(&mut self) -> Option<Written> {
        self.stdout.head.take().map(Head::into_written)
    }

    /// What is kept of stdout and stderr.
    pub(super) fn into_tails(self) -> (Tail, Tail) {
        (self.stdout.tail, self.stderr.tail)
    }

    fn are_at_their_end(&self) -> bool {
        self.input.end.is_closed() && self.stdout.end.is_closed() && self.stderr.end.is_closed()
    }

    fn move_what_is_there(&mut self) {
        self.input.write_now();
        self.stdout.read_now();
        self.stderr.read_now();
    }

    /// Moves bytes through all three at once, so that neither side ever waits for the other. May be dropped and called
    /// again.
    async fn move_to_the_end(&mut self) {
        tokio::join!(self.input.write(), self.stdout.read(), self.stderr.read());
    }
}

/// The end of a pipe in this process.
#[derive(Debug)]
enum End<P, R> {
    Plain(P),
    /// The runtime tells when there is something to do.
    Registered(R),
    Closed,
}

impl<P: Into<OwnedFd>, R> End<P, R> {
    /// The end, registered, unless it is closed. One that cannot be registered is closed: nobody could wait for it.
    fn registered(&mut self, register: impl FnOnce(OwnedFd) -> io::Result<R>) -> Option<&mut R> {
        *self = match std::mem::replace(self, End::Closed) {
            End::Plain(end) => register(end.into()).map_or(End::Closed, End::Registered),
            other => other,
        };
        match self {
            End::Registered(end) => Some(end),
            _ => None,
        }
    }
}

impl<P, R> End<P, R> {
    fn is_closed(&self) -> bool {
        matches!(self, End::Closed)
    }
}

/// What the child reads.
#[derive(Debug)]
struct Input<'i> {
    left: &'i [u8],
    end: End<PipeWriter, pipe::Sender>,
}

impl<'i> Input<'i> {
    fn new(left: &'i [u8], end: PipeWriter) -> io::Result<Self> {
        never_block(&end)?;
        let mut input = Input { left, end: End::Plain(end) };
        input.write_now();
        Ok(input)
    }

    /// Writes what the pipe takes.
    fn write_now(&mut self) {
        while let End::Plain(end) = &mut self.end {
            match end.write(self.left) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                written => self.wrote(written),
            }
        }
    }

    async fn write(&mut self) {
        while let Some(end) = self.end.registered(pipe::Sender::from_owned_fd) {
            let written = end.write(self.left).await;
            self.wrote(written);
        }
    }

    /// Closes the pipe behind the last byte. A child that does not read its input, or not to the end, is no error.
    fn wrote(&mut self, written: io::Result<usize>) {
        self.left = written.map_or(&[], |count| &self.left[count..]);
        if self.left.is_empty() {
            self.end = End::Closed;
        }
    }
}

/// What the child writes.
#[derive(Debug)]
struct Output {
    end: End<PipeReader, pipe::Receiver>,
    tail: Tail,
    head: Option<Head>,
}

impl Output {
    fn new(end: PipeReader) -> io::Result<Self> {
        never_block(&end)?;
        Ok(Output { end: End::Plain(end), tail: Tail::new(TAIL_BYTES), head: None })
    }

    /// Reads what is there, but not for ever where something goes on writing.
    fn read_now(&mut self) {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_AT_ONCE {
            let End::Plain(end) = &mut self.end else { return };
            match end.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                read => self.got(read, &buffer),
            }
        }
    }

    async fn read(&mut self) {
        let mut buffer = Vec::new();
        while let Some(end) = self.end.registered(pipe::Receiver::from_owned_fd) {
            buffer.resize(READ_BYTES, 0);
            let read = end.read(&mut buffer).await;
            self.got(read, &buffer);
        }
    }

    /// The end, or a pipe that breaks, has nothing more to say.
    fn got(&mut self, read: io::Result<usize>, buffer: &[u8]) {
        match read {
            Ok(count @ 1..) => {
                self.tail.push(&buffer[..count]);
                if let Some(head) = &mut self.head {
                    head.push(&buffer[..count]);
                }
            }
            read => {
                self.end = End::Closed;
                self.head.iter_mut().filter(|_| read.is_ok()).for_each(Head::ended);
            }
        }
    }
}

/// Only the end in this process: the child's is a file description of its own, and blocks.
fn never_block(end: impl AsFd) -> io::Result<()> {
    fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_without_an_end_is_not_read_for_ever() {
        let endless = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
        let mut output = Output::new(endless.into()).unwrap();
        output.read_now();
        assert!(!output.end.is_closed());
        assert_eq!(output.tail.text(100).chars().last(), Some('\0'));
    }

    #[test]
    fn an_input_that_fits_is_written_and_closed_at_once() {
        let (pipes, ends) = Pipes::open(b"a line\n").unwrap();
        assert!(pipes.input.end.is_closed() && pipes.is_quick);
        assert_eq!(io::read_to_string(ends.stdin).unwrap(), "a line\n");
        let large = vec![b'x'; 1 << 20];
        let (pipes, _ends) = Pipes::open(&large).unwrap();
        assert!(!pipes.input.end.is_closed() && !pipes.is_quick && pipes.input.left.len() < large.len());
    }
}
