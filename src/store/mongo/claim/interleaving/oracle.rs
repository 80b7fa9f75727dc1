//! What the rules let a claim take that nobody disturbs.

use mongodb::bson::Document;

use super::judge::{has, is_first};
use super::server::{Deliveries, Server};
use crate::model::Timestamp;

/// What a claim would find.
#[derive(Debug)]
pub(super) struct Sight {
    /// What can be claimed, the oldest first.
    pub(super) eligible: Vec<String>,
    /// Whether nothing is parked, and no head waits for a later one of its key to end.
    pub(super) is_plain: bool,
}

/// What a claim would find at `now`.
pub(super) fn look(server: &Server, now: Timestamp) -> Sight {
    let all = server.deliveries.borrow();
    let is_due = |one: &&Document| due_at(one).is_some_and(|due_at| due_at <= now.as_millis());
    let heads = all.values().filter(is_due).filter(|one| is_first(one, &all));
    let (held_up, eligible): (Vec<&Document>, Vec<&Document>) =
        heads.partition(|one| has_running_sibling(one, &all, now));
    let is_plain = held_up.is_empty() && !all.values().any(|one| has(one, "lane", "parked"));
    let mut by_age: Vec<(Option<i64>, String)> = eligible
        .into_iter()
        .map(|one| (due_at(one), one.get_str("_id").unwrap_or_default().to_owned()))
        .collect();
    by_age.sort();
    Sight { eligible: by_age.into_iter().map(|(_, id)| id).collect(), is_plain }
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
