//! The names of the collections.

use crate::model::InvalidInput;

/// Behind the prefix, what no application's collection is called.
const RESERVED: [&str; 1] = ["history"];

/// The four collections of an outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) events: String,
    pub(super) deliveries: String,
    pub(super) key_sequences: String,
    pub(super) controls: String,
}

impl Names {
    /// The collections whose names begin with `prefix`.
    pub(super) fn with_prefix(prefix: &str) -> Self {
        Names {
            events: format!("{prefix}events"),
            deliveries: format!("{prefix}deliveries"),
            key_sequences: format!("{prefix}key_sequences"),
            controls: format!("{prefix}controls"),
        }
    }

    pub(super) fn all(&self) -> [&str; 4] {
        [&self.events, &self.deliveries, &self.key_sequences, &self.controls]
    }

    /// Whether a collection is the outbox's, or may become so: applications keep their own beside it, perhaps even with
    /// its prefix.
    pub(super) fn are_for(&self, collection: &str) -> bool {
        let prefix = self.events.strip_suffix("events").unwrap_or_default();
        let reserved = collection.strip_prefix(prefix).is_some_and(|name| RESERVED.contains(&name));
        reserved || self.all().contains(&collection)
    }
}

/// A prefix is made of letters, digits, `_` and `-`; it may be empty.
pub(super) fn check_prefix(prefix: &str) -> Result<(), InvalidInput> {
    if prefix.chars().all(is_plain) && prefix.len() <= 64 {
        return Ok(());
    }
    let reason = format!("`{prefix}` is not made of at most 64 letters, digits, `_` and `-`");
    Err(InvalidInput { what: "prefix".to_owned(), reason })
}

/// A database name is made of 1 to 63 letters, digits, `_` and `-`.
pub(super) fn check_database(name: &str) -> Result<(), InvalidInput> {
    if name.chars().all(is_plain) && (1..=63).contains(&name.len()) {
        return Ok(());
    }
    let reason = format!("`{name}` is not made of 1 to 63 letters, digits, `_` and `-`");
    Err(InvalidInput { what: "database".to_owned(), reason })
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outbox_has_collections_of_its_own() {
        let names = Names::with_prefix("shop_");
        for own in ["shop_events", "shop_deliveries", "shop_key_sequences", "shop_controls", "shop_history"] {
            assert!(names.are_for(own), "{own}");
        }
        for other in ["shop_orders", "orders", "events", "history", "shop_Events"] {
            assert!(!names.are_for(other), "{other}");
        }
        assert!(Names::with_prefix("").are_for("events"));
    }

    #[test]
    fn names_are_plain() {
        assert!(
            check_prefix("relaybus_").is_ok() && check_prefix("").is_ok() && check_prefix("a-B_9").is_ok()
        );
        assert!(check_prefix("a.b").is_err() && check_prefix("é").is_err() && check_prefix("a$").is_err());
        assert!(check_database(&"d".repeat(63)).is_ok());
        for name in ["", "a/b", "a b", "a.b", &"d".repeat(64)] {
            assert!(check_database(name).is_err(), "{name}");
        }
    }
}
