//! Which deliveries an operator means. Values are compared as values: nothing in a filter is ever a pattern
//! language or a query operator, except the `*` at the end of a type pattern.

use std::fmt;
use std::str::FromStr;

use super::delivery::{Delivery, Lane, Status};
use super::error_group::ErrorGroupId;
use super::id::EventId;
use super::time::Timestamp;

/// Event types: one exactly (`order.placed.v1`), all that begin alike (`order.*`), or all (`*`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TypePattern {
    /// This type alone.
    Exact(String),
    /// All types that begin with this text; the empty text means all.
    Prefix(String),
}

/// A pattern with a `*` that is not at its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a type pattern: write a type, a prefix followed by `*`, or `*`")]
pub struct InvalidPattern(pub String);

impl TypePattern {
    /// Whether `event_type` is meant.
    pub fn matches(&self, event_type: &str) -> bool {
        match self {
            TypePattern::Exact(exact) => event_type == exact,
            TypePattern::Prefix(prefix) => event_type.starts_with(prefix.as_str()),
        }
    }

    /// For a prefix: the smallest text above all that begin with it, so that a range can replace a pattern.
    /// `None` when there is no such text.
    pub fn upper_bound(prefix: &str) -> Option<String> {
        let mut bound: Vec<char> = prefix.chars().collect();
        while let Some(last) = bound.pop() {
            // The successor in code point order; the surrogate gap is stepped over.
            let next =
                if last == '\u{D7FF}' { Some('\u{E000}') } else { char::from_u32(u32::from(last) + 1) };
            if let Some(next) = next {
                bound.push(next);
                return Some(bound.into_iter().collect());
            }
        }
        None
    }
}

impl FromStr for TypePattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.find('*') {
            None if text.is_empty() => Err(InvalidPattern(text.to_owned())),
            None => Ok(TypePattern::Exact(text.to_owned())),
            Some(at) if at + 1 == text.len() => Ok(TypePattern::Prefix(text[..at].to_owned())),
            Some(_) => Err(InvalidPattern(text.to_owned())),
        }
    }
}

impl fmt::Display for TypePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TypePattern::Exact(exact) => f.write_str(exact),
            TypePattern::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// Conditions that all have to hold; an empty filter means every delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In one of these statuses; any when empty.
    pub statuses: Vec<Status>,
    /// For this handler.
    pub handler: Option<String>,
    /// Of these event types.
    pub event_type: Option<TypePattern>,
    /// Of this key.
    pub key: Option<String>,
    /// Of this event.
    pub event: Option<EventId>,
    /// With this text in the message of the latest failure, whatever the case of its ASCII letters.
    pub error: Option<String>,
    /// With a latest failure of one of these groups; any, or none at all, when empty.
    pub groups: Vec<ErrorGroupId>,
    /// Created at or after this time.
    pub since: Option<Timestamp>,
    /// Created before this time.
    pub until: Option<Timestamp>,
    /// Completed or dead since before this time.
    pub finished_before: Option<Timestamp>,
    /// With at least this many attempts.
    pub min_attempts: Option<u32>,
    /// In this lane, and unfinished.
    pub lane: Option<Lane>,
    /// Unfinished and due since before this time.
    pub due_before: Option<Timestamp>,
}

impl Filter {
    /// Whether the filter has no condition at all.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// Whether `delivery` meets every condition: the definition that all stores follow.
    pub fn matches(&self, delivery: &Delivery) -> bool {
        let given_and = |condition: Option<bool>| condition.unwrap_or(true);
        let created = delivery.created_at;
        (self.statuses.is_empty() || self.statuses.contains(&delivery.status))
            && given_and(self.handler.as_ref().map(|handler| *handler == delivery.handler))
            && given_and(self.event_type.as_ref().map(|pattern| pattern.matches(&delivery.event_type)))
            && given_and(self.key.as_ref().map(|key| delivery.key.as_ref() == Some(key)))
            && given_and(self.event.as_ref().map(|event| *event == delivery.event_id))
            && given_and(self.error.as_ref().map(|text| mentions(delivery.last_error.as_deref(), text)))
            && self.matches_group(delivery)
            && given_and(self.since.map(|since| created >= since))
            && given_and(self.until.map(|until| created < until))
            && given_and(self.finished_before.map(|time| delivery.finished_at().is_some_and(|at| at < time)))
            && given_and(self.min_attempts.map(|attempts| delivery.attempts >= attempts))
            && given_and(self.lane.map(|lane| delivery.status.is_unfinished() && delivery.lane == lane))
            && given_and(self.due_before.map(|time| delivery.due_at.is_some_and(|due| due < time)))
    }

    /// Whether `delivery` meets the condition on groups: the one that a database cannot evaluate.
    pub fn matches_group(&self, delivery: &Delivery) -> bool {
        self.groups.is_empty() || delivery.error_group().is_some_and(|group| self.groups.contains(&group))
    }
}

fn mentions(message: Option<&str>, text: &str) -> bool {
    message.is_some_and(|message| message.to_ascii_lowercase().contains(&text.to_ascii_lowercase()))
}

/// The deliveries that a bulk change is about: those that match, and did not change after the cut-off.
///
/// The cut-off is fixed when the operator gives the command, so that what fails or arrives later stays out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The conditions.
    pub filter: Filter,
    /// Last changed at or before this time.
    pub cutoff: Timestamp,
}

impl Selection {
    /// Whether `delivery` is selected.
    pub fn matches(&self, delivery: &Delivery) -> bool {
        delivery.updated_at <= self.cutoff && self.filter.matches(delivery)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_prefixes_and_never_regular_expressions() {
        let matches = |pattern: &str, text| pattern.parse::<TypePattern>().unwrap().matches(text);
        assert!(matches("order.*", "order.placed.v1") && !matches("order.*", "orders"));
        assert!(matches("*", "anything") && matches("*", ""));
        assert!(matches(".*", ".hidden") && !matches(".*", "order"));
        assert!(!matches("order.placed", "order_placed") && !matches("order", "order.placed"));
        for text in ["", "*.v1", "a*b", "**"] {
            assert!(text.parse::<TypePattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_range_covers_exactly_the_texts_with_the_prefix() {
        let bound = |prefix| TypePattern::upper_bound(prefix);
        assert_eq!(bound("order."), Some("order/".into()));
        assert_eq!(bound("a\u{10FFFF}"), Some("b".into()));
        assert_eq!(bound("\u{D7FF}"), Some("\u{E000}".into()));
        assert_eq!(bound("\u{10FFFF}"), None);
        assert_eq!(bound(""), None);
    }
}
