//! Which event types the handlers are for, as it is now.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::model::TypePattern;

/// The event types of handlers; none means whatever comes.
pub(super) type Types = BTreeMap<String, Vec<TypePattern>>;

/// The event types of the handlers that the worker has, for all who have to know them while it runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Subscribed(watch::Sender<Types>);

impl Subscribed {
    /// Has these from now on; returns those from before.
    pub(super) fn replace(&self, types: Types) -> Types {
        self.0.send_replace(types)
    }

    /// What a handler of the worker is for.
    pub(super) fn types_of(&self, handler: &str) -> Option<Vec<TypePattern>> {
        self.0.borrow().get(handler).cloned()
    }

    /// The handlers that subscribe to an event type, by name.
    pub(super) fn subscribers(&self, event_type: &str) -> Vec<String> {
        let types = self.0.borrow();
        let subscribes = |patterns: &[TypePattern]| patterns.iter().any(|one| one.matches(event_type));
        types.iter().filter(|(_, patterns)| subscribes(patterns)).map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_subscribes_goes_by_what_was_told_last() {
        let types = |names: &[&str]| -> Types {
            names.iter().map(|name| (name.to_string(), vec!["order.*".parse().unwrap()])).collect()
        };
        let subscribed = Subscribed::default();
        let other = subscribed.clone();
        assert!(subscribed.replace(types(&["b", "a"])).is_empty());
        assert_eq!(other.subscribers("order.placed"), ["a", "b"]);
        assert!(other.subscribers("user.left").is_empty());
        assert_eq!(subscribed.replace(types(&["c"])), types(&["a", "b"]));
        assert_eq!((other.subscribers("order.placed"), other.types_of("a")), (vec!["c".to_owned()], None));
    }
}
