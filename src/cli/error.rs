//! Errors on their way to the screen: what happened, to what, and what to do next.

use std::error::Error as StdError;
use std::io;

use super::exit::Exit;
use crate::config::ConfigError;
use crate::store::{ErrorKind, StoreError};

/// The result of everything in this room.
pub type CliResult<T = ()> = Result<T, CliError>;

/// An error that ends a command. Its exit code is decided where it arises.
#[derive(Debug)]
pub struct CliError {
    exit: Exit,
    /// `None` when there is nothing to tell: the reader of our output went away.
    message: Option<String>,
    hints: Vec<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl CliError {
    /// An error with its exit code and a message that says what happened, to what.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        CliError { exit, message: Some(message.into()), hints: Vec::new(), source: None }
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
            return CliError { exit: Exit::Done, message: None, hints: Vec::new(), source: None };
        }
        CliError::failed("cannot write to standard output").with_source(error)
    }

    /// Adds what to do next.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Keeps the cause.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
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
        self.message.is_none()
    }

    /// What happened, to what; `None` when there is nothing to tell.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// The causes, nearest first. A cause that only repeats what was said is left out.
    pub fn causes(&self) -> Vec<String> {
        let mut causes: Vec<String> = Vec::new();
        let mut next = self.source.as_deref().map(|source| source as &(dyn StdError + 'static));
        while let Some(cause) = next {
            let text = cause.to_string();
            let said = causes.last().map(String::as_str).or(self.message.as_deref()).unwrap_or_default();
            if !said.contains(&text) {
                causes.push(text);
            }
            next = cause.source();
        }
        causes
    }

    /// What to do next.
    pub fn hints(&self) -> &[String] {
        &self.hints
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
        let hints = error.hint().map(str::to_owned).into_iter().collect();
        CliError { exit, message: Some(error.to_string()), hints, source: boxed_source(error) }
    }
}

/// The source of a store's error; the error itself has become the message.
fn boxed_source(error: StoreError) -> Option<Box<dyn StdError + Send + Sync>> {
    /// Keeps the owner of a source alive, and speaks for the source.
    #[derive(Debug)]
    struct Cause(StoreError);

    impl std::fmt::Display for Cause {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.source().map_or(Ok(()), |source| write!(f, "{source}"))
        }
    }

    impl StdError for Cause {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            self.0.source().and_then(|source| source.source())
        }
    }

    error.source().is_some().then(|| Box::new(Cause(error)) as _)
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        let hints = error.hints();
        let message = Some(error.to_string());
        let source = match error {
            ConfigError::Unreadable { source, .. } => Some(source.into()),
            _ => None,
        };
        CliError { exit: Exit::Usage, message, hints, source }
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
        assert_eq!(error.message(), Some("cannot reach h:1"));
        assert_eq!(error.causes(), ["no route to host"]);
        assert_eq!(error.hints(), ["look at the network"]);
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
