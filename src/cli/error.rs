//! Errors on their way to the screen: what happened, to what, and what to do next.

use std::io;

use super::exit::Exit;
use crate::config::ConfigError;
use crate::config::handlers::HandlersError;
use crate::store::{ErrorKind, StoreError};

/// The result of everything in this room.
pub type CliResult<T = ()> = Result<T, CliError>;

/// An error that ends a command. Its exit code is decided where it arises.
#[derive(Debug)]
pub struct CliError {
    exit: Exit,
    /// What happened, to what, and its causes; `None` when there is nothing to tell: the reader of our output went away.
    error: Option<anyhow::Error>,
    hints: Vec<String>,
}

impl CliError {
    /// An error with its exit code, and a message that says what happened, to what.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        CliError::caused(exit, anyhow::Error::msg(message.into()))
    }

    /// An error with its exit code, whose text is the message, and whose sources are the causes.
    fn caused(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        CliError { exit, error: Some(error.into()), hints: Vec::new() }
    }

    /// The command failed.
    pub fn failed(message: impl Into<String>) -> Self {
        CliError::new(Exit::Failed, message)
    }

    /// The command line cannot mean anything.
    pub fn usage(message: impl Into<String>) -> Self {
        CliError::new(Exit::Usage, message)
    }

    /// A signal ended the command.
    pub fn interrupted() -> Self {
        CliError::new(Exit::Interrupted, "interrupted")
    }

    /// Standard output could not be written. When its reader went away there is nothing to tell, and all is well.
    pub fn output(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return CliError { exit: Exit::Done, error: None, hints: Vec::new() };
        }
        anyhow::Error::new(error).context("cannot write to standard output").into()
    }

    /// Adds what to do next.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Adds all that can be done next.
    fn with_hints(mut self, hints: impl IntoIterator<Item = String>) -> Self {
        self.hints.extend(hints);
        self
    }

    /// Says where it happened; what was said before becomes the cause.
    pub fn within(mut self, message: String) -> Self {
        self.error = self.error.map(|error| error.context(message));
        self
    }

    /// Gives it another exit code.
    pub fn with_exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Whether the reader of our output went away, which ends a command quietly.
    pub fn is_broken_pipe(&self) -> bool {
        self.error.is_none()
    }

    /// What happened, to what; `None` when there is nothing to tell.
    pub fn message(&self) -> Option<String> {
        self.error.as_ref().map(anyhow::Error::to_string)
    }

    /// The causes, nearest first. A cause that only repeats what was said is left out.
    pub fn causes(&self) -> Vec<String> {
        let mut told: Vec<String> = Vec::new();
        for text in self.error.iter().flat_map(anyhow::Error::chain).map(ToString::to_string) {
            if told.last().is_none_or(|said| !said.contains(&text)) {
                told.push(text);
            }
        }
        told.into_iter().skip(1).collect()
    }

    /// What to do next.
    pub fn hints(&self) -> &[String] {
        &self.hints
    }
}

/// Something around us went wrong, with a line of context that says what was tried.
impl From<anyhow::Error> for CliError {
    fn from(error: anyhow::Error) -> Self {
        CliError::caused(Exit::Failed, error)
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let exit = match error.kind() {
            ErrorKind::Unavailable => Exit::Unavailable,
            ErrorKind::Misconfigured => Exit::Misconfigured,
            ErrorKind::Conflict
            | ErrorKind::Invalid
            | ErrorKind::Corrupt
            | ErrorKind::Unsupported
            | ErrorKind::Aborted => Exit::Failed,
        };
        let hint = error.hint().map(str::to_owned);
        CliError::caused(exit, error).with_hints(hint)
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        let hints = error.hints();
        CliError::caused(Exit::Usage, error).with_hints(hints)
    }
}

impl From<HandlersError> for CliError {
    fn from(error: HandlersError) -> Self {
        let hint = error.hint();
        CliError::caused(Exit::Usage, error).with_hints(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_error_keeps_its_cause_and_hint() {
        let cause = io::Error::other("no route to host");
        let error = StoreError::new(ErrorKind::Unavailable, "cannot reach h:1")
            .with_hint("look at the network")
            .with_source(cause);
        let error = CliError::from(error);
        assert_eq!(error.exit(), Exit::Unavailable);
        assert_eq!(error.message().as_deref(), Some("cannot reach h:1"));
        assert_eq!(error.causes(), ["no route to host"]);
        assert_eq!(error.hints(), ["look at the network"]);
    }

    #[test]
    fn a_line_of_context_is_the_message_and_an_echo_is_no_cause() {
        let lost = io::Error::other("disk lost");
        let error = anyhow::Error::new(lost).context("write failed: disk lost").context("cannot save");
        let error = CliError::from(error).with_hint("first").with_hint("second");
        assert_eq!(error.exit(), Exit::Failed);
        assert_eq!(error.message().as_deref(), Some("cannot save"));
        assert_eq!(error.causes(), ["write failed: disk lost"]);
        assert_eq!(error.hints(), ["first", "second"]);
    }

    #[test]
    fn every_kind_of_store_error_has_its_exit_code() {
        let code = |kind| CliError::from(StoreError::new(kind, "m")).exit().code();
        assert_eq!(code(ErrorKind::Unavailable), 4);
        assert_eq!(code(ErrorKind::Misconfigured), 5);
        for kind in [ErrorKind::Conflict, ErrorKind::Invalid, ErrorKind::Corrupt, ErrorKind::Unsupported] {
            assert_eq!(code(kind), 1);
        }
    }

    #[test]
    fn a_broken_pipe_is_silent_and_well() {
        let error = CliError::output(io::ErrorKind::BrokenPipe.into());
        assert!(error.is_broken_pipe());
        assert_eq!(error.exit(), Exit::Done);
        assert!(!CliError::output(io::ErrorKind::StorageFull.into()).is_broken_pipe());
    }
}
