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
//! [`ExitCodes`] may give other meanings to each, and [`Stdin`] names other forms of the input. Where the status is 75, or
//! another one that [`ExitCodes`] names as a retry, the last line of stdout may say when to try again: `retry-after: 30s`, or
//! `snooze: 10m`, which spends no attempt and is no failure. Both also take an RFC 3339 time, and at most a year; anything
//! else is ignored, with a remark in the message.
//!
//! A well-formed W3C trace context among the event's headers is handed on as `TRACEPARENT` and `TRACESTATE`.
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
mod exit_codes;
pub(in crate::handler) mod group;
mod head;
mod identity;
mod pipes;
mod stdin;
pub(in crate::handler) mod tail;
mod trace;
mod transaction;
mod wish;

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::Signal;

use super::{DeadLetterHandler, Handler, HandlerContext, Outcome, StopReason};
use crate::model::{Envelope, Failure, FailureKind, MAX_ERROR_MESSAGE_BYTES};
use child::Ended;
pub use command::Command;
use command::Prepared;
use environment::Facts;
pub use exit_codes::{ExitCodes, Meaning};
use head::Written;
pub use identity::{Identity, InvalidIdentity};
pub use stdin::Stdin;
pub use transaction::ShellTransaction;
use wish::Wish;

/// What a shell reports for a command that INT or TERM ended.
const INTERRUPTED_CODES: [i32; 2] = [130, 143];

/// How long to wait for news of a drain when a child was interrupted. A service manager may send TERM to the worker
/// and its children at once, and a child can be dead before the worker has read its own signal.
const DRAIN_NEWS: Duration = Duration::from_secs(1);

/// Runs a command for each delivery; see the [module](self) for the protocol.
#[derive(Clone, Debug)]
pub struct ShellHandler {
    command: Prepared,
    stdin: Stdin,
    exit_codes: ExitCodes,
}

impl ShellHandler {
    /// A handler that runs `command`. What its children inherit of this process' environment is fixed here.
    pub fn new(command: Command) -> Self {
        let (stdin, exit_codes) = (Stdin::default(), ExitCodes::default());
        ShellHandler { command: Prepared::new(command), stdin, exit_codes }
    }

    /// Writes the event to stdin in another form.
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Gives other meanings to exit codes.
    pub fn exit_codes(mut self, exit_codes: ExitCodes) -> Self {
        self.exit_codes = exit_codes;
        self
    }

    /// Runs the command for an attempt: what became of it, and its stdout where that is kept.
    async fn attempt(&self, envelope: &Envelope, context: &HandlerContext) -> (Outcome, Option<Written>) {
        let facts = environment::facts(envelope, context.lease_expires_at());
        self.run(self.stdin.line(envelope), &facts, context).await
    }

    async fn run(
        &self,
        input: serde_json::Result<Vec<u8>>,
        facts: &Facts,
        context: &HandlerContext,
    ) -> (Outcome, Option<Written>) {
        let input = match input {
            Ok(input) => input,
            Err(error) => return (Outcome::failed(format!("its input cannot be written: {error}")), None),
        };
        match child::run(&self.command, &input, facts, context).await {
            Ok(ended) => {
                let draining = is_interruption(ended.status) && drain_begins(context).await;
                (verdict(&ended, draining, &self.exit_codes), ended.written)
            }
            Err(error) => (Outcome::failed(self.command.command().explain_spawn_error(&error)), None),
        }
    }
}

#[async_trait]
impl Handler for ShellHandler {
    async fn handle(&self, envelope: &Envelope, context: &HandlerContext) -> Outcome {
        self.attempt(envelope, context).await.0
    }
}

/// The command gets the envelope with one more member, `failure` with `kind` and `message`, whatever its [`Stdin`].
#[async_trait]
impl DeadLetterHandler for ShellHandler {
    async fn dead(
        &self,
        envelope: &Envelope,
        failure: &Failure,
        context: &HandlerContext,
    ) -> Result<(), String> {
        let mut facts = environment::facts(envelope, context.lease_expires_at());
        facts.retain(|(name, _)| *name != "RELAY_LEASE_EXPIRES_AT");
        facts.push(("RELAY_FAILURE_KIND", failure.kind.as_str().replace('\0', "")));
        match self.run(stdin::line_of_death(envelope, failure), &facts, context).await.0 {
            Outcome::Succeeded => Ok(()),
            Outcome::Failed(Failure { message, .. })
            | Outcome::Rejected(Failure { message, .. })
            | Outcome::RetryAfter { failure: Failure { message, .. }, .. } => Err(message),
            Outcome::Snoozed(_) => Err("asked for a snooze, but there is no second time".to_owned()),
            Outcome::Released => Err("was interrupted".to_owned()),
        }
    }
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

fn verdict(ended: &Ended, draining: bool, exit_codes: &ExitCodes) -> Outcome {
    let meaning = ended.status.and_then(|status| exit_codes.meaning_of(status.code()?));
    match (ended.stopped, meaning) {
        (Some(reason @ StopReason::TimedOut(_)), _) => {
            let message = message(&reason.to_string(), ended);
            Outcome::Failed(Failure::new(FailureKind::Timeout, message))
        }
        (_, Some(Meaning::Done)) => Outcome::Succeeded,
        (_, Some(Meaning::Bury)) => Outcome::rejected(message_of(ended)),
        (Some(_), _) => Outcome::Released,
        (None, _) if draining => Outcome::Released,
        (None, Some(Meaning::Retry)) => as_wished(ended),
        (None, None) => Outcome::failed(message_of(ended)),
    }
}

/// A failure, at the time that the last line of stdout says, if it says one.
fn as_wished(ended: &Ended) -> Outcome {
    match wish::read(&ended.stdout.last_line()) {
        None => Outcome::failed(message_of(ended)),
        Some(Ok(Wish::Snooze(wait))) => Outcome::Snoozed(wait),
        Some(Ok(Wish::RetryAfter(wait))) => {
            let failure = Failure::new(FailureKind::Failed, message_of(ended));
            Outcome::RetryAfter { failure, wait }
        }
        Some(Err(remark)) => {
            Outcome::failed(message(&format!("{} ({remark})", describe(ended.status)), ended))
        }
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
    use crate::handler::Wait;

    const EXIT_CODE_SHIFT: i32 = 8;

    fn ended(raw_status: i32, stopped: Option<StopReason>, stderr: &str) -> Ended {
        let mut ended = Ended {
            status: Some(ExitStatus::from_raw(raw_status)),
            stopped,
            stdout: Tail::new(100),
            stderr: Tail::new(100),
            written: None,
        };
        ended.stderr.push(stderr.as_bytes());
        ended
    }

    fn after_exit(code: i32, stopped: Option<StopReason>, draining: bool) -> Outcome {
        verdict(&ended(code << EXIT_CODE_SHIFT, stopped, "oh no\n"), draining, &ExitCodes::default())
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
        let codes = ExitCodes::default();
        assert_eq!(verdict(&ended(15, None, ""), true, &codes), Outcome::Released);
        assert_eq!(verdict(&ended(15, None, ""), false, &codes), Outcome::failed("killed by SIGTERM"));
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
        assert_eq!(verdict(&ended(9, shutdown, ""), true, &ExitCodes::default()), Outcome::Released);
    }

    #[test]
    fn exit_codes_may_mean_something_else() {
        let codes =
            ExitCodes::default().with(3, Meaning::Done).with(65, Meaning::Retry).with(9, Meaning::Bury);
        let after = |code: i32| verdict(&ended(code << EXIT_CODE_SHIFT, None, ""), false, &codes);
        assert_eq!([after(0), after(3)], [Outcome::Succeeded, Outcome::Succeeded]);
        assert_eq!(after(65), Outcome::failed("exit status 65"));
        assert_eq!(
            [after(9), after(78)],
            [9, 78].map(|code| Outcome::rejected(format!("exit status {code}")))
        );
    }

    #[test]
    fn a_temporary_failure_may_say_when_to_try_again() {
        let after = |code: i32, stdout: &str, draining| {
            let mut ended = ended(code << EXIT_CODE_SHIFT, None, "oh no");
            ended.stdout.push(stdout.as_bytes());
            verdict(&ended, draining, &ExitCodes::default())
        };
        let wait = Wait::For(Duration::from_secs(30));
        let failure = Failure::new(FailureKind::Failed, "exit status 75: oh no");
        assert_eq!(after(75, "busy\nretry-after: 30s\n\n", false), Outcome::RetryAfter { failure, wait });
        assert_eq!(after(75, "snooze: 30s", false), Outcome::Snoozed(wait));
        assert_eq!(after(75, "snooze: 30s\nbye", false), Outcome::failed("exit status 75: oh no"));
        assert_eq!(after(1, "snooze: 30s", false), Outcome::failed("exit status 1: oh no"));
        assert_eq!(after(75, "snooze: 30s", true), Outcome::Released);
        let Outcome::Failed(failure) = after(75, "snooze: soon", false) else { panic!() };
        assert!(failure.message.starts_with("exit status 75 (ignored `snooze: soon`"), "{}", failure.message);
        assert!(failure.message.ends_with("): oh no"));
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
