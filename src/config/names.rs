//! Names that end up in names of collections: checked here, so that a slip is told before anything is connected.

/// A name that MongoDB or the contract would refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a {what}: {rule}")]
pub struct InvalidName {
    /// What was given.
    pub name: String,
    /// What it was to be.
    pub what: &'static str,
    /// What is allowed.
    pub rule: &'static str,
}

/// The longest database name, in bytes.
const MAX_DATABASE_BYTES: usize = 63;

/// MongoDB takes 255 bytes for `database.collection`; this leaves room for the rest.
const MAX_PREFIX_BYTES: usize = 128;

/// A database name: 1 to 63 letters, digits, `_` and `-`.
///
/// # Errors
/// [`InvalidName`] says what is allowed.
pub fn check_database(name: &str) -> Result<String, InvalidName> {
    let rule = "1 to 63 letters, digits, _ and - are allowed";
    let fits = (1..=MAX_DATABASE_BYTES).contains(&name.len());
    check(name, fits, "database name", rule)
}

/// A prefix of collection names: letters, digits, `_` and `-`; may be empty.
///
/// # Errors
/// [`InvalidName`] says what is allowed.
pub fn check_prefix(name: &str) -> Result<String, InvalidName> {
    let rule = "at most 128 letters, digits, _ and - are allowed";
    check(name, name.len() <= MAX_PREFIX_BYTES, "prefix", rule)
}

fn check(name: &str, fits: bool, what: &'static str, rule: &'static str) -> Result<String, InvalidName> {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if fits && plain { Ok(name.to_owned()) } else { Err(InvalidName { name: name.to_owned(), what, rule }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_letters_digits_underscore_and_dash() {
        for good in ["", "relaybus_", "a-b_C9"] {
            assert!(check_prefix(good).is_ok(), "{good}");
        }
        for bad in ["a.b", "a b", "$x", "é", "system.", "a\0b"] {
            assert!(check_prefix(bad).is_err(), "{bad}");
        }
        assert!(check_prefix(&"p".repeat(129)).is_err());
    }

    #[test]
    fn a_database_has_1_to_63_of_the_same() {
        assert!(check_database("shop").is_ok());
        assert!(check_database(&"d".repeat(63)).is_ok());
        for bad in ["", "a/b", "a.b", "shop "] {
            assert!(check_database(bad).is_err(), "{bad}");
        }
        assert!(check_database(&"d".repeat(64)).is_err());
    }
}
