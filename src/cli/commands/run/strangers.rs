//! Event types that a handler was not meant for.

use std::collections::HashSet;

use super::subscribed::Subscribed;
use crate::dispatch::DispatchEvent;
use crate::model::TypePattern;

/// How many types are remembered, so that a flood of them does not fill the memory.
const REMEMBERED: usize = 1_000;

/// Notices deliveries of types that their handler does not subscribe to. They were addressed to it, so they run; but
/// whoever publishes them and whoever wrote the handler may not mean the same.
#[derive(Debug)]
pub(super) struct Strangers {
    subscribed: Subscribed,
    warned: HashSet<(String, String)>,
}

impl Strangers {
    /// Watches for types beyond these; a handler without patterns is meant for all.
    pub(super) fn beyond(subscribed: Subscribed) -> Self {
        Strangers { subscribed, warned: HashSet::new() }
    }

    /// A warning, for the first delivery of each such type.
    pub(super) fn warning_for(&mut self, event: &DispatchEvent) -> Option<String> {
        let DispatchEvent::Finished(finished) = event else { return None };
        let patterns = self.subscribed.types_of(&finished.handler)?;
        let is_meant = patterns.is_empty() || patterns.iter().any(|one| one.matches(&finished.event_type));
        if is_meant || self.warned.len() >= REMEMBERED {
            return None;
        }
        let pair = (finished.handler.clone(), finished.event_type.clone());
        let patterns: Vec<_> = patterns.iter().map(TypePattern::to_string).collect();
        let warning = format!(
            "handler {} is meant for {} and was sent an event of type {}, which ran all the same",
            pair.0,
            patterns.join(", "),
            pair.1
        );
        self.warned.insert(pair).then_some(warning)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use crate::dispatch::Verdict;

    fn finished(handler: &str, event_type: &str) -> DispatchEvent {
        testing::finished(handler, event_type, Verdict::Completed)
    }

    #[test]
    fn the_first_of_each_foreign_type_is_warned_about() {
        let orders = vec!["order.*".parse().unwrap()];
        let subscribed = Subscribed::default();
        subscribed.replace([("mailer".into(), orders), ("all".into(), vec![])].into());
        let mut strangers = Strangers::beyond(subscribed);
        assert_eq!(strangers.warning_for(&finished("mailer", "order.placed")), None);
        assert_eq!(strangers.warning_for(&finished("all", "user.left")), None);
        let warning = strangers.warning_for(&finished("mailer", "user.left")).unwrap();
        assert_eq!(
            warning,
            "handler mailer is meant for order.* and was sent an event of type user.left, which ran all the same"
        );
        assert_eq!(strangers.warning_for(&finished("mailer", "user.left")), None);
        assert!(strangers.warning_for(&finished("mailer", "user.came")).is_some());
    }
}
