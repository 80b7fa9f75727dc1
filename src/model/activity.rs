//! Whether anybody runs a handler, as far as its deliveries can tell.

use super::delivery::Delivery;
use super::time::Timestamp;

/// Signs that a worker runs a handler. Workers do not register anywhere: what they leave on deliveries is all there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandlerActivity {
    /// A delivery of the handler under a live lease, if there is one.
    pub running: Option<Delivery>,
    /// The latest outcome that a worker reported, among the deliveries that were looked at.
    pub last_outcome_at: Option<Timestamp>,
    /// How many deliveries were looked at for outcomes.
    pub examined: u64,
}

impl HandlerActivity {
    /// Adds what a delivery tells.
    pub fn examine(&mut self, delivery: &Delivery) {
        self.examined += 1;
        self.last_outcome_at = self.last_outcome_at.max(delivery.last_outcome_at());
    }

    /// Whether there is a sign of a worker since `since`.
    pub fn is_seen_since(&self, since: Timestamp) -> bool {
        self.running.is_some() || self.last_outcome_at.is_some_and(|at| at >= since)
    }
}
