//! Identifiers: texts of 1 to 512 bytes, UUID version 7 unless the caller gave one.

use std::fmt;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use super::time::Timestamp;

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                $name(text)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(text.to_owned())
            }
        }
    };
}

string_id! {
    /// Identifies an event, and makes its append idempotent.
    EventId
}
string_id! {
    /// Identifies one delivery: one event for one handler.
    DeliveryId
}
string_id! {
    /// Fences the outcome of one lease: whoever holds another token changes nothing.
    LeaseToken
}

/// The name space (RFC 9562) of the ids that follow from others.
const DERIVED: uuid::Uuid = uuid::uuid!("5b0c9f0e-3f0b-4a53-9c67-5f2f7d1a8e34");

impl DeliveryId {
    /// The id that a delivery gets when it becomes one for another handler: always the same one. UUID version 5.
    pub fn derived(old: &str, handler: &str) -> Self {
        let name = format!("{old}\0{handler}");
        DeliveryId(uuid::Uuid::new_v5(&DERIVED, name.as_bytes()).to_string())
    }
}

/// What an identifier is made for; lets a test hand out readable ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdKind {
    /// An [`EventId`].
    Event,
    /// A [`DeliveryId`].
    Delivery,
    /// A [`LeaseToken`].
    LeaseToken,
}

/// Makes identifiers. Each one must be new; those made later should sort later.
pub trait IdSource: Send + Sync + fmt::Debug {
    /// A fresh identifier, made at `now`.
    fn next(&self, kind: IdKind, now: Timestamp) -> String;
}

/// The source that is used unless another is given: UUID version 7 (RFC 9562), whose text sorts by time.
#[derive(Debug, Default)]
pub struct UuidV7 {
    context: Mutex<uuid::ContextV7>,
}

impl IdSource for UuidV7 {
    fn next(&self, _kind: IdKind, now: Timestamp) -> String {
        let seconds = now.as_millis().div_euclid(1_000).max(0) as u64;
        let nanos = now.as_millis().rem_euclid(1_000) as u32 * 1_000_000;
        let context = self.context.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        uuid::Uuid::new_v7(uuid::Timestamp::from_unix(&*context, seconds, nanos)).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_millisecond_are_unique_and_sorted() {
        let source = UuidV7::default();
        let now = Timestamp::from_millis(1_764_528_000_123);
        let ids: Vec<_> = (0..1_000).map(|_| source.next(IdKind::Event, now)).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids[0].starts_with("019ad610-8c7b-7"), "{}", ids[0]);
    }

    #[test]
    fn an_instant_before_the_epoch_still_gets_an_id() {
        assert_eq!(UuidV7::default().next(IdKind::Event, Timestamp::from_millis(-5)).len(), 36);
    }
}
