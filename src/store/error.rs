//! Errors of a store, classified where they arise.

use std::error::Error as StdError;
use std::fmt;

use crate::model::{InvalidCursor, InvalidInput};

/// The result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// What sort of trouble it is; decides what a caller can do about it, and the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The store cannot be reached, does not answer in time, or does not let this user in. Trying later may help.
    Unavailable,
    /// Something else was faster, or the id stands for something else. Nothing was changed.
    Conflict,
    /// The request itself is refused; the same request will always be.
    Invalid,
    /// The store is not what it has to be: standalone, without schema, with a conflicting index.
    Misconfigured,
    /// A stored document cannot be understood.
    Corrupt,
    /// This store cannot do that.
    Unsupported,
    /// The caller's own work inside a transaction failed; the transaction was aborted.
    Aborted,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [ErrorKind; 7] = [
        ErrorKind::Unavailable,
        ErrorKind::Conflict,
        ErrorKind::Invalid,
        ErrorKind::Misconfigured,
        ErrorKind::Corrupt,
        ErrorKind::Unsupported,
        ErrorKind::Aborted,
    ];

    /// The word by which logs and metrics know it.
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Conflict => "conflict",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Misconfigured => "misconfigured",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Aborted => "aborted",
        }
    }
}

/// An error of a store: its kind, what happened to what, and what to do next. The driver's error is the source;
/// no text in it shows a password.
pub struct StoreError {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl StoreError {
    /// An error of a kind with a message that says what happened, to what.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        StoreError { kind, message: message.into(), hint: None, source: None }
    }

    /// Says what to do next.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Keeps the cause.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The caller's own error, on its way out of a transaction.
    pub fn aborted(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        StoreError::new(ErrorKind::Aborted, "the work inside the transaction failed").with_source(source)
    }

    /// The kind of trouble.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to do next, if that is known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, " ({source})"))
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<InvalidInput> for StoreError {
    fn from(error: InvalidInput) -> Self {
        StoreError::new(ErrorKind::Invalid, error.to_string())
    }
}

impl From<InvalidCursor> for StoreError {
    fn from(error: InvalidCursor) -> Self {
        StoreError::new(ErrorKind::Invalid, error.to_string())
    }
}
