//! Shell commands as handlers.
//!
//! # The protocol
//! The child gets the event's envelope as one line of JSON on stdin, small facts in the environment (`RELAY_EVENT_ID`,
//! `RELAY_EVENT_TYPE` and so on), and its verdict is its exit status:
//!
//! | status | meaning |
//! |---|---|
//! | 0 | done |
//! | 65, 78 | no attempt can succeed (`EX_DATAERR`, `EX_CONFIG`): dead at once |
//! | 130, 143, killed by INT or TERM | while the worker drains: given back, the attempt is not spent; otherwise as any other |
//! | 75 (`EX_TEMPFAIL`) and any other | failed, tried again later |
//!
//! The tail of stderr is the message; that of stdout where stderr is empty. A time-out, a lost lease and the
//! worker's own end send TERM to the child's whole process group, and KILL after a grace. A child that was stopped
//! because it ran out of time has failed, whatever its exit status; one that was stopped because the worker ends is
//! done when it exits 0, and is given back otherwise.
//!
//! The command is over when its first process is: what it left running in the background gets TERM, and KILL a second
//! later.

mod child;
pub(in crate::handler) mod command;
pub(in crate::handler) mod environment;
pub(in crate::handler) mod group;
mod pipes;
pub(in crate::handler) mod tail;

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::Signal;

use super::{Handler, HandlerContext, Outcome, StopReason};
use crate::model::{Envelope, Failure, FailureKind, MAX_ERROR_MESSAGE_BYTES};
use child::Ended;
pub use command::Command;
use command::Prepared;

/// Data error and configuration error in the numbers of `sysexits.h`: trying again cannot help.
pub(super) const REJECTING_CODES: [i32; 2] = [65, 78];

/// What a shell reports for a command that INT or TERM ended.
const INTERRUPTED_CODES: [i32; 2] = [130, 143];

/// How long to wait for news of a drain when a child was interrupted. A service manager may send TERM to the worker
/// and its children at once, and a child can be dead before the worker has read its own signal.
const DRAIN_NEWS: Duration = Duration::from_secs(1);

/// Runs a command for each delivery; see the [module](self) for the protocol.
#[derive(Clone, Debug)]
pub struct ShellHandler {
    command: Prepared,
}

impl ShellHandler {
    /// A handler that runs `command`. What its children inherit of this process' environment is fixed here.
    pub fn new(command: Command) -> Self {
        ShellHandler { command: Prepared::new(command) }
    }
}

#[async_trait]
impl Handler for ShellHandler {
    async fn handle(&self, envelope: &Envelope, context: &HandlerContext) -> Outcome {
        let input = match line_of(envelope) {
            Ok(input) => input,
            Err(error) => return Outcome::failed(format!("the envelope cannot be written: {error}")),
        };
        let facts = environment::facts(envelope, context.lease_expires_at());
        match child::run(&self.command, &input, &facts, context).await {
            Ok(ended) => {
                let draining = is_interruption(ended.status) && drain_begins(context).await;
                verdict(&ended, draining)
            }
            Err(error) => Outcome::failed(self.command.command().explain_spawn_error(&error)),
        }
    }
}

fn line_of(envelope: &Envelope) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(envelope)?;
    line.push(b'\n');
    Ok(line)
}

pub(super) async fn drain_begins(context: &HandlerContext) -> bool {
    tokio::time::timeout(DRAIN_NEWS, context.draining()).await.is_ok()
}

/// Whether INT or TERM ended the child, as far as its status tells.
pub(super) fn is_interruption(status: Option<ExitStatus>) -> bool {
    let Some(status) = status else { return false };
    let interrupted_code = status.code().is_some_and(|code| INTERRUPTED_CODES.contains(&code));
    interrupted_code || matches!(signal_of(status), Some(Signal::SIGINT | Signal::SIGTERM))
}

fn verdict(ended: &Ended, draining: bool) -> Outcome {
    match (ended.stopped, ended.status.and_then(|status| status.code())) {
        (Some(reason @ StopReason::TimedOut(_)), _) => {
            let message = message(&reason.to_string(), ended);
            Outcome::Failed(Failure::new(FailureKind::Timeout, message))
        }
        (_, Some(0)) => Outcome::Succeeded,
        (_, Some(code)) if REJECTING_CODES.contains(&code) => Outcome::rejected(message_of(ended)),
        (Some(_), _) => Outcome::Released,
        (None, _) if draining => Outcome::Released,
        (None, _) => Outcome::failed(message_of(ended)),
    }
}

fn message_of(ended: &Ended) -> String {
    message(&describe(ended.status), ended)
}

/// `exit status 3: the last words`, within what a failure may hold.
fn message(what: &str, ended: &Ended) -> String {
    let room = MAX_ERROR_MESSAGE_BYTES.saturating_sub(what.len() + ": ".len());
    let last_words = [&ended.stderr, &ended.stdout].map(|tail| tail.text(room));
    match last_words.into_iter().find(|text| !text.is_empty()) {
        Some(text) => format!("{what}: {text}"),
        None => what.to_owned(),
    }
}

pub(super) fn describe(status: Option<ExitStatus>) -> String {
    let Some(status) = status else { return "could not be killed".to_owned() };
    match (status.code(), signal_of(status), status.signal()) {
        (Some(code), ..) => format!("exit status {code}"),
        (_, Some(signal), _) => format!("killed by {signal}"),
        (.., number) => format!("killed by signal {}", number.unwrap_or_default()),
    }
}

fn signal_of(status: ExitStatus) -> Option<Signal> {
    Signal::try_from(status.signal()?).ok()
}

#[cfg(test)]
mod tests {
    use super::tail::Tail;
    use super::*;

    const EXIT_CODE_SHIFT: i32 = 8;

    fn ended(raw_status: i32, stopped: Option<StopReason>, stderr: &str) -> Ended {
        let mut ended = Ended {
            status: Some(ExitStatus::from_raw(raw_status)),
            stopped,
            stdout: Tail::new(100),
            stderr: Tail::new(100),
        };
        ended.stderr.push(stderr.as_bytes());
        ended
    }

    fn after_exit(code: i32, stopped: Option<StopReason>, draining: bool) -> Outcome {
        verdict(&ended(code << EXIT_CODE_SHIFT, stopped, "oh no\n"), draining)
    }

    #[test]
    fn the_exit_status_is_the_verdict() {
        assert_eq!(after_exit(0, None, false), Outcome::Succeeded);
        for code in [1, 2, 64, 66, 75, 77, 126, 127, 130, 143, 255] {
            assert_eq!(after_exit(code, None, false), Outcome::failed(format!("exit status {code}: oh no")));
        }
        for code in [65, 78] {
            assert_eq!(
                after_exit(code, None, false),
                Outcome::rejected(format!("exit status {code}: oh no"))
            );
        }
    }

    #[test]
    fn an_interruption_during_a_drain_spends_no_attempt() {
        let is_interruption = |raw| is_interruption(Some(ExitStatus::from_raw(raw)));
        let interruptions = [130 << EXIT_CODE_SHIFT, 143 << EXIT_CODE_SHIFT, 2, 15];
        assert!(interruptions.into_iter().all(is_interruption));
        assert!(![0, 1 << EXIT_CODE_SHIFT, 75 << EXIT_CODE_SHIFT, 9, 11].into_iter().any(is_interruption));
        assert_eq!(verdict(&ended(15, None, ""), true), Outcome::Released);
        assert_eq!(verdict(&ended(15, None, ""), false), Outcome::failed("killed by SIGTERM"));
    }

    #[test]
    fn a_stop_decides_how_the_status_is_read() {
        let timed_out = Some(StopReason::TimedOut(Duration::from_secs(30)));
        let timeout = Outcome::Failed(Failure::new(FailureKind::Timeout, "timed out after 30s: oh no"));
        for code in [0, 1, 65, 143] {
            assert_eq!(after_exit(code, timed_out, true), timeout);
        }
        let shutdown = Some(StopReason::Shutdown);
        assert_eq!(after_exit(0, shutdown, true), Outcome::Succeeded);
        assert_eq!(after_exit(65, shutdown, true), Outcome::rejected("exit status 65: oh no"));
        for code in [1, 75, 143] {
            assert_eq!(after_exit(code, shutdown, true), Outcome::Released);
        }
        assert_eq!(verdict(&ended(9, shutdown, ""), true), Outcome::Released);
    }

    #[test]
    fn a_message_names_the_signal_and_falls_back_to_stdout() {
        let mut killed = ended(9, None, "");
        killed.stdout.push(b"last line");
        assert_eq!(message_of(&killed), "killed by SIGKILL: last line");
        assert_eq!(message_of(&ended(3 << EXIT_CODE_SHIFT, None, " \n")), "exit status 3");
        assert_eq!(describe(Some(ExitStatus::from_raw(34))), "killed by signal 34");
    }
}
