//! What the rules let a claim take that nobody disturbs.

use mongodb::bson::Document;

use super::judge::{has, is_first};
use super::server::{Deliveries, Server};
use crate::model::Timestamp;

/// The ids of what can be claimed at `now`, the oldest first.
pub(super) fn eligible(server: &Server, now: Timestamp) -> Vec<String> {
    let all = server.deliveries.borrow();
    let mut eligible: Vec<(i64, String)> = all
        .values()
        .filter(|one| due_at(one).is_some_and(|due_at| due_at <= now.as_millis()))
        .filter(|one| is_first(one, &all) && !has_running_sibling(one, &all, now))
        .map(|one| (due_at(one).unwrap_or_default(), one.get_str("_id").unwrap_or_default().to_owned()))
        .collect();
    eligible.sort();
    eligible.into_iter().map(|(_, id)| id).collect()
}

/// Whether something waits in the lane that the claim scan leaves out.
pub(super) fn is_parked(server: &Server) -> bool {
    server.deliveries.borrow().values().any(|one| has(one, "lane", "parked"))
}

fn due_at(delivery: &Document) -> Option<i64> {
    delivery.get_datetime("dueAt").ok().map(|due_at| due_at.timestamp_millis())
}

fn has_running_sibling(delivery: &Document, all: &Deliveries, now: Timestamp) -> bool {
    delivery.contains_key("key")
        && all.values().any(|other| {
            other.get("key") == delivery.get("key")
                && other.get("handler") == delivery.get("handler")
                && other.get("_id") != delivery.get("_id")
                && has(other, "status", "processing")
                && due_at(other).is_some_and(|due_at| due_at > now.as_millis())
        })
}
