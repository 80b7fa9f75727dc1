//! Groups of errors: deliveries of one handler that failed alike.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use super::delivery::{Delivery, Status};
use super::error_text::normalise_error;
use super::time::Timestamp;

/// What the identifiers of this version begin with. A change of [`normalise_error`] or of the hash needs another one: an
/// identifier that somebody wrote down must never come to mean something else.
const VERSION: &str = "g1-";

/// Bytes of the hash that are kept.
const KEPT: usize = 8;

/// Identifies the failures of one handler whose errors are alike, across releases and stores.
///
/// It is written as `g1-` and 16 lower-case hexadecimal digits: the first 8 bytes of the SHA-256 of the handler's name, a
/// byte of zero, and the [normalised error](normalise_error), both in UTF-8. `g1` names this rule and that of the
/// normalised text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorGroupId([u8; KEPT]);

/// A text that identifies no group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a group that `errors` printed, such as g1-3f0b9c2d7a5e8146")]
pub struct InvalidErrorGroupId(pub String);

impl ErrorGroupId {
    /// The group of a handler's failures with this normalised error.
    pub fn of(handler: &str, normalised: &str) -> Self {
        let hash = Sha256::new().chain_update(handler).chain_update([0]).chain_update(normalised).finalize();
        let mut kept = [0; KEPT];
        kept.copy_from_slice(&hash[..KEPT]);
        ErrorGroupId(kept)
    }
}

impl fmt::Display for ErrorGroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for ErrorGroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ErrorGroupId {
    type Err = InvalidErrorGroupId;

    /// Reads what [`Display`](fmt::Display) writes, and nothing else.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix(VERSION).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let id = digits.map(|digits| ErrorGroupId(digits.to_be_bytes()));
        id.filter(|id| id.to_string() == text).ok_or_else(|| InvalidErrorGroupId(text.to_owned()))
    }
}

impl Serialize for ErrorGroupId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Delivery {
    /// What its latest failure has in common with others. `None` when it has not failed; one that died without a message
    /// has an empty text.
    pub fn normalised_error(&self) -> Option<String> {
        match &self.last_error {
            Some(message) => Some(normalise_error(message)),
            None => (self.status == Status::Dead).then(String::new),
        }
    }

    /// The group of its latest failure, if it has failed.
    pub fn error_group(&self) -> Option<ErrorGroupId> {
        self.normalised_error().map(|error| ErrorGroupId::of(&self.handler, &error))
    }

    /// When its latest failure was recorded, or where nobody wrote that down, when it last changed.
    pub fn failed_at(&self) -> Timestamp {
        self.errors.last().map_or(self.updated_at, |error| error.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These were written down by people and scripts: they hold for ever. Computed apart, with sha256sum.
    #[test]
    fn identifiers_stay_the_same_across_releases() {
        let id = |handler, error| ErrorGroupId::of(handler, &normalise_error(error)).to_string();
        assert_eq!(
            id("projector", "exit status 1: connection to 10.0.0.1:5432 refused"),
            "g1-5084f7be306e5140"
        );
        assert_eq!(id("mailer", "exit status 1: connection to 10.0.0.1:5432 refused"), "g1-f0d64c704cbd1183");
        assert_eq!(id("projector", ""), "g1-aefc4a0bafe69af4");
        assert_eq!(id("確認", "接続が拒否されました"), "g1-7f08937ad6d9e933");
    }

    #[test]
    fn handler_and_text_do_not_run_into_each_other() {
        assert_ne!(ErrorGroupId::of("ab", "c"), ErrorGroupId::of("a", "bc"));
    }

    #[test]
    fn an_identifier_reads_back_and_nothing_else_does() {
        let id = ErrorGroupId::of("h", "e");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("g1-0000000000000000".parse(), Ok(ErrorGroupId([0; 8])));
        for text in [
            "",
            "g1-",
            "g1-0",
            "0000000000000000",
            "g2-0000000000000000",
            "g1-00000000000000000",
            "g1-000000000000000G",
            "g1-ABCDEF0000000000",
            "g1-+000000000000000",
            " g1-0000000000000000",
        ] {
            assert!(text.parse::<ErrorGroupId>().is_err(), "{text}");
        }
    }
}
