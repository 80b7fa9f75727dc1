//! The driver's errors, classified, in words that show no password.

use std::fmt;

use mongodb::error::{Error as DriverError, ErrorKind as DriverKind, WriteFailure};

use crate::store::{ErrorKind, StoreError};

/// Commands fail with this code when the user is unknown or the password wrong.
const AUTHENTICATION_FAILED: i32 = 18;
/// The user lacks a privilege.
const UNAUTHORIZED: i32 = 13;
/// Transactions were tried on a standalone server.
const ILLEGAL_OPERATION: i32 = 20;
/// A unique index refused a document.
pub(super) const DUPLICATE_KEY: i32 = 11_000;
/// Two writers met.
const WRITE_CONFLICT: i32 = 112;
/// The server gave up after `maxTimeMS`.
const MAX_TIME_EXPIRED: i32 = 50;
/// Also what a `hint` gets that names no index.
const BAD_VALUE: i32 = 2;

/// The driver's error as the source of a [`StoreError`].
///
/// The driver's own text may carry the server's whole reply; this one says kind, code and message, and no more.
pub(super) struct Cause(pub(super) DriverError);

impl Cause {
    /// The driver's error behind a store's error, if that is where it came from.
    pub(super) fn of(error: &StoreError) -> Option<&DriverError> {
        let source = std::error::Error::source(error)?;
        source.downcast_ref::<Cause>().map(|cause| &cause.0)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind.as_ref() {
            DriverKind::Command(error) => {
                write!(f, "{} (code {}, {})", error.message, error.code, error.code_name)
            }
            DriverKind::Write(WriteFailure::WriteError(error)) => {
                write!(f, "{} (code {})", error.message, error.code)
            }
            DriverKind::Write(WriteFailure::WriteConcernError(error)) => {
                write!(f, "{} (code {}, {})", error.message, error.code, error.code_name)
            }
            DriverKind::InsertMany(error) => match error.write_errors.iter().flatten().next() {
                Some(error) => write!(f, "{} (code {})", error.message, error.code),
                None => f.write_str("an insert was not acknowledged"),
            },
            DriverKind::Io(error) => write!(f, "{error}"),
            DriverKind::ServerSelection { message, .. } => f.write_str(message),
            DriverKind::Authentication { message, .. } => f.write_str(message),
            DriverKind::DnsResolve { message, .. } => write!(f, "name lookup failed: {message}"),
            DriverKind::InvalidTlsConfig { message, .. } => write!(f, "TLS configuration: {message}"),
            DriverKind::ConnectionPoolCleared { message, .. } => f.write_str(message),
            DriverKind::Transaction { message, .. } => f.write_str(message),
            DriverKind::IncompatibleServer { message, .. } => f.write_str(message),
            DriverKind::InvalidArgument { message, .. } => f.write_str(message),
            DriverKind::InvalidResponse { message, .. } => f.write_str(message),
            _ => f.write_str("the driver failed"),
        }
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Cause {}

impl From<DriverError> for StoreError {
    /// For what an application does by itself with the session of a transaction. The labels by which the transaction is
    /// tried again after a conflict are kept.
    fn from(error: DriverError) -> Self {
        classify("the application's own operation", error)
    }
}

/// Classifies a driver's error that arose while `doing` something, such as "listing deliveries".
pub(super) fn classify(doing: &str, error: DriverError) -> StoreError {
    let code = error_code(&error);
    let failed = |kind: ErrorKind, why: &str| StoreError::new(kind, format!("{doing} failed: {why}"));
    let classified = match code {
        Some(AUTHENTICATION_FAILED) => {
            failed(ErrorKind::Unavailable, "the server refused the user or password")
                .with_hint("check the user name, the password and authSource in the store's URL")
        }
        Some(UNAUTHORIZED) => failed(ErrorKind::Unavailable, "the user lacks a privilege")
            .with_hint("grant the user the role readWrite on the database (dbAdmin as well for setup)"),
        Some(ILLEGAL_OPERATION) => standalone(),
        Some(DUPLICATE_KEY) => failed(ErrorKind::Conflict, "a document of that id is there already"),
        Some(WRITE_CONFLICT) => failed(ErrorKind::Conflict, "another writer was faster"),
        Some(MAX_TIME_EXPIRED) => failed(ErrorKind::Unavailable, "the server did not finish in time"),
        Some(BAD_VALUE) if is_missing_index(&error) => missing_index(doing),
        _ => failed(kind_of(&error), &Cause(error.clone()).to_string()),
    };
    classified.with_source(Cause(error))
}

fn kind_of(error: &DriverError) -> ErrorKind {
    match error.kind.as_ref() {
        DriverKind::Authentication { .. }
        | DriverKind::Io(_)
        | DriverKind::ServerSelection { .. }
        | DriverKind::DnsResolve { .. }
        | DriverKind::ConnectionPoolCleared { .. }
        | DriverKind::InvalidTlsConfig { .. }
        | DriverKind::Shutdown => ErrorKind::Unavailable,
        DriverKind::IncompatibleServer { .. } | DriverKind::SessionsNotSupported => ErrorKind::Misconfigured,
        DriverKind::InvalidArgument { .. } => ErrorKind::Invalid,
        DriverKind::Bson(_) | DriverKind::InvalidResponse { .. } => ErrorKind::Corrupt,
        _ if error.contains_label(mongodb::error::TRANSIENT_TRANSACTION_ERROR) => ErrorKind::Conflict,
        _ => ErrorKind::Unavailable,
    }
}

pub(super) fn error_code(error: &DriverError) -> Option<i32> {
    match error.kind.as_ref() {
        DriverKind::Command(error) => Some(error.code),
        DriverKind::Write(WriteFailure::WriteError(error)) => Some(error.code),
        DriverKind::Write(WriteFailure::WriteConcernError(error)) => Some(error.code),
        DriverKind::InsertMany(error) => error.write_errors.iter().flatten().next().map(|error| error.code),
        DriverKind::Authentication { .. } => Some(AUTHENTICATION_FAILED),
        _ => None,
    }
}

fn is_missing_index(error: &DriverError) -> bool {
    matches!(error.kind.as_ref(), DriverKind::Command(error) if error.message.contains("hint"))
}

fn missing_index(doing: &str) -> StoreError {
    StoreError::new(ErrorKind::Misconfigured, format!("{doing} failed: an index that it needs is missing"))
        .with_hint("run `relayctl setup`; `relayctl setup --check` shows what is missing")
}

/// The refusal of a server without transactions.
pub(super) fn standalone() -> StoreError {
    StoreError::new(
        ErrorKind::Misconfigured,
        "the server is a standalone mongod, and an outbox needs transactions, which only a replica set has",
    )
    .with_hint(
        "start it with `mongod --replSet rs0` and run `rs.initiate()` once; one node is enough to begin with",
    )
}

/// A stored document that cannot be understood.
pub(super) fn corrupt(what: &str, reason: impl fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("{what} cannot be understood: {reason}"))
}
